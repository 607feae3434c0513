"""Convert what a user wrote, in YAML, a variable or ``--set``, to the value of a setting."""

from contextlib import suppress
from enum import StrEnum
from math import isfinite
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from simcse_cli.errors import ConfigError, did_you_mean

_SPELLINGS = {"true": True, "yes": True, "on": True, "1": True}
_SPELLINGS |= {"false": False, "no": False, "off": False, "0": False}
_NEEDED: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    dict: "a mapping",
    tuple: "whole numbers, such as 384,192",
}


def convert(value: Any, kind: Any, place: str) -> Any:
    """Convert a value to ``kind``, the annotation of a setting, or raise ConfigError.

    Spellings of YAML and of environment variables are accepted: "1e-5" is a number, "yes" is true,
    and a single value is a list of one. ``place`` begins the message of an error: it names the
    setting, and where the value was found.
    """
    # For ``list[str] | None`` the type beside None is list[str], and the plain type is list.
    types = (kind,)
    if get_origin(kind) is UnionType:
        types = get_args(kind)
    may_be_null = NoneType in types
    type_beside_none = next(one for one in types if one is not NoneType)
    plain = get_origin(type_beside_none) or type_beside_none

    if may_be_null and (value is None or is_null(value, plain)):
        return None
    if value is None:
        raise ConfigError(f"{place} needs a value")
    try:
        return _converted(value, plain, get_args(type_beside_none))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise _misfit(value, type_beside_none, place) from None


def is_null(value: Any, kind: type = str) -> bool:
    """Tell whether a text spells None, unless it is one of the choices of ``kind``."""
    if not isinstance(value, str) or value.lower() not in ("none", "null", ""):
        return False
    is_choice = issubclass(kind, StrEnum) and value in list(kind)  # such as --head none
    return not is_choice


def _converted(value: Any, kind: Any, items: tuple[Any, ...]) -> Any:
    """Convert a value to the type ``kind``.

    A value that does not fit raises an error, which ``convert`` catches. ``items`` holds the types
    of the items if ``kind`` is a list or tuple.
    """
    if issubclass(kind, StrEnum):
        # YAML reads words such as "on" as true or false. If one is a choice, take it instead.
        if isinstance(value, bool):
            value = next((word for word in kind if _SPELLINGS.get(word) is value), value)
        return kind(str(value))
    if kind is bool:
        return _SPELLINGS[str(value).lower()]
    # A boolean is no number and no text, and a mapping fits only a dict.
    if isinstance(value, bool) or (kind is dict) != isinstance(value, dict):
        raise ValueError(value)

    # Convert the parts of a list or tuple; a single value stands for a list of one.
    if kind is tuple and isinstance(value, str):
        value = value.split(",")
    if kind in (list, tuple):
        item_kind = items[0] if items else str
        if not isinstance(value, list | tuple):
            value = [value]
        return kind(_converted(part, item_kind, ()) for part in value)

    # Convert a single value. A number may come as a text: YAML reads 1e-5 as a text.
    if kind is str and isinstance(value, list):
        raise ValueError(value)
    if kind not in (int, float):
        return kind(value)
    if kind is int and isinstance(value, int | str):
        with suppress(ValueError):  # ``int`` refuses 1e3, and ``float`` reads it below
            return int(value)  # a large number would lose digits as a float
    number = float(value)
    if not isfinite(number) or (kind is int and not number.is_integer()):
        raise ValueError(value)
    return kind(number)


def _misfit(value: Any, kind: Any, place: str) -> ConfigError:
    """Return the error for a value that does not fit; it names the type or the choices."""
    plain = get_origin(kind) or kind
    choices: list[str] = []
    needed = _NEEDED.get(plain, f"a value of type {plain.__name__}")
    item_kind, *_ = get_args(kind) or (kind,)  # for a list, the type of its items
    if isinstance(item_kind, type) and issubclass(item_kind, StrEnum):
        choices = list(item_kind)
        needed = f"{'one' if item_kind is kind else 'some'} of {', '.join(choices)}"
    hint = did_you_mean(str(value)[:80], choices)
    return ConfigError(f"{place} {repr(value)[:80]}, need {needed}", hint=hint)


def value_name(kind: Any) -> str:
    """Return the placeholder that help pages show for a value: its choices, or its type."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "|".join(kind)
    return {int: "N", float: "X", tuple[int, ...]: "N,N"}.get(kind, "TEXT")


def check_switches(**switches: Any) -> None:
    """Raise ConfigError for an argument that is not True or False: "no" would count as true."""
    for name, value in switches.items():
        if type(value).__name__ not in ("bool", "bool_"):  # NumPy has types of both names
            raise ConfigError(f"{name}={value!r}: need True or False")
