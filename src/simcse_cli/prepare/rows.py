"""Rows on their way from a corpus to a training file: filters that say why they drop one, and sampling.

A row is a tuple of one to three texts: a sentence, a pair, or a pair with a hard negative.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Protocol

from simcse_cli.data.text import clean_text, match_key
from simcse_cli.data.writers import Row
from simcse_cli.prepare.minhash import NearIndex

BATCH_ROWS = 1024


@dataclass
class RowCounts:
    """How many rows were read and kept, and how many each reason dropped; read = kept + sum of dropped."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


class RowFilter(Protocol):
    """Looks at rows in their order; may remember what it has seen."""

    def reasons(self, rows: Sequence[Row]) -> list[str | None]:
        """Return for each row why it is dropped, or None to keep it."""


def filter_rows(rows: Iterable[Row], filters: Sequence[RowFilter], counts: RowCounts) -> Iterator[Row]:
    """Yield the rows that every filter keeps, and count; what one filter drops the next one does not see."""
    stream = iter(rows)
    while batch := list(islice(stream, BATCH_ROWS)):
        counts.read += len(batch)
        for row_filter in filters:
            reasons = row_filter.reasons(batch) if batch else []
            counts.dropped.update(reason for reason in reasons if reason is not None)
            batch = [row for row, reason in zip(batch, reasons, strict=True) if reason is None]
        counts.kept += len(batch)
        yield from batch


def clean_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows with every text on one line and without control characters."""
    return (tuple(clean_text(text) for text in row) for row in rows)


class DropEmpty:
    """Drops rows in which a text is empty."""

    def reasons(self, rows: Sequence[Row]) -> list[str | None]:
        """Return ``empty`` for rows with an empty text."""
        return [None if all(row) else "empty" for row in rows]


@dataclass
class DropByLength:
    """Drops rows in which a text has fewer or more words (separated by white space) than allowed."""

    min_words: int | None = None
    max_words: int | None = None

    def reasons(self, rows: Sequence[Row]) -> list[str | None]:
        """Return ``too_short`` or ``too_long``."""
        return [self._reason(row) for row in rows]

    def _reason(self, row: Row) -> str | None:
        lengths = [len(text.split()) for text in row]
        if self.min_words is not None and min(lengths) < self.min_words:
            return "too_short"
        if self.max_words is not None and max(lengths) > self.max_words:
            return "too_long"
        return None


class DropSelfNegative:
    """Drops triplets whose positive and hard negative are the same: no embedding can tell them apart."""

    def reasons(self, rows: Sequence[Row]) -> list[str | None]:
        """Return ``positive_is_hard_negative`` for such rows."""
        return [
            "positive_is_hard_negative" if len(row) > 2 and match_key(row[1]) == match_key(row[2]) else None
            for row in rows
        ]


def digest_keys(keys: Iterable[str]) -> int:
    """Return 64 bits that stand for the match keys of a row, column by column."""
    joined = "\x1f".join(keys).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(joined, digest_size=8).digest(), "big")


class DropDuplicates:
    """Drops rows that repeat an earlier one up to case, spacing and punctuation; about 80 bytes per row."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def reasons(self, rows: Sequence[Row]) -> list[str | None]:
        """Return ``duplicate`` for every row after the first of its kind."""
        return [self._reason(digest_keys(map(match_key, row))) for row in rows]

    def _reason(self, digest: int) -> str | None:
        if digest in self._seen:
            return "duplicate"
        self._seen.add(digest)
        return None


class DropNearDuplicates:
    """Drops rows that are near an earlier kept one; the texts of a row are compared as one."""

    def __init__(self, threshold: float) -> None:
        self._index = NearIndex(threshold)

    def reasons(self, rows: Sequence[Row]) -> list[str | None]:
        """Return ``near_duplicate`` for rows near an earlier kept one."""
        reasons: list[str | None] = []
        for sketch in self._index.sketch([" ".join(row) for row in rows]):
            if self._index.find(sketch):
                reasons.append("near_duplicate")
            else:
                self._index.add(sketch)
                reasons.append(None)
        return reasons


def sample_rows(rows: Iterable[Row], size: int, *, seed: int, keep_order: bool = False) -> list[Row]:
    """Return ``size`` rows drawn uniformly without replacement, or all when there are no more; one pass.

    Memory grows with ``size``, not with the corpus (Vitter 1985, algorithm R). The order is random, or that
    of the input with ``keep_order``.
    """
    rng = random.Random(seed)
    reservoir: list[tuple[int, Row]] = []
    for position, row in enumerate(rows):
        if position < size:
            reservoir.append((position, row))
        elif (slot := int(rng.random() * (position + 1))) < size:
            reservoir[slot] = (position, row)
    reservoir.sort()
    if not keep_order:
        rng.shuffle(reservoir)
    return [row for _, row in reservoir]


def choose(options: Sequence[str], *, seed: int, key: str) -> str:
    """Return one of the options by a hash of seed and key: the same whatever else is read, in any order."""
    digest = blake2b(f"{seed}\x1f{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return options[int.from_bytes(digest, "big") % len(options)]
