import csv
import io
import json

import pytest

from helpers import with_options
from simcse_cli.results.examples import read_pair_scores
from simcse_cli.settings.choices import STS_TASKS


def test_json_on_stdout_has_scores_as_fractions(invoke, sts_folder, tiny_model_dir):
    outcome = invoke(
        "eval", "sts", "-m", tiny_model_dir, "--data-dir", sts_folder, "--format", "json"
    )
    assert outcome.exit_code == 0, outcome.stderr
    payload = json.loads(outcome.stdout)
    assert (payload["suite"], payload["metric"], payload["aggregation"]) == (
        "sts",
        "spearman",
        "all",
    )
    assert list(payload["tasks"]) == list(STS_TASKS)
    assert all(-1 <= task["score"] <= 1 for task in payload["tasks"].values())


def test_environment_gives_model_and_data(invoke, sts_folder, tiny_model_dir, monkeypatch):
    monkeypatch.setenv("SIMCSE_MODEL", str(tiny_model_dir))
    monkeypatch.setenv("SIMCSE_DATA", str(sts_folder))
    outcome = invoke("eval", "sts", "--aggregation", "wmean", "--format", "csv", "-q")
    (row,) = csv.DictReader(io.StringIO(outcome.stdout))
    assert set(row) == {
        "model",
        "STS12",
        "STS13",
        "STS14",
        "STS15",
        "STS16",
        "STS-B",
        "SICK-R",
        "Avg.",
    }
    assert outcome.stderr == ""


def test_without_data_the_demo_corpus_is_scored_with_a_warning(invoke, tiny_model_dir):
    outcome = invoke(
        "eval", "sts", "-m", tiny_model_dir, "--aggregation", "wmean", "--format", "csv"
    )
    assert outcome.exit_code == 0, outcome.stderr
    (row,) = csv.DictReader(io.StringIO(outcome.stdout))
    assert set(row) == {"model", "STS-B", "Avg."}
    assert "demo corpus" in outcome.stderr
    assert "left out" not in outcome.stderr


def test_missing_task_is_a_dash_and_a_warning(invoke, sts_folder, tiny_model_dir):
    (sts_folder / "downstream" / "SICK" / "SICK_test_annotated.txt").unlink()
    outcome = invoke("eval", "sts", "-m", tiny_model_dir, "--data-dir", sts_folder)
    assert outcome.exit_code == 0
    assert "SICKRelatedness is left out of the average" in outcome.stderr
    assert "–" in outcome.stdout


def test_short_task_names_and_dev_split(invoke, sts_folder, tiny_model_dir):
    command = ("eval", "sts", "-m", tiny_model_dir, "--data-dir", sts_folder, "--format", "json")
    payload = json.loads(invoke(*command, "--tasks", "sts-b,STS12").stdout)
    assert list(payload["tasks"]) == ["STSBenchmark", "STS12"]
    payload = json.loads(invoke(*command, "--split", "dev").stdout)
    assert list(payload["tasks"]) == ["STSBenchmark"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--tasks", "STS99"), 2, "unknown task"),
        (("--aggregation", "median"), 2, "wmean"),
        (("--split", "half"), 2, "train, dev, test"),
        (
            ("--tasks", "STS12", "--split", "dev"),
            2,
            "--split: no dev set of STS12, need one of STSBenchmark, SICKRelatedness",
        ),
        (("--data-dir", "/nowhere"), 1, "/nowhere does not exist"),
        (("--config", "/nowhere.yaml"), 1, "neither a YAML file"),
    ],
)
def test_bad_requests(invoke, sts_folder, tiny_model_dir, arguments, code, message):
    command = ("eval", "sts", "-m", tiny_model_dir, "--data-dir", sts_folder)
    outcome = invoke(*with_options(command, *arguments))
    assert outcome.exit_code == code
    assert message in " ".join(outcome.stderr.split())


@pytest.fixture
def evaluate(invoke, tiny_model_dir, sts_folder):
    """Run ``eval sts`` on the tiny model."""

    def run(*arguments):
        return invoke(
            "eval",
            "sts",
            "--model",
            tiny_model_dir,
            "--pooler",
            "avg",
            "--data-dir",
            sts_folder,
            *arguments,
        )

    return run


