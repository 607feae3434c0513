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

    Anchor i and positive i are the labelled pair of row i, and b_i is the guide's cosine of this
    pair. A logit of row i is removed where the guide's cosine of the same two texts is above
    ``b_i - margin``; the labelled pair always stays. Unlike the source, ``aa`` and ``pp`` never
    compare a text with itself. ``texts`` ``(N, 2 + S)`` identifies the texts of each row, as in
    ``info_nce``; if given, a text that is known to fit a row is no negative of the row.

    With both blocks, no margin and no ``texts``, two views of equal vectors give ``ln(3N - 2)`` if
    the guide's vectors are equal, too. Without blocks and with nothing removed, the loss is
    InfoNCE.
    """
    anchors = views[0]
    check_pairs(anchors, views[1], temperature)
    # The pairs of views to compare, by their positions in ``views``.
    pairs = [(0, other) for other in range(1, len(views))]
    if ContrastBlock.AA in blocks:
        pairs.append((0, 0))
    if ContrastBlock.PP in blocks:
        pairs.append((1, 1))

    # The bar of each row: the guide's cosine of its labelled pair, less the margin.
    is_own = own_pairs(anchors)
    bars = similarity_matrix(guide[0], guide[1]).diagonal()[:, None] - margin

    # For each pair of views: where the text on the right is known to fit the row, ``(N, N)``.
    known: dict[tuple[int, int], Tensor] = {}
    if texts is not None:
        fits = equal_pairs(texts)
        # Within a view, rows i and j are no negatives of each other if either one fits the other.
        known = {(0, 1): fits, (0, 0): fits | fits.T, (1, 1): fits | fits.T}
        of_negatives = torch.split(is_anchor_or_positive(texts), len(anchors), dim=1)
        known |= {(0, view): is_known for view, is_known in enumerate(of_negatives, start=2)}

    # For each pair of views: the student's cosines, without the entries to leave out.
    logits = []
    n_removed = []
    n_candidates = 0
    for left, right in pairs:
        removed = similarity_matrix(guide[left], guide[right]) > bars
        n_candidates += removed.numel()
        # Any entry with hard negatives (views from 2 on) may be removed. In the other blocks the
        # diagonal may not: it holds the labelled pairs, or each text with itself.
        if right < 2:
            removed = removed & ~is_own
            n_candidates -= len(anchors)
        n_removed.append(removed.sum())
        # What is left out below is not counted as removed by the guide.
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
