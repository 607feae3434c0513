"""Read any table: decide which columns a job needs, and yield its rows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, cycle, islice
from operator import itemgetter
from typing import Any

from simcse_cli.data import formats
from simcse_cli.data.delimited import open_delimited
from simcse_cli.data.facts import MOST_VALUES
from simcse_cli.data.formats import FileFormat
from simcse_cli.data.given import NOTHING_GIVEN, Given
from simcse_cli.data.grid import Grid, NumberedRow
from simcse_cli.data.jobs import Job
from simcse_cli.data.judges import Roles, judges_later
from simcse_cli.data.kinds import MISSING, Kind, cell_text, is_judgement, is_missing, list_items
from simcse_cli.data.names import fold, is_usual
from simcse_cli.data.roles import decide, told_line
from simcse_cli.data.show import shorten
from simcse_cli.data.text import are_lines, one_line, visible
from simcse_cli.errors import DataError

_BATCH_ROWS = 64


@dataclass(frozen=True)
class TableReading:
    """How a table is read: its grid, the columns of each role, and whether it is plain text."""

    grid: Grid
    roles: Roles
    is_text: bool = False

    def places(self, *roles: str) -> tuple[int, ...]:
        """Return the places of the columns of some roles; a role may have several columns."""
        columns = self.roles.columns
        return tuple(chain.from_iterable(columns.get(role, ()) for role in roles))

    def has(self, role: str) -> bool:
        return role in self.roles.columns


@dataclass
class RowPosition:
    """The row that was read last: its number in its file, from 1, and the file."""

    row: int = 0
    file: str | None = None
    _n_before: int = 0  # rows of the files before this one

    def open(self, file: str) -> None:
        """Begin a file, whose rows are counted anew."""
        self._n_before += self.row
        self.row = 0
        self.file = file

    @property
    def n_rows(self) -> int:
        """Number of rows read so far, of all files."""
        return self._n_before + self.row


class Table:
    """An input as rows with known columns.

    The first rows decide what each column is. They are read only when that is first needed.

    Args:
        source: a path, an address, ``hf://OWNER/NAME``, or ``-`` for standard input.
        job: what the rows are for.
        given: what the user said about the table.
        is_whole: whether all lines of a text file are one text, as ``texts`` yields it.
    """

    def __init__(
        self,
        source: formats.InputPath,
        job: Job,
        given: Given = NOTHING_GIVEN,
        *,
        is_whole: bool = False,
    ) -> None:
        self.name = formats.source_name(source)
        self.form = formats.guess_format(source)
        self._source = source
        self._job = job
        self._given = given
        self._is_whole = is_whole
        self._rows_are_taken = False

    # -------------------------------------------------------------- the decision
    @cached_property
    def reading(self) -> TableReading:
        """How the table is read.

        The first use opens the input, and tells the user what was found. If the columns are not
        certain, a DataError shows the choices.
        """
        reading = self._read()
        self._tell(reading)
        return reading

    @property
    def is_text(self) -> bool:
        return self.reading.is_text

    @property
    def unused(self) -> list[str]:
        """The names of the columns that are not read as texts; none of plain text."""
        if self.is_text:
            return []
        reading = self.reading
        used = reading.grid.names_at(reading.places("text", "anchor"))
        return [name for name in reading.grid.names if name not in used]

    @property
    def is_filled(self) -> bool:
        """Tell whether a template makes each text of several columns."""
        return self._given.template is not None

    def _read(self) -> TableReading:
        """Open the input, and decide what its columns are."""
        if self.form is FileFormat.TEXT:
            single = self._job.is_single or self._job is Job.LINT
            grid, is_text = formats.open_text(self._source, self._given, single=single)
            if is_text:
                return TableReading(grid, Roles({"text": (0,)}), is_text)
        else:
            grid = formats.OPENERS[self.form](self._source, self._given)
        if not grid.names:
            return TableReading(grid, Roles({}))
        grid.reach(self._given.columns.values())
        return TableReading(grid, decide(grid, self._job, self._given))

    def _tell(self, reading: TableReading) -> None:
        """Tell the user how the table is read, and what may be wrong with that."""
        told = self._given.told
        for note in reading.grid.notes:
            told.info(note)
        if reading.is_text:
            self._tell_of_cells(reading.grid)
            return
        line, has_unused = told_line(reading.grid, reading.roles, self._given.beside)
        # Show the line if the choice may be wrong: if a third column is taken for hard negatives by
        # its place alone, or if columns are unused, except in the layout of a published set.
        is_named = reading.grid.is_named or "hard_negative" in self._given.columns
        is_by_place = reading.has("hard_negative") and not is_named
        if is_by_place or (has_unused and not reading.grid.is_published):
            told.info(line)
        else:
            told.detail(line)

    def _tell_of_cells(self, grid: Grid) -> None:
        """If lines of plain text look like cells, say so, and which column seems to hold texts."""
        if self._is_whole:
            return
        lines = [row[0] for row in grid.first_rows(len(grid.sample))]
        separator = formats.cells_in_text(lines)
        if separator is None:
            return

        # Which cells would be the texts, if the lines were a table?
        text_at = 0  # column 1, unless the column of texts is certain
        given = Given(separator=separator, never_asks=True)
        with suppress(DataError):
            cells = open_delimited(iter(lines), self.name, given)
            (text_at,) = decide(cells, Job.TEXTS, Given()).columns["text"]
        first_line = next(filter(str.strip, lines))
        n_cells = 1 + first_line.count(separator)
        # The sample ends at 100 lines, so the number of lines of a longer file is unknown.
        which_lines = str(len(lines)) if len(lines) < 100 else "its"
        self._given.told.info(
            f"{self.name}: {which_lines} lines of {n_cells} cells are read as plain text; "
            f"to read one cell: --column {text_at + 1}"
        )

    # -------------------------------------------------------------- the rows
    def rows(
        self, *roles: str, start: int = 0, beside: Sequence[int] = ()
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield the number of each row and its cells in the columns of some roles.

        ``beside`` holds the places of other columns, whose cells follow. Rows before ``start`` are
        skipped.
        """
        reading = self.reading
        places_in_row_1 = reading.places(*roles)
        other_names = reading.grid.names_at(beside)
        unused_in_row_1 = set(reading.grid.names) - set(reading.grid.names_at(places_in_row_1))

        def choose_columns(row: Grid) -> Sequence[int]:
            """Find the columns of the roles anew in a JSON row, and return their places.

            Such a row lacks columns that row 1 has.
            """
            # A question would offer choices for this row alone, so this hint takes their place.
            hint = "give every row the columns of the first, with null for a missing text"
            try:
                row_reading = TableReading(row, decide(row, self._job, self._given))
            except DataError as error:
                raise DataError(error.message, hint=hint) from error
            places = row_reading.places(*roles)
            is_alike = set(other_names) <= set(row.names)
            for role in roles:
                is_alike &= _are_alike(reading, row_reading, role)
            # A column that row 1 has, but not for these roles, is no replacement in this row.
            if not is_alike or unused_in_row_1 & set(row.names_at(places)):
                columns = ", ".join(row.names)
                what = f"{row.source}: other columns than in row 1: {columns}"
                raise DataError(what, hint=hint)
            return *places, *map(row.names.index, other_names)

        # A template leaves out the columns that a row lacks.
        places = (*places_in_row_1, *beside)
        return self._pick(places, start, choose_columns, may_lack=self.is_filled)

    def _pick(
        self,
        places: Sequence[int],
        start: int = 0,
        choose_columns: Callable[[Grid], Sequence[int]] | None = None,
        *,
        may_lack: bool = False,
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield the number of each row from ``start`` on, and its cells at some places.

        Each call reads the table from its beginning. ``Grid.pick`` says what happens to a row that
        lacks some of the cells.
        """
        # The rows of a grid can be read only once, so another pass opens the input again.
        grid = self._read().grid if self._rows_are_taken else self.reading.grid
        self._rows_are_taken = True
        watched = self.reading.roles.watched
        if self.form is FileFormat.PARQUET:
            # The grid has only the first rows. All rows are read here, but only needed columns.
            names = grid.names_at((*places, *watched))
            rows = formats.parquet_rows(self._source, names, start)
            grid.rows = enumerate(rows, start=start + 1)
            start = 0
            may_lack = True
        if watched:
            grid.rows = self._watched(grid.rows)
        return grid.pick(places, start, choose_columns, may_lack=may_lack)

    def _watched(self, rows: Iterator[NumberedRow]) -> Iterator[NumberedRow]:
        """Yield rows; raise DataError if a watched column seems to tell which of them are pairs.

        A column of numbers, or of words for yes and no, seems to do so as soon as it has a second
        value. Any other column does if it has two to five values in the end.
        """
        grid, roles = self.reading.grid, self.reading.roles
        values_at: dict[int, list[str]] = {at: [] for at in roles.watched}
        for number, row in rows:
            for at, values in list(values_at.items()):
                cell = row.get(grid.names[at]) if isinstance(row, dict) else row[at]
                value = cell_text(cell).strip()
                if value in values or is_missing(value):
                    continue
                values.append(value)
                if len(values) > 1 and is_judgement(values):
                    raise judges_later(grid, self._given, roles, at, values)
                if len(values) > MOST_VALUES:
                    del values_at[at]
            yield number, row
        for at, values in values_at.items():
            if len(values) > 1:
                raise judges_later(grid, self._given, roles, at, values)

    def place(self, number: int) -> str:
        return self.reading.grid.place(number)

    def texts(self, start: int = 0) -> Iterator[str]:
        """Yield the text of each row of a table, or each line of a text file, even a blank one.

        Rows or lines before ``start`` are skipped.
        """
        return map(itemgetter(0), self.texts_with(start=start))

    def texts_with(self, *columns: str, start: int = 0) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield each text from row ``start`` on, and the cells of some columns in its row."""
        reading = self.reading
        beside = [self.place_of(name) for name in columns]
        # A text file has one column, the line itself.
        if reading.is_text:
            for line in islice(self._lines_of_text(), start, None):
                yield visible(line), (line,) * len(beside)
            return
        if not reading.grid.names:
            return

        # A row has one cell of text, or several that are joined, and then the cells of `columns`.
        role = "text" if reading.has("text") else "anchor"
        names = reading.grid.names_at(reading.places(role))
        n_names = len(names)
        missing = self._missing
        template = self._given.template
        for number, cells in self.rows(role, start=start, beside=beside):
            cell = cells[0]
            if n_names > 1 or template is not None:
                parts: list[str] = []
                for name, part in zip(names, cells[:n_names], strict=True):
                    parts.append(self._text(part, name, number))
                text = " ".join(parts).strip() if template is None else template.fill(parts)
            elif isinstance(cell, str):
                text = "" if cell.strip() in missing else visible(cell)
            else:
                text = self._text(cell, names[0], number)
            yield text, cells[n_names:]

    def _lines_of_text(self) -> Iterator[str]:
        lines = (cells[0] for _, cells in self.rows("text"))
        if self._is_whole:
            return iter([one_line(" ".join(lines))])
        return lines

    def _text(self, cell: Any, column: str, number: int) -> str:
        """Return the text of a cell, "" for a missing one; refuse objects and lists."""
        if isinstance(cell, dict | list):
            kind = "a list" if isinstance(cell, list) else "an object"
            raise DataError(
                f"{self.place(number)}: column {column} holds {kind}, need a text",
                hint="take the text out first; of JSON, for example: "
                "jq -c '{text: .data.text}' FILE > FLAT.jsonl",
            )
        return self.text_of(cell)

    def text_of(self, cell: Any) -> str:
        """Return a cell as text, "" for a missing one and for a text that nobody sees."""
        text = visible(cell_text(cell))
        return "" if text.strip() in self._missing else text

    @cached_property
    def _missing(self) -> frozenset[str]:
        """Cells that stand for a missing value, such as ``nan``; none in plain text and records."""
        return frozenset() if self.is_text or self.reading.grid.has_records else MISSING

    def lines(self, *roles: str) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield the number of each row and the texts of some roles, each on one line.

        A missing text is "". Rows are counted from 1, without a header or blank lines. A row with
        lists of texts gives several rows, as ``rows_of_lists`` says.
        """
        missing = self._missing

        def line_of(cell: Any) -> str:
            if isinstance(cell, str):
                text = one_line(cell)
                return "" if text in missing else text
            # Any other cell, which is no list here, has one text or none.
            return "".join(self.cell_texts(cell, is_list=False))

        # Most texts are on one line already; checking a batch at once is faster than each text.
        rows = (cells for _, cells in self.rows(*roles))
        n_before = 0
        while batch := list(islice(rows, _BATCH_ROWS)):
            numbered = enumerate(batch, start=n_before + 1)
            n_before += len(batch)
            cells = list(chain.from_iterable(batch))
            types = set(map(type, cells))
            if types == {str} and are_lines(cells) and missing.isdisjoint(cells):
                yield from numbered
            elif list not in types:
                for number, row in numbered:
                    yield number, tuple(map(line_of, row))
            else:
                for number, row in numbered:
                    lists = [self.cell_texts(cell, is_list=False) for cell in row]
                    for texts in rows_of_lists(lists):
                        yield number, texts

    def cell_texts(self, cell: Any, *, is_list: bool) -> list[str]:
        """Return the texts in a cell, each on one line, without blank and missing ones.

        A cell that is a list has several texts. With ``is_list``, a text such as ``["a", "b"]`` is
        read as a list, too.
        """
        if is_list and isinstance(cell, str) and (items := list_items(cell)) is not None:
            cell = items
        if isinstance(cell, dict):
            raise DataError(f"{self.name}: a JSON object, need a text or a list of texts")
        values = cell if isinstance(cell, list) else [cell]
        return list(filter(None, map(one_line, map(self.text_of, values))))

    def is_list(self, at: int) -> bool:
        return self.reading.grid.kinds[at] is Kind.LIST

    def column(self, name: str, *, start: int = 0) -> Iterator[Any]:
        """Yield the cells of a column by its name or number."""
        return (cell for _, (cell,) in self._pick((self.place_of(name),), start))

    def place_of(self, name: str) -> int:
        """Return the place of the column with a name or number; raise DataError if none has it."""
        grid = self.reading.grid
        if grid.is_named and name in grid.names:
            return grid.names.index(name)
        if name.isdecimal() and 1 <= int(name) <= len(grid.names):
            return int(name) - 1
        if self.reading.is_text:
            hint = "columns need a table: .csv, .tsv, .jsonl or .parquet"
            raise DataError(f"{self.name}: plain text has no column {name}", hint=hint)
        known = ", ".join(shorten(title, 40) for title in grid.names)
        raise DataError(f"{self.name}: no column {name}; there are {known}")

    def records(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the number of each row and all of its cells as texts, by name."""
        names = self.reading.grid.names
        for number, cells in self._pick(range(len(names))):
            yield number, dict(zip(names, map(cell_text, cells), strict=True))

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Yield all cells of each row as they were read; a cell that the row lacks is None."""
        for _, cells in self._pick(range(len(self.reading.grid.names)), may_lack=True):
            yield cells

    @property
    def is_json(self) -> bool:
        """Tell whether the rows are values of JSON."""
        may_be_json = self.form in (FileFormat.JSONL, FileFormat.TEXT)
        return may_be_json and self.reading.grid.has_records

    def json_values(self) -> Iterator[Any]:
        """Yield the value of each row of JSON, nested as it is in the file."""
        yield from formats.json_values(self._source, self._given)

    def count(self) -> int:
        """Return the number of texts; plain text and parquet need not be parsed for it."""
        if self.form is FileFormat.PARQUET:
            return formats.parquet_length(self._source)
        if self.is_text and self._is_whole:
            return 1
        # The texts of a table or of a packed file must be read; lines of plain text need not.
        if not self.is_text or str(self._source).endswith(".gz"):
            return sum(1 for _ in self.texts())
        return formats.count_lines(self._source, self._given.encoding)


def _are_alike(first: TableReading, later: TableReading, role: str) -> bool:
    """Tell whether a role has as many columns in a later JSON row as in row 1, and fitting names.

    A name may differ from that in row 1 if both are usual for the role. A column chosen by its
    content alone would be a guess: a row without its text may hold a label.
    """
    names_in_row_1 = first.grid.names_at(first.places(role))
    names_here = later.grid.names_at(later.places(role))
    if len(names_here) != len(names_in_row_1):
        return False
    if not (first.grid.is_named and later.grid.is_named):  # a row that is a list or a text
        return True
    changed = {*map(fold, names_in_row_1)} ^ {*map(fold, names_here)}
    return all(is_usual(name, role) for name in changed)


def rows_of_lists(lists: Iterable[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yield as many rows as the longest list has texts: row i has text i of each list.

    Shorter lists begin again at their end. An empty list counts as one empty text.
    """
    filled = [texts or [""] for texts in lists]
    n_rows = max(map(len, filled))
    yield from islice(zip(*map(cycle, filled), strict=True), n_rows)
