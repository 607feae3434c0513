"""Whitening: a linear map after which the fit vectors have the identity as covariance."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Self

import numpy as np

from simcse_cli.arrays import AnyFloats, Floats
from simcse_cli.postprocess import base
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.choices import Postprocess


@dataclass(eq=False)
class Whitening(base.PostProcessor):
    """Centre, rotate to the principal axes and give each variance 1; D dimensions become K.

    Source: Su et al. 2021. With the mean mu of the fit vectors and their covariance U S U^T
    (divided by N), where the columns of U are the principal axes and S holds the variances along
    them, largest first, a vector x becomes

        x' = (x - mu) U[:, :K] S[:K]^(-1/2)

    in float64. The covariance of the transformed fit vectors is the K x K identity.

    ``k`` is the number of directions to keep; None keeps all. The paper also reports results for
    256 (base models) and 384 (large models). It divides by every eigenvalue, however small. Here, a
    direction whose eigenvalue is at most ``eigenvalue_floor`` times the largest is left out,
    because new vectors would be blown up along it. So K can be smaller than ``k`` if there are few
    fit vectors.

    Learned are ``mean_`` ``(D,)``, ``projection_`` ``(D, K)``, which is the matrix W of the paper,
    and all ``eigenvalues_`` ``(D,)``, largest first.
    """

    name: ClassVar[Postprocess] = Postprocess.WHITENING
    learned: ClassVar = ("mean", "projection", "eigenvalues")

    k: int | None = None
    _: KW_ONLY
    eigenvalue_floor: float = 1e-10

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 1:
            raise ValueError(f"k is {self.k}, need at least 1")
        if self.eigenvalue_floor < 0:
            raise ValueError(f"eigenvalue_floor is {self.eigenvalue_floor}, need 0 or more")

    @property
    def n_features_out(self) -> int:
        """``K``, the number of directions kept."""
        return int(self.projection_.shape[1])

    def fit(self, vectors: AnyFloats, *, progress: Progress = SILENT) -> Self:
        """Learn mean and projection; raise ``ValueError`` for k above D or equal vectors."""
        matrix = base.fit_matrix(vectors)
        dim = matrix.shape[1]
        if self.k is not None and self.k > dim:
            raise ValueError(f"k is {self.k}, but the vectors have only {dim} dimensions")
        self.mean_: Floats = base.mean_row(matrix)
        self.eigenvalues_, directions = base.principal_directions(
            base.second_moment(matrix, self.mean_)
        )
        n_wanted = self.k or dim
        is_varied = self.eigenvalues_ > self.eigenvalue_floor * self.eigenvalues_[0]
        n_kept = min(n_wanted, int(is_varied.sum()))
        if n_kept == 0:
            raise ValueError("the fit vectors are all the same; nothing to whiten")
        if n_kept < n_wanted:
            progress.warn(
                f"whitening keeps {n_kept} of {n_wanted} directions: "
                f"the {len(matrix):,} fit vectors do not vary in the others; fit on more sentences"
            )
        deviations = np.sqrt(self.eigenvalues_[:n_kept])
        self.projection_: Floats = directions[:, :n_kept] / deviations
        self.n_features_in_ = dim
        return self

    def transform(self, vectors: AnyFloats) -> AnyFloats:
        self.check_input(vectors)
        whitened: AnyFloats = (vectors.astype(np.float64) - self.mean_) @ self.projection_
        return whitened.astype(vectors.dtype, copy=False)
