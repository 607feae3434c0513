"""A setting is written once, as a field of a dataclass: it is the flag, the YAML key, the variable and the help."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from math import isfinite
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from simcse_cli.errors import ConfigError, UsageError, did_you_mean


@dataclass(frozen=True)
class Setting:
    """What a field says of itself beside its type and default."""

    help: str
    flags: tuple[str, ...] = ()  # as typed; empty: the field's name with dashes
    group: str | None = None  # heading in --help
    env: str | None = None  # variable of the environment, read by every command that takes the setting
    metavar: str | None = None  # what --help shows for the value
    min: float | None = None
    above: float | None = None  # numbers have to be larger
    max: float | None = None
    hidden: bool = False  # a key in YAML only, not a flag
    main: bool = False  # a command with such settings shows only them, the rest with --help-all
    completes: str | None = None  # what a shell offers for the value: a function of `commands.completion`


def setting(default: Any, help: str, *flags: str, **details: Any) -> Any:  # noqa: A002 - as Typer calls it
    """Return a dataclass field with its ``Setting``.

    The default ``...`` makes it required; a function makes a new value for each object.
    """
    metadata = {"setting": Setting(help, flags, **details)}
    if default is ...:
        return field(metadata=metadata)
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_of(group: type) -> dict[str, tuple[Field[Any], Setting]]:
    """Return the fields of a dataclass that are settings, by name; inherited ones follow its own."""
    own = {f.name: (f, f.metadata["setting"]) for f in fields(group) if "setting" in f.metadata}
    inherited = settings_of(group.__base__) if is_dataclass(group.__base__) else {}
    return {n: own[n] for n in own if n not in inherited} | {n: own[n] for n in inherited}


def flag(group: type, name: str) -> str:
    """Return the long command-line flag of a setting."""
    flags = settings_of(group)[name][1].flags
    given = next((f for f in flags if f.startswith("--")), "--" + name.replace("_", "-"))
    return given.partition("/")[0]


def check_ranges(values: Any) -> None:
    """Raise ConfigError for a number outside what its setting allows; None passes."""
    for name, (_, own) in settings_of(type(values)).items():
        value = getattr(values, name)
        if value is None:
            continue
        place = f"{flag(type(values), name)} {value}"
        if isinstance(value, float) and not isfinite(value):
            raise ConfigError(f"{place}: need a finite number")
        if own.min is not None and value < own.min:
            raise ConfigError(f"{place}: need at least {own.min:g}")
        if own.above is not None and not value > own.above:
            raise ConfigError(f"{place}: need a number above {own.above:g}")
        if own.max is not None and value > own.max:
            raise ConfigError(f"{place}: need at most {own.max:g}")


def refuse_unused(values: Any, names: Iterable[str], reason: str) -> None:
    """Raise UsageError for the first of these settings that was chosen, and not by a variable of the environment."""
    for name in names:
        own, details = settings_of(type(values))[name]
        is_variable = details.env is not None and details.env in os.environ
        if getattr(values, name) != own.default and not is_variable:
            raise UsageError(reason, option=flag(type(values), name))


def check_keys(
    values: Mapping[str, Any], valid: Mapping[str, str] | Iterable[str], *, place: str
) -> dict[str, Any]:
    """Return the values by name; keys may be spelled as flags where ``valid`` gives them.

    Raises:
        ConfigError: a key is unknown; names the place and the nearest valid key.
    """
    names = list(valid)
    by_flag = valid if isinstance(valid, Mapping) else {}
    by_key = {text.lstrip("-").replace("-", "_"): name for name, text in by_flag.items()}
    checked: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        name = by_key.get(name, name)
        if name not in names:
            known = f"known keys: {', '.join(sorted(names))}"
            hint = did_you_mean(name, names, known, cutoff=0.5)
            raise ConfigError(f"{place}: unknown key {key!r}", hint=hint)
        checked[name] = value
    return checked


_SPELLINGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _coerce(name: str, value: Any, hint: Any, place: str) -> Any:
    """Return ``value`` in the type of the field, accepting the spellings of YAML and of the environment."""
    options = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    kind = next(option for option in options if option is not type(None))
    kind = get_origin(kind) or kind
    is_choice = issubclass(kind, StrEnum) and value in list(kind)  # --head none is a value
    is_null = isinstance(value, str) and value.lower() in ("none", "null", "") and type(None) in options
    if value is None or (is_null and not is_choice):
        if type(None) in options:
            return None
        raise ConfigError(f"{place}: {name} needs a value")
    try:
        if issubclass(kind, StrEnum):
            return kind(str(value))
        if kind is bool:
            return _SPELLINGS[str(value).lower()]
        if isinstance(value, bool) or (kind is dict) != isinstance(value, dict):
            raise ValueError(value)
        if kind is list:
            return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]
        if kind is str and isinstance(value, list):
            raise ValueError(value)
        if kind in (int, float) and not isfinite(float(value)):
            raise ValueError(value)
        if kind is int and float(value) != int(float(value)):
            raise ValueError(value)
        return dict(value) if kind is dict else kind(float(value)) if kind is int else kind(value)
    except (KeyError, TypeError, ValueError, OverflowError):
        choices = list(kind) if issubclass(kind, StrEnum) else []
        needed = "a mapping" if kind is dict else f"a value of type {kind.__name__}"
        raise ConfigError(
            f"{place}: {name} {repr(value)[:80]}, need {'one of ' + ', '.join(choices) if choices else needed}",
            hint=did_you_mean(str(value)[:80], choices),
        ) from None


def coerce_settings(group: type, values: Mapping[str, Any], *, place: str) -> dict[str, Any]:
    """Return settings checked and converted to the types of a dataclass.

    Raises:
        ConfigError: an unknown key (with the nearest valid one) or a value of the wrong type.
    """
    hints = get_type_hints(group)
    valid = {name: flag(group, name) for name in settings_of(group)}
    checked = check_keys(values, valid, place=place)
    return {name: _coerce(name, value, hints[name], place) for name, value in checked.items()}
