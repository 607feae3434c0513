"""The sentence pairs with gold ratings on which an embedding space is measured."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simcse_cli.data.readers import Record, find_column, iter_records, resolve_columns
from simcse_cli.data.senteval import read_sts_task
from simcse_cli.errors import DataError

RATING_NAMES = ("score", "rating", "gold", "similarity", "label")


@dataclass(frozen=True)
class RatedPairs:
    """Pairs with ratings: row i of ``left``, ``right``, ``gold`` and ``is_test`` belong together.

    ``is_test`` marks the pairs on which a model is scored (the STS-B test set); all of them in a file of
    one's own.
    """

    name: str
    left: list[str]
    right: list[str]
    gold: NDArray[np.float64]
    is_test: NDArray[np.bool_]

    @property
    def sentences(self) -> list[str]:
        """All left sentences, then all right ones; repeated sentences are kept."""
        return self.left + self.right


def read_whole_stsb(data_dir: Path | str) -> RatedPairs:
    """Return train, dev and test pairs of STS-B: 8,628 pairs, 17,256 sentences in the full data.

    Raises:
        DataError: a file is missing or malformed.
    """
    left: list[str] = []
    right: list[str] = []
    gold: list[NDArray[np.float64]] = []
    is_test: list[bool] = []
    for split in ("train", "dev", "test"):
        (subset,) = read_sts_task(data_dir, "STSBenchmark", split=split).subsets.values()
        left += subset.left
        right += subset.right
        gold.append(subset.gold)
        is_test += [split == "test"] * subset.n_pairs
    return RatedPairs("STS-B", left, right, np.concatenate(gold), np.array(is_test))


def read_rated_file(path: Path) -> RatedPairs:
    """Return the pairs of a table with two sentence columns and a rating.

    Columns are found by the usual names: ``anchor`` and ``positive``, ``sentence1`` and ``sentence2``, ...;
    the rating is called ``score``, ``rating``, ``gold``, ``similarity`` or ``label``.

    Raises:
        DataError: no such columns, no rows, or a rating that is no number; names the line.
    """
    left, right, gold = [], [], []
    for number, record in iter_records(path):
        place = f"{path}, line {number}"
        first, second = resolve_columns(record, ("anchor", "positive"), place)
        left.append(record[first])
        right.append(record[second])
        gold.append(_rating(record, place))
    if not gold:
        raise DataError(f"{path} has no rows")
    return RatedPairs(path.name, left, right, np.array(gold), np.ones(len(gold), dtype=bool))


def _rating(record: Record, place: str) -> float:
    name = next((column for column in RATING_NAMES if find_column(record, column)), None)
    if name is None:
        raise DataError(
            f"{place}: the columns are {', '.join(record)}, need a rating",
            hint=f"name the column of ratings one of {', '.join(RATING_NAMES)}",
        )
    text = record[find_column(record, name) or name]
    try:
        return float(text)
    except ValueError:
        raise DataError(f"{place}: rating {text!r} is not a number") from None
