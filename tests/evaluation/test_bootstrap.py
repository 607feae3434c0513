"""Resampled correlations against SciPy on the drawn data, intervals, paired tests, and corrections by hand."""

import re

import numpy as np
import pytest
from scipy import stats
from scipy.stats import spearmanr

from simcse_cli.evaluation.bootstrap import (
    Discordance,
    PairedSample,
    ResampledCorrelation,
    adjust,
    discordance,
    interval,
    mcnemar_exact,
    paired_accuracy_bootstrap,
    paired_bootstrap,
    paired_mean_bootstrap,
    resample_accuracy,
    resample_counts,
    resample_sts,
    t_test,
    with_intervals,
)
from simcse_cli.evaluation.correlation import aggregate, pearson
from simcse_cli.progress import SilentProgress
from simcse_cli.results.result import SuiteResult, TaskResult
from simcse_cli.settings.choices import Aggregation, Correction, Metric


def scores(n, seed, noise=1.0):
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 11, n) / 2
    return gold + noise * rng.normal(size=n), gold


def test_interval_takes_the_central_share():
    found = interval(np.arange(101.0), level=0.9)
    assert found == {"low": pytest.approx(5), "high": pytest.approx(95), "level": 0.9}


def test_resamples_are_correlations_of_drawn_pairs():
    subset = scores(30, 0)
    found = resample_sts(
        "STS12", [subset], metric=Metric.SPEARMAN, aggregation=Aggregation.ALL, n_resamples=25
    )
    rng = np.random.default_rng([0, *b"STS12"])
    columns = rng.integers(30, size=(30, 25))
    expected = [spearmanr(subset[0][drawn], subset[1][drawn]).statistic for drawn in columns.T]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("aggregation", [Aggregation.MEAN, Aggregation.WMEAN])
def test_means_resample_within_each_subset(aggregation):
    subsets = [scores(20, 1), scores(60, 2)]
    options = {"metric": Metric.PEARSON, "aggregation": aggregation, "n_resamples": 15}
    found = resample_sts("STS14", subsets, **options)
    rng = np.random.default_rng([0, *b"STS14"])
    rows = []
    for predicted, gold in subsets:
        columns = rng.integers(len(gold), size=(len(gold), 15))
        rows.append([pearson(predicted[drawn], gold[drawn]) for drawn in columns.T])
    weights = [20, 60] if aggregation is Aggregation.WMEAN else None
    np.testing.assert_allclose(found, np.average(rows, axis=0, weights=weights), atol=1e-12)


def test_draws_depend_on_task_and_seed_only():
    subset = scores(40, 3)

    def draw(task, seed):
        options = {"metric": Metric.SPEARMAN, "aggregation": Aggregation.ALL, "n_resamples": 10}
        return resample_sts(task, [subset], **options, seed=seed)

    assert np.array_equal(draw("STS12", 0), draw("STS12", 0))
    assert not np.array_equal(draw("STS12", 0), draw("STS12", 1))
    assert not np.array_equal(draw("STS12", 0), draw("STS13", 0))


def test_interval_covers_the_true_correlation_about_as_often_as_it_says():
    covered = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        x, noise = rng.normal(size=(2, 200))
        pair = (x, 0.6 * x + 0.8 * noise)
        options = {"metric": Metric.PEARSON, "aggregation": Aggregation.ALL, "n_resamples": 300}
        found = interval(resample_sts("t", [pair], **options, seed=seed))
        covered.append(found["low"] <= 0.6 <= found["high"])
    assert 0.88 <= np.mean(covered) <= 0.99


def test_resampled_accuracy_has_the_binomial_mean_and_spread():
    correct = np.array([True] * 80 + [False] * 20)
    resampled = resample_accuracy("MR", correct, n_resamples=20_000)
    assert resampled.mean() == pytest.approx(0.8, abs=2e-3)
    assert resampled.std() == pytest.approx(np.sqrt(0.8 * 0.2 / 100), abs=1e-3)


