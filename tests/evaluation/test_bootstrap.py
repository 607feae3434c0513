import numpy as np
import pytest
from scipy.stats import spearmanr

from simcse_cli.choices import Aggregation, Metric, Probe, TransferProtocol
from simcse_cli.evaluation.bootstrap import (
    interval,
    resample_accuracy,
    resample_sts,
    sts_intervals,
    transfer_intervals,
)
from simcse_cli.evaluation.correlation import pearson
from simcse_cli.evaluation.sts import StsResult, StsTaskScore, SubsetScore
from simcse_cli.evaluation.transfer import TransferResult, TransferScore


def scores(n, seed, noise=1.0):
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 11, n) / 2
    return gold + noise * rng.normal(size=n), gold


def test_interval_takes_the_central_share():
    found = interval(np.arange(101.0), level=0.9)
    assert (found.low, found.high, found.level) == (pytest.approx(5), pytest.approx(95), 0.9)


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
        covered.append(found.low <= 0.6 <= found.high)
    assert 0.88 <= np.mean(covered) <= 0.99


def test_resampled_accuracy_has_the_binomial_mean_and_spread():
    correct = np.array([True] * 80 + [False] * 20)
    resampled = resample_accuracy("MR", correct, n_resamples=20_000)
    assert resampled.mean() == pytest.approx(0.8, abs=2e-3)
    assert resampled.std() == pytest.approx(np.sqrt(0.8 * 0.2 / 100), abs=1e-3)


def test_perfect_accuracy_has_no_spread():
    assert np.all(resample_accuracy("MR", np.ones(10, dtype=bool)) == 1)


def test_sts_intervals_hold_the_scores_and_leave_missing_tasks_out():
    tasks = {
        name: StsTaskScore(name, "test", {"test": SubsetScore(*scores(200, seed))})
        for seed, name in enumerate(("STSBenchmark", "SICKRelatedness"))
    }
    result = StsResult(Metric.SPEARMAN, Aggregation.ALL, "test", {**tasks, "STS12": None}, {}, 1.0, 1)
    found = sts_intervals(result, n_resamples=200)
    assert list(found.tasks) == ["STSBenchmark", "SICKRelatedness"]
    for name, task in tasks.items():
        assert found.tasks[name].low < task.score(Metric.SPEARMAN, Aggregation.ALL) < found.tasks[name].high
    assert found.average.low < result.average < found.average.high
    payload = result.to_json()
    found.add_to(payload)
    assert payload["tasks"]["STSBenchmark"]["ci"] == found.tasks["STSBenchmark"].to_json()
    assert payload["average_ci"]["level"] == 0.95


def test_average_of_independent_tasks_has_a_narrower_interval():
    rng = np.random.default_rng(0)
    found = {
        name: TransferScore(
            0.8, 0.8, None, (), np.ones(500, dtype=int), (rng.uniform(size=500) < 0.8).astype(int)
        )
        for name in ("MR", "CR", "SUBJ", "MPQA")
    }
    intervals = transfer_intervals(TransferResult(TransferProtocol.FAST, Probe.SENTEVAL, found, 1.0))
    widths = [each.high - each.low for each in intervals.tasks.values()]
    assert intervals.average.high - intervals.average.low == pytest.approx(np.mean(widths) / 2, rel=0.1)
