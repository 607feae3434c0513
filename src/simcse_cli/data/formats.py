"""The formats of tables: each is opened as a ``Grid`` of names and rows."""

import csv
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Any

from simcse_cli.data import names
from simcse_cli.data.delimited import (
    TEXT_SEPARATORS,
    holds_cells,
    named_rows,
    open_delimited,
    refuse_returns,
)
from simcse_cli.data.given import Given
from simcse_cli.data.grid import SAMPLE_ROWS, Grid
from simcse_cli.data.workbooks import Sheet, read_sheets, sheet_rows
from simcse_cli.errors import DataError, UsageError, did_you_mean
from simcse_cli.files.hub import hub_failure
from simcse_cli.files.inputs import LARGEST_TEXT, STDIO, open_input
from simcse_cli.files.schema import foreign_format, parse_json
from simcse_cli.files.streams import encoding_of_mark, is_wide, iter_lines

InputPath = Path | str
_JsonValues = Iterator[tuple[int, Any]]  # number and value of each row


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
_NAMES = re.compile(r"[^\W\d]\w*((?P<separator>[,;])[^\W\d]\w*)+")  # such as id,subject
_HUB_HINT = (
    "write hf://OWNER/NAME, hf://OWNER/NAME:SPLIT or hf://OWNER/NAME@CONFIG:SPLIT "
    "(SPLIT is train by default)"
)
_LINES_LOOKED_AT = 100
_MOST_PATHS = 64  # columns that nested objects may give
_JSON_HINT = 'for example {"anchor": "...", "positive": "..."}'


def guess_format(source: InputPath) -> FileFormat:
    """Return the format of an input by its name; plain text for unknown endings."""
    path = Path(source)
    if str(source).startswith(_HUB_PREFIX) or is_saved_dataset(path):
        return FileFormat.HUB
    # The format of a packed file is that of the ending before .gz.
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    return _BY_SUFFIX.get(suffix.lower(), FileFormat.TEXT)


def is_saved_dataset(path: Path) -> bool:
    """Tell whether a path is a folder written by ``save_to_disk``."""
    return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))


def source_name(source: InputPath) -> str:
    return "standard input" if str(source) == STDIO else str(source)


# ------------------------------------------------------------------ text
def open_text(source: InputPath, given: Given, *, single: bool) -> tuple[Grid, bool]:
    """Return the table of a text file, and whether each line is a single text.

    Lines are rows of JSON if the first of them are objects. Otherwise, they are cut into cells if
    the user names a separator or a header, or if they look like cells. A line that is not cut is a
    row of one cell.

    ``single`` says that the caller wants single texts. Then each line that is not cut is a single
    text, and lines are cut only if the user's options speak of a table.
    """
    lines = _lines(source, given)
    head = list(islice(lines, _LINES_LOOKED_AT))
    lines = chain(head, lines)
    name = source_name(source)
    filled = list(filter(str.strip, head))
    if filled and all(map(_is_json_object, filled)):
        return _json_grid(name, "line", _json_lines(lines, name)), False

    may_be_table = not single or given.wants_table
    if may_be_table and (given.separator or given.header or holds_cells(head, name)):
        return open_delimited(lines, name, given), False

    # Each line is a row of one cell.
    rows = enumerate(([line] for line in refuse_returns(lines, name)), start=1)
    # Column 1 is the line itself; other columns that the user names need a table.
    if single and (given.template or set(given.columns.values()) - {"1"}):
        what = f"needs a table (.csv, .tsv, .jsonl or .parquet), and {name} is plain text"
        raise UsageError(what, option=given.option)
    # An empty file is a table without columns, or no texts.
    columns = ("1",) if head or single else ()
    return Grid(name, columns, rows, is_named=False), single


def cells_in_text(lines: Sequence[str]) -> str | None:
    """Return the separator if every line of a text has equally many cells, two or more; else None.

    Commas and semicolons are common in texts, so they count only below a line of names.
    """
    filled = list(filter(str.strip, lines))
    if len(filled) < 2:
        return None
    for separator in TEXT_SEPARATORS:
        counts = {line.count(separator) for line in filled}
        if len(counts) == 1 and counts != {0}:
            return separator
    header = _NAMES.fullmatch(filled[0].strip())
    if header is not None:
        rows = csv.reader(filled, delimiter=header["separator"])
        with suppress(csv.Error):  # such as a carriage return within a line
            if len({len(row) for row in rows}) == 1:
                return header["separator"]
    return None


