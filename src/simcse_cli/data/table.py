import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from simcse_cli.data import formats
from simcse_cli.data.columns import Record, V, column_name, find_column, has_header, suggest_columns
from simcse_cli.data.delimited import is_table
from simcse_cli.data.formats import FileFormat
from simcse_cli.errors import DataError, UsageError
from simcse_cli.files.streams import STDIO, iter_lines

_HEAD = 20
_WHICH_COLUMN = "choose with --column COLUMN (or by number, without a header: --column 1)"


class Table:
    """An input as rows with named columns; the format follows from its name (``.gz`` is unpacked).

    Text and standard input are tables with the single column ``anchor``.

    Args:
        source: a path, an address, ``hf://OWNER/NAME``, or ``-`` for standard input.
        text_as: the format in which to read a ``.txt`` file: lines of text, or a table, as always with ``columns``.
        columns: the names or numbers of the columns to be read, which tell whether a CSV file has a header.
        names: the columns of a file that is known to have no header.
        is_whole: whether all lines of a text file are one sentence, as ``sentences`` yields it.
    """

    def __init__(
        self,
        source: formats.InputPath,
        *,
        text_as: formats.FileFormat = formats.FileFormat.TEXT,
        encoding: str = "utf-8",
        columns: Iterable[str | None] = (),
        names: Sequence[str] = (),
        is_whole: bool = False,
    ) -> None:
        self._source, self.name = source, formats.source_name(source)
        columns = [column for column in columns if column]
        self.form = formats.guess_format(source)
        if self.is_text:
            self.form = FileFormat.CSV if columns else text_as
        self._is_whole = is_whole and self.is_text
        self._layout = formats.Layout(encoding, has_header(columns), tuple(names))

    @property
    def is_text(self) -> bool:
        return self.form is formats.FileFormat.TEXT

    def records(self, start: int = 0) -> Iterator[Record[Any]]:
        """Yield each row with its native values, skipping the first ``start`` rows."""
        rows = formats.READERS[self.form](self._source, self._layout)
        return (self._record(row.items(), number) for number, row in islice(rows, start, None))

    def texts(self) -> Iterator[Record[str]]:
        """Yield each row with every value as a string: numbers and lists in JSON spelling, "" for a missing value."""
        for number, row in formats.READERS[self.form](self._source, self._layout):
            yield self._record(((name, _text_of(value)) for name, value in row.items()), number)

    def _record(self, values: Iterable[tuple[str, V]], number: int) -> Record[V]:
        has_names = self.form is FileFormat.JSONL
        return Record(values, self.name, number, has_names=has_names, head=self._head_rows)

    def _head_rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the first rows for a look at their values; none of a stream, which cannot be read again."""
        if str(self._source) == STDIO or Path(self._source).is_fifo():
            return ()
        return [row for _, row in islice(formats.READERS[self.form](self._source, self._layout), _HEAD)]

    def pick(self, resolve: Callable[[Record[str]], tuple[str, ...]]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the place of each row and its texts in the columns that ``resolve`` finds, again in rows of others."""
        names: tuple[str, ...] = ()
        for record in self.texts():
            if not names or any(name not in record for name in names):
                names = resolve(record)
            yield record.place, tuple(record[name] for name in names)

    def sentences(self, column: str | None = None, *, hint: str = _WHICH_COLUMN, start: int = 0) -> Iterator[str]:
        """Yield one string per line of a text file (blank lines too), or one per row of a table, from ``start``.

        ``column`` is the name or number of a column; by default the only one, or the one called ``text``, ``anchor``
        or one of their aliases. ``hint`` is shown if this does not decide it, with a name in place of ``COLUMN``.
        """
        if self.is_text:
            lines = iter_lines(self._source, encoding=self._layout.encoding)
            if self._is_whole:
                lines = iter([" ".join(" ".join(lines).split())])
            yield from islice(lines, start, None)
            return
        chosen, given = "", None if column is None else column_name(column)
        if self.form is formats.FileFormat.PARQUET:
            names = self._record(dict.fromkeys(self._parquet[1]).items(), 0)
            chosen = self._sentence_column(names, given, hint)
        for record in self._cells(chosen, start):
            if chosen not in record:
                chosen = self._sentence_column(record, given, hint)
            yield _sentence(record[chosen], chosen, record.place)

    def column(self, name: str, *, start: int = 0) -> Iterator[Any]:
        if self.form is formats.FileFormat.PARQUET:
            _require_column(name, self._parquet[1], self.name)
        for record in self._cells(name, start):
            if name not in record:
                _require_column(name, record, record.columns_place)
            yield record[name]

    def count(self, column: str | None = None) -> int:
        """Return the number of sentences; text and parquet need not be parsed for it."""
        if self._is_whole:
            return 1
        if self.form is formats.FileFormat.PARQUET:
            return self._parquet[0]
        if not self.is_text or str(self._source).endswith(".gz"):
            return sum(1 for _ in self.sentences(column))
        return formats.count_lines(self._source)

    @cached_property
    def _parquet(self) -> tuple[int, list[str]]:
        return formats.parquet_shape(self._source)

    def _cells(self, column: str, start: int) -> Iterator[Record[Any]]:
        """Yield the rows from ``start`` on; from parquet, only the requested column is read."""
        if self.form is not formats.FileFormat.PARQUET:
            return self.records(start)
        rows = enumerate(formats.parquet_rows(self._source, [column], start), start=start + 1)
        return (Record(row.items(), self.name, number) for number, row in rows)

    def _sentence_column(self, record: Record[Any], column: str | None, hint: str) -> str:
        if column is None:
            found = find_column(record, "text") or find_column(record, "anchor")
            # A delimited file with a single column may be plain text without separators.
            if found is None and len(record) == 1 and self.form not in (FileFormat.CSV, FileFormat.TSV):
                found = next(iter(record))
            what = f"which of the columns {', '.join(record)} holds the sentences?"
        else:
            found, what = find_column(record, column), f"no column {column}; there are {', '.join(record)}"
        if found is None:
            seems = suggest_columns(record, ["text"])["text"]
            hint = hint.replace("COLUMN", "COLUMN" if seems == "NAME" else shlex.quote(seems))
            raise DataError(f"{record.columns_place}: {what}", hint=hint)
        return found


