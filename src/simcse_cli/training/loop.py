"""The training loop: Accelerate for devices and precision, everything random a function of seed and step."""

import math
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from simcse_cli.choices import Precision
from simcse_cli.config import TrainConfig
from simcse_cli.devices import resolve_device, resolve_precision
from simcse_cli.errors import TrainingError
from simcse_cli.models.export import save_encoder, verify_export
from simcse_cli.objectives.base import Batch, Objective
from simcse_cli.progress import Progress, ProgressTask
from simcse_cli.runs import MetricsLog, RunRecord
from simcse_cli.training.batches import prefetch
from simcse_cli.training.cached_gradients import cached_backward
from simcse_cli.training.dev import DevScore, DevSet
from simcse_cli.training.optim import build_optimizer, clip_gradients, lr_factor, set_lr
from simcse_cli.training.order import epoch_order, local_indices, n_steps_per_epoch, step_generator
from simcse_cli.training.setup import TrainingParts, require_same_data
from simcse_cli.training.state import Position, latest_state, load_state, save_state

COLLAPSE_UNIFORMITY = -0.05  # closer to 0 than this, all vectors point the same way


@dataclass(frozen=True)
class StepResult:
    """One optimizer step: loss and its terms, gradient norm, examples of all processes."""

    loss: float
    losses: dict[str, float]
    metrics: dict[str, float]
    grad_norm: float
    lr: float
    n_examples: int
    n_tokens: int


def build_accelerator(config: TrainConfig) -> Accelerator:
    """Return an Accelerator for the device and precision of the settings."""
    device = resolve_device(config.device)
    precision = resolve_precision(config.precision, device)
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        AcceleratorState._reset_state(reset_partial_state=True)
    mixed = "no" if precision is Precision.FP32 else precision.value
    return Accelerator(mixed_precision=mixed, cpu=device.type == "cpu")


