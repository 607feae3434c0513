import json
import shutil

import pytest

from helpers import SENTENCES

DOCUMENTS = "\n\n".join("\n".join(SENTENCES[i:] * 2) for i in range(0, 24, 4))
NLI = "sentence1\tsentence2\tgold_label\n" + "\n".join(
    f"{SENTENCES[i]}\t{SENTENCES[i - 1]}\t{('entailment', 'neutral', '-')[i % 3]}"
    for i in range(24)
)


@pytest.fixture
def train(invoke, tiny_model_dir, sts_folder, tmp_path):
    """Return a function that trains the tiny model for two steps on a given text."""

    def run(text, *arguments, suffix="txt"):
        source = tmp_path / f"source.{suffix}"
        source.write_text(text + "\n")
        dev_file = sts_folder / "downstream" / "STS" / "STSBenchmark" / "sts-dev.csv"
        return invoke(
            *("train", "--model", tiny_model_dir, "--train-file", source, "--dev-file", dev_file),
            *(
                "--batch-size",
                4,
                "--max-steps",
                2,
                "--eval-every",
                1,
                "--device",
                "cpu",
                "--format",
                "json",
            ),
            *arguments,
        )

    return run


@pytest.mark.parametrize(
    ("text", "suffix", "arguments", "pooler"),
    [
        (
            DOCUMENTS,
            "txt",
            ("next-sentence", "--dual-encoder", "--mlm-weight", 0.1),
            "cls_before_pooler",
        ),
        (DOCUMENTS, "txt", ("declutr", "--set", "max_span=8", "--set", "min_span=4"), "avg"),
        (NLI, "tsv", ("sbert",), "avg"),
        ("\n".join(SENTENCES), "txt", ("is-bert", "--set", "n_channels=8"), "avg"),
        ("\n".join(SENTENCES), "txt", ("mlm", "--whole-words"), "avg"),
        ("\n".join(SENTENCES), "txt", ("vicreg", "--set", "projector_dim=16"), "cls_before_pooler"),
    ],
)
def test_objective_trains_and_leaves_a_model(
    train, invoke, tmp_path, text, suffix, arguments, pooler
):
    outcome = train(text, "--objective", *arguments, "-o", tmp_path / "run", suffix=suffix)
    assert outcome.exit_code == 0, outcome.stderr
    record = json.loads(outcome.stdout)
    assert (record["status"], record["pooler"]) == ("finished", pooler)
    assert record["scores"]["probe_max_abs_difference"]["sentence_transformers"] < 1e-5
    encoded = invoke(
        "encode", "-", "-o", tmp_path / "v.npy", "--model", tmp_path / "run", input="A sentence.\n"
    )
    assert encoded.exit_code == 0, encoded.stderr


def test_seeds_report_mean_and_deviation(train, tmp_path):
    outcome = train(
        "\n".join(SENTENCES), "--mode", "unsup", "--seeds", "1,2", "-o", tmp_path / "runs"
    )
    assert outcome.exit_code == 0, outcome.stderr
    result = json.loads(outcome.stdout)
    scores = [row["best"] for row in result["seeds"]]
    assert result["mean"]["best"] == pytest.approx(sum(scores) / 2)
    assert result["deviation"]["best"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)
    assert (tmp_path / "runs" / "seed-2" / "model" / "config.json").is_file()
    assert json.loads((tmp_path / "runs" / "seeds.json").read_text())["mean"] == result["mean"]


def test_sweep_reports_trials_and_resumes(train, tmp_path):
    sweep = tmp_path / "lr.yaml"
    sweep.write_text("settings: {objective: simcse-unsup}\ngrid: {lr: [1.0e-4, 1.0e-3]}\n")
    arguments = ("--sweep", sweep, "-o", tmp_path / "runs")
    outcome = train("\n".join(SENTENCES), *arguments)
    assert outcome.exit_code == 0, outcome.stderr
    result = json.loads(outcome.stdout)
    assert [trial["settings"] for trial in result["trials"]] == [{"lr": 1e-4}, {"lr": 1e-3}]
    assert (tmp_path / "runs" / "sweep.png").stat().st_size > 1000

    again = train("\n".join(SENTENCES), *arguments)
    assert again.exit_code == 1
    assert "--resume" in again.stderr
    resumed = train("\n".join(SENTENCES), *arguments, "--resume")
    assert json.loads(resumed.stdout) == result


def test_sweep_over_poolers_and_encoders_goes_on_after_a_kill(train, tmp_path):
    sweep = tmp_path / "grid.yaml"
    sweep.write_text(
        "settings: {objective: simcse-unsup}\ngrid: {pooler: [cls, avg], "
        "options.dual_encoder: [false, true]}\n"
    )
    arguments = ("--sweep", sweep, "-o", tmp_path / "runs")
    outcome = train("\n".join(SENTENCES), *arguments)
    assert outcome.exit_code == 0, outcome.stderr
    trials = json.loads(outcome.stdout)["trials"]
    assert len(trials) == 4
    lost = tmp_path / "runs" / "pooler=avg,dual_encoder=True"
    config = json.loads((lost / "run.json").read_text())["config"]
    assert (config["pooler"], config["options"]) == ("avg", {"dual_encoder": True})

    for entry in lost.iterdir():  # a kill before the first state leaves the settings alone
        if entry.name != "config.yaml":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    (tmp_path / "runs" / "sweep.json").unlink()
    resumed = train("\n".join(SENTENCES), *arguments, "--resume")
    assert json.loads(resumed.stdout)["trials"] == trials
    assert json.loads((tmp_path / "runs" / "sweep.json").read_text())["trials"] == trials


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--seeds", "1"), 1, "one seed has no deviation"),
        (("--seeds", "1,x"), 2, "whole numbers"),
        (("--seeds", "1,1"), 2, "give each seed once"),
        (("--sweep", "simcse-gird"), 1, "did you mean simcse-grid?"),
        (("--sweep", "simcse-temperature", "--temperature", "0.1"), 1, "the sweep sets it too"),
        (("--objective", "ct", "--temperature", "0.1"), 1, "its loss has no temperature"),
        (("--objective", "next-sentence"), 1, "no blank line"),
    ],
)
def test_wrong_requests_say_what_is_wrong(train, arguments, code, message, tmp_path):
    outcome = train("\n".join(SENTENCES), *arguments, "-o", tmp_path / "runs")
    assert outcome.exit_code == code
    assert message in outcome.stderr
    assert not (tmp_path / "runs" / "config.yaml").exists()
