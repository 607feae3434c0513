"""Turn what a user wrote into the value of a setting.

It was written in YAML, in the environment or by ``--set``.
"""

from enum import StrEnum
from math import isfinite
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from simcse_cli.errors import ConfigError, did_you_mean

_SPELLINGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NEEDED: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    dict: "a mapping",
    tuple: "whole numbers, such as 384,192",
}


def convert(value: Any, kind: Any, place: str) -> Any:
    """Return the value as ``kind``, the annotation of a setting, or raise ConfigError.

    It accepts the spellings of YAML and of the environment: "1e-5" is a number, "yes" is true, and
    a single value is a list of one. ``place`` names the setting and where it was found.
    """
    options = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    may_be_null = NoneType in options
    wanted = next(option for option in options if option is not NoneType)
    plain = get_origin(wanted) or wanted
    if value is None or (may_be_null and _is_null(value, plain)):
        if may_be_null:
            return None
        raise ConfigError(f"{place} needs a value")
    try:
        return _converted(value, plain, get_args(wanted))
    except (KeyError, TypeError, ValueError, OverflowError):
        choices = list(plain) if issubclass(plain, StrEnum) else []
        needed = _NEEDED.get(plain, f"a value of type {plain.__name__}")
        if choices:
            needed = f"one of {', '.join(choices)}"
        hint = did_you_mean(str(value)[:80], choices)
        raise ConfigError(f"{place} {repr(value)[:80]}, need {needed}", hint=hint) from None


def _is_null(value: Any, kind: type) -> bool:
    if not isinstance(value, str) or value.lower() not in ("none", "null", ""):
        return False
    return not (issubclass(kind, StrEnum) and value in list(kind))  # --head none is a value


def _converted(value: Any, kind: Any, items: tuple[Any, ...]) -> Any:
    """Return the value as ``kind``, a container of ``items``; any exception says that it is not."""
    if issubclass(kind, StrEnum):
        return kind(str(value))
    if kind is bool:
        return _SPELLINGS[str(value).lower()]
    if isinstance(value, bool) or (kind is dict) != isinstance(value, dict):
        raise ValueError(value)
    if kind is tuple and isinstance(value, str):
        value = value.split(",")
    if kind in (list, tuple):
        each = items[0] if items else str
        parts = value if isinstance(value, list | tuple) else [value]
        return kind(_converted(part, each, ()) for part in parts)
    if kind is str and isinstance(value, list):
        raise ValueError(value)
    if kind in (int, float) and not isfinite(float(value)):
        raise ValueError(value)
    if kind is int:
        if float(value) != int(float(value)):
            raise ValueError(value)
        return value if isinstance(value, int) else int(float(value))
    return kind(value)
