"""`simcse eval SUITE --checkpoints`: one row a kept checkpoint, the best one marked, nothing scored twice."""

import csv
import io
import json
import shutil

import pytest

from helpers import SENTENCES, write_transfer_folder


@pytest.fixture
def senteval(sts_folder):
    return write_transfer_folder(sts_folder, n_good=40, n_bad=36)


@pytest.fixture
def run(invoke, tiny_model_dir, senteval, tmp_path):
    """Train for four steps with every checkpoint kept and the dev score of each in the metrics."""
    (tmp_path / "train.txt").write_text("\n".join(SENTENCES) + "\n")
    outcome = invoke(
        *(
            "train",
            "-m",
            tiny_model_dir,
            "--train-file",
            tmp_path / "train.txt",
            "-o",
            tmp_path / "run",
        ),
        *(
            "--dev-file",
            senteval / "downstream/STS/STSBenchmark/sts-dev.csv",
            "--keep-checkpoints",
            0,
        ),
        *(
            "--batch-size",
            4,
            "--max-steps",
            4,
            "--eval-every",
            1,
            "--lr",
            "1e-3",
            "--device",
            "cpu",
        ),
    )
    assert outcome.exit_code == 0, outcome.stderr
    return tmp_path / "run"


@pytest.fixture
def evaluate(invoke, run, senteval, tmp_path):
    def call(suite, *arguments):
        fixed = ("--model", run, "--checkpoints", "--data-dir", senteval, "--device", "cpu")
        return invoke("eval", suite, *fixed, *arguments)

    return lambda suite, *arguments: call(suite, "--cache-dir", tmp_path / "cache", *arguments)


def test_sts_along_a_run_repeats_its_dev_scores(evaluate, run):
    outcome = evaluate("sts", "--split", "dev", "--format", "json")
    assert outcome.exit_code == 0, outcome.stderr
    payload = json.loads(outcome.stdout)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = {each["step"]: each["average"] for each in payload["checkpoints"]}
    assert found == pytest.approx({line["step"]: line["dev_score"] for line in lines})
    assert payload["best_step"] == max(found, key=found.get)
    assert payload["model_step"] == json.loads((run / "run.json").read_text())["best_step"]
    assert [each["step"] for each in payload["checkpoints"] if each["is_model"]] == [
        payload["model_step"]
    ]


def test_table_marks_best_and_model(evaluate):
    outcome = evaluate("sts", "--split", "dev", "--format", "csv", "-q")
    rows = list(csv.DictReader(io.StringIO(outcome.stdout)))
    scores = [float(row["Avg."]) for row in rows]
    marks = [row[""] for row in rows]
    assert [int(row["step"]) for row in rows] == [0, 1, 2, 3, 4]
    assert [i for i, mark in enumerate(marks) if "best" in mark] == [scores.index(max(scores))]
    assert sum("model" in mark for mark in marks) == 1


def test_scores_on_test_sets_come_with_a_note(evaluate):
    outcome = evaluate("sts", "--tasks", "STS12")
    assert "choose a checkpoint by --split dev" in outcome.stdout
    assert "simcse compare" not in outcome.stderr  # which shows no scores of checkpoints


def test_transfer_along_a_run_is_that_of_its_models(evaluate, invoke, run, senteval):
    outcome = evaluate("transfer", "--tasks", "CR,TREC", "--protocol", "fast", "--format", "json")
    assert outcome.exit_code == 0, outcome.stderr
    payload = json.loads(outcome.stdout)
    averages = {each["step"]: each["average_dev"] for each in payload["checkpoints"]}
    assert payload["best_step"] == max(averages, key=averages.get)
    (model,) = (each for each in payload["checkpoints"] if each["is_model"])
    alone = invoke(
        *(
            "eval",
            "transfer",
            "--model",
            run,
            "--data-dir",
            senteval,
            "--tasks",
            "CR,TREC",
            "--device",
            "cpu",
        ),
        *("--protocol", "fast", "--no-cache", "--format", "json"),
    )
    assert model["tasks"] == json.loads(alone.stdout)["tasks"]
    assert model["model_digest"] == json.loads(alone.stdout)["model_digest"]


