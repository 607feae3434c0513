"""`simcse train --lora`: what learns, what is saved, how a run goes on, and what is refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers import SENTENCES, build_tiny_model
from simcse_cli.errors import ConfigError
from simcse_cli.models.adapters import merged_tensors
from simcse_cli.models.checkpoint import load_encoder, load_state_weights
from simcse_cli.models.encode import encode
from simcse_cli.objectives.registry import objective_defaults
from simcse_cli.progress import SilentProgress
from simcse_cli.results.runs import WEIGHTS_FILE, kept_states, read_run_record
from simcse_cli.settings.recipes import dump_config, resolve_config
from simcse_cli.training.loop import Trainer
from simcse_cli.training.run import train_run
from simcse_cli.training.setup import build_parts

pytest.importorskip("peft")


@pytest.fixture
def settings(tiny_model_dir, tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(SENTENCES) + "\n")
    return {
        "model": str(tiny_model_dir),
        "train_file": [str(tmp_path / "train.txt")],
        "batch_size": 8,
        "max_steps": 3,
        "lr": 1e-2,
        "lora": 4,
        "device": "cpu",
    }


def config_of(settings, **more):
    return resolve_config(flags=settings | more, objective_defaults=objective_defaults)


def train(settings, run, **more):
    record = train_run(config_of(settings, **more), run, SilentProgress())
    assert record.status == "finished"
    return record


def steps(config, folder, n=2):
    """Do some steps and return the weights before and after."""
    trainer = Trainer(config, build_parts(config, SilentProgress()), folder, SilentProgress())
    before = {name: tensor.clone() for name, tensor in trainer.objective.state_dict().items()}
    for step in range(n):
        trainer.train_step(step, trainer.batches.make(step))
    return before, trainer.objective.state_dict()


@pytest.mark.parametrize(
    "more",
    [
        {"pooler": "cls", "head": "kept"},
        {"options": {"mlm_weight": 0.1}},
        {"objective": "ct", "optimizer": "adamw"},
        {"micro_batch_size": 4},
    ],
    ids=["head", "masked-LM term", "two encoders", "chunks"],
)
def test_only_adapters_and_heads_learn(settings, tmp_path, more):
    before, after = steps(config_of(settings, **more), tmp_path)
    moved = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    adapters = {name for name in before if ".lora_" in name}
    assert adapters <= moved
    assert not [name for name in moved - adapters if "backbone." in name]
    assert {name for name in before if "encoder.head." in name} <= moved


def test_at_first_the_model_is_what_it_was(settings, tiny_model_dir):
    parts = build_parts(config_of(settings, pooler="avg"), SilentProgress())
    plain = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    found = encode(parts.objective.eval_encoder(), SENTENCES)
    np.testing.assert_allclose(found, encode(plain, SENTENCES), atol=1e-6)


def test_the_saved_model_is_whole_and_an_adapter_gives_the_same_vectors(settings, tmp_path):
    train(settings, tmp_path / "whole")
    record = train(settings, tmp_path / "adapter", lora_save="adapter")
    whole, adapter = tmp_path / "whole" / "model", tmp_path / "adapter" / "model"
    assert not list(whole.glob("adapter*"))
    assert (whole / "model.safetensors").is_file()
    assert not (adapter / "model.safetensors").exists()
    assert all(value < 1e-5 for value in record.scores["probe_max_abs_difference"].values())
    base = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert base == settings["model"]
    vectors = [encode(load_encoder(folder, device="cpu"), SENTENCES) for folder in (whole, adapter)]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    before = encode(
        load_encoder(settings["model"], pooler="cls_before_pooler", device="cpu"), SENTENCES
    )
    assert np.abs(vectors[0] - before).max() > 1e-2


def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(settings, tmp_path):
    config = config_of(settings, lora_save="adapter")
    train_run(config, tmp_path / "straight", SilentProgress())
    run = tmp_path / "stopped"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(config))
    parts = build_parts(config, SilentProgress())
    Trainer(config, parts, run, SilentProgress(), should_stop=lambda: True).run()
    assert read_run_record(run).step == 1
    train_run(config, run, SilentProgress(), resume=True)
    for name in ("model/adapter_model.safetensors", "model/adapter_config.json"):
        assert (run / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
    (one,), (other,) = (
        kept_states(folder / "checkpoint") for folder in (run, tmp_path / "straight")
    )
    assert (one / WEIGHTS_FILE).read_bytes() == (other / WEIGHTS_FILE).read_bytes()


@pytest.mark.parametrize("lora_save", ["merged", "adapter"])
def test_states_of_a_run_can_be_judged(settings, tmp_path, lora_save):
    train(settings, tmp_path / "run", lora_save=lora_save)
    encoder = load_encoder(tmp_path / "run", device="cpu")
    expected = encode(encoder, SENTENCES)
    again = load_encoder(tmp_path / "run", device="cpu")
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    (state,) = kept_states(tmp_path / "run" / "checkpoint")
    load_state_weights(again, state)
    np.testing.assert_allclose(encode(again, SENTENCES), expected, atol=1e-5)
    if lora_save == "merged":
        tensors = load_file(state / WEIGHTS_FILE)
        names = {name: name.partition("backbone.")[2] for name in tensors if "backbone." in name}
        merged = merged_tensors({short: tensors[name] for name, short in names.items()}, 16 / 4)
        saved = load_file(tmp_path / "run" / "model" / "model.safetensors")
        assert all(torch.equal(saved[name], tensor) for name, tensor in merged.items())


def test_training_goes_on_from_an_adapter_with_all_weights_or_a_new_adapter(settings, tmp_path):
    train(settings, tmp_path / "first", lora_save="adapter")
    model = str(tmp_path / "first")
    train(settings, tmp_path / "full", model=model, lora=None)
    before = load_encoder(model, device="cpu").state_dict()
    after = load_encoder(tmp_path / "full", device="cpu").state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert "backbone.embeddings.word_embeddings.weight" in moved
    train(settings, tmp_path / "second", model=model)
    assert (tmp_path / "second" / "model" / "model.safetensors").is_file()
    with pytest.raises(ConfigError, match="is an adapter itself"):
        train(settings, tmp_path / "third", model=model, lora_save="adapter")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lora", "0"), "--lora 0: need at least 1"),
        (("--lora", "32"), "need a rank below 32"),
        (("--lora-alpha", "8"), "--lora-alpha: has no use without --lora"),
        (("--lora-save", "adapter"), "--lora-save: has no use without --lora"),
        (("--lora", "4", "--lora-alpha", "0"), "--lora-alpha 0.0: need a number above 0"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    invoke, settings, tmp_path, flags, message
):
    outcome = invoke(
        "train",
        "-m",
        settings["model"],
        "--train-file",
        settings["train_file"][0],
        "-o",
        tmp_path / "run",
        *flags,
    )
    assert outcome.exit_code == (2 if "has no use" in message else 1)
    assert message in " ".join(outcome.stderr.split())
    assert not (tmp_path / "run").exists()


def test_without_peft_nothing_starts(invoke, settings, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    (tmp_path / "empty.txt").touch()
    outcome = invoke(
        "train", "-m", settings["model"], "--train-file", tmp_path / "empty.txt", "-o", tmp_path / "run",
        "--lora", "4",
    )  # fmt: skip
    assert outcome.exit_code == 1
    assert "install 'simcse-cli[peft]'" in outcome.stderr
    assert not (tmp_path / "run").exists()


def test_other_architectures_train_padded(settings, tmp_path):
    model = build_tiny_model(tmp_path / "albert", model_type="albert")
    before, after = steps(config_of(settings, model=str(model), pooler="avg"), tmp_path)
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        name for name in before if ".lora_" in name
    }
