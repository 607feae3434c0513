"""Read pair files, which have two texts per row and may have a score: any table, and SentEval's own files.

Columns are found by name: ``left``, ``right`` and ``score``, their aliases in ``columns.COLUMN_ALIASES``, or the given
names. In a table of three columns without a header, the texts are the two columns that are not numbers.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from simcse_cli.data.columns import POSITIONAL, Record, find_column, resolve_columns
from simcse_cli.data.formats import FileFormat, InputPath, source_name
from simcse_cli.data.senteval import StsSubset, single_spaced, year_pairs
from simcse_cli.data.table import Table
from simcse_cli.errors import DataError

SCORED_PAIR = ("left", "right", "score")
PAIR = SCORED_PAIR[:2]
_YEAR_FILE = "STS.input."  # its scores are in STS.gs.*


def iter_pairs(
    source: InputPath, columns: Mapping[str, str] | None = None, *, option: str = "--columns"
) -> Iterator[tuple[str, str]]:
    for _, left, right, *_ in _iter_rows(source, PAIR, columns or {}, option):
        yield left, right


def iter_scored_pairs(source: InputPath, columns: Mapping[str, str] | None = None) -> Iterator[tuple[str, str, float]]:
    """Yield the pairs of a file with their scores, of any range; rows with a blank score are skipped."""
    n_pairs = 0
    for place, *texts, score in _iter_rows(source, SCORED_PAIR, columns or {}):
        if not score.strip():
            continue
        for side, text in zip(PAIR, texts, strict=True):
            if not text.strip():
                raise DataError(f"{place}: the {side} text is empty", hint="fill it in, or remove the row")
        if (value := _number(score)) is None:
            hint = "give the column of scores, for example: --columns left=A,right=B,score=C"
            raise DataError(f"{place}: score {score!r} is not a finite number", hint=hint)
        n_pairs += 1
        yield single_spaced(texts[0]), single_spaced(texts[1]), value
    if not n_pairs:
        raise DataError(f"{source_name(source)} holds no pair with a score")


def read_scored_pairs(source: InputPath, columns: Mapping[str, str] | None = None) -> StsSubset:
    return StsSubset.of(iter_scored_pairs(source, columns), source)


def _iter_rows(
    source: InputPath, roles: tuple[str, ...], given: Mapping[str, str], option: str = "--columns"
) -> Iterator[tuple[str, ...]]:
    """Yield ``(place, left, right)``, followed by the score if ``roles`` includes it."""
    path = Path(source)
    if path.name.startswith(_YEAR_FILE):
        for left, right, score in year_pairs(path.parent, path.stem.removeprefix(_YEAR_FILE)):
            yield str(path), left, right, str(score)
        return

    def resolve(record: Record[str]) -> tuple[str, ...]:
        if not given and (found := _by_position(record, roles)):
            return found
        return resolve_columns(record, roles, record.columns_place, _with_label(record, given), option)

    for place, texts in Table(source, text_as=FileFormat.CSV, columns=given.values()).pick(resolve):
        yield place, *texts


def _with_label(record: Record[str], given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the given names; without a column of scores, as in GLUE, that of labels takes its place."""
    label = find_column(record, "label")
    if "score" in given or label is None or find_column(record, "score") is not None:
        return given
    return {**given, "score": label}


def _by_position(record: Record[str], roles: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the roles of three unnamed columns, of which the one with a number is the score; None for other tables."""
    numbers = [name for name in record if _number(record[name]) is not None]
    if tuple(record) != POSITIONAL or len(numbers) != 1:
        return None
    return (*(name for name in record if name not in numbers), *numbers)[: len(roles)]


def _number(text: str) -> float | None:
    text = text.strip().removesuffix("%")
    try:
        value = float(text if "." in text else text.replace(",", "."))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
