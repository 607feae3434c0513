"""Similarities between two sets of vectors."""

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.machine.precision import no_autocast, wide
from simcse_cli.settings.choices import Similarity


def l2_normalize(vectors: Tensor) -> Tensor:
    """Return the rows divided by their L2 norm; a zero row stays zero, with a finite gradient."""
    # A norm of 1 in place of 0 avoids a division by zero, also in the gradient.
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    is_nonzero = norms > torch.finfo(norms.dtype).tiny
    return vectors / torch.where(is_nonzero, norms, torch.ones_like(norms))


def similarity_matrix(
    left: Tensor, right: Tensor, similarity: Similarity | str = Similarity.COSINE
) -> Tensor:
    """Return the similarities ``(N, M)`` of all rows of ``left`` with all rows of ``right``.

    ``left`` is ``(N, D)`` and ``right`` is ``(M, D)``. Similarities are computed in at least
    float32, even under autocast: the eight significant bits of a bfloat16 cosine would shift its
    logit, at a temperature of 0.05, by up to 0.04. An unknown name of a similarity raises a
    ValueError.
    """
    with no_autocast(left.device):
        left = wide(left)
        right = wide(right)
        if Similarity(similarity) is Similarity.COSINE:
            left = l2_normalize(left)
            right = l2_normalize(right)
        return left @ right.T


def check_marked_pairs(left: Tensor, right: Tensor, marks: Tensor) -> None:
    """Raise ``ValueError`` unless both sides are ``(N, D)``, with one mark for each row."""
    if left.ndim != 2 or left.shape != right.shape or marks.shape != left.shape[:1]:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (left, right, marks))
        raise ValueError(f"shapes {shapes}: need (N, D), (N, D) and (N,)")


def own_pairs(rows: Tensor) -> Tensor:
    """Return a mask ``(N, N)`` that is true on the diagonal; N is the number of rows."""
    return torch.eye(len(rows), dtype=torch.bool, device=rows.device)


def own_row_loss(logits: Tensor) -> Tensor:
    """Return the cross-entropy where i is the right class of row i, mean over rows, in nats."""
    return functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device))
