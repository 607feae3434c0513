"""Lexical overlap of the pairs of a file, pair by pair; the measure itself is in ``data.text``."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simcse_cli.data.readers import read_rows
from simcse_cli.data.text import overlap_f1
from simcse_cli.progress import Progress, SilentProgress


@dataclass(frozen=True)
class PairOverlaps:
    """F1 between the words of the two sides of every pair of a file, ``(N,)`` in [0, 1]."""

    name: str
    values: NDArray[np.float64]

    @property
    def n_pairs(self) -> int:
        """Number of pairs."""
        return len(self.values)

    def summary(self) -> dict[str, float]:
        """Return mean and quartiles, fractions."""
        q25, median, q75 = np.quantile(self.values, (0.25, 0.5, 0.75))
        return {
            "mean": float(self.values.mean()),
            "q25": float(q25),
            "median": float(median),
            "q75": float(q75),
        }


def read_overlaps(
    source: Path,
    name: str,
    columns: tuple[str, str] = ("anchor", "positive"),
    *,
    multiset: bool = True,
    progress: Progress | None = None,
) -> PairOverlaps:
    """Return the overlap of the two named columns of a table (``docs/analysis.md``, overlap).

    Raises:
        DataError: unreadable file, a column is missing, or there are no rows.
    """
    rows = read_rows(source, columns)
    with (progress or SilentProgress()).task(f"overlap of {name}", len(rows)) as task:
        values = np.empty(len(rows))
        for row, (left, right) in enumerate(rows):
            values[row] = overlap_f1(left, right, multiset=multiset)
            task.advance()
    return PairOverlaps(name, values)
