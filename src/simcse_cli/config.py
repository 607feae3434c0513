"""Training settings: every default once, recipes in YAML, strict keys, and what is recorded with a run.

Order of precedence: dataclass default < the objective's own defaults < recipe < environment < flag.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from simcse_cli.errors import ConfigError
from simcse_cli.names import (
    Device,
    DevSuite,
    DropoutMode,
    HeadUse,
    Objective,
    Pooler,
    Precision,
    Similarity,
)

ENVIRONMENT_PREFIX = "SIMCSE_"
DATA_VARIABLE = "SIMCSE_DATA"


class DevMetric(StrEnum):
    """Correlation with gold scores that chooses the best model; transfer tasks have accuracy instead."""

    SPEARMAN = "spearman"
    PEARSON = "pearson"


class Gather(StrEnum):
    """Gradient of negatives gathered from other processes: the true one, or 1/W of it as the original code."""

    TRUE = "true"
    ORIGINAL = "original"


class OptimizerName(StrEnum):
    """Update rule."""

    ADAMW = "adamw"
    ADAM = "adam"
    RMSPROP = "rmsprop"


class Schedule(StrEnum):
    """Learning rate after the warm-up: linear to zero, constant, or the falling steps of Contrastive Tension."""

    LINEAR = "linear"
    CONSTANT = "constant"
    TENSION = "tension"


@dataclass(frozen=True)
class TrainConfig:
    """Settings of one training run; the comment behind a field says what is counted."""

    objective: Objective = Objective.SIMCSE_UNSUP
    model: str = "minilm"
    train_file: str | None = None  # None: the generated demo corpus
    dev_file: str | None = None  # STS-B file; None: no dev evaluation by it
    dev_suite: DevSuite = DevSuite.FILE  # what the dev score is taken on; file: dev_file
    dev_tasks: str | None = None  # of the suite, comma-separated; None: all that have dev data
    data_dir: str | None = None  # SentEval folder of the suite
    pooler: Pooler = Pooler.CLS  # during training
    head: HeadUse = HeadUse.TRAIN_ONLY  # of the MLP head that `cls` trains with
    max_length: int = 32  # sub-words, special ones included
    batch_size: int = 64  # examples per process and optimizer step
    micro_batch_size: int | None = None  # encoder rows per forward pass with cached gradients
    lr: float = 3e-5  # at its peak
    optimizer: OptimizerName = OptimizerName.ADAMW
    schedule: Schedule = Schedule.LINEAR
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    warmup: float = 0.0  # share of the steps
    max_grad_norm: float = 1.0
    epochs: float = 1.0
    max_steps: int | None = None  # optimizer steps; overrides epochs
    temperature: float | None = None  # None: 0.05 for cosine, 1 for dot
    similarity: Similarity = Similarity.COSINE
    hard_negative_alpha: float = 1.0
    dropout: float | None = None  # None: the checkpoint's own
    dropout_mode: DropoutMode = DropoutMode.INDEPENDENT
    augment: str | None = None  # METHOD:RATE for the positives
    gather: Gather = Gather.TRUE
    bucket_batches: int = 1  # batches whose rows are sorted by length together
    options: dict[str, Any] = field(default_factory=dict)  # further settings of the objective
    eval_every: int = 125  # optimizer steps between dev evaluations
    save_every: int | None = None  # optimizer steps between resume states; None: as eval_every
    keep_checkpoints: int = 1  # newest resume states that are kept; 0: all
    log_every: int = 10  # optimizer steps between lines of metrics.jsonl
    dev_metric: DevMetric = DevMetric.SPEARMAN
    patience: int | None = None  # dev evaluations without improvement before the run stops
    seed: int = 42
    device: Device = Device.AUTO
    precision: Precision = Precision.FP32

    def __post_init__(self) -> None:
        """Reject impossible values, naming the flag."""
        at_least_one = ("max_length", "batch_size", "eval_every", "log_every", "bucket_batches")
        optional = ("micro_batch_size", "max_steps", "save_every", "patience")
        for name in (*at_least_one, *(n for n in optional if getattr(self, n) is not None)):
            if getattr(self, name) < 1:
                raise ConfigError(f"{flag(name)} {getattr(self, name)}: need at least 1")
        for name in ("lr", "epochs", "hard_negative_alpha", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{flag(name)} {getattr(self, name)}: need a number above 0")
        if self.temperature is not None and not self.temperature > 0:
            raise ConfigError(f"--temperature {self.temperature}: need a number above 0")
        if self.max_length < 3:
            raise ConfigError(
                f"--max-length {self.max_length}: need at least 3 (two special tokens and a word)"
            )
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"--dropout {self.dropout}: need a probability in [0, 1)")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"--warmup {self.warmup}: need a share of the steps in [0, 1)")
        if self.keep_checkpoints < 0:
            raise ConfigError(f"--keep-checkpoints {self.keep_checkpoints}: need a number, or 0 for all")
        self._check_dev_settings()

    def _check_dev_settings(self) -> None:
        """Reject dev settings that would have no effect."""
        for name in ("dev_tasks", "data_dir"):
            if self.dev_suite is DevSuite.FILE and getattr(self, name) is not None:
                raise ConfigError(
                    f"{flag(name)} {getattr(self, name)}: nothing reads it, the dev score is taken on --dev-file",
                    hint="add --dev-suite sts or --dev-suite transfer, or leave it out",
                )
        if self.dev_suite is DevSuite.TRANSFER and self.dev_metric is not DevMetric.SPEARMAN:
            raise ConfigError(
                f"--dev-metric {self.dev_metric}: --dev-suite transfer is scored by accuracy",
                hint="leave --dev-metric out, or use --dev-suite sts",
            )

    @property
    def has_dev_score(self) -> bool:
        """Whether anything scores the model during training; without it the last model is kept."""
        return self.dev_file is not None or self.dev_suite is not DevSuite.FILE

    @property
    def effective_temperature(self) -> float:
        """The temperature in use: 0.05 for cosine, 1 (none) for the dot product, unless given."""
        if self.temperature is not None:
            return self.temperature
        return 0.05 if self.similarity is Similarity.COSINE else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values for YAML and JSON."""
        return {k: v.value if isinstance(v, StrEnum) else v for k, v in asdict(self).items()}


