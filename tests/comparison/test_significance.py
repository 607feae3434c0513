"""Paired tests: which entry is which, and what is measured."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from comparison.cases import entry
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.comparison.significance import TaskTest, run_tests
from simcse_cli.progress import SILENT
from simcse_cli.results.examples import SubsetPairs, TaskPredictions, write_pair_scores, write_predictions

GOLD = np.array([0.0, 1, 2, 3, 4, 5])
NEAR, FAR = np.array([0.0, 1, 2, 3, 4, 50]), np.array([1.0, 0, 3, 2, 4, 5])


def paired(kind: str, baseline: Path, candidate: Path, **settings: str) -> list[TaskTest]:
    saved = [(entry("base", settings=settings), baseline), (entry("new", settings=settings), candidate)]
    comparison = SimpleNamespace(saved=lambda asked: saved if asked == kind else [])
    return run_tests(comparison, CompareOptions(resamples=50), SILENT)


@pytest.mark.parametrize(
    ("metric", "correlation"), [("spearman", stats.spearmanr), ("pearson", stats.pearsonr)]
)
def test_the_difference_is_candidate_minus_baseline_in_the_metric_of_the_baseline(
    tmp_path, metric, correlation
):
    for name, cosine in (("base", FAR), ("new", NEAR)):
        write_pair_scores(tmp_path / name, {"STS12": {"one": SubsetPairs(GOLD, cosine)}})
    (found,) = paired("pair_scores", tmp_path / "base", tmp_path / "new", metric=metric)
    assert (found.candidate, found.baseline, found.measure) == ("new", "base", "STS12")
    assert found.test.difference == pytest.approx(correlation(NEAR, GOLD)[0] - correlation(FAR, GOLD)[0])


def test_the_discordant_examples_are_counted_for_the_entry_that_is_right(tmp_path):
    gold = np.array([0, 1, 0, 1])
    for name, predicted in (("base", [1, 1, 1, 1]), ("new", [0, 1, 0, 0])):
        write_predictions(tmp_path / name, {"MR": TaskPredictions(gold, np.array(predicted))})
    (found,) = paired("predictions", tmp_path / "base", tmp_path / "new")
    assert found.test.difference == pytest.approx(0.75 - 0.5)
    counts = found.to_json()
    assert (counts["n_only_candidate"], counts["n_only_baseline"]) == (2, 1)
    assert counts["p_mcnemar"] == 1.0  # of one head or two in three throws, and of none or three
