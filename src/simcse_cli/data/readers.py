"""Sentences and rows from text, JSON Lines, CSV, TSV, parquet, gzip, stdin and Hub datasets, as streams.

The format follows from the name (``.gz`` is looked through); ``-`` is text unless told otherwise. CSV and TSV
files of one to three columns may lack a header, as files made for the original SimCSE code do; their columns
are then ``POSITIONAL``. The separator of a CSV file is the one of ``,``, ``;`` and tab that fits its first rows.
"""

import csv
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Any

from simcse_cli.errors import DataError, UsageError
from simcse_cli.files import STDIO, iter_json_lines, iter_lines, open_input
from simcse_cli.schema import foreign_format

InputPath = Path | str

POSITIONAL = ("anchor", "positive", "hard_negative")
"""Columns of a table without a header, in order."""

COLUMN_ALIASES: dict[str, tuple[str, ...]] = {
    "anchor": (
        *("sent0", "sentence1", "sentence_a", "premise", "question1", "query", "text", "sentence"),
        *("source", "src", "text1", "text_a", "context", "#1 string"),
    ),
    "positive": (
        *("sent1", "sentence2", "sentence_b", "hypothesis", "question2", "entailment", "paraphrase"),
        *("target", "tgt", "text2", "text_b", "pos", "response", "answer", "passage"),
        "#2 string",
    ),
    "hard_negative": ("hard_neg", "sent2", "sentence3", "negative", "contradiction", "neg", "negatives"),
    "text": ("sentence", "line", "content", "caption", "document", "anchor", "sent0"),
    "label": (
        "gold_label",
        "labels",
        "class",
        "entailment_judgment",
        "is_duplicate",
        "quality",
        "category",
        "intent",
    ),
    "score": ("similarity_score", "relatedness_score", "similarity", "rating", "gold"),
}
COLUMN_ALIASES["left"] = ("anchor", *COLUMN_ALIASES["anchor"])
COLUMN_ALIASES["right"] = ("positive", *COLUMN_ALIASES["positive"])
"""What common files call their columns, by the name used here; earlier ones win."""

STSB_COLUMNS = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")
"""Of SentEval's ``sts-train.csv``, ``sts-dev.csv`` and ``sts-test.csv``, which have tabs and no header."""

