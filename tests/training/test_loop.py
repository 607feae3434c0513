"""The loop on the tiny model: exact continuation, global batches over processes, and the losses it computes."""

import gc
import json
import math
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from helpers import SENTENCES, train_until
from processes import run_on_processes
from simcse_cli.errors import CheckpointError, TrainingError
from simcse_cli.models.encode import encode
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.packed.backbone import KERNELS_COMPILE
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import Batches, DropoutMode, HeadUse, ObjectiveName, Pooler
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training import run as runs_of_training
from simcse_cli.training.loop import Trainer, build_accelerator
from simcse_cli.training.setup import build_parts


@pytest.fixture
def files(tmp_path, sts_folder):
    """Write training files and return their paths with the dev file."""
    (tmp_path / "unsup.txt").write_text("\n".join(SENTENCES * 2) + "\n")
    rows = [
        f"{SENTENCES[i]}\t{SENTENCES[(i + 5) % 24]}\t{SENTENCES[(i + 9) % 24]}" for i in range(24)
    ]
    (tmp_path / "sup.tsv").write_text("anchor\tpositive\thard_negative\n" + "\n".join(rows) + "\n")
    dev = sts_folder / "downstream" / "STS" / "STSBenchmark" / "sts-dev.csv"
    return {"unsup": str(tmp_path / "unsup.txt"), "sup": str(tmp_path / "sup.tsv"), "dev": str(dev)}


@pytest.fixture
def settings(tiny_model_dir, files):
    return TrainConfig(
        model=str(tiny_model_dir),
        train_file=files["unsup"],
        dev_file=files["dev"],
        batch_size=8,
        epochs=2.0,
        lr=1e-3,
        eval_every=3,
        log_every=1,
        device="cpu",
    )


def final_tensors(run_dir):
    (state,) = (run_dir / "checkpoint").glob("step-*")
    return load_file(state / "state.safetensors") | load_file(state / "optimizer.safetensors")


def assert_same_run(one, other):
    first, second = final_tensors(one), final_tensors(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    models = [load_file(run / "model" / "model.safetensors") for run in (one, other)]
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())
    lines = [(run / "metrics.jsonl").read_text().splitlines() for run in (one, other)]
    stripped = [[without_times(json.loads(line)) for line in part] for part in lines]
    assert stripped[0] == stripped[1]


def without_times(line):
    return {k: v for k, v in line.items() if not k.endswith("_per_second")}


@pytest.mark.parametrize("stops", [[1], [3], [4, 5], [2, 1, 1, 7]])
def test_interrupted_run_continues_to_the_last_bit(settings, tmp_path, stops):
    train_until(settings, tmp_path / "whole")
    for stop in stops:
        assert train_until(settings, tmp_path / "parts", stop_after=stop).status == "interrupted"
    assert train_until(settings, tmp_path / "parts").status == "finished"
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_same_seed_same_run_other_seed_other_run(settings, tmp_path):
    import dataclasses

    train_until(settings, tmp_path / "a")
    train_until(settings, tmp_path / "b")
    assert_same_run(tmp_path / "a", tmp_path / "b")
    train_until(dataclasses.replace(settings, seed=1), tmp_path / "c")
    a, c = final_tensors(tmp_path / "a"), final_tensors(tmp_path / "c")
    name = "module.encoder.backbone.encoder.layer.0.output.dense.weight"
    assert not torch.equal(a[name], c[name])


def test_run_folder_holds_what_is_promised(settings, tmp_path):
    record = train_until(settings, tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"run.json", "metrics.jsonl", "model", "checkpoint", "README.md"} <= names
    saved = json.loads((tmp_path / "run" / "run.json").read_text())
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    best = max(
        line["dev_score"]
        for line in lines
        if line["step"] > 0 and line.get("dev_score") is not None
    )
    assert saved["best_score"] == best == record.best_score
    assert saved["start_score"] == lines[0]["dev_score"]
    assert saved["pooler"] == "cls_before_pooler"
    assert {
        "loss",
        "losses",
        "lr",
        "step",
        "alignment",
        "uniformity",
        "sentences_per_second",
    } <= set(lines[3])
    assert [line["step"] for line in lines] == list(range(13))


