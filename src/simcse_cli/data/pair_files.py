"""Read pair files, which have two texts per row and may have a score.

They may be any table, or one of SentEval's own files.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from simcse_cli.data.facts import MOST_VALUES
from simcse_cli.data.formats import InputPath, source_name
from simcse_cli.data.given import NOTHING_GIVEN, Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.judges import require_scores
from simcse_cli.data.kinds import cell_text, is_missing, to_number
from simcse_cli.data.senteval import StsSubset, year_rows, year_texts
from simcse_cli.data.table import Table
from simcse_cli.data.text import one_line
from simcse_cli.errors import DataError

SCORED_PAIR = ("left", "right", "score")
PAIR = SCORED_PAIR[:2]
_YEAR_FILE = "STS.input."  # its scores, if a job needs them, are in STS.gs.*
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")  # 1,000 may be a thousand, or 1
_OF_DIGITS = re.compile(r"[+-]?\d[\d.,'\s]*%?")
_LEAST_GROUPED = 100  # beside a whole number from here on, 1,000 may be a thousand


class _Spellings:
    """How the numbers of a column are spelled, to find two spellings that do not go together."""

    def __init__(self) -> None:
        # The place and the text of the first cell of each kind. A cell is plain or percent; and
        # grouped (1,234), grouped with a last 0 (1,230), decimal (1,5), large (100) or small (99).
        self._first: dict[str, tuple[str, str]] = {}

    def add(self, place: str, text: str) -> None:
        """Keep the first number of each kind, here and for ``has_decimal_commas``.

        Raise DataError if only some numbers have a percent sign.
        """
        text = text.strip()
        digits = text.removesuffix("%").strip()
        kind = "plain" if digits == text else "percent"
        self._first.setdefault(kind, (place, text))
        if {"plain", "percent"} <= self._first.keys():
            plain_place, plain = self._first["plain"]
            percent_place, percent = self._first["percent"]
            raise DataError(
                f"{plain_place}: score {plain!r} has no percent sign, but {percent!r} has one "
                f"({percent_place}), need one spelling",
                hint="give all scores a percent sign or none; 90% is 0.9",
            )

        if _GROUPED.fullmatch(digits):
            ends_in_0 = digits.endswith("0")
            self._first.setdefault("grouped, last 0" if ends_in_0 else "grouped", (place, text))
        elif "," in digits:
            self._first.setdefault("decimal", (place, text))
        elif digits.isdecimal():
            is_large = int(digits) >= _LEAST_GROUPED
            self._first.setdefault("large" if is_large else "small", (place, text))

    def has_decimal_commas(self) -> bool:
        """Tell whether the scores have decimal commas, such as 0,5.

        Raise DataError if the commas may separate thousands instead: if three digits follow each
        comma (1,234), and another score is a whole number of at least 100 without a comma. If a
        number with a comma ends in 0 (1,250), as few fractions do, any whole number is enough.
        """
        first = self._first
        grouped = first.get("grouped, last 0", first.get("grouped"))
        if grouped is None or "decimal" in first:
            return "decimal" in first
        whole = first.get("large")
        if whole is None and "grouped, last 0" in first:
            whole = first.get("small")
        if whole is None:
            return True
        place, number = grouped
        whole_place, whole_number = whole
        raise DataError(
            f"{place}: score {number!r} may be a thousand or a fraction beside "
            f"{whole_number!r} ({whole_place}), need one spelling",
            hint=f"write {number.replace(',', '')} if the comma separates thousands, "
            f"and {number.replace(',', '.')} if it is a decimal point",
        )


def iter_pairs(
    source: InputPath,
    given: Given = NOTHING_GIVEN,
    *,
    id_column: str | None = None,
    left_out: Callable[[], object] | None = None,
) -> Iterator[tuple[str, ...]]:
    """Yield the two texts of each row, and its id if ``id_column`` is given.

    A row with an empty text is left out, and ``left_out`` is called for it. If all rows are left
    out, DataError is raised.
    """
    columns = () if id_column is None else (id_column,)
    n_pairs = n_left_out = 0
    for _, *row in _iter_rows(source, Job.COSINES, given, *columns):
        if row[0].strip() and row[1].strip():
            n_pairs += 1
            yield tuple(row)
            continue
        n_left_out += 1
        if left_out is not None:
            left_out()
    if n_left_out and not n_pairs:
        raise DataError(f"{source_name(source)}: every row has an empty text, need pairs of texts")


def iter_scored_pairs(
    source: InputPath, given: Given = NOTHING_GIVEN
) -> Iterator[tuple[str, str, float]]:
    """Yield the pairs of a file with their scores, of any range.

    Rows with a blank score are left out, and their number is told to the user.
    """
    n_pairs = n_blank = 0
    scores = set[float]()
    minus_1_place = ""  # the first row with the score -1
    spellings = _Spellings()
    for place, *texts, score in _iter_rows(source, Job.SCORED, given):
        if is_missing(score):
            n_blank += 1
            continue

        # A pair with a score needs both texts.
        for side, text in zip(PAIR, texts, strict=True):
            if not text.strip():
                what = f"{place}: the {side} text is empty"
                raise DataError(what, hint="fill it in, or remove the row")
        value = to_number(score)
        if value is None:
            hint = _score_hint(score, given)
            raise DataError(f"{place}: score {score!r} is not a finite number", hint=hint)
        spellings.add(place, score)
        scores.add(value)
        if value == -1 and not minus_1_place:
            minus_1_place = place
        n_pairs += 1
        left, right = map(one_line, texts)
        yield left, right, value

    # A file without any score is no file of pairs.
    if not n_pairs:
        raise DataError(f"{source_name(source)} holds no pair with a score")
    # If -1 is the only negative score, it hardly belongs to the scale, unless 1 is the highest one.
    others = scores - {-1}
    if minus_1_place and len(others) > 1 and min(others) >= 0 and max(others) > 1:
        raise DataError(
            f"{minus_1_place}: score -1 beside scores from {min(others):g} to {max(others):g}, "
            "need an empty cell where there is no score",
            hint="leave these cells empty, or add 1 to all scores if -1 is one",
        )
    if n_blank:
        rows = "1 row has" if n_blank == 1 else f"{n_blank:,} rows have"
        given.told.info(f"{source_name(source)}: {rows} no score, not annotated, and left out")
    if spellings.has_decimal_commas():
        given.told.info(f"{source_name(source)}: commas in scores are read as decimal points")


def _score_hint(score: str, given: Given) -> str:
    """Return how to mend a cell of the column of scores that is no finite number."""
    if _OF_DIGITS.fullmatch(score.strip()):
        return "write numbers such as 1000.5, without thousands separators"
    # A number such as inf shows that the column is the right one.
    is_number = False
    with suppress(ValueError):
        float(score)
        is_number = True
    if is_number or "score" in given.columns:
        return "write a number there, or leave the cell empty to leave the row out"
    return "give the column of scores, for example: --columns left=A,right=B,score=C"


def read_scored_pairs(source: InputPath, given: Given = NOTHING_GIVEN) -> StsSubset:
    return StsSubset.of(iter_scored_pairs(source, given), source)


def _iter_rows(
    source: InputPath, job: Job, given: Given, *columns: str
) -> Iterator[tuple[str, ...]]:
    """Yield each row as a tuple: its place, its two texts, and its cells in ``columns``.

    If ``job`` needs scores, the score comes behind the texts. With --keep-label, rows with other
    labels are left out.
    """
    path = Path(source)
    if path.name.startswith(_YEAR_FILE) and not columns:
        read = year_rows if job is Job.SCORED else year_texts
        for place, left, right, *score in read(path.parent, path.stem.removeprefix(_YEAR_FILE)):
            yield place, one_line(left), one_line(right), *score
        return
    table = Table(source, job, given)
    beside = [table.place_of(column) for column in columns]
    # A column of labels is read here only if --keep-label chooses rows by it.
    label_places = table.reading.roles.columns.get("label", ())
    other_labels = Counter[str]()
    has_rows = False
    scores = set[str]()  # until there are too many different ones for classes
    roles = SCORED_PAIR if job is Job.SCORED else PAIR
    for number, cells in table.rows(*roles, beside=(*beside, *label_places)):
        if label_places:
            label = cell_text(cells[-1])
            cells = cells[:-1]
            if not table.reading.roles.is_pair(label):
                other_labels[label] += 1
                continue
        has_rows = True
        # The score, if the job needs it, and the cells in ``columns``.
        others = list(map(cell_text, cells[2:]))
        if job is Job.SCORED and len(scores) <= MOST_VALUES and not is_missing(others[0]):
            scores.add(others[0].strip())
        yield table.place(number), *map(table.text_of, cells[:2]), *others
    # Rows of a class may come late, so only all rows show whether the scores may be classes.
    if len(scores) > 1:
        require_scores(table.reading.grid, given, table.reading.roles, scores)

    # Say what was left out.
    if other_labels and not has_rows:
        shown = ", ".join(sorted(other_labels)[:10])
        what = f"{table.name}: no row has a label to keep; the labels are {shown}"
        raise DataError(what, hint="name one of them: --keep-label LABEL")
    if other_labels:
        unit = "row" if other_labels.total() == 1 else "rows"
        given.told.info(f"{table.name}: left out {other_labels.total():,} {unit} with other labels")
