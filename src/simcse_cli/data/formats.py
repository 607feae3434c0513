"""The formats of tables, each read as a stream of numbered rows with named values."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from simcse_cli.data.columns import POSITIONAL
from simcse_cli.data.delimited import SEPARATORS, named_cells, table_rows
from simcse_cli.errors import DataError, require_extra
from simcse_cli.files.hub import hub_failure
from simcse_cli.files.schema import foreign_format
from simcse_cli.files.streams import STDIO, is_utf16, iter_json_lines, iter_lines, open_input, read_text

InputPath = Path | str
NumberedRows = Iterable[tuple[int, Mapping[str, Any]]]


class FileFormat(StrEnum):
    TEXT = "text"
    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    EXCEL = "excel"
    HUB = "hub"


_BY_SUFFIX = {
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".json": FileFormat.JSONL,
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.TSV,
    ".parquet": FileFormat.PARQUET,
    **dict.fromkeys((".xlsx", ".xlsm", ".xls", ".ods"), FileFormat.EXCEL),
}
_HUB_PREFIX = "hf://"
_HUB_HINT = "write hf://OWNER/NAME, hf://OWNER/NAME:SPLIT or hf://OWNER/NAME@CONFIG:SPLIT (SPLIT is train by default)"


@dataclass(frozen=True)
class Layout:
    """Facts about a table that are known before it is read: ``names`` of columns, and whether there is a ``header``.

    By default the first row is a header if it holds a usual column name or looks like names.
    """

    encoding: str = "utf-8"
    header: bool | None = None
    names: tuple[str, ...] = ()


def guess_format(source: InputPath) -> FileFormat:
    """Return the format of an input by its name; plain text for unknown endings."""
    path = Path(source)
    if str(source).startswith(_HUB_PREFIX) or is_saved_dataset(path):
        return FileFormat.HUB
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    return _BY_SUFFIX.get(suffix.lower(), FileFormat.TEXT)


def is_saved_dataset(path: Path) -> bool:
    """Tell whether a path is a folder written by ``save_to_disk``."""
    return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))


def source_name(source: InputPath) -> str:
    return "standard input" if str(source) == STDIO else str(source)


def _text_rows(source: InputPath, layout: Layout) -> NumberedRows:
    lines = iter_lines(source, encoding=layout.encoding)
    return enumerate(({POSITIONAL[0]: line} for line in lines), start=1)


def _delimited_rows(source: InputPath, layout: Layout, *, separators: str) -> NumberedRows:
    lines = iter_lines(source, encoding=layout.encoding)
    return table_rows(lines, source_name(source), separators, layout.names, layout.header)


def _jsonl_rows(source: InputPath, layout: Layout) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of JSON Lines, or of the array in a ``.json`` file, with nested values by path.

    A list or string is a row without column names.
    """
    hint = "write one JSON object per line; unpack an array with: jq -c '.[]' FILE > FILE.jsonl"
    how: dict[str, Any] = {"encoding": layout.encoding, "lenient": True, "hint": hint}
    for number, value in _array_items(source) or iter_json_lines(source, **how):
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list) and 1 <= len(value) <= len(POSITIONAL):
            value = dict(zip(POSITIONAL, value, strict=False))
        if not isinstance(value, dict) or not value:
            place = f"{source_name(source)}, line {number}"
            what = f"{place}: a JSON {type(value).__name__}, need an object with named columns"
            raise DataError(what, hint='for example {"anchor": "...", "positive": "..."}')
        is_nested = any(isinstance(each, dict) or _is_objects(each) for each in value.values())
        yield number, dict(_flat(value)) if is_nested else value


def _array_items(source: InputPath) -> Iterator[tuple[int, Any]] | None:
    """Return the numbered objects of a ``.json`` file that is one array; None for JSON Lines."""
    if str(source) == STDIO or not str(source).lower().endswith(".json"):
        return None
    if not next(iter_lines(source), "").lstrip().startswith("["):
        return None
    try:
        found = json.loads(read_text(source))
    except ValueError:
        return None  # an array a line
    return enumerate(found, start=1) if _is_objects(found) else None


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values inside objects, and lists of objects, under their paths: ``data.text``, ``turns.0.content``."""
    for name, each in value.items():
        if _is_objects(each):
            each = {str(number): item for number, item in enumerate(each)}
        if isinstance(each, dict) and each:
            yield from _flat(each, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", each


def _excel_rows(source: InputPath, layout: Layout) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of the first visible sheet with something in it."""
    require_extra("python_calamine", f"reading {source} (or save it as CSV UTF-8 in Excel, which needs no package)")
    from python_calamine import CalamineWorkbook, SheetVisibleEnum  # only one format needs it

    with open_input(source) as stream, foreign_format(source, "a workbook without a password"):
        book = CalamineWorkbook.from_filelike(stream)
        names = [sheet.name for sheet in book.sheets_metadata if sheet.visible is SheetVisibleEnum.Visible]
        sheets = (book.get_sheet_by_name(name).to_python(skip_empty_area=False) for name in names)
        cells = next(filter(None, sheets), [])
    texts = (
        [str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell) for cell in row] if any(row) else []
        for row in cells
    )
    yield from named_cells(enumerate(texts, start=1), source_name(source), layout.names, layout.header)


