"""Cut lines into the rows and cells of a table.

The separator and the header are found, and quoting is undone. A Markdown table is recognised by the
dashes under its header, and SentEval's STS-B files by their columns.
"""

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import attrgetter

from simcse_cli.data import names
from simcse_cli.data.given import Given
from simcse_cli.data.grid import SAMPLE_ROWS, Grid
from simcse_cli.data.headers import decide_header
from simcse_cli.data.ids import USUAL_NAMES
from simcse_cli.data.show import show_rows
from simcse_cli.errors import DataError
from simcse_cli.files.streams import conversion_hint

STSB_COLUMNS = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")
"""Columns of SentEval's STS-B files, ``sts-SPLIT.csv``: tab-separated, without a header."""

_WIKIAUTO_COLUMNS = (
    "alignment_label",
    "simple_sentence_id",
    "normal_sentence_id",
    "simple_sentence",
    "normal_sentence",
    "gleu_score",
)
_WIKIAUTO_LABELS = ("aligned", "partialAligned", "notAligned")

SEPARATORS = ("\t", "|||", "||", ":::", ";", "|", ",")
"""Possible separators of cells; the first that fits is taken."""
TEXT_SEPARATORS = ("\t", "|||", "||")
"""Separators that sentences do not hold: a text file that has them may be a table."""
NO_SEPARATOR = "none"
_BARS = ("|||", "||", "|")  # a shorter one fits wherever a longer one does
_HEAD_LINES = 400
_LEAST_SHARE = 0.8  # a separator must cut at least this share of the rows
_LEAST_NUMBERED = 5  # rows needed to take their numbers for a column that the header lacks
_NOTHING = "\x1f"  # a separator that no text holds, which makes each line a single cell
# A row of a TSV file with quotes around all texts. Some programs write such files; published
# corpora have bare quotes instead.
_QUOTED_ROW = re.compile(r'(?:"(?:[^"\t]|"")*"|[-+\d.,]*)(?:\t(?:"(?:[^"\t]|"")*"|[-+\d.,]*))*')
_MARKDOWN_RULE = re.compile(r"\s*(\|\s*)?(:?-+:?\s*\|\s*)+(:?-+:?\s*)?")
_MARKDOWN_BAR = re.compile(r"(?<!\\)\|")
_NO_CUT = re.compile(r",(?= )|(?<=\d),(?=\d)")  # commas of prose and of numbers

csv.field_size_limit(1 << 30)  # cells of any length; a line has a limit of its own

NumberedCells = tuple[int, list[str]]
"""The number of a row's last line, and its cells."""


def open_delimited(lines: Iterator[str], source: str, given: Given) -> Grid:
    """Return the lines as a table, after finding its layout, separator and header."""
    head = list(islice(lines, _HEAD_LINES))
    lines = chain(head, lines)
    first_line = head[0] if head else ""

    # Two published layouts have no header.
    if is_stsb_line(first_line):
        hint = (
            "the file begins as an STS-B file of SentEval; check it with `simcse prepare senteval`"
        )
        rows = stsb_rows(lines, source, hint=hint)
        return Grid(source, STSB_COLUMNS, rows, is_named=True, is_published=True)
    wikiauto_columns = _wikiauto_columns(first_line)
    if wikiauto_columns and not given.wants_table:
        rows = _split_cells(lines, "\t", source)
        return Grid(source, wikiauto_columns, rows, is_named=True, is_published=True)

    # A first line `sep=;` tells Excel the separator.
    excel_line = re.fullmatch("sep=(.)", first_line)
    if excel_line is not None and given.separator is None:
        next(lines)
        # An empty line takes its place, so that the numbers of lines stay right.
        rows = _cells(chain([""], lines), excel_line[1], source, head[1:])
    elif given.separator is None and _is_markdown(head):
        # The header of a Markdown table is certain, unless the user says that there is none.
        given = replace(given, header=given.header is not False)
        rows = _markdown_cells(lines)
    else:
        separator = given.separator or choose_separator(head, source)
        rows = _cells(lines, separator, source, head)
    return named_rows(rows, source, given)