def test_perfect_accuracy_has_no_spread():
    assert np.all(resample_accuracy("MR", np.ones(10, dtype=bool)) == 1)


def test_intervals_hold_the_scores_and_leave_missing_tasks_out():
    subsets = {
        name: [scores(200, seed)] for seed, name in enumerate(("STSBenchmark", "SICKRelatedness"))
    }
    how = {"metric": Metric.SPEARMAN, "aggregation": Aggregation.ALL}
    tasks = {
        name: TaskResult(aggregate(*how.values(), pairs), 200) for name, pairs in subsets.items()
    }
    result = SuiteResult("sts", {}, {**tasks, "STS12": None})
    found = with_intervals(
        result, {name: resample_sts(name, pairs, **how) for name, pairs in subsets.items()}
    )
    for name in subsets:
        ends = found.tasks[name].extra["ci"]
        assert ends["low"] < tasks[name].score < ends["high"]
    payload = found.to_json()
    assert payload["tasks"]["STS12"] is None
    assert payload["average_ci"]["low"] < result.average < payload["average_ci"]["high"]
    assert payload["average_ci"]["level"] == 0.95


def test_average_of_independent_tasks_has_a_narrower_interval():
    names = ("MR", "CR", "SUBJ", "MPQA")
    correct = np.random.default_rng(0).uniform(size=(4, 500)) < 0.8
    resampled = {
        name: resample_accuracy(name, row) for name, row in zip(names, correct, strict=True)
    }
    result = SuiteResult("transfer", {}, {name: TaskResult(0.8, 500) for name in names})
    found = with_intervals(result, resampled).intervals()
    average = found.pop("average")
    widths = [each["high"] - each["low"] for each in found.values()]
    assert average["high"] - average["low"] == pytest.approx(np.mean(widths) / 2, rel=0.1)


ORACLES = {Metric.SPEARMAN: stats.spearmanr, Metric.PEARSON: stats.pearsonr}