def _is_json_object(line: str) -> bool:
    try:
        return line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
    except ValueError:
        return False
    except RecursionError:
        return True  # nested too deep: the reader of JSON raises the error


def _open_cells(source: InputPath, given: Given) -> Grid:
    return open_delimited(_lines(source, given), source_name(source), given)


def _lines(source: InputPath, given: Given) -> Iterator[str]:
    return iter_lines(source, encoding=given.encoding, asks_encoding=True)


# ------------------------------------------------------------------ JSON
def _open_json(source: InputPath, given: Given) -> Grid:
    """Open JSON Lines, or a ``.json`` file with a single value: a list, or an object with lists."""
    return _json_grid(source_name(source), *_open_json_values(source, given))


def json_values(source: InputPath, given: Given) -> Iterator[Any]:
    """Yield the value of each row of a JSON file, nested as it is."""
    _, values = _open_json_values(source, given)
    for _, value in values:
        yield value


def _open_json_values(source: InputPath, given: Given) -> tuple[str, _JsonValues]:
    """Return what a row of a JSON file is, ``line`` or ``item``, and the values of all rows."""
    name = source_name(source)
    lines = _lines(source, given)
    head = list(islice(lines, 2))
    lines = chain(head, lines)
    is_json = str(source).lower().removesuffix(".gz").endswith(".json")
    if is_json and not _is_line_by_line(head):
        return "item", _json_items(lines, name)
    return "line", _json_lines(lines, name)


def _is_line_by_line(head: Sequence[str]) -> bool:
    """Tell from its first two lines whether a ``.json`` file holds a value in each line."""
    try:
        json.loads(head[0])
    except (ValueError, IndexError, RecursionError):
        return False
    return len(head) > 1 and bool(head[1].strip())


def _json_grid(name: str, unit: str, values: _JsonValues) -> Grid:
    """Return a table of JSON values; ``unit`` says what they are, lines or items."""
    rows = ((number, _record(value, f"{name}, {unit} {number}")) for number, value in values)
    return Grid.of_records(name, rows, unit)


def _json_lines(lines: Iterable[str], name: str) -> _JsonValues:
    hint = "write one JSON object per line; unpack an array with: jq -c '.[]' FILE > FILE.jsonl"
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, parse_json(line, name, line=number, lenient=True, hint=hint)


def _json_items(lines: Iterable[str], name: str) -> _JsonValues:
    """Return the rows of a JSON file that is one value."""
    # A small packed file may unpack to more than fits in memory, so its size is watched.
    n_left = LARGEST_TEXT
    kept: list[str] = []
    for line in lines:
        n_left -= len(line) + 1
        if n_left < 0:
            unpacked = f"jq -c '.[]' {name} > {Path(name).stem}.jsonl"
            hint = f"unpack it into lines first, for example: {unpacked}"
            raise DataError(f"{name} has more than {LARGEST_TEXT >> 20} MiB", hint=hint)
        kept.append(line)
    value = parse_json("\n".join(kept), name, lenient=True)
    items = value if isinstance(value, list) else _items_of(value, name)
    return enumerate(items, start=1)


