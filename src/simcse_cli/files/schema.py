"""Check the content of files: JSON and YAML, the types of values, numbers, and foreign formats."""

import json
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from simcse_cli.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    SimcseError,
    is_out_of_memory,
    reason_of,
)

MAX_DEPTH = 100
MAX_DIGITS = 250
"""The most digits that a whole number may have.

A number of 310 digits, or of 257 hexadecimal ones, has no float value.
"""

_MOST_REPEATED = 100_000
"""How many characters aliases may add to a short YAML text; they may add more to a long text."""

# What the YAML parser raises for bad values, such as a number of 5,000 digits or the 31st of June.
_BAD_VALUES = (ValueError, TypeError, OverflowError, RecursionError)
_YAML_INT = "tag:yaml.org,2002:int"
_NAMES: dict[Any, str] = {
    dict: "an object",
    list: "a list",
    tuple: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    NoneType: "null",
}


def parse_json(
    text: str,
    place: str,
    *,
    line: int | None = None,
    lenient: bool = False,
    hint: str | None = None,
) -> Any:
    """Return the JSON value of a text, with finite numbers and at most ``MAX_DEPTH`` levels.

    ``line`` is the line number if the text is one line of a file. With ``lenient``, NaN and
    Infinity are read as null: Python writes them, although JSON does not have them.
    """

    # Python would also read NaN, Infinity and numbers of any length, so these functions check them.
    def constant(name: str) -> None:
        """Return None for NaN or Infinity if they are allowed, or else raise ValueError."""
        if not lenient:
            raise ValueError(f"{name[:40]} is no finite number; a missing number is null")

    def number(digits: str) -> Any:
        value = float(digits)  # which is infinite for 1e999
        if math.isfinite(value):
            return value
        return constant(digits)  # an infinite number is treated like the word Infinity

    def whole(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise ValueError(f"a number of {len(digits):,} digits")
        return int(digits)

    at = place
    if line is not None:
        at += f", line {line}"
    try:
        value = json.loads(text, parse_float=number, parse_int=whole, parse_constant=constant)
    except json.JSONDecodeError as error:
        if line is None:
            at += f", line {error.lineno}"
        raise DataError(f"{at}: not valid JSON ({error.msg})", hint=hint) from error
    except ValueError as error:
        raise DataError(f"{at}: not valid JSON ({error})", hint=hint) from error
    except RecursionError as error:
        raise DataError(f"{at}: nested more than {MAX_DEPTH} levels deep", hint=hint) from error

    # Checking the depth takes time, and most texts have too few brackets to be too deep.
    if text.count("[") + text.count("{") > MAX_DEPTH:
        check_depth(value, at, hint=hint)
    return value


def parse_yaml(text: str, place: str) -> Any:
    """Parse YAML as plain data; refuse deep nesting, and aliases that repeat too much."""
    import yaml  # takes time that JSON does not need

    try:
        # The nodes are checked before values are made from them: ``<<`` could make too many.
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        check_depth(node, place)
        if _checked_size(node, size_by_id={}) > 10 * len(text) + _MOST_REPEATED:
            raise ValueError("its aliases repeat so much that it would not fit in memory")
        value = loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        if mark:
            place += f", line {mark.line + 1}"
        reason = getattr(error, "problem", None) or reason_of(error)
        raise ConfigError(f"{place}: not valid YAML ({reason})") from error
    except _BAD_VALUES as error:
        raise ConfigError(f"{place}: not valid YAML ({reason_of(error)})") from error
    except DataError as error:
        raise ConfigError(error.message) from error
    return value


def _checked_size(node: Any, size_by_id: dict[int, int]) -> int:
    """Return the number of characters and values in a node of YAML; aliased nodes count each time.

    The caller has checked the depth. ``size_by_id`` holds the sizes so far by ``id(node)``, so that
    each node is visited only once. Raise ValueError for a number of too many digits, and for a key
    that a mapping has twice.
    """
    if id(node) not in size_by_id:
        size = 1
        if isinstance(node.value, str):
            size += len(node.value)
            if node.tag == _YAML_INT and len(node.value) > MAX_DIGITS:
                raise ValueError(f"a number of {len(node.value):,} digits")
        elif node.id == "mapping":
            keys = Counter(key.value for key, _ in node.value if key.id == "scalar")
            repeated = [key for key, count in keys.items() if count > 1]
            if repeated:
                raise ValueError(f"the key {repeated[0][:40]} occurs twice")
        size += sum(_checked_size(part, size_by_id) for part in _parts(node))
        size_by_id[id(node)] = size
    return size_by_id[id(node)]


def check_depth(value: Any, place: str, *, hint: str | None = None) -> None:
    """Raise DataError if JSON values or YAML nodes are nested too deep, or within themselves.

    At most ``MAX_DEPTH`` levels are allowed.
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        below: dict[int, Any] = {}  # by id, so that an aliased value is visited once a level
        for part in chain.from_iterable(map(_parts, level)):
            if isinstance(_content(part), dict | list):
                below[id(part)] = part
        if not below:
            return
        level = list(below.values())
    raise DataError(f"{place}: nested more than {MAX_DEPTH} levels deep", hint=hint)


def _content(value: Any) -> Any:
    """Return what a YAML node holds, or a JSON value itself."""
    return getattr(value, "value", value)


def _parts(value: Any) -> Iterable[Any]:
    """Return the values in a JSON value, or the nodes in a YAML node."""
    parts = _content(value)
    if isinstance(parts, dict):
        return parts.values()
    if not isinstance(parts, list):
        return ()
    # A YAML mapping holds pairs of a key and a value.
    return chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in parts)


def checked(value: Any, kind: Any, place: str, *, hint: str | None = None) -> Any:
    """Convert a value from a file to ``kind``, or raise DataError that names the wrong part.

    ``kind`` is an annotation: ``str``, ``int``, ``float`` (finite; a whole number is converted),
    ``bool``, ``None``, ``Any``, ``Literal[...]``, a ``StrEnum``, ``list[X]``, ``tuple[X, ...]``,
    ``dict[str, X]``, a dataclass (from an object with its fields), or a union of these.
    """
    try:
        return _fit(value, kind, path="")
    except _MisfitError as error:
        raise DataError(f"{place}: {error}", hint=hint) from None


class _MisfitError(ValueError):
    """A value has the wrong type; ``path`` tells where it is within the whole value."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} {problem}" if path else problem)
        self.path = path