def check_column(column: str | None, sources: Sequence[formats.InputPath], option: str = "--column") -> None:
    """Raise UsageError for a column if every input is plain text, which has no columns."""
    if column is not None and all(map(_is_plain, sources)):
        raise UsageError("needs a table (.csv, .tsv, .jsonl or .parquet), and no input is one", option=option)


def _is_plain(source: formats.InputPath) -> bool:
    if formats.guess_format(source) is not FileFormat.TEXT:
        return False
    return str(source) == STDIO or not is_table(iter_lines(source, encoding="latin-1"))  # any bytes will do


def first_read(rows: Iterator[str]) -> Iterator[str]:
    """Read the first row at once, so that a missing file or column ends the command, and return all rows."""
    return chain(list(islice(rows, 1)), rows)


def take_out_hint(source: formats.InputPath, option: str) -> str:
    """Return a hint for a table given to an ``option`` that takes only files of sentences."""
    text = shlex.quote(f"{Path(source).stem}.txt")
    taken = f"simcse prepare sentences {shlex.quote(str(source))} --column COLUMN -o {text}"
    return f"take one out with `{taken}`, then {option} {text}"


def _require_column(column: str, names: Iterable[str], place: str) -> None:
    if column not in names:
        raise DataError(f"{place}: no column {column}; there are {', '.join(names)}")


def _sentence(value: Any, column: str, place: str) -> str:
    """Return the text of a cell; refuse objects and lists, whose JSON spelling would be encoded."""
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        raise DataError(
            f"{place}: column {column} holds {kind}, need a text",
            hint="take the text out first; of JSON, for example: jq -c '{text: .data.text}' FILE > FLAT.jsonl",
        )
    return _text_of(value)


def _text_of(value: Any) -> str:
    if value is None or (isinstance(value, float) and value != value):  # NaN: missing, in tables of numbers
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
