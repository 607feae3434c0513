"""Sentences and rows from what users have: text, JSON Lines, CSV, TSV, parquet, gzip, stdin, Hub datasets.

Everything streams. The format follows from the name (``.gz`` is looked through); ``-`` is text unless told
otherwise. Tables name their columns in a header. CSV and TSV files of one to three columns may lack it, as
files made for the original SimCSE code do; their columns are then ``anchor``, ``positive``,
``hard_negative`` in this order.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from simcse_cli.data.columns import POSITIONAL, Record, find_column, resolve_columns
from simcse_cli.data.hub import HUB_PREFIX
from simcse_cli.data.table_rows import (
    Source,
    csv_cells,
    iter_hub,
    iter_jsonl,
    iter_parquet,
    name_cells,
    source_name,
    tsv_cells,
)
from simcse_cli.errors import DataError
from simcse_cli.files import iter_lines

__all__ = [
    "POSITIONAL",
    "FileFormat",
    "Record",
    "Source",
    "find_column",
    "guess_format",
    "iter_records",
    "iter_sentences",
    "read_rows",
    "resolve_columns",
    "source_name",
]


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
        return iter_jsonl(source, encoding)
    if fmt is FileFormat.PARQUET:
        return iter_parquet(source)
    if fmt is FileFormat.HUB:
        return iter_hub(str(source))
    cells = csv_cells(source, encoding) if fmt is FileFormat.CSV else tsv_cells(source, encoding)
    return name_cells(cells, source_name(source), tuple(names or ()), header)


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
