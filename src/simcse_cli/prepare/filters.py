"""Clean rows, drop rows for stated reasons, and sample rows.

A row is a tuple of one to three texts: a sentence, a pair, or a pair with a hard negative.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

from simcse_cli.data.text import clean_text, count_words, digest_keys, match_key
from simcse_cli.data.writers import Row
from simcse_cli.encoding.parts import windows
from simcse_cli.prepare.finders import NearFinder

RowFilter = Callable[[Sequence[Row]], list[str | None]]
"""A function that returns for each row a reason to drop it, or None to keep it.

The function may remember the rows of earlier calls.
"""

_BATCH_ROWS = 1024


@dataclass
class RowCounts:
    """Numbers of rows.

    ``input_rows`` are the rows of the inputs, and ``read`` the rows that were made from them.
    ``read`` is ``kept`` plus the sum of ``dropped``, which counts rows by reason. ``input_rows`` is
    None if it takes several rows of the inputs to make one.
    """

    input_rows: int | None = None
    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def filter_rows(
    rows: Iterable[Row], filters: Sequence[RowFilter], counts: RowCounts
) -> Iterator[Row]:
    """Yield the rows that every filter keeps, and count them.

    A dropped row does not reach later filters.
    """
    for batch in windows(rows, _BATCH_ROWS):
        counts.read += len(batch)
        remaining: Sequence[Row] = batch
        for row_filter in filters:
            kept: list[Row] = []
            reasons = row_filter(remaining) if remaining else []
            for row, reason in zip(remaining, reasons, strict=True):
                if reason is None:
                    kept.append(row)
                else:
                    counts.dropped[reason] += 1
            remaining = kept
        counts.kept += len(remaining)
        yield from remaining


def clean_rows(rows: Iterable[Row]) -> Iterator[Row]:
    return (tuple(clean_text(text) for text in row) for row in rows)


def _by_row(reason_of: Callable[[Row], str | None]) -> RowFilter:
    """Make a filter from a function that returns the reason to drop a single row, or None."""
    return lambda rows: list(map(reason_of, rows))


@_by_row
def drop_empty(row: Row) -> str | None:
    return None if all(row) else "empty"


@_by_row
def drop_self_negatives(row: Row) -> str | None:
    """Drop triplets in which the hard negative has the match key of the positive."""
    if len(row) > 2 and match_key(row[1]) == match_key(row[2]):
        return "positive_is_hard_negative"
    return None


def drop_by_length(min_words: int | None, max_words: int | None) -> RowFilter:
    """Return a filter that drops rows in which a text has too few or too many words."""

    @_by_row
    def reason(row: Row) -> str | None:
        lengths = list(map(count_words, row))
        if min_words is not None and min(lengths) < min_words:
            return "too_short"
        if max_words is not None and max(lengths) > max_words:
            return "too_long"
        return None

    return reason


def drop_duplicates() -> RowFilter:
    """Return a filter that drops rows with the same match keys as an earlier row.

    The filter takes 80 bytes per row.
    """
    seen: set[int] = set()

    @_by_row
    def reason(row: Row) -> str | None:
        digest = digest_keys(map(match_key, row))
        if digest in seen:
            return "duplicate"
        seen.add(digest)
        return None

    return reason


def drop_near_duplicates(threshold: float) -> RowFilter:
    """Return a filter that drops near duplicates of kept rows; a row is compared as one text.

    ``threshold`` is the least similarity of near duplicates.
    """
    finder = NearFinder(threshold)
    numbers = count()

    def reasons(rows: Sequence[Row]) -> list[str | None]:
        block = list(islice(numbers, len(rows)))
        finder.look(block, [" ".join(row) for row in rows])
        block_reasons: list[str | None] = []
        for number in block:
            is_near = finder.find(number) is not None
            block_reasons.append("near_duplicate" if is_near else None)
            if not is_near:
                finder.add(number)
        return block_reasons

    return reasons


def sample_rows(
    rows: Iterable[Row], size: int, *, seed: int, keep_order: bool = False
) -> list[Row]:
    """Draw ``size`` rows uniformly without replacement in one pass; return all if there are fewer.

    Memory grows with ``size``, not with the corpus (Vitter 1985, algorithm R). The rows are in
    random order, or with ``keep_order`` in the order of the input.
    """
    rng = random.Random(seed)
    numbered = enumerate(rows)
    reservoir = list(islice(numbered, size))
    for position, row in numbered:
        # The row is drawn with probability size / (position + 1).
        slot = int(rng.random() * (position + 1))
        if slot < size:
            reservoir[slot] = (position, row)
    reservoir.sort()  # by position
    if not keep_order:
        rng.shuffle(reservoir)
    return [row for _, row in reservoir]