def holds_cells(head: Sequence[str], source: str) -> bool:
    """Tell whether the first lines of a text file look like the rows of a table.

    Raise DataError if that is not certain, as ``choose_separator`` does.
    """
    if head and head[0].startswith("sep="):  # it tells Excel the separator
        return True
    return _is_markdown(head) or choose_separator(head, source) != NO_SEPARATOR


def _is_markdown(head: Iterable[str]) -> bool:
    return any(map(_MARKDOWN_RULE.fullmatch, head))


def is_stsb_line(line: str) -> bool:
    """Tell whether a line may be from an STS-B file: tabs, an id in column 4, a score in 5."""
    cells = line.split("\t")
    try:
        return len(cells) >= len(STSB_COLUMNS) and int(cells[3]) >= 0 and 0 <= float(cells[4]) <= 5
    except ValueError:
        return False


def _wikiauto_columns(line: str) -> tuple[str, ...]:
    """Return the columns of WikiAuto's manual alignments, which lack a header.

    For a line from any other file, return ().
    """
    cells = line.split("\t")
    if cells[0] in _WIKIAUTO_LABELS and len(cells) >= 5:  # the score may be missing
        return _WIKIAUTO_COLUMNS[: len(cells)]
    return ()


def stsb_rows(lines: Iterable[str], source: str, *, hint: str) -> Iterator[NumberedCells]:
    """Yield the seven cells of each row of an STS-B file; quotes are kept, as in SentEval."""
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
    """How a separator cuts the first rows.

    Attributes:
        share: the fraction of the rows that it cuts.
        bad_row: the first row that it does not fit, if there is one.
        has_names: whether a cell of row 1 is a usual name of a column.
        error: the error of a broken row, if no row before it could be read.
    """

    separator: str
    rows: list[NumberedCells]
    share: float = 0.0
    bad_row: NumberedCells | None = None
    has_names: bool = False
    error: DataError | None = None

    @property
    def is_even(self) -> bool:
        """Tell whether all rows have the same number of cells, two or more."""
        widths = {len(cells) for _, cells in self.rows}
        return self.share == 1 and len(widths) == 1


def choose_separator(head: Sequence[str], source: str) -> str:
    """Return the separator that fits the first lines of a table, or NO_SEPARATOR.

    Raise DataError if several fit equally well, or if none fits because of broken or uneven rows.
    """
    fits = [_fit(head, separator, source) for separator in SEPARATORS]
    fitting = [fit for fit in fits if fit.share > 0 and fit.bad_row is None]
    if not fitting:
        # A broken row is reported before an uneven one.
        for fit in fits:
            if fit.error is not None:
                raise fit.error
        _refuse_uneven(fits, source)
        return NO_SEPARATOR
    # Usual names in row 1 settle the choice.
    for fit in fitting:
        if fit.has_names:
            return fit.separator
    _refuse_ambiguous(fitting, source)
    return fitting[0].separator


def _fit(head: Sequence[str], separator: str, source: str) -> _Fit:
    """Return how well a separator cuts the first lines of a table."""
    if not any(separator in line for line in head):
        return _Fit(separator, [])
    rows: list[NumberedCells] = []
    broken: DataError | None = None
    try:
        for row in _cells(head, separator, source, head=head):
            rows.append(row)
    except DataError as error:  # a row is broken, or goes on below the last line of `head`
        broken = error
    if len(head) == _HEAD_LINES and len(rows) > 1:
        del rows[-1]  # it may go on below the last line of `head`
    rows = _without_titles(rows)[:SAMPLE_ROWS]
    # The rows before a broken one decide; its error counts only if there are none.
    if not rows:
        return _Fit(separator, [], error=broken)
    rows = _with_row_names(rows)
    _, first = rows[0]
    has_names = len(first) > 1 and any(map(names.is_known, first))
    if separator == "," and not has_names and _commas_belong_to_text(head):
        return _Fit(separator, [])

    # Most rows need two cells, and none may have more than row 1. Usual names in row 1 are
    # evidence too, so half of the rows are enough then.
    narrow_rows = [(number, cells) for number, cells in rows if len(cells) < 2]
    bad_rows = [(number, cells) for number, cells in rows if _filled_length(cells) > len(first)]
    share = 1 - len(narrow_rows) / len(rows)
    least_share = 0.5 if has_names else _LEAST_SHARE
    if share < least_share:
        bad_rows += narrow_rows
    bad_row = bad_rows[0] if bad_rows else None
    return _Fit(separator, rows, share, bad_row, has_names)


