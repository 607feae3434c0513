"""Checkpoints that a run keeps: how many, what is in them, and that they are the weights of their step."""

import dataclasses
import os
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import SENTENCES, generator_beside, small_run, train_until
from simcse_cli.errors import CheckpointError, DataError
from simcse_cli.files.inputs import read_json
from simcse_cli.models.checkpoint import kept_checkpoints, load_encoder, load_state_weights
from simcse_cli.models.encode import ReadyEncoder, encode
from simcse_cli.progress import SilentProgress
from simcse_cli.results.runs import STATE_FILE, WEIGHTS_FILE, kept_states, step_of
from simcse_cli.settings.choices import DevSuite, DropoutMode, HeadUse, ObjectiveName, Pooler
from simcse_cli.training import state as states
from simcse_cli.training.loop import Trainer
from simcse_cli.training.setup import build_parts


@pytest.fixture
def settings(tiny_model_dir, tmp_path, sts_folder):
    return small_run(tiny_model_dir, tmp_path, sts_folder, batch_size=6, max_steps=5, lr=1e-3)


def steps_in(run_dir):
    return [step_of(path) for path in kept_states(run_dir / "checkpoint")]


@pytest.mark.parametrize(
    ("keep", "expected"),
    [(1, [5]), (3, [3, 4, 5]), (0, [0, 1, 2, 3, 4, 5]), (9, [0, 1, 2, 3, 4, 5])],
)
def test_the_newest_states_are_kept_and_only_the_last_can_go_on(settings, tmp_path, keep, expected):
    train_until(dataclasses.replace(settings, keep_checkpoints=keep), tmp_path / "run")
    folders = kept_states(tmp_path / "run" / "checkpoint")
    assert [step_of(folder) for folder in folders] == expected
    assert [(folder / states.OPTIMIZER_FILE).exists() for folder in folders] == [False] * (
        len(expected) - 1
    ) + [True]


def test_kept_states_hold_the_weights_of_a_run_stopped_there(settings, tmp_path):
    train_until(dataclasses.replace(settings, keep_checkpoints=0), tmp_path / "all")
    for step in (1, 3):
        train_until(settings, tmp_path / f"until-{step}", stop_after=step)
        kept, stopped = (
            load_file(tmp_path / run / "checkpoint" / f"step-{step:08d}" / WEIGHTS_FILE)
            for run in ("all", f"until-{step}")
        )
        assert kept.keys() == stopped.keys()
        assert all(torch.equal(tensor, stopped[name]) for name, tensor in kept.items())


def test_keeping_more_changes_nothing_else_and_resumes_to_the_last_bit(settings, tmp_path):
    train_until(settings, tmp_path / "one")
    keeping = dataclasses.replace(settings, keep_checkpoints=2)
    assert train_until(keeping, tmp_path / "two", stop_after=2).status == "interrupted"
    train_until(keeping, tmp_path / "two")
    for name in (WEIGHTS_FILE, states.OPTIMIZER_FILE):
        one, two = (
            load_file(tmp_path / run / "checkpoint" / "step-00000005" / name)
            for run in ("one", "two")
        )
        assert all(torch.equal(tensor, two[key]) for key, tensor in one.items())
    assert steps_in(tmp_path / "two") == [4, 5]


def test_a_write_that_fails_leaves_the_earlier_states(settings, tmp_path, monkeypatch):
    keeping = dataclasses.replace(settings, keep_checkpoints=2)
    train_until(keeping, tmp_path / "run", stop_after=3)
    before = steps_in(tmp_path / "run")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(states, "write_json", fail)
    with pytest.raises(Exception, match="No space left"):
        train_until(keeping, tmp_path / "run")
    assert steps_in(tmp_path / "run") == before == [2, 3]
    assert (tmp_path / "run" / "checkpoint" / "step-00000003" / states.OPTIMIZER_FILE).exists()
    assert not list((tmp_path / "run" / "checkpoint").glob(".*"))


def test_model_and_states_have_the_mode_of_the_umask(settings, tmp_path):
    before = os.umask(0o027)
    try:
        train_until(dataclasses.replace(settings, max_steps=1), tmp_path / "run")
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".safetensors", ".json"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o640}


def test_the_state_of_the_best_step_is_the_model(settings, tmp_path):
    record = train_until(dataclasses.replace(settings, keep_checkpoints=0), tmp_path / "run")
    kept = kept_checkpoints(tmp_path / "run")
    assert [each.step for each in kept] == [0, 1, 2, 3, 4, 5]
    assert [each.step for each in kept if each.is_model] == [record.best_step]
    encoder = load_encoder(tmp_path / "run", device="cpu")
    load_state_weights(encoder, tmp_path / "run" / "checkpoint" / f"step-{record.best_step:08d}")
    assert (
        ReadyEncoder(encoder).digest
        == ReadyEncoder(load_encoder(tmp_path / "run", device="cpu")).digest
    )


