"""Correlation between cosine similarity and gold scores, and its aggregation over subsets."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from simcse_cli.arrays import AnyFloats, Floats
from simcse_cli.settings.choices import Aggregation, Metric

_Numbers = Sequence[float] | Floats

# Cosines of float32 vectors have an error of about 1e-7. In a smaller range than this, their order
# is that of rounding, so they count as constant.
LEAST_COSINE_RANGE = 1e-6


def cosine_rows(left: AnyFloats, right: AnyFloats) -> Floats:
    """Return the cosines ``(N,)`` of row i of ``left`` and row i of ``right``, ``(N, D)`` each.

    If a vector is zero or not finite, the cosine is undefined and 0 is returned, as in SentEval.
    Two equal rows give 1, orthogonal ones 0.
    """
    left = np.asarray(left, dtype=np.float64)
    right = np.asarray(right, dtype=np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = np.einsum("ij,ij->i", left, right) / norms
    return np.where(np.isfinite(cosines), cosines, 0.0)


def pearson(x: _Numbers, y: _Numbers) -> float | None:
    """Return Pearson's correlation in [-1, 1].

    Return None if a side is constant, has fewer than two values, or has values whose squares are
    not finite.
    """
    a = np.asarray(x, dtype=np.float64)
    b = np.asarray(y, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{len(a)} and {len(b)} values: need as many on each side")
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        a = a - a.mean()
        b = b - b.mean()
        norms = np.linalg.norm(a) * np.linalg.norm(b)
        value = a @ b / norms
    if not np.isfinite([norms, value]).all():
        return None
    return float(np.clip(value, -1.0, 1.0))


def spearman(x: _Numbers, y: _Numbers) -> float | None:
    """Return Spearman's correlation in [-1, 1], which is Pearson's correlation of the ranks.

    Tied values share their mean rank. Return None if a side is constant or has fewer than two
    values.
    """
    return pearson(rankdata(x), rankdata(y))


def correlate(metric: Metric, cosines: _Numbers, gold: _Numbers) -> float | None:
    """Return the correlation of cosines with gold scores, in [-1, 1].

    Return None where the correlation is undefined, or if the cosines are constant up to rounding
    (``LEAST_COSINE_RANGE``).
    """
    if len(cosines) and np.ptp(cosines) < LEAST_COSINE_RANGE:
        return None
    if metric is Metric.SPEARMAN:
        return spearman(cosines, gold)
    return pearson(cosines, gold)


def strata(
    aggregation: Aggregation, subsets: Sequence[tuple[Floats, ...]]
) -> tuple[list[tuple[Floats, ...]], Floats]:
    """Return the parts of an STS task that are correlated on their own, and their weights.

    Scores, bootstrap intervals and paired tests all use these parts:

    - ``all``: one part of all pairs;
    - ``mean``: each subset is a part, with weight 1;
    - ``wmean``: each subset is a part, and its weight is its number of pairs.

    There must be at least one subset. A subset of n pairs is a tuple of arrays, for example the
    gold and the predicted values. The first array is ``(n,)``, the others are ``(n,)`` or
    ``(seeds, n)``.
    """
    if aggregation is Aggregation.ALL:
        joined = [np.concatenate(side, axis=-1) for side in zip(*subsets, strict=True)]
        return [tuple(joined)], np.ones(1)
    weights = np.ones(len(subsets))
    if aggregation is Aggregation.WMEAN:
        weights[:] = [len(sides[0]) for sides in subsets]
    return list(subsets), weights


def aggregate(
    metric: Metric, aggregation: Aggregation, subsets: Sequence[tuple[Floats, Floats]]
) -> float | None:
    """Return one score in [-1, 1] for an STS task, the weighted mean over its strata.

    ``subsets`` are the predicted and gold values of each subset. Return None if there is no subset,
    or if the correlation of a stratum is undefined.
    """
    if not subsets:
        return None
    parts, weights = strata(aggregation, subsets)
    scores = [correlate(metric, *part) for part in parts]
    if None in scores:
        return None
    return float(np.average(np.array(scores, dtype=np.float64), weights=weights))
