"""A run of any objective survives kill -9 at any moment and goes on to the same bits."""

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from resume_cases import CASES, config_of, write_train_files
from safetensors.torch import load_file

from helpers import build_tiny_model
from processes import start_command
from simcse_cli.settings.choices import ObjectiveName as Name
from simcse_cli.settings.recipes import dump_config


@pytest.fixture(scope="module")
def train_files(tmp_path_factory) -> dict[str, Path]:
    return write_train_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model") / "bert")


def test_every_objective_has_a_case():
    assert {name for name, _, _ in CASES.values()} == set(Name)


def finish(*arguments: object) -> None:
    process = start_command("train", "-q", *arguments)
    process.join()
    assert process.exitcode == 0


def kill_after_a_state(process: Any, run_dir: Path, delay: float) -> None:
    """Send SIGKILL once a step is saved and some time has passed."""
    deadline = time.monotonic() + 120
    while process.is_alive() and time.monotonic() < deadline:
        if any((run_dir / "checkpoint").glob("step-*[1-9]")):
            break
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def tensors_of(run_dir: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of a run folder: the model, the weights of the objective, the moments."""
    return {
        f"{path.relative_to(run_dir)}: {name}": tensor
        for path in run_dir.rglob("*.safetensors")
        for name, tensor in load_file(path).items()
    }


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.endswith("_per_second")} for line in lines]


@pytest.mark.parametrize("case", CASES)
def test_run_killed_anywhere_goes_on_to_the_same_bits(case, train_files, model_dir, tmp_path):
    config = config_of(case, train_files, model_dir)
    recipe, whole, killed = tmp_path / "recipe.yaml", tmp_path / "whole", tmp_path / "killed"
    recipe.write_text(dump_config(config))
    finish("--config", recipe, "-o", whole)
    process = start_command("train", "-q", "--config", recipe, "-o", killed)
    kill_after_a_state(process, killed, delay=random.Random(case).uniform(0, 0.15))
    finish("-o", killed, "--resume")

    assert lines_of(killed) == lines_of(whole)
    expected, found = tensors_of(whole), tensors_of(killed)
    assert found.keys() == expected.keys()
    assert {name.partition("/")[0] for name in found} == {"model", "checkpoint"}
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
