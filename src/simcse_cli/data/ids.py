"""Ids of rows, which must differ."""

from array import array
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import numpy as np

from simcse_cli.data.kinds import cell_text
from simcse_cli.data.text import digest_keys
from simcse_cli.errors import DataError


def require_unique(read: Callable[[], Iterable[Any]], place: str, column: str) -> None:
    """Raise DataError, which names two rows, unless all ids differ.

    ``read`` returns the ids; it is called again to name the repeated one, as only 8 bytes are held
    for each id.
    """
    digests = array("Q")
    for cell in read():
        digests.append(digest_keys([cell_text(cell)]))
    values = np.frombuffer(digests, np.uint64)

    # Among equal values, a stable order has the earlier row first.
    order = np.argsort(values, kind="stable")
    repeats = np.flatnonzero(values[order][1:] == values[order][:-1])
    if not len(repeats):
        return
    # Report the repeat that comes first in the input.
    at = repeats[order[repeats + 1].argmin()]
    first, second = order[at : at + 2].tolist()
    cell = cell_text(next(islice(read(), first, None)))
    shared_id = f"the id {cell!r}" if cell.strip() else "no id"
    raise DataError(
        f"{place}: rows {first + 1:,} and {second + 1:,} have {shared_id} in column {column}",
        hint="name a column whose values differ: --id-column COLUMN",
    )
