import csv
import io
import json

import pytest

from simcse_cli.choices import STS_TASKS


def test_json_on_stdout_has_scores_as_fractions(invoke, sts_folder, tiny_model_dir):
    outcome = invoke("eval", "sts", "-m", tiny_model_dir, "--data-dir", sts_folder, "--format", "json")
    assert outcome.exit_code == 0, outcome.stderr
    payload = json.loads(outcome.stdout)
    assert (payload["suite"], payload["metric"], payload["aggregation"]) == ("sts", "spearman", "all")
    assert list(payload["tasks"]) == list(STS_TASKS)
    assert all(-1 <= task["score"] <= 1 for task in payload["tasks"].values())


def test_environment_gives_model_and_data(invoke, sts_folder, tiny_model_dir, monkeypatch):
    monkeypatch.setenv("SIMCSE_MODEL", str(tiny_model_dir))
    monkeypatch.setenv("SIMCSE_DATA", str(sts_folder))
    outcome = invoke("eval", "sts", "--aggregation", "wmean", "--format", "csv", "-q")
    (row,) = csv.DictReader(io.StringIO(outcome.stdout))
    assert set(row) == {"model", "STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R", "Avg."}
    assert outcome.stderr == ""


def test_without_data_the_demo_corpus_is_scored_with_a_warning(invoke, tiny_model_dir):
    outcome = invoke("eval", "sts", "-m", tiny_model_dir, "--aggregation", "wmean")
    assert outcome.exit_code == 0, outcome.stderr
    assert "demo corpus" in outcome.stderr
    assert "–" in outcome.stdout


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
        (("--data-dir", "/nowhere"), 1, "/nowhere does not exist"),
        (("--config", "/nowhere.yaml"), 1, "neither a YAML file"),
    ],
)
def test_bad_requests(invoke, sts_folder, tiny_model_dir, arguments, code, message):
    outcome = invoke("eval", "sts", "-m", tiny_model_dir, "--data-dir", sts_folder, *arguments)
    assert outcome.exit_code == code
    assert message in " ".join(outcome.stderr.split())
