"""A table as names and rows of cells, whatever its format."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from simcse_cli.data.kinds import Kind, cell_text, kind_of
from simcse_cli.errors import DataError

SAMPLE_ROWS = 100
"""Number of rows at the beginning that decide what the columns are."""

_ITEM = re.compile(r"\.(\d+)(?=\.|$)")  # the number of an item in a path such as turns.0.content

NumberedRow = tuple[int, Sequence[Any] | dict[str, Any]]


@dataclass(eq=False)
class Grid:
    """A table: the names of its columns, and its rows, which can be read only once.

    Attributes:
        sample: the first rows; ``rows`` yields them, too.
        is_named: whether the names are in the file; otherwise they are numbers from 1.
        is_published: whether the table has the layout of a published corpus; then unused columns
            are not worth a remark.
        notes: what the user should know about how the table was read.
        unit: what the numbers of the rows count: lines of a file, items of a list, or rows.
    """

    source: str
    names: tuple[str, ...]
    rows: Iterator[NumberedRow]
    is_named: bool
    notes: tuple[str, ...] = ()
    is_published: bool = False
    unit: str = "line"
    sample: Sequence[NumberedRow] = field(init=False)

    def __post_init__(self) -> None:
        self.sample = list(islice(self.rows, SAMPLE_ROWS))
        self.rows = chain(self.sample, self.rows)

    @classmethod
    def of_records(
        cls, source: str, rows: Iterable[tuple[int, dict[str, Any]]], unit: str
    ) -> "Grid":
        """Return rows of named values as a table with the names of the first row."""
        rows = iter(rows)
        head = list(islice(rows, 1))
        names = tuple(chain.from_iterable(row for _, row in head))
        # If the row was a list, its names are numbers, and not in the file.
        is_named = not all(map(str.isdigit, names))
        return cls(source, names, chain(head, rows), is_named=is_named, unit=unit)

    @property
    def has_records(self) -> bool:
        """Tell whether the rows have named values, as in JSON, parquet and Hub datasets."""
        return bool(self.sample) and isinstance(self.sample[0][1], dict)

    def reach(self, names: Iterable[str]) -> None:
        """Add columns for items of lists that are too short in row 1.

        A name in ``names`` is added if row 1 lacks it for this reason, and a later row of
        ``sample`` has it.
        """
        rows = [row for _, row in self.sample if isinstance(row, dict)]
        for name in names:
            is_later = name not in self.names and any(name in row for row in rows)
            if is_later and _lacks_item(rows[0], name):
                self.names = (*self.names, name)

    @property
    def has_titles(self) -> bool:
        """Tell whether the columns are those of a BEIR corpus, where a title belongs to a text."""
        return {"_id", "title", "text"} <= set(self.names)

    @cached_property
    def columns(self) -> list[list[Any]]:
        """The cells of the first rows, by column, without cells that a row of JSON lacks."""
        cells_by_column: list[list[Any]] = [[] for _ in self.names]
        for _, row in self.sample:
            for at, name in enumerate(self.names):
                if not isinstance(row, dict):
                    cells_by_column[at].append(row[at])
                elif name in row:
                    cells_by_column[at].append(row[name])
        return cells_by_column

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(map(kind_of, self.columns))

    def names_at(self, places: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.names[at] for at in places)

    def first_rows(self, count: int = 3) -> list[list[str]]:
        """Return the cells of the first rows as texts."""
        shown = []
        for _, row in self.sample[:count]:
            cells = map(row.get, self.names) if isinstance(row, dict) else row
            shown.append(list(map(cell_text, cells)))
        return shown

    def pick(
        self,
        places: Sequence[int],
        start: int,
        choose_columns: Callable[["Grid"], Sequence[int]] | None,
        *,
        may_lack: bool,
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield the number of each row from ``start`` on, and its cells at some places.

        A row of JSON may lack some of these cells. If a list in the row is too short for a cell,
        the cell is None. If the row lacks other cells, there are three cases:

        - with ``may_lack``, they are None, too;
        - with ``choose_columns``, this function is called with a grid of the row alone, and returns
          the places in this grid to read instead;
        - otherwise, DataError is raised.
        """
        names = self.names_at(places)
        take_by_place = _taker(places)
        take_by_name = _taker(names)
        wanted = set(names)
        for number, row in islice(self.rows, start, None):
            if not isinstance(row, dict):
                yield number, take_by_place(row)
                continue
            if may_lack:
                yield number, tuple(map(row.get, names))
                continue

            # A row may have shorter lists than the first, or other columns.
            if not (row.keys() >= wanted):
                row = row | {name: None for name in wanted - row.keys() if _lacks_item(row, name)}
            take = take_by_name
            if choose_columns is not None and not (row.keys() >= wanted):
                row_grid = Grid.of_records(self.place(number), [(number, row)], self.unit)
                take = _taker(row_grid.names_at(choose_columns(row_grid)))
            try:
                yield number, take(row)
            except KeyError as error:
                present = ", ".join(row)
                what = f"{self.place(number)}: no column {error.args[0]}; there are {present}"
                raise DataError(what, hint="give every row the columns of the first") from None

    def place(self, number: int) -> str:
        return f"{self.source}, {self.unit} {number}"


def _lacks_item(row: Mapping[str, Any], name: str) -> bool:
    """Tell whether a path leads to an item that a list of the row does not have.

    Example:
        >>> row = {"a.0.text": "One.", "b": []}
        >>> [_lacks_item(row, name) for name in ("a.1.text", "a.0.id", "b.0.text", "c.0.text")]
        [True, False, True, False]
    """
    for number in _ITEM.finditer(name):
        path = name[: number.start()]
        if path in row:
            return not row[path]  # a list without objects stays whole; an empty one has no item
        items = {key[len(path) :].split(".")[1] for key in row if key.startswith(f"{path}.")}
        if "0" in items and number[1] not in items:
            return True
    return False


def _taker(keys: Sequence[Any]) -> Any:
    """Return a function from a row to the tuple of its cells at some places or names."""
    # For one key `itemgetter` would return no tuple, and it takes no empty list of keys.
    if len(keys) == 1:
        (key,) = keys
        return lambda row: (row[key],)
    return itemgetter(*keys) if keys else lambda _: ()
