"""Rows of one file format each: JSON Lines, parquet, Hub datasets, CSV, TSV; ``readers`` chooses among them."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simcse_cli.data.columns import HEADER_NAMES, POSITIONAL, Record
from simcse_cli.data.hub import iter_hub_rows
from simcse_cli.errors import DataError
from simcse_cli.files import STDIO, iter_lines, require_file

Source = Path | str


def source_name(source: Source) -> str:
    """Return how messages call an input."""
    return "standard input" if str(source) == STDIO else str(source)


def _text_of(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def iter_jsonl(source: Source, encoding: str) -> Iterator[tuple[int, Record]]:
    """Yield the objects of JSON Lines; a list or string is a row without column names."""
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


def iter_parquet(source: Source) -> Iterator[tuple[int, Record]]:
    """Yield the rows of a parquet file, a few thousand in memory at a time."""
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


def iter_hub(source: str) -> Iterator[tuple[int, Record]]:
    """Yield the rows of a Hub dataset."""
    for number, row in enumerate(iter_hub_rows(source), start=1):
        yield number, {key: _text_of(value) for key, value in row.items()}


def csv_cells(source: Source, encoding: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the last line number and the cells of every CSV row."""
    reader = csv.reader((line + "\n" for line in iter_lines(source, encoding=encoding)), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(
            f"{source_name(source)}, line {reader.line_num}: not valid CSV ({error})",
            hint='put cells that hold commas or quotes in "..." and double the quotes inside, or use JSONL',
        ) from error


def tsv_cells(source: Source, encoding: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of every TSV row; a blank line has none."""
    for number, line in enumerate(iter_lines(source, encoding=encoding), start=1):
        yield number, [_unquote(cell) for cell in line.split("\t")] if line.strip() else []


def _unquote(cell: str) -> str:
    # TSV files of the field hold bare quotes, so quoting is undone only where it is certain: "a ""b"" c".
    inner = cell[1:-1]
    if len(cell) > 1 and cell[0] == cell[-1] == '"' and '""' in inner and '"' not in inner.replace('""', ""):
        return inner.replace('""', '"')
    return cell


def name_cells(
    rows: Iterator[tuple[int, list[str]]], source: str, names: tuple[str, ...], header: bool | None
) -> Iterator[tuple[int, Record]]:
    """Yield the rows with their column names: those given, those of the header, or those of the positions."""
    for number, cells in rows:
        if not cells:
            continue
        if not names:
            if header is None:
                known = any(cell.strip().lower() in HEADER_NAMES for cell in cells)
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
