"""Run folders and result files as entries."""

import json
from pathlib import Path

import pytest

from comparison.cases import write_run, write_sts_result, write_transfer_result
from simcse_cli.comparison.entries import EntryKind, StsView, load_entries, read_results
from simcse_cli.comparison.join import merge_parts
from simcse_cli.data.senteval import expected_files
from simcse_cli.errors import DataError
from simcse_cli.results.columns import label
from simcse_cli.settings.choices import Aggregation, Metric


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
        ('{"suite": "chess"}', "holds chess, need one of sts, transfer, mteb"),
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


@pytest.mark.parametrize(
    ("dev_file", "measure", "heading"),
    [
        ("data/rated.csv", "rated-dev", "rated dev"),
        ("own-dev.tsv", "own-dev", "own dev"),
        ("STSBenchmark/sts-dev.csv", "STSBenchmark-dev", "STS-B dev"),
    ],
)
def test_a_dev_file_that_is_not_that_of_sts_b_has_a_name_of_its_own(
    tmp_path: Path, dev_file: str, measure: str, heading: str
) -> None:
    run = write_run(tmp_path / "run", dev_file=dev_file)
    (found,) = load_entries(str(run))
    assert next(iter(found.scores)) == measure
    assert label(measure) == heading
    assert found.settings["dev data"] == f"{dev_file} (abcdef01)"


def test_the_published_dev_file_is_known_under_any_name(tmp_path: Path) -> None:
    published = next(file.sha256 for file in expected_files() if file.path.endswith("sts-dev.csv"))
    (found,) = load_entries(str(write_run(tmp_path / "run", dev_file="my.csv", dev_sha256=published)))
    assert (found.scores["STSBenchmark-dev"], found.settings["dev data"]) == (0.8, "STS-B dev")


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