class Trainer:
    """One training run; ``run`` trains to the end or to an interruption, from the newest state if there is one.

    Args:
        config: resolved settings.
        parts: objective, data and dev set.
        run_dir: its folder; only the main process writes there.
        progress: shows the run.
        should_stop: asked after every step; true saves the state and returns.
    """

    def __init__(
        self,
        config: TrainConfig,
        parts: TrainingParts,
        run_dir: Path,
        progress: Progress,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config = config
        self.run_dir = run_dir
        self.progress = progress
        self.should_stop = should_stop
        self.data = parts.data
        self.digests = parts.digests
        self.dev_set: DevSet | None = parts.dev_set
        self.accelerator = build_accelerator(config)
        self.objective: Objective = parts.objective.to(self.accelerator.device)
        self.module: Any = self.accelerator.prepare(self.objective)
        self.optimizer = build_optimizer(self.objective, config)
        self.scaler = self.accelerator.scaler
        self.position = Position()
        n_processes = self.accelerator.num_processes
        self.global_batch_size = config.batch_size * n_processes
        n_examples = parts.digests["n_examples"]
        self.steps_per_epoch = max(1, n_steps_per_epoch(n_examples, self.global_batch_size, n_processes))
        self.total_steps = config.max_steps or max(1, math.ceil(config.epochs * self.steps_per_epoch))
        self._epoch: tuple[int, Any, Any] | None = None

    # --- data ---------------------------------------------------------------------------------------------

    def _examples_of(self, epoch: int) -> tuple[Any, Any]:
        """Return an epoch's examples and their order, the same on every process."""
        if self._epoch is None or self._epoch[0] != epoch:
            generator = step_generator(self.config.seed, epoch)
            examples = self.objective.examples(self.data, generator)
            window = self.config.bucket_batches
            lengths = (
                [sum(map(len, e)) if isinstance(e, tuple) else len(e) for e in examples]
                if window > 1
                else None
            )
            order = epoch_order(
                len(examples),
                generator,
                ordered=self.objective.ordered,
                lengths=lengths,
                window=window,
                batch_size=self.global_batch_size,
            )
            self._epoch = (epoch, examples, order)
        return self._epoch[1], self._epoch[2]

    def make_batch(self, step: int) -> Batch:
        """Return this process's batch of a 0-based step."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        examples, order = self._examples_of(epoch)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        indices = local_indices(order, step_in_epoch, self.global_batch_size, rank, world)
        generator = np.random.default_rng(np.random.SeedSequence((self.config.seed, epoch, step, rank)))
        return self.objective.collate([examples[int(i)] for i in indices], generator)

    # --- one step -----------------------------------------------------------------------------------------

    def _losses(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Compute and backpropagate the losses of a batch, in chunks with cached gradients where asked for."""
        micro = self.config.micro_batch_size
        # Several processes have to take the same path, however many rows each has.
        is_alone = self.accelerator.num_processes == 1
        if micro is None or (is_alone and len(batch.rows) <= micro):
            losses, metrics = self.module(batch)
            self.accelerator.backward(sum(losses.values()))
            return losses, metrics
        kept: dict[str, Any] = {}

        def loss_of(representations: tuple[Tensor, ...]) -> Tensor:
            with self.accelerator.autocast():
                kept["losses"], kept["metrics"] = self.objective.losses(representations, batch)
            terms: list[Tensor] = list(kept["losses"].values())
            return torch.stack(terms).sum()

        def encode(chunk: Batch) -> tuple[Tensor, ...]:
            with self.accelerator.autocast():
                return self.objective.encode(chunk)

        cached_backward(
            batch.chunks(micro),
            encode,
            loss_of,
            device=self.accelerator.device,
            backward=self.accelerator.backward,
        )
        self._average_gradients()
        return kept["losses"], kept["metrics"]

    def _average_gradients(self) -> None:
        """Average gradients over processes, which DDP does by itself on the plain path."""
        world = self.accelerator.num_processes
        if world > 1:
            for parameter in self.objective.parameters():
                if parameter.grad is not None:
                    torch.distributed.all_reduce(parameter.grad)
                    parameter.grad /= world

    def _mean_over_processes(self, *shares: dict[str, float]) -> tuple[dict[str, float], ...]:
        """Return numbers averaged over processes, all in one exchange.

        The mean of the shares that each process computes of a loss is the global value.
        """
        world = self.accelerator.num_processes
        if world == 1:
            return shares
        numbers = torch.tensor(
            [n for share in shares for n in share.values()], device=self.accelerator.device
        )
        torch.distributed.all_reduce(numbers)
        means = iter((numbers / world).tolist())
        return tuple({name: next(means) for name in share} for share in shares)

    def train_step(self, step: int, batch: Batch) -> StepResult:
        """Do one optimizer step; dropout depends on seed, step and process alone.

        Raises:
            TrainingError: the loss is not finite.
        """
        mixed = np.random.SeedSequence((self.config.seed, step, self.accelerator.process_index))
        torch.manual_seed(int(mixed.generate_state(1, np.uint64)[0] >> 1))
        self.module.train()
        lr = self.config.lr * lr_factor(self.config.schedule, step, self.total_steps, self.config.warmup)
        set_lr(self.optimizer.param_groups, lr)
        losses, metrics = self._losses(batch)
        values = {name: float(value.detach()) for name, value in losses.items()}
        values, metrics = self._mean_over_processes(values, metrics)
        loss = sum(values.values())
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss of step {step + 1} is {loss} "
                f"(parts: {values}, lr {lr:.2g}, precision {self.config.precision})",
                hint="lower --lr, raise --temperature, or use --precision fp32; the last state is kept for --resume",
            )
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        norm = clip_gradients(self.objective.parameters(), self.config.max_grad_norm)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.objective.after_step(step + 1)
        world = self.accelerator.num_processes
        return StepResult(
            loss, values, metrics, float(norm), lr, batch.n_examples * world, batch.n_tokens * world
        )

    # --- evaluation ---------------------------------------------------------------------------------------

    def evaluate(self) -> DevScore | None:
        """Score the model with dropout off; None without dev set or on other processes."""
        if self.dev_set is None or not self.accelerator.is_main_process:
            return None
        started = time.perf_counter()
        encoder = self.objective.eval_encoder()
        score = self.dev_set.score(lambda sentences: encoder.encode(sentences))
        self.position.eval_seconds += time.perf_counter() - started
        if score.score is None:
            self.progress.warn("the dev score is undefined: the vectors are constant or not finite")
        if score.uniformity is not None and score.uniformity > COLLAPSE_UNIFORMITY:
            self.progress.warn(
                f"collapse: uniformity {score.uniformity:.3f} means that all sentences get nearly the same vector; "
                "lower --lr or check the views"
            )
        return score

    def _note_score(self, step: int, score: DevScore | None) -> None:
        """Remember the best score, save its model, and count evaluations without gain."""
        if score is None or score.score is None:
            return
        position = self.position
        if step == 0:
            position.start_score = score.score
        elif position.best_score is None or score.score > position.best_score:
            position.best_score, position.best_step = score.score, step
            position.evaluations_without_gain = 0
            self._save_model()
        else:
            position.evaluations_without_gain += 1

    def _save_model(self) -> None:
        encoder = self.objective.eval_encoder()
        facts = {"objective": self.config.objective.value, "step": self.position.step}
        save_encoder(encoder, self.run_dir / "model", force=True, **facts)

    # --- the run ------------------------------------------------------------------------------------------

    def run(self) -> RunRecord:
        """Train from the newest state, or from the start, and return the record (also written to ``run.json``)."""
        state = latest_state(self.run_dir / "checkpoint")
        if state is not None:
            require_same_data(self.run_dir, self.digests)
            self.position = load_state(state, self.objective, self.optimizer, self.scaler)
            self.progress.info(
                f"resuming {self.run_dir} after step {self.position.step} of {self.total_steps}"
            )
        record = self._record("running")
        main = self.accelerator.is_main_process
        log = None
        if main:
            for leftover in self.run_dir.glob(".model.*.tmp"):  # of a run that was killed while it saved
                shutil.rmtree(leftover, ignore_errors=True)
            record.write(self.run_dir)
            log = MetricsLog(self.run_dir / "metrics.jsonl", last_step=self.position.step if state else None)
        if state is None:
            score = self.evaluate()
            self._note_score(0, score)
            if log is not None and score is not None:
                log.append({"step": 0, **_score_line(score)})
            self._save_state()
        status = self._train(log)
        self.accelerator.wait_for_everyone()
        if main:
            if status != "interrupted" and (self.dev_set is None or self.position.best_step is None):
                self._save_model()
            record = self._finish(status)
        return record

    def _stops(self) -> tuple[bool, bool]:
        """Say whether patience has run out or a stop was asked for, on any process: all do the same next."""
        patience = self.config.patience
        is_out = patience is not None and self.position.evaluations_without_gain >= patience
        (flags,) = self._mean_over_processes({"patience": float(is_out), "stop": float(self.should_stop())})
        return flags["patience"] > 0, flags["stop"] > 0

    def _train(self, log: MetricsLog | None) -> str:
        steps = range(self.position.step, self.total_steps)
        description = f"training {self.config.objective}"
        with (
            closing(prefetch(self.make_batch, steps)) as batches,
            self.progress.task(description, self.total_steps) as task,
        ):
            task.advance(self.position.step)
            for step, batch in zip(steps, batches, strict=True):
                if step == steps.start and self.objective.eval_encoder().must_compile(batch.n_tokens):
                    self.progress.info(
                        "compiling kernels for this processor, once: the first step takes longer"
                    )
                started = time.perf_counter()
                result = self.train_step(step, batch)
                elapsed = time.perf_counter() - started
                self.position.step = step + 1
                self.position.train_seconds += elapsed
                self.position.n_examples += result.n_examples
                self._after_step(result, elapsed, task, log)
                is_out_of_patience, is_told_to_stop = self._stops()
                if is_out_of_patience:
                    return "stopped-early"
                if is_told_to_stop and self.position.step < self.total_steps:
                    self._save_state()
                    return "interrupted"
        return "finished"

    def _after_step(
        self, result: StepResult, elapsed: float, task: ProgressTask, log: MetricsLog | None
    ) -> None:
        step = self.position.step
        last = step == self.total_steps
        rate = result.n_examples / elapsed
        line: dict[str, Any] = {}
        if step % self.config.eval_every == 0 or last:
            score = self.evaluate()
            self._note_score(step, score)
            if score is not None:
                line = _score_line(score)
                task.update(
                    dev=_percent(score.score),
                    best=_percent(self.position.best_score),
                    align=_short(score.alignment),
                    uniform=_short(score.uniformity),
                )
        task.update(loss=f"{result.loss:.4f}", rate=f"{rate:.0f}/s")
        task.advance()
        if log is not None and (line or step % self.config.log_every == 0 or step == 1 or last):
            log.append(
                {
                    "step": step,
                    "epoch": step / self.steps_per_epoch,
                    "loss": result.loss,
                    "losses": result.losses,
                    **result.metrics,
                    "lr": result.lr,
                    "grad_norm": result.grad_norm if math.isfinite(result.grad_norm) else None,
                    "sentences_per_second": rate,
                    "tokens_per_second": result.n_tokens / elapsed,
                    **line,
                }
            )
        every = self.config.save_every or self.config.eval_every
        if step % every == 0 and not last:
            self._save_state()

    def _save_state(self) -> None:
        if self.accelerator.is_main_process:
            served = self.objective.eval_encoder()
            save_state(
                self.run_dir / "checkpoint",
                self.objective,
                self.optimizer,
                self.position,
                self.scaler,
                keep=self.config.keep_checkpoints,
                served=next(name for name, part in self.objective.named_children() if part is served),
            )

    def _record(self, status: str) -> RunRecord:
        position = self.position
        train = position.train_seconds
        return RunRecord(
            status=status,
            objective=self.config.objective.value,
            model=self.config.model,
            seed=self.config.seed,
            config=self.config.to_dict(),
            data=self.digests,
            total_steps=self.total_steps,
            step=position.step,
            n_processes=self.accelerator.num_processes,
            start_score=position.start_score,
            best_score=position.best_score,
            best_step=position.best_step,
            timings={
                "train_s": train,
                "eval_s": position.eval_seconds,
                "sentences_per_second": position.n_examples / train if train else None,
            },
        )

    def _finish(self, status: str) -> RunRecord:
        from simcse_cli.models.checkpoint import load_encoder
        from simcse_cli.training.card import write_model_card

        record = self._record(status)
        if status != "interrupted":
            differences = verify_export(self.run_dir / "model")
            best = load_encoder(self.run_dir / "model", device="cpu")
            record.pooler, record.model_digest = best.pooler.value, best.digest
            record.scores = {"probe_max_abs_difference": differences}
            record.finished = datetime.now(UTC).isoformat(timespec="seconds")
            self._save_state()
            write_model_card(self.run_dir, record)
        record.write(self.run_dir)
        return record


def _score_line(score: DevScore) -> dict[str, Any]:
    """Return a dev evaluation under the names of ``metrics.jsonl``."""
    line = {"dev_score": score.score, "alignment": score.alignment, "uniformity": score.uniformity}
    return line | ({"dev_tasks": dict(score.tasks)} if score.tasks else {})


def _percent(score: float | None) -> str:
    return "–" if score is None else f"{100 * score:.2f}"


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
