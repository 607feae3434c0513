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
from simcse_cli.evaluation.correlation import LEAST_COSINE_RANGE, strata
from simcse_cli.progress import SILENT, Progress
from simcse_cli.results.result import SuiteResult
from simcse_cli.settings.choices import Aggregation, Correction, Metric

Centred = Callable[[Floats], Floats]
"""Maps the counts of R resamples to the centred values of n pairs in each resample.

Both are ``(n, R)``.
"""
N_RESAMPLES = 1000
LEVEL = 0.95
_BLOCK_CELLS = 400_000  # 3 MB as float64: a block stays in the processor's cache


# Resampled correlations. A resample is a vector of counts (how often each pair was drawn), not a
# list of drawn pairs: ranks then follow from running sums of the counts in one fixed order, and no
# resample is ever sorted.


def task_generator(task: str, seed: int) -> np.random.Generator:
    """Return the random generator of a task, the same whatever other tasks are scored."""
    return np.random.default_rng([seed, *task.encode()])


def resample_counts(n: int, n_resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield counts in blocks ``(n, R)``, with ``n_resamples`` columns in all.

    A column is one resample: it says how often each of the ``n`` pairs occurs in ``n`` draws with
    replacement.
    """
    columns_per_block = max(1, _BLOCK_CELLS // n)
    for start in range(0, n_resamples, columns_per_block):
        n_columns = min(columns_per_block, n_resamples - start)
        # Pair p in resample r is cell ``p * n_columns + r`` of the flattened counts, so a single
        # bincount of the cells that are drawn counts all draws.
        cells = rng.integers(n, size=(n, n_columns)) * n_columns + np.arange(n_columns)
        counts = np.bincount(cells.ravel(), minlength=n * n_columns)
        yield counts.reshape(n, n_columns).astype(np.float64)


class ResampledCorrelation:
    """Correlations of the scores of several models with the same gold scores, in resamples.

    Scores and gold scores are vectors ``(n,)`` of any scale, n at least 2. Spearman ranks are taken
    within each resample; ties have their mean rank. A correlation is undefined, and NaN, where the
    drawn gold scores are equal or the drawn scores lie within ``LEAST_COSINE_RANGE``.
    """

    def __init__(self, *scores: Floats, gold: Floats, metric: Metric = Metric.SPEARMAN) -> None:
        if gold.size < 2 or any(vector.shape != gold.shape for vector in scores):
            shapes = ", ".join(str(vector.shape) for vector in (*scores, gold))
            raise ValueError(f"need vectors of one length, at least 2, got shapes {shapes}")
        centring = _centred_ranks if metric is Metric.SPEARMAN else _centred_values
        self._scores = scores
        self._gold = gold
        self._centre_scores = [centring(vector) for vector in scores]  # a function for each model
        self._centre_gold = centring(gold)

    def __call__(self, counts: Floats) -> Floats:
        """Return ``(models, R)`` correlations for counts ``(n, R)``; NaN where undefined."""
        # Scores and gold scores are centred. So the sum of their products, each weighted by its
        # count, is the covariance, up to a factor that cancels out.
        gold = self._centre_gold(counts)
        weighted_gold = counts * gold
        gold_variance = (weighted_gold * gold).sum(axis=0)
        gold_varies = _drawn_range(self._gold, counts) > 0
        correlations = np.full((len(self._scores), counts.shape[1]), np.nan)
        models = zip(correlations, self._scores, self._centre_scores, strict=True)
        for row, values, centre in models:  # each row of ``correlations`` is filled in place
            scores = centre(counts)
            scale = np.sqrt((counts * scores * scores).sum(axis=0) * gold_variance)
            varies = gold_varies & (_drawn_range(values, counts) >= LEAST_COSINE_RANGE)
            is_defined = varies & (scale > 0)
            np.divide((weighted_gold * scores).sum(axis=0), scale, out=row, where=is_defined)
        return correlations

    def observed(self) -> Floats:
        """Return the correlations ``(models,)`` of the data, in which every pair occurs once."""
        return self(np.ones((self._gold.size, 1)))[:, 0]

    def draw(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        return np.hstack(
            [self(counts) for counts in resample_counts(self._gold.size, n_resamples, rng)]
        )


def _drawn_range(values: Floats, counts: Floats) -> Floats:
    """Return the range ``(R,)`` of the values that each resample has drawn."""
    is_drawn = counts > 0
    column = values[:, None]
    highest = np.where(is_drawn, column, -np.inf).max(axis=0)
    return np.asarray(highest - np.where(is_drawn, column, np.inf).min(axis=0))


def _centred_values(values: Floats) -> Centred:
    """Return a function that takes counts, and subtracts the mean of each resample from the values.

    The counts say how often each value occurs in each resample.
    """
    column: Floats = values.astype(np.float64)[:, None]

    def centred(counts: Floats) -> Floats:
        return np.asarray(column - (counts * column).sum(axis=0) / counts.sum(axis=0))

    return centred


def _centred_ranks(values: Floats) -> Centred:
    """Return a function that takes counts, and returns the ranks in each resample less their mean.

    Equal values share the mean of their ranks.
    """
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    # `order` sorts the values; in that order, group g of equal values begins at starts[g].
    order = np.argsort(group, kind="stable")
    starts = np.cumsum(sizes) - sizes

    def centred(counts: Floats) -> Floats:
        drawn = np.add.reduceat(counts[order], starts, axis=0)  # (groups, R)
        drawn_up_to = np.cumsum(drawn, axis=0)
        # The ranks of a group of equal values end at drawn_up_to, so their mean is
        # drawn_up_to - (drawn - 1) / 2. The mean of all n ranks is (n + 1) / 2, where n is
        # drawn_up_to[-1]. Their difference is drawn_up_to - (drawn + n) / 2.
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


def with_intervals(
    result: SuiteResult, resampled: Mapping[str, Floats], progress: Progress = SILENT
) -> SuiteResult:
    """Return the result with the intervals of its tasks and of their plain mean.

    ``resampled`` maps each task that has a score to its resampled scores ``(R,)``, NaN where they
    are undefined. The tasks are drawn independently, so the mean of their resamples is a resample
    of their mean. There is no interval where more than half of the resamples are undefined.
    """
    if not resampled:
        return result
    tasks = dict(result.tasks)
    for name, scores in resampled.items():
        is_defined = _defined(scores, f"interval of {name}", progress)
        task = tasks[name]
        if task and is_defined is not None:
            extra = {**task.extra, "ci": interval(scores[is_defined])}
            tasks[name] = replace(task, extra=extra)
    means = np.mean(list(resampled.values()), axis=0)
    figures = dict(result.figures)
    # A single task and the average have the same resamples, so one warning is enough.
    is_defined = _defined(means, "interval of average", progress if len(resampled) > 1 else SILENT)
    if is_defined is not None:
        figures["average_ci"] = interval(means[is_defined])
    return replace(result, tasks=tasks, figures=figures)


def _defined(resampled: Floats, place: str, progress: Progress) -> Booleans | None:
    """Return a mask of the resampled scores ``(R,)`` that are defined; warn if some are undefined.

    Return None if more than half are undefined. ``place`` says in the warning what the scores are
    resampled for.
    """
    is_defined = ~np.isnan(resampled)
    n_undefined = int(np.count_nonzero(~is_defined))
    if not n_undefined:
        return is_defined
    are_too_many = 2 * n_undefined > resampled.size
    progress.warn(
        f"{place}: {n_undefined:,} of {resampled.size:,} resamples have no correlation"
        f"{', so there is none' if are_too_many else ' and are left out'}"
    )
    return None if are_too_many else is_defined


def resample_sts(
    task: str,
    subsets: Sequence[tuple[Floats, Floats]],
    *,
    metric: Metric,
    aggregation: Aggregation,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Floats:
    """Return ``(R,)`` scores of one task, one for each resample.

    The pairs of each stratum are drawn with replacement. ``subsets`` are the predicted and gold
    values ``(n,)`` of each subset, n at least 2. An interval needs about a thousand resamples.
    """
    rng = task_generator(task, seed)
    parts, weights = strata(aggregation, subsets)
    scores = []
    for predicted, gold in parts:
        correlation = ResampledCorrelation(predicted, gold=gold, metric=metric)
        # ``draw`` returns one row per model, and here there is one model.
        (drawn,) = correlation.draw(n_resamples, rng)
        scores.append(drawn)
    return np.average(scores, axis=0, weights=weights)


def resample_accuracy(
    task: str, correct: Booleans, *, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> Floats:
    """Return ``(R,)`` accuracies, one for each resample.

    ``correct`` marks the examples that are classified correctly. Since examples are drawn with
    replacement, the number of correct ones in a resample is binomial.
    """
    rng = task_generator(task, seed)
    return rng.binomial(len(correct), correct.mean(), size=n_resamples) / len(correct)


def resample_means(
    task: str, values: Floats, *, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> Floats:
    """Return the means of measures over resampled examples.

    ``values`` ``(measures, n)`` over n examples give ``(measures, R)``. ``task`` and ``seed``
    determine which examples are drawn, whatever the values are.
    """
    blocks = resample_counts(values.shape[1], n_resamples, task_generator(task, seed))
    sums = np.hstack([values @ counts for counts in blocks])
    return np.asarray(sums / values.shape[1])


# Two models on the same examples


class PairedSample(NamedTuple):
    """The same pairs scored by two systems.

    The gold scores are ``(n,)``. The scores of a system are ``(n,)``, or ``(seeds, n)`` if it has
    several seeds.
    """

    gold: Floats
    candidate: Floats
    baseline: Floats


@dataclass(frozen=True)
class Discordance:
    """How many of ``n`` examples only the candidate, or only the baseline, classifies correctly."""

    n_only_candidate: int
    n_only_baseline: int
    n: int


@dataclass(frozen=True)
class PairedTest:
    """The score of a candidate minus that of a baseline, with a 95% interval and p-values.

    Scores are fractions. If one of the systems has a single seed, the interval comes from the
    bootstrap over the examples. If both systems have several, there are also a t-test over the
    seeds, and a test over seeds and examples together. The interval then comes from the one of
    these two with the larger p-value.

    Attributes:
        p_value: of the bootstrap, two-sided.
        n_pairs: the number of examples: scored sentence pairs, classified texts or queries.
        n_seeds: the smaller number of seeds, if both systems have several.
        p_seeds: of the t-test over the seeds.
        p_both: the larger of ``p_seeds`` and the p-value over seeds and examples together.
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
        """The p-value that decides: ``p_both`` if there is one, or else that of the bootstrap."""
        return self.p_value if self.p_both is None else self.p_both

    def examples(self, unit: str) -> str:
        """Return what was tested on, such as "1,379 pairs and 5 seeds"."""
        seeds = "" if self.n_seeds is None else f" and {self.n_seeds} seeds"
        return f"{self.n_pairs:,} {unit}{seeds}"

    def verdict(self, p_value: float, baseline: str, unit: str) -> str:
        """Return in words what the test says.

        An interval from 0.012 to 0.023 with p = 0.01 is "better than base by 1.2 to 2.3 points". A
        p of 5% or more, or an interval that contains 0, is "no difference from base that
        1,379 pairs could show". ``p_value`` is ``p_decisive``, maybe corrected for several tests.
        """
        if p_value >= 0.05 or self.low <= 0 <= self.high:
            return f"no difference from {baseline} that {self.examples(unit)} could show"
        nearer, further = sorted((abs(100 * self.low), abs(100 * self.high)))
        direction = "better" if self.low > 0 else "worse"
        return f"{direction} than {baseline} by {nearer:.1f} to {further:.1f} points"


Tests = tuple[dict[str, PairedTest], PairedTest | None]
"""The test of each task by its name, and the test of the mean over the tasks.

A task is left out, and the mean is None, where more than half of the resamples are undefined.
"""


@dataclass(frozen=True)
class _Differences:
    """The differences between two systems on one task: observed, and resampled ``(R,)``.

    ``seed_scores`` holds two arrays ``(seeds, 1 + R)``, for candidate and baseline. A row has the
    observed score of a seed, then its resampled scores. Without several seeds, ``seed_scores`` may
    be None.
    """

    observed: float
    resampled: Floats
    n_pairs: int
    seed_scores: tuple[Floats, Floats] | None = None

    def where_defined(self, name: str, progress: Progress) -> "_Differences | None":
        """Return the differences without undefined resamples; None if these are more than half."""
        is_defined = _defined(self.resampled, f"paired test of {name}", progress)
        if is_defined is None:
            return None
        if is_defined.all():
            return self
        seed_scores = None
        if self.seed_scores is not None:
            # The first column, the observed scores, is kept.
            columns = np.append(True, is_defined)
            candidate, baseline = self.seed_scores
            seed_scores = candidate[:, columns], baseline[:, columns]
        return replace(self, resampled=self.resampled[is_defined], seed_scores=seed_scores)

    def test(self, *, by_seed: bool) -> PairedTest:
        """Return the test over the examples and, if both systems have several seeds, over seeds.

        ``by_seed`` says that seed i of both systems is the same.
        """
        # Examples alone: the bootstrap.
        low, high = np.quantile(self.resampled, [0.025, 0.975])
        n_at_most_0 = int(np.count_nonzero(self.resampled <= 0))
        n_at_least_0 = int(np.count_nonzero(self.resampled >= 0))
        # The observed data count as one more resample, so that the p-value is never 0.
        n_on_smaller_side = min(n_at_most_0, n_at_least_0)
        p_value = min(1.0, 2 * (n_on_smaller_side + 1) / (self.resampled.size + 1))
        bootstrap_test = PairedTest(self.observed, float(low), float(high), p_value, self.n_pairs)
        if self.seed_scores is None:
            return bootstrap_test
        n_seeds = min(map(len, self.seed_scores))
        if n_seeds < 2:
            return bootstrap_test

        # The test over seeds alone, then over seeds and examples together. The test with the larger
        # p-value gives the interval. Paired seeds are one sample, of differences.
        candidate, baseline = self.seed_scores
        sides = [candidate - baseline] if by_seed else [candidate, baseline]
        observed_sides = [side[:, 0] for side in sides]
        seed_variance, seed_freedom = _seed_variance(observed_sides)
        over_seeds = _t_interval(self.observed, seed_variance, seed_freedom)
        variance, freedom = self._crossed_variance(sides, seed_variance, seed_freedom)
        over_both = _t_interval(self.observed, variance, freedom)
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

        ``sides`` are arrays ``(seeds, 1 + R)``: the scores of each system, or one array of the
        differences of paired seeds. ``seed_variance`` and ``seed_freedom`` are those over seeds
        alone.

        Source: Clark 1973, quasi-F; Satterthwaite 1946. A difference is modelled as the sum of a
        mean, an effect of the seed, an effect of the example, and a residual. The variance over
        seeds contains the effect of the seed and the residual; the variance of the bootstrap
        contains the effect of the example and the residual. The residual is subtracted from the
        variance of the bootstrap, so that it counts once.
        """
        # The scores of a seed, less the mean over seeds in each resample, vary by the residual
        # alone. The sum of these variances over s seeds, divided by s - 1, is the residual variance
        # of one seed. Divided by s as well, it is that of the mean over seeds.
        residual = 0.0
        for side in sides:
            resampled = side[:, 1:]
            deviations = resampled - resampled.mean(axis=0)
            residual += float(np.var(deviations, axis=1).sum()) / (len(side) * (len(side) - 1))
        # The bootstrap divides by n; n / (n - 1) makes its variance unbiased.
        example_freedom = max(self.n_pairs - 1, 1)
        biased_variance = max(float(np.var(self.resampled)) - residual, 0.0)
        example_variance = biased_variance * self.n_pairs / example_freedom
        variance = seed_variance + example_variance
        # Satterthwaite: the degrees of freedom are the squared variance over this denominator.
        denominator = seed_variance**2 / seed_freedom + example_variance**2 / example_freedom
        if not denominator:  # without variance, any degrees of freedom serve
            return variance, seed_freedom
        return variance, variance**2 / denominator


def t_test(candidate: Floats, baseline: Floats, *, by_seed: bool) -> float:
    """Return the two-sided p-value of a t-test over seeds, in [0, 1].

    Both arrays hold one score for each seed, at least two. If entry i of both has the same seed
    (``by_seed``), this is Student's paired test, otherwise Welch's. Equal scores give 1; paired
    differences of (1, 2, 3) points give t = 3.46 with 2 degrees of freedom, p = 0.074.
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
    """Return the variance of a mean over seeds, and its degrees of freedom.

    ``sides`` holds one or two arrays with a value for each seed. Two arrays give the variance of
    the difference of their means (Welch).
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
    progress: Progress = SILENT,
) -> Tests:
    """Return the test of each task and that of the mean over the tasks.

    ``tasks`` maps each task to the samples of its subsets. Each resample draws pairs with
    replacement within each stratum. All seeds of both systems are scored on the same draw, and each
    system's scores are averaged over its seeds. ``by_seed`` says that seed i of both systems is the
    same.

    Some of the resampled differences are at most 0, and some are at least 0. The p-value of the
    bootstrap is twice the smaller of these two shares. The observed data count as one more
    resample, so the p-value lies in [2 / (n_resamples + 1), 1]. Equal models give 1. The interval
    needs about a thousand resamples. Resamples without a correlation are left out, with a warning.
    """
    differences: dict[str, _Differences] = {}
    for task, subsets in tasks.items():
        parts, weights = strata(aggregation, subsets)
        rng = task_generator(task, seed)
        differences[task] = _weighted_differences(parts, weights, metric, n_resamples, rng)
    return _tests(differences, by_seed=by_seed, progress=progress)


def _weighted_differences(
    parts: Sequence[tuple[Floats, ...]],
    weights: Floats,
    metric: Metric,
    n_resamples: int,
    rng: np.random.Generator,
) -> _Differences:
    """Return the differences on one task, whose score is the weighted mean over its strata.

    Each of the ``parts`` is a stratum: its gold scores, then the scores of candidate and baseline.
    """
    gains_by_part = []  # (1 + R) each
    scores_by_part = []  # (seeds of the candidate, then of the baseline; 1 + R) each
    n_pairs = 0
    for gold, candidate, baseline in parts:
        candidate_seeds = np.atleast_2d(candidate)
        n_candidate = len(candidate_seeds)  # the same in all parts
        correlation = ResampledCorrelation(
            *candidate_seeds, *np.atleast_2d(baseline), gold=gold, metric=metric
        )
        # The observed scores come first, then the resampled ones.
        scores = np.hstack([correlation.observed()[:, None], correlation.draw(n_resamples, rng)])
        gains_by_part.append(scores[:n_candidate].mean(axis=0) - scores[n_candidate:].mean(axis=0))
        scores_by_part.append(scores)
        n_pairs += gold.size

    shares = weights / weights.sum()
    gains = np.stack(gains_by_part)
    seed_scores = np.tensordot(shares, np.stack(scores_by_part), axes=1)
    return _Differences(
        observed=float(shares @ gains[:, 0]),
        resampled=shares @ gains[:, 1:],
        n_pairs=n_pairs,
        seed_scores=(seed_scores[:n_candidate], seed_scores[n_candidate:]),
    )


def paired_accuracy_bootstrap(
    tasks: Mapping[str, Discordance], *, n_resamples: int = 2000, seed: int = 0
) -> Tests:
    """Return the test of the difference in accuracy on each task, and in the mean over the tasks.

    Each resample draws the examples of a task with replacement, the same for both models. An
    example is of one of three kinds: only the candidate is right, only the baseline is, or the two
    models are equally right or wrong. The difference depends only on how many examples of each kind
    are drawn, so these three counts are drawn instead, from a multinomial distribution.
    """
    differences: dict[str, _Differences] = {}
    for task, counts in tasks.items():
        n_right_alone = np.array([counts.n_only_candidate, counts.n_only_baseline])
        shares = np.append(n_right_alone, counts.n - n_right_alone.sum()) / counts.n
        drawn = task_generator(task, seed).multinomial(counts.n, shares, size=n_resamples)
        observed = float(n_right_alone[0] - n_right_alone[1]) / counts.n
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
    """Return the test of the difference in means on each task, and in the mean over the tasks.

    ``tasks`` maps each task to two arrays ``(seeds, n)``, for candidate and baseline: the values of
    n examples, such as the nDCG of queries. Each resample draws examples with replacement, the same
    ones for all seeds. ``by_seed`` says that seed i of both systems is the same.
    """
    differences: dict[str, _Differences] = {}
    for task, (candidate, baseline) in tasks.items():
        values = np.vstack([candidate, baseline]).astype(np.float64)
        resampled = resample_means(task, values, n_resamples=n_resamples, seed=seed)
        # (seeds of the candidate, then of the baseline; 1 + R)
        scores = np.hstack([values.mean(axis=1, keepdims=True), resampled])
        candidate_scores = scores[: len(candidate)]
        baseline_scores = scores[len(candidate) :]
        gains = candidate_scores.mean(axis=0) - baseline_scores.mean(axis=0)
        differences[task] = _Differences(
            observed=float(gains[0]),
            resampled=gains[1:],
            n_pairs=values.shape[1],
            seed_scores=(candidate_scores, baseline_scores),
        )
    return _tests(differences, by_seed=by_seed)


def _tests(
    tasks: Mapping[str, _Differences], *, by_seed: bool, progress: Progress = SILENT
) -> Tests:
    """Return the test of each task, and that of the mean over the tasks."""
    if not tasks:
        raise ValueError("need at least one task")
    differences = list(tasks.values())
    seed_scores = [task.seed_scores for task in differences if task.seed_scores is not None]
    mean_scores = None
    if seed_scores:
        candidates, baselines = zip(*seed_scores, strict=True)
        mean_scores = np.mean(candidates, axis=0), np.mean(baselines, axis=0)
    over_tasks = _Differences(
        observed=float(np.mean([task.observed for task in differences])),
        resampled=np.mean([task.resampled for task in differences], axis=0),
        n_pairs=sum(task.n_pairs for task in differences),
        seed_scores=mean_scores,
    )
    tests = {}
    for name, task in tasks.items():
        if defined := task.where_defined(name, progress):
            tests[name] = defined.test(by_seed=by_seed)
    # A single task and the average have the same resamples, so one warning is enough.
    defined = over_tasks.where_defined("average", progress if len(tasks) > 1 else SILENT)
    return tests, None if defined is None else defined.test(by_seed=by_seed)


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

    - Holm multiplies the i-th smallest of m p-values by m - i + 1. Then it raises each product to
      at least that of the next smaller p-value: (0.01, 0.04, 0.03) becomes (0.03, 0.06, 0.06).
    - Benjamini-Hochberg multiplies the i-th smallest by m / i. Then it lowers each product to at
      most that of the next larger p-value: (0.01, 0.04, 0.03) becomes (0.03, 0.04, 0.04).
    """
    p = np.asarray(p_values, dtype=np.float64)
    if correction is Correction.NONE or p.size == 0:
        return list(p_values)
    m = p.size
    order = np.argsort(p, kind="stable")
    if correction is Correction.HOLM:
        monotone = np.maximum.accumulate(p[order] * (m - np.arange(m)))
    else:
        scaled = p[order] * m / np.arange(1, m + 1)
        monotone = np.minimum.accumulate(scaled[::-1])[::-1]  # from the largest down
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(monotone, 1.0)
    return [float(value) for value in adjusted]
