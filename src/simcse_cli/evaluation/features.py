"""What the classifier and the regressor see of sentence vectors."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simcse_cli.errors import DataError


def with_constant(features: NDArray[np.floating]) -> Tensor:
    """Return ``(N, D)`` float32 features with a last column of ones."""
    design = torch.ones(features.shape[0], features.shape[1] + 1)
    design[:, :-1] = torch.from_numpy(np.ascontiguousarray(features))
    return design


def pair_features(left: NDArray[np.floating], right: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return ``[|u - v|, u * v]`` for each pair of rows, ``(N, D)`` twice to ``(N, 2D)``."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.hstack([np.abs(left - right), left * right])


def require_finite(features: NDArray[np.floating], name: str) -> NDArray[np.floating]:
    """Return ``features`` if every entry is finite.

    Raises:
        DataError: some are not; says in how many rows.
    """
    n_bad = int((~np.isfinite(features).all(axis=1)).sum())
    if n_bad:
        raise DataError(
            f"{name}: the vectors of {n_bad:,} of {len(features):,} examples are not finite",
            hint="check the model, or use --precision fp32",
        )
    return features
