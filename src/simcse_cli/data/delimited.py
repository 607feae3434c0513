"""Read CSV and TSV as rows with named columns: find the separator and the header, and undo quoting.

Files of one to three columns may lack a header, like those for the original SimCSE code; their columns are then
``POSITIONAL``. The separator of a CSV file is whichever of ``,``, ``;``, tab and ``|`` fits its first rows. A Markdown
table is told by the dashes under its header.
"""

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

from simcse_cli.data.columns import COLUMN_ALIASES, POSITIONAL
from simcse_cli.errors import DataError

STSB_COLUMNS = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")
"""Columns of SentEval's ``sts-train.csv``, ``sts-dev.csv`` and ``sts-test.csv``: tab-separated, without a header."""

# A first row with one of these names is a header.
_HEADER_NAMES = frozenset(COLUMN_ALIASES).union(
    ("id", "image_id", "image", "sku", "title", "subject", "body", "description", "comment", "message"),
    *COLUMN_ALIASES.values(),
)
SEPARATORS = ",;\t|"
_SNIFFED_ROWS = 20
# A column name: letters first, three words at most, nothing that ends a sentence.
_NAME = re.compile(r"[^\W\d_][\w./()#-]{0,39}( [\w./()#-]{1,20}){0,2}(?<![.])")
_UNNAMED = re.compile(r"column\d+")
_DIGIT = re.compile(r"\d")
# A row of a TSV file that a program wrote with quotes around all texts, which corpora do not have.
_QUOTED_ROW = re.compile(r'(?:"(?:[^"\t]|"")*"|[-+\d.,]*)(?:\t(?:"(?:[^"\t]|"")*"|[-+\d.,]*))*')
_MARKDOWN_RULE = re.compile(r"\s*\|?(\s*:?-+:?\s*\|)+(\s*:?-+:?\s*)?")
_MARKDOWN_BAR = re.compile(r"(?<!\\)\|")
_IDENTIFIER = re.compile(r"_|[a-z][A-Z0-9]")


