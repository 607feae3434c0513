"""Is one model better than another on the same examples? Paired tests, and correction for many comparisons.

Source: Efron and Tibshirani 1993, chapters 13 and 16; McNemar 1947; Holm 1979; Benjamini and Hochberg 1995.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr

from simcse_cli.choices import Aggregation, Correction, Metric
from simcse_cli.evaluation.resampling import ResampledCorrelation, resample_counts


@dataclass(frozen=True)
class PairedSample:
    """The same pairs scored by two models: three vectors ``(n,)``."""

    gold: np.ndarray
    candidate: np.ndarray
    baseline: np.ndarray


@dataclass(frozen=True)
class Discordance:
    """How often two classifiers differ on the same ``n`` examples: only one of them is right."""

    n_only_candidate: int
    n_only_baseline: int
    n: int


@dataclass(frozen=True)
class PairedTest:
    """Candidate minus baseline in fractions: observed, with a 95% interval, and a two-sided p-value.

    ``n_pairs`` counts what was paired: scored sentence pairs, or classified examples.
    """

    difference: float
    low: float
    high: float
    p_value: float
    n_pairs: int


def paired_bootstrap(
    tasks: Mapping[str, Sequence[PairedSample]],
    *,
    aggregation: Aggregation = Aggregation.ALL,
    metric: Metric = Metric.SPEARMAN,
    n_resamples: int = 2000,
    seed: int = 0,
) -> tuple[dict[str, PairedTest], PairedTest]:
    """Return the test of each task and that of the mean over the tasks.

    Each resample draws pairs with replacement, the same for both models: over the whole task for ``all``,
    within each subset for ``mean`` and ``wmean``. The p-value is twice the smaller share of resampled
    differences on one side of 0, the observed data counted in, so it lies in [2 / (n_resamples + 1), 1].
    Equal models give 1.

    Args:
        tasks: task -> its subsets.
        aggregation: how subsets become the score of a task.
        metric: Spearman or Pearson.
        n_resamples: at least 1; the interval needs about a thousand.
        seed: of the draws; a task's draws do not depend on which other tasks are tested.

    Raises:
        ValueError: no task, or a subset of fewer than two pairs.
    """
    if not tasks:
        raise ValueError("need at least one task")
    observed: dict[str, float] = {}
    resampled: dict[str, np.ndarray] = {}
    for task, subsets in tasks.items():
        rng = np.random.default_rng([seed, *task.encode()])
        strata = [_concatenate(subsets)] if aggregation is Aggregation.ALL else subsets
        shares = _shares(strata, aggregation)
        differences = np.stack([_differences(stratum, metric, n_resamples, rng) for stratum in strata])
        observed[task], resampled[task] = float(shares @ differences[:, 0]), shares @ differences[:, 1:]
    n_pairs = {task: sum(subset.gold.size for subset in subsets) for task, subsets in tasks.items()}
    tests = {task: _test(observed[task], resampled[task], n_pairs[task]) for task in tasks}
    mean_resampled = np.mean(list(resampled.values()), axis=0)
    return tests, _test(float(np.mean(list(observed.values()))), mean_resampled, sum(n_pairs.values()))


def discordance(candidate: np.ndarray, baseline: np.ndarray) -> Discordance:
    """Return how two boolean vectors ``(n,)``, true where a classifier is right, differ."""
    return Discordance(
        int(np.count_nonzero(candidate & ~baseline)),
        int(np.count_nonzero(baseline & ~candidate)),
        int(candidate.size),
    )


def mcnemar_exact(found: Discordance) -> float:
    """Return the two-sided p-value of McNemar's exact test, in (0, 1].

    Among the examples that only one classifier gets right, either is that one with probability 1/2: twice the
    smaller tail of a binomial distribution. (0, 5) gives 2 / 32, (1, 9) gives 22 / 1024; no such example, 1.
    """
    smaller = min(found.n_only_candidate, found.n_only_baseline)
    return min(1.0, 2 * float(bdtr(smaller, found.n_only_candidate + found.n_only_baseline, 0.5)))


def paired_accuracy_bootstrap(
    tasks: Mapping[str, Discordance], *, n_resamples: int = 2000, seed: int = 0
) -> tuple[dict[str, PairedTest], PairedTest]:
    """Return the test of each task's difference in accuracy and that of the mean over the tasks.

    Each resample draws the examples of a task with replacement, the same for both models. Only three kinds of
    example matter (candidate right alone, baseline right alone, neither alone), so their numbers are drawn
    from a multinomial distribution. p-values as for ``paired_bootstrap``.

    Raises:
        ValueError: no task.
    """
    if not tasks:
        raise ValueError("need at least one task")
    observed: dict[str, float] = {}
    resampled: dict[str, np.ndarray] = {}
    for task, found in tasks.items():
        rng = np.random.default_rng([seed, *task.encode()])
        alone = np.array([found.n_only_candidate, found.n_only_baseline])
        kinds = np.append(alone, found.n - alone.sum())
        drawn = rng.multinomial(found.n, kinds / found.n, size=n_resamples)
        observed[task] = float(alone[0] - alone[1]) / found.n
        resampled[task] = (drawn[:, 0] - drawn[:, 1]) / found.n
    tests = {task: _test(observed[task], resampled[task], tasks[task].n) for task in tasks}
    mean_resampled = np.mean(list(resampled.values()), axis=0)
    n_pairs = sum(found.n for found in tasks.values())
    return tests, _test(float(np.mean(list(observed.values()))), mean_resampled, n_pairs)


def adjust(p_values: Sequence[float], correction: Correction) -> list[float]:
    """Return the p-values corrected for how many there are, in the order given, each at most 1.

    Holm multiplies the i-th smallest of m by m - i + 1 and never lets it fall below a smaller one's result;
    Benjamini-Hochberg multiplies by m / i and never lets it rise above a larger one's. (0.01, 0.04, 0.03)
    gives (0.03, 0.06, 0.06) and (0.03, 0.04, 0.04).
    """
    p = np.asarray(p_values, dtype=np.float64)
    if correction is Correction.NONE or p.size == 0:
        return list(p_values)
    order, m = np.argsort(p, kind="stable"), p.size
    if correction is Correction.HOLM:
        stepped = np.maximum.accumulate(p[order] * (m - np.arange(m)))
    else:
        scaled = p[order] * m / np.arange(1, m + 1)
        stepped = np.minimum.accumulate(scaled[::-1])[::-1]
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in adjusted]


def _concatenate(subsets: Sequence[PairedSample]) -> PairedSample:
    fields = ("gold", "candidate", "baseline")
    return PairedSample(*(np.concatenate([getattr(subset, name) for subset in subsets]) for name in fields))


def _shares(strata: Sequence[PairedSample], aggregation: Aggregation) -> np.ndarray:
    """Return the weight of each stratum in the score of its task; they sum to 1."""
    sizes = np.array([stratum.gold.size for stratum in strata], dtype=np.float64)
    if aggregation is Aggregation.MEAN:
        sizes[:] = 1.0
    shares: np.ndarray = sizes / sizes.sum()
    return shares


def _differences(
    sample: PairedSample, metric: Metric, n_resamples: int, rng: np.random.Generator
) -> np.ndarray:
    """Return ``(1 + n_resamples,)`` differences: on the data themselves, then on each resample."""
    correlation = ResampledCorrelation(sample.candidate, sample.baseline, gold=sample.gold, metric=metric)
    blocks = resample_counts(sample.gold.size, n_resamples, rng)
    candidate, baseline = np.hstack([correlation.observed()[:, None], *map(correlation, blocks)])
    differences: np.ndarray = candidate - baseline
    return differences


def _test(observed: float, resampled: np.ndarray, n_pairs: int) -> PairedTest:
    low, high = np.quantile(resampled, [0.025, 0.975])
    smaller_side = min(np.count_nonzero(resampled <= 0), np.count_nonzero(resampled >= 0))
    p_value = min(1.0, 2 * (int(smaller_side) + 1) / (resampled.size + 1))
    return PairedTest(observed, float(low), float(high), p_value, n_pairs)
