"""Sentences and rows from text, JSON Lines, CSV, TSV, parquet, gzip, stdin and Hub datasets, as streams.

The format follows from the name (``.gz`` is looked through); ``-`` is text unless told otherwise.
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Any

from simcse_cli.data.columns import POSITIONAL, find_column, has_header
from simcse_cli.data.delimited import SEPARATORS, table_rows
from simcse_cli.errors import DataError, UsageError
from simcse_cli.files.schema import foreign_format
from simcse_cli.files.streams import STDIO, iter_json_lines, iter_lines, open_input

InputPath = Path | str


class FileFormat(StrEnum):
    """How the bytes of an input are laid out."""

    TEXT = "text"
    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    HUB = "hub"


_BY_SUFFIX = {
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".json": FileFormat.JSONL,
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.TSV,
    ".parquet": FileFormat.PARQUET,
}
_WHICH_COLUMN = "choose with --column COLUMN (or by number, without a header: --column 1)"
_HUB_PREFIX = "hf://"
_HUB_HINT = (
    "write hf://OWNER/NAME, hf://OWNER/NAME:SPLIT or hf://OWNER/NAME@CONFIG:SPLIT (SPLIT is train by default)"
)


def guess_format(source: InputPath) -> FileFormat:
    """Return the format that the name of an input stands for; plain text when it says nothing."""
    if str(source).startswith(_HUB_PREFIX):
        return FileFormat.HUB
    path = Path(source)
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    return _BY_SUFFIX.get(suffix.lower(), FileFormat.TEXT)


def source_name(source: InputPath) -> str:
    return "standard input" if str(source) == STDIO else str(source)


def check_column(column: str | None, sources: Sequence[InputPath], option: str = "--column") -> None:
    """Raise UsageError for a column where every input is plain text, which has none."""
    if column is not None and all(guess_format(source) is FileFormat.TEXT for source in sources):
        raise UsageError("needs a table (.csv, .tsv, .jsonl or .parquet), and no input is one", option=option)


def iter_sentences(
    source: InputPath,
    *,
    column: str | None = None,
    encoding: str = "utf-8",
    hint: str = _WHICH_COLUMN,
    start: int = 0,
) -> Iterator[str]:
    """Yield one string per line of a text file (blank lines too), or one per row of a table.

    ``column`` is which column of a table, by name, or by number where there is no header; by default its only
    column, or the one called ``text``, ``anchor`` or one of their aliases. ``hint`` says what to do where the
    column is not clear, ``COLUMN`` standing for the name of one. ``start`` is how many to leave out; in
    parquet files whole row groups are passed over unread.

    Raises:
        DataError: unreadable or empty input, or a table in which the column is missing or not clear.
    """
    fmt = guess_format(source)
    if fmt is FileFormat.TEXT:
        yield from islice(iter_lines(source, encoding=encoding), start, None)
        return
    if fmt is FileFormat.PARQUET:
        record = dict.fromkeys(_parquet_columns(source), "")
        chosen = _sentence_column(record, column, source_name(source), hint, is_delimited=False)
        for number, cells in enumerate(_parquet_rows(source, [chosen], start), start=start + 1):
            yield _sentence(cells[chosen], chosen, source, number)
        return
    chosen = ""
    rows = iter_values(source, encoding=encoding, header=has_header([column or ""]))
    for number, row in islice(rows, start, None):
        if chosen not in row:
            is_delimited = fmt in (FileFormat.CSV, FileFormat.TSV)
            place = f"{source_name(source)}, line {number}"
            chosen = _sentence_column(row, column, place, hint, is_delimited=is_delimited)
        yield _sentence(row[chosen], chosen, source, number)


def iter_cells(source: InputPath, column: str, *, start: int = 0) -> Iterator[Any]:
    """Yield the values of one column of a table as its format has them, without the first ``start`` rows.

    Raises:
        DataError: there is no such column.
    """
    if guess_format(source) is FileFormat.PARQUET:
        _require_column(column, _parquet_columns(source), source_name(source))
        yield from (row[column] for row in _parquet_rows(source, [column], start))
        return
    for number, row in islice(iter_values(source, header=has_header([column])), start, None):
        _require_column(column, row, f"{source_name(source)}, line {number}")
        yield row[column]


def _require_column(column: str, names: Iterable[str], place: str, hint: str | None = None) -> None:
    if column not in names:
        raise DataError(f"{place}: no column {column}; there are {', '.join(names)}", hint=hint)


def count_rows(source: InputPath, *, column: str | None = None) -> int:
    """Return how many sentences ``iter_sentences`` yields, for text and parquet without parsing them."""
    fmt = guess_format(source)
    if fmt is FileFormat.PARQUET:
        with _parquet_file(source) as table:
            return int(table.metadata.num_rows)
    if fmt is not FileFormat.TEXT or str(source).endswith(".gz"):
        return sum(1 for _ in iter_sentences(source, column=column))
    n_ends, last = 0, b"\n"
    with open_input(source) as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            n_ends, last = n_ends + block.count(b"\n"), block[-1:]
    return n_ends + (last != b"\n")


def first_read(rows: Iterator[str]) -> Iterator[str]:
    """Return the same rows when the first is read, so that a missing file or column ends a command at once."""
    return chain(list(islice(rows, 1)), rows)


class Record(dict[str, str]):
    """The columns of a row by name, and the place of the row: file and line.

    In JSON Lines they need not be those of the first row: to ask for another is a DataError.
    """

    def __init__(self, values: Iterable[tuple[str, str]], place: str) -> None:
        super().__init__(values)
        self.place = place

    def __missing__(self, column: str) -> str:
        raise DataError(
            f"{self.place}: no column {column}; there are {', '.join(self)}",
            hint="give every row the columns of the first",
        )


def iter_records(
    source: InputPath,
    *,
    text_as: FileFormat = FileFormat.TEXT,
    encoding: str = "utf-8",
    header: bool | None = None,
) -> Iterator[Record]:
    """Yield each row of a table, every value as a string.

    Numbers and lists keep their JSON spelling, a missing value is the empty string; otherwise as ``iter_values``.
    """
    for number, row in iter_values(source, text_as=text_as, encoding=encoding, header=header):
        texts = ((name, _text_of(value)) for name, value in row.items())
        yield Record(texts, f"{source_name(source)}, line {number}")


def iter_values(
    source: InputPath,
    *,
    text_as: FileFormat = FileFormat.TEXT,
    encoding: str = "utf-8",
    names: Sequence[str] | None = None,
    header: bool | None = None,
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield ``(line number, columns by name)`` for each row of a table, values as the format has them.

    The line is the last one of the row for CSV (a quoted cell may span lines), the row counted from 1 for
    parquet and Hub datasets. Rows of a text file have the one column ``anchor``, unless it is read ``text_as`` a
    table; those of SentEval's STS-B files have ``STSB_COLUMNS``.

    ``header`` says whether a CSV or TSV file has one; by default a first row with a usual column name is one,
    and one that looks like names beside the rows under it. Without one columns have ``names``, or numbers,
    counted from 1.

    Raises:
        DataError: a row that cannot be parsed or has another number of columns; names file and line.
    """
    fmt = guess_format(source)
    match text_as if fmt is FileFormat.TEXT else fmt:
        case FileFormat.TEXT:
            return (
                (number, {POSITIONAL[0]: line})
                for number, line in enumerate(iter_lines(source, encoding=encoding), start=1)
            )
        case FileFormat.JSONL:
            return _jsonl_records(source, encoding)
        case FileFormat.PARQUET:
            return enumerate(_parquet_rows(source), start=1)
        case FileFormat.HUB:
            return enumerate(_hub_rows(str(source)), start=1)
        case FileFormat.CSV:
            separators = SEPARATORS
        case FileFormat.TSV:
            separators = "\t"
    lines = iter_lines(source, encoding=encoding)
    return table_rows(lines, source_name(source), separators, tuple(names or ()), header)