def record_of(outcome):
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.mark.parametrize(
    ("protocol", "metric", "aggregation"),
    [
        ("simcse", "spearman", "all"),
        ("bert-flow", "spearman", "wmean"),
        ("wieting", "pearson", "mean"),
    ],
)
def test_protocol_sets_metric_and_aggregation(evaluate, protocol, metric, aggregation):
    record = record_of(evaluate("--protocol", protocol, "--tasks", "STS12", "--format", "json"))
    assert (record["protocol"], record["metric"], record["aggregation"]) == (
        protocol,
        metric,
        aggregation,
    )
    task = record["tasks"]["STS12"]
    assert task["score"] == task[metric][aggregation]
    assert record["regressor"] is False


def test_single_flags_override_the_protocol(evaluate):
    arguments = (
        "--protocol",
        "bert-flow",
        "--aggregation",
        "all",
        "--tasks",
        "STS12",
        "--format",
        "json",
    )
    assert record_of(evaluate(*arguments))["aggregation"] == "all"


def test_protocol_with_two_metrics_shows_a_table_for_each(evaluate):
    call = ("--protocol", "hill", "--tasks", "STS13", "--format", "csv")
    spearman, pearson = evaluate(*call).stdout.split("\n\n")
    for table, metric in ((spearman, "spearman"), (pearson, "pearson")):
        (row,) = csv.DictReader(io.StringIO(table))
        assert row["metric"] == metric


def test_senteval_protocol_trains_the_regressor_on_the_tasks_that_have_one(evaluate, tmp_path):
    saved = tmp_path / "pairs.jsonl"
    tasks = ("--tasks", "STS12,STSBenchmark", "--save-scores", saved)
    record = record_of(evaluate("--protocol", "senteval", *tasks, "--format", "json"))
    assert record["regressor"] is True
    pairs = read_pair_scores(saved)
    assert pairs["STSBenchmark"]["test"].cosine.min() >= 1
    assert pairs["STS12"]["MSRpar"].cosine.max() <= 1


def test_regressor_needs_the_test_split(evaluate):
    outcome = evaluate("--regressor", "--split", "dev")
    assert outcome.exit_code == 2
    assert "--split" in outcome.stderr


def test_saved_pairs_hold_gold_scores_and_sentences(evaluate, tmp_path):
    saved = tmp_path / "pairs.jsonl"
    record = record_of(evaluate("--save-scores", saved, "--tasks", "SICK-R", "--format", "json"))
    assert record["pair_scores"] == str(saved)
    subset = read_pair_scores(saved)["SICKRelatedness"]["test"]
    assert len(subset.gold) == record["tasks"]["SICKRelatedness"]["n_pairs"] == len(subset.left)


def test_ci_encloses_the_score_in_json_and_adds_two_rows(evaluate):
    arguments = ("--ci", "--tasks", "STS12,STS14")
    record = record_of(evaluate(*arguments, "--format", "json"))
    for task in record["tasks"].values():
        assert task["ci"]["low"] <= task["score"] <= task["ci"]["high"]
    assert record["average_ci"]["low"] <= record["average"] <= record["average_ci"]["high"]
    table = evaluate(*arguments).stdout
    assert "95% low" in table
    assert "95% high" in table


def test_a_task_without_a_score_has_no_interval_and_no_part_in_that_of_the_average(
    invoke, tiny_model_dir, tmp_path
):
    def record(**files):
        arguments = []
        for name, rows in files.items():
            path = tmp_path / f"{name}.csv"
            path.write_text("\n".join(["left,right,score", *rows]) + "\n")
            arguments += ["--pair-file", path]
        model = ("--model", tiny_model_dir, "--pooler", "avg")
        return record_of(invoke("eval", "sts", *model, *arguments, "--ci", "-f", "json"))

    texts = ("a cat,a dog", "a man runs,a man walks", "hello,good bye", "he eats,she eats")
    rated = [f"{text},{score}" for text, score in zip(texts, (3, 4, 1, 2), strict=True)]
    equal = [f"{text},3" for text in texts]
    expected = record(rated=rated)
    found = record(rated=rated, equal=equal, single=rated[:1])
    assert found["tasks"]["equal"]["score"] is None
    assert "ci" not in found["tasks"]["equal"]
    assert "ci" not in found["tasks"]["single"]
    assert found["average_ci"] == expected["average_ci"]
    assert "average_ci" not in record(single=rated[:1])
