"""Contrastive losses over a batch: InfoNCE with weighted hard negatives, NT-Xent, QuickThoughts."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.choices import Similarity
from simcse_cli.devices import no_autocast


def l2_normalize(vectors: Tensor) -> Tensor:
    """Return the rows divided by their L2 norm; a zero row stays zero and its gradient stays finite."""
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(norms > torch.finfo(norms.dtype).tiny, norms, torch.ones_like(norms))


def similarity_matrix(left: Tensor, right: Tensor, similarity: Similarity = Similarity.COSINE) -> Tensor:
    """Return all similarities of two sets of rows, ``(N, D)`` and ``(M, D)`` to ``(N, M)``.

    Computed in float32 at least, also under autocast: divided by a temperature of 0.05, the eight bits of
    a bfloat16 cosine would move a logit by up to 0.08.
    """
    with no_autocast(left.device):
        dtype = torch.promote_types(torch.promote_types(left.dtype, right.dtype), torch.float32)
        left, right = left.to(dtype), right.to(dtype)
        if similarity is Similarity.COSINE:
            left, right = l2_normalize(left), l2_normalize(right)
        return left @ right.T


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

    Args:
        anchors: ``(N, D)``, any norm, already gathered over processes.
        positives: ``(N, D)``; row i belongs to anchor i.
        temperature: above 0, no unit. It divides dot products too; the paper's dot-product runs use 1.
        hard_negatives: ``(N, D)``, ``(S * N, D)`` with S per anchor (rows i, N + i, ...), or None.
        hard_negative_alpha: above 0; ignored without hard negatives.
        similarity: cosine or raw dot product.
        symmetric: average with the direction from positives to anchors, which sees no hard negatives. Not in
            the paper, whose authors found no clear difference.

    Returns:
        Scalar. All embeddings equal: ``ln N``, or ``ln(2N - 1 + alpha)`` with one hard negative each.

    Raises:
        ValueError: shapes do not match, or temperature or alpha is not above 0.
    """
    _check_info_nce(anchors, positives, temperature, hard_negatives, hard_negative_alpha)
    n_rows = len(anchors)
    labels = torch.arange(n_rows, device=anchors.device)
    logits = similarity_matrix(anchors, positives, similarity) / temperature  # (N, N)
    backward = functional.cross_entropy(logits.T, labels) if symmetric else None
    if hard_negatives is not None:
        negative_logits = similarity_matrix(anchors, hard_negatives, similarity) / temperature  # (N, S * N)
        own = torch.eye(n_rows, device=anchors.device, dtype=negative_logits.dtype)
        own = own.repeat(1, len(hard_negatives) // n_rows)
        logits = torch.cat([logits, negative_logits + math.log(hard_negative_alpha) * own], dim=1)
    forward = functional.cross_entropy(logits, labels)
    return forward if backward is None else (forward + backward) / 2


def _check_info_nce(
    anchors: Tensor, positives: Tensor, temperature: float, hard_negatives: Tensor | None, alpha: float
) -> None:
    if anchors.ndim != 2 or anchors.shape != positives.shape:
        raise ValueError(
            f"anchors {tuple(anchors.shape)}, positives {tuple(positives.shape)}: need both (N, D)"
        )
    if not temperature > 0:
        raise ValueError(f"temperature {temperature}: must be above 0")
    if hard_negatives is None:
        return
    n_rows = max(len(anchors), 1)
    if (
        hard_negatives.shape[1:] != anchors.shape[1:]
        or len(hard_negatives) % n_rows
        or not len(hard_negatives)
    ):
        raise ValueError(
            f"hard_negatives {tuple(hard_negatives.shape)}, anchors {tuple(anchors.shape)}: need (S * N, D)"
        )
    if not alpha > 0:
        raise ValueError(f"hard_negative_alpha {alpha}: must be above 0")


def nt_xent(anchors: Tensor, positives: Tensor, *, temperature: float) -> Tensor:
    """Return the normalised-temperature cross-entropy over both views, mean over 2N vectors, in nats.

    Source: Chen et al. 2020, Eq. 1, as Giorgi et al. 2021 (DeCLUTR) use it: each of the 2N vectors is
    classified among the other 2N - 1 by cosine over temperature; its partner is right, the remaining 2(N - 1)
    are negatives.

    Args:
        anchors: ``(N, D)``, any norm, already gathered over processes.
        positives: ``(N, D)``; row i belongs to anchor i.
        temperature: above 0, no unit; 0.05 in DeCLUTR.

    Returns:
        Scalar. All embeddings equal: ``ln(2N - 1)``; one pair alone: 0.

    Raises:
        ValueError: shapes do not match, or temperature is not above 0.
    """
    _check_info_nce(anchors, positives, temperature, None, 1.0)
    n_rows = len(anchors)
    views = torch.cat([anchors, positives])
    logits = similarity_matrix(views, views) / temperature  # (2N, 2N)
    logits = logits.masked_fill(torch.eye(2 * n_rows, dtype=torch.bool, device=logits.device), -torch.inf)
    partners = torch.arange(2 * n_rows, device=logits.device).roll(n_rows)
    return functional.cross_entropy(logits, partners)


def quick_thoughts(inputs: Tensor, outputs: Tensor, neighbours: Tensor) -> Tensor:
    """Return the QuickThoughts loss over a batch of sentences in document order, mean over rows, in nats.

    Source: Logeswaran and Lee 2018, with the released code's two habits: scores are raw dot products
    of the two encoders, and a sentence's score with itself is set to 0 (not to minus infinity), so it keeps
    its share ``exp(0)`` of the denominator. The target spreads evenly over the true neighbours of each row.

    Args:
        inputs: ``(N, D)``, rows of the first encoder.
        outputs: ``(N, D)``, the same sentences through the second encoder.
        neighbours: ``(N, N)`` boolean; ``[i, j]`` is true where sentence j stands beside sentence i.

    Returns:
        Scalar, over the rows with a neighbour; 0 if no row has one. All vectors zero: ``ln N``.

    Raises:
        ValueError: shapes do not match.
    """
    n_rows = len(inputs)
    if inputs.shape != outputs.shape or neighbours.shape != (n_rows, n_rows):
        raise ValueError(
            f"inputs {tuple(inputs.shape)}, outputs {tuple(outputs.shape)} and neighbours "
            f"{tuple(neighbours.shape)}: need (N, D), (N, D) and (N, N)"
        )
    scores = similarity_matrix(inputs, outputs, Similarity.DOT)
    scores = scores.masked_fill(torch.eye(n_rows, dtype=torch.bool, device=scores.device), 0.0)
    n_neighbours = neighbours.sum(dim=1)
    targets = neighbours.to(scores.dtype) / n_neighbours.clamp_min(1).unsqueeze(1)
    row_losses = -(targets * functional.log_softmax(scores, dim=1)).sum(dim=1)
    return row_losses.sum() / (n_neighbours > 0).sum().clamp_min(1)