def take_out_hint(source: InputPath, option: str) -> str:
    """Return what to do with a table where ``option`` takes files of sentences only."""
    text = shlex.quote(f"{Path(source).stem}.txt")
    taken = f"simcse prepare sentences {shlex.quote(str(source))} --column COLUMN -o {text}"
    return f"take one out with `{taken}`, then {option} {text}"


def _sentence_column(
    record: Mapping[str, Any], column: str | None, place: str, hint: str, *, is_delimited: bool
) -> str:
    hint = hint.replace("COLUMN", shlex.quote(next(iter(record))))
    if column is not None:
        _require_column(column, record, place, hint)
        return column
    found = find_column(record, "text") or find_column(record, "anchor")
    if found is None and len(record) == 1 and not is_delimited:
        return next(iter(record))
    if found is None:
        raise DataError(f"{place}: which of the columns {', '.join(record)} holds the sentences?", hint=hint)
    return found


def _sentence(value: Any, column: str, source: InputPath, number: int) -> str:
    """Return the text of a cell; the spelling of an object or list is none, and would be encoded as if it were."""
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        raise DataError(
            f"{source_name(source)}, line {number}: column {column} holds {kind}, need a text",
            hint="take the text out first; of JSON, for example: jq -c '{text: .data.text}' FILE > FLAT.jsonl",
        )
    return _text_of(value)