FLAGS = {"hard_negative_alpha": "--hard-neg-alpha", "options": "--set"}


def flag(name: str) -> str:
    """Return the command-line flag of a setting."""
    return FLAGS.get(name, "--" + name.replace("_", "-"))


def check_keys(values: Mapping[str, Any], valid: Iterable[str], *, place: str) -> dict[str, Any]:
    """Return the values with dashes in keys turned to underscores.

    Raises:
        ConfigError: a key is unknown; names the place and the nearest valid key.
    """
    names = list(valid)
    checked: dict[str, Any] = {}
    by_flag = {flag(name).lstrip("-").replace("-", "_"): name for name in names}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        name = by_flag.get(name, name)
        if name not in names:
            near = get_close_matches(name, names, n=1, cutoff=0.5)
            raise ConfigError(
                f"{place}: unknown key {key!r}",
                hint=f"did you mean {near[0]}?" if near else f"known keys: {', '.join(sorted(names))}",
            )
        checked[name] = value
    return checked


def shipped_recipes(kind: str = "recipes") -> list[str]:
    """Return the names of the recipes (or ``sweeps``) that come with the toolkit."""
    folder = resources.files("simcse_cli") / "resources" / kind
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def read_recipe(name: str, kind: str = "recipes") -> dict[str, Any]:
    """Return the mapping of a YAML file, or of a shipped recipe (or one of the ``sweeps``) by its bare name.

    Raises:
        ConfigError: no such file or recipe, not YAML, or not a mapping; names the line.
    """
    import yaml

    path = Path(name)
    if not path.is_file():
        shipped = resources.files("simcse_cli") / "resources" / kind / f"{name}.yaml"
        if not shipped.is_file():
            known = shipped_recipes(kind)
            near = get_close_matches(name, known, n=1, cutoff=0.3)
            raise ConfigError(
                f"{name}: neither a YAML file nor one of the shipped {kind}",
                hint=f"did you mean {near[0]}?" if near else f"shipped {kind}: {', '.join(known)}",
            )
        text = shipped.read_text(encoding="utf-8")
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{name}{line}: not valid YAML ({getattr(error, 'problem', error)})") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: holds {type(values).__name__}, need keys and values such as `lr: 3.0e-5`")
    return values


