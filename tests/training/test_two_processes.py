"""Whole runs on two processes of the tiny model: what is logged, dev scores, uneven chunks, stopping together."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from helpers import (
    SENTENCES,
    build_tiny_model,
    generator_beside,
    write_sts_folder,
    write_transfer_folder,
)
from processes import run_on_processes
from simcse_cli.models import encode as encoding
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.objectives.registry import objective_defaults
from simcse_cli.progress import SilentProgress
from simcse_cli.results import runs
from simcse_cli.settings.choices import Batches, DevSuite, Metric, ObjectiveName
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.recipes import resolve_config
from simcse_cli.training.dev import build_dev_set
from simcse_cli.training.loop import Trainer
from simcse_cli.training.run import train_run
from simcse_cli.training.setup import build_parts

SMALL_BATCH = 64  # tokens; a dev set is encoded in several batches
LABELS = ("entailment", "neutral", "contradiction")


def train(config: TrainConfig, folder: Path, stop_at: int | None = None) -> dict[str, Any]:
    """Train in a folder and return what this process saw of the run."""
    folder.mkdir(exist_ok=True)
    n_calls = iter(range(1, 99))
    parts = build_parts(config, SilentProgress())
    if parts.batches.teachers is not None:
        parts.batches.teachers.prepare(folder, SilentProgress())
    trainer = Trainer(
        config,
        parts,
        folder,
        SilentProgress(),
        should_stop=lambda: next(n_calls) == stop_at,
    )
    status = trainer.train()
    return {"status": status, "step": trainer.position.step}


def runs_on_two(
    rank: int, configs: dict[str, TrainConfig], folder: str
) -> dict[str, dict[str, Any]]:
    """Train each configuration on this process; only the second one is asked to stop."""
    encoding._batch_tokens = lambda _: SMALL_BATCH
    return {
        name: train(
            config, Path(folder) / name, stop_at=2 if (name, rank) == ("stopped", 1) else None
        )
        for name, config in configs.items()
    }


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainConfig]:
    folder = tmp_path_factory.mktemp("two")
    (folder / "nli.tsv").write_text(
        "sentence1\tsentence2\tgold_label\n"
        + "".join(f"{SENTENCES[i]}\t{SENTENCES[i - 1]}\t{LABELS[i * i % 3]}\n" for i in range(24))
    )
    (folder / "plain.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES[:21]))
    for name, n_rows in (("repeated", 30), ("once", 20)):
        rows = (f'"{SENTENCES[i % 17]}","{SENTENCES[i % 19]} Yes."\n' for i in range(n_rows))
        (folder / f"{name}.csv").write_text("anchor,positive\n" + "".join(rows))
    sts = write_sts_folder(folder / "senteval")
    common = {
        "model": str(build_tiny_model(folder / "model")),
        "dropout_mode": "none",
        "batch_size": 4,
        "log_every": 1,
        "lr": 1e-3,
        "device": "cpu",
    }

    def config(objective: ObjectiveName, **flags: Any) -> TrainConfig:
        flags = common | {"objective": objective} | flags
        return resolve_config(flags=flags, objective_defaults=objective_defaults)

    plain = {"train_file": str(folder / "plain.txt"), "pooler": "avg"}
    repeated = {"train_file": str(folder / "repeated.csv"), "pooler": "avg", "epochs": 1}
    taught = {"teacher": [f"{build_tiny_model(folder / 'teacher', seed=1)}:2"]}
    edits = {"generator": str(generator_beside(folder / "model"))}
    edits["options"] = {"mask_rate": 0, "rtd_weight": 1}  # each process masks rows of its own
    once = {**repeated, "train_file": str(folder / "once.csv")}
    suite = {**plain, "data_dir": str(sts), "eval_every": 1, "max_steps": 3}
    transfer = str(write_transfer_folder(folder / "transfer", n_good=40, n_bad=36))
    dev = {"dev_file": str(sts / "downstream" / "STS" / "STSBenchmark" / "sts-dev.csv")}
    return {
        "sbert": config(ObjectiveName.SBERT, train_file=str(folder / "nli.tsv"), max_steps=2),
        "cosent": config(ObjectiveName.COSENT, train_file=dev["dev_file"], max_steps=2),
        "chunks": config(ObjectiveName.SIMCSE_UNSUP, **plain, micro_batch_size=4, epochs=1),
        "rankcse": config(ObjectiveName.RANKCSE, **plain, **taught, epochs=1),
        "distill": config(ObjectiveName.DISTILL, **plain, **taught, micro_batch_size=3, epochs=1),
        "guided": config(ObjectiveName.SIMCSE_SUP, **repeated, **taught),
        "diffcse": config(ObjectiveName.DIFFCSE, **plain, **edits, epochs=1),
        "queue": config(ObjectiveName.SIMCSE_UNSUP, **plain, options={"queue_size": 12}, epochs=2),
        "masked": config(ObjectiveName.SIMCSE_SUP, **repeated),
        "masked, chunks": config(ObjectiveName.SIMCSE_SUP, **repeated, micro_batch_size=3),
        "apart": config(ObjectiveName.SIMCSE_SUP, **once, batches=Batches.NO_DUPLICATES),
        "patience": config(
            ObjectiveName.CT, **plain, **dev, lr=1e-12, eval_every=1, patience=1, max_steps=9
        ),
        "sts": config(
            ObjectiveName.SIMCSE_UNSUP, **suite, dev_suite=DevSuite.STS, dev_metric=Metric.PEARSON
        ),
        "transfer": config(
            ObjectiveName.SIMCSE_UNSUP,
            **suite | dev | {"data_dir": transfer, "max_steps": 1},
            dev_suite=DevSuite.TRANSFER,
            dev_tasks="CR,TREC,SST2",
        ),
        "stopped": config(ObjectiveName.SIMCSE_UNSUP, **plain, max_steps=9),
    }


@pytest.fixture(scope="module")
def on_two(
    configs: dict[str, TrainConfig], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("runs")
    return folder, run_on_processes(runs_on_two, folder, configs, str(folder))


def logged(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


ALIKE = ["sbert", "cosent", "chunks", "masked", "masked, chunks", "apart"]
ALIKE += ["rankcse", "distill", "guided", "queue", "diffcse"]


@pytest.mark.parametrize("name", ALIKE)
def test_the_logged_loss_is_that_of_the_global_batch(name, configs, on_two, tmp_path):
    """The loss of SBERT is a mean over rows, of which each process has a share; 21 rows leave 3 and 2.

    CoSENT compares all pairs of the global batch.
    """
    alone = dataclasses.replace(configs[name], batch_size=8, micro_batch_size=None)
    train(alone, tmp_path / "alone")
    expected, found = logged(tmp_path / "alone"), logged(on_two[0] / name)
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    for line, other in zip(found, expected, strict=True):
        for key in {"loss", "grad_norm", "accuracy"} & other.keys():
            assert line[key] == pytest.approx(other[key], abs=2e-5, rel=2e-6), (line["step"], key)


@pytest.mark.parametrize(
    ("name", "status", "step"), [("patience", "stopped-early", 1), ("stopped", "interrupted", 2)]
)
def test_processes_stop_at_the_same_step(name, status, step, on_two):
    """Only the first process knows the score, and here only the second is asked to stop."""
    first, second = (result[name] for result in on_two[1])
    assert first == second == {"status": status, "step": step}


@pytest.mark.parametrize("name", ["sts", "transfer"])
def test_the_dev_score_is_that_of_one_process_to_the_last_bit(name, configs, on_two, monkeypatch):
    """Batches are shared, not sentences, so that every vector is computed beside the same others."""
    monkeypatch.setattr(encoding, "_batch_tokens", lambda _: SMALL_BATCH)
    lines = {line["step"]: line for line in logged(on_two[0] / name)}
    best = json.loads((on_two[0] / name / "model" / "simcse.json").read_text())["step"]
    dev_set, _ = build_dev_set(configs[name], SilentProgress())
    for step, folder in ((0, configs[name].model), (best, str(on_two[0] / name / "model"))):
        encoder = load_encoder(folder, pooler="avg", force_pooler=True)
        score = dev_set.score(ReadyEncoder(encoder).encode)
        assert score.score is not None
        assert lines[step]["dev_score"] == score.score
        assert lines[step]["dev_tasks"] == score.tasks
        assert (lines[step]["alignment"], lines[step]["uniformity"]) == (
            score.alignment,
            score.uniformity,
        )


def replace_run(rank: int, config: TrainConfig, folder: str) -> int:
    """Train in the folder of another run; return the step at which this process starts."""
    open_run_dir = runs.open_run_dir

    def open_slowly(path: Path, *, force: bool) -> None:
        time.sleep(1)
        open_run_dir(path, force=force)

    runs.open_run_dir = open_slowly
    starts: list[int] = []
    compile_kernels = Trainer.compile_kernels
    Trainer.compile_kernels = lambda self, steps: (
        starts.append(steps.start),
        compile_kernels(self, steps),
    )
    train_run(config, Path(folder), SilentProgress(), force=True)
    return starts[0]


def test_no_process_takes_the_state_of_a_run_that_is_replaced(configs, tmp_path):
    config = dataclasses.replace(configs["stopped"], max_steps=2)
    train(config, tmp_path / "run")
    assert run_on_processes(replace_run, tmp_path, config, str(tmp_path / "run")) == [0, 0]