def test_first_loss_is_the_closed_form(settings, tmp_path):
    """Without dropout and without a head two equal views give log(sum_j exp(s_ij - s_ii)) of the plain vectors."""
    import dataclasses

    config = dataclasses.replace(
        settings, dropout_mode=DropoutMode.NONE, pooler=Pooler.AVG, head=HeadUse.NONE, max_steps=1
    )
    parts = build_parts(config, SilentProgress())
    trainer = Trainer(config, parts, tmp_path, SilentProgress())
    batch = trainer.batches.make(0)
    vectors = encode(
        parts.objective.encoder, [texts[0] for texts in batch.texts], max_length=32
    ).astype(np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    logits = unit @ unit.T / 0.05
    expected = np.mean([np.log(np.exp(row - row[i]).sum()) for i, row in enumerate(logits)])
    assert trainer.train_step(0, batch).loss == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_alpha_weighs_the_own_hard_negative_alone(settings, files, tmp_path, alpha):
    import dataclasses

    config = dataclasses.replace(
        settings,
        objective=ObjectiveName.SIMCSE_SUP,
        train_file=files["sup"],
        hard_negative_alpha=alpha,
        dropout_mode=DropoutMode.NONE,
        batches=Batches.SHUFFLED,  # the few texts of the file are shared
        pooler=Pooler.AVG,
        head=HeadUse.NONE,
        max_steps=1,
    )
    parts = build_parts(config, SilentProgress())
    trainer = Trainer(config, parts, tmp_path, SilentProgress())
    batch = trainer.batches.make(0)
    views = [
        encode(parts.objective.encoder, list(v), max_length=32).astype(np.float64)
        for v in zip(*batch.texts, strict=True)
    ]
    anchor, positive, negative = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in views)
    losses = []
    for i in range(len(anchor)):
        positives, negatives = (
            np.exp(anchor[i] @ positive.T / 0.05),
            np.exp(anchor[i] @ negative.T / 0.05),
        )
        negatives[i] *= alpha
        losses.append(-math.log(positives[i] / (positives.sum() + negatives.sum())))
    assert trainer.train_step(0, batch).loss == pytest.approx(np.mean(losses), abs=1e-5)


def test_fixed_dropout_gives_one_vector_for_both_views(settings, tmp_path):
    import dataclasses

    config = dataclasses.replace(settings, dropout_mode=DropoutMode.FIXED)
    parts = build_parts(config, SilentProgress())
    trainer = Trainer(config, parts, tmp_path, SilentProgress())
    batch = trainer.batches.make(0)
    assert len(batch.rows) == 8
    parts.objective.train()
    (embeddings,) = parts.objective.encode(batch)
    anchors, positives = parts.objective.views(embeddings, batch)
    assert torch.equal(anchors, positives)


def test_nan_loss_stops_the_run_and_keeps_the_state(settings, tmp_path):
    import dataclasses

    config = dataclasses.replace(settings, lr=1e30, max_grad_norm=1e30)
    with pytest.raises(TrainingError, match="loss of step") as caught:
        train_until(config, tmp_path / "run")
    assert "--lr" in caught.value.hint
    assert list((tmp_path / "run" / "checkpoint").glob("step-*"))


def test_corrupt_state_is_explained(settings, tmp_path):
    train_until(settings, tmp_path / "run", stop_after=4)
    (state,) = (tmp_path / "run" / "checkpoint").glob("step-*")
    (state / "state.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match="cannot be read"):
        train_until(settings, tmp_path / "run")


def test_patience_stops_early(settings, tmp_path):
    import dataclasses

    config = dataclasses.replace(settings, patience=1, eval_every=1, lr=1e-12, epochs=5.0)
    record = train_until(config, tmp_path / "run")
    assert record.status == "stopped-early"
    assert record.step < record.total_steps
    # A run that is killed while its folder is completed goes no further than the others.
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "running"}))
    resumed = train_until(config, tmp_path / "run")
    assert (resumed.status, resumed.step) == (record.status, record.step)


