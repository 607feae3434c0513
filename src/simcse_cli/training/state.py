"""What ``--resume`` needs, as safetensors and JSON: weights, optimizer moments, position, best score."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from simcse_cli.errors import CheckpointError
from simcse_cli.files import output_error, read_json, settle, sync, temporary_beside, write_json
from simcse_cli.objectives.base import Objective
from simcse_cli.runs import STATE_FILE, STATE_PREFIX, WEIGHTS_FILE, kept_states

OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass
class Position:
    """Where a run stands after a completed optimizer step."""

    step: int = 0
    start_score: float | None = None
    best_score: float | None = None
    best_step: int | None = None
    evaluations_without_gain: int = 0
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    n_examples: int = 0

    def add_step(self, n_examples: int, seconds: float) -> None:
        """Count a step, the examples of all processes in it, and the time it took."""
        self.step += 1
        self.n_examples += n_examples
        self.train_seconds += seconds

    def note_score(self, score: float | None) -> bool:
        """Take in a dev score; return whether it is the best of the run, to which step 0 does not belong."""
        if score is None:
            return False
        if self.step == 0:
            self.start_score = score
        elif self.best_score is None or score > self.best_score:
            self.best_score, self.best_step, self.evaluations_without_gain = score, self.step, 0
            return True
        else:
            self.evaluations_without_gain += 1
        return False


@dataclass(frozen=True)
class States:
    """Saves and restores the state of a run, one folder a step.

    Attributes:
        folder: holds the folders.
        objective: its weights are saved.
        optimizer: of the weights.
        scaler: of fp16, if there is one.
        keep: how many states stay, the newest; 0 for all. Only the newest keeps what the optimizer needs.
    """

    folder: Path
    objective: Objective
    optimizer: torch.optim.Optimizer
    scaler: Any = None
    keep: int = 1

    def save(self, position: Position) -> None:
        """Write the state of a step, unless it is there, and remove earlier ones once it is complete.

        Raises:
            OutputError: the folder cannot be written, for example because the disk is full.
        """
        target = self.folder / f"{STATE_PREFIX}{position.step:08d}"
        temporary = temporary_beside(target)
        try:
            if not target.exists():  # a step has one state: everything in it follows from seed and step
                temporary.mkdir(parents=True)
                self._write(position, temporary)
                settle(temporary)
                os.replace(temporary, target)
                sync(self.folder)
            _thin_out(self.folder, target, self.keep)
        except OSError as error:
            raise output_error(target, error) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _write(self, position: Position, folder: Path) -> None:
        weights = {f"module.{k}": v.detach().cpu().clone() for k, v in self.objective.state_dict().items()}
        tensors, numbers = _flatten_optimizer(self.optimizer)
        _save_tensors(weights, folder / WEIGHTS_FILE)
        _save_tensors(tensors, folder / OPTIMIZER_FILE)
        encoder = self.objective.eval_encoder()
        facts = {
            "format": 2,
            "position": asdict(position),
            "served": next(name for name, part in self.objective.named_children() if part is encoder),
            "optimizer": numbers,
            "scaler": self.scaler.state_dict() if self.scaler else None,
        }
        write_json(folder / STATE_FILE, facts)

    def restore(self) -> Position | None:
        """Restore weights and moments from the newest state; return its position, None without a state.

        Raises:
            CheckpointError: the state is corrupt or belongs to another model.
        """
        states = kept_states(self.folder)
        if not states:
            return None
        newest = states[-1]
        try:
            weights, moments = load_file(newest / WEIGHTS_FILE), load_file(newest / OPTIMIZER_FILE)
            facts = read_json(newest / STATE_FILE)
            self.objective.load_state_dict({k.removeprefix("module."): v for k, v in weights.items()})
            _restore_optimizer(self.optimizer, moments, facts["optimizer"])
            if self.scaler and facts.get("scaler"):
                self.scaler.load_state_dict(facts["scaler"])
            return Position(**facts["position"])
        except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(
                f"{newest}: the resume state cannot be read ({reason})",
                hint="start again with --force, which replaces the run",
            ) from error


def _flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, float]]:
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, float] = {}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            key = f"optimizer.{index}.{name}"
            if isinstance(value, Tensor):
                tensors[key] = value.detach().cpu().contiguous()
            else:
                numbers[key] = value
    return tensors, numbers


def _restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]
) -> None:
    restored: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        _, index, name = key.split(".", 2)
        restored.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": restored, "param_groups": optimizer.state_dict()["param_groups"]})


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors; what the library reports of the disk becomes an ``OSError``."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(28 if "No space" in str(error) else 5, str(error)) from error


def _thin_out(folder: Path, newest: Path, keep: int) -> None:
    """Remove all but ``keep`` states, the moments of older ones, and leftovers of interrupted writes."""
    older = [state for state in kept_states(folder) if state != newest]
    dropped = older[: max(0, len(older) - keep + 1)] if keep else []
    for state in dropped:
        os.replace(state, folder / f".{state.name}.old")  # a state is there as a whole or not at all
    for state in older[len(dropped) :]:
        (state / OPTIMIZER_FILE).unlink(missing_ok=True)
    for leftover in folder.glob(".*"):
        shutil.rmtree(leftover, ignore_errors=True)
