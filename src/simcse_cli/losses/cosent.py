"""CoSENT: order the cosines of scored pairs as their scores are ordered."""

import math

import torch
from torch import Tensor
from torch.nn import functional


def cosent(left: Tensor, right: Tensor, scores: Tensor, *, temperature: float) -> Tensor:
    """Return the ranking loss of scored pairs, in nats.

    Source: Su 2022, kexue.fm/archives/8847; sentence-transformers ``CoSENTLoss``, whose scale is 1
    / temperature: ``log(1 + sum over s_i < s_j of exp((cos_i - cos_j) / temperature))``.

    ``left`` and ``right`` are ``(N, D)``, any norm, already gathered over processes; ``scores`` are
    ``(N,)`` on any scale: only their order counts, and pairs of equal scores are not compared.
    ``temperature`` has no unit. A ValueError for other shapes, or one that is not above 0.

    Two pairs with different scores and equal cosines: ``ln 2``; no two scores differ: 0.
    """
    if left.ndim != 2 or left.shape != right.shape or scores.shape != left.shape[:1]:
        shapes = ", ".join(str(tuple(each.shape)) for each in (left, right, scores))
        raise ValueError(f"shapes {shapes}: need (N, D), (N, D) and (N,)")
    if not temperature > 0:
        raise ValueError(f"temperature {temperature}: must be above 0")
    cosines = functional.cosine_similarity(left.float(), right.float()) / temperature
    gaps = cosines[:, None] - cosines[None, :]
    gaps = gaps.masked_fill(scores[:, None] >= scores[None, :], -math.inf)
    return torch.cat([gaps.new_zeros(1), gaps.flatten()]).logsumexp(dim=0)
