"""CoSENT and AnglE: order the similarities of scored pairs as their scores are ordered."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.similarity import l2_normalize


def cosent(left: Tensor, right: Tensor, scores: Tensor, *, temperature: float) -> Tensor:
    """Return the ranking loss of scored pairs, in nats.

    Source: Su 2022, kexue.fm/archives/8847; sentence-transformers ``CoSENTLoss``, whose scale is 1
    / temperature: ``log(1 + sum over s_i < s_j of exp((cos_i - cos_j) / temperature))``.

    ``left`` and ``right`` are ``(N, D)``, any norm, already gathered over processes; ``scores`` are
    ``(N,)`` on any scale: only their order counts, and pairs of equal scores are not compared.
    ``temperature`` has no unit. A ValueError for other shapes, or one that is not above 0.

    Two pairs with different scores and equal cosines: ``ln 2``; no two scores differ: 0.
    """
    return _ranking(functional.cosine_similarity, left, right, scores, temperature)


def angle(left: Tensor, right: Tensor, scores: Tensor, *, temperature: float) -> Tensor:
    """Return the ranking loss of scored pairs by the angle score of AnglE, in nats.

    Source: Li and Li 2023 (AnglE), as its released code has it, with scale 20: CoSENT with
    ``complex_score`` in place of the cosine. Arguments and values as those of ``cosent``.
    """
    return _ranking(complex_score, left, right, scores, temperature)


def complex_score(left: Tensor, right: Tensor) -> Tensor:
    """Return ``|cos(u, v) + omega(u, v)|`` of each row, ``(N, D)`` twice to ``(N,)``.

    Source: the code of AnglE. The halves of a vector are real and imaginary parts, u = (a, b) and v
    = (c, e): ``|(a.c + b.e) + (b.c - a.e)| / (|u| |v|)``, the absolute sum of the two parts of a
    complex product, which is no angle. An odd width is filled up with 0; a zero vector scores 0.

    A vector with itself, or with its opposite: 1.
    """
    if left.shape[-1] % 2:
        left = functional.pad(left, (0, 1))
        right = functional.pad(right, (0, 1))
    real_left, imaginary_left = l2_normalize(left).chunk(2, dim=-1)
    real_right, imaginary_right = l2_normalize(right).chunk(2, dim=-1)
    cosines = (real_left * real_right + imaginary_left * imaginary_right).sum(-1)
    omega = (imaginary_left * real_right - real_left * imaginary_right).sum(-1)
    return (cosines + omega).abs()


def _ranking(
    score: Callable[[Tensor, Tensor], Tensor],
    left: Tensor,
    right: Tensor,
    scores: Tensor,
    temperature: float,
) -> Tensor:
    if left.ndim != 2 or left.shape != right.shape or scores.shape != left.shape[:1]:
        shapes = ", ".join(str(tuple(each.shape)) for each in (left, right, scores))
        raise ValueError(f"shapes {shapes}: need (N, D), (N, D) and (N,)")
    if not temperature > 0:
        raise ValueError(f"temperature {temperature}: must be above 0")
    dtype = torch.promote_types(left.dtype, torch.float32)
    similarities = score(left.to(dtype), right.to(dtype)) / temperature
    # Of each pair of pairs, only the one whose score is lower should be less similar.
    gaps = similarities[:, None] - similarities[None, :]
    gaps = gaps.masked_fill(scores[:, None] >= scores, -math.inf)
    return torch.cat([gaps.new_zeros(1), gaps.flatten()]).logsumexp(dim=0)