def _items_of(value: Any, name: str) -> list[Any]:
    """Return the rows that the only JSON object of a file holds.

    The object holds a list of rows, or lists that are columns, or it is itself the only row.
    """
    if not isinstance(value, dict) or not value:
        raise DataError(f"{name}: {_json_kind(value)}, need a list of objects", hint=_JSON_HINT)

    lists = {key: column for key, column in value.items() if isinstance(column, list)}
    columns = list(lists.values())
    # An object with usual names of columns may be a row, and its values may be lists of texts. An
    # object with a list called "set" or "texts" may be a row, too: such texts all mean the same.
    may_be_row = any(names.is_known(key) or key in ("set", "texts") for key in value)
    # A single list holds the rows, unless the object may be a row, and the list holds its texts.
    only_list = columns[0] if len(columns) == 1 else []
    if only_list and (not may_be_row or _are_nested(only_list[:1])):
        return only_list
    # Two lists or more, equally long and of plain values, are the columns of a table if the object
    # holds nothing else.
    if len(columns) == len(value) > 1 and _are_columns(columns):
        return [dict(zip(lists, row, strict=True)) for row in zip(*columns, strict=True)]
    if may_be_row and not any(map(_is_object_list, columns)):
        return [value]
    key = next(iter(lists or value))
    what = f"an object of {len(value):,} values that is no table"
    raise _too_deep(name, what, f".{json.dumps(key)}[]")


def _are_columns(lists: Sequence[list[Any]]) -> bool:
    """Tell whether lists are equally long and hold plain values only."""
    return len(set(map(len, lists))) == 1 and not any(map(_are_nested, lists))


def _are_nested(values: Iterable[Any]) -> bool:
    return any(isinstance(value, dict | list) for value in values)


def _record(value: Any, place: str) -> dict[str, Any]:
    """Return the values of a row by column name.

    A value inside an object becomes a column that is named by its path, such as ``meta.title``.
    """
    # A text alone is a row of one column; the columns of a list are numbered.
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and value:
        if _are_nested(value):
            raise _too_deep(place, "lists or objects inside of a list", ".[]")
        value = _numbered(value, 1)

    if not isinstance(value, dict) or not value:
        what = f"{place}: {_json_kind(value)}, need an object with named columns"
        raise DataError(what, hint=_JSON_HINT)
    if not _are_nested(value.values()):
        return value
    # Each value inside an object becomes a column. Nesting may give up to ``_MOST_PATHS`` of them;
    # a row that is wider than that already may not become wider.
    if any(map(_has_nested_lists, value.values())):
        raise _too_deep(place, "objects in lists inside of other lists", ".PATH[]")
    flat = dict(_flat(value))
    if len(flat) > max(_MOST_PATHS, len(value)):
        raise _too_deep(place, f"objects that hold {len(flat):,} values", ".PATH[]")
    return flat


def _numbered(items: Iterable[Any], start: int) -> dict[str, Any]:
    return {str(number): item for number, item in enumerate(items, start)}


def _too_deep(place: str, what: str, path: str) -> DataError:
    taken = f"jq -c '{path} | {{text: .text}}' FILE.json > FILE.jsonl"
    return DataError(
        f"{place}: {what}; need a list of objects with texts",
        hint=f"take the rows out first, for example: {taken}",
    )


def _json_kind(value: Any) -> str:
    if value == {}:
        return "an empty object"
    if value == []:
        return "an empty list"
    return f"a JSON {type(value).__name__}"


