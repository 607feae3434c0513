"""Cut lines into the rows and cells of a table: find the separator and the header, and undo quoting.

A Markdown table is told by the dashes under its header; SentEval's STS-B files by their columns.
"""

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from simcse_cli.data import names
from simcse_cli.data.given import Given
from simcse_cli.data.grid import SAMPLE_ROWS, Grid
from simcse_cli.data.headers import decide_header
from simcse_cli.data.show import show_rows
from simcse_cli.errors import DataError

STSB_COLUMNS = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")
"""Columns of SentEval's ``sts-train.csv``, ``sts-dev.csv`` and ``sts-test.csv``: tab-separated, without a header."""

_WIKIAUTO_COLUMNS = (
    *(
        "alignment_label",
        "simple_sentence_id",
        "normal_sentence_id",
        "simple_sentence",
        "normal_sentence",
    ),
    "gleu_score",
)
_WIKIAUTO_LABELS = ("aligned", "partialAligned", "notAligned")

SEPARATORS = ("\t", "|||", "||", ":::", ";", "|", ",")
"""What may separate cells; the first that fits is taken."""
OF_TEXT = SEPARATORS[:3]
"""Separators that tell in a text file of single texts that it may be a table."""
NO_SEPARATOR = "none"
_BARS = SEPARATORS[1:3] + SEPARATORS[5:6]
_HEAD_LINES = 400
_LEAST_SHARE = 0.8  # of the rows that a separator has to cut
_NOTHING = "\x1f"  # separates nothing, for tables of one column
# A row of a TSV file that a program wrote with quotes around all texts, which corpora do not have.
_QUOTED_ROW = re.compile(r'(?:"(?:[^"\t]|"")*"|[-+\d.,]*)(?:\t(?:"(?:[^"\t]|"")*"|[-+\d.,]*))*')
_MARKDOWN_RULE = re.compile(r"\s*\|?(\s*:?-+:?\s*\|)+(\s*:?-+:?\s*)?")
_MARKDOWN_BAR = re.compile(r"(?<!\\)\|")
_NO_CUT = re.compile(r",(?= )|(?<=\d),(?=\d)")  # commas of prose and of numbers

csv.field_size_limit(1 << 30)  # cells of any length; a line has a limit of its own

Cells = tuple[int, list[str]]
"""The number of a row's last line, and its cells."""


def open_delimited(lines: Iterator[str], source: str, given: Given) -> Grid:
    """Return the table in some lines."""
    head = list(islice(lines, _HEAD_LINES))
    lines = chain(head, lines)
    if head and is_stsb_line(head[0]):
        hint = (
            "the file begins as an STS-B file of SentEval; check it with `simcse prepare senteval`"
        )
        rows = stsb_rows(lines, source, hint=hint)
        return Grid.of(source, STSB_COLUMNS, rows, is_named=True, is_published=True)
    if head and not given.wants_table and (columns := _wikiauto_columns(head[0])):
        rows = _split_cells(lines, "\t")
        return Grid.of(source, columns, rows, is_named=True, is_published=True)
    told = given.separator
    n_before = 0
    if head and told is None and (line := re.fullmatch("sep=(.)", head[0])):  # a line for Excel
        told, head, n_before = line[1], head[1:], 1
        next(lines)
    if told is None and any(map(_MARKDOWN_RULE.fullmatch, head)):
        rows = _markdown_cells(lines)
        header = True if given.header is None else given.header
        return named_rows(rows, source, given, header=header)
    separator = told or choose_separator(head, source)
    rows = _cells(lines, separator, source, head)
    if n_before:
        rows = ((number + n_before, cells) for number, cells in rows)
    return named_rows(rows, source, given, header=given.header)


def holds_cells(head: Sequence[str], source: str) -> bool:
    """Tell whether the first lines of a text are the rows of a table."""
    if any(map(_MARKDOWN_RULE.fullmatch, head)) or any(
        line.startswith("sep=") for line in head[:1]
    ):
        return True
    return choose_separator(head, source) != NO_SEPARATOR


