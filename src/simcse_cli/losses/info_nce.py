"""InfoNCE, the loss of SimCSE: in-batch negatives, weighted hard negatives."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.similarity import similarity_matrix
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
) -> Tensor:
    """Return the in-batch contrastive loss, mean over anchors, in nats.

    Source: Gao et al. 2021, Eq. 1, 5 and 8. Anchor i is classified among all positives (and hard negatives):
    ``-log(exp(s_ii) / (sum_j exp(s_ij) + sum_j w_ij exp(s-_ij)))`` with ``s = similarity / temperature`` and
    ``w_ij = alpha`` where j = i, 1 elsewhere: an anchor's own hard negative counts alpha times.

    ``anchors`` and ``positives`` are ``(N, D)``, any norm, already gathered over processes; ``hard_negatives`` are
    ``(N, D)``, ``(S * N, D)`` with S per anchor (rows i, N + i, ...), or None. ``temperature`` has no unit; it divides
    dot products too, and the paper's dot-product runs use 1. ``symmetric`` averages with the direction from positives
    to anchors, which sees no hard negatives: not in the paper, whose authors found no clear difference. A ValueError
    for other shapes, or a temperature or alpha that is not above 0.

    All embeddings equal: ``ln N``, or ``ln(2N - 1 + alpha)`` with one hard negative each.
    """
    check_pairs(anchors, positives, temperature)
    n_rows = len(anchors)
    labels = torch.arange(n_rows, device=anchors.device)
    logits = similarity_matrix(anchors, positives, similarity) / temperature  # (N, N)
    backward = functional.cross_entropy(logits.T, labels) if symmetric else None
    if hard_negatives is not None:
        _check_hard_negatives(hard_negatives, anchors, hard_negative_alpha)
        negative_logits = similarity_matrix(anchors, hard_negatives, similarity) / temperature  # (N, S * N)
        own = torch.eye(n_rows, device=anchors.device, dtype=negative_logits.dtype)
        own = own.repeat(1, len(hard_negatives) // n_rows)
        logits = torch.cat([logits, negative_logits + math.log(hard_negative_alpha) * own], dim=1)
    forward = functional.cross_entropy(logits, labels)
    return forward if backward is None else (forward + backward) / 2


def check_pairs(anchors: Tensor, positives: Tensor, temperature: float) -> None:
    """Raise ``ValueError`` unless anchors and positives are both ``(N, D)`` and temperature is above 0."""
    if anchors.ndim != 2 or anchors.shape != positives.shape:
        raise ValueError(f"anchors {tuple(anchors.shape)}, positives {tuple(positives.shape)}: need both (N, D)")
    if not temperature > 0:
        raise ValueError(f"temperature {temperature}: must be above 0")


def _check_hard_negatives(hard_negatives: Tensor, anchors: Tensor, alpha: float) -> None:
    n_negatives, n_rows = len(hard_negatives), max(len(anchors), 1)
    if hard_negatives.shape[1:] != anchors.shape[1:] or n_negatives % n_rows or not n_negatives:
        raise ValueError(
            f"hard_negatives {tuple(hard_negatives.shape)}, anchors {tuple(anchors.shape)}: need (S * N, D)"
        )
    if not alpha > 0:
        raise ValueError(f"hard_negative_alpha {alpha}: must be above 0")
