"""Guided masking (GIST): no text that a guide finds closer than the labelled pair is a negative."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.info_nce import check_pairs
from simcse_cli.losses.similarity import similarity_matrix
from simcse_cli.settings.choices import ContrastBlock


def guided_info_nce(
    views: Sequence[Tensor],
    guide: Sequence[Tensor],
    *,
    temperature: float,
    margin: float = 0.0,
    blocks: Collection[ContrastBlock] = tuple(ContrastBlock),
    excluded: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the in-batch loss, mean over anchors, in nats, and the share of removed negatives.

    Source: Solatorio 2024 (GISTEmbed) and its code. ``views`` are the student's anchors, positives
    and perhaps hard negatives, each ``(N, D)``, already gathered over processes; ``guide`` has the
    guide's vectors of the same texts. The columns of anchor i are cosines over temperature to
    positives, hard negatives, other anchors (``aa``), and positive i to other positives (``pp``).
    A column is removed where the guide's cosine of its two texts is above ``b_i - margin``, b_i
    that of anchor i and positive i; the labelled pair always stays, and so do equal cosines.

    *Ours:* the diagonals of ``aa`` and ``pp``, a text with itself, are never negatives. Pairs that
    are ``excluded`` ``(N, N)`` are in no block.

    All equal vectors and no margin, two views: ``ln(3N - 2)``; without blocks it is InfoNCE.
    """
    # The views that are compared: anchors with all others, and what the blocks add.
    anchors = views[0]
    check_pairs(anchors, views[1], temperature)
    pairs = [(0, other) for other in range(1, len(views))]
    if ContrastBlock.AA in blocks:
        pairs.append((0, 0))
    if ContrastBlock.PP in blocks:
        pairs.append((1, 1))

    # The bar of each row is that of its labelled pair.
    is_own = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    bars = similarity_matrix(guide[0], guide[1]).diagonal()[:, None] - margin

    # Each block: its cosines, and where it is removed.
    logits, removed = [], []
    n_candidates = 0
    for left, right in pairs:
        is_of_rows = right < 2  # the diagonal is the labelled pair, or a text with itself
        is_closer = similarity_matrix(guide[left], guide[right]) > bars
        if is_of_rows:
            is_closer = is_closer & ~is_own
        removed.append(is_closer.sum())
        n_candidates += is_closer.numel() - len(anchors) * is_of_rows
        if is_of_rows and excluded is not None:
            is_closer = is_closer | excluded
        if left == right:
            is_closer = is_closer | is_own
        block = similarity_matrix(views[left], views[right])
        logits.append(block.masked_fill(is_closer, -torch.inf))

    # The labelled pairs are the diagonal of the first block.
    labels = torch.arange(len(anchors), device=anchors.device)
    loss = functional.cross_entropy(torch.cat(logits, dim=1) / temperature, labels)
    return loss, torch.stack(removed).sum() / n_candidates
