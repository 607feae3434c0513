"""Embedding spaces as the `analyze` commands measure them on rated pairs."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simcse_cli.commands._analyze_systems import System
from simcse_cli.console import Console

if TYPE_CHECKING:
    from simcse_cli.analysis.densities import RatingGroup
    from simcse_cli.analysis.geometry import Geometry, Vectors
    from simcse_cli.analysis.rated_pairs import RatedPairs
    from simcse_cli.analysis.spectrum import Spectrum


@dataclass
class MeasuredSpace:
    """The vectors of one system on rated pairs; each measurement is taken when first asked for."""

    system: System
    pairs: "RatedPairs"
    left: "Vectors"
    right: "Vectors"
    normalize: bool = True
    center: bool = False

    @cached_property
    def geometry(self) -> "Geometry":
        """Alignment, uniformity and mean cosine."""
        from simcse_cli.analysis.geometry import describe_geometry

        return describe_geometry(self.left, self.right, self.pairs.gold)

    @cached_property
    def spectrum(self) -> "Spectrum":
        """Singular values, effective rank and isotropy of all sentences."""
        import numpy as np

        from simcse_cli.analysis.spectrum import describe_spectrum

        everything = np.concatenate([self.left, self.right])
        return describe_spectrum(everything, normalize=self.normalize, center=self.center)

    @cached_property
    def cosines(self) -> Any:
        """Cosine of every pair, ``(N,)``."""
        from simcse_cli.evaluation.correlation import cosine_rows

        return cosine_rows(self.left, self.right)

    @cached_property
    def groups(self) -> "list[RatingGroup]":
        """Cosines by rating group."""
        from simcse_cli.analysis.densities import rating_groups

        return rating_groups(self.cosines, self.pairs.gold)

    @cached_property
    def score(self) -> float | None:
        """Spearman correlation with the ratings of the scored pairs, a fraction."""
        from simcse_cli.evaluation.correlation import spearman

        return spearman(self.cosines[self.pairs.is_test], self.pairs.gold[self.pairs.is_test])


def measure_spaces(
    systems: Iterable[System],
    pairs: "RatedPairs",
    console: Console,
    *,
    normalize: bool = True,
    center: bool = False,
) -> list[MeasuredSpace]:
    """Encode the sentences of all pairs with each system."""
    spaces = []
    for system in systems:
        vectors = system.encode(pairs.sentences)
        half = len(pairs.left)
        spaces.append(MeasuredSpace(system, pairs, vectors[:half], vectors[half:], normalize, center))
        console.detail(f"{system.label}: {len(vectors):,} sentences encoded")
    return spaces
