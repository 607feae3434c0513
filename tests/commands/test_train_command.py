import json
import os
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors import SafetensorError

from helpers import SENTENCES, with_options
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode
from simcse_cli.training import dry_run, state
from simcse_cli.training.loop import Trainer


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    return path


@pytest.fixture
def triplets(tmp_path):
    path = tmp_path / "triplets.csv"
    rows = [
        f'"{SENTENCES[i]}","{SENTENCES[(i + 5) % 24]}","{SENTENCES[(i + 9) % 24]}"'
        for i in range(24)
    ]
    path.write_text("sent0,sent1,hard_neg\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def dev_file(sts_folder):
    return sts_folder / "downstream" / "STS" / "STSBenchmark" / "sts-dev.csv"


QUICK = ("--batch-size", 8, "--max-steps", 3, "--eval-every", 2, "--device", "cpu")


def test_unsup_run_then_encode_with_it(invoke, corpus, dev_file, tiny_model_dir, tmp_path):
    run = tmp_path / "run"
    outcome = invoke(
        *(
            "train",
            "--mode",
            "unsup",
            "--model",
            tiny_model_dir,
            "--train-file",
            corpus,
            "--dev-file",
            dev_file,
        ),
        *("-o", run, *QUICK, "--format", "json"),
    )
    assert outcome.exit_code == 0, outcome.stderr
    payload = json.loads(outcome.stdout)
    assert payload["status"] == "finished"
    assert payload["pooler"] == "cls_before_pooler"
    assert invoke("encode", corpus, "-o", tmp_path / "v.npy", "--model", run).exit_code == 0
    expected = encode(load_encoder(run, device="cpu"), list(SENTENCES))
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)


def test_sup_keeps_its_head(invoke, triplets, tiny_model_dir, tmp_path):
    outcome = invoke(
        *("train", "--mode", "sup", "--hard-neg-alpha", "1.0", "--model", tiny_model_dir),
        *("--train-file", triplets, "-o", tmp_path / "run", *QUICK),
    )
    assert outcome.exit_code == 0, outcome.stderr
    record = json.loads((tmp_path / "run" / "model" / "simcse.json").read_text())
    assert (record["pooler"], record["head_use"]) == ("cls", "kept")
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["hard_negative_alpha"], config["lr"], config["epochs"]) == (1.0, 5e-5, 3.0)


