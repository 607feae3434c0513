"""Find the column that holds the ids of rows, and require that no two ids are equal."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from simcse_cli.data.kinds import cell_text
from simcse_cli.data.text import digest_keys
from simcse_cli.errors import DataError

USUAL_NAMES = ("id", "_id")
"""The usual names of a column of ids; an earlier name takes precedence."""


QUERY_NAMES = (*USUAL_NAMES, "qid", "query-id", "query_id")
"""The same for the ids of queries."""


def usual_column(names: Sequence[str], usual: Sequence[str] = USUAL_NAMES) -> str | None:
    """Return the first of the ``usual`` names that is the name of a column, or None."""
    return next((name for name in usual if name in names), None)


def require_unique(read: Callable[[], Iterable[Any]], place: str, column: str) -> None:
    """Raise DataError if an id is empty, or if two ids are equal; its message names the rows.

    ``read`` returns the ids. Only 8 bytes of each id are kept, so ``read`` is called again to name
    an id that occurs twice.
    """
    hint = "name a column whose values differ: --id-column COLUMN"
    digests = array("Q")
    for row, cell in enumerate(read(), start=1):
        text = cell_text(cell)
        if not text.strip():
            raise DataError(f"{place}: row {row:,} has no id in column {column}", hint=hint)
        digests.append(digest_keys([text]))
    values = np.frombuffer(digests, np.uint64)

    # Report the first row whose id an earlier row has.
    is_repeat = np.ones(len(values), bool)
    is_repeat[np.unique(values, return_index=True)[1]] = False
    if not is_repeat.any():
        return
    second = int(is_repeat.argmax())
    first = int((values == values[second]).argmax())
    text = cell_text(next(islice(read(), first, None)))
    raise DataError(
        f"{place}: rows {first + 1:,} and {second + 1:,} have the id {text!r} in column {column}",
        hint=hint,
    )