def _coerce(name: str, value: Any, hint: Any, place: str) -> Any:
    """Return ``value`` in the type of the field, accepting the spellings of YAML and of the environment."""
    options = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    if value is None or (
        isinstance(value, str) and value.lower() in ("none", "null", "") and type(None) in options
    ):
        if type(None) in options:
            return None
        raise ConfigError(f"{place}: {name} needs a value")
    kind = next(option for option in options if option is not type(None))
    kind = get_origin(kind) or kind
    try:
        if issubclass(kind, StrEnum):
            return kind(str(value))
        if isinstance(value, bool) or (kind is dict and not isinstance(value, dict)):
            raise ValueError(value)
        if kind is int and float(value) != int(float(value)):
            raise ValueError(value)
        return dict(value) if kind is dict else kind(float(value)) if kind is int else kind(value)
    except (TypeError, ValueError):
        choices = (
            f"one of {', '.join(kind)}"
            if issubclass(kind, StrEnum)
            else {"dict": "a mapping"}.get(kind.__name__, f"a value of type {kind.__name__}")
        )
        near = get_close_matches(str(value), list(kind), n=1) if issubclass(kind, StrEnum) else []
        raise ConfigError(
            f"{place}: {name} {value!r}, need {choices}", hint=f"did you mean {near[0]}?" if near else None
        ) from None


def coerce_settings(values: Mapping[str, Any], *, place: str) -> dict[str, Any]:
    """Return settings checked and converted to the types of ``TrainConfig``.

    Raises:
        ConfigError: an unknown key (with the nearest valid one) or a value of the wrong type.
    """
    hints = get_type_hints(TrainConfig)
    checked = check_keys(values, [f.name for f in fields(TrainConfig)], place=place)
    return {name: _coerce(name, value, hints[name], place) for name, value in checked.items()}


def environment_settings() -> dict[str, Any]:
    """Return the settings given as ``SIMCSE_<NAME>``; variables that name no setting are left alone.

    The data folder has the variable of all commands, ``SIMCSE_DATA``, and only counts where a suite reads it.
    """
    names = {f.name for f in fields(TrainConfig)} - {"options", "data_dir"}
    found = {name: os.environ.get(ENVIRONMENT_PREFIX + name.upper()) for name in names}
    return coerce_settings({k: v for k, v in found.items() if v}, place="environment")


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without those that are settings of a run."""
    names = {ENVIRONMENT_PREFIX + f.name.upper() for f in fields(TrainConfig)}
    return {name: value for name, value in environment.items() if name not in names}


def resolve_config(
    *,
    recipe: str | None = None,
    flags: Mapping[str, Any] | None = None,
    objective_defaults: Mapping[Objective, Mapping[str, Any]] | None = None,
) -> TrainConfig:
    """Return the settings of a run, later sources winning over earlier ones.

    Args:
        recipe: YAML file or name of a shipped recipe.
        flags: settings given on the command line; None means not given.
        objective_defaults: what each objective changes of the dataclass defaults.

    Raises:
        ConfigError: unknown keys, wrong types or impossible values.
    """
    layers = [
        coerce_settings(read_recipe(recipe), place=recipe) if recipe else {},
        environment_settings(),
        coerce_settings({k: v for k, v in (flags or {}).items() if v is not None}, place="command line"),
    ]
    merged: dict[str, Any] = {}
    for layer in layers:
        options = merged.get("options", {}) | layer.get("options", {})
        merged |= layer
        if options:
            merged["options"] = options
    objective = merged.get("objective", TrainConfig.objective)
    defaults = coerce_settings(
        (objective_defaults or {}).get(objective, {}), place=f"defaults of {objective}"
    )
    config = TrainConfig(**(dict(defaults) | merged))
    if config.dev_suite is not DevSuite.FILE and config.data_dir is None:
        return replace(config, data_dir=os.environ.get(DATA_VARIABLE) or None)
    return config


def dump_config(config: TrainConfig) -> str:
    """Return the resolved settings as YAML; ``resolve_config`` reads them back to an equal object."""
    import yaml

    return yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)