def _is_object_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _has_nested_lists(value: Any, *, in_list: bool = False) -> bool:
    """Tell whether a list of objects holds another list of objects, at any depth."""
    if _is_object_list(value):
        return in_list or any(_has_nested_lists(item, in_list=True) for item in value)
    if isinstance(value, dict):
        return any(_has_nested_lists(child, in_list=in_list) for child in value.values())
    return False


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of everything in a row that is no object and no list of objects.

    A path is like ``turns.0.content``.
    """
    for name, child in value.items():
        if _is_object_list(child):
            child = _numbered(child, 0)
        if isinstance(child, dict) and child:
            yield from _flat(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


# ------------------------------------------------------------------ workbooks, parquet, the Hub
def _open_excel(source: InputPath, given: Given) -> Grid:
    """Open the sheet that the user names, or the first visible one that is not empty."""
    sheets = read_sheets(source)
    # A workbook without anything is a table without rows.
    if not sheets:
        sheets[""] = Sheet([])
    name = source_name(source)
    chosen = _chosen_sheet(sheets, name, given)
    if others := [sheet for sheet in sheets if sheet != chosen]:
        not_read = ", ".join(others)
        given.told.info(f"{name}: the sheet {chosen} is read; sheets not read: {not_read}")
    sheet = sheets[chosen]
    if sheet.n_filled:
        cells_have = "cell has" if sheet.n_filled == 1 else "cells have"
        given.told.info(
            f"{name}: {sheet.n_filled:,} merged {cells_have} the value of the cell above"
        )
    grid = named_rows(sheet_rows(sheet), name, given)
    grid.unit = "row"
    return grid


def _chosen_sheet(sheets: Mapping[str, Sheet], name: str, given: Given) -> str:
    """Return the name of the sheet to read: the one that the user named, or else the first.

    Raise DataError if the named sheet is missing. If none is named, also raise it for two signs
    that another sheet is meant, unless ``given.never_asks``:

    - the first sheet has one column, like a title page, and another sheet has more;
    - the first sheet lacks a column that the user named, and another sheet has it.
    """
    first, *others = sheets
    if given.sheet is not None and given.sheet not in sheets:
        hint = did_you_mean(given.sheet, sheets, f"there are {', '.join(sheets)}")
        raise DataError(f"{name}: no sheet {given.sheet} with cells", hint=hint)
    if given.sheet is not None or given.never_asks:
        return given.sheet or first

    titles = _titles(sheets[first])
    # A whole number names the place of a column, which any sheet may have.
    named = [column for column in given.columns.values() if not column.isdecimal()]
    for other in others:
        other_titles = _titles(sheets[other])
        only_there = [column for column in named if column in other_titles and column not in titles]
        problem = ""
        if len(titles) < 2 <= len(other_titles):
            problem = f"one column, the sheet {other} has {len(other_titles)}"
        elif only_there:
            problem = f"no column {only_there[0]}, which the sheet {other} has"
        if problem:
            hint = f"--sheet {shlex.quote(other)}, or --sheet {shlex.quote(first)}"
            raise DataError(f"{name}: the sheet {first} has {problem}", hint=hint)
    return first


def _titles(sheet: Sheet) -> list[str]:
    """Return the titles of the columns: the filled cells of the first row that is not empty."""
    _, cells = next(sheet_rows(sheet), (0, []))
    return [cell.strip() for cell in cells if cell.strip()]


def _open_parquet(source: InputPath, given: Given) -> Grid:
    """Return a table of the first rows only; ``Table`` reads all rows, in the needed columns."""
    sample = islice(parquet_rows(source, batch_size=SAMPLE_ROWS), SAMPLE_ROWS)
    return Grid.of_records(source_name(source), list(enumerate(sample, start=1)), "row")


def _open_hub(source: InputPath, given: Given) -> Grid:
    rows = map(_flat_row, _hub_rows(str(source)))
    return Grid.of_records(source_name(source), enumerate(rows, start=1), "row")


def _flat_row(row: dict[str, Any]) -> dict[str, Any]:
    is_nested = any(isinstance(cell, dict) for cell in row.values())
    return dict(_flat(row)) if is_nested else row


OPENERS: dict[FileFormat, Callable[[InputPath, Given], Grid]] = {
    FileFormat.JSONL: _open_json,
    FileFormat.CSV: _open_cells,
    FileFormat.TSV: _open_cells,
    FileFormat.PARQUET: _open_parquet,
    FileFormat.EXCEL: _open_excel,
    FileFormat.HUB: _open_hub,
}
"""The function that opens a table of each format, except for text files: see ``open_text``.

