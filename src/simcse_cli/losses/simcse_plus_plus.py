"""SimCSE++: negatives without dropout, and contrast between the dimensions of two views."""

import torch
from torch import Tensor

from simcse_cli.losses.barlow_twins import cross_correlation
from simcse_cli.losses.info_nce import check_pairs
from simcse_cli.losses.similarity import own_pairs, own_row_loss, similarity_matrix
from simcse_cli.settings.choices import Similarity


def off_dropout(
    anchors: Tensor,
    positives: Tensor,
    plain: Tensor,
    *,
    temperature: float,
    positive_scale: float = 1.0,
    similarity: Similarity = Similarity.COSINE,
    excluded: Tensor | None = None,
) -> Tensor:
    """Return the in-batch loss whose negatives have no dropout, mean over rows, in nats.

    Source: Xu et al. 2023 (SimCSE++) and the authors' code. ``plain`` are the vectors of the same
    sentences without dropout. s_i is the similarity of anchor i and positive i, q_ij that of plain
    vectors i and j, both divided by the temperature; a is ``positive_scale``:

        loss_i = -a s_i + ln(exp(a s_i) + sum_{j != i} exp(q_ij))

    ``anchors``, ``positives`` and ``plain`` are ``(N, D)``, any norm, already gathered over
    processes. ``excluded`` ``(N, N)`` is true where rows i and j are not to be negatives of each
    other.

    With scale 1, equal vectors give ``ln N``. With scale 1, and if ``anchors``, ``positives`` and
    ``plain`` are the same matrix, the loss is InfoNCE.
    """
    check_pairs(anchors, positives, temperature)
    positive_logits = similarity_matrix(anchors, positives, similarity).diagonal() / temperature
    negative_logits = similarity_matrix(plain, plain, similarity) / temperature  # (N, N)
    if excluded is not None:
        negative_logits = negative_logits.masked_fill(excluded, -torch.inf)
    is_own = own_pairs(anchors)
    logits = torch.where(is_own, positive_scale * positive_logits[:, None], negative_logits)
    return own_row_loss(logits)


def dimension_contrast(view_a: Tensor, view_b: Tensor, *, temperature: float) -> Tensor:
    """Return the contrastive loss of the dimensions of two views, mean over dimensions, in nats.

    Source: Xu et al. 2023 (SimCSE++) and the authors' code. Y_a and Y_b are the views with each
    column standardised over the batch (biased variance + 1e-5). Dimension k of the first view is
    classified among all dimensions of the second:

        C = Y_a^T Y_b / (N temperature)
        loss_k = -C_kk + ln sum_l exp(C_kl)

    The views are ``(N, D)``, already gathered over processes. N below 2 raises a ValueError.

    At temperature t, equal views with independent columns give about
    ``ln(exp(1 / t) + D - 1) - 1 / t``; constant columns give ``ln D``.
    """
    return own_row_loss(cross_correlation(view_a, view_b) / temperature)
