"""Ask which columns are meant: an error with the first rows and a command for each choice."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from simcse_cli.data import show
from simcse_cli.data.facts import ColumnFacts, Facts
from simcse_cli.errors import DataError

MOST_CHOICES = 8
_COLUMN_OPTIONS = ("--column", "--columns")


@dataclass(frozen=True)
class Choice:
    """A possible answer to the question which column has which role.

    ``columns`` are the columns by role, and ``meaning`` says what they would be. If ``keeps`` is
    not None, only the rows with this label are kept.
    """

    columns: dict[str, ColumnFacts]
    meaning: str = ""
    keeps: str | None = None

    def options(self, column_option: str) -> str:
        """Return the options that settle the choice, as they are typed.

        ``column_option`` is the option that names columns.
        """
        typed = {role: column.typed for role, column in self.columns.items()}
        named = ",".join(f"{role}={name}" for role, name in typed.items())
        if tuple(typed) == ("text",):
            named = typed["text"]
        options = f"{column_option} {shlex.quote(named)}"
        if self.keeps is not None:
            options += f" --keep-label {shlex.quote(self.keeps)}"
        return options


class UndecidedError(Exception):
    """The roles of columns are not certain.

    ``what`` says why. ``choices`` are possible answers, and ``others`` are lines with other fixes.
    """

    def __init__(
        self, what: str, choices: Sequence[Choice] = (), others: Sequence[str] = ()
    ) -> None:
        super().__init__(what)
        self.what = what
        self.choices = choices
        self.others = others


def question(facts: Facts, case: UndecidedError) -> DataError:
    """Return the error that shows the first rows and a command for each choice."""
    grid = facts.grid
    option = facts.given.option
    rows = show.show_rows(grid.first_rows(), grid.names if grid.is_named else ())
    message = f"{grid.source}: {case.what}\n{rows}"
    # Any other option takes a file of texts and cannot name a column of it, so the hint is to write
    # one column to a file of its own.
    if case.choices and option not in _COLUMN_OPTIONS:
        column = case.choices[0].columns["text"].typed
        return DataError(message, hint=show.take_out_hint(grid.source, option, column))

    hints = []
    width = max((len(choice.meaning) for choice in case.choices), default=0)
    for choice in case.choices:
        options = choice.options(option)
        hints.append(f"{choice.meaning:<{width}}   {options}" if width else options)
    hints += case.others
    return DataError(message, hint="\n        ".join(hints) or None)
