"""Augmentations of the user: functions in a Python file or in an installed package.

The function takes a text, a ``random.Random`` for all its random choices, and the rate if one is
given; it returns the changed text.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from simcse_cli.data.text import clean_text
from simcse_cli.errors import ConfigError, SimcseError
from simcse_cli.files.code import (
    entry_point,
    entry_point_names,
    error_of_code,
    load_code,
    names_code,
    require_arguments,
)
from simcse_cli.settings.choices import Augmentation

_ENTRY_POINTS = "simcse_cli.augmentations"
"""The group under which packages offer augmentations."""
_IN_FILE = re.compile(r"\s*(?P<source>.+\.py:[A-Za-z_]\w*)(?::(?P<rate>[^:]*))?\s*")
_PLACE = "augmentation"


@dataclass(frozen=True)
class OwnOperator:
    """A user's function with its rate.

    It holds only the name of the function, which each worker process loads for itself.
    """

    source: str
    rate: float | None

    def __call__(self, text: str, rng: random.Random) -> str:
        function = find_function(self.source)
        rate = [] if self.rate is None else [self.rate]
        try:
            changed: Any = function(text, rng, *rate)
        except SimcseError:
            raise
        except Exception as error:
            # Look at the traceback here, since a worker process does not pass it on.
            failure = error_of_code(error)
            if failure is None:
                raise
            raise failure from error
        if not isinstance(changed, str):
            raise ConfigError(
                f"{_PLACE} {self.source}: returned {type(changed).__name__}, need a text"
            )
        if not changed.isprintable():
            return clean_text(changed)  # a tab or a line end would break a row of TSV
        return changed


def names_rate(step: str) -> bool:
    """Tell whether a step has a rate behind the name of its method or function."""
    in_file = _IN_FILE.fullmatch(step)
    if in_file is None:
        return ":" in step
    return bool(in_file["rate"])


def parse_rate(number: str, step: str, name: str) -> float:
    """Return the rate of a step, which stands behind the name of its method or function."""
    try:
        return float(number)
    except ValueError:
        raise ConfigError(
            f"{_PLACE} {step!r}: {number!r} is no number", hint=f"write {name}:0.1"
        ) from None


def parse_own(text: str, rate: float | None) -> tuple[str, float | None] | None:
    """Return the name and rate of a step that is a user's function; None for all other steps.

    ``rate`` is for a step without a rate. If a built-in method and the function of a package have
    the same name, the step is the built-in method.
    """
    in_file = _IN_FILE.fullmatch(text)
    if in_file is not None:
        source, number = in_file.group("source", "rate")
    else:
        source, _, number = text.strip().partition(":")
        if source.lower() in list(Augmentation) or source not in entry_point_names(_ENTRY_POINTS):
            return None
    function = find_function(source)  # a wrong name is an error now, before the work begins
    if number:
        rate = parse_rate(number, text, source)
    require_arguments(
        function,
        ["text", "rng"] if rate is None else ["text", "rng", "rate"],
        place=f"{_PLACE} {source}",
        hint=f"def NAME(text, rng, rate=0.1); a rate stands behind the name, as in {source}:0.1",
    )
    return source, rate


# Looking through the installed packages takes longer than changing a hundred texts.
_load_from_package = cache(partial(entry_point, _ENTRY_POINTS, place=_PLACE))


def find_function(source: str) -> Callable[..., str]:
    if names_code(source):
        function = load_code(source, _PLACE)
    else:
        function = _load_from_package(source)
    if not callable(function):
        raise ConfigError(f"{_PLACE} {source}: is no function", hint="def NAME(text, rng, rate)")
    return function  # type: ignore[no-any-return]
