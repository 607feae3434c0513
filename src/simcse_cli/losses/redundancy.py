"""Losses that contrast dimensions instead of sentences: Barlow Twins and VICReg, on two views of a batch."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class VicregTerms(NamedTuple):
    """The three terms of VICReg, scalars."""

    invariance: Tensor
    variance: Tensor
    covariance: Tensor


def standardise(view: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Return each column with mean 0 and variance ``var / (var + eps)``, shape kept.

    The variance divides by N (biased): what BatchNorm without affine parameters does in training mode.
    """
    variance, mean = torch.var_mean(view, dim=0, correction=0)
    return (view - mean) * torch.rsqrt(variance + eps)


def off_diagonal_energy(matrix: Tensor) -> Tensor:
    """Return the sum of squares of a square matrix off its diagonal, a scalar."""
    diagonal = torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    return matrix.masked_fill(diagonal, 0.0).square().sum()


def barlow_twins(view_a: Tensor, view_b: Tensor, *, redundancy_weight: float = 0.0051) -> Tensor:
    """Return the Barlow Twins loss, a sum over entries of the cross-correlation matrix.

    Source: Zbontar et al. 2021, Eq. 1-2, normalised as in the authors' code: columns standardised over the
    batch with the biased variance (+ 1e-5), ``C = Z_a^T Z_b / N``, loss
    ``sum_i (1 - C_ii)^2 + redundancy_weight * sum_{i != j} C_ij^2``. No division by P or P^2.

    Args:
        view_a: ``(N, P)`` projections, already gathered over processes; N at least 2.
        view_b: ``(N, P)``; row i is the other view of the same sentence.
        redundancy_weight: 0 or more; lambda in the paper.

    Returns:
        Scalar. Independent columns with both views equal: about 0; views constant over the batch: P.

    Raises:
        ValueError: shapes do not match or a batch of one, for which a correlation is undefined.
    """
    view_a, view_b = _checked_views(view_a, view_b)
    with torch.autocast(device_type=view_a.device.type, enabled=False):
        correlation = standardise(view_a).T @ standardise(view_b) / len(view_a)  # (P, P)
        on_diagonal = (1 - correlation.diagonal()).square().sum()
        return on_diagonal + redundancy_weight * off_diagonal_energy(correlation)


def invariance_loss(view_a: Tensor, view_b: Tensor) -> Tensor:
    """Return the mean squared difference over all ``N * P`` entries, a scalar.

    The paper's Eq. 5, a squared norm per pair, would be P times larger; the authors' code computes this.
    """
    return functional.mse_loss(view_a, view_b)


def variance_loss(view: Tensor, *, gamma: float = 1.0, eps: float = 1e-4) -> Tensor:
    """Return the mean over columns of ``max(0, gamma - sqrt(var + eps))``, unbiased variance, a scalar.

    A view constant over the batch gives ``gamma - sqrt(eps)``, 0.99 with the defaults.
    """
    return functional.relu(gamma - torch.sqrt(view.var(dim=0, correction=1) + eps)).mean()


def covariance_loss(view: Tensor) -> Tensor:
    """Return the off-diagonal squares of the unbiased covariance, summed and divided by P, a scalar."""
    centred = view - view.mean(dim=0)
    covariance = centred.T @ centred / (len(view) - 1)  # (P, P)
    return off_diagonal_energy(covariance) / view.shape[1]


def vicreg(
    view_a: Tensor,
    view_b: Tensor,
    *,
    invariance_weight: float = 25.0,
    variance_weight: float = 25.0,
    covariance_weight: float = 1.0,
) -> VicregTerms:
    """Return VICReg's three terms, weighted; their sum is the loss.

    Source: Bardes et al. 2022, Eq. 1-6, normalised as in the authors' code: invariance is a mean over all
    entries, the variance term is the *average* of the two views, the covariance term their *sum*.

    Args:
        view_a: ``(N, P)`` projections, already gathered over processes; N at least 2.
        view_b: ``(N, P)``; row i is the other view of the same sentence.
        invariance_weight: 0 or more; lambda in the paper.
        variance_weight: 0 or more; mu in the paper.
        covariance_weight: 0 or more; nu in the paper.

    Returns:
        Three scalars. Both views constant and equal: 0, ``variance_weight * 0.99``, 0.

    Raises:
        ValueError: shapes do not match or a batch of one, which has no variance.
    """
    view_a, view_b = _checked_views(view_a, view_b)
    with torch.autocast(device_type=view_a.device.type, enabled=False):
        return VicregTerms(
            invariance=invariance_weight * invariance_loss(view_a, view_b),
            variance=variance_weight * (variance_loss(view_a) + variance_loss(view_b)) / 2,
            covariance=covariance_weight * (covariance_loss(view_a) + covariance_loss(view_b)),
        )


def _checked_views(view_a: Tensor, view_b: Tensor) -> tuple[Tensor, Tensor]:
    if view_a.ndim != 2 or view_a.shape != view_b.shape:
        raise ValueError(
            f"views {tuple(view_a.shape)} and {tuple(view_b.shape)}: need two (N, P) of one shape"
        )
    if len(view_a) < 2:
        raise ValueError("a batch of one sentence has no variance over the batch: need at least 2 rows")
    dtype = torch.promote_types(view_a.dtype, torch.float32)
    return view_a.to(dtype), view_b.to(dtype)
