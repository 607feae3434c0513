"""Read settings from recipes and sweeps in YAML, the environment and flags.

Each source overrides those before it: defaults of the dataclass, the objective's own defaults,
recipe, environment variables, flags.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
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
from simcse_cli.settings.declare import check_keys, coerce_settings, names_by_key, settings_of

ENVIRONMENT_PREFIX = "SIMCSE_"
_OTHER_VARIABLES = (DATA_VARIABLE, "SIMCSE_CACHE", "SIMCSE_WORDNET", "SIMCSE_START_TIMEOUT")
# Variables that have the name of an option, but no effect, and what to use instead of each.
_GIVEN_BY = {
    "SIMCSE_DATA_DIR": DATA_VARIABLE,
    "SIMCSE_MODE": "SIMCSE_OBJECTIVE",
    "SIMCSE_OPTIONS": "--set NAME=VALUE",
    "SIMCSE_SET": "--set NAME=VALUE",
    "SIMCSE_MLM_WEIGHT": "--mlm-weight",
    "SIMCSE_DUAL_ENCODER": "--dual-encoder",
    "SIMCSE_OUTPUT": "--output",
    "SIMCSE_CONFIG": "--config",
    "SIMCSE_SEEDS": "--seeds",
    "SIMCSE_SWEEP": "--sweep",
    "SIMCSE_NUM_PROCESSES": "--num-processes",
    "SIMCSE_RESUME": "--resume",
    "SIMCSE_DRY_RUN": "--dry-run",
    "SIMCSE_FORCE": "--force",
    "SIMCSE_FORMAT": "--format",
    "SIMCSE_QUIET": "--quiet",
    "SIMCSE_VERBOSE": "--verbose",
}
# The name of the setting that each variable holds.
_NAME_OF: dict[str, str] = {}
for _key, _setting in names_by_key(settings_of(TrainConfig)).items():
    _variable = ENVIRONMENT_PREFIX + _key.upper()
    if _variable not in _GIVEN_BY:
        _NAME_OF[_variable] = _setting

# What to do about an option of ``train`` that is no key of a recipe.
_HINT_OF_OPTION = {
    "mode": "write objective: simcse-unsup or objective: simcse-sup",
    "seeds": "give --seeds on the command line",
    "set": "write options: {NAME: VALUE}",
    "mlm_weight": "write options: {mlm_weight: X}",
    "dual_encoder": "write options: {dual_encoder: true}",
}


def shipped_recipes(kind: str = "recipes") -> list[str]:
    folder = resources.files("simcse_cli") / "resources" / kind
    return sorted(
        file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")
    )


def read_recipe(name: str, kind: str = "recipes") -> dict[str, Any]:
    """Return the mapping in a YAML file.

    ``name`` is the path of the file, or the name of one of the shipped files of a ``kind``:
    ``recipes`` or ``sweeps``.
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
        key, equals_sign, value = item.partition("=")
        if not equals_sign:
            raise UsageError(f"{item!r}; need KEY=VALUE", option="--set")
        values[key.strip().replace("-", "_")] = parse_yaml(value, f"--set {item}")
    return values


def environment_settings() -> dict[str, Any]:
    """Return the settings in variables ``SIMCSE_<NAME>`` by name; other variables are ignored."""
    hints = get_type_hints(TrainConfig)
    return {
        name: convert(os.environ[variable], hints[name], variable)
        for name, variable in given_variables().items()
    }


def given_variables() -> dict[str, str]:
    """Return the environment variables that hold settings, by the names of the settings.

    Raise ConfigError if two of them hold the same setting.
    """
    variables: dict[str, str] = {}
    for variable, name in _NAME_OF.items():
        if os.environ.get(variable):
            if name in variables:
                raise ConfigError(
                    f"{variable}: {variables[name]} gives the same setting",
                    hint=f"unset {variable}",
                )
            variables[name] = variable
    return variables


