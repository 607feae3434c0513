"""InfoNCE, the loss of SimCSE, with in-batch negatives and weighted hard negatives."""

import math

import torch
from torch import Tensor

from simcse_cli.losses.similarity import own_row_loss, similarity_matrix
from simcse_cli.settings.choices import Similarity


def info_nce(
    anchors: Tensor,
    positives: Tensor,
    *,
    temperature: float,
    hard_negatives: Tensor | None = None,
    hard_negative_alpha: float = 1.0,
    similarity: Similarity = Similarity.COSINE,
    symmetric: bool = False,
    texts: Tensor | None = None,
    extra_negatives: Tensor | None = None,
    excluded: Tensor | None = None,
) -> Tensor:
    """Return the in-batch contrastive loss, mean over anchors, in nats.

    Source: Gao et al. 2021, Eq. 1, 5 and 8. Anchor i is classified among all positives and hard
    negatives:

        loss_i = -ln(exp(p_ii) / (sum_j exp(p_ij) + sum_j w_ij exp(h_ij)))

    p_ij and h_ij are the similarities of anchor i to positive j and to hard negative j, divided by
    the temperature. w_ij is alpha for the anchor's own hard negatives, else 1.

    ``anchors`` and ``positives`` are ``(N, D)``, any norm, already gathered over processes.
    ``hard_negatives`` are ``(S * N, D)``, S for each anchor: anchor i has the rows i, N + i and so
    on. ``temperature`` has no unit, and divides dot products too; the paper divides those by 1.
    Other shapes, or a temperature or alpha that is not above 0, raise a ValueError.

    ``symmetric`` averages this loss with the loss of classifying positive i among all anchors,
    which has neither hard nor extra negatives. The paper does not describe this; its authors found
    no clear difference.

    ``texts`` ``(N, 2 + S)`` identifies each text of a row (anchor, positive, hard negatives) by a
    number; equal texts have equal numbers. If given, exp(p_ij) is left out where another row j has
    the same anchor or positive as row i, or has anchor i as its positive. exp(h_ij) is left out
    where the hard negative is the anchor or positive of row i. A row from which nothing is left out
    keeps its loss, bit for bit. If all rows are equal, the loss without hard and extra negatives is
    0.

    ``extra_negatives`` ``(M, D)`` belong to no row and count once for each anchor. ``excluded``
    ``(N, N)`` is true where positive j is not to be a negative of anchor i; it is false on the
    diagonal.

    Equal embeddings give ``ln N``, ``ln(2N - 1 + alpha)`` with one hard negative for each anchor,
    or ``ln(N + M)`` with M extra negatives.
    """
    # Compare each anchor with all positives; the positive of the same row is on the diagonal.
    check_pairs(anchors, positives, temperature)
    n_rows = len(anchors)
    logits = similarity_matrix(anchors, positives, similarity) / temperature  # (N, N)
    if texts is not None:
        _check_text_shape(texts, anchors, hard_negatives)
        logits = logits.masked_fill(equal_pairs(texts), -torch.inf)
    if excluded is not None:
        logits = logits.masked_fill(excluded, -torch.inf)

    # The other direction has no hard or extra negatives, so it is computed before they are added.
    reverse_loss = own_row_loss(logits.T) if symmetric else None

    # Every negative is one more column for all anchors.
    if hard_negatives is not None:
        _check_hard_negatives(hard_negatives, anchors, hard_negative_alpha)
        negative_logits = similarity_matrix(anchors, hard_negatives, similarity) / temperature
        # An anchor's own hard negatives weigh alpha, so their logits gain ln(alpha).
        eye = torch.eye(n_rows, device=anchors.device, dtype=negative_logits.dtype)
        is_own = eye.repeat(1, len(hard_negatives) // n_rows)
        negative_logits = negative_logits + math.log(hard_negative_alpha) * is_own
        if texts is not None:
            negative_logits = negative_logits.masked_fill(is_anchor_or_positive(texts), -torch.inf)
        logits = torch.cat([logits, negative_logits], dim=1)
    if extra_negatives is not None:
        extra_logits = similarity_matrix(anchors, extra_negatives, similarity) / temperature
        logits = torch.cat([logits, extra_logits], dim=1)
    loss = own_row_loss(logits)
    if reverse_loss is None:
        return loss
    return (loss + reverse_loss) / 2


def equal_pairs(texts: Tensor) -> Tensor:
    """Return ``(N, N)``: true where the positive of another row j is known to fit anchor i.

    This is known if rows i and j have the same anchor or the same positive, or if positive j has
    the text of anchor i. Columns 0 and 1 of ``texts`` identify the texts of anchors and positives.
    """
    anchors = texts[:, 0]
    positives = texts[:, 1]
    has_same_anchor = anchors[:, None] == anchors
    has_same_positive = positives[:, None] == positives
    has_anchor_as_positive = anchors[:, None] == positives
    return (has_same_anchor | has_same_positive | has_anchor_as_positive).fill_diagonal_(False)


def is_anchor_or_positive(texts: Tensor) -> Tensor:
    """Return ``(N, S * N)``: true where a hard negative has the text of anchor i or positive i.

    The columns of ``texts`` identify the texts of anchors, positives and hard negatives.
    """
    anchors = texts[:, 0, None]
    positives = texts[:, 1, None]
    negatives = texts[:, 2:].T.flatten()  # in the order of the rows of ``hard_negatives``
    return (anchors == negatives) | (positives == negatives)


def check_pairs(anchors: Tensor, positives: Tensor, temperature: float) -> None:
    """Raise ``ValueError`` unless both sides are ``(N, D)`` and the temperature is above 0."""
    if anchors.ndim != 2 or anchors.shape != positives.shape:
        raise ValueError(
            f"anchors {tuple(anchors.shape)}, positives {tuple(positives.shape)}: need both (N, D)"
        )
    if not temperature > 0:
        raise ValueError(f"temperature {temperature}: must be above 0")


def _check_text_shape(texts: Tensor, anchors: Tensor, hard_negatives: Tensor | None) -> None:
    n_negatives = 0 if hard_negatives is None else len(hard_negatives) // max(len(anchors), 1)
    if texts.shape != (len(anchors), 2 + n_negatives):
        raise ValueError(f"texts {tuple(texts.shape)}: need ({len(anchors)}, {2 + n_negatives})")


def _check_hard_negatives(hard_negatives: Tensor, anchors: Tensor, alpha: float) -> None:
    n_negatives = len(hard_negatives)
    is_multiple = n_negatives > 0 and n_negatives % max(len(anchors), 1) == 0
    if hard_negatives.shape[1:] != anchors.shape[1:] or not is_multiple:
        raise ValueError(
            f"hard_negatives {tuple(hard_negatives.shape)}, anchors {tuple(anchors.shape)}: "
            "need (S * N, D)"
        )
    if not alpha > 0:
        raise ValueError(f"hard_negative_alpha {alpha}: must be above 0")
