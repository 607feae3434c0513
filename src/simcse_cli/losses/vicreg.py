"""VICReg: views agree, each dimension varies, no two dimensions covary."""

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.barlow_twins import checked_views, off_diagonal_squares
from simcse_cli.machine.precision import no_autocast


def variance_loss(view: Tensor) -> Tensor:
    """Return the mean over columns of ``max(0, 1 - sqrt(var + 1e-4))``.

    ``var`` is the unbiased variance of a column. A view that is constant over the batch gives 0.99.
    """
    return functional.relu(1 - torch.sqrt(view.var(dim=0, correction=1) + 1e-4)).mean()


def covariance_loss(view: Tensor) -> Tensor:
    """Return the sum of the squared off-diagonal covariances of a view ``(N, P)``, divided by P.

    The covariances are unbiased (divided by N - 1).
    """
    centred = view - view.mean(dim=0)
    covariance = centred.T @ centred / (len(view) - 1)  # (P, P)
    return off_diagonal_squares(covariance) / view.shape[1]


def vicreg(
    view_a: Tensor,
    view_b: Tensor,
    *,
    invariance_weight: float = 25.0,
    variance_weight: float = 25.0,
    covariance_weight: float = 1.0,
) -> dict[str, Tensor]:
    """Return VICReg's three terms by name, weighted; their sum is the loss.

    Source: Bardes et al. 2022, Eq. 1-6, normalised as in the authors' code. The invariance term is
    the mean squared difference over all ``N * P`` entries; Eq. 5 of the paper, a squared norm for
    each pair, is P times larger. The variance term is the *average* over the two views, the
    covariance term the *sum* over them.

    The views are ``(N, P)`` projections, already gathered over processes. N below 2 raises a
    ValueError. The weights are 0 or more; the paper calls them lambda, mu and nu. If both views are
    constant and equal, the terms are 0, ``variance_weight * 0.99`` and 0.
    """
    view_a, view_b = checked_views(view_a, view_b)
    with no_autocast(view_a.device):
        return {
            "invariance": invariance_weight * functional.mse_loss(view_a, view_b),
            "variance": variance_weight * (variance_loss(view_a) + variance_loss(view_b)) / 2,
            "covariance": covariance_weight * (covariance_loss(view_a) + covariance_loss(view_b)),
        }
