"""The training loop: batch, losses, backward, step, log, evaluate, save.

All random numbers depend on the seed, the step and the process alone, so that a resumed run
continues exactly.
"""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from simcse_cli.errors import TrainingError
from simcse_cli.machine import devices, processor
from simcse_cli.machine.precision import resolve_precision, set_float32_products
from simcse_cli.machine.processes import average_gradients, average_tensor, exchange
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.export import probe_vectors, save_encoder
from simcse_cli.objectives.base import Batch, Losses, Objective, Representations
from simcse_cli.objectives.registry import objective_label
from simcse_cli.packed.backbone import KERNELS_COMPILE
from simcse_cli.progress import Progress, ProgressTask
from simcse_cli.results.runs import Gain, RunRecord
from simcse_cli.settings.choices import LoraSave, Precision
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.batches import prefetch
from simcse_cli.training.cached_gradients import cached_backward
from simcse_cli.training.dev import DevScore, gain_of
from simcse_cli.training.optim import build_optimizer, clip_gradients, lr_factor
from simcse_cli.training.record import (
    Session,
    StepResult,
    complete_record,
    earlier_session,
    open_log,
    percent,
    require_same_data,
    score_line,
    show_step,
    step_line,
)
from simcse_cli.training.setup import TrainingParts
from simcse_cli.training.state import Position, States
from simcse_cli.training.trackers import RunLog

OnStep = Callable[[int, StepResult], object]
"""A function called with the number of steps done and the results since its last call."""
OnEval = Callable[[int, DevScore], object]
"""A function called with the number of steps done, 0 before training, and the model's scores."""
COLLAPSE_UNIFORMITY = -0.05  # vectors with a uniformity above it have collapsed; equal ones have 0
MOST_SKIPPED = 20
"""With fp16, a run stops after this many steps in a row whose gradient is not finite.

Each of them halves the scale of the loss. The scale starts at 2^16, so it is below 1 by then and
cannot be what makes the gradient infinite.
"""


