"""Joining runs, results and published rows: what is read, merged, averaged, warned about and marked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comparison.cases import write_run, write_sts_result, write_transfer_result
from simcse_cli.choices import STS_TASKS, Aggregation, Metric
from simcse_cli.comparison.changes import changed_pairs, changed_predictions, changed_settings, rank_errors
from simcse_cli.comparison.entries import Entry, EntryKind, add_means, from_published, merge_parts
from simcse_cli.comparison.join import front_labels, join, setting_mismatches
from simcse_cli.comparison.published import load_table
from simcse_cli.comparison.results import StsView, read_results
from simcse_cli.comparison.sources import load_entries
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.predictions import SubsetPairs, TaskPredictions


def entry(label: str, **fields: Any) -> Entry:
    return Entry(label, fields.pop("kind", EntryKind.RESULT), f"{label}.json", **{"scores": {}, **fields})


def published(table: str, row: str, group: str | None = None) -> Entry:
    return from_published(load_table(table).system(row, group=group))


# reading


def test_sts_result_keeps_scores_and_leaves_missing_tasks_out(tmp_path: Path) -> None:
    path = write_sts_result(tmp_path / "a.json", {"STS12": 0.7, "STS13": None, "STSBenchmark": 0.8})
    (found,) = load_entries(str(path))
    assert found.label == "a"
    assert {k: v for k, v in found.scores.items() if k != "seconds"} == {
        "STS12": 0.7,
        "STSBenchmark": 0.8,
        "average": pytest.approx(0.75),
    }
    assert found.settings["aggregation"] == "all"


def test_sts_result_is_read_under_another_aggregation(tmp_path: Path) -> None:
    path = write_sts_result(tmp_path / "a.json", {"STS12": 0.7})
    view = StsView(aggregation=Aggregation.WMEAN, metric=Metric.PEARSON)
    (found,) = load_entries(str(path), view=view)
    assert found.scores["STS12"] == pytest.approx(0.7 - 0.03)
    assert (found.settings["aggregation"], found.settings["metric"]) == ("wmean", "pearson")


def test_dev_split_gets_measures_of_its_own(tmp_path: Path) -> None:
    (found,) = load_entries(str(write_sts_result(tmp_path / "a.json", {"STSBenchmark": 0.8}, split="dev")))
    assert found.scores["STSBenchmark-dev"] == 0.8
    assert "STSBenchmark" not in found.scores


def test_transfer_result_has_test_and_dev_averages() -> None:
    tasks = {"MR": {"accuracy": 0.8, "dev_accuracy": 0.82}, "CR": {"accuracy": 0.9, "dev_accuracy": 0.88}}
    (found,) = read_results(
        {"suite": "transfer", "protocol": "fast", "tasks": tasks}, label="a", source="a.json"
    )
    assert found.scores["transfer-average"] == pytest.approx(0.85)
    assert found.scores["transfer-average-dev"] == pytest.approx(0.85)
    assert found.settings["transfer protocol"] == "fast, probe senteval"


def test_mteb_category_counts_only_when_all_its_tasks_were_scored() -> None:
    result = {
        "suite": "mteb",
        "tasks": {"STS12": {"score": 0.7}, "STS13": None},
        "categories": {"STS": {"n_tasks": 2, "n_scored": 1, "score": 0.7}},
        "n_tasks": 2,
        "n_scored": 1,
        "average": 0.7,
    }
    (found,) = read_results(result, label="a", source="a.json")
    assert found.scores == {"mteb-STS12": 0.7}


def test_geometry_of_several_models_gives_an_entry_each() -> None:
    rows = [{"model": name, "alignment": 0.2, "uniformity": -2.0, "pooler": "avg"} for name in ("m", "n")]
    result = {"analysis": "geometry", "data": "STS-B", "models": rows}
    assert [one.label for one in read_results(result, label="g", source="g.json")] == ["g: m", "g: n"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "no result file"),
        ('{"suite": "chess"}', "holds chess, need one of sts, transfer, mteb, geometry"),
        ('{"suite": "sts", "split": "test"}', "not a whole sts result"),
        ('{"suite": ', "line 1: not valid JSON"),
    ],
)
def test_file_that_is_no_result_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        load_entries(str(path))
    assert "bad.json" in caught.value.message


def test_run_folder_gives_dev_score_and_geometry_of_the_best_step(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", best_score=0.84, best_step=20)
    (found,) = load_entries(str(run))
    assert found.kind is EntryKind.RUN
    assert found.scores == {"STSBenchmark-dev": 0.84, "alignment": 0.2, "uniformity": -2.5}
    assert found.seed == 1
    assert found.config["data.n_examples"] == 100


def test_result_files_in_a_run_folder_are_read_with_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", best_score=0.84)
    write_sts_result(run / "sts.json", {"STS12": 0.7})
    (found,) = load_entries(f"ours={run}")
    assert found.label == "ours"
    assert found.scores["STS12"] == 0.7
    assert found.scores["STSBenchmark-dev"] == 0.84


def test_folder_of_runs_stands_for_the_runs_in_it(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / "all" / f"seed-{seed}", seed=seed)
    assert [one.label for one in load_entries(str(tmp_path / "all"))] == ["all/seed-1", "all/seed-2"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no run\.json"):
        load_entries(str(tmp_path / "empty"))


def test_unfinished_run_is_remarked(tmp_path: Path) -> None:
    (found,) = load_entries(str(write_run(tmp_path / "run", status="interrupted")))
    assert found.remarks == ("run is interrupted, step 20 of 20",)


# repetitions and parts


def test_parts_of_one_label_are_joined() -> None:
    sts = entry("ours", scores={"STS12": 0.7, "seconds": 3.0})
    transfer = entry("ours", scores={"MR": 0.8, "seconds": 4.0})
    (joined,) = merge_parts([sts, transfer])
    assert joined.scores == {"STS12": 0.7, "MR": 0.8, "seconds": 4.0}


def test_repetitions_get_their_mean_and_sample_deviation() -> None:
    lines = add_means([entry("ours", scores={"STS12": score}) for score in (0.70, 0.72, 0.77)])
    assert [line.label for line in lines] == ["ours [1]", "ours [2]", "ours [3]", "ours (mean of 3)"]
    assert lines[-1].scores["STS12"] == pytest.approx(0.73)
    assert lines[-1].deviations["STS12"] == pytest.approx(np.std([0.70, 0.72, 0.77], ddof=1))


def test_runs_that_differ_in_the_seed_only_are_repetitions(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"base-seed-{seed}", seed=seed) for seed in (1, 2)]
    other = write_run(tmp_path / "warm", seed=1, lr=1e-4)
    lines = add_means([one for run in (*runs, other) for one in load_entries(str(run))])
    assert [line.label for line in lines] == ["base-seed-1", "base-seed-2", "base (mean of 2)", "warm"]


# the table


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
    with pytest.raises(ConfigError, match=r"simcse\.5: SBERT-base .* has STS12.*ours has STS-B dev"):
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
    assert "dev data is STS-B dev in simcse.3: p=0.1; own-dev.csv (abcdef01) in run" in warning


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
    assert [found.label for found in comparison.check(0.005).outside] == ["low"]
    assert comparison.check(0.006).outside == []


# what changed


def test_changed_settings_are_those_that_differ() -> None:
    changes = changed_settings({"lr": 1.0, "seed": 1}, {"lr": 2.0, "seed": 1, "patience": 3})
    assert [(change.key, change.before, change.after) for change in changes] == [
        ("lr", 1.0, 2.0),
        ("patience", None, 3),
    ]


def test_rank_errors_closed_form() -> None:
    assert rank_errors(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])).tolist() == [1.0, 0.0, 1.0]
    assert rank_errors(np.array([0.3, 0.1, 0.1]), np.array([5.0, 0.0, 0.0])).tolist() == [0.0, 0.0, 0.0]


def test_changed_pairs_find_the_pair_that_moved() -> None:
    gold = np.arange(5.0)
    texts = tuple(f"sentence {i}" for i in range(5))
    right_order = SubsetPairs(gold, gold / 5, texts, texts)
    last_first = SubsetPairs(gold, np.array([0.1, 0.2, 0.3, 0.4, 0.0]))
    (gain,) = changed_pairs({"STS12": {"s": last_first}}, {"STS12": {"s": right_order}}, n=1)
    assert (gain.index, gain.left, gain.gain) == (4, "sentence 4", 1.0)
    (loss,) = changed_pairs({"STS12": {"s": right_order}}, {"STS12": {"s": last_first}}, n=1)
    assert loss.gain == -1.0


def test_changed_pairs_pass_over_other_data() -> None:
    a = SubsetPairs(np.array([1.0, 2.0]), np.array([0.1, 0.2]))
    b = SubsetPairs(np.array([1.0, 3.0]), np.array([0.1, 0.2]))
    assert changed_pairs({"STS12": {"s": a}}, {"STS12": {"s": b}}, n=3) == []


def test_pair_scores_are_found_beside_the_result(tmp_path: Path) -> None:
    path = write_sts_result(tmp_path / "a.json", {"STS12": 0.7})
    assert load_entries(str(path))[0].pair_scores is None
    (tmp_path / "a.pairs.jsonl").write_text("{}\n")
    assert load_entries(str(path))[0].pair_scores == tmp_path / "a.pairs.jsonl"
    (tmp_path / "named.jsonl").write_text("{}\n")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pair_scores": "named.jsonl"}))
    assert load_entries(str(path))[0].pair_scores == tmp_path / "named.jsonl"


def test_predictions_are_found_beside_the_result_and_joined_with_its_pairs(tmp_path: Path) -> None:
    path = write_transfer_result(tmp_path / "t.json", {"MR": [0]})
    (entry,) = load_entries(f"ours={path}")
    assert entry.predictions == tmp_path / "t.predictions.jsonl"
    sts = write_sts_result(tmp_path / "s.json", {"STS12": 0.7})
    (tmp_path / "s.pairs.jsonl").write_text("{}\n")
    (joined,) = merge_parts([*load_entries(f"ours={sts}"), entry])
    assert (joined.pair_scores, joined.predictions) == (tmp_path / "s.pairs.jsonl", entry.predictions)


def predictions(wrong: list[int], n: int = 8) -> TaskPredictions:
    gold = np.arange(n) % 2
    predicted = gold.copy()
    predicted[wrong] ^= 1
    return TaskPredictions(gold, predicted, tuple(map(str, range(n))))


@pytest.mark.parametrize(("n", "gained", "lost"), [(0, 0, 0), (1, 1, 0), (2, 1, 1), (4, 3, 1), (99, 5, 1)])
def test_changed_predictions_are_half_losses_where_there_are_enough(n: int, gained: int, lost: int) -> None:
    before = {"MR": predictions([0, 1, 2]), "CR": predictions([3, 4]), "MPQA": predictions([0])}
    after = {"MR": predictions([7]), "CR": predictions([]), "MPQA": predictions([], n=6)}
    changes = changed_predictions(before, after, n=n)
    assert [change.is_gain for change in changes] == [True] * gained + [False] * lost
    in_turn = [("MR", 0), ("CR", 3), ("MR", 1), ("CR", 4), ("MR", 2)]
    assert [(change.task, change.index) for change in changes[:gained]] == in_turn[:gained]
    if lost:
        last = changes[-1]
        assert (last.gold, last.predicted_before, last.predicted_after, last.left) == (1, 1, 0, "7")