def table_rows(
    lines: Iterator[str], source: str, separators: str, names: tuple[str, ...], header: bool | None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield ``(line number, columns by name)`` for each row of a table called ``source``.

    ``names`` gives the columns of a table known to have no header; ``header`` is None to decide by the first rows.
    """
    head = list(islice(lines, _SNIFFED_ROWS))
    lines = chain(head, lines)
    if not names and head and is_stsb_line(head[0]):
        hint = "the file begins as an STS-B file of SentEval; check it with `simcse prepare senteval`"
        yield from stsb_rows(lines, source, hint=hint)
        return
    if head and (told := re.fullmatch("sep=(.)", head[0])):  # a line for Excel
        head, separators = head[1:], told[1]
        next(lines)
    if any(map(_MARKDOWN_RULE.fullmatch, head)):
        yield from named_cells(_markdown_cells(lines), source, names, True if header is None else header)
        return
    separator = max(separators, key=lambda each: _fit(head, each))
    is_bare = separator == "\t" and not all(map(_QUOTED_ROW.fullmatch, head))
    cells = _tsv_cells(lines) if is_bare else _csv_cells(lines, separator, source)
    yield from named_cells(cells, source, names, header)


def is_stsb_line(line: str) -> bool:
    """Tell whether a line comes from SentEval's STS-B files: tabs, a score in column 5, no header."""
    cells = line.split("\t")
    try:
        return len(cells) >= len(STSB_COLUMNS) and int(cells[3]) >= 0 and 0 <= float(cells[4]) <= 5
    except ValueError:
        return False


def stsb_rows(lines: Iterable[str], source: str, *, hint: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows as the protocol reads them: no quoting, and columns after the sentences are ignored."""
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t")
        if len(cells) < len(STSB_COLUMNS):
            raise DataError(
                f"{source}, line {number}: {len(cells)} columns, need 7 (genre, file, year, id, score, sentence 1, "
                "sentence 2)",
                hint=hint,
            )
        yield number, dict(zip(STSB_COLUMNS, cells, strict=False))


def is_table(lines: Iterable[str]) -> bool:
    """Tell whether the first lines of a text look like rows of cells."""
    head = list(islice(lines, _SNIFFED_ROWS))
    return any(map(_MARKDOWN_RULE.fullmatch, head)) or any(any(_fit(head, each)) for each in SEPARATORS)


def _fit(head: Sequence[str], separator: str) -> tuple[bool, int]:
    """Return whether a separator gives usual names in the header, and rows of equal width, best with tabs."""
    rows: list[list[str]] = []
    with suppress(csv.Error):  # a row ends after the sample, or is broken, which is reported on reading
        rows += csv.reader(head, delimiter=separator, strict=separator != "\t")
    rows = [row for row in rows if row]
    widths = {len(row) for row in rows}
    has_tab = separator == "\t"
    fits = len(widths) == 1 and widths != {1} and (len(rows) > 1 or has_tab)
    return bool(rows) and len(rows[0]) > 1 and _has_known_name(rows[0]), fits * (1 + has_tab)


def _has_known_name(cells: Iterable[str]) -> bool:
    return any(cell.strip().lower() in _HEADER_NAMES for cell in cells)


def _csv_cells(lines: Iterable[str], separator: str, source: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in lines), delimiter=separator, strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        fixed = f"{Path(source).stem}-lines.csv"
        raise DataError(
            f"{source}, line {reader.line_num}: not valid CSV ({error})",
            hint=f"end the lines as others do: tr '\\r' '\\n' < {shlex.quote(source)} > {shlex.quote(fixed)}"
            if "new-line" in str(error)
            else 'put cells that hold commas or quotes in "..." and double the quotes inside, or use JSONL',
        ) from error


def _tsv_cells(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, start=1):
        yield number, [_unquote(cell) for cell in line.split("\t")] if line.strip() else []


def _markdown_cells(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of a Markdown table, without the text around it and the dashes under its header."""
    for number, line in enumerate(map(str.strip, lines), start=1):
        if "|" in line and not _MARKDOWN_RULE.fullmatch(line):
            cells = _MARKDOWN_BAR.split(line.removeprefix("|").removesuffix("|"))
            yield number, [cell.strip().replace("\\|", "|") for cell in cells]


def _unquote(cell: str) -> str:
    # Common TSV files hold bare quotes, so quoting is undone only where it is certain: "a ""b"" c".
    inner = cell[1:-1]
    if len(cell) > 1 and cell[0] == cell[-1] == '"' and '""' in inner and '"' not in inner.replace('""', ""):
        return inner.replace('""', '"')
    return cell


def named_cells(
    rows: Iterator[tuple[int, list[str]]], source: str, names: tuple[str, ...], header: bool | None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows with column names: those given, those of the header, ``POSITIONAL``, or numbers."""
    rows = ((number, cells) for number, cells in rows if cells)
    if not names:
        head = list(islice(rows, _SNIFFED_ROWS))
        while len(head) > 1 and header is not False and _is_title(head[0][1]):
            del head[0]  # a title above the table, as spreadsheets have
        if not head:
            return
        (number, first), *others = head
        is_wide = len(first) > len(POSITIONAL)
        if header or (header is None and (is_wide or _looks_like_header([cells for _, cells in head]))):
            names, head = _header_names(first, f"{source}, line {number}"), others
        else:
            numbers = tuple(str(n) for n in range(1, len(first) + 1))
            names = numbers if header is False else POSITIONAL[: len(first)]
        rows = chain(head, rows)
    for number, cells in rows:
        if len(cells) != len(names):
            missing = names[len(cells) :]
            if any(cells[len(names) :]) or not all(map(_UNNAMED.fullmatch, missing)):
                found = f"{source}, line {number}: {len(cells)} columns, need {len(names)} ({', '.join(names)})"
                plain = "name a file with one sentence per line .txt"
                other = "give the table a header line" if source.endswith(".txt") else plain
                raise DataError(found, hint=f"quote cells that hold the separator; {other}")
            cells = [*cells[: len(names)], *("" for _ in missing)]  # spreadsheets cut and add empty cells
        yield number, dict(zip(names, cells, strict=True))


def _is_title(cells: Sequence[str]) -> bool:
    """Tell whether a row is one text over a wide table, or nothing, as above the header of a report."""
    return len(cells) > 2 and not any(cells[1:]) and not _has_known_name(cells)


def _looks_like_header(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first row holds column names: usual ones, identifiers, or short names above texts or numbers."""
    first, *others = rows
    cells = [cell.strip() for cell in first]
    while len(cells) > 1 and not cells[-1]:
        cells.pop()
    if _has_known_name(cells):
        return True
    if not cells[0] and all(row[0].strip().isdigit() for row in others):  # an index
        cells[0] = "index"
    if not others or len(set(cells)) < len(cells) or not all(map(_NAME.fullmatch, cells)):
        return False
    if any(map(_IDENTIFIER.search, cells)):
        return True
    columns = zip(*(row for row in others if len(row) >= len(cells)), strict=False)
    return any(
        2 * sum(_NAME.fullmatch(text.strip()) is None for text in texts) > len(texts)
        or all(_DIGIT.search(text) and not _DIGIT.search(cell) for text in texts)
        for cell, texts in zip(cells, columns, strict=False)  # no column where no row is as wide
    )


def _header_names(cells: list[str], place: str) -> tuple[str, ...]:
    """Return the names in a header; columns without a name, such as a pandas index, or with one name get numbers."""
    names = [cell.strip() or f"column{number}" for number, cell in enumerate(cells, start=1)]
    count, seen = Counter(names), Counter[str]()
    for at, name in enumerate(names):
        if count[name] > 1 and _NAME.fullmatch(name):
            seen[name] += 1
            names[at] = f"{name}.{seen[name]}"
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        raise DataError(
            f"{place}: {', '.join(twice)} stands there twice; "
            f"need a header with a different name for each of the {len(names)} columns",
            hint=f"add a first line with the names, for example {','.join(POSITIONAL)}",
        )
    return tuple(names)
