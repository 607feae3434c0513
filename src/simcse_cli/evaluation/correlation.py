"""Correlation between cosine similarity and gold scores, and its aggregation over subsets."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from simcse_cli.settings.choices import Aggregation, Metric

Floats = NDArray[np.float64]


def cosine_rows(left: NDArray[np.floating], right: NDArray[np.floating]) -> Floats:
    """Return the cosine of each pair of rows, ``(N, D)`` twice to ``(N,)``.

    The cosine is 0 where a vector is zero or not finite.

    SentEval's rule turns an undefined cosine into 0. Two equal rows give 1, orthogonal ones 0.
    """
    left, right = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = np.einsum("ij,ij->i", left, right) / norms
    return np.where(np.isfinite(cosines), cosines, 0.0)


def pearson(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> float | None:
    """Return Pearson's correlation in [-1, 1].

    None where a side is constant, has fewer than two values, or values whose squares are not
    finite.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{len(a)} and {len(b)} values: need as many on each side")
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        a, b = a - a.mean(), b - b.mean()
        norms = np.linalg.norm(a) * np.linalg.norm(b)
        value = a @ b / norms
    return float(np.clip(value, -1.0, 1.0)) if np.isfinite([norms, value]).all() else None


def spearman(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> float | None:
    """Return Spearman's rank correlation in [-1, 1].

    It is Pearson's correlation over ranks, where ties share their mean rank.

    None where a side is constant. Any increasing map of either side leaves it unchanged.
    """
    return pearson(rankdata(x), rankdata(y))


def correlate(
    metric: Metric, x: Sequence[float] | Floats, y: Sequence[float] | Floats
) -> float | None:
    return spearman(x, y) if metric is Metric.SPEARMAN else pearson(x, y)


def strata(
    aggregation: Aggregation, subsets: Sequence[tuple[Floats, ...]]
) -> tuple[list[tuple[Floats, ...]], NDArray[np.float64]]:
    """Return the parts of an STS task that are correlated on their own.

    Also return the weight of each part in the score of the task.

    Scores, bootstrap intervals and paired tests all follow from these. ``all`` makes one part of
    all pairs; ``mean`` and ``wmean`` make each subset one, with weight 1 or its number of pairs.
    ``subsets`` are vectors ``(n,)`` over the same pairs, for example gold and predicted values, of
    which several rows ``(seeds, n)`` may stand together; at least one subset.
    """
    if aggregation is Aggregation.ALL:
        return [
            tuple(np.concatenate(side, axis=-1) for side in zip(*subsets, strict=True))
        ], np.ones(1)
    weights = [len(sides[0]) if aggregation is Aggregation.WMEAN else 1 for sides in subsets]
    return list(subsets), np.array(weights, dtype=np.float64)


def aggregate(
    metric: Metric, aggregation: Aggregation, subsets: Sequence[tuple[Floats, Floats]]
) -> float | None:
    """Return one score in [-1, 1] for the subsets of an STS task.

    It is the weighted mean over the strata of the task.

    ``subsets`` are predicted and gold values. None without any, or if the correlation of a stratum
    is undefined.
    """
    if not subsets:
        return None
    parts, weights = strata(aggregation, subsets)
    scores = [correlate(metric, *part) for part in parts]
    if any(score is None for score in scores):
        return None
    return float(np.average(np.array(scores, dtype=np.float64), weights=weights))