def _text_of(value: Any) -> str:
    if value is None or (isinstance(value, float) and value != value):  # NaN: missing, in tables of numbers
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _jsonl_records(source: InputPath, encoding: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of JSON Lines; a list or string is a row without column names."""
    name = source_name(source)
    hint = "one JSON object per line is needed; unpack an array with: jq -c '.[]' FILE > FILE.jsonl"
    for number, value in iter_json_lines(source, encoding=encoding, lenient=True, hint=hint):
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list) and 1 <= len(value) <= len(POSITIONAL):
            value = dict(zip(POSITIONAL, value, strict=False))
        if not isinstance(value, dict) or not value:
            raise DataError(
                f"{name}, line {number}: a JSON {type(value).__name__}, need an object with named columns",
                hint='for example {"anchor": "...", "positive": "..."}',
            )
        yield number, value


@contextmanager
def _parquet_file(source: InputPath) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile  # half a second that other formats need not pay

    with (
        open_input(source) as stream,
        foreign_format(source, "a parquet file"),
        ParquetFile(stream) as table,
    ):
        yield table


def _parquet_columns(source: InputPath) -> list[str]:
    with _parquet_file(source) as table:
        return list(table.schema_arrow.names)


def _parquet_rows(
    source: InputPath, columns: Sequence[str] | None = None, start: int = 0
) -> Iterator[dict[str, Any]]:
    with _parquet_file(source) as table:
        groups = list(range(table.num_row_groups))
        while groups and start >= (n_rows := table.metadata.row_group(groups[0]).num_rows):
            start -= n_rows
            del groups[0]
        for batch in table.iter_batches(batch_size=4096, row_groups=groups, columns=columns):
            yield from batch.slice(min(start, len(batch))).to_pylist()
            start -= min(start, len(batch))


def parse_hub_source(source: str) -> tuple[str, str | None, str]:
    """Return ``(name, config, split)`` of ``hf://NAME[@CONFIG][:SPLIT]``.

    ``hf://nyu-mll/glue@qqp:validation`` is ``("nyu-mll/glue", "qqp", "validation")``.
    """
    body = source.removeprefix(_HUB_PREFIX).removeprefix("datasets/")
    body, _, split = body.partition(":")
    name, _, config = body.partition("@")
    if not name:
        raise DataError(f"{source}: no dataset name", hint=_HUB_HINT)
    return name, config or None, split or "train"


def _hub_rows(source: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Hub dataset without downloading it as a whole; ``hf:///folder`` reads a saved one."""
    import datasets  # two seconds that other formats need not pay

    name, config, split = parse_hub_source(source)
    with foreign_format(source, "a dataset", hint=_HUB_HINT):
        if (Path(name) / "state.json").exists() or (Path(name) / "dataset_dict.json").exists():
            saved = datasets.load_from_disk(name)
            yield from saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        else:
            yield from datasets.load_dataset(name, config, split=split, streaming=True)
