"""Sentences and rows from text, JSON Lines, CSV, TSV, parquet, gzip, stdin and Hub datasets, as streams.

The format follows from the name (``.gz`` is looked through); ``-`` is text unless told otherwise. CSV and TSV
files of one to three columns may lack a header, as files made for the original SimCSE code do; their columns
are then ``POSITIONAL``.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Any

from simcse_cli.errors import DataError
from simcse_cli.files import STDIO, iter_json_lines, iter_lines, require_file
from simcse_cli.schema import foreign_format

InputPath = Path | str
Record = dict[str, str]

POSITIONAL = ("anchor", "positive", "hard_negative")
"""Columns of a table without a header, in order."""

COLUMN_ALIASES: dict[str, tuple[str, ...]] = {
    "anchor": (
        *("sent0", "sentence1", "sentence_a", "premise", "question1", "query", "text", "sentence"),
        *("source", "src", "text1", "text_a", "context"),
    ),
    "positive": (
        *("sent1", "sentence2", "sentence_b", "hypothesis", "question2", "entailment", "paraphrase"),
        *("target", "tgt", "text2", "text_b"),
    ),
    "hard_negative": ("hard_neg", "sent2", "sentence3", "negative", "contradiction"),
    "text": ("sentence", "line", "content", "caption", "document", "anchor", "sent0"),
    "label": ("gold_label", "labels", "class", "entailment_judgment"),
}
"""What common files call their columns, by the name used here; earlier ones win."""

# A first row with one of these is a header.
_HEADER_NAMES = frozenset(
    (
        *COLUMN_ALIASES,
        *(name for names in COLUMN_ALIASES.values() for name in names),
        *("id", "score", "is_duplicate", "quality", "image_id", "image"),
        *("normal_sentence", "simple_sentence"),
    )
)


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


def iter_sentences(source: InputPath, *, column: str | None = None, encoding: str = "utf-8") -> Iterator[str]:
    """Yield one string per line of a text file (blank lines too), or one per row of a table.

    Args:
        source: a path, ``-`` for stdin, or ``hf://OWNER/NAME``.
        column: which column of a table; by default its only column, or the one called ``text``, ``anchor`` or
            one of their aliases.
        encoding: of text, JSON Lines, CSV and TSV.

    Raises:
        DataError: unreadable or empty input, or a table in which the column is missing or not clear.
    """
    if guess_format(source) is FileFormat.TEXT:
        yield from iter_lines(source, encoding=encoding)
        return
    chosen: str | None = None
    header = None if column in (None, *POSITIONAL) else True
    for number, record in iter_records(source, encoding=encoding, header=header):
        if chosen is None or chosen not in record:
            chosen = _sentence_column(record, column, f"{source_name(source)}, line {number}")
        yield record[chosen]


def first_read(rows: Iterator[str]) -> Iterator[str]:
    """Return the same rows when the first is read, so that a missing file or column ends a command at once."""
    return chain(list(islice(rows, 1)), rows)


def iter_records(
    source: InputPath,
    *,
    fmt: FileFormat | None = None,
    encoding: str = "utf-8",
    names: Sequence[str] | None = None,
    header: bool | None = None,
) -> Iterator[tuple[int, Record]]:
    """Yield ``(line number, columns by name)`` for each row of a table; every value is a string.

    Numbers keep their JSON spelling, a missing value is the empty string. The line is the last one of the row
    for CSV (a quoted cell may span lines), the row counted from 1 for parquet and Hub datasets. Rows of a
    text file have the one column ``anchor``.

    Args:
        source: a path, ``-`` for stdin, or ``hf://OWNER/NAME``.
        fmt: overrides the format that the name stands for.
        encoding: of text, JSON Lines, CSV and TSV.
        names: columns of a CSV or TSV file that has no header.
        header: whether such a file has one; by default a first row with a usual column name is one.

    Raises:
        DataError: a row that cannot be parsed or has another number of columns; names file and line.
    """
    match fmt or guess_format(source):
        case FileFormat.TEXT:
            return (
                (number, {POSITIONAL[0]: line})
                for number, line in enumerate(iter_lines(source, encoding=encoding), start=1)
            )
        case FileFormat.JSONL:
            return _jsonl_records(source, encoding)
        case FileFormat.PARQUET:
            return _numbered(_parquet_rows(source))
        case FileFormat.HUB:
            return _numbered(_hub_rows(str(source)))
        case FileFormat.CSV:
            cells = _csv_cells(source, encoding)
        case FileFormat.TSV:
            cells = _tsv_cells(source, encoding)
    return _named_cells(cells, source_name(source), tuple(names or ()), header)


def read_rows(source: InputPath, columns: Sequence[str] = POSITIONAL[:2]) -> list[tuple[str, ...]]:
    """Return the named columns (or their aliases) of every row, in the order asked for.

    Raises:
        DataError: a column is missing, or there are no rows.
    """
    rows: list[tuple[str, ...]] = []
    names: tuple[str, ...] = ()
    for number, record in iter_records(source):
        if not names or any(name not in record for name in names):
            names = resolve_columns(record, columns, f"{source_name(source)}, line {number}")
        rows.append(tuple(record[name] for name in names))
    if not rows:
        raise DataError(f"{source_name(source)} has no rows")
    return rows


def find_column(record: Record, column: str) -> str | None:
    """Return the name under which a row holds ``column``: its own, else its first alias, in any case."""
    by_lower = {name.strip().lower(): name for name in reversed(list(record))}
    for name in (column.lower(), *COLUMN_ALIASES.get(column, ())):
        if name in by_lower:
            return by_lower[name]
    return None


def resolve_columns(record: Record, columns: Sequence[str], place: str) -> tuple[str, ...]:
    """Return the names under which a row holds ``columns``.

    Raises:
        DataError: one of them is missing under any of its names; says which columns there are.
    """
    found = tuple(find_column(record, column) for column in columns)
    missing = [column for column, name in zip(columns, found, strict=True) if name is None]
    if missing:
        raise DataError(
            f"{place}: the columns are {', '.join(record)}; missing is {', '.join(missing)}",
            hint="rename the columns, or build the file with `simcse prepare`; see `simcse prepare --help`",
        )
    return tuple(name for name in found if name is not None)


def _sentence_column(record: Record, column: str | None, place: str) -> str:
    if column is not None:
        if column not in record:
            raise DataError(
                f"{place}: no column {column}; there are {', '.join(record)}", hint="choose with --column"
            )
        return column
    if len(record) == 1:
        return next(iter(record))
    found = find_column(record, "text") or find_column(record, "anchor")
    if found is None:
        raise DataError(
            f"{place}: which of the columns {', '.join(record)} holds the sentences?",
            hint="choose with --column NAME",
        )
    return found


def _text_of(value: Any) -> str:
    if value is None or (isinstance(value, float) and value != value):  # NaN: missing, in tables of numbers
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _as_record(row: dict[str, Any]) -> Record:
    return {name: _text_of(value) for name, value in row.items()}


def _numbered(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[int, Record]]:
    return ((number, _as_record(row)) for number, row in enumerate(rows, start=1))


def _jsonl_records(source: InputPath, encoding: str) -> Iterator[tuple[int, Record]]:
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
        yield number, _as_record(value)


def _parquet_rows(source: InputPath) -> Iterator[dict[str, Any]]:
    from pyarrow.parquet import ParquetFile  # half a second that other formats need not pay

    path = require_file(source)
    with foreign_format(path, "a parquet file"), ParquetFile(path) as table:
        for batch in table.iter_batches(batch_size=4096):
            yield from batch.to_pylist()


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


def _csv_cells(source: InputPath, encoding: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in iter_lines(source, encoding=encoding)), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(
            f"{source_name(source)}, line {reader.line_num}: not valid CSV ({error})",
            hint='put cells that hold commas or quotes in "..." and double the quotes inside, or use JSONL',
        ) from error


def _tsv_cells(source: InputPath, encoding: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(iter_lines(source, encoding=encoding), start=1):
        yield number, [_unquote(cell) for cell in line.split("\t")] if line.strip() else []


def _unquote(cell: str) -> str:
    # TSV files of the field hold bare quotes, so quoting is undone only where it is certain: "a ""b"" c".
    inner = cell[1:-1]
    if len(cell) > 1 and cell[0] == cell[-1] == '"' and '""' in inner and '"' not in inner.replace('""', ""):
        return inner.replace('""', '"')
    return cell


def _named_cells(
    rows: Iterator[tuple[int, list[str]]], source: str, names: tuple[str, ...], header: bool | None
) -> Iterator[tuple[int, Record]]:
    """Yield the rows with their column names: those given, those of the header, or ``POSITIONAL``."""
    for number, cells in rows:
        if not cells:
            continue
        if not names:
            if header is None:
                known = any(cell.strip().lower() in _HEADER_NAMES for cell in cells)
                header = known or len(cells) > len(POSITIONAL)
            names = _header_names(cells, f"{source}, line {number}") if header else POSITIONAL[: len(cells)]
            if header:
                continue
        if len(cells) != len(names):
            raise DataError(
                f"{source}, line {number}: {len(cells)} columns, need {len(names)} ({', '.join(names)})",
                hint="quote cells that hold the separator; name a file with one sentence per line .txt",
            )
        yield number, dict(zip(names, cells, strict=True))


def _header_names(cells: list[str], place: str) -> tuple[str, ...]:
    """Return the names in a header; a nameless column, as that of a pandas index, is called by its number."""
    names = tuple(cell.strip() or f"column{number}" for number, cell in enumerate(cells, start=1))
    if len(set(names)) < len(names):
        raise DataError(
            f"{place}: need a header with a different name for each of the {len(names)} columns",
            hint=f"add a first line with the names, for example {','.join(POSITIONAL)}",
        )
    return names