def _filled_length(cells: Sequence[str]) -> int:
    """Return the number of cells up to the last that is not empty."""
    n_cells = len(cells)
    while n_cells and not cells[n_cells - 1].strip():
        n_cells -= 1
    return n_cells


def _commas_belong_to_text(head: Sequence[str]) -> bool:
    """Tell whether all commas in lines without quotes belong to prose or to numbers."""
    bare = [line for line in head if "," in line and '"' not in line]
    return bool(bare) and "," not in _NO_CUT.sub("", "\n".join(bare))


def _refuse_uneven(fits: Sequence[_Fit], source: str) -> None:
    """Raise DataError if a separator cuts at least half of the rows, but does not fit some row.

    If several do, the error is about the one that cuts most rows.
    """
    for fit in sorted(fits, key=attrgetter("share"), reverse=True):
        if fit.bad_row is not None and fit.share >= 0.5:
            number, cells = fit.bad_row
            _, first = fit.rows[0]
            raise _uneven_row(source, number, cells, len(first))


def _uneven_row(source: str, number: int, cells: Sequence[str], n_columns: int) -> DataError:
    """Return the error for a row that has more or fewer cells than row 1."""
    shown = " | ".join(cells)
    if len(shown) > 200:
        shown = f"{shown[:199]}…"
    found = _counted("cell", len(cells))
    wanted = _counted("column", n_columns)
    return DataError(
        f"{source}, line {number}: {found} below {wanted}: '{shown}'",
        hint="quote a cell that holds the separator, name another one with --separator ';', "
        f"or read whole lines as texts with --separator {NO_SEPARATOR}",
    )


def _counted(name: str, count: int) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _refuse_ambiguous(fitting: Sequence[_Fit], source: str) -> None:
    """Raise DataError if the first separator and another one both cut all rows evenly."""
    best, *others = fitting
    # The name of a TSV file says that tabs are meant.
    is_tsv = best.separator == "\t" and source.lower().endswith((".tsv", ".tab", ".tsv.gz"))
    if is_tsv or not best.is_even:
        return
    for other in others:
        # A short run of bars fits wherever a longer one does, so two of them are not ambiguous.
        are_bars = best.separator in _BARS and other.separator in _BARS
        if are_bars or not other.is_even:
            continue
        what = f"{source}: two separators fit every row"
        choices = []
        for fit in (best, other):
            what += f"\n   as {fit.separator!r}: {' | '.join(fit.rows[0][1])[:80]}"
            choices.append(f"--separator {shlex.quote(fit.separator)}")
        raise DataError(what, hint="\n        ".join(choices))


# ------------------------------------------------------------------ the cells
def _cells(
    lines: Iterable[str], separator: str, source: str, head: Sequence[str]
) -> Iterator[NumberedCells]:
    """Return the rows that a separator cuts, by the rules of CSV or by plain splitting.

    The first lines, ``head``, tell whether the texts of a TSV file are quoted.
    """
    if separator == NO_SEPARATOR:
        separator = _NOTHING
    # The CSV reader takes one character other than a quote as its separator. It refuses bare
    # quotes, which most TSV files have.
    is_plain_tsv = separator == "\t" and not all(map(_QUOTED_ROW.fullmatch, head))
    if len(separator) > 1 or separator == '"' or is_plain_tsv:
        return _split_cells(lines, separator, source)
    return _csv_cells(lines, separator, source)