def _fit(value: Any, kind: Any, path: str) -> Any:
    """Convert a value to ``kind``, or raise _MisfitError with the path of the wrong part."""
    # ``list[int]`` has the origin ``list`` and the argument ``int``; a plain type has neither.
    origin = get_origin(kind)
    arguments = get_args(kind)

    # Any value, a union, or one of some constants.
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        return _fit_any(value, arguments, path)
    if origin is Literal and value in list(arguments):
        return value

    # A container, whose parts are converted.
    if is_dataclass(kind) and isinstance(value, dict):
        return _fit_fields(value, kind, path)
    if origin in (list, tuple) and isinstance(value, list):
        return origin(_fit(item, arguments[0], f"{path}[{i}]") for i, item in enumerate(value))
    if (origin or kind) in (dict, Mapping) and isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):  # YAML has other keys as well
                raise _MisfitError(_within(path, key), "is a key that is no text; put it in quotes")
        value_kind = arguments[1] if arguments else Any
        return {key: _fit(item, value_kind, _within(path, key)) for key, item in value.items()}

    # A single value.
    if isinstance(kind, type) and issubclass(kind, StrEnum) and value in list(kind):
        return kind(value)
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind in (str, bool, NoneType) and type(value) is kind:
        return value
    # A whole number must fit in 64 bits.
    if kind is int and type(value) is int and -(2**63) <= value < 2**63:
        return value
    raise _misfit(value, _described(kind), path)


def _within(path: str, key: Any) -> str:
    """Return the path of a part of the value at ``path``, such as ``models[0].name``."""
    return f"{path}.{key}" if path else str(key)


