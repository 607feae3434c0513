"""Entries side by side: differences, levelled averages, settings that differ, the front, the check."""

from pathlib import Path

import numpy as np
import pytest

from comparison.cases import entry, published, write_run
from simcse_cli.comparison.compare import comparison_tables
from simcse_cli.comparison.entries import load_entries
from simcse_cli.comparison.join import add_means, front_labels, is_pareto_optimal, join, setting_mismatches
from simcse_cli.errors import ConfigError
from simcse_cli.settings.choices import STS_TASKS


def test_differences_are_score_minus_reference() -> None:
    row = published("simcse.5", "SimCSE-BERT-base", "unsupervised")
    scores = {name: row.scores[name] + 0.01 for name in STS_TASKS}
    ours = entry("ours", scores={**scores, "average": row.scores["average"] + 0.01})
    comparison = join([row, ours], reference=row)
    assert comparison.measures == (*STS_TASKS, "average")
    assert comparison.differences(ours) == pytest.approx(dict.fromkeys(comparison.measures, 0.01))
    assert comparison.warnings == ()


def test_averages_are_levelled_to_the_shared_tasks() -> None:
    row = published("simcse.5", "SimCSE-BERT-base", "unsupervised")
    ours = entry("ours", scores={"STS12": 0.7, "STS13": 0.8, "average": 0.75})
    comparison = join([row, ours], reference=row)
    assert comparison.entries[0].scores["average"] == pytest.approx((0.6840 + 0.8241) / 2)
    assert comparison.entries[1].scores["average"] == pytest.approx(0.75)
    assert comparison.warnings == ("the entries hold different tasks: Avg. is over STS12, STS13",)


def test_complete_averages_stay_as_stated() -> None:
    row = published("simcse.5", "SBERT-base")
    headline = published("v1.headline", "SBERT")
    comparison = join([row, headline], reference=row)
    assert comparison.entries[0].scores["average"] == 0.7489  # as printed, although the row's mean is 74.86
    assert comparison.warnings == ()


def test_average_of_one_shared_task_is_left_out() -> None:
    row = published("simcse.5", "SBERT-base")
    comparison = join([row, entry("ours", scores={"STS12": 0.7, "average": 0.7})], reference=row)
    assert comparison.measures == ("STS12",)
    assert "left out" in comparison.warnings[0]


def test_nothing_in_common_says_what_each_has() -> None:
    row = published("simcse.5", "SBERT-base")
    with pytest.raises(
        ConfigError, match=r"nothing to compare: simcse\.5: SBERT-base .* has STS12.*ours has STS-B dev"
    ):
        join([row, entry("ours", scores={"STSBenchmark-dev": 0.8})], reference=row)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"aggregation": "wmean"}, "aggregation is all in a; wmean in b"),
        ({"metric": "pearson"}, "metric is spearman in a; pearson in b"),
        ({"pooler": "avg"}, "pooler is cls in a; avg in b"),
        ({"split": "dev"}, "split is test in a; dev in b"),
    ],
)
def test_unlike_settings_say_what_differs(settings: dict[str, str], expected: str) -> None:
    same = {"aggregation": "all", "metric": "spearman", "pooler": "cls", "split": "test"}
    a, b = entry("a", settings=same), entry("b", settings=same | settings)
    assert setting_mismatches([a, b], ["STS12"]) == [f"unlike settings: {expected}"]
    assert setting_mismatches([a, a], ["STS12"]) == []


def test_aggregation_does_not_matter_for_single_test_sets() -> None:
    a, b = entry("a", settings={"aggregation": "all"}), entry("b", settings={"aggregation": "mean"})
    assert setting_mismatches([a, b], ["STSBenchmark", "SICKRelatedness"]) == []


def test_other_dev_data_than_the_published_is_unlike(tmp_path: Path) -> None:
    row = published("simcse.3", "p=0.1")
    (run,) = load_entries(str(write_run(tmp_path / "run")))
    (warning,) = join([row, run], reference=row).warnings
    assert "dev data is STS-B dev in simcse.3: p=0.1; sts-dev.csv (abcdef01) in run" in warning


def test_columns_of_the_reference_alone_stay_in_the_scores_and_out_of_the_differences() -> None:
    run = entry("run", scores={"STS12": 0.7, "STSBenchmark-dev": 0.8, "uniformity": -2.0})
    variant = entry("run [wmean]", scores={"STS12": 0.71})
    scores, differences = comparison_tables(join([run, variant], reference=run))
    assert [column.key for column in scores.columns] == ["system", "STS12", "STSBenchmark-dev", "uniformity"]
    assert [column.key for column in differences.columns] == ["system", "STS12"]


def test_no_table_of_differences_where_no_line_shares_a_score_with_the_reference() -> None:
    run, other = entry("run", scores={}), entry("other", scores={"STS12": 0.7, "uniformity": -2.0})
    assert [table.title for table in comparison_tables(join([run, other], reference=run))] == ["Scores"]


def test_pareto_front_keeps_what_no_other_beats() -> None:
    points = {"a": (0.8, 0.9), "b": (0.9, 0.8), "c": (0.8, 0.8), "d": (0.9, 0.8), "e": (0.7, 0.95)}
    entries = [entry(name, scores={"average": x, "transfer-average": y}) for name, (x, y) in points.items()]
    assert front_labels(entries, ["average", "transfer-average"]) == {"a", "b", "d", "e"}


def test_pareto_front_wants_alignment_and_uniformity_low() -> None:
    entries = [
        entry("good", scores={"alignment": 0.1, "uniformity": -3.0}),
        entry("bad", scores={"alignment": 0.2, "uniformity": -2.0}),
        entry("absent", scores={"alignment": 0.0}),
    ]
    assert front_labels(entries, ["alignment", "uniformity"]) == {"good"}


def test_check_judges_means_and_single_entries_both_ways() -> None:
    row = published("simcse.3", "p=0.1")
    repeated = [entry("ours", scores={"STSBenchmark-dev": score}) for score in (0.80, 0.85)]
    single = entry("low", scores={"STSBenchmark-dev": 0.819})
    comparison = join([row, *add_means([*repeated, single])], reference=row)
    assert [one.label for one in comparison.checked()] == ["ours (mean of 2)", "low"]
    assert [found["label"] for found in comparison.check(0.005).outside] == ["low"]
    assert comparison.check(0.006).outside == []


def test_pareto_optimal_points_of_known_points():
    points = np.array([[0, 3], [1, 1], [3, 0], [2, 2], [1, 1], [0, 4]], dtype=float)
    assert is_pareto_optimal(points).tolist() == [True, True, True, False, True, False]


def test_pareto_optimal_points_equal_the_double_loop():
    points = np.random.default_rng(4).integers(0, 6, size=(40, 2)).astype(float)
    oracle = [
        not any((other <= point).all() and (other < point).any() for other in points) for point in points
    ]
    assert is_pareto_optimal(points).tolist() == oracle