def sample(n: int, *, noise: float, seed: int = 0) -> PairedSample:
    """Return pairs whose candidate is closer to gold than the baseline when ``noise`` is below 1."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 11, n) / 2
    return PairedSample(gold, gold + noise * 2 * rng.normal(size=n), gold + 2 * rng.normal(size=n))


def test_resample_counts_are_draws_of_n_with_replacement() -> None:
    blocks = list(resample_counts(1000, 900, np.random.default_rng(0)))
    counts = np.hstack(blocks)
    assert len(blocks) > 1
    assert counts.shape == (1000, 900)
    assert (counts.sum(axis=0) == 1000).all()
    # how often a pair is drawn is binomial: mean 1, variance 1 - 1/n
    assert counts.var() == pytest.approx(0.999, abs=0.01)


@pytest.mark.parametrize("metric", list(Metric))
def test_resampled_correlation_equals_scipy_on_the_drawn_pairs(metric: Metric) -> None:
    rng = np.random.default_rng(1)
    gold = rng.integers(0, 6, 80).astype(float)  # many ties
    scores = [(gold + rng.normal(size=80)).round(1), rng.normal(size=80)]
    counts = next(resample_counts(80, 20, rng))
    found = ResampledCorrelation(*scores, gold=gold, metric=metric)(counts)
    for column, drawn in enumerate(counts.T.astype(int)):
        for row, values in enumerate(scores):
            expected = ORACLES[metric](np.repeat(values, drawn), np.repeat(gold, drawn)).statistic
            assert found[row, column] == pytest.approx(expected, abs=1e-12)


def test_observed_correlation_is_that_of_the_data() -> None:
    gold, values = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.1, 0.3, 0.2, 0.4])
    assert ResampledCorrelation(values, gold=gold).observed().tolist() == [pytest.approx(0.8)]


def test_two_pairs_are_enough_to_correlate() -> None:
    assert ResampledCorrelation(
        np.array([1.0, 5.0]), gold=np.array([2.0, 3.0])
    ).observed().tolist() == [1.0]


def test_blocks_hold_one_column_at_least() -> None:
    assert next(resample_counts(500_000, 2, np.random.default_rng(0))).shape == (500_000, 1)


def test_defaults_are_a_thousand_resamples_two_thousand_for_a_test_and_seed_zero() -> None:
    subset, options = scores(20, 4), {"metric": Metric.PEARSON, "aggregation": Aggregation.ALL}
    drawn = resample_sts("STS12", [subset], **options)
    assert np.array_equal(
        drawn, resample_sts("STS12", [subset], **options, n_resamples=1000, seed=0)
    )
    correct = np.array([True] * 7 + [False] * 3)
    drawn = resample_accuracy("MR", correct)
    assert np.array_equal(drawn, resample_accuracy("MR", correct, n_resamples=1000, seed=0))
    paired = {"STS12": [sample(30, noise=0.8)]}
    assert paired_bootstrap(paired) == paired_bootstrap(paired, n_resamples=2000, seed=0)
    found = {"MR": Discordance(30, 20, 100)}
    expected = paired_accuracy_bootstrap(found, n_resamples=2000, seed=0)
    assert paired_accuracy_bootstrap(found) == expected
    resampled = resample_sts("STS12", [subset], **options)
    assert interval(resampled) == interval(resampled, level=0.95)


def test_constant_scores_correlate_with_nothing() -> None:
    correlation = ResampledCorrelation(np.ones(3), gold=np.array([1.0, 2.0, 3.0]))
    assert np.isnan(correlation.observed()).tolist() == [True]


@pytest.mark.parametrize("metric", list(Metric))
def test_a_resample_is_undefined_where_a_side_is_constant_up_to_rounding(metric: Metric) -> None:
    gold, scores = np.array([0.1, 0.1, 0.3]), np.array([0.2, 0.7, 0.7 + 1e-8])
    counts = np.array([[3, 0, 2, 1, 0, 1], [0, 3, 1, 0, 2, 1], [0, 0, 0, 2, 1, 1]], dtype=float)
    found = ResampledCorrelation(scores, gold=gold, metric=metric)(counts)
    assert np.isnan(found).tolist() == [[True, True, True, False, True, False]]


def test_undefined_resamples_are_left_out_of_intervals_and_counted() -> None:
    progress = SilentProgress()
    scores = {"few": np.array([0.2, np.nan, 0.4, 0.6]), "most": np.array([0.1] + 3 * [np.nan])}
    result = SuiteResult("sts", {}, {name: TaskResult(0.5, 3) for name in scores})
    found = with_intervals(result, scores, progress)
    assert found.intervals() == {"few": interval(np.array([0.2, 0.4, 0.6]))}
    assert progress.warnings == [
        "interval of few: 1 of 4 resamples have no correlation and are left out",
        "interval of most: 3 of 4 resamples have no correlation, so there is none",
        "interval of average: 3 of 4 resamples have no correlation, so there is none",
    ]


@pytest.mark.parametrize("seeds", [1, 3])
def test_undefined_resamples_are_left_out_of_paired_tests(seeds: int) -> None:
    gold = np.arange(3.0)
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, seeds, 3))
    progress = SilentProgress()
    pairs = PairedSample(gold, gold + noise[0], gold - 3 + noise[1])
    tests, mean = paired_bootstrap({"t": [pairs]}, n_resamples=100, progress=progress)
    # A resample holds one pair alone with probability 1/9.
    (warning,) = progress.warnings
    assert re.fullmatch(
        r"paired test of t: \d+ of 100 resamples have no correlation and .*", warning
    )
    assert tests["t"] == mean
    assert np.isfinite([mean.low, mean.high, mean.p_value, mean.p_decisive]).all()
    constant = PairedSample(gold, np.ones(3), gold)
    assert paired_bootstrap({"t": [constant]}, n_resamples=100) == ({}, None)


def test_resampled_correlation_refuses_unlike_lengths() -> None:
    with pytest.raises(ValueError, match="one length"):
        ResampledCorrelation(np.ones(3), gold=np.ones(4))
    with pytest.raises(ValueError, match="one length"):
        ResampledCorrelation(np.ones(4), np.ones(3), gold=np.ones(4))
    with pytest.raises(ValueError, match="at least 2"):
        ResampledCorrelation(np.ones(1), gold=np.ones(1))


def test_equal_models_differ_by_nothing() -> None:
    pairs = sample(50, noise=0.5)
    same = PairedSample(pairs.gold, pairs.baseline, pairs.baseline)
    tests, mean = paired_bootstrap({"STS12": [same]}, n_resamples=100)
    assert (tests["STS12"].difference, tests["STS12"].p_value) == (0.0, 1.0)
    assert mean == tests["STS12"]


def test_clearly_better_model_gets_the_smallest_p_value() -> None:
    tests, _ = paired_bootstrap({"STS12": [sample(400, noise=0.2)]}, n_resamples=199)
    found = tests["STS12"]
    assert found.p_value == pytest.approx(2 / 200)
    assert 0 < found.low < found.difference < found.high


def test_exchanging_the_models_mirrors_the_test() -> None:
    pairs = sample(120, noise=0.9)
    swapped = PairedSample(pairs.gold, pairs.baseline, pairs.candidate)
    there = paired_bootstrap({"STS12": [pairs]}, n_resamples=300)[1]
    back = paired_bootstrap({"STS12": [swapped]}, n_resamples=300)[1]
    assert back.difference == -there.difference
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
    assert back.p_value == pytest.approx(there.p_value)


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_observed_difference_is_that_of_the_aggregated_scores(aggregation: Aggregation) -> None:
    subsets = [sample(40, noise=0.5, seed=1), sample(90, noise=0.8, seed=2)]
    tests, _ = paired_bootstrap({"STS12": subsets}, aggregation=aggregation, n_resamples=20)

    def score(name: str) -> float:
        values = [(getattr(one, name), one.gold) for one in subsets]
        if aggregation is Aggregation.ALL:
            joined = [np.concatenate(side) for side in zip(*values, strict=True)]
            return float(stats.spearmanr(*joined).statistic)
        weights = [1, 1] if aggregation is Aggregation.MEAN else [40, 90]
        return float(
            np.average([stats.spearmanr(x, y).statistic for x, y in values], weights=weights)
        )

    assert tests["STS12"].difference == pytest.approx(
        score("candidate") - score("baseline"), abs=1e-12
    )
    assert tests["STS12"].n_pairs == 130


def test_mean_over_tasks_is_the_mean_of_their_differences() -> None:
    tasks = {"STS12": [sample(60, noise=0.5, seed=1)], "STS13": [sample(60, noise=1.5, seed=2)]}
    tests, mean = paired_bootstrap(tasks, n_resamples=50)
    assert mean.difference == pytest.approx(np.mean([test.difference for test in tests.values()]))
    alone, _ = paired_bootstrap({"STS13": tasks["STS13"]}, n_resamples=50)
    assert alone["STS13"] == tests["STS13"]  # a task's draws do not depend on the others


def test_p_values_are_uniform_when_the_models_are_equally_good() -> None:
    p_values = [
        paired_bootstrap({"t": [sample(60, noise=1.0, seed=seed)]}, n_resamples=200)[1].p_value
        for seed in range(150)
    ]
    # far coarser than a calibration study: a tenth below 0.1, half below 0.5
    assert 0.04 < np.mean(np.array(p_values) < 0.1) < 0.18
    assert 0.38 < np.mean(np.array(p_values) < 0.5) < 0.62


def test_paired_bootstrap_is_a_function_of_the_seed() -> None:
    tasks = {"STS12": [sample(60, noise=0.9)]}
    first, again, other = (
        paired_bootstrap(tasks, n_resamples=50, seed=seed)[1] for seed in (1, 1, 2)
    )
    assert first == again
    assert first.low != other.low


def test_paired_bootstrap_refuses_no_task() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        paired_bootstrap({})


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (Correction.HOLM, [0.03, 0.06, 0.06]),
        (Correction.BH, [0.03, 0.04, 0.04]),
        (Correction.NONE, [0.01, 0.04, 0.03]),
    ],
)
def test_adjust_by_hand(correction: Correction, expected: list[float]) -> None:
    assert adjust([0.01, 0.04, 0.03], correction) == pytest.approx(expected)
    assert adjust([], correction) == []


def test_adjust_bh_equals_scipy() -> None:
    p_values = np.random.default_rng(3).uniform(size=20)
    assert adjust(p_values.tolist(), Correction.BH) == pytest.approx(
        stats.false_discovery_control(p_values)
    )


def test_adjusted_p_values_are_at_most_one() -> None:
    assert adjust([0.9, 0.8], Correction.HOLM) == [1.0, 1.0]


def test_discordance_counts_who_is_right_alone() -> None:
    candidate = np.array([True, True, True, False, False])
    baseline = np.array([True, False, False, True, False])
    assert discordance(candidate, baseline) == Discordance(2, 1, 5)
    assert discordance(baseline, candidate) == Discordance(1, 2, 5)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((0, 0), 1.0),
        ((0, 5), 2 / 32),
        ((1, 9), 22 / 1024),
        ((7, 7), 1.0),
        ((3, 0), 0.25),
        ((0, 1), 1.0),
    ],
)
def test_mcnemar_is_the_closed_form(counts: tuple[int, int], expected: float) -> None:
    assert mcnemar_exact(Discordance(*counts, n=100)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("counts", [(3, 11), (40, 61), (250, 310), (1200, 1000), (0, 40)])
def test_mcnemar_equals_the_binomial_test_of_scipy_both_ways(counts: tuple[int, int]) -> None:
    expected = stats.binomtest(counts[0], sum(counts), 0.5).pvalue
    for order in (counts, counts[::-1]):
        assert mcnemar_exact(Discordance(*order, n=5000)) == pytest.approx(expected, rel=1e-9)


def test_accuracy_bootstrap_has_the_moments_of_the_difference() -> None:
    """The variance of one example's difference is b + c - (b - c)^2 with b and c as shares; the interval is normal."""
    found = Discordance(180, 120, 2000)
    test, mean = (
        paired_accuracy_bootstrap({"MR": found}, n_resamples=20_000)[part] for part in (0, 1)
    )
    b, c = 180 / 2000, 120 / 2000
    error = np.sqrt((b + c - (b - c) ** 2) / 2000)
    assert test["MR"].difference == pytest.approx(0.03)
    assert (test["MR"].low, test["MR"].high) == pytest.approx(
        (0.03 - 1.96 * error, 0.03 + 1.96 * error), abs=6e-4
    )
    assert test["MR"].p_value == pytest.approx(2 * stats.norm.sf(0.03 / error), abs=3e-4)
    assert mean == test["MR"]