def _gradients(
    rank: int, config: TrainConfig, batch_size: int, folder: str
) -> tuple[float, dict[str, torch.Tensor]]:
    import dataclasses

    config = dataclasses.replace(config, batch_size=batch_size)
    trainer = Trainer(config, build_parts(config, SilentProgress()), Path(folder), SilentProgress())
    trainer.module.train()
    losses, _ = trainer.backward(trainer.batches.make(0))
    gradients = {
        name: p.grad for name, p in trainer.objective.named_parameters() if p.grad is not None
    }
    return float(sum(losses.values()).detach()), gradients


@pytest.mark.parametrize("mode", ["unsup", "sup"])
def test_two_processes_equal_one_with_the_doubled_batch(
    settings, files, tmp_path, mode, monkeypatch
):
    import dataclasses

    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    objective = ObjectiveName.SIMCSE_SUP if mode == "sup" else ObjectiveName.SIMCSE_UNSUP
    config = dataclasses.replace(
        settings, objective=objective, train_file=files[mode], dropout_mode=DropoutMode.NONE
    )
    loss, gradients = _gradients(0, config, 8, str(tmp_path))
    (tmp_path / "spawn").mkdir()
    results = run_on_processes(_gradients, tmp_path / "spawn", config, 4, str(tmp_path))
    for other_loss, other in results:
        assert other_loss == pytest.approx(loss, abs=1e-6)
        for name, gradient in gradients.items():
            torch.testing.assert_close(other[name], gradient, atol=1e-6, rtol=1e-5, msg=name)


def test_compiling_kernels_first_does_not_change_the_run(settings, tmp_path, monkeypatch):
    runs = [tmp_path / "plain", tmp_path / "compiled"]
    opened = []

    class Recorder(SilentProgress):
        def task(self, description, total=None):
            opened.append(description)
            return super().task(description, total)

    for run, note in zip(runs, (None, KERNELS_COMPILE), strict=True):
        monkeypatch.setattr(SentenceEncoder, "training_note", lambda *_, note=note: note)
        progress = Recorder()
        Trainer(settings, build_parts(settings, progress), run, progress).run()
    assert opened == ["training simcse-unsup", KERNELS_COMPILE, "training simcse-unsup"]
    assert_same_run(*runs)


def test_runs_of_a_group_may_differ_in_precision(settings, monkeypatch):
    import dataclasses

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    found = [
        build_accelerator(dataclasses.replace(settings, precision=precision)).mixed_precision
        for precision in ("fp32", "bf16")
    ]
    assert found == ["no", "bf16"]


def test_processes_meet_without_accelerate_which_takes_gpus_for_it(settings, tmp_path, monkeypatch):
    """With ``device_ids``, as accelerate has it, ``barrier`` needs the GPU of this number."""
    import dataclasses

    monkeypatch.setattr(Accelerator, "wait_for_everyone", None)
    config = dataclasses.replace(settings, dev_file=None, max_steps=1)
    assert train_until(config, tmp_path / "run").status == "finished"


def test_no_model_of_an_earlier_run_is_kept_in_memory(settings, tmp_path, monkeypatch):
    import dataclasses

    kept = []

    def noted(*arguments):
        parts = build_parts(*arguments)
        assert [model() for model in kept] == [None] * len(kept)
        kept.append(weakref.ref(parts.objective))
        return parts

    monkeypatch.setattr(runs_of_training, "build_parts", noted)
    config = dataclasses.replace(settings, dev_file=None, max_steps=1, precision="bf16")
    gc.disable()
    try:
        for name in ("one", "two"):
            runs_of_training.train_run(config, tmp_path / name, SilentProgress())
    finally:
        gc.enable()
    assert len(kept) == 2
