"""Read settings from recipes and sweeps in YAML, the environment and flags.

Order of precedence: dataclass default < the objective's own defaults < recipe < environment < flag.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from simcse_cli.errors import ConfigError, DataError, UsageError, did_you_mean, reason_of
from simcse_cli.files.schema import check_depth
from simcse_cli.files.streams import read_text
from simcse_cli.settings.choices import DevSuite, ObjectiveName
from simcse_cli.settings.config import DATA_VARIABLE, TrainConfig
from simcse_cli.settings.declare import coerce_settings

ENVIRONMENT_PREFIX = "SIMCSE_"


def shipped_recipes(kind: str = "recipes") -> list[str]:
    """Return the names of the recipes (or ``sweeps``) that come with the toolkit."""
    folder = resources.files("simcse_cli") / "resources" / kind
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def read_recipe(name: str, kind: str = "recipes") -> dict[str, Any]:
    """Return the mapping of a YAML file, or of a shipped recipe (or one of the ``sweeps``) by its bare name."""
    path = Path(name)
    if not path.is_file():
        shipped = resources.files("simcse_cli") / "resources" / kind / f"{name}.yaml"
        if not shipped.is_file():
            known = shipped_recipes(kind)
            cutoff = 0.7 if path.suffix else 0.3  # be strict with file names, lenient with names of recipes
            raise ConfigError(
                f"{name}: neither a YAML file nor one of the shipped {kind}",
                hint=did_you_mean(name, known, f"shipped {kind}: {', '.join(known)}", cutoff=cutoff),
            )
        text = shipped.read_text(encoding="utf-8")
    else:
        text = read_text(path)
    values = parse_yaml(text, name)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: holds {type(values).__name__}, need keys and values such as `lr: 3.0e-5`")
    return values


def parse_yaml(text: str, place: str) -> Any:
    """Parse YAML as plain data; refuse deep nesting, and aliases that expand far beyond the length of the text."""
    try:
        value = yaml.safe_load(text)
        check_depth(value, place)
        if _size(value, {}) > 10 * len(text) + 10:
            raise ValueError("its aliases repeat so much that it would not fit in memory")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or reason_of(error)
        raise ConfigError(f"{place}{line}: not valid YAML ({reason})") from error
    except (
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
    ) as error:  # 5,000 digits, the 31st of June, ...
        raise ConfigError(f"{place}: not valid YAML ({reason_of(error)})") from error
    except DataError as error:
        raise ConfigError(error.message) from error
    return value


def _size(value: Any, known: dict[int, int]) -> int:
    """Count the values nested in a value, those behind an alias each time; the depth was checked before."""
    if id(value) not in known:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        known[id(value)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(value)]


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

    The data folder is ``SIMCSE_DATA``, as for all commands; it is used only if a dev suite reads it.
    """
    names = {f.name for f in fields(TrainConfig)} - {"options", "data_dir"}
    found = {name: os.environ.get(ENVIRONMENT_PREFIX + name.upper()) for name in names}
    return coerce_settings(TrainConfig, {k: v for k, v in found.items() if v}, place="environment")


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without those that are settings of a run."""
    names = {ENVIRONMENT_PREFIX + f.name.upper() for f in fields(TrainConfig)}
    return {name: value for name, value in environment.items() if name not in names}


def resolve_config(
    *,
    recipe: str | None = None,
    flags: Mapping[str, Any] | None = None,
    objective_defaults: Mapping[ObjectiveName, Mapping[str, Any]] | None = None,
) -> TrainConfig:
    """Return the settings of a run; later sources override earlier ones.

    None among ``flags`` means not given; ``objective_defaults`` holds the defaults that each objective changes.
    """
    layers = [
        coerce_settings(TrainConfig, read_recipe(recipe), place=recipe) if recipe else {},
        environment_settings(),
        coerce_settings(
            TrainConfig, {k: v for k, v in (flags or {}).items() if v is not None}, place="command line"
        ),
    ]
    merged: dict[str, Any] = {}
    for layer in layers:
        options = merged.get("options", {}) | layer.get("options", {})
        merged |= layer
        if options:
            merged["options"] = options
    objective = merged.get("objective", TrainConfig.objective)
    defaults = coerce_settings(
        TrainConfig, (objective_defaults or {}).get(objective, {}), place=f"defaults of {objective}"
    )
    config = TrainConfig(**(defaults | merged))
    if config.dev_suite is not DevSuite.FILE and config.data_dir is None:
        return replace(config, data_dir=os.environ.get(DATA_VARIABLE) or None)
    return config


def dump_config(config: TrainConfig) -> str:
    """Return the resolved settings as YAML; ``resolve_config`` reads them back to an equal object."""
    return dump_yaml(config.to_dict())


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Return plain values as YAML, in their order."""
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