READERS: dict[FileFormat, Callable[[InputPath, Layout], NumberedRows]] = {
    FileFormat.TEXT: _text_rows,
    FileFormat.JSONL: _jsonl_rows,
    FileFormat.CSV: partial(_delimited_rows, separators=SEPARATORS),
    FileFormat.TSV: partial(_delimited_rows, separators="\t|;"),
    FileFormat.PARQUET: lambda source, _: enumerate(parquet_rows(source), start=1),
    FileFormat.EXCEL: _excel_rows,
    FileFormat.HUB: lambda source, _: enumerate(_hub_rows(str(source)), start=1),
}
"""Readers by format; a new format needs a function, a row here and its ending above."""


def count_lines(source: InputPath) -> int:
    n_ends, last = 0, b"\n"
    with open_input(source) as stream:
        if is_utf16(stream.read(2)):
            return sum(1 for _ in iter_lines(source))
        stream.seek(0)
        for block in iter(lambda: stream.read(1 << 20), b""):
            n_ends, last = n_ends + block.count(b"\n"), block[-1:]
    return n_ends + (last != b"\n")


@contextmanager
def _parquet_file(source: InputPath) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile  # takes half a second, and other formats do not need it

    with open_input(source) as stream, foreign_format(source, "a parquet file"), ParquetFile(stream) as table:
        yield table


def parquet_shape(source: InputPath) -> tuple[int, list[str]]:
    with _parquet_file(source) as table:
        return int(table.metadata.num_rows), list(table.schema_arrow.names)


def parquet_rows(source: InputPath, columns: Sequence[str] | None = None, start: int = 0) -> Iterator[dict[str, Any]]:
    with _parquet_file(source) as table:
        groups = list(range(table.num_row_groups))
        while groups and start >= (n_rows := table.metadata.row_group(groups[0]).num_rows):
            start -= n_rows
            del groups[0]
        for batch in table.iter_batches(batch_size=4096, row_groups=groups, columns=columns):
            yield from batch.slice(min(start, len(batch))).to_pylist()
            start -= min(start, len(batch))


def parse_hub_source(source: str) -> tuple[str, str | None, str]:
    """Return name, config and split; ``hf://nyu-mll/glue@qqp:test`` is ``("nyu-mll/glue", "qqp", "test")``."""
    if is_saved_dataset(Path(source)):
        return source, None, "train"
    body = source.removeprefix(_HUB_PREFIX).removeprefix("datasets/")
    body, _, split = body.partition(":")
    name, _, config = body.partition("@")
    if not name:
        raise DataError(f"{source}: no dataset name", hint=_HUB_HINT)
    return name, config or None, split or "train"


def _hub_rows(source: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Hub dataset as a stream, or those of a saved one, ``hf:///FOLDER:SPLIT``."""
    import datasets  # takes two seconds, and other formats do not need it

    name, config, split = parse_hub_source(source)
    with foreign_format(source, "a dataset", hint=_HUB_HINT):
        if is_saved_dataset(Path(name)):
            saved = datasets.load_from_disk(name)
            if isinstance(saved, datasets.DatasetDict):
                if split not in saved:
                    hint = f"name one, for example {_HUB_PREFIX}{name}:{next(iter(saved))}"
                    raise DataError(f"{source}: no split {split}; there are {', '.join(saved)}", hint=hint)
                saved = saved[split]
            yield from saved
            return
        try:
            yield from datasets.load_dataset(name, config, split=split, streaming=True)
        except Exception as error:
            failure = hub_failure(error, "dataset", name)
            if failure is None:
                raise
            raise DataError(failure[0], hint=failure[1]) from error
