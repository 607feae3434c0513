"""Sentences and rows from what users have: text, JSON Lines, CSV, TSV, parquet, gzip, stdin, Hub datasets.

Everything streams. The format follows from the name (``.gz`` is looked through); ``-`` is text unless told
otherwise. Tables name their columns in a header. CSV and TSV files of one to three columns may lack it, as
files made for the original SimCSE code do; their columns are then ``anchor``, ``positive``,
``hard_negative`` in this order.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from simcse_cli.data.hub import HUB_PREFIX, iter_hub_rows
from simcse_cli.errors import DataError
from simcse_cli.files import STDIO, iter_lines, require_file

Source = Path | str
Record = dict[str, str]

POSITIONAL = ("anchor", "positive", "hard_negative")

_SENTENCE_NAMES = ("text", "sentence", "line", "content", "caption", "document", "anchor", "sent0")
ALIASES: dict[str, tuple[str, ...]] = {
    "anchor": (
        *("sent0", "sentence1", "sentence_a", "premise", "question1", "query", "text", "sentence"),
        *("source", "src", "text1", "text_a", "context"),
    ),
    "positive": (
        *("sent1", "sentence2", "sentence_b", "hypothesis", "question2", "entailment", "paraphrase"),
        *("target", "tgt", "text2", "text_b"),
    ),
    "hard_negative": ("hard_neg", "sent2", "sentence3", "negative", "contradiction"),
    "text": _SENTENCE_NAMES[1:],
    "label": ("gold_label", "labels", "class", "entailment_judgment"),
}
"""Column names of common files, by the name used here; earlier ones win."""

_OTHER_NAMES = (
    "id",
    "score",
    "is_duplicate",
    "quality",
    "normal_sentence",
    "simple_sentence",
    "image_id",
    "image",
)
_HEADER_NAMES = (
    frozenset(ALIASES) | {name for names in ALIASES.values() for name in names} | set(_OTHER_NAMES)
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


def source_name(source: Source) -> str:
    """Return how messages call an input."""
    return "standard input" if str(source) == STDIO else str(source)


def guess_format(source: Source) -> FileFormat:
    """Return the format that the name of an input stands for; plain text when it says nothing."""
    if str(source).startswith(HUB_PREFIX):
        return FileFormat.HUB
    path = Path(source)
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    return _BY_SUFFIX.get(suffix.lower(), FileFormat.TEXT)


def iter_sentences(
    source: Source, *, column: str | None = None, fmt: FileFormat | None = None, encoding: str = "utf-8"
) -> Iterator[str]:
    """Yield one string per line of a text file (blank lines too), or one per row of a table.

    Args:
        source: a path, ``-`` for stdin, or ``hf://OWNER/NAME``.
        column: which column of a table; by default its only column, or the one called ``text``, ``sentence``,
            ``anchor`` or one of their usual names.
        fmt: overrides the format that the name stands for.
        encoding: of text, JSON Lines, CSV and TSV.

    Raises:
        DataError: unreadable or empty input, or a table in which the column is missing or not clear.
    """
    fmt = fmt or guess_format(source)
    if fmt is FileFormat.TEXT:
        yield from iter_lines(source, encoding=encoding)
        return
    chosen: str | None = None
    header = None if column in (None, *POSITIONAL) else True
    for number, record in iter_records(source, fmt=fmt, encoding=encoding, header=header):
        if chosen is None or chosen not in record:
            chosen = _sentence_column(record, column, f"{source_name(source)}, line {number}")
        yield record[chosen]


def iter_records(
    source: Source,
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
    fmt = fmt or guess_format(source)
    if fmt is FileFormat.TEXT:
        return (
            (number, {POSITIONAL[0]: line})
            for number, line in enumerate(iter_lines(source, encoding=encoding), start=1)
        )
    if fmt is FileFormat.JSONL:
        return _iter_jsonl(source, encoding)
    if fmt is FileFormat.PARQUET:
        return _iter_parquet(source)
    if fmt is FileFormat.HUB:
        return _iter_hub(str(source))
    cells = _csv_cells(source, encoding) if fmt is FileFormat.CSV else _tsv_cells(source, encoding)
    return _iter_table(cells, source_name(source), tuple(names or ()), header)


def read_rows(
    source: Source, columns: Sequence[str] = POSITIONAL[:2], *, fmt: FileFormat | None = None
) -> list[tuple[str, ...]]:
    """Return the named columns of every row, in the order asked for; ``ALIASES`` of a name are accepted.

    Raises:
        DataError: a column is missing, or there are no rows.
    """
    rows: list[tuple[str, ...]] = []
    names: tuple[str, ...] = ()
    for number, record in iter_records(source, fmt=fmt):
        if not names or any(name not in record for name in names):
            names = resolve_columns(record, columns, f"{source_name(source)}, line {number}")
        rows.append(tuple(record[name] for name in names))
    if not rows:
        raise DataError(f"{source_name(source)} has no rows")
    return rows


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


def find_column(record: Record, column: str) -> str | None:
    """Return the name under which a row holds ``column``: its own, else its first alias, in any case."""
    by_lower = {name.strip().lower(): name for name in reversed(list(record))}
    for name in (column.lower(), *ALIASES.get(column, ())):
        if name in by_lower:
            return by_lower[name]
    return None


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
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _iter_jsonl(source: Source, encoding: str) -> Iterator[tuple[int, Record]]:
    name = source_name(source)
    for number, line in enumerate(iter_lines(source, encoding=encoding), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            hint = "one JSON object per line is needed; unpack an array with: jq -c '.[]' FILE > FILE.jsonl"
            raise DataError(f"{name}, line {number}: not valid JSON ({error.msg})", hint=hint) from error
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list) and 1 <= len(value) <= len(POSITIONAL):
            value = dict(zip(POSITIONAL, value, strict=False))
        if not isinstance(value, dict) or not value:
            raise DataError(
                f"{name}, line {number}: a JSON {type(value).__name__}, need an object with named columns",
                hint='for example {"anchor": "...", "positive": "..."}',
            )
        yield number, {key: _text_of(cell) for key, cell in value.items()}


def _iter_parquet(source: Source) -> Iterator[tuple[int, Record]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    path = require_file(source)
    try:
        with ParquetFile(path) as table:
            number = 0
            for batch in table.iter_batches(batch_size=4096):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {key: _text_of(value) for key, value in row.items()}
    except (ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable parquet file ({str(error).splitlines()[0]})") from error


def _iter_hub(source: str) -> Iterator[tuple[int, Record]]:
    for number, row in enumerate(iter_hub_rows(source), start=1):
        yield number, {key: _text_of(value) for key, value in row.items()}


def _csv_cells(source: Source, encoding: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in iter_lines(source, encoding=encoding)), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(
            f"{source_name(source)}, line {reader.line_num}: not valid CSV ({error})",
            hint='put cells that hold commas or quotes in "..." and double the quotes inside, or use JSONL',
        ) from error


def _tsv_cells(source: Source, encoding: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(iter_lines(source, encoding=encoding), start=1):
        yield number, [_unquote(cell) for cell in line.split("\t")] if line.strip() else []


def _unquote(cell: str) -> str:
    # TSV files of the field hold bare quotes, so quoting is undone only where it is certain: "a ""b"" c".
    inner = cell[1:-1]
    if len(cell) > 1 and cell[0] == cell[-1] == '"' and '""' in inner and '"' not in inner.replace('""', ""):
        return inner.replace('""', '"')
    return cell


def _iter_table(
    rows: Iterator[tuple[int, list[str]]], source: str, names: tuple[str, ...], header: bool | None
) -> Iterator[tuple[int, Record]]:
    for number, cells in rows:
        if not cells:
            continue
        if not names:
            if header is None:
                header = len(cells) > len(POSITIONAL) or any(
                    c.strip().lower() in _HEADER_NAMES for c in cells
                )
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
