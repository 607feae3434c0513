"""`prepare model M -o M --force`, killed while it exchanges the old folder for the new one."""

import os
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from helpers import SENTENCES
from processes import start_command
from simcse_cli.models import export
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="exchanges folders in one step")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_the_exchange() -> None:
    real = export.swap_names

    def swap_and_die(new: Path, old: Path) -> None:
        if not real(new, old):
            os._exit(9)
        die()

    export.swap_names = swap_and_die


def die_between_two_renames(target: Path) -> None:
    """Without an exchange in one step, the old folder is moved aside and then the new one to its place."""
    real = Path.rename

    def rename_and_die(self: Path, name: Path) -> None:
        real(self, name)
        if self == target:
            die()

    export.swap_names = lambda *_: False
    Path.rename = rename_and_die


def vectors(folder: Path) -> np.ndarray:
    return encode(load_encoder(folder, device="cpu"), list(SENTENCES))


@pytest.fixture
def model(invoke, tiny_model_dir, tmp_path):
    folder = tmp_path / "models" / "m"
    outcome = invoke("prepare", "model", tiny_model_dir, "-o", folder, "--pooler", "avg")
    assert outcome.exit_code == 0, outcome.stderr
    return folder


@pytest.mark.parametrize("way", ["in one step", "by two renames"])
def test_a_folder_is_there_or_put_back_after_a_kill(way, invoke, model, tmp_path):
    expected, said = vectors(model), tmp_path / "stderr"
    prepare = partial(die_between_two_renames, model)
    if way == "in one step":
        prepare = die_after_the_exchange
    command = ("prepare", "model", model, "-o", model, "--force")
    process = start_command(*command, stderr=said, prepare=prepare)
    process.join()
    if process.exitcode == 9:
        pytest.skip("this file system cannot exchange folders in one step")
    assert process.exitcode == -signal.SIGKILL, said.read_text()

    # The folder is there whole, or the next call puts it back.
    assert model.exists() == (way == "in one step")
    if model.exists():
        np.testing.assert_array_equal(vectors(model), expected)
    outcome = invoke(*command)
    assert outcome.exit_code == 0, outcome.stderr
    np.testing.assert_array_equal(vectors(model), expected)
    assert [path.name for path in model.parent.iterdir()] == ["m"]