A new format needs a function, an entry here, and its ending in ``_BY_SUFFIX``.
"""


def count_lines(source: InputPath, encoding: str = "utf-8") -> int:
    """Return the number of lines of a text file; the last one need not end in a line feed."""
    n_ends = 0
    last_byte = b"\n"
    with open_input(source) as stream:
        # In UTF-16 the byte of a line feed also occurs in other characters.
        if encoding_of_mark(stream.read(4)) or is_wide(encoding):
            return sum(1 for _ in iter_lines(source, encoding=encoding))
        stream.seek(0)
        while block := stream.read(1 << 20):
            n_ends += block.count(b"\n")
            last_byte = block[-1:]
    return n_ends if last_byte == b"\n" else n_ends + 1


@contextmanager
def _parquet_file(source: InputPath) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile  # takes half a second, and other formats do not need it

    with (
        open_input(source) as stream,
        foreign_format(source, "a parquet file"),
        ParquetFile(stream) as table,
    ):
        yield table


def parquet_length(source: InputPath) -> int:
    with _parquet_file(source) as table:
        return int(table.metadata.num_rows)


def parquet_rows(
    source: InputPath, columns: Sequence[str] = (), start: int = 0, batch_size: int = 4096
) -> Iterator[dict[str, Any]]:
    """Yield the rows from ``start`` on, each as its values by column name.

    A value inside a struct becomes a column that is named by its path, such as ``meta.title``.
    ``columns`` are the columns to read, by default all.
    """
    from pyarrow import Table, types  # see _parquet_file

    n_to_skip = start
    with _parquet_file(source) as table:
        schema = table.schema_arrow
        has_structs = any(map(types.is_struct, schema.types))
        # A column inside a struct, such as ``meta.title``, is read with the whole struct, ``meta``.
        top_names = []
        for top_name in schema.names:
            if any(f"{name}.".startswith(f"{top_name}.") for name in columns):
                top_names.append(top_name)
        # Groups of rows before the start are not read.
        groups = list(range(table.num_row_groups))
        while groups and n_to_skip >= (n_rows := table.metadata.row_group(groups[0]).num_rows):
            n_to_skip -= n_rows
            del groups[0]
        batches = table.iter_batches(batch_size, row_groups=groups, columns=top_names or None)
        for batch in batches:
            n_skipped = min(n_to_skip, len(batch))
            n_to_skip -= n_skipped
            part = Table.from_batches([batch.slice(n_skipped)])
            is_nested = any(map(types.is_nested, part.schema.types))
            # In a file with structs, lists of objects become columns, too, even if only lists are
            # read.
            if not (has_structs and is_nested):
                yield from part.to_pylist()
                continue
            # The schema flattens structs, because in a row, a struct that is null has no fields.
            while any(map(types.is_struct, part.schema.types)):
                part = part.flatten()
            yield from map(dict, map(_flat, part.to_pylist()))


def parse_hub_source(source: str) -> tuple[str, str | None, str]:
    """Return name, config and split of a Hub dataset.

    ``hf://nyu-mll/glue@qqp:test`` is ``("nyu-mll/glue", "qqp", "test")``. The path of a saved
    dataset is returned whole, with the split ``train``.
    """
    if is_saved_dataset(Path(source)):
        return source, None, "train"
    body = source.removeprefix(_HUB_PREFIX).removeprefix("datasets/")
    body, _, split = body.partition(":")
    name, _, config = body.partition("@")
    if not name:
        raise DataError(f"{source}: no dataset name", hint=_HUB_HINT)
    return name, config or None, split or "train"


def _hub_rows(source: str) -> Iterator[dict[str, Any]]:
    """Stream the rows of a Hub dataset, or of a saved one (``hf:///FOLDER:SPLIT``)."""
    import datasets  # takes two seconds, and other formats do not need it

    name, config, split = parse_hub_source(source)
    with foreign_format(source, "a dataset", hint=_HUB_HINT):
        if is_saved_dataset(Path(name)):
            yield from _saved_rows(source, name, split)
            return
        try:
            yield from datasets.load_dataset(name, config, split=split, streaming=True)
        except Exception as error:
            failure = hub_failure(error, "dataset", name)
            if failure is None:
                raise
            what, hint = failure
            raise DataError(what, hint=hint) from error


def _saved_rows(source: str, folder: str, split: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split of a dataset that was saved to a folder.

    Errors call the dataset by its address, ``source``.
    """
    import datasets  # see _hub_rows

    # A single split is saved without its name, so it is read whatever ``split`` says.
    saved = datasets.load_from_disk(folder)
    if isinstance(saved, datasets.DatasetDict):
        if split not in saved:
            what = f"{source}: no split {split}; there are {', '.join(saved)}"
            example = f"{_HUB_PREFIX}{folder}:{next(iter(saved))}"
            raise DataError(what, hint=f"name one, for example {example}")
        saved = saved[split]
    yield from saved