def is_stsb_line(line: str) -> bool:
    """Tell whether a line comes from SentEval's STS-B files: tabs, a score in column 5, no header."""
    cells = line.split("\t")
    try:
        return len(cells) >= len(STSB_COLUMNS) and int(cells[3]) >= 0 and 0 <= float(cells[4]) <= 5
    except ValueError:
        return False


def _wikiauto_columns(line: str) -> tuple[str, ...]:
    """Return the columns of WikiAuto's manual alignments (tabs, no header); nothing for other files."""
    cells = line.split("\t")
    is_wikiauto = cells[0] in _WIKIAUTO_LABELS and len(cells) >= 5  # the score may be missing
    return _WIKIAUTO_COLUMNS[: len(cells)] if is_wikiauto else ()


def stsb_rows(lines: Iterable[str], source: str, *, hint: str) -> Iterator[Cells]:
    """Yield the rows as the protocol reads them: no quoting, and columns after the sentences are ignored."""
    n_columns = len(STSB_COLUMNS)
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t")
        if len(cells) < n_columns:
            wanted = "genre, file, year, id, score, sentence 1, sentence 2"
            what = f"{source}, line {number}: {len(cells)} columns, need {n_columns} ({wanted})"
            raise DataError(what, hint=hint)
        yield number, cells[:n_columns]


# ------------------------------------------------------------------ the separator
@dataclass(frozen=True)
class _Fit:
    """How a separator cuts the first rows; ``bad`` is the first row that speaks against it."""

    separator: str
    rows: list[Cells]
    share: float = 0.0
    bad: Cells | None = None
    has_names: bool = False
    error: DataError | None = None

    @property
    def is_even(self) -> bool:
        return self.share == 1 and len({len(cells) for _, cells in self.rows}) == 1


def choose_separator(head: Sequence[str], source: str) -> str:
    """Return the separator that fits the first lines of a table; NO_SEPARATOR for a single column."""
    fits = [_fit(head, separator, source) for separator in SEPARATORS]
    fitting = [fit for fit in fits if fit.share > 0 and fit.bad is None]
    if not fitting:
        for fit in fits:
            if fit.error is not None:
                raise fit.error
        _refuse_uneven(fits, source)
        return NO_SEPARATOR
    best, *others = fitting
    if len(others) and not best.has_names:
        named = [fit for fit in others if fit.has_names]
        if named:
            return named[0].separator
    _refuse_ambiguous(best, others, source)
    return best.separator


def _fit(head: Sequence[str], separator: str, source: str) -> _Fit:
    if not any(separator in line for line in head):
        return _Fit(separator, [])
    rows: list[Cells] = []
    broken: DataError | None = None
    try:
        for number, cells in _cells(iter(head), separator, source, head):
            rows.append((number, cells))
    except DataError as error:  # of a row that is broken, or goes on after the sample
        broken = error
    if len(head) == _HEAD_LINES and len(rows) > 1:
        del rows[-1]  # which the sample may have cut
    rows = _without_titles(rows)[:SAMPLE_ROWS]
    if not rows:
        return _Fit(separator, [], error=broken)
    has_names = len(rows[0][1]) > 1 and any(map(names.is_known, rows[0][1]))
    if separator == "," and not has_names and _cuts_nothing(head):
        return _Fit(separator, [])

    # Every row needs two cells, and none more than row 1 has.
    width = len(rows[0][1])
    narrow = [row for row in rows if len(row[1]) < 2]
    wide = [row for row in rows if _width(row[1]) > width]
    share = 1 - len(narrow) / len(rows)
    least = 0.5 if has_names else _LEAST_SHARE
    if wide:
        return _Fit(separator, rows, share, wide[0], has_names)
    bad = narrow[0] if share < least else None
    return _Fit(separator, rows, share, bad, has_names)


