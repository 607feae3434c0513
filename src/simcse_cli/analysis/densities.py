"""Cosine similarity of rated pairs, group by group: summary numbers and smooth density curves."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATING_EDGES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
GRID = np.linspace(-1.0, 1.0, 401)
SMALLEST_BANDWIDTH = 0.005

Values = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class RatingGroup:
    """Cosines of the pairs whose rating lies in ``[low, high)``; the last group includes its upper edge."""

    low: float
    high: float
    closed: bool
    cosines: NDArray[np.float64]

    @property
    def label(self) -> str:
        """The interval as mathematicians write it, for example ``[3,4)``."""
        return f"[{self.low:g},{self.high:g}{']' if self.closed else ')'}"

    @property
    def n_pairs(self) -> int:
        """Number of pairs in the group."""
        return len(self.cosines)

    def summary(self) -> dict[str, float | None]:
        """Return mean, standard deviation (over n) and quartiles; all None in an empty group."""
        if self.n_pairs == 0:
            return dict.fromkeys(("mean", "std", "q25", "median", "q75"))
        q25, median, q75 = np.quantile(self.cosines, (0.25, 0.5, 0.75))
        return {
            "mean": float(self.cosines.mean()),
            "std": float(self.cosines.std()),
            "q25": float(q25),
            "median": float(median),
            "q75": float(q75),
        }

    def density(self) -> NDArray[np.float64]:
        """Return the density over ``GRID``; zeros in an empty group."""
        return kernel_density(self.cosines, GRID) if self.n_pairs else np.zeros_like(GRID)


def rating_groups(cosines: Values, gold: Values, edges: Sequence[float] = RATING_EDGES) -> list[RatingGroup]:
    """Return the cosines split by gold rating into half-open intervals, the last one closed.

    Source: Gao et al. 2021, Figure G.1: five groups of STS-B. Integer edges are a toolkit default, the paper
    does not state them; all of STS-B then falls into groups of 1478, 1334, 1520, 2288 and 2008 pairs.

    Args:
        cosines: ``(N,)`` in [-1, 1].
        gold: ``(N,)`` ratings.
        edges: increasing; pairs outside the first and last edge belong to no group.

    Raises:
        ValueError: lengths differ or edges do not increase.
    """
    if len(cosines) != len(gold):
        raise ValueError(f"{len(cosines)} cosines but {len(gold)} ratings, need as many")
    if len(edges) < 2 or any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"edges {tuple(edges)} do not increase, need at least two increasing values")
    groups = []
    for low, high in pairwise(edges):
        closed = high == edges[-1]
        inside = (gold >= low) & ((gold <= high) if closed else (gold < high))
        groups.append(RatingGroup(low, high, closed, np.asarray(cosines[inside], dtype=np.float64)))
    return groups


def kernel_density(
    values: Values, grid: NDArray[np.float64], *, low: float = -1.0, high: float = 1.0
) -> NDArray[np.float64]:
    """Return a Gaussian kernel density estimate on ``grid``, with reflection at the bounds of the quantity.

    Bandwidth by Scott's rule, ``std * n^(-1/5)``, at least 0.005 so that equal values still give a curve.
    The mass that a plain estimate would put beyond a bound is reflected back, so the curve integrates to 1
    over ``[low, high]``.

    Args:
        values: ``(N,)`` inside ``[low, high]``.
        grid: where to evaluate.
        low: smallest possible value.
        high: largest possible value.

    Raises:
        ValueError: no values.
    """
    if len(values) == 0:
        raise ValueError("no values, need at least one")
    points = np.asarray(values, dtype=np.float64)
    bandwidth = max(SMALLEST_BANDWIDTH, float(points.std()) * len(points) ** -0.2)
    mirrored = np.concatenate([points, 2 * low - points, 2 * high - points])
    kernels = np.exp(-0.5 * ((grid[:, None] - mirrored[None, :]) / bandwidth) ** 2)
    density: NDArray[np.float64] = kernels.sum(axis=1) / (len(points) * bandwidth * np.sqrt(2 * np.pi))
    return density
