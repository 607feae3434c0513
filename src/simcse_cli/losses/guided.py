"""Guided in-batch loss (GIST): a guide model decides which texts are left out as negatives."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from simcse_cli.losses.info_nce import check_pairs, equal_pairs, is_anchor_or_positive
from simcse_cli.losses.similarity import own_pairs, own_row_loss, similarity_matrix
from simcse_cli.settings.choices import ContrastBlock


def guided_info_nce(
    views: Sequence[Tensor],
    guide: Sequence[Tensor],
    *,
    temperature: float,
    margin: float = 0.0,
    blocks: Collection[ContrastBlock] = tuple(ContrastBlock),
    texts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the in-batch loss, mean over anchors, in nats, and the share of removed negatives.

    Source: Solatorio 2024 (GISTEmbed) and its code. ``views`` are the student's anchors, positives
    and perhaps hard negatives, each ``(N, D)``, already gathered over processes. ``guide`` holds
    the guide model's vectors of the same texts.

    The logits of row i are the student's cosines, divided by the temperature, of

    - anchor i with all positives and all hard negatives,
    - anchor i with the other anchors (block ``aa``),
    - positive i with the other positives (block ``pp``).

    A logit of row i is removed where the guide's cosine of the same two texts is above
    ``b_i - margin``; b_i is the guide's cosine of anchor i and positive i, the labelled pair of row
    i, which always stays. Unlike the source, ``aa`` and ``pp`` never compare a text with itself.
    ``texts`` ``(N, 2 + S)`` identifies the texts of each row, as in ``info_nce``; if given, no text
    that is known to fit a row is its negative.

    If all vectors are equal, those of the guide too, two views give ``ln(3N - 2)`` with both
    blocks and without a margin or ``texts``. Without blocks and with nothing removed, the loss is
    InfoNCE.
    """
    # The pairs of views to compare, by their positions in ``views``.
    anchors = views[0]
    check_pairs(anchors, views[1], temperature)
    pairs = [(0, other) for other in range(1, len(views))]
    if ContrastBlock.AA in blocks:
        pairs.append((0, 0))
    if ContrastBlock.PP in blocks:
        pairs.append((1, 1))

    # The bar of each row: the guide's cosine of its labelled pair, less the margin.
    is_own = own_pairs(anchors)
    bars = similarity_matrix(guide[0], guide[1]).diagonal()[:, None] - margin

    # For each pair of views: which texts on the right are known to fit a row, ``(N, N)``. Within a
    # view, two texts may fit each other by the row of either one, hence ``fits.T``.
    known: dict[tuple[int, int], Tensor] = {}
    if texts is not None:
        fits = equal_pairs(texts)
        known = {(0, 1): fits, (0, 0): fits | fits.T, (1, 1): fits | fits.T}
        of_negatives = torch.split(is_anchor_or_positive(texts), len(anchors), dim=1)
        known |= {(0, view): is_known for view, is_known in enumerate(of_negatives, start=2)}

    # For each pair of views: the student's cosines, without the entries to leave out.
    logits = []
    n_removed = []
    n_candidates = 0
    for left, right in pairs:
        # The diagonal of (0, 1) holds the labelled pairs, and that of (0, 0) or (1, 1) each text
        # with itself. These entries are no candidates. Views from 2 on are hard negatives: all of
        # their entries are candidates.
        has_own_pairs = right < 2
        removed = similarity_matrix(guide[left], guide[right]) > bars
        if has_own_pairs:
            removed = removed & ~is_own
        n_removed.append(removed.sum())
        n_candidates += removed.numel() - len(anchors) * has_own_pairs
        # The entries below are left out too, but do not count as removed by the guide.
        left_out = removed
        if known:
            left_out = left_out | known[left, right]
        if left == right:
            left_out = left_out | is_own
        block = similarity_matrix(views[left], views[right])
        logits.append(block.masked_fill(left_out, -torch.inf))

    # The first block is anchors with positives, so column i is right for row i.
    loss = own_row_loss(torch.cat(logits, dim=1) / temperature)
    return loss, torch.stack(n_removed).sum() / max(n_candidates, 1)