def _width(cells: Sequence[str]) -> int:
    """Return the number of cells up to the last that is not empty."""
    n_cells = len(cells)
    while n_cells and not cells[n_cells - 1].strip():
        n_cells -= 1
    return n_cells


def _cuts_nothing(head: Sequence[str]) -> bool:
    """Tell whether the commas are those of prose or of numbers, in every line without quotes."""
    bare = [line for line in head if "," in line and '"' not in line]
    return bool(bare) and all("," not in _NO_CUT.sub("", line) for line in bare)


def _refuse_uneven(fits: Sequence[_Fit], source: str) -> None:
    """Raise DataError if a separator cuts half of the rows, but not all, or one row too often."""
    half = [fit for fit in fits if fit.share >= 0.5 and fit.bad is not None]
    if not half:
        return
    fit = max(half, key=lambda each: each.share)
    number, cells = fit.bad or (1, [])
    raise uneven_row(source, number, cells, len(fit.rows[0][1]))


def uneven_row(source: str, number: int, cells: Sequence[str], n_columns: int) -> DataError:
    """Return the error of a row with other cells than row 1 has."""
    shown = " | ".join(cells)
    shown = shown if len(shown) <= 200 else f"{shown[:199]}…"
    counts = f"{len(cells)} cell{'s' * (len(cells) != 1)} below {n_columns} column{'s' * (n_columns != 1)}"
    return DataError(
        f"{source}, line {number}: {counts}: '{shown}'",
        hint="quote a cell that holds the separator, name another one with --separator ';', "
        f"or read whole lines as texts with --separator {NO_SEPARATOR}",
    )


def _refuse_ambiguous(best: _Fit, others: Sequence[_Fit], source: str) -> None:
    if best.has_names or not best.is_even:
        return
    is_tsv = best.separator == "\t" and source.lower().endswith((".tsv", ".tab", ".tsv.gz"))
    for other in others:
        are_bars = best.separator in _BARS and other.separator in _BARS
        if is_tsv or are_bars or not other.is_even:
            continue
        lines = [
            f"   as {fit.separator!r}: {' | '.join(fit.rows[0][1])[:80]}" for fit in (best, other)
        ]
        choices = [f"--separator {shlex.quote(fit.separator)}" for fit in (best, other)]
        what = "two separators fit every row\n" + "\n".join(lines)
        raise DataError(f"{source}: {what}", hint="\n        ".join(choices))


# ------------------------------------------------------------------ the cells
def _cells(
    lines: Iterable[str], separator: str, source: str, head: Sequence[str]
) -> Iterator[Cells]:
    if separator == NO_SEPARATOR:
        separator = _NOTHING
    is_quoted = separator == "\t" and all(map(_QUOTED_ROW.fullmatch, head))
    if len(separator) > 1 or (separator == "\t" and not is_quoted):
        return _split_cells(lines, separator)
    return _csv_cells(lines, separator, source)