def mistyped_variables() -> Iterator[tuple[str, str]]:
    """Yield each variable that has no effect but seems to be meant for a setting, and what to use.

    For example, ``SIMCSE_BATCHSIZE`` is yielded with ``SIMCSE_BATCH_SIZE``.
    """
    known = (*_NAME_OF, *_OTHER_VARIABLES)
    names = [variable.removeprefix(ENVIRONMENT_PREFIX) for variable in known]
    for variable in sorted(os.environ.keys() - set(known)):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable in _GIVEN_BY:
            yield variable, _GIVEN_BY[variable]
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        for near in get_close_matches(name, names, n=1, cutoff=0.8):
            yield variable, ENVIRONMENT_PREFIX + near


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that hold settings of a run."""
    return {variable: v for variable, v in environment.items() if variable not in _NAME_OF}


def resolve_config(
    *,
    recipe: str | None = None,
    flags: Mapping[str, Any] | None = None,
    objective_defaults: Callable[[str], Mapping[str, Any]] | None = None,
) -> TrainConfig:
    """Return the settings of a run from a recipe, the environment and the flags.

    Flags override the environment, which overrides the recipe. A flag that is None was not given.
    ``objective_defaults`` takes the name of an objective and returns the defaults that it changes.
    """
    given_flags = {name: value for name, value in (flags or {}).items() if value is not None}
    from_flags = coerce_settings(TrainConfig, given_flags, place="command line")
    from_recipe: dict[str, Any] = {}
    if recipe:
        written = read_recipe(recipe)
        refuse_options(written, _HINT_OF_OPTION, place=recipe)
        from_recipe = coerce_settings(TrainConfig, written, place=recipe)
    from_environment = environment_settings()
    # Recipes and variables may name no code to run, except in a setting that a flag overrides.
    for values, place in ((from_recipe, str(recipe)), (from_environment, "environment")):
        used = {name: value for name, value in values.items() if name not in from_flags}
        require_typed(used, typed={}, place=place)

    # All sources override the defaults that the objective changes.
    merged = merged_settings(from_recipe, from_environment, from_flags)
    objective = merged.get("objective", TrainConfig.objective)
    defaults: dict[str, Any] = {}
    if objective_defaults is not None:
        changed_defaults = objective_defaults(objective)
        defaults = coerce_settings(TrainConfig, changed_defaults, place=f"defaults of {objective}")
    config = TrainConfig(**(defaults | merged))
    if config.dev_suite in (DevSuite.STS, DevSuite.TRANSFER) and config.data_dir is None:
        return replace(config, data_dir=os.environ.get(DATA_VARIABLE) or None)
    return config


def merged_settings(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all sources; a later source overrides those before it.

    The options of the objective are a mapping in each source, and are overridden one by one.
    """
    merged: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for source in sources:
        merged |= source
        options |= source.get("options", {})
    if options:
        merged["options"] = options
    return merged


def refuse_options(keys: Iterable[str], hints: Mapping[str, str], *, place: str) -> None:
    """Raise ConfigError for a key that is in ``hints``: an option of ``train``, but no setting."""
    for key in keys:
        if hint := hints.get(str(key).replace("-", "_")):
            raise ConfigError(f"{place}: unknown key {key!r}", hint=hint)


@contextmanager
def telling_sources(recipe: str | None, flags: Mapping[str, Any]) -> Iterator[None]:
    """In an error about a setting, name the recipe or variable that holds it instead of its flag.

    For example, ``--seed -1: ...`` becomes ``r.yaml: seed -1: ...`` or ``SIMCSE_SEED -1: ...``.
    """
    try:
        yield
    except (ConfigError, UsageError) as error:
        keys = names_by_key(settings_of(TrainConfig))
        flag = error.message.partition(" ")[0].removesuffix(":")
        name = keys.get(flag.lstrip("-").replace("-", "_"))
        # The error is not about a setting, or about one that a flag has given.
        if name is None or not flag.startswith("--") or name in flags:
            raise
        variables = given_variables()
        if name in variables:
            place = variables[name]
            way = f"unset {place}"
        elif recipe and name in check_keys(read_recipe(recipe), keys, place=recipe):
            place = f"{recipe}: {name}"
            way = f"leave {name} out of {recipe}"
        else:
            raise
        hint = error.hint and error.hint.replace(f"leave {flag} out", way)
        raise type(error)(place + error.message.removeprefix(flag), hint=hint) from None


def dump_config(config: TrainConfig) -> str:
    return dump_yaml(config.to_dict())


def dump_yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)


def span_of_key(text: str, name: str) -> tuple[int, int]:
    """Return the positions in a YAML text where the lines of a top-level key begin and end.

    If the text does not have the key, both positions are the end of the text.
    """
    root: Any = yaml.compose(text, yaml.SafeLoader)
    for key, value in root.value:
        if key.value == name:
            # yaml takes the space before the next key to be part of a block. So the end is that of
            # the last value in the block, which may be a block again.
            last = value
            while isinstance(last, yaml.CollectionNode) and last.value and not last.flow_style:
                last = last.value[-1]
                if isinstance(last, tuple):  # the key and the value of a mapping
                    _, last = last
            line_break = text.find("\n", last.end_mark.index)
            end = len(text) if line_break == -1 else line_break + 1
            return key.start_mark.index, end
    return len(text), len(text)
