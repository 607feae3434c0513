"""Save and restore the state of a run: weights, optimizer moments, position and best score.

Tensors are saved as safetensors, the rest as JSON.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from simcse_cli.arrays import Floats
from simcse_cli.errors import CheckpointError, DataError, reason_of
from simcse_cli.files.atomic import (
    fsync_tree,
    staging_folder,
    temporary_beside,
    write_json,
    writing,
)
from simcse_cli.files.inputs import read_json
from simcse_cli.files.schema import checked
from simcse_cli.files.system import sync
from simcse_cli.objectives.base import Objective
from simcse_cli.results.runs import STATE_FILE, STATE_PREFIX, WEIGHTS_FILE, kept_states, step_of

OPTIMIZER_FILE = "optimizer.safetensors"
_UNREADABLE = (
    SafetensorError,
    DataError,
    OSError,
    RuntimeError,
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
)


@dataclass
class Position:
    """The position of a run after a completed optimizer step.

    ``start_score`` is the dev score before training, ``trained_score`` the best later one, and
    ``best_score`` the best of all. For each dev task, ``start_examples`` and ``best_examples`` hold
    the values of its examples by the model before training and by the best model.
    ``total_seconds`` covers all sessions, ``n_sentences`` all processes.
    """

    step: int = 0
    start_score: float | None = None
    trained_score: float | None = None
    best_score: float | None = None
    best_step: int | None = None
    evaluations_without_gain: int = 0
    total_seconds: float = 0.0
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    n_sentences: int = 0
    start_examples: dict[str, list[float]] = field(default_factory=dict)
    best_examples: dict[str, list[float]] = field(default_factory=dict)

    def note_score(self, score: float | None, examples: Mapping[str, Floats]) -> bool:
        """Record a dev score; return whether it is the best so far, the start included."""
        if score is None:
            return False
        if self.step == 0:
            self.start_score = score
            self.start_examples = _listed(examples)
        elif self.trained_score is None or score > self.trained_score:
            self.trained_score = score
        if self.best_score is None or score > self.best_score:
            self.best_score = score
            self.best_step = self.step
            self.evaluations_without_gain = 0
            self.best_examples = _listed(examples)
            return True
        self.evaluations_without_gain += 1
        return False


def _listed(examples: Mapping[str, Floats]) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in examples.items()}


@dataclass(frozen=True)
class States:
    """Save and restore the states of a run, one folder per step.

    ``keep`` is how many of the newest states to keep; 0 keeps all. Only the newest one keeps the
    optimizer's moments, since only it is resumed.
    """

    folder: Path
    objective: Objective
    optimizer: torch.optim.Optimizer
    scaler: Any = None
    keep: int = 1

    def save(self, position: Position) -> None:
        """Write the state of a step unless it exists, then remove what is no longer kept."""
        target = self.folder / f"{STATE_PREFIX}{position.step:08d}"
        with writing(target):
            # An existing state of this step is equal: everything follows from seed and step.
            if not target.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                with staging_folder(target) as temporary:
                    self._write(position, temporary)
                    fsync_tree(temporary)
                    os.replace(temporary, target)
                sync(self.folder)

            # Rename a state before removing it, so that no state exists in part.
            older = [state for state in kept_states(self.folder) if state != target]
            n_dropped = 0
            if self.keep:
                n_dropped = max(0, len(older) + 1 - self.keep)  # 1: the state of this step
            for state in older[:n_dropped]:
                retired = temporary_beside(state)
                os.replace(state, retired)
                shutil.rmtree(retired)
            # A run resumes from its newest state, so older ones need no moments.
            for state in older[n_dropped:]:
                (state / OPTIMIZER_FILE).unlink(missing_ok=True)

    def _write(self, position: Position, folder: Path) -> None:
        weights: dict[str, Tensor] = {}
        for name, tensor in self.objective.state_dict().items():
            weights[f"module.{name}"] = tensor.detach().cpu().clone()

        # For each parameter the optimizer keeps tensors, and some optimizers keep numbers, too.
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {}
        for index, values in self.optimizer.state_dict()["state"].items():
            for name, value in values.items():
                key = f"optimizer.{index}.{name}"
                if isinstance(value, Tensor):
                    tensors[key] = value.detach().cpu().contiguous()
                else:
                    numbers[key] = value
        save_file(weights, folder / WEIGHTS_FILE)
        save_file(tensors, folder / OPTIMIZER_FILE)
        encoder = self.objective.eval_encoder()
        facts = {
            "format": 2,
            "position": asdict(position),
            # Whoever loads this state as a model gets this part of the objective.
            "served": next(
                name for name, part in self.objective.named_children() if part is encoder
            ),
            "optimizer": numbers,
            "n_moments": len(tensors),
            "scaler": self.scaler.state_dict() if self.scaler else None,
        }
        write_json(folder / STATE_FILE, facts)

    def restore(self) -> Position | None:
        """Restore weights and moments from the newest state, if any, and return its position.

        Raise CheckpointError if the state cannot be read.
        """
        states = kept_states(self.folder)
        if not states:
            return None
        newest = states[-1]
        try:
            weights = load_file(newest / WEIGHTS_FILE)
            moments = load_file(newest / OPTIMIZER_FILE)
            facts = read_json(newest / STATE_FILE)
            for name, tensor in (weights | moments).items():
                if tensor.is_floating_point() and not tensor.isfinite().all():
                    raise ValueError(f"{name} is not finite")
            self.objective.load_state_dict(
                {name.removeprefix("module."): tensor for name, tensor in weights.items()}
            )
            _restore_optimizer(self.optimizer, moments, facts["optimizer"], facts.get("n_moments"))
            if self.scaler and facts.get("scaler"):
                self.scaler.load_state_dict(facts["scaler"])
            position: Position = checked(facts["position"], Position, "its position")
            if position.step != step_of(newest):
                raise ValueError(f"it is of step {position.step}")
            return position
        except _UNREADABLE as error:
            raise CheckpointError(
                f"{newest}: the resume state cannot be read ({reason_of(error)})",
                hint="start again with --force, which replaces the run",
            ) from error


def _restore_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, float],
    n_tensors: int | None,
) -> None:
    """Restore what the optimizer keeps for each parameter: tensors and numbers.

    ``n_tensors`` is how many tensors were saved, or None if this is not recorded. Raise ValueError
    if tensors or numbers are missing, or do not fit the parameters.
    """
    # A key is ``optimizer.INDEX.NAME``, where the index numbers the parameters.
    restored: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        _, index_text, name = key.split(".", 2)
        restored.setdefault(int(index_text), {})[name] = value
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, values in restored.items():
        # A moment has the shape of its parameter, and a step counter has none.
        shapes = {tuple(value.shape) for value in values.values() if isinstance(value, Tensor)}
        if index >= len(parameters) or shapes - {(), tuple(parameters[index].shape)}:
            raise ValueError(f"the moments of parameter {index} are not of its shape")
    # An optimizer keeps values of the same names for every parameter.
    sets_of_names = {frozenset(values) for values in restored.values()}
    if len(sets_of_names) > 1 or n_tensors not in (None, len(tensors)):
        raise ValueError("moments are missing")
    optimizer.load_state_dict(
        {"state": restored, "param_groups": optimizer.state_dict()["param_groups"]}
    )