def _csv_cells(lines: Iterable[str], separator: str, source: str) -> Iterator[Cells]:
    ended = (line + "\n" for line in lines)
    reader = csv.reader(ended, delimiter=separator, strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise _not_csv(error, source, reader.line_num) from error


def _not_csv(error: csv.Error, source: str, number: int) -> DataError:
    if "new-line" in str(error):
        fixed = shlex.quote(f"{Path(source).stem}-lines.csv")
        hint = f"end the lines as others do: tr '\\r' '\\n' < {shlex.quote(source)} > {fixed}"
    else:
        hint = 'put cells that hold commas or quotes in "..." and double the quotes inside, or use JSONL'
    return DataError(f"{source}, line {number}: not valid CSV ({error})", hint=hint)


def _split_cells(lines: Iterable[str], separator: str) -> Iterator[Cells]:
    """Yield the cells between separators; quotes are undone only where they are certain."""
    for number, line in enumerate(lines, start=1):
        if '"' in line:
            yield number, [_unquote(cell) for cell in line.split(separator)]
        elif line and not line.isspace():
            yield number, line.split(separator)


def _unquote(cell: str) -> str:
    # Common TSV files hold bare quotes: only "a ""b"" c" is certain.
    inner = cell[1:-1]
    if (
        len(cell) > 1
        and cell[0] == cell[-1] == '"'
        and '""' in inner
        and '"' not in inner.replace('""', "")
    ):
        return inner.replace('""', '"')
    return cell


def _markdown_cells(lines: Iterable[str]) -> Iterator[Cells]:
    """Yield the cells of a Markdown table, without the text around it and the dashes under its header."""
    for number, line in enumerate(map(str.strip, lines), start=1):
        if "|" in line and not _MARKDOWN_RULE.fullmatch(line):
            cells = _MARKDOWN_BAR.split(line.removeprefix("|").removesuffix("|"))
            yield number, [cell.strip().replace("\\|", "|") for cell in cells]


# ------------------------------------------------------------------ the names
def named_rows(rows: Iterator[Cells], source: str, given: Given, *, header: bool | None) -> Grid:
    """Return rows of cells as a table, whose names are those of row 1, or numbers."""
    head = _without_titles(list(islice(rows, SAMPLE_ROWS + 1)))
    if not head:
        return Grid.of(source, (), iter(()), is_named=True)
    notes: tuple[str, ...] = ()
    if header is None:
        found = decide_header([cells for _, cells in head], tuple(given.columns.values()))
        header = found.found
        if found.by_look:
            notes = (f"{source}: row 1 is read as the header; if it is data: --no-header",)
    if header is None:
        if not given.never_asks:
            raise _undecided_header([cells for _, cells in head], source)
        notes = (f"{source}: row 1 may be the header: --header, or as data: --no-header",)
    if header:
        columns = _header_names(head[0][1])
        del head[0]
    else:
        columns = tuple(str(number) for number in range(1, len(head[0][1]) + 1))
    even = _even_rows(chain(head, rows), len(columns), source)
    return Grid.of(source, columns, even, is_named=bool(header), notes=notes)


def _undecided_header(rows: Sequence[Sequence[str]], source: str) -> DataError:
    above, below = (" | ".join(row)[:80] for row in rows[:2])
    shown = show_rows([list(row) for row in rows[:4]])
    return DataError(
        f"{source}: row 1 may be the header: '{above}' above '{below}'\n{shown}",
        hint="row 1 is the header   --header\n        row 1 is data         --no-header",
    )


def _even_rows(rows: Iterable[Cells], n_columns: int, source: str) -> Iterator[Cells]:
    """Yield the rows with a cell for each column; those missing at the end are empty."""
    for number, cells in rows:
        if len(cells) != n_columns:
            if _width(cells) > n_columns:
                raise uneven_row(source, number, cells, n_columns)
            cells = [*cells[:n_columns], *[""] * (n_columns - len(cells))]
        yield number, cells


def _without_titles(rows: list[Cells]) -> list[Cells]:
    """Leave out the titles above a table, as reports have: single cells above wider rows."""
    n_titles = 0
    while n_titles < min(3, len(rows) - 2) and _is_title(rows[n_titles][1], rows[n_titles + 1 :]):
        n_titles += 1
    return rows[n_titles:]


def _is_title(cells: Sequence[str], below: Sequence[Cells]) -> bool:
    if _width(cells) > 1 or any(map(names.is_known, cells)) or len(cells) == 2:
        return False
    if len(cells) > 2:
        return True
    widths = Counter(len(row) for _, row in below)
    return widths.most_common(1)[0][0] > 1 and widths[1] <= 1


def _header_names(cells: Sequence[str]) -> tuple[str, ...]:
    """Return the names in a header; columns without a name, such as a pandas index, or with one name get numbers."""
    found = [cell.strip() or f"column{number}" for number, cell in enumerate(cells, start=1)]
    count = Counter(found)
    seen = Counter[str]()
    for at, name in enumerate(found):
        if count[name] > 1:
            seen[name] += 1
            found[at] = f"{name}.{seen[name]}"
    return tuple(found)
