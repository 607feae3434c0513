"""Read pair files, which have two texts per row and may have a score.

They may be any table, or one of SentEval's own files.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from simcse_cli.data.formats import InputPath, source_name
from simcse_cli.data.given import NOTHING_GIVEN, Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.kinds import cell_text, is_missing, to_number
from simcse_cli.data.senteval import StsSubset, year_pairs
from simcse_cli.data.table import Table
from simcse_cli.data.text import one_line
from simcse_cli.errors import DataError

SCORED_PAIR = ("left", "right", "score")
PAIR = SCORED_PAIR[:2]
_YEAR_FILE = "STS.input."  # its scores are in STS.gs.*


def iter_pairs(
    source: InputPath,
    given: Given = NOTHING_GIVEN,
    *,
    id_column: str | None = None,
    left_out: Callable[[], object] | None = None,
) -> Iterator[tuple[str, ...]]:
    """Yield the two texts of each row, and its id if ``id_column`` is given.

    A row with an empty text is left out, and ``left_out`` is called for it.
    """
    if id_column is None:
        rows = _iter_rows(source, Job.COSINES, given)
    else:
        rows = _rows_of_table(Table(source, Job.COSINES, given), PAIR, id_column)
    width = 2 if id_column is None else 3
    for _, *row in rows:
        if row[0].strip() and row[1].strip():
            yield tuple(row[:width])
        elif left_out is not None:
            left_out()


def iter_scored_pairs(
    source: InputPath, given: Given = NOTHING_GIVEN
) -> Iterator[tuple[str, str, float]]:
    """Yield the pairs of a file with their scores, of any range.

    Rows with a blank score are left out, and their number is told to the user.
    """
    n_pairs = n_blank = 0
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
            hint = "give the column of scores, for example: --columns left=A,right=B,score=C"
            raise DataError(f"{place}: score {score!r} is not a finite number", hint=hint)
        n_pairs += 1
        left, right = map(one_line, texts)
        yield left, right, value

    # A file without any score is no file of pairs.
    if not n_pairs:
        raise DataError(f"{source_name(source)} holds no pair with a score")
    if n_blank:
        rows = "1 row has" if n_blank == 1 else f"{n_blank:,} rows have"
        given.told.info(f"{source_name(source)}: {rows} no score, not annotated, and left out")


def read_scored_pairs(source: InputPath, given: Given = NOTHING_GIVEN) -> StsSubset:
    return StsSubset.of(iter_scored_pairs(source, given), source)


def _iter_rows(source: InputPath, job: Job, given: Given) -> Iterator[tuple[str, ...]]:
    """Yield ``(place, left, right)`` for each row, and behind these the score if there is one."""
    path = Path(source)
    if path.name.startswith(_YEAR_FILE):
        for left, right, score in year_pairs(path.parent, path.stem.removeprefix(_YEAR_FILE)):
            yield str(path), left, right, str(score)
        return
    roles = SCORED_PAIR if job is Job.SCORED else PAIR
    yield from _rows_of_table(Table(source, job, given), roles)


def _rows_of_table(table: Table, roles: Sequence[str], *columns: str) -> Iterator[tuple[str, ...]]:
    """Yield the place, the two texts, and the cells of other roles and columns of each row."""
    beside = [table.place_of(column) for column in columns]
    for number, cells in table.rows(*roles, beside=beside):
        yield table.place(number), *map(table.text_of, cells[:2]), *map(cell_text, cells[2:])
