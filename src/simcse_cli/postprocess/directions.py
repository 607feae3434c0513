"""Removal of dominant directions: all-but-the-top (centred), SIF's common component (uncentred)."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from simcse_cli.arrays import AnyFloats, Floats
from simcse_cli.postprocess import base
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.choices import Postprocess


@dataclass(eq=False)
class _DirectionRemoval(base.PostProcessor):
    """Subtract a centre, and then the projection on some directions, in float64.

    A vector x becomes

        x' = c - U U^T c  with  c = x - mean

    Learned are the centre, ``mean_`` ``(D,)``, which is 0 without ``is_centred``, and the
    orthonormal columns of U, ``directions_`` ``(D, M)``. x' is orthogonal to each of these columns.
    """

    learned: ClassVar = ("mean", "directions")
    is_centred: ClassVar[bool]  # whether the mean is subtracted before the directions are computed

    n_directions: int | None = None

    def __post_init__(self) -> None:
        if self.n_directions is not None and self.n_directions < 1:
            raise ValueError(f"n_directions is {self.n_directions}, need at least 1")

    def fit(self, vectors: AnyFloats, *, progress: Progress = SILENT) -> Self:
        """Learn centre and directions; raise ``ValueError`` if no dimension would be left."""
        matrix = base.fit_matrix(vectors)
        dim = matrix.shape[1]
        n_removed = self.n_directions
        if n_removed is None:
            n_removed = max(1, round(dim / 100))  # the advice of the paper on all-but-the-top
        if n_removed >= dim:
            raise ValueError(
                f"cannot remove {n_removed} directions from vectors of {dim} dimensions"
            )
        self.mean_ = base.mean_row(matrix) if self.is_centred else np.zeros(dim)
        _, directions = base.principal_directions(base.second_moment(matrix, self.mean_))
        self.directions_: Floats = directions[:, :n_removed]
        self.n_features_in_ = dim
        return self

    def transform(self, vectors: AnyFloats) -> AnyFloats:
        self.check_input(vectors)
        centred = vectors.astype(np.float64) - self.mean_
        remaining: AnyFloats = centred - (centred @ self.directions_) @ self.directions_.T
        return remaining.astype(vectors.dtype, copy=False)


class AllButTheTop(_DirectionRemoval):
    """Subtract the mean and the leading principal directions of centred vectors, ``(N, D)``.

    Source: Mu and Viswanath 2018. With the mean mu and the directions u_i, a vector x becomes

        x' = c - sum_i (u_i . c) u_i  with  c = x - mu

    The paper defines this for word vectors; for sentence vectors, it is an extension. Some public
    code projects x instead of c. The default number of directions is D / 100, as the paper advises,
    rounded and at least one.
    """

    name: ClassVar[Postprocess] = Postprocess.ALL_BUT_THE_TOP
    is_centred: ClassVar[bool] = True


@dataclass(eq=False)
class CommonComponentRemoval(_DirectionRemoval):
    """Subtract from each vector its projection on the main directions of the fit vectors.

    Source: Arora et al. 2017, algorithm 1, second step (SIF). The directions are the first right
    singular vectors of the matrix of fit vectors, which is not centred. The paper fits on the same
    sentences that are scored, so it needs the whole test set at once; ``--fit target`` does so too.
    """

    name: ClassVar[Postprocess] = Postprocess.SIF
    is_centred: ClassVar[bool] = False
    n_directions: int | None = 1
