"""The base class of post-processors, which are fitted on vectors and then map other vectors.

The interface is that of scikit-learn: ``fit`` returns self, ``transform`` changes nothing in the
object, and the names of learned values end in ``_``.
"""

from abc import ABC, abstractmethod
from inspect import signature
from typing import Any, ClassVar, Self

import numpy as np

from simcse_cli.arrays import AnyFloats, Array, Floats
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.choices import Postprocess

_BLOCK_ROWS = 16_384


class PostProcessor(ABC):
    name: ClassVar[Postprocess]
    # Names of the learned arrays: the mean ``(D,)``, then a matrix of D rows, then others. A class
    # that learns no such arrays overrides ``state`` and ``load_state``.
    learned: ClassVar[tuple[str, ...]]
    n_features_in_: int

    @property
    def n_features_out(self) -> int:
        return self.n_features_in_

    @abstractmethod
    def fit(self, vectors: AnyFloats, *, progress: Progress = SILENT) -> Self:
        """Learn from vectors ``(N, D)``, or ``(N, 2, D)`` where row i holds both sides of pair i.

        Raises:
            ValueError: fewer than two vectors, or values that are not finite.
        """

    @abstractmethod
    def transform(self, vectors: AnyFloats) -> AnyFloats:
        """Process vectors ``(N, D)``, and return them as ``(N, n_features_out)`` in the same dtype.

        Raises:
            ValueError: not fitted, or ``D`` is not the dimension of the fit vectors.
        """

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the constructor, which are attributes of the same names."""
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def state(self) -> dict[str, Array]:
        return {name: getattr(self, f"{name}_") for name in self.learned}

    def load_state(self, arrays: dict[str, Array]) -> Self:
        """Restore the fit; raise KeyError or ValueError if arrays are missing or do not match."""
        mean, matrix = (arrays[name] for name in self.learned[:2])
        if matrix.ndim != 2 or mean.shape != matrix.shape[:1]:
            raise ValueError(
                f"mean {mean.shape} and {self.learned[1]} {matrix.shape} do not fit together"
            )
        for name in self.learned:
            setattr(self, f"{name}_", arrays[name])
        self.n_features_in_ = len(mean)
        return self

    def check_input(self, vectors: AnyFloats) -> None:
        """Raise ValueError if there is no fit, or ``vectors`` are not ``(N, n_features_in_)``."""
        if not hasattr(self, "n_features_in_"):
            raise ValueError(f"{self.name} is not fitted; call fit first")
        if vectors.ndim != 2 or vectors.shape[1] != self.n_features_in_:
            raise ValueError(
                f"{self.name} was fitted on {self.n_features_in_} dimensions, "
                f"got shape {vectors.shape}"
            )


def fit_matrix(vectors: AnyFloats) -> AnyFloats:
    """Check the fit vectors, and return them as ``(N, D)``: each side of a pair becomes a row."""
    if vectors.ndim not in (2, 3):
        raise ValueError(f"need vectors of shape (N, D) or (N, 2, D), got {vectors.shape}")
    matrix = vectors.reshape(-1, vectors.shape[-1])
    if len(matrix) < 2:
        raise ValueError(f"need at least two vectors to fit on, got {len(matrix)}")
    for start in range(0, len(matrix), _BLOCK_ROWS):
        if not np.isfinite(matrix[start : start + _BLOCK_ROWS]).all():
            raise ValueError("the fit vectors hold NaN or infinite values")
    return matrix


def mean_row(matrix: AnyFloats) -> Floats:
    """Return the mean row, ``(D,)``, summed in float64."""
    return np.asarray(matrix.mean(axis=0, dtype=np.float64))


def second_moment(matrix: AnyFloats, centre: Floats) -> Floats:
    """Return the mean of ``(x - centre)(x - centre)^T`` over the rows, ``(D, D)``, in float64.

    With the mean as ``centre``, this is the covariance, divided by N. The sum is computed in
    blocks, so that no float64 copy of the whole matrix is made.
    """
    total = np.zeros((matrix.shape[1], matrix.shape[1]))
    for start in range(0, len(matrix), _BLOCK_ROWS):
        block = matrix[start : start + _BLOCK_ROWS].astype(np.float64) - centre
        total += block.T @ block
    return total / len(matrix)


def principal_directions(moment: Floats) -> tuple[Floats, Floats]:
    """Return the eigenvalues of a second moment, largest first, and its eigenvectors as columns.

    The sign of an eigenvector is arbitrary. Here, the entry of largest size in each column is made
    positive, so that the signs are the same on every machine.
    """
    values, columns = np.linalg.eigh(moment)
    values = values[::-1]
    columns = columns[:, ::-1]
    largest_rows = np.abs(columns).argmax(axis=0)
    signs = np.sign(columns[largest_rows, np.arange(columns.shape[1])])
    # Rounding can make an eigenvalue of 0 slightly negative.
    return np.maximum(values, 0.0), columns * signs