def _csv_cells(lines: Iterable[str], separator: str, source: str) -> Iterator[NumberedCells]:
    """Yield the rows that the rules of CSV give.

    Raise DataError for a row that breaks them, with the number of its first line: after a quote
    that is not closed, the reader stops only many lines below.
    """
    # A quoted cell may span lines. Their ends are part of it, so the reader must get them.
    ended_lines = (line + "\n" for line in lines)
    reader = csv.reader(ended_lines, delimiter=separator, strict=True)
    n_read = 0  # number of lines up to the end of the last row
    try:
        for cells in reader:
            n_read = reader.line_num
            if cells:
                yield n_read, cells
    except csv.Error as error:
        number = n_read + 1
        if "new-line" in str(error):
            raise _lone_return(source, number) from error
        raise DataError(
            f"{source}, line {number}: not valid CSV ({error})",
            hint='put cells that hold commas or quotes in "..." and double the quotes inside, '
            "or use JSONL",
        ) from error


def _lone_return(source: str, number: int) -> DataError:
    return DataError(
        f"{source}, line {number}: a carriage return within the line, need a line feed at its end",
        hint=conversion_hint(source, r"perl -pe 's/\r\n?/\n/g'", "lines"),
    )


def refuse_returns(lines: Iterable[str], source: str) -> Iterator[str]:
    """Yield the lines; raise DataError for a carriage return, which may mean the end of a line."""
    for number, line in enumerate(lines, start=1):
        if "\r" in line:
            raise _lone_return(source, number)
        yield line


def _split_cells(lines: Iterable[str], separator: str, source: str) -> Iterator[NumberedCells]:
    """Split each line that is not blank at the separator, and ``_unquote`` its cells."""
    for number, line in enumerate(refuse_returns(lines, source), start=1):
        if '"' in line:
            yield number, list(map(_unquote, line.split(separator)))
        elif line and not line.isspace():
            yield number, line.split(separator)


def _unquote(cell: str) -> str:
    """Remove the quotes around a cell if all quotes inside are doubled, and there are some.

    Other quotes are kept, because many TSV files hold bare quotes.
    """
    if len(cell) < 2 or cell[0] != '"' or cell[-1] != '"':
        return cell
    parts = cell[1:-1].split('""')
    if len(parts) == 1 or '"' in "".join(parts):
        return cell
    return '"'.join(parts)


def _markdown_cells(lines: Iterable[str]) -> Iterator[NumberedCells]:
    """Yield the cells of a Markdown table, without the dashes and the text around it."""
    for number, line in enumerate(map(str.strip, lines), start=1):
        if "|" in line and not _MARKDOWN_RULE.fullmatch(line):
            cells = _MARKDOWN_BAR.split(line.removeprefix("|").removesuffix("|"))
            yield number, [cell.strip().replace("\\|", "|") for cell in cells]


# ------------------------------------------------------------------ the names
def named_rows(rows: Iterator[NumberedCells], source: str, given: Given) -> Grid:
    """Return the rows as a table whose columns are named by row 1, or else numbered."""
    head = _without_titles(list(islice(rows, SAMPLE_ROWS + 1)))
    if not head:
        return Grid(source, (), iter(()), is_named=True)
    # A row to which ``_with_row_names`` adds a cell is certainly a header.
    header = given.header
    if header is not False and (with_row_names := _with_row_names(head)) is not head:
        head = with_row_names
        header = True
    notes: tuple[str, ...] = ()
    sample = [cells for _, cells in head]

    # If the user does not say, the content decides. If that stays open, the user is asked;
    # commands that never ask read row 1 as data and say so.
    if header is None:
        decision = decide_header(sample, given.columns.values())
        header = decision.found
        if decision.by_look:
            notes = (f"{source}: row 1 is read as the header; if it is data: --no-header",)
        elif header is None:
            if not given.never_asks:
                raise _undecided_header(sample, source)
            notes = (f"{source}: row 1 may be the header: --header, or as data: --no-header",)

    # Without a header, columns are named by their numbers.
    if header:
        columns = _header_names(sample[0])
        del head[0]
    else:
        columns = tuple(map(str, range(1, len(sample[0]) + 1)))
    even_rows = _even_rows(chain(head, rows), len(columns), source)
    return Grid(source, columns, even_rows, is_named=bool(header), notes=notes)


