"""CoSENT and AnglE: order the similarities of scored pairs as their scores are ordered."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.similarity import check_marked_pairs, l2_normalize
from simcse_cli.machine.precision import wide


def cosent(left: Tensor, right: Tensor, scores: Tensor, *, temperature: float) -> Tensor:
    """Return the CoSENT ranking loss of scored pairs, in nats.

    Source: Su 2022, kexue.fm/archives/8847; ``CoSENTLoss`` of sentence-transformers, whose scale is
    1 / temperature. With the score s_i and the cosine c_i of pair i:

        loss = ln(1 + sum over all i, j with s_i < s_j of exp((c_i - c_j) / temperature))

    ``left`` and ``right`` are ``(N, D)``, any norm, already gathered over processes. ``scores`` are
    ``(N,)``, on any scale: only the order of scores counts, and pairs of equal scores are not
    compared. ``temperature`` has no unit. Other shapes, or a temperature that is not above 0, raise
    a ValueError.

    Two pairs with different scores and equal cosines give ``ln 2``. If all scores are equal, the
    loss is 0.
    """
    return _ranking_loss(functional.cosine_similarity, left, right, scores, temperature)


def angle(left: Tensor, right: Tensor, scores: Tensor, *, temperature: float) -> Tensor:
    """Return the CoSENT loss with AnglE's ``complex_score`` in place of the cosine, in nats.

    Source: Li and Li 2023 (AnglE) and their released code, which multiplies by 20: a temperature of
    0.05. ``left`` and ``right`` are ``(N, D)``, already gathered over processes; of ``scores``
    ``(N,)`` only the order counts. Other shapes, or a temperature that is not above 0, raise a
    ValueError.
    """
    return _ranking_loss(complex_score, left, right, scores, temperature)


def complex_score(left: Tensor, right: Tensor) -> Tensor:
    """Return ``|cos(u, v) + omega(u, v)|``, ``(N,)``; u, v are row i of ``left`` and of ``right``.

    Source: the released code of AnglE. The first half of a vector is read as real parts, the second
    as imaginary parts: u = (a, b) and v = (c, e). ``cos`` and ``omega`` are the real and the
    imaginary part of a complex product:

        cos = (a.c + b.e) / (|u| |v|)
        omega = (b.c - a.e) / (|u| |v|)

    In spite of AnglE's name, the absolute value of their sum is not an angle. A vector of odd width
    is padded with one 0; a zero vector scores 0. A vector scores 1 with itself and its opposite.
    """
    if left.shape[-1] % 2:
        left = functional.pad(left, (0, 1))
        right = functional.pad(right, (0, 1))
    real_left, imaginary_left = l2_normalize(left).chunk(2, dim=-1)
    real_right, imaginary_right = l2_normalize(right).chunk(2, dim=-1)
    cosines = (real_left * real_right + imaginary_left * imaginary_right).sum(-1)
    omega = (imaginary_left * real_right - real_left * imaginary_right).sum(-1)
    return (cosines + omega).abs()


def _ranking_loss(
    similarity: Callable[[Tensor, Tensor], Tensor],
    left: Tensor,
    right: Tensor,
    scores: Tensor,
    temperature: float,
) -> Tensor:
    """Check the arguments, and return the CoSENT loss for any function ``similarity`` of rows."""
    check_marked_pairs(left, right, scores)
    if not temperature > 0:
        raise ValueError(f"temperature {temperature}: must be above 0")
    similarities = similarity(wide(left), wide(right)) / temperature
    # Only the gaps c_i - c_j with s_i < s_j count; all other gaps become exp(-inf) = 0 in the sum.
    gaps = similarities[:, None] - similarities[None, :]
    gaps = gaps.masked_fill(~(scores[:, None] < scores), -math.inf)
    # The 0 in front is the "1 +" inside the logarithm, because exp(0) = 1.
    return torch.cat([gaps.new_zeros(1), gaps.flatten()]).logsumexp(dim=0)