def test_a_state_gives_the_vectors_that_its_step_had(settings, tmp_path):
    train_until(dataclasses.replace(settings, keep_checkpoints=0), tmp_path / "run")
    config = dataclasses.replace(settings, max_steps=2, dev_file=None)
    trainer = Trainer(config, build_parts(config, SilentProgress()), tmp_path, SilentProgress())
    trainer.total_steps = settings.max_steps  # the learning rate falls as in the whole run
    for step in range(2):
        trainer.train_step(step, trainer.batches.make(step))
    encoder = load_encoder(tmp_path / "run", device="cpu")
    load_state_weights(encoder, tmp_path / "run" / "checkpoint" / "step-00000002")
    expected = encode(trainer.objective.eval_encoder(), list(SENTENCES))
    np.testing.assert_array_equal(encode(encoder, list(SENTENCES)), expected)


@pytest.mark.parametrize("served", ["first", "second"])
def test_of_two_encoders_the_served_one_is_loaded(settings, tmp_path, served):
    config = dataclasses.replace(
        settings,
        objective=ObjectiveName.CT,
        pooler=Pooler.AVG,
        head=HeadUse.NONE,
        dropout_mode=DropoutMode.NONE,
        options={"serve_encoder": served, "n_negatives": 1},
        keep_checkpoints=0,
    )
    record = train_until(config, tmp_path / "run")
    encoder = load_encoder(tmp_path / "run", device="cpu")
    load_state_weights(encoder, tmp_path / "run" / "checkpoint" / f"step-{record.best_step:08d}")
    assert (
        ReadyEncoder(encoder).digest
        == ReadyEncoder(load_encoder(tmp_path / "run", device="cpu")).digest
    )
    state = tmp_path / "run" / "checkpoint" / "step-00000005" / STATE_FILE
    assert read_json(state)["served"] == ("encoder" if served == "first" else "second")


def test_run_without_dev_data_has_its_last_step_as_model(settings, tmp_path):
    train_until(
        dataclasses.replace(settings, dev_file=None, save_every=2, keep_checkpoints=0),
        tmp_path / "run",
    )
    kept = kept_checkpoints(tmp_path / "run")
    assert [(each.step, each.is_model) for each in kept] == [
        (0, False),
        (2, False),
        (4, False),
        (5, True),
    ]


def test_damaged_state_is_explained(settings, tmp_path):
    train_until(dataclasses.replace(settings, keep_checkpoints=0), tmp_path / "run")
    state = tmp_path / "run" / "checkpoint" / "step-00000001"
    encoder = load_encoder(tmp_path / "run", device="cpu")
    (state / WEIGHTS_FILE).write_bytes(b"broken")
    with pytest.raises(CheckpointError, match="step-00000001 cannot be read"):
        load_state_weights(encoder, state)
    shutil.rmtree(state)
    with pytest.raises(CheckpointError, match=r"state\.json does not exist"):
        load_state_weights(encoder, state)


@pytest.mark.parametrize("changed", ["train_file", "dev_file"])
def test_resume_refuses_changed_data(settings, tmp_path, changed):
    from pathlib import Path

    train_until(settings, tmp_path / "run", stop_after=2)
    given = getattr(settings, changed)
    path = Path(given[0] if isinstance(given, list) else given)
    path.write_text(path.read_text().replace("guitar", "violin"))
    with pytest.raises(DataError, match="has changed since the run"):
        train_until(settings, tmp_path / "run")


def test_resume_refuses_another_generator(settings, tiny_model_dir, tmp_path):
    generator = generator_beside(tiny_model_dir)
    config = dataclasses.replace(
        settings, objective=ObjectiveName.DIFFCSE, generator=str(generator)
    )
    train_until(config, tmp_path / "run", stop_after=2)
    weights = load_file(generator / "model.safetensors")
    weights["cls.predictions.bias"] += 1
    save_file(weights, generator / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=f"{generator} has changed since the run"):
        train_until(config, tmp_path / "run")


def test_resume_refuses_changed_data_of_a_suite(settings, sts_folder, tmp_path):
    config = dataclasses.replace(
        settings, dev_file=None, dev_suite=DevSuite.STS, data_dir=str(sts_folder)
    )
    train_until(config, tmp_path / "run", stop_after=2)
    sick = sts_folder / "downstream" / "SICK" / "SICK_trial.txt"
    sick.write_text(sick.read_text() + "9\tA cat.\tA dog.\t2.0\tNEUTRAL\n")
    with pytest.raises(DataError, match=r"SICK/SICK_trial\.txt has changed"):
        train_until(config, tmp_path / "run")
