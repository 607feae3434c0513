"""A run of any objective survives kill -9 at any moment and goes on to the same bits."""

import json
import os
import random
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers import build_tiny_model
from objectives.resume_cases import CASES, config_of, write_train_files
from processes import start_command
from simcse_cli.settings.recipes import dump_config
from simcse_cli.training.state import Position, States


@pytest.fixture(scope="module")
def train_files(tmp_path_factory) -> dict[str, Path]:
    return write_train_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model") / "bert")


def finish(*arguments: object) -> None:
    process = start_command("train", "-q", *arguments)
    process.join()
    assert process.exitcode == 0


def die_after_a_state(n_operations: int) -> None:
    """Kill this process at the N-th file that it opens, renames or removes once a step is saved."""
    save, left = States.save, iter(range(n_operations))

    def count(event: str, _: object) -> None:
        if event in ("open", "os.rename", "os.remove") and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    def save_and_count(states: States, position: Position) -> None:
        save(states, position)
        if position.step == 2:
            sys.addaudithook(count)

    States.save = save_and_count  # type: ignore[method-assign]


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


# Variants of an objective, which have a comma in their name, take too long for every run of tests.
VARIANTS = {name: (pytest.mark.upkeep,) if "," in name else () for name in CASES}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=marks) for name, marks in VARIANTS.items()]
)
def test_run_killed_anywhere_goes_on_to_the_same_bits(case, train_files, model_dir, tmp_path):
    config = config_of(case, train_files, model_dir)
    recipe, whole, killed = tmp_path / "recipe.yaml", tmp_path / "whole", tmp_path / "killed"
    recipe.write_text(dump_config(config))
    finish("--config", recipe, "-o", whole)
    die = partial(die_after_a_state, random.Random(case).randrange(200))
    process = start_command("train", "-q", "--config", recipe, "-o", killed, prepare=die)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    finish("-o", killed, "--resume")

    assert lines_of(killed) == lines_of(whole)
    expected, found = tensors_of(whole), tensors_of(killed)
    assert found.keys() == expected.keys()
    assert {name.partition("/")[0] for name in found} == {"model", "checkpoint"}
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