def test_accuracy_bootstrap_equals_drawing_the_examples_themselves() -> None:
    rng = np.random.default_rng(0)
    candidate, baseline = rng.random((2, 60)) < np.array([[0.8], [0.6]])
    found = paired_accuracy_bootstrap({"CR": discordance(candidate, baseline)}, n_resamples=40_000)[
        1
    ]
    each = candidate.astype(float) - baseline
    drawn = each[rng.integers(0, 60, (40_000, 60))].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high), abs=1.01 / 60)
    assert found.p_value == pytest.approx(2 * (drawn <= 0).mean(), abs=5e-3)


def test_accuracy_bootstrap_of_the_mean_joins_independent_tasks() -> None:
    tasks = {"MR": Discordance(30, 10, 400), "CR": Discordance(0, 0, 200)}
    tests, mean = paired_accuracy_bootstrap(tasks)
    assert tests["CR"].p_value == 1.0
    assert (tests["CR"].low, tests["CR"].high) == (0.0, 0.0)
    assert mean.difference == pytest.approx(0.025)
    assert (mean.low, mean.high) == pytest.approx((tests["MR"].low / 2, tests["MR"].high / 2))
    assert mean.n_pairs == 600
    assert (
        paired_accuracy_bootstrap({"MR": tasks["MR"]})[0]["MR"] == tests["MR"]
    )  # whatever else is tested


