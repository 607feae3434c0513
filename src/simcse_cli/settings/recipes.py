"""Read settings from recipes and sweeps in YAML, the environment and flags.

Each source overrides those before it: defaults of the dataclass, the objective's own defaults,
recipe, environment variables, flags.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from simcse_cli.errors import ConfigError, UsageError, did_you_mean
from simcse_cli.files.code import require_typed
from simcse_cli.files.inputs import read_text
from simcse_cli.files.schema import parse_yaml
from simcse_cli.settings.choices import DevSuite
from simcse_cli.settings.config import DATA_VARIABLE, TrainConfig
from simcse_cli.settings.convert import convert
from simcse_cli.settings.declare import coerce_settings

ENVIRONMENT_PREFIX = "SIMCSE_"


def shipped_recipes(kind: str = "recipes") -> list[str]:
    folder = resources.files("simcse_cli") / "resources" / kind
    return sorted(
        file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")
    )


def read_recipe(name: str, kind: str = "recipes") -> dict[str, Any]:
    """Return the mapping in a YAML file, or in a shipped file of a ``kind`` given by its bare name.

    The kinds are ``recipes`` and ``sweeps``.
    """
    path = Path(name)
    shipped = resources.files("simcse_cli") / "resources" / kind / f"{name}.yaml"
    if path.is_file():
        text = read_text(path)
    elif shipped.is_file():
        text = shipped.read_text(encoding="utf-8")
    else:
        known = shipped_recipes(kind)
        all_shipped = f"shipped {kind}: {', '.join(known)}"
        # A name with an ending is probably a missing file: suggest only a very similar recipe.
        hint = did_you_mean(name, known, all_shipped, cutoff=0.7 if path.suffix else 0.3)
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

    ``SIMCSE_DATA``, the data folder of all commands, is not read here: ``resolve_config`` uses it
    if a dev suite needs it. ``options`` is a mapping, so no variable gives it.
    """
    kinds = get_type_hints(TrainConfig)
    given = {}
    for field in fields(TrainConfig):
        variable = ENVIRONMENT_PREFIX + field.name.upper()
        value = os.environ.get(variable)
        if value and field.name not in ("options", "data_dir"):
            given[field.name] = convert(value, kinds[field.name], variable)
    return given


def mistyped_variables() -> Iterator[tuple[str, str]]:
    """Yield each variable that gives no setting, with the one that was probably meant.

    ``SIMCSE_BATCHSIZE`` comes with ``SIMCSE_BATCH_SIZE``; a variable unlike all is not yielded.
    """
    names = [field.name.upper() for field in fields(TrainConfig)]
    for variable in sorted(os.environ):
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if name == variable or name in names:
            continue
        for near in get_close_matches(name, names, n=1, cutoff=0.85):
            yield variable, ENVIRONMENT_PREFIX + near


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables without those that give settings of a run."""
    names = {ENVIRONMENT_PREFIX + f.name.upper() for f in fields(TrainConfig)}
    return {name: value for name, value in environment.items() if name not in names}


def resolve_config(
    *,
    recipe: str | None = None,
    flags: Mapping[str, Any] | None = None,
    objective_defaults: Callable[[str], Mapping[str, Any]] | None = None,
) -> TrainConfig:
    """Return the settings of a run; later sources override earlier ones.

    A flag that is None was not given. ``objective_defaults`` returns the defaults that an objective
    changes. Only flags may name code.
    """
    # Read the three sources; of these, only the flags may name code.
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    typed = coerce_settings(TrainConfig, given, place="command line")
    from_recipe: dict[str, Any] = {}
    if recipe:
        from_recipe = coerce_settings(TrainConfig, read_recipe(recipe), place=recipe)
    environment = environment_settings()
    require_typed(from_recipe, typed, str(recipe))
    require_typed(environment, typed, "environment")

    # Later sources override earlier ones. The objective's options are overridden one by one.
    merged = from_recipe | environment | typed
    options: dict[str, Any] = {}
    for layer in (from_recipe, environment, typed):
        options |= layer.get("options", {})
    if options:
        merged["options"] = options

    # All sources override the defaults that the objective changes.
    objective = merged.get("objective", TrainConfig.objective)
    defaults: dict[str, Any] = {}
    if objective_defaults is not None:
        changed_defaults = objective_defaults(objective)
        defaults = coerce_settings(TrainConfig, changed_defaults, place=f"defaults of {objective}")
    config = TrainConfig(**(defaults | merged))
    if config.dev_suite in (DevSuite.STS, DevSuite.TRANSFER) and config.data_dir is None:
        return replace(config, data_dir=os.environ.get(DATA_VARIABLE) or None)
    return config


def dump_config(config: TrainConfig) -> str:
    return dump_yaml(config.to_dict())


def dump_yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)


def span_of_key(text: str, name: str) -> tuple[int, int]:
    """Return the positions in a YAML text where the lines of a top-level key begin and end.

    Without the key, both are the end of the text.
    """
    root: Any = yaml.compose(text, yaml.SafeLoader)
    for key, value in root.value:
        if key.value == name:
            # yaml ends a block at the next key, so find the end by its innermost last value.
            last = value
            while isinstance(last, yaml.CollectionNode) and last.value and not last.flow_style:
                last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
            # If no line break follows, ``find`` returns -1, and the end is that of the text.
            end = text.find("\n", last.end_mark.index) + 1
            return key.start_mark.index, end or len(text)
    return len(text), len(text)