def _undecided_header(rows: Sequence[Sequence[str]], source: str) -> DataError:
    above, below = (" | ".join(row)[:80] for row in rows[:2])
    shown = show_rows(rows[:4])
    return DataError(
        f"{source}: row 1 may be the header: '{above}' above '{below}'\n{shown}",
        hint="row 1 is the header   --header\n        row 1 is data         --no-header",
    )


def _even_rows(
    rows: Iterable[NumberedCells], n_columns: int, source: str
) -> Iterator[NumberedCells]:
    """Yield each row with one cell per column; empty cells at its end are added or cut.

    Raise DataError for a row in which a cell beyond the last column is not empty.
    """
    for number, cells in rows:
        if len(cells) != n_columns:
            if _filled_length(cells) > n_columns:
                raise _uneven_row(source, number, cells, n_columns)
            cells = [*cells[:n_columns], *[""] * (n_columns - len(cells))]
        yield number, cells


def _without_titles(rows: list[NumberedCells]) -> list[NumberedCells]:
    """Return the rows without the titles, at most three, that reports have above a table."""
    for _ in range(3):
        if len(rows) < 3 or not _is_title(rows[0][1], rows[1:]):
            break
        rows = rows[1:]
    return rows


def _with_row_names(rows: list[NumberedCells]) -> list[NumberedCells]:
    """Return the rows of a table from R with an empty cell added in front of the header.

    R begins each row with its number, but gives the column of these numbers no name. Any other
    table is returned as ``rows`` itself. So is one with an id or with few rows, where a text that
    holds the separator would look the same.
    """
    (number, first), *below = rows
    if len(below) < _LEAST_NUMBERED or names.fold(first[0]) in USUAL_NAMES:
        return rows
    # Each row has one cell more than row 1: its number, which no other row has.
    numbers = {cells[0] for _, cells in below if len(cells) == len(first) + 1}
    if len(numbers) < len(below) or not all(map(str.isdecimal, numbers)):
        return rows
    return [(number, ["", *first]), *below]


def _is_title(cells: Sequence[str], below: Sequence[NumberedCells]) -> bool:
    """Tell whether a row is a title: one filled cell above wider rows."""
    if _filled_length(cells) > 1 or any(map(names.is_known, cells)):
        return False
    # One filled cell of two may as well be a pair with an empty text.
    if len(cells) == 2:
        return False
    if len(cells) > 2:
        return True  # only its first cell is filled
    # A line without separators: most rows below must be longer, and at most one as short.
    count_of_length = Counter(len(row) for _, row in below)
    usual_length, _ = count_of_length.most_common(1)[0]
    return usual_length > 1 and count_of_length[1] <= 1


def _header_names(cells: Sequence[str]) -> tuple[str, ...]:
    """Return the names in a header.

    A column without a name, such as the index of pandas, is named ``columnN`` by its number N.
    Columns that share a name get ``.1``, ``.2`` and so on behind it. A number is passed over if
    the header has the name with this number already.
    """
    header = [cell.strip() or f"column{number}" for number, cell in enumerate(cells, start=1)]
    n_columns_of = Counter(header)
    n_seen = Counter[str]()
    for i, name in enumerate(header):
        if n_columns_of[name] > 1:
            n_seen[name] += 1
            while f"{name}.{n_seen[name]}" in n_columns_of:
                n_seen[name] += 1
            header[i] = f"{name}.{n_seen[name]}"
    return tuple(header)
