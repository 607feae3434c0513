"""Bootstrap intervals of scores, paired tests of two models, and corrections for many tests.

Source: Efron and Tibshirani 1993, chapters 13 and 16; McNemar 1947; Holm 1979; Benjamini and
Hochberg 1995; for systems with several seeds Clark 1973. The examples of the evaluation are
resampled, which accounts for the choice of examples, but not for that of training seeds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, stdtr, stdtrit

from simcse_cli.arrays import Array, Booleans, Floats
from simcse_cli.evaluation.correlation import strata
from simcse_cli.results.result import SuiteResult
from simcse_cli.settings.choices import Aggregation, Correction, Metric

Centred = Callable[[Floats], Floats]
"""Maps counts ``(n, R)`` to the centred values of a variable in each resample, ``(n, R)``."""
N_RESAMPLES = 1000
LEVEL = 0.95
_BLOCK_CELLS = 400_000  # 3 MB as float64: a block stays in the processor's cache


# Resampled correlations. A resample is a vector of counts (how often each pair was drawn), not a
# list of drawn pairs: ranks then follow from running sums of the counts in one fixed order, and no
# resample is ever sorted.


def task_generator(task: str, seed: int) -> np.random.Generator:
    """Return a random generator for one task, independent of which other tasks are scored."""
    return np.random.default_rng([seed, *task.encode()])


def resample_counts(n: int, n_resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield blocks ``(n, R)`` of counts, ``n_resamples`` columns in all; each column sums to ``n``.

    A column counts how often each of the ``n`` pairs occurs in one resample, drawn with
    replacement.
    """
    columns_per_block = max(1, _BLOCK_CELLS // n)
    for start in range(0, n_resamples, columns_per_block):
        columns = min(columns_per_block, n_resamples - start)
        # A draw is the number of a cell in the flat table of pairs by resamples, so that one
        # bincount counts all draws.
        cells = rng.integers(n, size=(n, columns)) * columns + np.arange(columns)
        counts = np.bincount(cells.ravel(), minlength=n * columns)
        yield counts.reshape(n, columns).astype(np.float64)


class ResampledCorrelation:
    """Correlations of the scores of several models with the same gold scores, in resamples.

    Scores and gold scores are vectors ``(n,)`` of any scale, n at least 2. Spearman ranks are taken
    within each resample; ties have their mean rank.
    """

    def __init__(self, *scores: Floats, gold: Floats, metric: Metric = Metric.SPEARMAN) -> None:
        if gold.size < 2 or any(vector.shape != gold.shape for vector in scores):
            shapes = ", ".join(str(vector.shape) for vector in (*scores, gold))
            raise ValueError(f"need vectors of one length, at least 2, got shapes {shapes}")
        variable = _ranks if metric is Metric.SPEARMAN else _values
        self._scores = [variable(vector) for vector in scores]
        self._gold = variable(gold)
        self._n = gold.size

    def __call__(self, counts: Floats) -> Floats:
        """Return ``(models, R)`` correlations for counts ``(n, R)``; 0 where a side is constant."""
        # The values are centred, so weighted sums of products are covariances, up to a factor that
        # cancels out.
        gold = self._gold(counts)
        weighted_gold = counts * gold
        gold_variance = (weighted_gold * gold).sum(axis=0)
        correlations = np.zeros((len(self._scores), counts.shape[1]))
        for row, variable in zip(correlations, self._scores, strict=True):
            scores = variable(counts)
            scale = np.sqrt((counts * scores * scores).sum(axis=0) * gold_variance)
            np.divide((weighted_gold * scores).sum(axis=0), scale, out=row, where=scale > 0)
        return correlations

    def observed(self) -> Floats:
        """Return ``(models,)``, the correlations of the data themselves: every pair once."""
        return self(np.ones((self._n, 1)))[:, 0]

    def draw(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        return np.hstack([self(counts) for counts in resample_counts(self._n, n_resamples, rng)])


def _values(values: Floats) -> Centred:
    """Return a function from counts to the values, centred at their mean in each resample."""
    column: Floats = values.astype(np.float64)[:, None]

    def centred(counts: Floats) -> Floats:
        return np.asarray(column - (counts * column).sum(axis=0) / counts.sum(axis=0))

    return centred


def _ranks(values: Floats) -> Centred:
    """Return a function from counts to the ranks in each resample, less their mean (n + 1) / 2.

    Equal values share the mean of their ranks.
    """
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    starts = np.cumsum(sizes) - sizes

    def centred(counts: Floats) -> Floats:
        drawn = np.add.reduceat(counts[order], starts, axis=0)  # (groups of equal values, R)
        drawn_up_to = np.cumsum(drawn, axis=0)
        # The ranks of a group of equal values end at drawn_up_to, so their mean is
        #     drawn_up_to - (drawn - 1) / 2
        # from which (n + 1) / 2 is subtracted; n is drawn_up_to[-1].
        centred_ranks = drawn_up_to - (drawn + drawn_up_to[-1]) / 2
        return np.take(centred_ranks, group, axis=0)

    return centred


# Intervals of one model's scores


def interval(resampled: Floats, *, level: float = LEVEL) -> dict[str, float]:
    """Return the percentile interval of ``(R,)`` resampled scores.

    For example, the scores 0..100 at level 0.9 give 5 to 95.
    """
    tail = (1 - level) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return {"low": float(low), "high": float(high), "level": level}


def with_intervals(result: SuiteResult, resampled: Mapping[str, Floats]) -> SuiteResult:
    """Return the result with the intervals of its tasks and of their plain mean.

    ``resampled`` are the scores ``(R,)`` of each task. The tasks are drawn independently, so the
    mean of their resamples is a resample of their mean.
    """
    tasks = dict(result.tasks)
    for name, scores in resampled.items():
        if task := tasks[name]:
            tasks[name] = replace(task, extra={**task.extra, "ci": interval(scores)})
    average = interval(np.mean(list(resampled.values()), axis=0))
    return replace(result, tasks=tasks, figures={**result.figures, "average_ci": average})


def resample_sts(
    task: str,
    subsets: Sequence[tuple[Floats, Floats]],
    *,
    metric: Metric,
    aggregation: Aggregation,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Floats:
    """Return ``(R,)`` scores of one task, whose pairs are drawn with replacement in each stratum.

    ``subsets`` are predicted and gold values ``(n,)``, n at least 2. An interval needs about a
    thousand resamples.
    """
    rng = task_generator(task, seed)
    parts, weights = strata(aggregation, subsets)
    scores = []
    for predicted, gold in parts:
        correlation = ResampledCorrelation(predicted, gold=gold, metric=metric)
        scores.append(correlation.draw(n_resamples, rng)[0])
    return np.average(scores, axis=0, weights=weights)


def resample_accuracy(
    task: str, correct: Booleans, *, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> Floats:
    """Return ``(R,)`` resampled accuracies.

    The hits are binomial, because N examples are drawn with replacement.
    """
    rng = task_generator(task, seed)
    return rng.binomial(len(correct), correct.mean(), size=n_resamples) / len(correct)


def resample_means(
    task: str, values: Floats, *, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> Floats:
    """Return ``(measures, R)`` resampled means of ``(measures, n)`` values of the same examples."""
    blocks = resample_counts(values.shape[1], n_resamples, task_generator(task, seed))
    sums = np.hstack([values @ counts for counts in blocks])
    return np.asarray(sums / values.shape[1])


# Two models on the same examples


class PairedSample(NamedTuple):
    """The same pairs scored by two systems.

    The gold scores are ``(n,)``. Those of a system are ``(n,)`` or, with several seeds, ``(seeds,
    n)``.
    """

    gold: Floats
    candidate: Floats
    baseline: Floats


@dataclass(frozen=True)
class Discordance:
    """The number of examples, of the same ``n``, that only one of two classifiers gets right."""

    n_only_candidate: int
    n_only_baseline: int
    n: int


@dataclass(frozen=True)
class PairedTest:
    """Candidate minus baseline in fractions, with a 95% interval and a two-sided p-value.

    ``n_pairs`` counts the examples: scored sentence pairs, classified texts or queries. ``p_value``
    is that of the bootstrap over the examples. If both systems have several seeds, ``n_seeds`` is
    the smaller number of seeds, ``p_seeds`` is that of the t-test over seeds, and ``p_both`` and
    the interval account for seeds and examples together.
    """

    difference: float
    low: float
    high: float
    p_value: float
    n_pairs: int
    n_seeds: int | None = None
    p_seeds: float | None = None
    p_both: float | None = None

    @property
    def p_decisive(self) -> float:
        """The p-value for seeds and examples together if there is one, else the bootstrap's."""
        return self.p_value if self.p_both is None else self.p_both

    def examples(self, unit: str) -> str:
        """Return what was tested on, such as "1,379 pairs and 5 seeds"."""
        seeds = "" if self.n_seeds is None else f" and {self.n_seeds} seeds"
        return f"{self.n_pairs:,} {unit}{seeds}"

    def verdict(self, p_value: float, baseline: str, unit: str) -> str:
        """Return in words what the test says; the p-value may be corrected for several tests.

        0.012 and 0.023 with p = 0.01 are "better than base by 1.2 to 2.3 points"; any p of 5% or
        more is "no difference from base that 1,379 pairs could show".
        """
        if p_value >= 0.05 or self.low <= 0 <= self.high:
            return f"no difference from {baseline} that {self.examples(unit)} could show"
        nearer, further = sorted((abs(100 * self.low), abs(100 * self.high)))
        direction = "better" if self.low > 0 else "worse"
        return f"{direction} than {baseline} by {nearer:.1f} to {further:.1f} points"


Tests = tuple[dict[str, PairedTest], PairedTest]
"""The test of each task by its name, and the test of the mean over the tasks."""


@dataclass(frozen=True)
class _Differences:
    """The differences between two systems on one task: observed, and resampled ``(R,)``.

    ``seeds`` holds the scores of candidate and baseline, ``(seeds, 1 + R)`` each: the observed
    score of a seed, then the resampled ones. It may be None if each system has a single seed.
    """

    observed: float
    resampled: Floats
    n_pairs: int
    seeds: tuple[Floats, Floats] | None = None

    def test(self, *, by_seed: bool) -> PairedTest:
        """Return the test over the examples or, with several seeds, also over the seeds."""
        # Examples alone: the bootstrap.
        low, high = np.quantile(self.resampled, [0.025, 0.975])
        n_not_above = int(np.count_nonzero(self.resampled <= 0))
        n_not_below = int(np.count_nonzero(self.resampled >= 0))
        # The observed data count as one more resample, so that the p-value is never 0.
        n_on_smaller_side = min(n_not_above, n_not_below)
        p_value = min(1.0, 2 * (n_on_smaller_side + 1) / (self.resampled.size + 1))
        bootstrap_test = PairedTest(self.observed, float(low), float(high), p_value, self.n_pairs)
        if self.seeds is None:
            return bootstrap_test
        n_seeds = min(map(len, self.seeds))
        if n_seeds < 2:
            return bootstrap_test

        # The test over seeds alone, then over seeds and examples together. The one with the larger
        # p-value gives the interval.
        candidate, baseline = self.seeds
        sides = [candidate - baseline] if by_seed else [candidate, baseline]
        seed_variance, seed_freedom = _seed_variance([side[:, 0] for side in sides])
        over_seeds = _t_interval(self.observed, seed_variance, seed_freedom)
        crossed = self._crossed_variance(sides, seed_variance, seed_freedom)
        over_both = _t_interval(self.observed, *crossed)
        decisive = max(over_seeds, over_both, key=lambda t_interval: t_interval.p_value)
        return replace(
            bootstrap_test,
            low=decisive.low,
            high=decisive.high,
            n_seeds=n_seeds,
            p_seeds=over_seeds.p_value,
            p_both=decisive.p_value,
        )

    def _crossed_variance(
        self, sides: Sequence[Floats], seed_variance: float, seed_freedom: float
    ) -> tuple[float, float]:
        """Return variance and degrees of freedom of the difference over seeds and examples.

        Source: Clark 1973, quasi-F; Satterthwaite 1946. A difference is modelled as the sum of a
        mean, an effect of the seed, an effect of the example, and a residual. The variance over
        seeds contains the effect of the seed and the residual; the variance of the bootstrap
        contains the effect of the example and the residual. The residual is subtracted from the
        variance of the bootstrap, so that it counts once.
        """
        # The resamples of a seed, less their mean over seeds, vary by the residual alone.
        residual = 0.0
        for side in sides:
            deviations = side[:, 1:] - side[:, 1:].mean(axis=0)
            residual += float(np.var(deviations, axis=1).sum()) / (len(side) * (len(side) - 1))
        # The bootstrap divides by n; n / (n - 1) makes its variance unbiased.
        n_free = max(self.n_pairs - 1, 1)
        over_examples = max(float(np.var(self.resampled)) - residual, 0.0)
        example_variance = over_examples * self.n_pairs / n_free
        variance = seed_variance + example_variance
        # Satterthwaite: the degrees of freedom are the squared variance over this denominator.
        denominator = seed_variance**2 / seed_freedom + example_variance**2 / n_free
        if not denominator:
            return variance, seed_freedom
        return variance, variance**2 / denominator


def t_test(candidate: Floats, baseline: Floats, *, by_seed: bool) -> float:
    """Return the two-sided p-value of Student's paired t-test over seeds, or of Welch's, in [0, 1].

    Both arrays hold one score for each seed, at least two. With ``by_seed``, entry i of both is of
    the same seed. Equal scores give 1; differences of (1, 2, 3) points give t = 3.46 with 2 degrees
    of freedom, p = 0.074.
    """
    sides = [candidate - baseline] if by_seed else [candidate, baseline]
    return _t_interval(float(candidate.mean() - baseline.mean()), *_seed_variance(sides)).p_value


def mean_interval(values: Floats) -> tuple[float, float]:
    """Return the 95% interval of the mean of at least two values by Student's t.

    For example, 1, 2 and 3 give -0.48 to 4.48.
    """
    low, high, _ = _t_interval(float(values.mean()), *_seed_variance([values]))
    return low, high


def _seed_variance(sides: Sequence[Floats]) -> tuple[float, float]:
    """Return the variance of a mean over seeds, and the degrees of freedom of that variance.

    For two sides, both values are for the difference of the two means (Welch).
    """
    variance = denominator = 0.0
    for scores in sides:
        mean_variance = float(np.var(scores, ddof=1)) / scores.size
        variance += mean_variance
        denominator += mean_variance**2 / (scores.size - 1)
    # Without variance the Welch-Satterthwaite quotient is undefined; any positive value serves.
    if not denominator:
        return variance, float(sides[0].size - 1)
    return variance, variance**2 / denominator


class _TInterval(NamedTuple):
    low: float
    high: float
    p_value: float


def _t_interval(difference: float, variance: float, freedom: float) -> _TInterval:
    """Return the 95% interval of a difference, and its two-sided p-value, by Student's t."""
    # Without variance the interval is a point, and the p-value is 1 for no difference, else 0.
    if variance == 0:
        return _TInterval(difference, difference, float(difference == 0))
    standard_error = variance**0.5
    half_width = float(stdtrit(freedom, (1 + LEVEL) / 2)) * standard_error
    p_value = float(2 * stdtr(freedom, -abs(difference) / standard_error))
    return _TInterval(difference - half_width, difference + half_width, p_value)


def paired_bootstrap(
    tasks: Mapping[str, Sequence[PairedSample]],
    *,
    aggregation: Aggregation = Aggregation.ALL,
    metric: Metric = Metric.SPEARMAN,
    n_resamples: int = 2000,
    seed: int = 0,
    by_seed: bool = False,
) -> Tests:
    """Return the test of each task and that of the mean over the tasks.

    Each resample draws pairs with replacement within each stratum, the same for all seeds of both
    systems, whose scores are averaged over seeds. ``by_seed`` says that the seeds are paired.

    The p-value of the bootstrap is twice the smaller share of differences on one side of 0, where
    the observed data count as one more resample: it lies in [2 / (n_resamples + 1), 1]. Equal
    models give 1. The interval needs about a thousand resamples.
    """
    differences: dict[str, _Differences] = {}
    for task, subsets in tasks.items():
        parts, weights = strata(aggregation, subsets)
        rng = task_generator(task, seed)
        differences[task] = _weighted_differences(parts, weights, metric, n_resamples, rng)
    return _tests(differences, by_seed=by_seed)


def _weighted_differences(
    parts: Sequence[tuple[Floats, ...]],
    weights: Floats,
    metric: Metric,
    n_resamples: int,
    rng: np.random.Generator,
) -> _Differences:
    """Return the differences on one task, whose score is the weighted mean over its strata.

    A part holds the gold scores, and the scores of candidate and baseline.
    """
    gains = []  # (1 + R) each
    scores = []  # (seeds of both systems, 1 + R) each
    n_pairs = 0
    for gold, candidate, baseline in parts:
        candidates = np.atleast_2d(candidate)
        n_candidates = len(candidates)
        correlation = ResampledCorrelation(
            *candidates, *np.atleast_2d(baseline), gold=gold, metric=metric
        )
        # Observed, then resampled.
        drawn = np.hstack([correlation.observed()[:, None], correlation.draw(n_resamples, rng)])
        gains.append(drawn[:n_candidates].mean(axis=0) - drawn[n_candidates:].mean(axis=0))
        scores.append(drawn)
        n_pairs += gold.size

    shares = weights / weights.sum()
    gain = np.stack(gains)
    seed_scores = np.tensordot(shares, np.stack(scores), axes=1)
    return _Differences(
        float(shares @ gain[:, 0]),
        shares @ gain[:, 1:],
        n_pairs,
        (seed_scores[:n_candidates], seed_scores[n_candidates:]),
    )


def paired_accuracy_bootstrap(
    tasks: Mapping[str, Discordance], *, n_resamples: int = 2000, seed: int = 0
) -> Tests:
    """Return the test of each task's difference in accuracy and that of the mean over the tasks.

    Each resample draws the examples of a task with replacement, the same for both models. Only
    three kinds of example matter (candidate right alone, baseline right alone, neither alone), so
    their numbers are drawn from a multinomial distribution. p-values as for ``paired_bootstrap``.
    """
    differences: dict[str, _Differences] = {}
    for task, counts in tasks.items():
        alone = np.array([counts.n_only_candidate, counts.n_only_baseline])
        kinds = np.append(alone, counts.n - alone.sum())
        drawn = task_generator(task, seed).multinomial(counts.n, kinds / counts.n, size=n_resamples)
        observed = float(alone[0] - alone[1]) / counts.n
        resampled = (drawn[:, 0] - drawn[:, 1]) / counts.n
        differences[task] = _Differences(observed, resampled, counts.n)
    return _tests(differences, by_seed=False)


def paired_mean_bootstrap(
    tasks: Mapping[str, tuple[Array, Array]],
    *,
    n_resamples: int = 2000,
    seed: int = 0,
    by_seed: bool = False,
) -> Tests:
    """Return the test of a difference in means over examples, by task and for the mean over tasks.

    A task holds the values of the examples, such as hits or the nDCG of queries, for each seed of
    candidate and baseline, ``(seeds, n)`` each. Each resample draws the examples, the same for all
    seeds. p-values as for ``paired_bootstrap``.
    """
    differences: dict[str, _Differences] = {}
    for task, (candidate, baseline) in tasks.items():
        values = np.vstack([candidate, baseline]).astype(np.float64)
        resampled = resample_means(task, values, n_resamples=n_resamples, seed=seed)
        scores = np.hstack([values.mean(axis=1, keepdims=True), resampled])  # (seeds, 1 + R)
        seeds = scores[: len(candidate)], scores[len(candidate) :]
        gains = seeds[0].mean(axis=0) - seeds[1].mean(axis=0)
        differences[task] = _Differences(float(gains[0]), gains[1:], values.shape[1], seeds)
    return _tests(differences, by_seed=by_seed)


def _tests(tasks: Mapping[str, _Differences], *, by_seed: bool) -> Tests:
    """Return the test of each task, and that of the mean over the tasks."""
    if not tasks:
        raise ValueError("need at least one task")
    differences = list(tasks.values())
    seeds = [task.seeds for task in differences if task.seeds is not None]
    mean_seeds = None
    if seeds:
        candidates, baselines = zip(*seeds, strict=True)
        mean_seeds = np.mean(candidates, axis=0), np.mean(baselines, axis=0)
    mean = _Differences(
        float(np.mean([task.observed for task in differences])),
        np.mean([task.resampled for task in differences], axis=0),
        sum(task.n_pairs for task in differences),
        mean_seeds,
    )
    tests = {name: task.test(by_seed=by_seed) for name, task in tasks.items()}
    return tests, mean.test(by_seed=by_seed)


def discordance(candidate: Booleans, baseline: Booleans) -> Discordance:
    n_only_candidate = int((candidate & ~baseline).sum())
    n_only_baseline = int((baseline & ~candidate).sum())
    return Discordance(n_only_candidate, n_only_baseline, candidate.size)


def mcnemar_exact(counts: Discordance) -> float:
    """Return the two-sided p-value of McNemar's exact test, in (0, 1].

    If the classifiers are equally good, each of the examples that only one gets right belongs to
    either with probability 1/2. The p-value is twice the smaller tail of this binomial
    distribution: counts of (0, 5) give 2 / 32, (1, 9) give 22 / 1024, and (0, 0) give 1.
    """
    smaller = min(counts.n_only_candidate, counts.n_only_baseline)
    n_discordant = counts.n_only_candidate + counts.n_only_baseline
    return min(1.0, 2 * float(bdtr(smaller, n_discordant, 0.5)))


def adjust(p_values: Sequence[float], correction: Correction) -> list[float]:
    """Return the p-values corrected for their number, in the order given, each at most 1.

    Holm multiplies the i-th smallest of m p-values by m - i + 1, and then raises it to the result
    of any smaller one. Benjamini-Hochberg multiplies it by m / i, and then lowers it to the result
    of any larger one. (0.01, 0.04, 0.03) becomes (0.03, 0.06, 0.06) by Holm and (0.03, 0.04, 0.04)
    by Benjamini-Hochberg.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if correction is Correction.NONE or p.size == 0:
        return list(p_values)
    m = p.size
    order = np.argsort(p, kind="stable")
    if correction is Correction.HOLM:
        stepped = np.maximum.accumulate(p[order] * (m - np.arange(m)))
    else:
        scaled = p[order] * m / np.arange(1, m + 1)
        stepped = np.minimum.accumulate(scaled[::-1])[::-1]
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in adjusted]
