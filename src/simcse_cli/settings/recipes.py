"""Read settings from recipes and sweeps in YAML, the environment and flags.

Order of precedence: dataclass default < the objective's own defaults < recipe < environment < flag.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from simcse_cli.errors import ConfigError, UsageError, did_you_mean
from simcse_cli.files.code import require_typed
from simcse_cli.files.inputs import read_text
from simcse_cli.files.schema import parse_yaml
from simcse_cli.settings.choices import DevSuite
from simcse_cli.settings.config import DATA_VARIABLE, TrainConfig
from simcse_cli.settings.declare import coerce_settings

ENVIRONMENT_PREFIX = "SIMCSE_"


def shipped_recipes(kind: str = "recipes") -> list[str]:
    folder = resources.files("simcse_cli") / "resources" / kind
    return sorted(
        file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")
    )


def read_recipe(name: str, kind: str = "recipes") -> dict[str, Any]:
    """Return the mapping of a YAML file or of a shipped recipe.

    A recipe, or one of the ``sweeps``, is found by its bare name.
    """
    path = Path(name)
    shipped = resources.files("simcse_cli") / "resources" / kind / f"{name}.yaml"
    if path.is_file():
        text = read_text(path)
    elif shipped.is_file():
        text = shipped.read_text(encoding="utf-8")
    else:
        known = shipped_recipes(kind)
        every = f"shipped {kind}: {', '.join(known)}"
        # A file name must be closer to a recipe's name than a bare name to be taken for it.
        hint = did_you_mean(name, known, every, cutoff=0.7 if path.suffix else 0.3)
        raise ConfigError(f"{name}: neither a YAML file nor one of the shipped {kind}", hint=hint)
    values = parse_yaml(text, name)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{name}: holds {type(values).__name__}, need keys and values such as `lr: 3.0e-5`"
        )
    return values


def parse_pairs(items: Iterable[str]) -> dict[str, Any]:
    """Return the ``KEY=VALUE`` items of ``--set`` as a mapping; values are parsed as YAML."""
    values: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"{item!r}; need KEY=VALUE", option="--set")
        values[key.strip().replace("-", "_")] = parse_yaml(value, f"--set {item}")
    return values


def environment_settings() -> dict[str, Any]:
    """Return the settings given as ``SIMCSE_<NAME>``; other variables are ignored.

    The data folder is ``SIMCSE_DATA``, as for all commands; it is used only if a dev suite reads
    it.
    """
    found: dict[str, str] = {}
    for field in fields(TrainConfig):
        value = os.environ.get(ENVIRONMENT_PREFIX + field.name.upper())
        if value and field.name not in ("options", "data_dir"):
            found[field.name] = value
    return coerce_settings(TrainConfig, found, place="environment")


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without those that are settings of a run."""
    names = {ENVIRONMENT_PREFIX + f.name.upper() for f in fields(TrainConfig)}
    return {name: value for name, value in environment.items() if name not in names}


def resolve_config(
    *,
    recipe: str | None = None,
    flags: Mapping[str, Any] | None = None,
    objective_defaults: Callable[[str], Mapping[str, Any]] | None = None,
) -> TrainConfig:
    """Return the settings of a run; later sources override earlier ones.

    None among ``flags`` means not given; ``objective_defaults`` gives the defaults that an
    objective changes. Code is named by flags alone.
    """
    # The three sources, of which only the last may name code.
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    typed = coerce_settings(TrainConfig, given, place="command line")
    written: dict[str, Any] = {}
    if recipe:
        written = coerce_settings(TrainConfig, read_recipe(recipe), place=recipe)
    environment = environment_settings()
    require_typed(written, typed, str(recipe))
    require_typed(environment, typed, "environment")

    # Later sources override earlier ones; the objective's options do so one by one.
    merged = written | environment | typed
    options: dict[str, Any] = {}
    for layer in (written, environment, typed):
        options |= layer.get("options", {})
    if options:
        merged["options"] = options

    # Below them all are the defaults that the objective changes.
    objective = merged.get("objective", TrainConfig.objective)
    defaults: dict[str, Any] = {}
    if objective_defaults is not None:
        own = objective_defaults(objective)
        defaults = coerce_settings(TrainConfig, own, place=f"defaults of {objective}")
    config = TrainConfig(**(defaults | merged))
    if config.dev_suite in (DevSuite.STS, DevSuite.TRANSFER) and config.data_dir is None:
        return replace(config, data_dir=os.environ.get(DATA_VARIABLE) or None)
    return config


def dump_config(config: TrainConfig) -> str:
    return dump_yaml(config.to_dict())


def dump_yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)


def span_of_key(text: str, name: str) -> tuple[int, int]:
    """Return where the lines of a top-level key begin and end in a YAML mapping.

    Without the key, both numbers are the end of the text.
    """
    root: Any = yaml.compose(text, yaml.SafeLoader)
    for key, value in root.value:
        if key.value == name:
            # A block ends behind its last line, where the innermost last value is.
            last = value
            while isinstance(last, yaml.CollectionNode) and last.value and not last.flow_style:
                last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
            return key.start_mark.index, text.find("\n", last.end_mark.index) + 1 or len(text)
    return len(text), len(text)
