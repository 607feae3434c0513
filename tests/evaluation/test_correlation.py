import numpy as np
import pytest
from scipy import stats

from simcse_cli.evaluation.correlation import (
    aggregate,
    correlate,
    cosine_rows,
    pearson,
    spearman,
    strata,
)
from simcse_cli.settings.choices import Aggregation, Metric


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    return x, np.round(x + rng.normal(size=200), 1)


def test_pearson_and_spearman_agree_with_scipy_under_ties(pairs):
    x, y = pairs
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_spearman_depends_on_order_alone(pairs):
    x, y = pairs
    assert spearman(np.exp(x), y) == pytest.approx(spearman(x, y), abs=1e-12)


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0, 2.0]])
def test_undefined_correlations_are_none(values):
    assert pearson(values, values) is None
    assert spearman(values, values) is None


def test_perfect_and_reversed_order():
    assert spearman([1, 2, 3], [10, 20, 25]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="2 and 3 values"):
        pearson([1, 2], [1, 2, 3])


def test_cosine_of_zero_or_broken_vectors_is_zero():
    left = np.array([[1.0, 0.0], [0.0, 0.0], [np.nan, 1.0], [3.0, 4.0]])
    right = np.array([[0.0, 2.0], [1.0, 1.0], [1.0, 1.0], [6.0, 8.0]])
    np.testing.assert_allclose(cosine_rows(left, right), [0.0, 0.0, 0.0, 1.0])


def test_aggregations_differ_as_defined(pairs):
    x, y = pairs
    subsets = [(x[:150], y[:150]), (x[150:], y[150:] + 10)]
    scores = [stats.spearmanr(a, b).statistic for a, b in subsets]
    values = {a: aggregate(Metric.SPEARMAN, a, subsets) for a in Aggregation}
    assert values[Aggregation.MEAN] == pytest.approx(np.mean(scores))
    assert values[Aggregation.WMEAN] == pytest.approx((150 * scores[0] + 50 * scores[1]) / 200)
    joined = stats.spearmanr(
        np.concatenate([a for a, _ in subsets]), np.concatenate([b for _, b in subsets])
    )
    assert values[Aggregation.ALL] == pytest.approx(joined.statistic)


def test_one_undefined_subset_leaves_the_mean_undefined(pairs):
    x, y = pairs
    subsets = [(x, y), (np.ones(3), np.arange(3.0))]
    assert aggregate(Metric.SPEARMAN, Aggregation.MEAN, subsets) is None
    assert aggregate(Metric.SPEARMAN, Aggregation.ALL, subsets) is not None


@pytest.mark.parametrize(
    ("aggregation", "sizes", "weights"),
    [
        (Aggregation.ALL, [5], [1]),
        (Aggregation.MEAN, [2, 3], [1, 1]),
        (Aggregation.WMEAN, [2, 3], [2, 3]),
    ],
)
def test_strata_are_what_is_correlated_apart(aggregation, sizes, weights):
    gold = np.arange(5.0)
    parts, found = strata(aggregation, [(-gold[:2], gold[:2]), (-gold[2:], gold[2:])])
    assert [len(part[0]) for part in parts] == sizes
    assert found.tolist() == weights
    assert np.concatenate([part[1] for part in parts]).tolist() == gold.tolist()
    assert all((part[0] == -part[1]).all() for part in parts)


def test_two_values_are_enough_whatever_their_scale():
    assert pearson([0, 1], [3, 5]) == pytest.approx(1.0)
    assert pearson([0, 2], [5, 4]) == pytest.approx(-1.0)


def test_correlation_with_a_constant_is_undefined_though_its_mean_is_rounded():
    constant, other = [0.1] * 3, [1.0, 2.0, 4.0]
    assert np.ptp(np.array(constant) - np.mean(constant)) == 0
    assert np.any(np.array(constant) != np.mean(constant))
    assert pearson(constant, other) is None
    assert pearson(other, constant) is None


def test_correlations_do_not_pass_one_by_rounding():
    rows = np.random.default_rng(0).normal(size=(200, 5))
    assert max(pearson(row, 3 * row) for row in rows) == 1.0
    assert min(pearson(row, -3 * row) for row in rows) == -1.0


def test_values_that_overflow_and_no_subset_at_all_have_no_score():
    assert pearson([1e200, 2e200, 4e200], [1.0, 2.0, 3.0]) is None
    assert aggregate(Metric.SPEARMAN, Aggregation.ALL, []) is None


@pytest.mark.parametrize("metric", Metric)
def test_cosines_that_differ_by_rounding_alone_have_no_correlation(metric):
    gold = np.arange(3.0)
    assert correlate(metric, 1 - 2e-7 * gold, gold) is None
    assert aggregate(metric, Aggregation.ALL, [(1 - 2e-7 * gold, gold)]) is None
    assert correlate(metric, 1 - 1e-6 * gold, gold) == pytest.approx(-1)
    assert correlate(metric, 0 * gold, gold) is correlate(metric, [], []) is None
