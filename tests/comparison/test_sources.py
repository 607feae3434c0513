"""Run folders and result files as entries."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from comparison.cases import entry, write_run, write_sts_result, write_transfer_result
from simcse_cli.comparison.entries import (
    Entry,
    EntryKind,
    SavedExamples,
    ScoredData,
    add_missing,
    from_published,
    join_parts,
    load_entries,
    read_results,
    read_saved,
)
from simcse_cli.comparison.join import add_means, merge_parts
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.comparison.published import PublishedSystem
from simcse_cli.data.senteval import expected_files
from simcse_cli.errors import DataError
from simcse_cli.files.digests import digest
from simcse_cli.results.columns import label
from simcse_cli.results.examples import saved_facts
from simcse_cli.results.result import DEMO, PUBLISHED
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
    view = CompareOptions(aggregation=Aggregation.WMEAN, metric=Metric.PEARSON)
    (found,) = load_entries(str(path), view=view)
    assert found.scores["STS12"] == pytest.approx(0.7 - 0.03)
    assert (found.settings["aggregation"], found.settings["metric"]) == ("wmean", "pearson")


def test_dev_split_gets_measures_of_its_own(tmp_path: Path) -> None:
    (found,) = load_entries(
        str(write_sts_result(tmp_path / "a.json", {"STSBenchmark": 0.8}, split="dev"))
    )
    assert found.scores["STSBenchmark-dev"] == 0.8
    assert "STSBenchmark" not in found.scores


def test_transfer_result_has_test_and_dev_averages() -> None:
    tasks = {
        "MR": {"accuracy": 0.8, "dev_accuracy": 0.82},
        "CR": {"accuracy": 0.9, "dev_accuracy": 0.88},
    }
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
    rows = [
        {"model": name, "alignment": 0.2, "uniformity": -2.0, "pooler": "avg"}
        for name in ("m", "n")
    ]
    result = {"analysis": "geometry", "data": "STS-B", "models": rows}
    assert [one.label for one in read_results(result, label="g", source="g.json")] == [
        "g: m",
        "g: n",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "no result file"),
        ('{"suite": "chess"}', "holds chess, need one of sts, transfer, mteb"),
        ('{"suite": "sts", "split": "test"}', "not a whole sts result"),
        ('{"suite": ', "line 1: not valid JSON"),
        ('{"suite": "sts", "tasks": {}, "chosen_on": 5}', "chosen_on: 5, need a list"),
    ],
)
def test_file_that_is_no_result_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        load_entries(str(path))
    assert "bad.json" in caught.value.message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"dev_suite": "retrieval"}, None),
        ({"dev_suite": "retrieval", "queries": None}, "data.queries: None, need a text"),
        ({"dev_suite": "retrieval", "dev_split": "x"}, "data.dev_split: 'x', need a finite"),
        ({"dev_suite": "sts"}, None),
    ],
)
def test_a_run_record_without_what_its_suite_records_is_read_or_named(tmp_path, data, message):
    path = write_run(tmp_path / "run") / "run.json"
    record = json.loads(path.read_text())
    record["data"] |= data
    path.write_text(json.dumps(record))
    if message is None:
        assert len(load_entries(str(tmp_path / "run"))) == 1
        return
    with pytest.raises(DataError, match=message):
        load_entries(str(tmp_path / "run"))


def test_a_category_or_sweep_that_lacks_its_facts_has_no_score(tmp_path):
    mteb = {"suite": "mteb", "tasks": {"A": {"score": 0.5}}, "categories": {"c": {"score": 0.5}}}
    (found,) = read_results(mteb, label="a", source="a.json")
    assert set(found.scores) == {"mteb-A"}
    sweep = {"suite": "sweep", "dev_suite": [], "quantiles": {"max": 0.5}}
    assert len(read_results(sweep, label="a", source="a.json")) == 1


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
        ("dev.csv", "dev-dev", "dev set"),
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
    (found,) = load_entries(
        str(write_run(tmp_path / "run", dev_file="my.csv", dev_sha256=published))
    )
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
    assert [one.label for one in load_entries(str(tmp_path / "all"))] == [
        "all/seed-1",
        "all/seed-2",
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no run\.json"):
        load_entries(str(tmp_path / "empty"))


def test_unfinished_run_is_remarked(tmp_path: Path) -> None:
    (found,) = load_entries(str(write_run(tmp_path / "run", status="interrupted")))
    assert found.remarks == ("run is interrupted, step 20 of 20",)


def saved(*paths: Path) -> tuple[SavedExamples, ...]:
    return tuple(map(SavedExamples, paths))


def test_pair_scores_are_found_beside_the_result(tmp_path: Path) -> None:
    path = write_sts_result(tmp_path / "a.json", {"STS12": 0.7})
    assert load_entries(str(path))[0].pair_scores == ()
    (tmp_path / "a.pairs.jsonl").write_text("{}\n")
    assert load_entries(str(path))[0].pair_scores == saved(tmp_path / "a.pairs.jsonl")
    (tmp_path / "named.jsonl").write_text("{}\n")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pair_scores": "named.jsonl"}))
    assert load_entries(str(path))[0].pair_scores == saved(tmp_path / "named.jsonl")


def test_predictions_are_found_beside_the_result_and_joined_with_its_pairs(tmp_path: Path) -> None:
    path = write_transfer_result(tmp_path / "t.json", {"MR": [0]})
    (entry,) = load_entries(f"ours={path}")
    assert entry.predictions == saved(tmp_path / "t.predictions.jsonl")
    sts = write_sts_result(tmp_path / "s.json", {"STS12": 0.7})
    (tmp_path / "s.pairs.jsonl").write_text("{}\n")
    (joined,) = merge_parts([*load_entries(f"ours={sts}"), entry])
    assert (joined.pair_scores, joined.predictions) == (
        saved(tmp_path / "s.pairs.jsonl"),
        entry.predictions,
    )


def change(path: Path, **facts: Any) -> Path:
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    return path


@pytest.mark.parametrize(
    ("suite", "measure", "settings"),
    [
        ("sts", "STS12", {"metric": "pearson"}),
        ("sts", "STSBenchmark-dev", {"metric": "pearson", "dev data": "STS-B dev"}),
        ("transfer", "MR", {}),
        (None, "MR", {}),
    ],
)
def test_a_published_row_keeps_the_metric_of_sts_alone(suite, measure, settings) -> None:
    given = {"metric": "pearson"} | ({"suite": suite} if suite else {})
    row = PublishedSystem("simcse.5", "SBERT", "base", {measure: 0.5}, given)
    expected = Entry(
        "simcse.5: SBERT (base)", EntryKind.PUBLISHED, "simcse.5", {measure: 0.5}, settings
    )
    assert vars(from_published(row)) == vars(expected) | {"data": {measure: ScoredData(PUBLISHED)}}


def test_joined_parts_have_what_either_has_and_the_first_wins() -> None:
    facts: dict[str, dict[str, Any]] = {
        "a": {
            "scores": {"STS12": 0.5},
            "settings": {"pooler": "avg"},
            "intervals": {"STS12": (0.4, 0.6)},
        },
        "b": {
            "scores": {"MR": 0.7},
            "settings": {"pooler": "cls", "split": "test"},
            "intervals": {"MR": (0.6, 0.8)},
        },
    }
    single = {
        "config": {"lr": 1},
        "pair_scores": saved(Path("p")),
        "predictions": saved(Path("q")),
    }
    for first, second in ((single, {}), ({}, single)):
        a = entry("a", **facts["a"], **first, data={"STS12": ScoredData(DEMO)}, remarks=("one",))
        b = entry(
            "b", **facts["b"], **second, data={"MR": ScoredData(DEMO)}, remarks=("two",), seed=3
        )
        assert join_parts(a, b) == Entry(
            "a",
            EntryKind.RESULT,
            "a.json, b.json",
            {"STS12": 0.5, "MR": 0.7},
            {"pooler": "avg", "split": "test"},
            seed=3,
            intervals={"STS12": (0.4, 0.6), "MR": (0.6, 0.8)},
            data={"STS12": ScoredData(DEMO), "MR": ScoredData(DEMO)},
            remarks=("one", "two"),
            **single,
        )
    assert join_parts(entry("a", seed=0), entry("b", seed=3)).seed == 0


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {"STS12": 0.5, "STS13": 0.6, "average": 0.55, "seconds": 2.0, "MR": 0.7}),
        (
            {"average": 0.9, "seconds": 5.0},
            {"STS12": 0.5, "STS13": 0.6, "average": 0.55, "seconds": 2.0, "MR": 0.7},
        ),
        ({"STS13": 0.7}, None),
    ],
)
def test_a_result_adds_the_scores_that_a_run_lacks_unless_they_differ_in_one(
    changed, expected
) -> None:
    scores = {"STS12": 0.5, "STS13": 0.6, "average": 0.55, "seconds": 2.0}
    found = add_missing(
        entry("run", scores=scores), entry("result", scores=scores | {"MR": 0.7} | changed)
    )
    assert (found and found.scores) == expected


@pytest.mark.parametrize(
    ("measure", "may_differ"),
    [("mteb-average", True), ("transfer-average-dev", True), ("my-average", False)],
)
def test_only_averages_of_suites_may_differ(measure: str, may_differ: bool) -> None:
    run = entry("run", scores={measure: 0.5})
    found = add_missing(run, entry("result", scores={measure: 0.6, "MR": 0.7}))
    assert (found is not None) == may_differ


def test_what_stands_before_a_sign_is_a_label_unless_there_is_such_a_file(
    tmp_path, monkeypatch
) -> None:
    path = write_sts_result(tmp_path / "x=1.json", {"STS12": 0.7})
    assert [one.label for one in load_entries(str(path))] == ["x=1"]
    assert [one.label for one in load_entries(f"ours={path}")] == ["ours"]
    text = path.read_bytes()
    for item, expected in (("-", "standard input"), ("ours=-", "ours")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert [(one.label, one.source) for one in load_entries(item)] == [(expected, "-")]
    write_run(tmp_path / "all/seed-1")
    assert [one.label for one in load_entries(f"ours={tmp_path / 'all'}")] == ["ours"]
    assert load_entries(str(tmp_path / "all/seed-1"))[0].label == "seed-1"


def test_a_result_of_several_seeds_in_their_folder_is_read_by_seed(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"all/seed-{seed}", seed=seed)
    other = write_run(tmp_path / "all/other", seed=1)
    runs = []
    for seed, score in ((1, 0.7), (2, 0.8)):
        result = json.loads(write_sts_result(tmp_path / "one.json", {"STS12": score}).read_text())
        runs.append(result | {"seed": seed})
    (tmp_path / "all/sts.json").write_text(json.dumps({"suite": "sts", "runs": runs}))
    (tmp_path / "all/notes.json").write_text('{"text": "no result"}')
    found = {one.label: one.scores.get("STS12") for one in load_entries(str(tmp_path / "all"))}
    assert found == {"all/other": None, "all/seed-1": 0.7, "all/seed-2": 0.8}
    assert [one.seed for one in load_entries(str(tmp_path / "all/sts.json"))] == [1, 2]
    write_sts_result(other / "a.json", {"STS12": 0.7})
    write_sts_result(other / "b.json", {"STS12": 0.6})
    with pytest.raises(
        DataError, match=r"b\.json and another result in .*other hold the same scores"
    ):
        load_entries(str(other))


def test_results_kept_in_a_run_are_joined_or_stand_beside_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    change(run / "run.json", model_digest="new")
    own = {"pooler": "cls_before_pooler", "model_digest": "new"}
    kept = run / "results"
    kept.mkdir()
    write_sts_result(kept / "a-few.json", {"STS12": 0.6}, **own)
    write_sts_result(kept / "b-more.json", {"STS12": 0.7, "STS13": 0.7}, **own)
    (kept / "c.json").write_text("[1]")
    found, variant = load_entries(f"ours={run}")
    assert (found.scores["STS12"], found.source, found.remarks) == (0.7, str(run), ())
    assert (variant.label, variant.scores["STS12"]) == ("ours [a-few]", 0.6)
    for name in ("a-few", "b-more"):
        (kept / f"{name}.json").unlink()

    outdated = f"{kept / 'd.json'} is of an earlier model of the run; evaluate it again"
    for settings, remarks in (
        (own, ()),
        (own | {"model_digest": "old"}, (outdated,)),
        (own | {"model_digest": "old", "pooler": "avg"}, ()),
        (own | {"model_digest": "old", "postprocess": {"name": "whitening"}}, ()),
    ):
        write_sts_result(kept / "d.json", {"STS12": 0.7}, **settings)
        assert load_entries(str(run))[0].remarks == remarks
    change(run / "run.json", model_digest=None)
    write_sts_result(kept / "d.json", {"STS12": 0.7}, **own | {"model_digest": "old"})
    assert load_entries(str(run))[0].remarks == ()


@pytest.mark.parametrize(
    ("of_run", "of_result", "advice"),
    [
        ("abc", "2-abc", "is of its model is not known; train it again"),
        ("2-abc", "abc", "evaluate it again"),
    ],
)
def test_digests_of_version_1_0_0_are_never_equal_to_those_of_today(
    tmp_path: Path, of_run: str, of_result: str, advice: str
) -> None:
    run = write_run(tmp_path / "run")
    change(run / "run.json", model_digest=of_run)
    own = {"pooler": "cls_before_pooler", "model_digest": of_result}
    (run / "results").mkdir()
    write_sts_result(run / "results" / "d.json", {"STS12": 0.7}, **own)
    (remark,) = load_entries(str(run))[0].remarks
    assert "is of simcse 1.0.0" in remark
    assert remark.endswith(advice)


def test_run_folder_gives_its_facts_settings_and_cost(tmp_path: Path) -> None:
    facts = {
        "device": "cpu",
        "precision": "fp32",
        "hardware": {"cores": 2},
        "n_processes": 3,
        "started": "now",
    }
    times = {"train_s": 5.0, "hours": 0.1}
    change(
        write_run(tmp_path / "run") / "run.json", **facts, timings=times, versions={"torch": "2"}
    )
    (found,) = load_entries(str(tmp_path / "run"))
    settings = {"lr": 3e-5, "objective": "simcse-unsup", "seed": 1, "dev_metric": "spearman"}
    data = {"data.n_examples": 100, "data.dev_file": "sts-dev.csv", "data.dev_sha256": "abcdef0123"}
    assert found.config == settings | data | {"processes": 3, "versions.torch": "2"}
    cost = {"peak_memory_bytes": None, "finished": None, "sentences_per_second": None}
    assert found.cost == facts | times | cost
    chosen = {
        "pooler": "cls_before_pooler",
        "chosen by": "spearman of sts-dev.csv",
        "metric": "spearman",
    }
    assert found.settings == chosen | {"dev data": "sts-dev.csv (abcdef01)"}
    change(tmp_path / "run/run.json", pooler=None, best_score=None)
    (bare,) = load_entries(str(tmp_path / "run"))
    assert (bare.scores, bare.settings, bare.remarks) == ({}, {}, ())
    change(tmp_path / "run/run.json", best_score=0.5)
    (tmp_path / "run/metrics.jsonl").unlink()
    assert load_entries(str(tmp_path / "run"))[0].scores == {"STSBenchmark-dev": 0.5}


STS_DEV = ["STSBenchmark-dev", "SICKRelatedness-dev"]
STSB_DIGEST = next(file.sha256 for file in expected_files() if file.path.endswith("sts-dev.csv"))


@pytest.mark.parametrize(
    ("data", "measured", "scores", "settings"),
    [
        (
            {"dev_suite": "sts", "dev_tasks": STS_DEV},
            {STS_DEV[0]: 0.7, STS_DEV[1]: None},
            {STS_DEV[0]: 0.7, "average-dev": 0.8},
            {"metric": "pearson", "aggregation": "all", "dev data": "STS-B dev"},
        ),
        (
            {"dev_suite": "sts", "dev_tasks": ["STS12", "STS13"]},
            {"STS12": 0.7, "STS13": 0.9},
            {"STS12": 0.7, "STS13": 0.9, "average": 0.8},
            {"metric": "pearson", "aggregation": "all"},
        ),
        (
            {"dev_suite": "sts", "dev_tasks": ["STS12", STS_DEV[1]]},
            {"STS12": 0.7, STS_DEV[1]: 0.9},
            {"STS12": 0.7, STS_DEV[1]: 0.9},
            {"metric": "pearson", "aggregation": "all"},
        ),
        (
            {"dev_suite": "transfer", "dev_tasks": ["MR-dev"]},
            {"MR-dev": 0.8},
            {"MR-dev": 0.8, "transfer-average-dev": 0.8},
            {"transfer protocol": "fast, probe senteval"},
        ),
        (
            {"dev_suite": "retrieval", "dev_tasks": ["nDCG@10-dev"], "queries": "q.txt"},
            {"nDCG@10-dev": 0.8, "MRR@10-dev": 0.9},
            {"nDCG@10-dev": 0.8, "MRR@10-dev": 0.9},
            {"dev data": f"q.txt ({digest(STSB_DIGEST)[:8]})"},
        ),
        (
            {
                "dev_suite": "inverse perplexity",
                "dev_tasks": ["inverse perplexity-dev"],
                "dev_split": 0.1,
                "train_file": "texts/train.txt",
                "train_sha256": "abc",
            },
            {"inverse perplexity-dev": 0.8},
            {"inverse perplexity-dev": 0.8},
            {"dev data": f"train.txt ({digest('abc', '0.1')[:8]})"},
        ),
    ],
)
def test_each_dev_suite_gives_the_scores_of_its_tasks(
    tmp_path, data, measured, scores, settings
) -> None:
    run = write_run(tmp_path / "run", best_score=0.8)
    data["dev_files"] = {"STS/STSBenchmark/sts-dev.csv": STSB_DIGEST}
    change(run / "run.json", data=data, config={"dev_metric": "pearson"})
    lines = [{"step": 10, "dev_score": 0.1, "dev_tasks": {"MR": 0.1}}, {"step": 20}]
    lines += [{"step": 20, "dev_score": 0.8, "dev_tasks": measured, "alignment": 0.2}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = load_entries(str(run))
    assert found.scores == scores | {"alignment": 0.2}
    own = {
        key: value for key, value in found.settings.items() if key not in ("pooler", "chosen by")
    }
    assert own == settings
    on_test = [label(task) for task in data["dev_tasks"] if not task.endswith("-dev")]
    assert found.remarks == (
        (f"run was chosen on test data: {', '.join(on_test)}",) if on_test else ()
    )


def test_intervals_and_data_go_with_the_scores_of_the_split(tmp_path: Path) -> None:
    path = write_sts_result(tmp_path / "a.json", {"STSBenchmark": 0.8, "STS12": None}, split="dev")
    content = json.loads(path.read_text())
    content["tasks"]["STSBenchmark"] |= {"n_pairs": 1500, "ci": {"low": 0.7, "high": 0.9}}
    content["average_ci"] = {"low": 0.6, "high": 0.9, "level": 0.95}
    (found,) = read_results(content, label="a", source=str(path))
    dev, average = "STSBenchmark-dev", "average-dev"
    assert found.intervals == {dev: (0.7, 0.9), average: (0.6, 0.9)}
    assert found.data == dict.fromkeys((dev, average), ScoredData(PUBLISHED))
    content["tasks"]["STS12"] = content["tasks"]["STSBenchmark"] | {"score": None}
    content["average_ci"] = {"level": 0.95}
    content["tasks"]["STSBenchmark"]["n_pairs"] = 7
    (found,) = read_results(content, label="a", source=str(path))
    assert found.intervals == {dev: (0.7, 0.9)}
    other = found.data[dev]
    assert not other.are_known
    assert found.data == {dev: other, average: other}


def test_a_pair_file_is_no_part_of_the_average(tmp_path: Path) -> None:
    path = write_sts_result(tmp_path / "a.json", {"STS12": 0.7})
    content = json.loads(path.read_text())
    content["tasks"]["mine"] = {"n_pairs": 7, "score": 0.1}
    content["data_sha256"] = {"mine": "abcdef0123"}
    (found,) = read_results(content, label="a", source=str(path))
    assert str(found.data["mine"]) == "7 examples, SHA-256 abcdef01"
    assert found.data["STS12"] == found.data["average"] == ScoredData(PUBLISHED)


def test_data_of_transfer_tasks_and_their_average(tmp_path: Path) -> None:
    tasks = {"MR": {"accuracy": 0.8, "n_test": 10662}, "own": {"accuracy": 0.1}}
    content = {"suite": "transfer", "protocol": "default", "probe": "sklearn", "tasks": tasks}
    (found,) = read_results(content, label="a", source=str(tmp_path / "a.json"))
    assert found.scores == {"MR": 0.8, "own": 0.1, "transfer-average": 0.8}
    assert found.data == {"MR": found.data["MR"], "transfer-average": found.data["MR"]}
    assert found.settings == {"transfer protocol": "default, probe sklearn"}


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"geometry data": None}, {}),
        (
            {"regressor": False, "postprocess": None, "precision": "int8"},
            {"regressor": "off", "postprocess": "off", "precision": "int8"},
        ),
        (
            {"regressor": True, "postprocess": {"name": "flow"}},
            {"regressor": "True", "postprocess": "{'name': 'flow'}"},
        ),
    ],
)
def test_settings_that_are_known_are_compared(tmp_path, settings, shown) -> None:
    (found,) = load_entries(str(write_sts_result(tmp_path / "a.json", {"STS12": 0.7}, **settings)))
    asked = {"metric": "spearman", "aggregation": "all", "split": "test", "pooler": "avg"}
    assert found.settings == asked | shown
    assert found.scores["seconds"] == 2.0


def test_a_result_without_the_aggregation_that_is_asked_for_is_named(tmp_path: Path) -> None:
    path = write_sts_result(tmp_path / "a.json", {"STS12": 0.7})
    tasks = {"STS12": {"score": 0.7, "spearman": {"all": 0.7}}}
    change(path, tasks=tasks)
    with pytest.raises(DataError) as raised:
        load_entries(str(path), view=CompareOptions(aggregation=Aggregation.MEAN))
    assert raised.value.message == f"{path}: STS12 has no spearman for aggregation mean"


@pytest.mark.parametrize(
    ("suite", "measure"),
    [
        ("file", "STSBenchmark-dev"),
        ("retrieval", "nDCG@10-dev"),
        ("transfer", "transfer-average-dev"),
        ("sts", "average-dev"),
        (None, "average-dev"),
    ],
)
def test_a_sweep_gives_an_entry_for_each_quantile(suite, measure) -> None:
    content = {"suite": "sweep", "dev_suite": suite, "quantiles": {"max": 0.8, "q50": 0.7}}
    found = read_results(content, label="sweep", source="s.json")
    assert [(one.label, one.scores) for one in found] == [
        ("sweep, max", {measure: 0.8}),
        ("sweep, q50", {measure: 0.7}),
    ]


def test_geometry_is_named_after_the_file_or_after_each_model_or_its_seeds() -> None:
    rows = [
        {"model": name, "alignment": 0.2, "uniformity": -2.0, "pooler": "avg"}
        for name in ("m", "n")
    ]
    rows[1]["group"] = "seeds"
    result = {"analysis": "geometry", "data": "STS-B", "models": rows}
    assert [one.label for one in read_results(result, label="g", source="g.json")] == [
        "g: m",
        "g: seeds",
    ]
    (alone,) = read_results(result | {"models": rows[:1]}, label="g", source="g.json")
    settings = {"pooler": "avg", "geometry data": "STS-B"}
    assert alone == Entry(
        "g", EntryKind.RESULT, "g.json", {"alignment": 0.2, "uniformity": -2.0}, settings
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"text": "x"}, "a.json: no result file (no suite, no analysis)"),
        (
            {"analysis": "density"},
            "a.json: holds density, need a result of `simcse eval` or `simcse analyze geometry`",
        ),
        ({"runs": []}, "a.json: no result file (no suite, no analysis)"),
        (
            {"analysis": "retrieval", "runs": []},
            "a.json: holds retrieval, need a result of `simcse eval` or",
        ),
    ],
)
def test_other_objects_are_no_results(content, message) -> None:
    with pytest.raises(DataError) as raised:
        read_results(content, label="a", source="a.json")
    assert raised.value.message.startswith(message)


def test_mteb_averages_count_when_all_their_tasks_were_scored() -> None:
    result = {
        "suite": "mteb",
        "tasks": {"STS12": {"score": 0.7}, "STS13": {"score": 0.8}},
        "categories": {"STS": {"n_tasks": 2, "n_scored": 2, "score": 0.75}},
        "n_tasks": 2,
        "n_scored": 2,
    }
    (found,) = read_results(result, label="a", source="a.json")
    assert found.scores == {
        "mteb-STS12": 0.7,
        "mteb-STS13": 0.8,
        "mteb-STS": 0.75,
        "mteb-average": 0.75,
    }
    bare = {"suite": "mteb", "tasks": {"STS12": {"score": 0.7}}}
    for content in (bare, bare | {"n_tasks": 1}):
        assert read_results(content, label="a", source="a.json")[0].scores == {"mteb-STS12": 0.7}


def test_saved_examples_that_have_changed_are_not_read(tmp_path: Path, monkeypatch) -> None:
    """A relative name is that of another file in another folder."""
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        Path("pairs.jsonl").write_text(name)
        write_sts_result(Path("a.json"), {"STS12": 0.7})
        change(Path("a.json"), **saved_facts("pair_scores", Path("pairs.jsonl")))
    (found,) = load_entries("../one/a.json")
    assert (found.pair_scores, found.remarks) == (saved(Path("../one/pairs.jsonl")), ())
    Path("../one/pairs.jsonl").write_text("three")
    (found,) = load_entries("../one/a.json")
    assert found.pair_scores == ()
    assert found.remarks == (
        "../one/a.json: pairs.jsonl holds other examples by now, so it is not read",
    )


def test_a_run_has_the_saved_examples_of_all_its_results(tmp_path: Path) -> None:
    results = write_run(tmp_path / "run") / "results"
    results.mkdir()
    for name, task, facts in (
        ("a", "STS12", {}),
        ("b", "STS13", {}),
        ("c", "STS13", {"split": "dev", "chosen_on": ["STS13"]}),
    ):
        write_sts_result(results / f"{name}.json", {task: 0.7}, **facts)
        (results / f"{name}.pairs.jsonl").touch()
    (run,) = load_entries(str(tmp_path / "run"))
    assert run.pair_scores == (
        *saved(results / "a.pairs.jsonl", results / "b.pairs.jsonl"),
        SavedExamples(results / "c.pairs.jsonl", "-dev", ("STS13-dev",)),
    )
    tasks = {"a": "STS12", "b": "STS13", "c": "STS13"}
    pairs = read_saved(run.pair_scores, lambda path: {tasks[path.name[0]]: path.name[0]})
    assert pairs == {"STS12": "a", "STS13": "b", "STS13-dev": "c"}


def test_saved_examples_may_be_anywhere_that_the_result_names(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "pairs.jsonl"
    elsewhere.parent.mkdir()
    elsewhere.touch()
    path = change(write_sts_result(tmp_path / "a.json", {"STS12": 0.7}), pair_scores=str(elsewhere))
    (tmp_path / "a.predictions.jsonl").touch()
    (found,) = load_entries(str(path))
    assert (found.pair_scores, found.predictions) == (saved(elsewhere), ())
    change(path, pair_scores="x" * 5000)  # no file has so long a name
    assert load_entries(str(path))[0].pair_scores == ()


def test_kept_results_of_other_settings_are_grouped_over_seeds(tmp_path: Path) -> None:
    for seed, score in ((1, 0.6), (2, 0.7)):
        results = write_run(tmp_path / f"base/seed-{seed}", seed=seed) / "results"
        results.mkdir()
        own = {"STS12": score, "STS13": 0.5}
        write_sts_result(results / "plain.json", own, pooler="cls_before_pooler")
        write_sts_result(results / "white.json", {"STS12": score + 0.1}, postprocess="whitening")
    own = add_means(merge_parts(load_entries(str(tmp_path / "base"))))
    means = {each.label: each.scores["STS12"] for each in own if each.members}
    assert means == {
        "base (mean of 2)": pytest.approx(0.65),
        "base [white] (mean of 2)": pytest.approx(0.75),
    }
    assert [each.seed for each in own if each.variant and not each.members] == [1, 2]
