"""Load the user's own code: a class or function from a file, or from an installed package.

Only the command line (or a call in Python) may name a file of code, never a recipe, an environment
variable, a run folder or a model.
"""

import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any

from simcse_cli.errors import CodeError, ConfigError, did_you_mean, reason_of
from simcse_cli.files.digests import digest, sha256_file
from simcse_cli.files.inputs import require_file

_NAMED = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")
# The files in a setting that may join several names by ``+``.
_FILES = re.compile(r"(?:^|\+)\s*([^:+]+\.py)(?=:[A-Za-z_])")
_MODULE_PREFIX = "simcse_user_"
_KEYS = ("objective", "augment", "method")
"""The settings that may name code."""


def names_code(text: object) -> bool:
    """Tell whether a text names a class or function in a file: ``my_file.py:MyLoss``."""
    return isinstance(text, str) and _NAMED.search(text) is not None


def require_typed(values: Mapping[str, Any], typed: Mapping[str, Any], place: str) -> None:
    """Raise ConfigError if ``values`` name code to run that the command line does not name.

    Without this check, a recipe from someone else could run code. ``values`` are the settings that
    come from ``place``, such as a recipe; ``typed`` are the settings of the command line.
    """
    for key in _KEYS:
        value = values.get(key)
        # A recipe may hold a list, which becomes a text when an option takes it.
        if names_code(str(value)) and typed.get(key) != value:
            raise ConfigError(
                f"{place}: {key} names code, {value}, which is run only if the command line "
                "names it",
                hint=f"if you trust the file, add --{key} {value}",
            )


def load_code(text: str, place: str) -> Any:
    """Return the object that ``FILE.py:NAME`` names; the file is imported once.

    Raise an error if the file is missing, cannot be imported, or has no such name. ``place`` is the
    option that named the code, for messages.
    """
    match = _NAMED.fullmatch(text)
    if match is None:
        raise ConfigError(f"{place} {text}: need FILE.py:NAME, such as my_file.py:MyClass")
    require_file(match["file"], hint="need FILE.py:NAME, with the path of the file")
    path = Path(match["file"]).resolve()

    # The user's code may raise anything, so report every exception as an error of the file.
    try:
        module = _module(path)
    except Exception as error:
        beside = _missing_beside(path, error)
        if beside is not None:
            raise ConfigError(
                f"{place} {text}: the file imports {beside.stem}, a file beside it, need a file "
                "that stands alone",
                hint=f"put what it needs of {beside.name} into the file, or install it as a "
                "package",
            ) from error
        raise ConfigError(
            f"{place} {text}: the file cannot be imported: {type(error).__name__}: "
            f"{reason_of(error)}",
            hint=f"python {shlex.quote(match['file'])} shows where",
        ) from error

    if not hasattr(module, match["name"]):
        # Suggest what the file defines, not what it imports.
        defined_names: list[str] = []
        for name, value in vars(module).items():
            if callable(value) and getattr(value, "__module__", None) == module.__name__:
                defined_names.append(name)
        listed = ", ".join(defined_names) or "no class or function of its own"
        hint = did_you_mean(match["name"], defined_names, f"{match['file']} has {listed}")
        raise ConfigError(f"{place} {text}: no {match['name']} in the file", hint=hint)
    return getattr(module, match["name"])


def _missing_beside(path: Path, error: Exception) -> Path | None:
    """Return the file or folder beside ``path`` that it failed to import, if ``error`` says so."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.partition(".")[0]
        for beside in (path.with_name(f"{name}.py"), path.with_name(name)):
            if beside.exists():
                return beside
    return None


@cache
def _module(path: Path) -> Any:
    """Import a file as a module, under a name that no other module has."""
    name = f"{_MODULE_PREFIX}{path.stem}_{digest(str(path))[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def require_arguments(
    function: Callable[..., Any],
    given: Sequence[str],
    *,
    place: str,
    hint: str,
    by_name: Sequence[str] = (),
) -> None:
    """Raise ConfigError for a user's function that cannot take these arguments.

    ``given`` are the names of the arguments that are passed by position, of a method also ``self``;
    ``by_name`` are the names of the others.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions that are not written in Python have none
        return
    try:
        signature.bind(*given, **dict.fromkeys(by_name))
    except TypeError:
        names = [name for name in (*given, *by_name) if name != "self"]
        raise ConfigError(
            f"{place}: {function.__name__}{signature} is called with "
            f"{', '.join(names) or 'nothing'}",
            hint=hint,
        ) from None


def users_traceback(error: Exception) -> TracebackType | None:
    """Return an error's traceback, cut to begin in a user's file if it reaches one."""
    part = error.__traceback__
    while part is not None:
        if _is_users(part.tb_frame):
            return part
        part = part.tb_next
    return error.__traceback__


def error_of_code(error: Exception) -> CodeError | None:
    """Return the error to show for an exception in a user's code, or None for other exceptions.

    The error names the last line that was reached in a user's file.
    """
    last: tuple[FrameType, int] | None = None
    for frame, number in walk_tb(error.__traceback__):
        if _is_users(frame):
            last = frame, number
    if last is None:
        return None
    frame, number = last
    code = frame.f_code
    path = Path(code.co_filename)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return CodeError(
        f"{path}, line {number}: {type(error).__name__} in {code.co_qualname}: {reason_of(error)}",
        hint="correct the file; -v shows the traceback",
    )


def _is_users(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_MODULE_PREFIX)


def code_digest(text: str) -> dict[str, str]:
    """Return the digest of each file of code that a setting names, under the path as typed."""
    return {file: sha256_file(file) for file in _FILES.findall(text)}


def entry_point(group: str, name: str, place: str) -> Any:
    """Return the object that an installed package offers under a name, or None if there is none.

    ``place`` begins the message of a package that cannot be imported.
    """
    from importlib import metadata  # imported here: it takes 8 ms, too long for --help

    for entry in metadata.entry_points(group=group, name=name):
        # As in ``load_code``, the code may raise anything.
        try:
            return entry.load()
        except Exception as error:
            raise ConfigError(
                f"{place} {name}: {entry.value} of an installed package cannot be imported: "
                f"{type(error).__name__}: {reason_of(error)}",
                hint=f"python -c 'import {entry.module}' shows where",
            ) from error
    return None


def entry_point_names(group: str) -> list[str]:
    from importlib import metadata

    return sorted(entry.name for entry in metadata.entry_points(group=group))
