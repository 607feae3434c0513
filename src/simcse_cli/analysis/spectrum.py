"""How many directions an embedding space uses: singular values, effective rank, isotropy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simcse_cli.analysis.geometry import Vectors, unit_rows


@dataclass(frozen=True)
class Spectrum:
    """Singular values, largest first, and two summaries of how evenly the space is used."""

    singular_values: NDArray[np.float64]
    effective_rank: float
    isotropy: float

    @property
    def relative(self) -> NDArray[np.float64]:
        """Singular values divided by the largest: 1 first, then falling to 0 at the latest."""
        relative: NDArray[np.float64] = self.singular_values / self.singular_values[0]
        return relative


def describe_spectrum(vectors: Vectors, *, normalize: bool = True, center: bool = False) -> Spectrum:
    """Return singular values, effective rank and isotropy of one prepared matrix.

    Source: Gao et al. 2021, Figure F.1, which does not say how rows are prepared; unit rows without centring
    are a toolkit default (the derivation in their section 5 uses unit rows).

    Args:
        vectors: ``(N, D)``.
        normalize: scale rows to length 1 first.
        center: subtract the mean row, after scaling.

    Raises:
        ValueError: no rows, or all rows are zero (after centring: all rows are equal).
    """
    prepared = prepare_rows(vectors, normalize=normalize, center=center)
    values = singular_values(prepared)
    return Spectrum(values, effective_rank(values), isotropy(prepared))


def prepare_rows(vectors: Vectors, *, normalize: bool = True, center: bool = False) -> NDArray[np.float64]:
    """Return ``vectors`` in float64, scaled to unit rows and then centred as asked."""
    rows: NDArray[np.float64] = unit_rows(vectors) if normalize else vectors.astype(np.float64)
    return rows - rows.mean(axis=0) if center else rows


def singular_values(vectors: Vectors) -> NDArray[np.float64]:
    """Return the ``min(N, D)`` singular values, largest first.

    Taken from the R factor of a QR decomposition, which has the same singular values, so that the cost is
    that of a ``(D, D)`` problem however many rows there are; the small ones keep their accuracy (a Gram
    matrix would lose those below 1e-8 of the largest).

    Raises:
        ValueError: the matrix is empty.
    """
    if vectors.ndim != 2 or vectors.size == 0:
        raise ValueError(f"vectors have shape {vectors.shape}, need (N, D) with N > 0")
    triangle = np.linalg.qr(vectors.astype(np.float64), mode="r")
    values: NDArray[np.float64] = np.linalg.svd(triangle, compute_uv=False)
    return values


def effective_rank(values: NDArray[np.float64]) -> float:
    """Return the exponential of the entropy of the singular values taken as a distribution.

    Source: Roy and Vetterli 2007: ``exp(-sum p_i ln p_i)`` with ``p_i = s_i / sum of s``. Between 1 (one
    direction) and the number of values (all equal): an orthogonal matrix of width D has effective rank D.

    Raises:
        ValueError: all values are zero.
    """
    total = values.sum()
    if not total > 0:
        raise ValueError("all singular values are zero, need a vector that is not zero")
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def isotropy(vectors: Vectors) -> float:
    """Return how equally the vectors point in all principal directions, in (0, 1]; 1 is isotropic.

    Source: Mu and Viswanath 2018, after Arora et al. 2016: smallest over largest partition function
    ``Z(c) = sum_i exp(c . v_i)``, where c runs over the eigenvectors of ``V^T V``. Each eigenvector counts
    with both signs, since its own sign is arbitrary. Equal unit rows give ``exp(-2)``; the 2D vectors
    ``+e_i`` and ``-e_i`` give 1. The value depends on the norms: compare models on unit rows.

    Raises:
        ValueError: the matrix is empty.
    """
    if vectors.ndim != 2 or vectors.size == 0:
        raise ValueError(f"vectors have shape {vectors.shape}, need (N, D) with N > 0")
    rows = vectors.astype(np.float64)
    _, directions = np.linalg.eigh(rows.T @ rows)
    projections = rows @ directions
    log_partitions = np.concatenate([_log_sum_exp(projections), _log_sum_exp(-projections)])
    return float(np.exp(log_partitions.min() - log_partitions.max()))


def _log_sum_exp(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    peaks = columns.max(axis=0)
    sums: NDArray[np.float64] = np.log(np.exp(columns - peaks).sum(axis=0)) + peaks
    return sums
