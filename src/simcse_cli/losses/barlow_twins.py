"""Barlow Twins: make the cross-correlation of two views the identity."""

import torch
from torch import Tensor

from simcse_cli.losses.similarity import own_pairs
from simcse_cli.machine.precision import no_autocast, wide


def barlow_twins(view_a: Tensor, view_b: Tensor, *, redundancy_weight: float = 0.0051) -> Tensor:
    """Return the Barlow Twins loss, a sum over entries of the cross-correlation matrix.

    Source: Zbontar et al. 2021, Eq. 1-2, normalised as in the authors' code. Z_a and Z_b are the
    views with each column standardised over the batch (biased variance + 1e-5):

        C = Z_a^T Z_b / N
        loss = sum_i (1 - C_ii)^2 + redundancy_weight * sum_{i != j} C_ij^2

    The views are ``(N, P)`` projections, already gathered over processes; row i of both is the same
    sentence. The sums are not divided by P or P^2. N below 2 raises a ValueError.
    ``redundancy_weight`` is 0 or more; the paper calls it lambda.

    Equal views with uncorrelated columns give about 0; views that are constant over the batch give
    P.
    """
    correlation = cross_correlation(view_a, view_b)
    on_diagonal = (1 - correlation.diagonal()).square().sum()
    return on_diagonal + redundancy_weight * off_diagonal_squares(correlation)


def cross_correlation(view_a: Tensor, view_b: Tensor) -> Tensor:
    """Return ``Z_a^T Z_b / N``, ``(P, P)``; Z_a and Z_b are the standardised views ``(N, P)``.

    Raise ValueError unless the views have the same shape, with at least 2 rows.
    """
    view_a, view_b = checked_views(view_a, view_b)
    with no_autocast(view_a.device):
        return standardise(view_a).T @ standardise(view_b) / len(view_a)


def standardise(view: Tensor) -> Tensor:
    """Return the view with each column shifted to mean 0 and divided by ``sqrt(var + 1e-5)``.

    ``var`` is the biased variance (divided by N). BatchNorm in training mode does the same if it
    has no affine parameters.
    """
    variance, mean = torch.var_mean(view, dim=0, correction=0)
    return (view - mean) * torch.rsqrt(variance + 1e-5)


def off_diagonal_squares(matrix: Tensor) -> Tensor:
    """Return the sum of the squared off-diagonal entries of a square matrix."""
    return matrix.masked_fill(own_pairs(matrix), 0.0).square().sum()


def checked_views(view_a: Tensor, view_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the views in at least float32.

    Raise ValueError unless both have the same shape ``(N, P)``, with at least 2 rows.
    """
    if view_a.ndim != 2 or view_a.shape != view_b.shape:
        raise ValueError(
            f"views {tuple(view_a.shape)} and {tuple(view_b.shape)}: need two (N, P) of one shape"
        )
    if len(view_a) < 2:
        raise ValueError(
            "a batch of one sentence has no variance over the batch: need at least 2 rows"
        )
    return wide(view_a), wide(view_b)