@pytest.mark.parametrize("suite", ["sts", "transfer"])
def test_finished_checkpoints_are_reused_after_an_error(evaluate, run, tmp_path, suite):
    arguments = ("--tasks", "STS12" if suite == "sts" else "CR", "--format", "json")
    weights = run / "checkpoint" / "step-00000002" / "state.safetensors"
    shutil.copy(weights, tmp_path / "kept")
    weights.write_bytes(b"broken")
    outcome = evaluate(suite, *arguments)
    assert outcome.exit_code == 1
    assert "step-00000002" in outcome.stderr
    shutil.copy(tmp_path / "kept", weights)
    outcome = evaluate(suite, *arguments)
    assert len(json.loads(outcome.stdout)["checkpoints"]) == 5
    assert not list((tmp_path / "cache").rglob("*.npy"))
    again = evaluate(suite, *arguments)
    assert "encoding" not in again.stderr
    assert _without_times(json.loads(again.stdout)) == _without_times(json.loads(outcome.stdout))


def _without_times(payload):
    times = ("seconds", "sentences_per_second")
    kept = [{k: v for k, v in each.items() if k not in times} for each in payload["checkpoints"]]
    return payload | {"checkpoints": kept}


def test_ctrl_c_says_that_finished_checkpoints_are_kept(evaluate, monkeypatch):
    monkeypatch.setattr("simcse_cli.models.encode.ReadyEncoder.encode", _interrupt)
    stopped = evaluate("sts", "--split", "dev")
    assert stopped.exit_code == 130
    assert stopped.stderr.endswith(
        "stopped\nfinished checkpoints are kept; the same command continues\n"
    )


def _interrupt(*_, **__):
    raise KeyboardInterrupt


def test_changed_data_are_scored_again(evaluate, senteval):
    arguments = ("--split", "dev", "--format", "json")
    before = json.loads(evaluate("sts", *arguments).stdout)
    path = senteval / "downstream/STS/STSBenchmark/sts-dev.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    after = json.loads(evaluate("sts", *arguments).stdout)
    counts = [run["checkpoints"][0]["tasks"]["STSBenchmark"]["n_pairs"] for run in (before, after)]
    assert counts[1] == counts[0] - 1


def test_run_with_one_checkpoint_says_how_to_keep_more(evaluate, run):
    shutil.rmtree(run / "checkpoint")
    outcome = evaluate("sts", "--split", "dev", "--format", "json")
    assert "--keep-checkpoints" in outcome.stderr
    assert len(json.loads(outcome.stdout)["checkpoints"]) == 1


def test_mteb_along_a_run(invoke, run, senteval, tmp_path):
    pytest.importorskip("mteb")
    outcome = invoke(
        *(
            "eval",
            "mteb",
            "--model",
            run,
            "--checkpoints",
            "--tasks",
            "STS12",
            "--data-dir",
            senteval,
        ),
        *("--results-dir", tmp_path / "mteb", "--device", "cpu", "--format", "json"),
    )
    assert outcome.exit_code == 0, outcome.stderr
    payload = json.loads(outcome.stdout)
    averages = {each["step"]: each["average"] for each in payload["checkpoints"]}
    assert len(set(averages.values())) > 1
    assert payload["best_step"] == max(averages, key=averages.get)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ci",), "--ci: has no use with --checkpoints"),
        (("--save-scores", "x.jsonl"), "--save-scores: has no use with --checkpoints"),
        (
            ("--postprocess", "whitening", "--fit", "target"),
            "--postprocess: has no use with --checkpoints",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(evaluate, arguments, message):
    outcome = evaluate("sts", *arguments)
    assert outcome.exit_code == 2
    assert message in outcome.stderr


def test_a_plain_model_has_no_checkpoints(invoke, tiny_model_dir, senteval):
    outcome = invoke("eval", "sts", "-m", tiny_model_dir, "--checkpoints", "--data-dir", senteval)
    assert outcome.exit_code == 2
    assert "run folder" in outcome.stderr


def test_run_that_has_no_model_yet_is_explained(evaluate, run):
    shutil.rmtree(run / "model")
    outcome = evaluate("sts")
    assert outcome.exit_code == 1
    assert "without a finished model" in outcome.stderr
