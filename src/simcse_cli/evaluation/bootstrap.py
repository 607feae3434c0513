"""Percentile bootstrap intervals of STS scores and accuracies.

Source: Efron and Tibshirani 1993, chapter 13. The evaluation examples are resampled, so an interval says
how much the score would move with other examples of the same kind; it knows nothing of training seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.choices import Aggregation, Metric
from simcse_cli.evaluation.correlation import Floats
from simcse_cli.evaluation.resampling import ResampledCorrelation, resample_counts
from simcse_cli.evaluation.sts import StsResult
from simcse_cli.evaluation.transfer import TransferResult

N_RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """The central share ``level`` of the resampled scores, in fractions."""

    low: float
    high: float
    level: float = LEVEL

    def to_json(self) -> dict[str, float]:
        """Return the interval as result files hold it."""
        return {"low": self.low, "high": self.high, "level": self.level}


def interval(resampled: Floats, *, level: float = LEVEL) -> Interval:
    """Return the percentile interval of ``(R,)`` resampled scores; 0..100 at level 0.9 gives 5 to 95."""
    tail = (1 - level) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(float(low), float(high), level)


@dataclass(frozen=True)
class SuiteIntervals:
    """Intervals of the tasks of a suite and of their plain mean; tasks without a score are left out."""

    tasks: dict[str, Interval]
    average: Interval

    def add_to(self, payload: dict[str, Any]) -> None:
        """Put ``ci`` into the tasks' entries of a result file and ``average_ci`` beside its average."""
        for name, found in self.tasks.items():
            payload["tasks"][name]["ci"] = found.to_json()
        payload["average_ci"] = self.average.to_json()


def sts_intervals(result: StsResult, *, n_resamples: int = N_RESAMPLES, seed: int = 0) -> SuiteIntervals:
    """Return the intervals of an STS result under its own metric and aggregation."""
    return _suite_intervals(
        {
            name: resample_sts(
                name,
                [(subset.predicted, subset.gold) for subset in task.subsets.values()],
                metric=result.metric,
                aggregation=result.aggregation,
                n_resamples=n_resamples,
                seed=seed,
            )
            for name, task in result.tasks.items()
            if task is not None
        }
    )


def transfer_intervals(
    result: TransferResult, *, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> SuiteIntervals:
    """Return the intervals of the test accuracies of a transfer result."""
    return _suite_intervals(
        {
            name: resample_accuracy(name, score.correct, n_resamples=n_resamples, seed=seed)
            for name, score in result.tasks.items()
        }
    )


def _suite_intervals(resampled: Mapping[str, Floats]) -> SuiteIntervals:
    """Tasks are drawn independently, so the mean of their resamples is a resample of their mean."""
    tasks = {name: interval(scores) for name, scores in resampled.items()}
    return SuiteIntervals(tasks, interval(np.mean(list(resampled.values()), axis=0)))


def resample_sts(
    task: str,
    subsets: Sequence[tuple[Floats, Floats]],
    *,
    metric: Metric,
    aggregation: Aggregation,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Floats:
    """Return ``(R,)`` resampled scores of one task.

    Pairs are drawn with replacement over the whole task for ``all`` and within each subset for ``mean`` and
    ``wmean``.

    Args:
        task: its name, part of the seed, so that a task's draws do not depend on which others are scored.
        subsets: predicted and gold values ``(n,)`` of each subset, n at least 2.
        metric: spearman or pearson.
        aggregation: how the subsets become one score.
        n_resamples: ``R``; an interval needs about a thousand.
        seed: of the draws.
    """
    rng = np.random.default_rng([seed, *task.encode()])
    if aggregation is Aggregation.ALL:
        subsets = [(np.concatenate([x for x, _ in subsets]), np.concatenate([y for _, y in subsets]))]
    weights = [len(gold) if aggregation is Aggregation.WMEAN else 1 for _, gold in subsets]
    scores = [_resample_correlation(predicted, gold, metric, n_resamples, rng) for predicted, gold in subsets]
    return np.average(scores, axis=0, weights=weights)


def _resample_correlation(
    predicted: Floats, gold: Floats, metric: Metric, n_resamples: int, rng: np.random.Generator
) -> Floats:
    correlation = ResampledCorrelation(predicted, gold=gold, metric=metric)
    return np.hstack([correlation(counts)[0] for counts in resample_counts(gold.size, n_resamples, rng)])


def resample_accuracy(
    task: str, correct: NDArray[np.bool_], *, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> Floats:
    """Return ``(R,)`` resampled accuracies: drawing N examples with replacement makes the hits binomial."""
    rng = np.random.default_rng([seed, *task.encode()])
    return rng.binomial(len(correct), correct.mean(), size=n_resamples) / len(correct)
