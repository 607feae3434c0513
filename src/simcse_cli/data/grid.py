"""A table as names and rows of cells, whatever its format."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from simcse_cli.data.kinds import Kind, cell_text, kind_of
from simcse_cli.errors import DataError

SAMPLE_ROWS = 100
"""The rows that decide what the columns are."""

NumberedRow = tuple[int, Sequence[Any] | dict[str, Any]]


@dataclass(frozen=True)
class Grid:
    """The columns of a table with their first rows, and all rows, to be read once.

    Attributes:
        is_named: whether the names are in the file; else they are numbers from 1.
        is_published: whether it has the layout of a published corpus, whose columns need no
            telling.
        notes: what the user should know about how the table was read.
    """

    source: str
    names: tuple[str, ...]
    sample: list[NumberedRow]
    rows: Iterator[NumberedRow]
    is_named: bool = True
    notes: tuple[str, ...] = ()
    is_published: bool = False

    @classmethod
    def of(
        cls,
        source: str,
        names: tuple[str, ...],
        rows: Iterable[NumberedRow],
        *,
        is_named: bool,
        notes: tuple[str, ...] = (),
        is_published: bool = False,
    ) -> "Grid":
        rows = iter(rows)
        sample = list(islice(rows, SAMPLE_ROWS))
        return cls(source, names, sample, chain(sample, rows), is_named, notes, is_published)

    @classmethod
    def of_records(cls, source: str, rows: Iterable[tuple[int, dict[str, Any]]]) -> "Grid":
        """Return rows of named values as a table with the names of the first row."""
        rows = iter(rows)
        sample = list(islice(rows, SAMPLE_ROWS))
        names = tuple(sample[0][1]) if sample else ()
        is_named = not all(name.isdigit() for name in names)
        return cls(source, names, list(sample), chain(sample, rows), is_named)

    @cached_property
    def columns(self) -> list[list[Any]]:
        """The cells of the first rows, by column; those that a row of JSON lacks are left out."""
        found: list[list[Any]] = [[] for _ in self.names]
        for _, row in self.sample:
            for at, name in enumerate(self.names):
                if not isinstance(row, dict):
                    found[at].append(row[at])
                elif name in row:
                    found[at].append(row[name])
        return found

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(kind_of(cells) for cells in self.columns)

    def texts(self, at: int) -> list[str]:
        """Return the first cells of a column as texts."""
        return [cell_text(cell) for cell in self.columns[at]]

    def first_rows(self, count: int = 3) -> list[list[str]]:
        shown = []
        for _, row in self.sample[:count]:
            cells = [row.get(name) for name in self.names] if isinstance(row, dict) else row
            shown.append([cell_text(cell) for cell in cells])
        return shown

    def pick(
        self,
        chosen: Sequence[int],
        start: int = 0,
        again: Callable[["Grid"], Sequence[int]] | None = None,
        *,
        may_lack: bool = False,
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield the number of each row, and its cells in the chosen columns.

        A row of JSON may lack a column: ``again`` chooses among its own, or, with ``may_lack``,
        the cell is None.
        """
        names = tuple(self.names[at] for at in chosen)
        take = _take(chosen)
        for number, row in islice(self.rows, start, None):
            if not isinstance(row, dict):
                yield number, take(row)
                continue
            if may_lack:
                yield number, tuple(map(row.get, names))
                continue
            own = names
            if again is not None and any(name not in row for name in names):
                alone = Grid.of_records(self.place(number), [(number, row)])
                own = tuple(alone.names[at] for at in again(alone))
            try:
                yield number, tuple(row[name] for name in own)
            except KeyError as error:
                what = (
                    f"{self.place(number)}: no column {error.args[0]}; there are {', '.join(row)}"
                )
                raise DataError(what, hint="give every row the columns of the first") from None

    def place(self, number: int) -> str:
        return f"{self.source}, line {number}"


def _take(chosen: Sequence[int]) -> Any:
    """Return a function from a row to a tuple of its cells at these places."""
    if len(chosen) == 1:
        (only,) = chosen
        return lambda row: (row[only],)
    return itemgetter(*chosen) if chosen else lambda _: ()
