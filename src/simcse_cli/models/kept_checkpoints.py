"""The checkpoints in a run folder, its states and its model, as encoders that can be evaluated."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from simcse_cli.errors import CheckpointError
from simcse_cli.files.schema import checked, foreign_format
from simcse_cli.files.streams import read_json
from simcse_cli.models.adapters import merged_tensors
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.record import RECORD_FILE
from simcse_cli.models.resolve import resolve_model
from simcse_cli.results.runs import STATE_FILE, WEIGHTS_FILE, kept_states, read_run_record, step_of


@dataclass(frozen=True)
class KeptCheckpoint:
    """Weights of one step: a state, or the run's model where ``is_model``."""

    step: int
    path: Path
    is_model: bool


def kept_checkpoints(run_dir: Path) -> list[KeptCheckpoint]:
    """Return the checkpoints of a run in step order; the step of its model appears once, as the model."""
    model = resolve_model(run_dir)
    record = read_run_record(run_dir)
    last = record.step if record.best_step is None else record.best_step
    facts = read_json(model / RECORD_FILE, dict[str, Any])
    model_step = checked(facts.get("step", last), int, f"{model / RECORD_FILE}: step")
    found = {
        step_of(path): KeptCheckpoint(step_of(path), path, False)
        for path in kept_states(run_dir / "checkpoint")
    }
    found[model_step] = KeptCheckpoint(model_step, model, True)
    return [found[step] for step in sorted(found)]


def load_state_weights(encoder: SentenceEncoder, state: Path) -> None:
    """Give the encoder of a run's model the weights of one of its states.

    Raises:
        CheckpointError: the state is corrupt or missing, or lacks weights of the encoder.
    """
    hint = f"remove the folder to go without it, or judge the model alone with --model {state.parent.parent}"
    with foreign_format(state, "the weights of one step", error=CheckpointError, hint=hint):
        served = read_json(state / STATE_FILE)["served"]
        tensors: dict[str, Tensor] = load_file(state / WEIGHTS_FILE)
        prefix = f"module.{served}."
        own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        config = read_run_record(state.parent.parent).config
        if config.get("lora"):
            own = merged_tensors(own, config["lora_alpha"] / config["lora"])
        encoder.load_state_dict({name: own[name] for name in encoder.state_dict()})
