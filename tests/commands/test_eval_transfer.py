import json

import numpy as np
import pytest

from helpers import write_transfer_folder

TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")


@pytest.fixture
def senteval(tmp_path):
    return write_transfer_folder(tmp_path / "senteval", n_good=40, n_bad=36)


@pytest.fixture
def evaluate(invoke, tiny_model_dir, senteval, tmp_path):
    """Run ``eval transfer`` on the tiny model with a cache of the test's own."""

    def run(*arguments):
        fixed = (
            "--model",
            tiny_model_dir,
            "--pooler",
            "avg",
            "--data-dir",
            senteval,
            "--protocol",
            "fast",
        )
        cache = () if "--no-cache" in arguments else ("--cache-dir", tmp_path / "cache")
        return invoke("eval", "transfer", *fixed, *cache, *arguments)

    return run


def test_json_has_the_documented_keys(evaluate):
    outcome = evaluate("--format", "json")
    assert outcome.exit_code == 0
    record = json.loads(outcome.stdout)
    assert (record["suite"], record["protocol"], record["pooler"]) == ("transfer", "fast", "avg")
    assert tuple(record["tasks"]) == TASKS
    assert {"dev_accuracy", "accuracy"} <= set(record["tasks"]["MR"])
    assert "f1" in record["tasks"]["MRPC"]
    assert record["average"] == pytest.approx(
        np.mean([task["accuracy"] for task in record["tasks"].values()])
    )
    assert "the published set 10,662" in outcome.stderr


def test_only_a_command_that_runs_without_data_names_the_demo_corpus_as_default(
    invoke, tiny_model_dir
):
    help_text = " ".join(invoke("eval", "transfer", "--help").stdout.split())
    assert "needed unless only --task-file" in help_text
    assert "demo corpus" not in help_text
    outcome = invoke("eval", "transfer", "--model", tiny_model_dir, "--pooler", "avg")
    assert (outcome.exit_code, "need a SentEval folder" in outcome.stderr) == (2, True)
    assert "demo corpus" in invoke("eval", "sts", "--help").stdout


def test_table_shows_dev_and_test_rows(evaluate):
    outcome = evaluate("--tasks", "cr,trec", "-q")
    assert outcome.exit_code == 0
    assert "(dev)" in outcome.stdout
    assert outcome.stderr == ""


def test_second_call_reuses_finished_tasks(evaluate):
    first = json.loads(evaluate("--tasks", "CR", "--format", "json").stdout)
    outcome = evaluate("--tasks", "CR,MRPC", "--format", "json", "-v")
    assert json.loads(outcome.stdout)["tasks"]["CR"] == first["tasks"]["CR"]
    assert "CR: kept from an earlier call" in outcome.stderr
    assert "MRPC: kept" not in outcome.stderr


def test_no_cache_keeps_nothing(evaluate, tmp_path, monkeypatch):
    monkeypatch.setenv("SIMCSE_CACHE", str(tmp_path / "cache"))
    assert evaluate("--tasks", "CR", "--no-cache").exit_code == 0
    assert not [*tmp_path.glob("cache/**/*.npz"), *tmp_path.glob("cache/**/*.json")]


def test_ci_and_saved_scores_agree_with_the_accuracies(evaluate, tmp_path):
    saved = tmp_path / "predictions.jsonl"
    outcome = evaluate("--tasks", "CR,TREC", "--ci", "--save-scores", saved, "--format", "json")
    assert f"wrote {saved}\n" in outcome.stderr
    record = json.loads(outcome.stdout)
    rows = [json.loads(line) for line in saved.read_text().splitlines()]
    for name, task in record["tasks"].items():
        hits = [row["gold"] == row["predicted"] for row in rows if row["task"] == name]
        assert len(hits) == task["n_test"]
        assert task["ci"]["low"] <= np.mean(hits) <= task["ci"]["high"]
    assert record["average_ci"]["level"] == 0.95
    assert record["predictions"] == str(saved)


def test_sklearn_probe_is_recorded(evaluate):
    record = json.loads(evaluate("--tasks", "CR", "--probe", "sklearn", "--format", "json").stdout)
    assert record["probe"] == "sklearn"


def test_existing_output_is_refused_before_any_work(evaluate, tmp_path):
    saved = tmp_path / "predictions.jsonl"
    saved.write_text("old")
    outcome = evaluate("--tasks", "CR", "--save-scores", saved)
    assert outcome.exit_code == 1
    assert "--force" in outcome.stderr
    assert not (tmp_path / "cache").exists()


def test_a_missing_task_is_a_dash_and_named(evaluate, senteval):
    (senteval / "downstream/TREC/TREC_10.label").unlink()
    outcome = evaluate("--tasks", "CR,TREC")
    assert outcome.exit_code == 0
    assert "TREC is left out of the average: no " in outcome.stderr
    assert "TREC missing: no " in outcome.stdout
    assert " – " in outcome.stdout
    assert evaluate("--tasks", "TREC").exit_code == 1


def test_unknown_task_is_a_usage_error(evaluate):
    outcome = evaluate("--tasks", "SST3")
    assert outcome.exit_code == 2
    assert "did you mean SST2" in outcome.stderr


def test_data_folder_is_required(invoke, tiny_model_dir):
    outcome = invoke("eval", "transfer", "--model", tiny_model_dir)
    assert outcome.exit_code == 2
    assert "--data-dir" in outcome.stderr
