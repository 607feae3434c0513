"""Forecast the time and memory of a run from its first batch and a few measured steps."""

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from simcse_cli.machine.precision import resolve_precision
from simcse_cli.machine.processor import peak_memory_bytes
from simcse_cli.objectives.base import Batch
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.loop import Trainer

MEASURED_STEPS = 2
ENOUGH_S = 5.0
"""After this many seconds, no further step is measured: a slow step is measured only once."""


def effective_settings(trainer: Trainer) -> TrainConfig:
    """Return the settings with automatic values replaced by those that the run uses."""
    config = trainer.config
    device = trainer.accelerator.device
    return replace(
        config,
        temperature=config.effective_temperature,
        batches=trainer.batches.kind,
        max_steps=trainer.total_steps,
        save_every=config.save_every or config.eval_every,
        # The number of a GPU is shown only if the user has given one.
        device=str(device) if ":" in config.device else device.type,
        precision=resolve_precision(config.precision, device),
    )


@dataclass(frozen=True)
class Forecast:
    """The first batch of a run, and what one run will cost.

    With several seeds, ``n_seeds`` such runs are forecast.
    """

    n_examples: int
    n_rows: int
    n_tokens: int
    first_examples: list[tuple[str, ...]]
    longest_row: int
    loss: float
    step_s: float
    n_steps: int
    evaluation_s: float
    n_evaluations: int
    n_seeds: int
    memory_bytes: int
    disk_bytes: int

    @property
    def run_s(self) -> float:
        """The seconds of the steps, and of the dev evaluations from the first to the last."""
        return self.step_s * self.n_steps + self.evaluation_s * self.n_evaluations

    def text(self) -> str:
        """Return the first batch as the model sees it, and the forecast, for people."""
        run_time = f"{self.run_s / 60:.1f} min"
        folder = "in the run folder"
        if self.n_seeds > 1:
            all_s = self.n_seeds * self.run_s
            run_time += f" for each of {self.n_seeds} seeds, {all_s / 60:.1f} min for all"
            folder = f"in each of {self.n_seeds} run folders"
        lines = [
            f"first batch: {self.n_examples} examples, {self.n_rows} rows, "
            f"{self.n_tokens:,} tokens",
            *(f"  {' | '.join(views)}" for views in self.first_examples),
            f"  ... longest row {self.longest_row} tokens, loss {self.loss:.4f}",
            "forecast",
            f"  step      {self.step_s:.2f} s",
            f"  steps     {self.n_steps:,}, dev evaluations {self.n_evaluations} "
            f"of {self.evaluation_s:.1f} s",
            f"  run       {run_time}",
            f"  memory    {self.memory_bytes / 2**30:.2f} GiB at its peak",
            f"  disk      {self.disk_bytes / 2**30:.2f} GiB {folder}",
        ]
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"run_s": self.run_s}


def forecast(trainer: Trainer, *, n_seeds: int = 1) -> Forecast:
    """Forecast the time, memory and disk of a run, or of each run of several seeds.

    One dev evaluation and, after a first step, up to ``MEASURED_STEPS`` steps are measured. Nothing
    is written.
    """
    batch = trainer.batches.make(0)
    loss, step_s = _measure_steps(trainer, batch)

    evaluation_s = 0.0
    n_evaluations = 0
    if trainer.dev_set is not None:
        started = time.perf_counter()
        trainer.evaluate()
        evaluation_s = time.perf_counter() - started
        n_evaluations = 1 + math.ceil(trainer.total_steps / trainer.config.eval_every)

    return Forecast(
        n_examples=len(batch.texts),
        n_rows=len(batch.rows),
        n_tokens=batch.n_tokens,
        first_examples=list(batch.texts[:4]),
        longest_row=max(len(row) for row in batch.rows),
        loss=loss,
        step_s=step_s,
        n_steps=trainer.total_steps,
        evaluation_s=evaluation_s,
        n_evaluations=n_evaluations,
        n_seeds=n_seeds,
        memory_bytes=peak_memory_bytes(trainer.accelerator.device),
        disk_bytes=_disk_bytes(trainer),
    )


def _measure_steps(trainer: Trainer, batch: Batch) -> tuple[float, float]:
    """Return the loss of a first step over ``batch``, and the mean seconds of the next steps."""
    with trainer.progress.task("measuring steps") as task:
        # The first step is not timed, because it includes work that is done only once.
        loss = trainer.train_step(0, batch).loss
        task.advance()
        started = time.perf_counter()
        seconds = 0.0
        step = 0
        while step < MEASURED_STEPS and seconds < ENOUGH_S:
            step += 1
            # Stay in the first epoch: its examples are made already. Stay in the run, too, which
            # may be shorter than an epoch: a step beyond the end has no learning rate.
            batch = trainer.batches.make(step % trainer.batches.steps_per_epoch)
            trainer.train_step(step % trainer.total_steps, batch)
            task.advance()
            seconds = time.perf_counter() - started
    return loss, seconds / step


def _disk_bytes(trainer: Trainer) -> int:
    """Return the bytes of the saved model and of the resume states that are kept."""
    config = trainer.config
    weights = list(trainer.objective.parameters())
    weight_bytes = sum(weight.nbytes for weight in weights)
    trained_bytes = sum(weight.nbytes for weight in weights if weight.requires_grad)
    # A run saves its state before the first step, then after each interval and at the end.
    n_states = 1 + math.ceil(trainer.total_steps / (config.save_every or config.eval_every))
    if config.keep_checkpoints:
        n_states = min(n_states, config.keep_checkpoints)
    # Only the newest state has moments, two for each trained weight.
    return weight_bytes * (1 + n_states) + 2 * trained_bytes
