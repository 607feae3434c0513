"""`--device cuda:N` reaches the choice of a device in every command that has the option; four GPUs stand in."""

from itertools import pairwise

import pytest
import torch

from helpers import SENTENCES
from simcse_cli import load
from simcse_cli.analysis.analyses import SPACE_ANALYSES
from simcse_cli.errors import ConfigError, UsageError
from surface import surface

MISSING = "--device cuda:4: this machine has 4 GPUs, counted from 0"
RATED = ["--pair-file", "rated.csv"]
PAIRS = ["pairs.csv", "-o", "o.csv"]
COMMANDS = {
    "analyze report": ["run", "--data-dir", "senteval", "-o", "r.html"],
    "analyze groups": ["texts.txt", "--k", "2"],
    "analyze search": ["--corpus", "texts.txt", "--query", "a cat"],
    "augment": ["texts.txt", "--method", "mlm", "-o", "a.csv"],
    "encode": ["texts.txt", "-o", "v.npy"],
    "eval mteb": ["--tasks", "STSBenchmark", "--data-dir", "senteval"],
    "eval sts": RATED,
    "eval transfer": ["--task-file", "labels.csv"],
    "prepare duplicates": ["texts.txt", "-o", "d.csv"],
    "prepare hard-negatives": PAIRS,
    "prepare pairs": ["texts.txt", "--paraphrases", "-o", "o.csv"],
    "train": ["--mode", "unsup", "--train-file", "texts.txt", "-o", "new"],
}
COMMANDS |= {f"analyze {name}": RATED for name in SPACE_ANALYSES}


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.fixture
def folder(tmp_path, sts_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = list(pairwise(SENTENCES))
    texts = {
        "texts.txt": SENTENCES,
        "pairs.csv": ["anchor,positive", *(f'"{a}","{b}"' for a, b in rows)],
        "rated.csv": [
            "left,right,score",
            *(f'"{a}","{b}",{n % 6}' for n, (a, b) in enumerate(rows)),
        ],
        "labels.csv": ["text,label", *(f'"{a}",{n % 2}' for n, (a, _) in enumerate(rows * 2))],
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def test_every_command_with_the_option_is_here():
    found = {line.split(" --device ")[0] for line in surface() if " --device " in line}
    assert found == {f"simcse {name}" for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_number_of_a_gpu_is_checked_in_every_command(
    name, invoke, folder, tiny_model_dir, four_gpus
):
    if name == "eval mteb":
        pytest.importorskip("mteb")
    model = [] if name == "analyze report" else ["--model", tiny_model_dir]
    if not (name == "augment" or name == "analyze report"):
        model += ["--pooler", "avg"]
    if name == "analyze report":
        train = ("train", "--mode", "unsup", "--train-file", "texts.txt", "--max-steps", 1)
        trained = invoke(*train, "-m", tiny_model_dir, "--device", "cpu", "-o", "run")
        assert trained.exit_code == 0, trained.stderr
    command = (*name.split(), *COMMANDS[name], *model, "--device")
    outcome = invoke(*command, "cuda:4")
    assert (outcome.exit_code, MISSING in " ".join(outcome.stderr.split())) == (1, True), (
        outcome.stderr
    )
    assert "use --device cuda:3, or cuda" in outcome.stderr
    outcome = invoke(*command, "cuda:one")
    assert (outcome.exit_code, "need auto, cpu, cuda, cuda:N" in outcome.stderr) == (2, True)


def test_the_number_of_a_gpu_is_checked_in_python(tiny_model_dir, four_gpus):
    with pytest.raises(ConfigError, match=MISSING):
        load(str(tiny_model_dir), pooler="avg", device="cuda:4")
    with pytest.raises(UsageError, match="need auto, cpu, cuda, cuda:N"):
        load(str(tiny_model_dir), pooler="avg", device="cuda:one")
