"""A run of any objective that dies between two saved states goes on to the same bits."""

import dataclasses

import pytest
import torch

from helpers import SENTENCES
from simcse_cli.config import TrainConfig, resolve_config
from simcse_cli.names import Objective as Name
from simcse_cli.objectives.base import Reads
from simcse_cli.objectives.registry import objective_class, objective_defaults
from simcse_cli.progress import SilentProgress
from simcse_cli.training.loop import Trainer
from simcse_cli.training.setup import build_parts

LABELS = ("entailment", "neutral", "contradiction")
OPTIONS = {
    Name.SIMCSE_UNSUP: {"mlm_weight": 0.1},
    Name.NEXT_SENTENCE: {"window": 3, "dual_encoder": True},
    Name.IS_BERT: {"n_channels": 8},
    Name.DECLUTR: {"min_span": 4, "max_span": 16},
    Name.BARLOW_TWINS: {"projector_dim": 16},
    Name.VICREG: {"projector_dim": 16},
}


class Killed(Exception):  # noqa: N818 - an event, not an error
    """Stands for kill -9: nothing after it runs."""


@pytest.fixture
def train_files(tmp_path):
    """Write a file of each kind."""
    texts = {
        Reads.ROWS: "\n".join(SENTENCES),
        Reads.DOCUMENTS: "\n\n".join("\n".join(SENTENCES[i:] * 2) for i in range(0, 24, 3)),
        Reads.LABELLED: "sentence1\tsentence2\tgold_label\n"
        + "\n".join(f"{SENTENCES[i]}\t{SENTENCES[i - 1]}\t{LABELS[i % 3]}" for i in range(24)),
    }
    paths = {}
    for kind, text in texts.items():
        paths[kind] = tmp_path / f"{kind}.{'tsv' if kind is Reads.LABELLED else 'txt'}"
        paths[kind].write_text(text + "\n")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("anchor\tpositive\n" + "\n".join(f"{a}\t{a} Yes." for a in SENTENCES) + "\n")
    return paths | {"pairs": pairs}


def config_of(name, train_files, model_dir) -> TrainConfig:
    reads = "pairs" if name is Name.SIMCSE_SUP else objective_class(name).reads
    flags = {
        "objective": name,
        "model": str(model_dir),
        "train_file": str(train_files[reads]),
        "batch_size": 8 if name is not Name.DECLUTR else 2,
        "max_steps": 4,
        "save_every": 2,
        "lr": 1e-3,
        "device": "cpu",
        "options": OPTIONS.get(name, {}),
    }
    return resolve_config(flags=flags, objective_defaults=objective_defaults())


def trainer_of(config, run_dir, should_stop=lambda: False) -> Trainer:
    run_dir.mkdir(exist_ok=True)
    return Trainer(config, build_parts(config, SilentProgress()), run_dir, SilentProgress(), should_stop)


@pytest.fixture(autouse=True)
def _without_export(monkeypatch):
    """Skip what follows training: the weights are compared in memory."""
    monkeypatch.setattr(Trainer, "_save_model", lambda self: None)
    monkeypatch.setattr(Trainer, "_finish", lambda self, status: self._record(status))


@pytest.mark.parametrize(
    ("name", "micro_batch_size"), [*((name, None) for name in Name), (Name.SIMCSE_SUP, 5), (Name.VICREG, 5)]
)
def test_killed_run_resumes_to_the_same_bits(name, micro_batch_size, train_files, tiny_model_dir, tmp_path):
    config = config_of(name, train_files, tiny_model_dir)
    config = dataclasses.replace(config, micro_batch_size=micro_batch_size)
    whole = trainer_of(config, tmp_path / "whole")
    whole.run()

    n_steps = iter(range(1, 99))

    def die_after_three_steps():
        if next(n_steps) == 3:
            raise Killed
        return False

    with pytest.raises(Killed):
        trainer_of(config, tmp_path / "killed", die_after_three_steps).run()
    resumed = trainer_of(config, tmp_path / "killed")
    resumed.run()
    assert resumed.position.step == 4
    expected = whole.objective.state_dict()
    for key, value in resumed.objective.state_dict().items():
        assert torch.equal(value, expected[key]), key
