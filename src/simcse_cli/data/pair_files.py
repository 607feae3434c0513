"""Read pair files, which have two texts per row and may have a score.

They may be any table, or one of SentEval's own files.
"""

from collections import Counter
from collections.abc import Callable, Iterator
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
    columns = () if id_column is None else (id_column,)
    width = 2 + len(columns)
    for _, *row in _iter_rows(source, Job.COSINES, given, *columns):
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


def _iter_rows(
    source: InputPath, job: Job, given: Given, *columns: str
) -> Iterator[tuple[str, ...]]:
    """Yield the place and the two texts of each row, its score if it has one, and other columns."""
    path = Path(source)
    if path.name.startswith(_YEAR_FILE) and not columns:
        for left, right, score in year_pairs(path.parent, path.stem.removeprefix(_YEAR_FILE)):
            yield str(path), left, right, str(score)
        return
    table = Table(source, job, given)
    beside = [table.place_of(column) for column in columns]
    labels = table.reading.roles.columns.get("label", ())  # of --keep-label, for pairs to compare
    other_labels = Counter[str]()
    has_rows = False
    roles = SCORED_PAIR if job is Job.SCORED else PAIR
    for number, cells in table.rows(*roles, beside=(*beside, *labels)):
        if labels:
            label = cell_text(cells[-1])
            cells = cells[:-1]
            if not table.reading.roles.is_pair(label):
                other_labels[label] += 1
                continue
        has_rows = True
        yield table.place(number), *map(table.text_of, cells[:2]), *map(cell_text, cells[2:])

    # Say what was left out.
    if other_labels and not has_rows:
        shown = ", ".join(sorted(other_labels)[:10])
        what = f"{table.name}: no row has a label to keep; the labels are {shown}"
        raise DataError(what, hint="name one of them: --keep-label LABEL")
    if other_labels:
        unit = "row" if other_labels.total() == 1 else "rows"
        given.told.info(f"{table.name}: left out {other_labels.total():,} {unit} with other labels")
