"""Bootstrap resamples of correlations, many at a time: the common part of intervals and paired tests.

A resample is a vector of counts (how often each pair was drawn) instead of a list of drawn pairs. Ranks in a
resample then follow from running sums of the counts in one fixed order, so no resample is ever sorted.
"""

from collections.abc import Iterator

import numpy as np

from simcse_cli.choices import Metric

_BLOCK_CELLS = 400_000  # a block stays in the processor's cache: 3 MB as float64


def resample_counts(n: int, n_resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield blocks ``(n, R)`` of float64 counts, ``n_resamples`` columns in all; each column sums to ``n``.

    Column r says how often each of the ``n`` pairs occurs in resample r, drawn with replacement.
    """
    columns_per_block = max(1, _BLOCK_CELLS // n)
    for start in range(0, n_resamples, columns_per_block):
        columns = min(columns_per_block, n_resamples - start)
        cells = rng.integers(n, size=(n, columns)) * columns + np.arange(columns)
        yield np.bincount(cells.ravel(), minlength=n * columns).reshape(n, columns).astype(np.float64)


class ResampledCorrelation:
    """Correlations of the scores of several models with one gold vector, under any counts.

    Args:
        scores: one vector ``(n,)`` per model, any scale.
        gold: ``(n,)``, n at least 2.
        metric: Spearman ranks are computed inside each resample, ties at their mean rank.

    Raises:
        ValueError: the vectors differ in length or have fewer than two entries.
    """

    def __init__(self, *scores: np.ndarray, gold: np.ndarray, metric: Metric = Metric.SPEARMAN) -> None:
        if gold.size < 2 or any(vector.shape != gold.shape for vector in scores):
            shapes = ", ".join(str(vector.shape) for vector in (*scores, gold))
            raise ValueError(f"need vectors of one length, at least 2, got shapes {shapes}")
        variable = _Ranked if metric is Metric.SPEARMAN else _Plain
        self._scores = [variable(vector) for vector in scores]
        self._gold = variable(gold)
        self._n = gold.size

    def __call__(self, counts: np.ndarray) -> np.ndarray:
        """Return ``(models, R)`` correlations for counts ``(n, R)``; 0 where a side is constant."""
        gold = self._gold.centred(counts)
        weighted_gold = counts * gold
        gold_variance = (weighted_gold * gold).sum(axis=0)
        correlations = np.zeros((len(self._scores), counts.shape[1]))
        for row, variable in zip(correlations, self._scores, strict=True):
            scores = variable.centred(counts)
            scale = np.sqrt((counts * scores * scores).sum(axis=0) * gold_variance)
            np.divide((weighted_gold * scores).sum(axis=0), scale, out=row, where=scale > 0)
        return correlations

    def observed(self) -> np.ndarray:
        """Return ``(models,)``, the correlations of the data themselves: every pair once."""
        return self(np.ones((self._n, 1)))[:, 0]


class _Plain:
    """Values as they are, centred at the mean of each resample."""

    def __init__(self, values: np.ndarray) -> None:
        self._values: np.ndarray = values.astype(np.float64)[:, None]

    def centred(self, counts: np.ndarray) -> np.ndarray:
        means = (counts * self._values).sum(axis=0) / counts.sum(axis=0)
        centred: np.ndarray = self._values - means
        return centred


class _Ranked:
    """Mean ranks within each resample, centred at their mean ``(n + 1) / 2``."""

    def __init__(self, values: np.ndarray) -> None:
        _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
        self._group: np.ndarray = group
        self._order = np.argsort(group, kind="stable")
        self._starts = np.cumsum(sizes) - sizes

    def centred(self, counts: np.ndarray) -> np.ndarray:
        drawn = np.add.reduceat(counts[self._order], self._starts, axis=0)  # (groups of equal values, R)
        drawn_up_to = np.cumsum(drawn, axis=0)
        centred_ranks = drawn_up_to - (drawn + drawn_up_to[-1]) / 2
        return np.take(centred_ranks, self._group, axis=0)
