"""What a run would do: its first batch as text, measured steps, and a forecast of time and memory."""

import math
import resource
import sys
import time
from dataclasses import dataclass

import torch

from simcse_cli.training.loop import Trainer

MEASURED_STEPS = 2


@dataclass(frozen=True)
class Forecast:
    """A measured step and what follows from it; seconds and bytes."""

    texts: list[tuple[str, ...]]
    n_rows: int
    n_tokens: int
    longest_row: int
    loss: float
    step_s: float
    eval_s: float
    n_evaluations: int
    total_steps: int
    peak_memory_bytes: int
    disk_bytes: int

    @property
    def total_s(self) -> float:
        """Training and dev evaluations together."""
        return self.step_s * self.total_steps + self.eval_s * self.n_evaluations


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory used so far: of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def n_kept_states(trainer: Trainer) -> int:
    """Return how many states the run folder will hold: at most those of the start, every save and the end."""
    config = trainer.config
    n_saved = 1 + math.ceil(trainer.total_steps / (config.save_every or config.eval_every))
    return min(n_saved, config.keep_checkpoints) if config.keep_checkpoints else n_saved


def forecast(trainer: Trainer) -> Forecast:
    """Do one step unmeasured and ``MEASURED_STEPS`` measured ones, and one dev evaluation; write nothing."""
    first = trainer.batches.make(0)
    result = trainer.train_step(0, first)
    started = time.perf_counter()
    for step in range(1, 1 + MEASURED_STEPS):
        trainer.train_step(step, trainer.batches.make(step % trainer.batches.steps_per_epoch))
    step_s = (time.perf_counter() - started) / MEASURED_STEPS
    started = time.perf_counter()
    trainer.evaluate()
    eval_s = time.perf_counter() - started if trainer.dev_set is not None else 0.0
    n_evaluations = 0 if trainer.dev_set is None else 2 + trainer.total_steps // trainer.config.eval_every
    weights = sum(p.numel() * p.element_size() for p in trainer.objective.parameters())
    return Forecast(
        texts=list(first.texts),
        n_rows=len(first.rows),
        n_tokens=first.n_tokens,
        longest_row=max(len(row) for row in first.rows),
        loss=result.loss,
        step_s=step_s,
        eval_s=eval_s,
        n_evaluations=n_evaluations,
        total_steps=trainer.total_steps,
        peak_memory_bytes=peak_memory_bytes(trainer.accelerator.device),
        disk_bytes=weights * (3 + n_kept_states(trainer)),  # model, two moments, weights of every state
    )


def forecast_text(outlook: Forecast, n_shown: int = 4) -> str:
    """Return the first batch and the forecast as people read them."""
    lines = [
        f"first batch: {len(outlook.texts)} examples, {outlook.n_rows} rows, {outlook.n_tokens:,} tokens"
    ]
    lines += [f"  {' | '.join(views)}" for views in outlook.texts[:n_shown]]
    lines += [
        f"  ... longest row {outlook.longest_row} tokens, loss {outlook.loss:.4f}",
        "forecast",
        f"  step      {outlook.step_s:.2f} s",
        f"  steps     {outlook.total_steps:,}, dev evaluations {outlook.n_evaluations} of {outlook.eval_s:.1f} s",
        f"  run       {outlook.total_s / 60:.1f} min",
        f"  memory    {outlook.peak_memory_bytes / 2**30:.2f} GiB at its peak",
        f"  disk      {outlook.disk_bytes / 2**30:.2f} GiB in the run folder",
    ]
    return "\n".join(lines) + "\n"