def test_train_without_files_uses_the_demo_corpus(invoke, tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = invoke(
        "train", "--mode", "sup", "--hard-neg-alpha", "1.0", "-m", tiny_model_dir, *QUICK
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert "demo corpus" in outcome.stderr
    assert (tmp_path / "runs" / "simcse-sup-tiny-bert-42" / "model" / "config.json").exists()


def test_run_that_exists_is_kept_without_force(invoke, corpus, tiny_model_dir, tmp_path):
    command = (
        "train",
        "-m",
        tiny_model_dir,
        "--train-file",
        corpus,
        "-o",
        tmp_path / "run",
        *QUICK,
    )
    assert invoke(*command).exit_code == 0
    before = (tmp_path / "run" / "run.json").read_bytes()
    outcome = invoke(*command)
    assert outcome.exit_code == 1
    assert "--resume" in outcome.stderr
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert invoke(*command, "--force").exit_code == 0


def test_resume_refuses_other_settings(invoke, corpus, tiny_model_dir, tmp_path, monkeypatch):
    command = (
        "train",
        "-m",
        tiny_model_dir,
        "--train-file",
        corpus,
        "-o",
        tmp_path / "run",
        *QUICK,
    )
    assert invoke(*command).exit_code == 0
    outcome = invoke(*command, "--resume", "--lr", "1e-3")
    assert outcome.exit_code == 1
    assert "--lr 0.001 differs" in outcome.stderr
    monkeypatch.setenv("SIMCSE_TEMPERATURE", "0.1")
    assert "SIMCSE_TEMPERATURE=0.1 differs from the run" in invoke(*command, "--resume").stderr
    several = invoke(*command, "--resume", "--lr", "1e-3", "--warmup", 0.2).stderr
    places = "SIMCSE_TEMPERATURE=0.1, --lr 0.001, --warmup 0.2"
    assert (
        f"{places} differ from the run in {tmp_path / 'run'}, which has None, 3e-05, 0.0\n"
        in several
    )
    assert "leave the flags out and unset SIMCSE_TEMPERATURE to continue the run" in several
    monkeypatch.delenv("SIMCSE_TEMPERATURE")

    # A complete run is left as it is, unless a file that it has read has changed.
    outcome = invoke(*command, "--resume")
    assert outcome.exit_code == 0
    model = tmp_path / "run" / "model"
    assert f"{tmp_path / 'run'} is complete already (model: {model})" in outcome.stderr
    assert "wrote" not in outcome.stderr
    corpus.write_text(corpus.read_text() + "one more line\n")
    outcome = invoke(*command, "--resume")
    assert outcome.exit_code == 1
    assert f"{corpus} has changed since the run in {tmp_path / 'run'} was trained" in outcome.stderr


def test_dry_run_writes_nothing_and_shows_a_batch(invoke, corpus, tiny_model_dir, tmp_path):
    before = set(tmp_path.iterdir())
    outcome = invoke(
        "train",
        "-m",
        tiny_model_dir,
        "--train-file",
        corpus,
        *QUICK,
        "--dry-run",
        "-o",
        tmp_path / "r",
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert set(tmp_path.iterdir()) == before
    assert "batch_size: 8" in outcome.stdout
    assert "first batch: 8 examples, 16 rows" in outcome.stdout
    assert "forecast" in outcome.stdout


def test_a_dry_run_as_json_has_the_settings_and_the_forecast(invoke, corpus, tiny_model_dir):
    command = ("train", "-m", tiny_model_dir, "--train-file", corpus, *QUICK, "--dry-run", "-f")
    shown = json.loads(invoke(*command, "json").stdout)
    assert (shown["settings"]["batch_size"], shown["forecast"]["n_rows"]) == (8, 16)
    cost = shown["forecast"]
    evaluations_s = cost["evaluation_s"] * cost["n_evaluations"]
    assert cost["run_s"] == cost["step_s"] * cost["n_steps"] + evaluations_s
    refused = invoke(*command, "csv")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--format: a dry run has the formats table and json" in refused.stderr


def test_dry_run_of_one_step_that_is_warm_up(invoke, corpus, tiny_model_dir, tmp_path):
    """Further steps are measured, for which the run has no learning rate."""
    flags = ("--max-steps", "1", "--warmup", "0.5", "--batch-size", "8", "--device", "cpu")
    flags = (*flags, "--seeds", "3,4")
    outcome = invoke(
        "train", "--model", tiny_model_dir, "--train-file", corpus, *flags, "--dry-run"
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert "steps     1" in outcome.stdout
    assert "\nseed: 3\n" in outcome.stdout
    assert "min for each of 2 seeds" in outcome.stdout


@pytest.mark.parametrize(("enough", "n_steps"), [(1e-9, 2), (600.0, 3)])
def test_dry_run_measures_a_long_step_once(
    enough, n_steps, invoke, corpus, tiny_model_dir, tmp_path, monkeypatch
):
    monkeypatch.setattr(dry_run, "ENOUGH_S", enough)
    steps, train_step = [], Trainer.train_step
    monkeypatch.setattr(
        Trainer,
        "train_step",
        lambda self, step, batch: steps.append(step) or train_step(self, step, batch),
    )
    arguments = (
        "-m",
        tiny_model_dir,
        "--train-file",
        corpus,
        *QUICK,
        "--dry-run",
        "-o",
        tmp_path / "r",
    )
    outcome = invoke("train", *arguments)
    assert outcome.exit_code == 0, outcome.stderr
    assert steps == list(range(n_steps))
    assert f"measuring steps: {n_steps} in" in outcome.stderr


def test_flag_beats_environment_beats_recipe(invoke, corpus, tiny_model_dir, tmp_path, monkeypatch):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"model: {tiny_model_dir}\nseed: 1\nlr: 1.0e-4\nbatch_size: 4\n")
    monkeypatch.setenv("SIMCSE_SEED", "2")
    monkeypatch.setenv("SIMCSE_BATCH_SIZE", "5")
    outcome = invoke(
        *("train", "--config", recipe, "--train-file", corpus, "--batch-size", 8, "--max-steps", 1),
        *("-o", tmp_path / "run"),
    )
    assert outcome.exit_code == 0, outcome.stderr
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["lr"], config["seed"], config["batch_size"]) == (1e-4, 2, 8)


@pytest.mark.parametrize(
    "options", [("--set", "temprature=1", "-o", "second"), ("-o", "runs/first")]
)
def test_what_is_known_before_the_model_is_loaded_is_refused_before(
    invoke, corpus, tiny_model_dir, tmp_path, monkeypatch, options
):
    monkeypatch.chdir(tmp_path)
    Path("runs/first").mkdir(parents=True)
    Path("runs/first/run.json").write_text("{}")
    monkeypatch.setattr("simcse_cli.training.setup.load_encoder", None)
    given = ("--train-file", corpus, "--model", tiny_model_dir, *options)
    outcome = invoke("train", *given)
    assert outcome.exit_code == 1, outcome.stderr
    assert "no such option" in outcome.stderr or "holds a run already" in outcome.stderr


def write(path, data):
    path.write_bytes(data)
    return path


BAD_FILES = {
    "missing": (None, "does not exist"),
    "empty": (b"", "is empty"),
    "binary": (b"\x7fELF\x00\x00\x01", "binary file"),
    "wrong encoding": ("Grüße\nnochmal\n".encode("latin1"), "not UTF-8"),
    "one column for sup": (b"one sentence\nanother\n", "a single column, two texts are needed"),
    "ragged table": (b"anchor,positive\na,b\na,b,c,d\n", "line 3"),
    "one sentence": (b"only one\n", "at least 2"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_training_file_is_named_with_the_fix(invoke, tiny_model_dir, tmp_path, kind):
    content, message = BAD_FILES[kind]
    path = tmp_path / ("x.csv" if kind == "ragged table" else "x.txt")
    if content is not None:
        write(path, content)
    mode = "sup" if kind == "one column for sup" else "unsup"
    outcome = invoke(
        "train", "--mode", mode, "-m", tiny_model_dir, "--train-file", path, "-o", tmp_path / "run"
    )
    assert outcome.exit_code == 1
    assert message in outcome.stderr
    assert path.name in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--pooler", "max"), 2, "avg_first_last"),
        (("--mode", "both"), 2, "unsup or sup"),
        (("--mode", "sup", "--objective", "ct"), 2, "contradicts"),
        (("--set", "nonsense"), 2, "KEY=VALUE"),
        (("--set", "mlm_wieght=1"), 1, "did you mean mlm_weight"),
        (("--set", "lerning_rate=1"), 1, "did you mean the setting lr?"),
        (("--batch-size", "0"), 1, "--batch-size"),
        (("--model", "./nowhere"), 1, "does not exist"),
        (("--config", "nowhere.yaml"), 1, "neither a YAML file nor"),
        (("--augment", "chop:0.1"), 1, "chop"),
        (("--dropout-mode", "fixed", "--augment", "delete:0.1"), 1, "fixed"),
        (("--dropout-mode", "none", "--dropout", "0.1"), 2, "no use with --dropout-mode none"),
        (("--seeds", "1,2", "--seed", "3"), 2, "no use with --seeds"),
        (("--weight-decay", "-1"), 1, "need at least 0"),
    ],
)
def test_bad_settings_are_refused(
    invoke, corpus, tiny_model_dir, tmp_path, arguments, code, message
):
    command = ("train", "-m", tiny_model_dir, "--train-file", corpus, "-o", tmp_path / "run")
    outcome = invoke(*with_options((*command, "--max-steps", 1), *arguments))
    assert outcome.exit_code == code, outcome.stderr
    assert message in " ".join(outcome.stderr.split())
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    ("lines", "message", "fix"),
    [
        ("batch-size: 0", "batch_size 0: need at least 1", None),
        ("device: gpu", "device: 'gpu'; need auto, cpu", None),
        ("dropout: 0.1\ndropout-mode: none", "dropout: has no use with --dropout-mode none", None),
        (
            "hard-neg-alpha: 3",
            "hard_negative_alpha 3.0: --objective",
            "leave hard_negative_alpha out",
        ),
        ("options: {mlm_wieght: 1}", "options mlm_wieght: --objective", "mean mlm_weight"),
    ],
)
def test_a_bad_setting_of_a_recipe_names_the_recipe(
    invoke, corpus, tiny_model_dir, tmp_path, lines, message, fix
):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(lines)
    command = ("train", "-m", tiny_model_dir, "--train-file", corpus, "-o", tmp_path / "run")
    outcome = invoke(*command, "--max-steps", 1, "--config", recipe)
    assert outcome.exit_code in (1, 2)
    said = " ".join(outcome.stderr.split())
    assert f"error: {recipe}: {message}" in said
    assert fix is None or fix in said


def test_a_bad_setting_names_its_last_source(invoke, corpus, tiny_model_dir, tmp_path, monkeypatch):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("hard-neg-alpha: 2")
    monkeypatch.setenv("SIMCSE_HARD_NEG_ALPHA", "3")
    command = ("train", "-m", tiny_model_dir, "--train-file", corpus, "-o", tmp_path / "run")
    command = (*command, "--config", recipe)
    outcome = invoke(*command, "--format", "json")
    error = json.loads(outcome.stderr.splitlines()[-1])
    assert error["place"] == "SIMCSE_HARD_NEG_ALPHA"
    assert error["fix"] == "unset SIMCSE_HARD_NEG_ALPHA"
    outcome = invoke(*command, "--hard-neg-alpha", 4)
    assert "error: --hard-neg-alpha 4.0: --objective" in outcome.stderr


def test_a_last_batch_of_one_row_is_taken_or_told(invoke, tiny_model_dir, tmp_path):
    source = tmp_path / "texts.txt"
    command = ["train", "-m", tiny_model_dir, "--train-file", source, "--epochs", 1]
    command += ["--batch-size", 4, "-o", tmp_path / "run", "--format", "json"]
    told = "each epoch leaves out 1 of 5 rows: its last batch needs at least 2"
    for objective, n_texts, n_steps in (
        ("simcse-unsup", 5, 1),
        ("mlm", 5, 2),
        ("tsdae", 1, 1),
    ):
        source.write_text("".join(f"This is text {i}.\n" for i in range(n_texts)))
        outcome = invoke(*command, "--objective", objective, "--force")
        assert outcome.exit_code == 0, outcome.stderr
        assert json.loads((tmp_path / "run" / "run.json").read_text())["step"] == n_steps
        assert (told in outcome.stderr) == (objective == "simcse-unsup")
    outcome = invoke(*command, "--objective", "simcse-unsup", "--force")
    assert "1 training example, need at least 2" in outcome.stderr


def test_batches_of_one_row_are_told_to_teach_nothing(invoke, corpus, tiny_model_dir, tmp_path):
    command = ("train", "-m", tiny_model_dir, "--train-file", corpus, "-o", tmp_path / "run")
    outcome = invoke(*command, "--max-steps", 1, "--batch-size", 1)
    assert outcome.exit_code == 0, outcome.stderr
    assert "--batch-size 1: negatives come from the batch, so the loss is 0" in outcome.stderr
    scored = tmp_path / "scored.csv"
    scored.write_text("sentence1,sentence2,score\na dog,a cat,1.5\na dog,the dog,4.5\n")
    command = ("train", "-m", tiny_model_dir, "--train-file", scored, "-o", tmp_path / "scored")
    outcome = invoke(*command, "--objective", "cosent", "--max-steps", 1, "--batch-size", 1)
    assert outcome.exit_code == 0, outcome.stderr
    assert "the loss compares the scores of a batch, so it is 0" in outcome.stderr


@pytest.mark.parametrize(
    "objective",
    [
        ("barlow-twins", "--set", "projector_dim=16"),
        ("is-bert",),
        ("simcse-unsup", "--set", "dimension_weight=0.1"),
    ],
)
def test_batches_of_one_row_are_refused_where_rows_are_compared(
    invoke, corpus, tiny_model_dir, tmp_path, objective
):
    command = ("train", "-m", tiny_model_dir, "--train-file", corpus, "-o", tmp_path / "run")
    outcome = invoke(*command, "--max-steps", 1, "--batch-size", 1, "--objective", *objective)
    assert outcome.exit_code == 1
    assert "compares the rows of a batch here, need at least 2" in " ".join(outcome.stderr.split())


def test_unknown_key_in_a_recipe_names_the_nearest(invoke, corpus, tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("temprature: 0.1\n")
    outcome = invoke("train", "--config", recipe, "--train-file", corpus)
    assert outcome.exit_code == 1
    assert "did you mean temperature?" in outcome.stderr


def test_diverged_run_ends_with_the_step_and_the_fix(invoke, corpus, tiny_model_dir, tmp_path):
    outcome = invoke(
        *(
            "train",
            "-m",
            tiny_model_dir,
            "--train-file",
            corpus,
            "-o",
            tmp_path / "run",
            "--batch-size",
            8,
        ),
        *("--lr", "1e30", "--max-grad-norm", "1e30", "--epochs", 4, "--device", "cpu"),
    )
    assert outcome.exit_code == 1
    assert "the loss of step" in outcome.stderr
    assert "--lr" in outcome.stderr


def test_folder_that_cannot_be_written(invoke, corpus, tiny_model_dir, tmp_path):
    (tmp_path / "file").write_text("")
    outcome = invoke(
        "train",
        "-m",
        tiny_model_dir,
        "--train-file",
        corpus,
        "-o",
        tmp_path / "file" / "run",
        *QUICK,
    )
    assert outcome.exit_code == 1
    assert "cannot write" in outcome.stderr


def test_the_forecast_of_several_seeds_is_that_of_each_and_of_all(
    invoke, corpus, tiny_model_dir, monkeypatch
):
    """Ten minutes a step make three steps half an hour, and the runs of three seeds 90 minutes."""
    monkeypatch.setattr(dry_run, "_measure_steps", lambda trainer, batch: (0.5, 600.0))
    command = ("train", "-m", tiny_model_dir, "--train-file", corpus, *QUICK, "--dry-run")
    one = invoke(*command)
    assert "  run       30.0 min\n" in one.stdout
    assert "GiB in the run folder\n" in one.stdout
    three = invoke(*command, "--seeds", "1,2,3")
    assert three.exit_code == 0, three.stderr
    assert "  run       30.0 min for each of 3 seeds, 90.0 min for all\n" in three.stdout
    assert "GiB in each of 3 run folders\n" in three.stdout


@pytest.mark.parametrize("extra", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("seeds", "message"),
    [("1,1", "give each seed once"), ("1-3", "such as 1,2,3"), ("7", "one seed has no deviation")],
)
def test_wrong_seeds_are_refused_in_a_dry_run_too(
    invoke, corpus, tiny_model_dir, tmp_path, seeds, message, extra
):
    command = ("train", "-m", tiny_model_dir, "--train-file", corpus, "-o", tmp_path / "runs")
    refused = invoke(*command, *QUICK, "--seeds", seeds, *extra)
    assert refused.exit_code in (1, 2)
    assert message in refused.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("number", "fix"), [(27, "ulimit -f"), (28, "free some space")])
def test_a_state_that_the_system_refuses_to_write_is_explained_and_resumed(
    invoke, corpus, tiny_model_dir, tmp_path, monkeypatch, number, fix
):
    monkeypatch.chdir(tmp_path)
    call = ("train", "--mode", "unsup", "-m", tiny_model_dir, "--train-file", corpus, *QUICK)

    def refuse(*_):
        words = f"{os.strerror(number)} (os error {number})"
        raise SafetensorError(f"Error while serializing: I/O error: {words}")

    with monkeypatch.context() as patch:
        patch.setattr(state, "save_file", refuse)
        outcomes = [invoke(*call, "-o", "run"), invoke(*call)]
    for outcome in outcomes:
        assert outcome.exit_code == 1
        assert f"step-00000000: {os.strerror(number)}\n" in outcome.stderr
        assert fix in outcome.stderr
    assert outcomes[0].stderr.endswith("; to continue here, add --resume\n")
    added = outcomes[1].stderr.partition("to continue here, add ")[2].split()
    assert added[0] == "-o"
    assert invoke(*call, "-o", "run", "--resume").exit_code == 0
    assert invoke(*call, *added).exit_code == 0


@pytest.mark.parametrize("objective", ["diffcse", "rankcse"])
def test_a_model_that_an_objective_lacks_is_told_before_anything_is_read(
    invoke, tiny_model_dir, tmp_path, objective
):
    (tmp_path / "not.csv").write_bytes(b"\x00")  # a file that cannot be read
    source = ("-m", tiny_model_dir, "--train-file", tmp_path / "not.csv")
    outcome = invoke("train", *source, "--objective", objective, "-o", tmp_path / "run")
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith(f"error: --objective {objective} ")
    assert "none is named" in " ".join(outcome.stderr.split())


@pytest.mark.parametrize(
    ("more", "place"),
    [(("--num-processes", "2"), "r.yaml: patience"), (("--sweep", "s.yaml"), "r.yaml: lora_alpha")],
)
def test_several_runs_and_processes_tell_what_gave_a_wrong_setting(
    invoke, tiny_model_dir, tmp_path, monkeypatch, more, place
):
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text("patience: 3\n" if "2" in more else "lora_alpha: 3\n")
    Path("s.yaml").write_text("grid: {lr: [1.0e-5, 3.0e-5]}\nsettings: {dev_split: 0.2}\n")
    Path("t.txt").write_text("".join(f"This is sentence {n}.\n" for n in range(40)))
    source = ("-m", tiny_model_dir, "--train-file", "t.txt", "--device", "cpu")
    outcome = invoke("train", *source, "--config", "r.yaml", *more, "-o", "run")
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(f"error: {place}: has no use with")
    assert not Path("run").exists()