def test_accuracy_bootstrap_turns_its_sign_with_the_order() -> None:
    one, other = (
        paired_accuracy_bootstrap({"MR": found})[1]
        for found in (Discordance(9, 4, 50), Discordance(4, 9, 50))
    )
    assert one.difference == -other.difference == pytest.approx(0.1)
    assert one.p_value == pytest.approx(other.p_value, abs=0.05)


def test_accuracy_bootstrap_needs_a_task() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        paired_accuracy_bootstrap({})


@pytest.mark.parametrize("by_seed", [True, False])
def test_the_t_test_over_seeds_is_that_of_scipy(by_seed) -> None:
    candidate, baseline = np.array([0.71, 0.75, 0.72, 0.8]), np.array([0.7, 0.73, 0.69, 0.71])
    of_scipy = (
        stats.ttest_rel(candidate, baseline)
        if by_seed
        else stats.ttest_ind(candidate, baseline, equal_var=False)
    )
    assert t_test(candidate, baseline, by_seed=by_seed) == pytest.approx(of_scipy.pvalue)
    assert t_test(candidate, candidate, by_seed=by_seed) == pytest.approx(1.0)


@pytest.mark.parametrize("by_seed", [True, False])
def test_seeds_and_examples_together_are_clarks_quasi_f(by_seed) -> None:
    """The oracle takes the parts of the variance from the table of hits, without any resampling."""
    rng = np.random.default_rng(1)
    n, hard = 400, 3 * rng.normal(size=(2, 1, 400))
    gain = np.array([0.15, 0.0])[:, None, None]
    skill = gain + rng.normal(scale=0.05, size=(2, 4, 1))
    candidate, baseline = rng.normal(size=(2, 4, n)) + hard + 5 * skill > 0
    found = paired_mean_bootstrap(
        {"MR": (candidate, baseline)}, n_resamples=40_000, by_seed=by_seed
    )[0]["MR"]

    hits = [candidate.astype(float), baseline.astype(float)]
    sides = [hits[0] - hits[1]] if by_seed else hits
    parts = [side.mean(axis=1).var(ddof=1) / 4 for side in sides]
    of_examples = (hits[0] - hits[1]).mean(axis=0).var(ddof=1) / n
    rest = sum((side - side.mean(axis=0)).var(axis=1).sum() / n / 12 for side in sides)
    of_examples -= rest
    variance = sum(parts) + of_examples
    freedom = variance**2 / (sum(part**2 for part in parts) / 3 + of_examples**2 / (n - 1))
    difference = hits[0].mean() - hits[1].mean()
    p_crossed = 2 * stats.t.sf(abs(difference) / variance**0.5, freedom)
    half = stats.t.ppf(0.975, freedom) * variance**0.5
    assert found.p_both == pytest.approx(p_crossed, rel=0.05)
    assert found.p_both > found.p_seeds
    assert (found.low, found.high) == pytest.approx(
        (difference - half, difference + half), rel=0.02
    )


def test_examples_never_lower_the_p_value_of_the_seeds_and_one_seed_has_none() -> None:
    correct = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=bool)
    found = paired_mean_bootstrap(
        {"MR": (np.repeat(correct, 100, axis=1), np.zeros((3, 400), dtype=bool))}, by_seed=True
    )[0]["MR"]
    assert found.p_seeds == pytest.approx(stats.ttest_1samp([0.75, 0.5, 0.25], 0).pvalue)
    assert found.p_both >= found.p_seeds
    single = paired_mean_bootstrap({"MR": (correct[:1], correct)})[0]["MR"]
    assert (single.n_seeds, single.p_seeds, single.p_both) == (None, None, None)
    assert single.p_decisive == single.p_value