def _misfit(value: Any, needed: str, path: str) -> _MisfitError:
    problem = f"{_shown(value)}, need {needed}"
    if path:
        problem = f"is {problem}"
    return _MisfitError(path, problem)


def _fit_any(value: Any, kinds: tuple[Any, ...], path: str) -> Any:
    """Convert a value to the first kind of a union that it fits."""
    for kind in kinds:
        try:
            return _fit(value, kind, path)
        except _MisfitError as error:
            if error.path != path:  # the container fits, but a part of it does not
                raise
    raise _misfit(value, " or ".join(map(_described, kinds)), path)


def _fit_fields(value: dict[str, Any], kind: Any, path: str) -> Any:
    """Convert an object to the dataclass ``kind``; refuse unknown keys and missing fields."""
    hints = get_type_hints(kind)
    known_fields = {field.name: field for field in fields(kind)}
    for name in value:
        if name not in known_fields:
            raise _MisfitError(_within(path, str(name)[:40]), "is no known key")
    for name, field in known_fields.items():
        if name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise _MisfitError(_within(path, name), "is missing")
    return kind(**{key: _fit(part, hints[key], _within(path, key)) for key, part in value.items()})


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return _NAMES[type(value)]
    text = repr(value)
    if len(text) > 40:
        return f"{text[:40]}..."
    return text


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return f"one of {', '.join(map(str, kind))}"
    # A kind without a name is a dataclass or a mapping, which JSON has as objects.
    return _NAMES.get(get_origin(kind) or kind, _NAMES[dict])


def parse_number(text: str, place: str, what: str = "value", *, hint: str | None = None) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{place}: {what} {text[:40]!r} is not a finite number", hint=hint)
    return value


@contextmanager
def foreign_format(
    place: object, what: str, *, error: type[SimcseError] = DataError, hint: str | None = None
) -> Iterator[None]:
    """Turn any exception of a library into an ``error`` that names the file and what it must be.

    ``place`` names the file, ``what`` its format. Parsers of foreign formats raise dozens of types
    of exceptions, and the panic of a Rust extension is not even an ``Exception``. Wrap only the
    call of the library, so that mistakes of this program stay visible.
    """
    try:
        with warnings.catch_warnings():  # PyTorch warns of pickle before it refuses it
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            yield
    except DataError as cause:  # it is about another file, read meanwhile, and names that file
        raise error(cause.message, hint=cause.hint or hint) from cause
    except SimcseError:
        raise
    except MemoryError as cause:
        problem = f"{place} asks for more memory than there is"
        raise error(f"{problem}, need {what}", hint=hint) from cause
    except BaseException as cause:
        if not isinstance(cause, Exception) and type(cause).__name__ != "PanicException":
            raise
        # An ImportError for want of memory tells nothing about the file.
        if isinstance(cause, ImportError) and is_out_of_memory(cause):
            raise
        # PyTorch's message advises how to load pickled objects all the same; do not repeat that.
        problem = f"{place} cannot be read ({reason_of(cause)})"
        if "Weights only load failed" in str(cause):
            problem = f"{place} holds pickled objects, which may run code and are not loaded"
            hint = "take the same weights as safetensors"
        raise error(f"{problem}, need {what}", hint=hint) from cause


def inside(folder: str, relative: Any) -> str:
    """Return ``relative``, a path that a file in a model folder names.

    Raise CheckpointError if the path leaves ``folder``.
    """
    # A value that is not a text is refused like a path to the parent folder.
    parts = relative.replace("\\", "/").split("/") if isinstance(relative, str) else [".."]
    is_absolute = len(parts) > 1 and (parts[0] == "" or parts[0].endswith(":"))
    if ".." in parts or is_absolute or "\0" in relative:
        raise CheckpointError(
            f"{folder} names {str(relative)[:80]!r}, which is outside the model folder",
            hint="do not use this model: "
            "a folder of files made to be shared names its own files only",
        )
    return str(relative)