def build_accelerator(config: TrainConfig) -> Accelerator:
    device = devices.resolve_device(config.device)
    precision = resolve_precision(config.precision, device)
    # Reset accelerate's state of this process, which may have the precision of an earlier run.
    AcceleratorState._reset_state(reset_partial_state=True)
    set_float32_products(precision, device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # accelerate takes the current device
    mixed = "no" if precision in (Precision.FP32, Precision.TF32) else precision.value
    return Accelerator(mixed_precision=mixed, cpu=device.type == "cpu")


@dataclass(frozen=True)
class RunningStep:
    """An optimizer step that the device may still be computing.

    ``terms`` and ``metrics`` are the names of the terms of the loss and of the metrics. ``numbers``
    holds their values in the same order, and the norm of the gradient as the last number.
    """

    step: int
    numbers: Tensor
    terms: list[str]
    metrics: list[str]
    lr: float
    n_sentences: int
    n_tokens: int


class Trainer:
    """One training run.

    Only the first process writes to ``run_dir``. ``should_stop`` is called after each step whose
    results are read; if it returns true, the state is saved and the run ends.
    """

    def __init__(
        self,
        config: TrainConfig,
        parts: TrainingParts,
        run_dir: Path,
        progress: Progress,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        on_step: OnStep | None = None,
        on_eval: OnEval | None = None,
    ) -> None:
        self.config = config
        self.run_dir = run_dir
        self.progress = progress
        self.should_stop = should_stop
        self.on_step = on_step
        self.on_eval = on_eval
        self.dev_set = parts.dev_set

        # Move the objective to its device first: the optimizer must get the moved parameters.
        self.accelerator = build_accelerator(config)
        self.rank = self.accelerator.process_index
        self.n_processes = self.accelerator.num_processes
        self.objective: Objective = parts.objective.to(self.accelerator.device)
        self.module: Any = self.accelerator.prepare(self.objective)  # averages its gradients
        self.optimizer = build_optimizer(self.objective, config)
        self.scaler = self.accelerator.scaler

        self.batches = parts.batches
        self.digests = parts.digests
        n_steps = math.ceil(config.epochs * self.batches.steps_per_epoch)
        self.total_steps = config.max_steps or max(1, n_steps)

        # Prepare what changes during the run; a resumed run restores part of it.
        self.states = States(
            run_dir / "checkpoint",
            self.objective,
            self.optimizer,
            self.scaler,
            config.keep_checkpoints,
        )
        self.position = Position()
        self.session = Session()
        # Reading results leaves a GPU idle, so only on a CPU are they read after every step.
        self.reads_every_step = self.accelerator.device.type == "cpu"
        self.n_skipped = 0  # steps in a row that the scaler of fp16 has skipped
        self.running: list[RunningStep] = []
        self.running_since = 0.0

    def run(self) -> RunRecord:
        """Train until the end, complete the run folder, and return the record.

        The record is saved as ``run.json``. If the run is interrupted, nothing else is completed.
        """
        status = self.train()
        # Wait for all processes. Accelerate's own wait would use GPUs even with --device cpu.
        exchange(None)
        record = self.record(status)
        if self.rank != 0:
            return record
        if status == "interrupted":
            record.write(self.run_dir)
            return record

        if self.n_skipped == self.total_steps:
            self.progress.warn(
                "the model is untrained: no step had a finite gradient in fp16, which needs some "
                "steps to find its scale"
            )
        # Without dev scores, the last model is the one to keep.
        if self.position.best_step is None:
            self.save_model()
        record.gain = self.gain()
        complete_record(record, self.run_dir, self.objective.eval_encoder().folder)
        self.save_state()
        record.write(self.run_dir)
        if record.best_step == 0 and record.trained_score is not None:
            self.progress.warn(
                f"training did not improve the model: dev score {percent(record.start_score)} "
                f"before, at most {percent(record.trained_score)} after; "
                f"{self.run_dir / 'model'} is the untrained model"
            )
        return record

    def train(self) -> str:
        """Train from the newest state, or from the start; return the status for ``run.json``."""
        is_resumed = self.restore()
        # When the block ends, also by an error, the log tells the tracker that the run has ended.
        with self.open_log(is_resumed=is_resumed) as log:
            if not is_resumed:
                self.evaluate_and_save_start(log)
            return self.take_steps(log)

    def take_steps(self, log: RunLog | None) -> str:
        """Take the steps of the run that are left; return the status for ``run.json``."""
        steps = range(self.position.step, self.total_steps)
        # Compile kernels before the first step, so that its time includes no compilation.
        self.compile_kernels(steps)
        title = f"training {objective_label(self.config.objective)}"
        if steps.start and steps:
            title += f", steps {steps.start + 1} to {steps.stop}"
        with (
            closing(prefetch(self.batches.make, steps)) as batches,
            self.progress.task(title, len(steps)) as task,
        ):
            # If patience ran out just before a kill, only the folder has still to be completed.
            if self.is_out_of_patience:  # the same on all processes, which have read one state
                return "stopped-early"
            for step, batch in zip(steps, batches, strict=True):
                self.start_step(step, batch)
                self.position.step = step + 1
                task.advance()
                # On a GPU, most steps go on without waiting for their results.
                if not self.wants_numbers():
                    continue
                self._evaluate_and_log(self.finish_steps(), task, log)
                status = self._save_or_stop()
                if status is not None:
                    return status
        return "finished"

    def _evaluate_and_log(self, result: StepResult, task: ProgressTask, log: RunLog | None) -> None:
        """Add a result to the totals, evaluate if due, and show and log the result and score."""
        position = self.position
        position.n_sentences += result.n_sentences
        position.train_seconds += result.seconds
        is_last = position.step == self.total_steps
        score = None
        if is_last or self.is_due(self.config.eval_every):
            score = self.evaluate()
        self.keep_best(score)
        show_step(task, result, score, position.best_score)
        if self.on_step is not None:
            self.on_step(position.step, result)
        is_logged = is_last or position.step == 1 or self.is_due(self.config.log_every)
        if log is not None and (is_logged or score is not None):
            epoch = position.step / self.batches.steps_per_epoch
            log.append(step_line(position.step, epoch, result, score))

    def _save_or_stop(self) -> str | None:
        """Save the state if it is due; return the status of a run that stops now, else None."""
        is_last = self.position.step == self.total_steps
        if not is_last and self.is_due(self.config.save_every or self.config.eval_every):
            self.save_state()
        is_out_of_patience, is_told_to_stop = self.stops()
        if is_out_of_patience:
            return "stopped-early"
        if is_told_to_stop and not is_last:
            self.save_state()
            return "interrupted"
        return None

    def restore(self) -> bool:
        """Restore the newest state; return whether there is one."""
        position = self.states.restore()
        if position is None:
            return False
        require_same_data(self.run_dir, self.digests)
        self.position = position
        self.session = earlier_session(self.run_dir)
        # The record may be newer than the state, and then counts more time.
        position.total_seconds = max(position.total_seconds, self.session.earlier_seconds)
        self.progress.info(
            f"resuming {self.run_dir} after step {position.step} of {self.total_steps}"
        )
        return True

    def open_log(self, *, is_resumed: bool) -> AbstractContextManager[RunLog | None]:
        """Write the first record of this session and open the log, both on process 0 alone."""
        if self.rank != 0:
            return nullcontext()
        return open_log(self.run_dir, self.record("running"), self.progress, resumed=is_resumed)

    def evaluate_and_save_start(self, log: RunLog | None) -> None:
        """Evaluate the untrained model, and save the state that a run starts from."""
        score = self.evaluate()
        self.keep_best(score)
        if log and score:
            log.append({"step": 0} | score_line(score))
        self.save_state()

    def compile_kernels(self, steps: range) -> None:
        """Run the encoder forward and backward once, if its kernels have to be compiled.

        The weights stay the same, and no optimizer step includes the compilation. The encoder has a
        note for the user: ``KERNELS_COMPILE`` if this is needed; any other note is only shown.
        """
        if not steps:
            return
        batch = self.batches.make(steps.start)
        if self.config.micro_batch_size is not None:
            batch = batch.chunks(self.config.micro_batch_size)[0]
        note = self.objective.eval_encoder().training_note(batch.n_tokens)
        if note == KERNELS_COMPILE:
            self.objective.train()
            with self.progress.task(note), self.accelerator.autocast():
                self.accelerator.backward(self.objective.embed(batch).sum())
            self.optimizer.zero_grad(set_to_none=True)
        elif note is not None:
            self.progress.info(note)

    def train_step(self, step: int, batch: Batch) -> StepResult:
        self.start_step(step, batch)
        return self.finish_steps()

    def wants_numbers(self) -> bool:
        """Tell whether to wait for the results of the steps so far.

        A GPU is idle during the wait, so on a GPU the program waits only when results are needed.
        """
        config = self.config
        step = self.position.step
        intervals = (config.log_every, config.eval_every, config.save_every or config.eval_every)
        return (
            self.reads_every_step
            or step in (1, self.total_steps)
            or any(map(self.is_due, intervals))
        )

    def start_step(self, step: int, batch: Batch) -> None:
        """Queue one optimizer step on the device, without waiting for its results.

        The dropout masks depend on the seed, the step and the process alone.
        """
        if not self.running:
            self.running_since = time.perf_counter()
        key = np.random.SeedSequence((self.config.seed, step, self.rank))
        # The shift leaves 63 bits, the positive range of a signed integer.
        torch.manual_seed(int(key.generate_state(1, np.uint64)[0] >> 1))
        self.module.train()
        lr = self.config.lr * lr_factor(
            self.config.schedule, step, self.total_steps, self.config.warmup
        )
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        terms, metrics = self.backward(batch.to(self.accelerator.device))
        norm = self.update()
        numbers = [*terms.values(), *metrics.values(), norm]
        self.running.append(
            RunningStep(
                step=step,
                numbers=torch.stack([number.detach() for number in numbers]),
                terms=list(terms),
                metrics=list(metrics),
                lr=lr,
                # The batches of the other processes are about as large.
                n_sentences=batch.n_sentences * self.n_processes,
                n_tokens=batch.n_tokens * self.n_processes,
            )
        )

    def finish_steps(self) -> StepResult:
        """Wait for the queued steps, check that they are finite, and return one result for all.

        Counts and seconds are sums over the queued steps; all else is that of the last step.
        """
        # One exchange averages all queued steps. The norm, the last column, is equal on all
        # processes already.
        steps = self.running
        self.running = []
        numbers = torch.stack([queued.numbers for queued in steps])
        averaged = average_tensor(numbers[:, :-1], self.n_processes).tolist()
        norms = numbers[:, -1].tolist()

        # The first bad step raises the error, because later ones follow from it.
        for step, values, norm in zip(steps, averaged, norms, strict=True):
            n_terms = len(step.terms)
            losses = dict(zip(step.terms, values[:n_terms], strict=True))
            metrics = dict(zip(step.metrics, values[n_terms:], strict=True))
            self._require_finite_step(step, losses, norm)

        # After the loop, ``step``, ``losses``, ``metrics`` and ``norm`` are those of the last step.
        return StepResult(
            loss=sum(losses.values()),
            losses=losses,
            metrics=metrics,
            grad_norm=norm,
            lr=step.lr,
            n_sentences=sum(queued.n_sentences for queued in steps),
            n_tokens=sum(queued.n_tokens for queued in steps),
            seconds=time.perf_counter() - self.running_since,
        )

    def _require_finite_step(
        self, step: RunningStep, losses: dict[str, float], norm: float
    ) -> None:
        """Raise TrainingError if the loss or the gradient of a step is NaN or infinite.

        With fp16, some steps may have such a gradient. ``n_skipped`` counts them while they come in
        a row; ``MOST_SKIPPED`` of them are an error.
        """
        loss = sum(losses.values())
        number = step.step + 1
        about = f"lr {step.lr:.2g}, precision {self.config.precision}"
        if not math.isfinite(loss):
            problem = f"the loss of step {number} is {loss} (parts: {losses}, {about})"
        elif not math.isfinite(norm):
            # The scaler of fp16 skips such a step and lowers its scale for the next one.
            self.n_skipped += 1
            if self.scaler is not None and self.n_skipped < MOST_SKIPPED:
                return
            problem = f"the gradient of step {number} is not finite (loss {loss:.4g}, {about})"
        else:
            self.n_skipped = 0
            return
        raise TrainingError(problem, hint=self._hint_for_finite(number))

    def _hint_for_finite(self, number: int) -> str:
        """Return what can help where the loss or the gradient of a step is not finite."""
        objective = type(self.objective)
        is_own = not objective.__module__.startswith("simcse_cli.")  # the user's own code
        if number == 1 and is_own:
            return f"correct {objective.name}: no weight has changed before step 1"
        # To resume would lead to the same step, since a resumed run keeps these settings. So all
        # of the ways start another run.
        ways = [] if number == 1 else ["a lower --lr"]  # step 1 comes before any update
        if hasattr(self.objective.options, "temperature"):
            ways.append("a higher --temperature")
        if resolve_precision(self.config.precision, self.accelerator.device) is not Precision.FP32:
            ways.append("--precision fp32")
        if not ways:
            return "start another run with a new -o and another --model: this one may be damaged"
        return f"start another run with a new -o and {' or '.join(ways)}"

    def backward(self, batch: Batch) -> Losses:
        """Compute and backpropagate the losses of a batch.

        With ``--micro-batch-size`` this is done in chunks, by cached gradients.
        """
        chunk_size = self.config.micro_batch_size
        # A batch of one chunk needs no cache. Several processes always use the cache, because all
        # must take the same path and their batches may differ in size.
        if chunk_size is None or (self.n_processes == 1 and len(batch.rows) <= chunk_size):
            losses, metrics = self.module(batch)
            self.accelerator.backward(sum(losses.values()))
            return losses, metrics

        # ``cached_backward`` calls ``loss`` once and returns only the sum of the terms, so ``loss``
        # keeps the terms here.
        kept_losses: list[Losses] = []

        def encode(chunk: Batch) -> Representations:
            with self.accelerator.autocast():
                return self.objective.encode(chunk)

        def loss(representations: Representations) -> Tensor:
            with self.accelerator.autocast():
                terms, metrics = self.objective.checked_losses(representations, batch)
            kept_losses.append((terms, metrics))
            return torch.stack(list(terms.values())).sum()

        cached_backward(
            batch.chunks(chunk_size),
            encode,
            loss,
            device=self.accelerator.device,
            backward=self.accelerator.backward,
        )
        # The chunks bypass the wrapper that averages gradients over processes.
        average_gradients(self.objective.parameters(), self.n_processes)
        return kept_losses[0]

    def update(self) -> Tensor:
        """Take an optimizer step; return the norm that the gradient had before it was clipped."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        norm = clip_gradients(self.objective.parameters(), self.config.max_grad_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.objective.after_step()
        return norm

    def evaluate(self) -> DevScore | None:
        """Score the model on the dev set, without dropout.

        All processes take part; only the first gets the score, the others None.
        """
        if self.dev_set is None:
            return None
        started = time.perf_counter()
        self.require_finite()
        encoder = ReadyEncoder(self.objective.eval_encoder())
        # The processes share the work. Vectors that are not finite are no error here: the dev set
        # leaves the score undefined.
        encode = partial(encoder.encode, check_finite=False, shared=True)
        score = self.dev_set.score(encode)
        self.position.eval_seconds += time.perf_counter() - started

        # Only the first process warns of undefined scores and collapsed vectors.
        if self.rank != 0:
            return None
        if score.score is None:
            self.progress.warn(f"the dev score is undefined: {score.why}")
        if score.uniformity is not None and score.uniformity > COLLAPSE_UNIFORMITY:
            self.progress.warn(
                f"collapse: by its uniformity of {score.uniformity:.3f}, all sentences get "
                "nearly the same vector; lower --lr or check the views"
            )
        return score

    def is_due(self, every: int) -> bool:
        return self.position.step % every == 0

    @property
    def is_out_of_patience(self) -> bool:
        patience = self.config.patience
        return patience is not None and self.position.evaluations_without_gain >= patience

    def stops(self) -> tuple[bool, bool]:
        """Tell whether patience has run out, and whether a stop was requested.

        Either is true on all processes as soon as it is true on one, so that they stop together.
        """
        flags = torch.tensor(
            [float(self.is_out_of_patience), float(self.should_stop())],
            device=self.accelerator.device,
        )
        is_out_anywhere, is_told_to_stop = (average_tensor(flags, self.n_processes) > 0).tolist()
        return is_out_anywhere, is_told_to_stop

    def keep_best(self, score: DevScore | None) -> None:
        """Pass a dev score, if any, to ``on_eval``; save the model if the score is the best."""
        if score is None:
            return
        if self.on_eval is not None:
            self.on_eval(self.position.step, score)
        if self.position.note_score(score.score, score.examples):
            self.save_model()

    def gain(self) -> Gain | None:
        """Return the gain of the best model over the start.

        The result is None without dev scores, if the start is best, or if ``gain_of`` gives none.
        """
        if self.position.best_step in (None, 0):
            return None
        after = {name: np.array(values) for name, values in self.position.best_examples.items()}
        before = {name: np.array(values) for name, values in self.position.start_examples.items()}
        return gain_of(self.dev_set, after, before, self.progress)

    def require_finite(self, encoder: SentenceEncoder | None = None) -> None:
        """Raise TrainingError if a weight, or a vector of ``encoder``, is NaN or infinite."""
        step = self.position.step
        hint = "copy or download the model again"
        if step:
            hint = "start another run with a new -o and a lower --lr"
        for name, weight in self.objective.named_parameters():
            if not weight.isfinite().all():
                raise TrainingError(
                    f"the weights are not finite after step {step} (first: {name})", hint=hint
                )
        if encoder is not None and not np.isfinite(probe_vectors(encoder)).all():
            raise TrainingError(
                f"the vectors are not finite after step {step}: the weights are too large",
                hint=hint,
            )

    def save_model(self) -> None:
        encoder = self.objective.eval_encoder()
        self.require_finite(encoder)
        save_encoder(
            encoder,
            self.run_dir / "model",
            force=True,
            keep_adapter=self.config.lora is not None and self.config.lora_save is LoraSave.ADAPTER,
            mlm_head=self.objective.mlm_head(),
            objective=objective_label(self.config.objective),
            step=self.position.step,
        )

    def save_state(self) -> None:
        if self.rank == 0:
            self.require_finite()
            self.position.total_seconds += self.session.lap()
            self.states.save(self.position)

    def record(self, status: str) -> RunRecord:
        """Return the record of the run in its present position, with its time until now."""
        config = self.config
        position = self.position
        device = self.accelerator.device
        seconds = position.train_seconds

        # Over the sessions of a run, times are added up, and the highest memory peak counts.
        position.total_seconds += self.session.lap()
        peak = max(self.session.peak_memory_bytes, processor.peak_memory_bytes(device))
        self.session.peak_memory_bytes = peak
        return RunRecord(
            status=status,
            objective=objective_label(config.objective),
            model=config.pinned_model,
            seed=config.seed,
            config=config.to_dict(),
            data=self.digests,
            total_steps=self.total_steps,
            step=position.step,
            n_processes=self.n_processes,
            start_score=position.start_score,
            trained_score=position.trained_score,
            best_score=position.best_score,
            best_step=position.best_step,
            timings={
                "train_s": seconds,
                "eval_s": position.eval_seconds,
                "hours": position.total_seconds / 3600,
                "sentences_per_second": position.n_sentences / seconds if seconds else None,
            },
            started=self.session.started,
            device=device.type,
            precision=resolve_precision(config.precision, device).value,
            hardware=processor.hardware(device),
            peak_memory_bytes=peak,
        )
