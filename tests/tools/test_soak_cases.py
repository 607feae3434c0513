"""A fixed part of the soak suite: every attack once, and every reader of plain files on a few damages."""

import contextlib
import os
import shutil
from random import Random

import pytest

from helpers import SENTENCES
from soak import hostile, malformed
from soak.commands import WORKING, leaves

N_DAMAGES = 2


def test_every_command_has_arguments_that_work():
    assert set(WORKING) == set(leaves())


@pytest.mark.parametrize("attack", hostile.ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_is_refused_or_passed_over(attack, invoke, tiny_model_dir, tmp_path, monkeypatch):
    canary, folder = tmp_path / "executed", tmp_path / "work"
    monkeypatch.setenv("SOAK_CANARY", str(canary))
    folder.mkdir()
    tiny_model_dir.rename(folder / "model")
    (folder / "in.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    command = attack(folder, Random(1))
    with contextlib.chdir(folder):
        outcome = invoke(*command)
    assert not canary.exists()
    assert outcome.exit_code in (0, 1, 2)
    if attack not in hostile.HARMLESS | hostile.EITHER:
        assert "error: " in outcome.stderr.lower(), outcome.stderr
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(outcome.stderr + outcome.stdout)


@pytest.fixture(scope="module")
def inputs(_tiny_model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    with contextlib.chdir(folder):
        malformed.write_inputs(_tiny_model_dir, folder)
    return folder


PLAIN = [
    reader
    for reader in malformed.READERS
    if (
        reader.file.split(".")[0]
        in ("lines", "rows", "nli", "pairs", "vectors", "glove", "recipe", "settings")
        and reader.file not in ("lines.txt.gz", "rows.csv", "rows.tsv")
    )
    or reader.file.startswith(("bert/", "senteval/downstream/STS"))
]


@pytest.mark.parametrize("reader", PLAIN, ids=lambda reader: reader.name)
def test_damaged_files_are_errors_or_do_not_matter(reader, inputs, invoke, tmp_path):
    for seed in range(N_DAMAGES):
        folder = tmp_path / str(seed)
        shutil.copytree(inputs, folder, copy_function=os.link)
        data = malformed.damage(reader, inputs, Random(seed))
        (folder / reader.file).unlink()
        (folder / reader.file).write_bytes(data)
        with contextlib.chdir(folder):
            outcome = invoke(*reader.command.split())
        assert outcome.exit_code in (0, 1, 2), outcome.stderr
        assert outcome.exit_code == 0 or "rror" in outcome.stderr
