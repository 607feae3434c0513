"""What ``--resume`` needs, as safetensors and JSON: weights, optimizer moments, position, best score."""

import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from simcse_cli.errors import CheckpointError
from simcse_cli.files import output_error, read_json, write_json
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
    state = optimizer.state_dict()
    restored: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        _, index, name = key.split(".", 2)
        restored.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": restored, "param_groups": state["param_groups"]})


def save_state(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: Position,
    scaler: Any = None,
    *,
    keep: int = 1,
    served: str = "encoder",
) -> None:
    """Write the state of a step, unless it is there; earlier ones are thinned out once it is complete.

    Args:
        folder: holds one folder per state.
        module: the objective.
        optimizer: its optimizer.
        position: where the run stands.
        scaler: of mixed precision, if there is one.
        keep: the newest states that stay; 0 for all. Only the newest keeps what the optimizer needs.
        served: name of the encoder in ``module`` that is evaluated.

    Raises:
        OutputError: the folder cannot be written, for example because the disk is full.
    """
    target = folder / f"{STATE_PREFIX}{position.step:08d}"
    temporary = folder / f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        if not target.exists():  # a step has one state: everything in it follows from seed and step
            temporary.mkdir(parents=True)
            tensors, numbers = _flatten_optimizer(optimizer)
            weights = {f"module.{k}": v.detach().cpu().clone() for k, v in module.state_dict().items()}
            _save_tensors(weights, temporary / WEIGHTS_FILE)
            _save_tensors(tensors, temporary / OPTIMIZER_FILE)
            facts = {"format": 2, "position": asdict(position), "served": served, "optimizer": numbers}
            write_json(temporary / STATE_FILE, facts | {"scaler": scaler.state_dict() if scaler else None})
            os.replace(temporary, target)
        _thin_out(folder, target, keep)
    except OSError as error:
        raise output_error(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors; what the library reports of the disk becomes an ``OSError``."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(28 if "No space" in str(error) else 5, str(error)) from error


def _thin_out(folder: Path, newest: Path, keep: int) -> None:
    """Remove leftovers of interrupted writes and all but ``keep`` states, and the moments of older ones."""
    older = [state for state in kept_states(folder) if state != newest]
    dropped = older[: max(0, len(older) - keep + 1)] if keep else []
    for state in dropped:
        os.replace(state, folder / f".{state.name}.old")  # a state is there as a whole or not at all
    for state in older[len(dropped) :]:
        (state / OPTIMIZER_FILE).unlink(missing_ok=True)
    for leftover in folder.glob(".*"):
        shutil.rmtree(leftover, ignore_errors=True)


def latest_state(folder: Path) -> Path | None:
    """Return the newest complete state, or None."""
    states = kept_states(folder)
    return states[-1] if states else None


def load_state(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any = None
) -> Position:
    """Restore weights and moments from a state and return the position.

    Raises:
        CheckpointError: the state is corrupt or belongs to another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    hint = "start again with --force, which replaces the run"
    try:
        tensors = load_file(path / WEIGHTS_FILE) | load_file(path / OPTIMIZER_FILE)
        facts = read_json(path / STATE_FILE)
        weights = {k.removeprefix("module."): v for k, v in tensors.items() if k.startswith("module.")}
        module.load_state_dict(weights)
        moments = {k: v for k, v in tensors.items() if k.startswith("optimizer.")}
        _restore_optimizer(optimizer, moments, facts["optimizer"])
        if scaler and facts.get("scaler"):
            scaler.load_state_dict(facts["scaler"])
        return Position(**facts["position"])
    except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path}: the resume state cannot be read ({reason})", hint=hint) from error