# A first row with one of these is a header.
_HEADER_NAMES = frozenset(
    (
        *COLUMN_ALIASES,
        *(name for names in COLUMN_ALIASES.values() for name in names),
        *("id", "image_id", "image"),
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
_SEPARATORS = ",;\t"
_SNIFFED_ROWS = 20
_WHICH_COLUMN = "choose with --column COLUMN (or by number, without a header: --column 1)"
# A column name: letters first, three words at most, nothing that ends a sentence.
_NAME = re.compile(r"[^\W\d_][\w./()#-]{0,39}( [\w./()#-]{1,20}){0,2}(?<![.])")
_IDENTIFIER = re.compile(r"_|[a-z][A-Z0-9]")
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
        yield from (_text_of(row[chosen]) for row in _parquet_rows(source, [chosen], start))
        return
    chosen = ""
    records = iter_records(source, encoding=encoding, header=has_header([column or ""]))
    for record in islice(records, start, None):
        if chosen not in record:
            is_delimited = fmt in (FileFormat.CSV, FileFormat.TSV)
            chosen = _sentence_column(record, column, record.place, hint, is_delimited=is_delimited)
        yield record[chosen]


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
            separators = _SEPARATORS
        case FileFormat.TSV:
            separators = "\t"
    return _table_rows(source, encoding, separators, tuple(names or ()), header)


def find_column(record: Mapping[str, Any], column: str) -> str | None:
    """Return the name under which a row holds ``column``: its own, else its first alias, in any case."""
    by_lower = {name.strip().lower(): name for name in reversed(list(record))}
    for name in (column.lower(), *COLUMN_ALIASES.get(column, ())):
        if name in by_lower:
            return by_lower[name]
    return None


def has_header(given: Iterable[str]) -> bool | None:
    """Return whether a CSV or TSV file has a header, going by the columns asked for; None where they leave it open."""
    names = [name for name in given if name]
    if names and all(name.isdigit() for name in names):
        return False
    return None if set(names) <= set(POSITIONAL) else True


def parse_columns(text: str | None, roles: Sequence[str], option: str = "--columns") -> dict[str, str]:
    """Return which column holds what, as ``anchor=Question,positive=Answer`` says; empty for None.

    Names without a role are those of the roles in order, so ``Question,Answer`` is the same for a pair.
    """
    parts = [] if text is None else [part.strip() for part in next(csv.reader([text]), [])]
    if text is not None and not any("=" in part for part in parts) and 0 < len(parts) <= len(roles):
        parts = [f"{role}={part}" for role, part in zip(roles, parts, strict=False)]
    found: dict[str, str] = {}
    for part in parts:
        role, _, name = (side.strip() for side in part.partition("="))
        if role in found:
            raise UsageError(f"{role} is named twice in {text!r}", option=option)
        if role not in roles or not name:
            wanted = ",".join(f"{each}=NAME" for each in roles)
            near = get_close_matches(role, roles, n=1)
            what = (
                f"{part!r}; did you mean {near[0]}={name or 'NAME'}?" if near else f"{part!r}; need {wanted}"
            )
            raise UsageError(what, option=option)
        found[role] = name
    return found


def resolve_columns(
    record: Mapping[str, Any],
    columns: Sequence[str],
    place: str,
    given: Mapping[str, str] | None = None,
    option: str = "--columns",
) -> tuple[str, ...]:
    """Return the names under which a row holds ``columns``: those given, else their own or usual ones."""
    names = {column: (given or {}).get(column, column) for column in columns}
    found = {column: find_column(record, name) for column, name in names.items()}
    missing = [column for column, name in found.items() if name is None]
    if missing:
        wrong = [names[column] for column in missing if names[column] != column]
        what = f"no column {', '.join(wrong)}" if wrong else f"missing is {', '.join(missing)}"
        raise DataError(
            f"{place}: the columns are {', '.join(record)}; {what}",
            hint=columns_hint(record, columns, option),
        )
    return tuple(name for name in found.values() if name is not None)


def columns_hint(record: Mapping[str, Any], columns: Sequence[str], option: str = "--columns") -> str:
    """Return the option that says which column of a table is which; the first columns stand for those to choose."""
    free = [name for name in record if all(find_column({name: ""}, column) is None for column in columns)]
    chosen = {column: find_column(record, column) for column in columns}
    for column in columns:
        chosen[column] = chosen[column] or (free.pop(0) if free else "NAME")
    text = ",".join(f"{column}={name}" for column, name in chosen.items())
    numbers = ",".join(f"{column}={number}" for number, column in enumerate(columns, start=1))
    return f"say which is which: {option} {shlex.quote(text)} (in a table without a header: {numbers})"


def take_out_hint(source: InputPath, option: str) -> str:
    """Return what to do with a table where ``option`` takes files of sentences only."""
    text = shlex.quote(f"{Path(source).stem}.txt")
    taken = f"simcse prepare sentences {shlex.quote(str(source))} --column COLUMN -o {text}"
    return f"take one out with `{taken}`, then {option} {text}"


def _sentence_column(
    record: Mapping[str, str], column: str | None, place: str, hint: str, *, is_delimited: bool
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


def _table_rows(
    source: InputPath, encoding: str, separators: str, names: tuple[str, ...], header: bool | None
) -> Iterator[tuple[int, dict[str, str]]]:
    name, lines = source_name(source), iter_lines(source, encoding=encoding)
    head = list(islice(lines, _SNIFFED_ROWS))
    lines = chain(head, lines)
    if not names and head and is_stsb_line(head[0]):
        yield from _stsb_rows(lines, name)
        return
    separator = _find_separator(head, separators)
    cells = _tsv_cells(lines) if separator == "\t" else _csv_cells(lines, separator, name)
    yield from _named_cells(cells, name, names, header)


def is_stsb_line(line: str) -> bool:
    """Say whether a line is one of SentEval's STS-B files: tabs, a score in column 5, no header."""
    cells = line.split("\t")
    try:
        return len(cells) >= len(STSB_COLUMNS) and int(cells[3]) >= 0 and 0 <= float(cells[4]) <= 5
    except ValueError:
        return False


def _stsb_rows(lines: Iterable[str], source: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows as the protocol reads them: no quoting, and what follows the sentences is not text."""
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t")
        if len(cells) < len(STSB_COLUMNS):
            raise DataError(
                f"{source}, line {number}: {len(cells)} columns, need 7 (genre, file, year, id, score, sentence 1, "
                "sentence 2)",
                hint="the file begins as an STS-B file of SentEval; check it with `simcse prepare senteval`",
            )
        yield number, dict(zip(STSB_COLUMNS, cells, strict=False))


def _find_separator(head: Sequence[str], separators: str) -> str:
    """Return the separator that gives a header with usual names, else as many columns in every row; else the first.

    A single row is a table if it has a tab, which text has not.
    """

    def fit(separator: str) -> tuple[bool, bool]:
        rows: list[list[str]] = []
        with suppress(csv.Error):  # a row that ends after the sample, or a broken one, which reading tells
            rows += csv.reader(head, delimiter=separator, strict=separator != "\t")
        rows = [row for row in rows if row]
        widths = {len(row) for row in rows}
        is_table = len(widths) == 1 and widths != {1} and (len(rows) > 1 or separator == "\t")
        return bool(rows) and len(rows[0]) > 1 and _has_known_name(rows[0]), is_table

    return max(separators, key=fit)


def _has_known_name(cells: Iterable[str]) -> bool:
    return any(cell.strip().lower() in _HEADER_NAMES for cell in cells)


def _csv_cells(lines: Iterable[str], separator: str, source: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in lines), delimiter=separator, strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(
            f"{source}, line {reader.line_num}: not valid CSV ({error})",
            hint='put cells that hold commas or quotes in "..." and double the quotes inside, or use JSONL',
        ) from error


def _tsv_cells(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, start=1):
        yield number, [_unquote(cell) for cell in line.split("\t")] if line.strip() else []


def _unquote(cell: str) -> str:
    # TSV files of the field hold bare quotes, so quoting is undone only where it is certain: "a ""b"" c".
    inner = cell[1:-1]
    if len(cell) > 1 and cell[0] == cell[-1] == '"' and '""' in inner and '"' not in inner.replace('""', ""):
        return inner.replace('""', '"')
    return cell


def _named_cells(
    rows: Iterator[tuple[int, list[str]]], source: str, names: tuple[str, ...], header: bool | None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows with their column names: those given, those of the header, ``POSITIONAL``, or numbers."""
    rows = ((number, cells) for number, cells in rows if cells)
    if not names:
        head = list(islice(rows, _SNIFFED_ROWS))
        if not head:
            return
        (number, first), *others = head
        if header is None and (
            len(first) > len(POSITIONAL) or _looks_like_header([cells for _, cells in head])
        ):
            header = True
        if header:
            names, head = _header_names(first, f"{source}, line {number}"), others
        else:
            numbers = tuple(str(n) for n in range(1, len(first) + 1))
            names = numbers if header is False else POSITIONAL[: len(first)]
        rows = chain(head, rows)
    for number, cells in rows:
        if len(cells) != len(names):
            raise DataError(
                f"{source}, line {number}: {len(cells)} columns, need {len(names)} ({', '.join(names)})",
                hint="quote cells that hold the separator; name a file with one sentence per line .txt",
            )
        yield number, dict(zip(names, cells, strict=True))


def _looks_like_header(rows: Sequence[Sequence[str]]) -> bool:
    """Say whether the first row holds column names: usual ones, identifiers, or names above sentences."""
    first, *others = rows
    cells = [cell.strip() for cell in first]
    if _has_known_name(cells):
        return True
    if not others or len(set(cells)) < len(cells) or not all(map(_NAME.fullmatch, cells)):
        return False
    if any(map(_IDENTIFIER.search, cells)):
        return True
    columns = zip(*(row for row in others if len(row) == len(cells)), strict=True)
    return any(
        2 * sum(_NAME.fullmatch(text.strip()) is None for text in texts) > len(texts) for texts in columns
    )


def _header_names(cells: list[str], place: str) -> tuple[str, ...]:
    """Return the names in a header; a nameless column, as that of a pandas index, is called by its number."""
    names = tuple(cell.strip() or f"column{number}" for number, cell in enumerate(cells, start=1))
    if len(set(names)) < len(names):
        raise DataError(
            f"{place}: need a header with a different name for each of the {len(names)} columns",
            hint=f"add a first line with the names, for example {','.join(POSITIONAL)}",
        )
    return names
