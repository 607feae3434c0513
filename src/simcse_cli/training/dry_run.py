"""Forecast the time and memory of a run from its first batch and a few measured steps."""

import math
import time
from dataclasses import replace

from simcse_cli.machine.precision import resolve_precision
from simcse_cli.machine.processor import peak_memory_bytes
from simcse_cli.objectives.base import Batch
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.loop import Trainer

MEASURED_STEPS = 2
ENOUGH_S = 5.0
"""After this many seconds no further step is measured; slow steps are thus measured only once."""


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


def forecast(trainer: Trainer, *, n_seeds: int = 1) -> str:
    """Return a text with the first batch of a run and a forecast of its time, memory and disk.

    One dev evaluation and, after a first step, up to ``MEASURED_STEPS`` steps are measured. Nothing
    is written. For several seeds, the time is given for each run and for all, the disk for each.
    """
    batch = trainer.batches.make(0)
    loss, step_s = _measure_steps(trainer, batch)

    # The time of a run is that of its steps and of its evaluations, the first and last included.
    eval_s = 0.0
    n_evaluations = 0
    if trainer.dev_set is not None:
        started = time.perf_counter()
        trainer.evaluate()
        eval_s = time.perf_counter() - started
        n_evaluations = 1 + math.ceil(trainer.total_steps / trainer.config.eval_every)
    run_s = step_s * trainer.total_steps + eval_s * n_evaluations

    run_time = f"{run_s / 60:.1f} min"
    folder = "in the run folder"
    if n_seeds > 1:
        run_time += f" for each of {n_seeds} seeds, {n_seeds * run_s / 60:.1f} min for all"
        folder = f"in each of {n_seeds} run folders"

    # Show the first batch as the model sees it, and the forecast.
    lines = [
        f"first batch: {len(batch.texts)} examples, {len(batch.rows)} rows, "
        f"{batch.n_tokens:,} tokens",
        *(f"  {' | '.join(views)}" for views in batch.texts[:4]),
        f"  ... longest row {max(len(row) for row in batch.rows)} tokens, loss {loss:.4f}",
        "forecast",
        f"  step      {step_s:.2f} s",
        f"  steps     {trainer.total_steps:,}, dev evaluations {n_evaluations} of {eval_s:.1f} s",
        f"  run       {run_time}",
        f"  memory    {peak_memory_bytes(trainer.accelerator.device) / 2**30:.2f} GiB at its peak",
        f"  disk      {_disk_bytes(trainer) / 2**30:.2f} GiB {folder}",
    ]
    return "\n".join(lines) + "\n"


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
            # Stay in the first epoch, whose examples are made already. Stay in the run as well,
            # which may be shorter than an epoch: a step beyond its end has no learning rate.
            batch = trainer.batches.make(step % trainer.batches.steps_per_epoch)
            trainer.train_step(step % trainer.total_steps, batch)
            task.advance()
            seconds = time.perf_counter() - started
    return loss, seconds / step


def _disk_bytes(trainer: Trainer) -> int:
    """Return the size of the model and of as many resume states as are kept."""
    config = trainer.config
    weights = list(trainer.objective.parameters())
    weight_bytes = sum(weight.nbytes for weight in weights)
    trained_bytes = sum(weight.nbytes for weight in weights if weight.requires_grad)
    # A run saves its state before the first step, then after each interval and at the end.
    n_states = 1 + math.ceil(trainer.total_steps / (config.save_every or config.eval_every))
    if config.keep_checkpoints:
        n_states = min(n_states, config.keep_checkpoints)
    return weight_bytes * (1 + n_states) + 2 * trained_bytes  # 2: the newest state's moments
