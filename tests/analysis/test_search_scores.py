"""Intervals of search scores and paired tests of models over the queries."""

import numpy as np
import pytest
from scipy import stats

from simcse_cli.analysis.search_scores import (
    interval_note,
    score_rows,
    score_table,
    search_tests,
    verdict_notes,
)
from simcse_cli.evaluation.retrieval import RetrievalScores, score_retrieval


def scores_of(ndcg):
    values = np.asarray(ndcg, dtype=float)[:, None]
    return RetrievalScores(values, values, values, values)


def random_scores(shift, n=400, seed=0):
    rng = np.random.default_rng(seed)
    return np.clip(rng.uniform(size=n) + shift, 0, 1)


def test_the_interval_is_that_of_scipys_bootstrap():
    values = random_scores(0.0)
    (row,) = score_rows({"m": scores_of(values)}, [1])
    found = row["ci"]["ndcg@1"]
    peer = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=9999, rng=np.random.default_rng(1)
    ).confidence_interval
    assert (found["low"], found["high"]) == pytest.approx((peer.low, peer.high), abs=0.004)
    assert row["ndcg@1"] == values.mean()
    low, high = 100 * found["low"], 100 * found["high"]
    expected = f"95% intervals of nDCG@1 over the queries: m {low:.2f} to {high:.2f}"
    assert interval_note([row], "ndcg@1", "nDCG@1") == expected


def test_models_are_tested_on_the_same_queries():
    base = random_scores(0.0)
    better = np.clip(base + 0.05, 0, 1)
    scores = {"base": scores_of(base), "same": scores_of(base), "better": scores_of(better)}
    tests = search_tests(scores, {}, rank=1)
    assert list(tests) == ["same", "better"]
    assert (tests["same"].difference, tests["same"].p_value) == (0.0, 1.0)
    assert tests["better"].difference == pytest.approx((better - base).mean())
    assert tests["better"].n_pairs == 400

    same, gain = verdict_notes(tests, "base", "nDCG@1")
    assert same == "same: no difference from base that 400 queries could show (nDCG@1, p = 1)"
    low, high = 100 * tests["better"].low, 100 * tests["better"].high
    # Holm doubles the smaller of two p-values: 2 * 2 / 2001.
    words = f"better: better than base by {low:.1f} to {high:.1f} points (nDCG@1, p = 0.002)"
    assert gain == words


def test_the_seeds_of_a_folder_are_one_system_paired_by_seed():
    gains = (0.03, 0.05, 0.04)
    scores, groups = {}, {}
    for name, shifts in (("base", (0.0, 0.0, 0.0)), ("new", gains)):
        for seed, shift in enumerate(shifts, start=1):
            label = f"{name}/seed-{seed}"
            scores[label] = scores_of(0.5 + shift + np.tile([-0.01, 0.01], 50))
            groups[label] = name
    tests = search_tests(scores, groups, rank=1)
    assert list(tests) == ["new"]
    found = tests["new"]
    assert (found.n_seeds, found.difference) == (3, pytest.approx(0.04))
    assert found.p_seeds == pytest.approx(stats.ttest_1samp(gains, 0).pvalue)
    (note,) = verdict_notes(tests, "base", "nDCG@1")
    assert note.startswith("new: better than base by 1.5 to 6.5 points (nDCG@1, p = 0.02")


@pytest.mark.parametrize(("last", "headings"), [(2, ["MRR@3", "MRR@2"]), (3, ["MRR@3"])])
def test_mrr_has_one_column_for_each_depth(last, headings):
    scores = {"one": score_retrieval(np.array([[0, 1, 2], [2, 1, 0]]), [{0: 1.0}, {1: 1.0}])}
    table = score_table(score_rows(scores, [1, last]), {}, {}, [1, last], 3, [])
    assert [each.heading for each in table.columns if "MRR" in each.heading] == headings
