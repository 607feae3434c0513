"""Ask which columns are meant: an error with the first rows and a command for each choice."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from simcse_cli.data import show
from simcse_cli.data.given import Given
from simcse_cli.data.grid import Grid
from simcse_cli.errors import DataError

MOST_CHOICES = 8
_COLUMN_OPTIONS = ("--column", "--columns")


@dataclass(frozen=True)
class Choice:
    """Columns by role, what they would mean, and the label whose rows are kept."""

    columns: dict[str, int]
    meaning: str = ""
    keeps: str | None = None


class UndecidedError(Exception):
    """Columns are not certain: ``what`` is the case; ``others`` are fixes of other kinds."""

    def __init__(
        self, what: str, choices: Sequence[Choice] = (), others: Sequence[str] = ()
    ) -> None:
        super().__init__(what)
        self.what, self.choices, self.others = what, choices, others


def question(grid: Grid, given: Given, case: UndecidedError) -> DataError:
    """Return the error that shows the first rows and a command for each choice."""
    rows = show.show_rows(grid.first_rows(), grid.names if grid.is_named else ())
    message = f"{grid.source}: {case.what}\n{rows}"
    if case.choices and given.option not in _COLUMN_OPTIONS:
        at = case.choices[0].columns["text"]
        column = show.column_name(grid.names, at, is_named=grid.is_named)
        return DataError(message, hint=show.take_out_hint(grid.source, given.option, column))

    hints = []
    width = max((len(choice.meaning) for choice in case.choices), default=0)
    for choice in case.choices:
        options = _options(grid, given, choice)
        hints.append(f"{choice.meaning:<{width}}   {options}" if width else options)
    hints += case.others
    return DataError(message, hint="\n        ".join(hints) or None)


def _options(grid: Grid, given: Given, choice: Choice) -> str:
    """Return the options that settle a choice, as they are typed."""
    typed = {}
    for role, at in choice.columns.items():
        typed[role] = show.column_name(grid.names, at, is_named=grid.is_named)
    options = show.columns_option(given.option, typed)
    if choice.keeps is None:
        return options
    return f"{options} --keep-label {shlex.quote(choice.keeps)}"
