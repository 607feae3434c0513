"""Find texts that repeat an earlier text: exactly, nearly, or in meaning.

Each text in turn is compared with the texts kept so far. Either it is kept as well, or it is a
duplicate of the nearest kept text. So every duplicate is close to a kept text, and not only to
another duplicate.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from simcse_cli.arrays import Floats32
from simcse_cli.data.text import digest_keys, match_key
from simcse_cli.prepare.minhash import NearIndex, Sketch
from simcse_cli.settings.choices import DuplicateKind

_BLOCK = 1024  # texts that are looked at together
_TILE = 8192  # kept texts that a block is compared with at once
_N_AXES = 95  # principal axes; with the length of the remaining part, 96 numbers per text
_SAMPLE = 20_000  # about how many texts the axes are computed from
_ROUNDING = 1e-4  # more than the error of a computed bound
_ROUNDING_OF_COSINES = 1e-6  # equal vectors may have a cosine just below 1


class Match(NamedTuple):
    """The number of the kept text that another text repeats, and how similar the two are."""

    kept_number: int
    score: float


FoundText = tuple[DuplicateKind, Match]
"""The kind of a duplicate, and the kept text that it repeats."""


class Finder(Protocol):
    """Compares a text with the texts that were added; texts have numbers and come in blocks."""

    def look(self, numbers: Sequence[int], texts: Sequence[str]) -> None:
        """Prepare a block of texts, given with their numbers, for ``find`` and ``add``."""

    def find(self, number: int) -> Match | None:
        """Return the nearest added text that a text of the block repeats, if there is one."""

    def add(self, number: int) -> None:
        """Keep a text of the block, so that later texts are compared with it."""


class ExactFinder:
    """Find texts that are equal up to case, spacing and punctuation; the score is 1."""

    def __init__(self) -> None:
        self._kept: dict[int, int] = {}  # from the digest of a kept text to its number
        self._digests: dict[int, int] = {}  # from a number in the block to the text's digest

    def look(self, numbers: Sequence[int], texts: Sequence[str]) -> None:
        self._digests = {}
        for number, text in zip(numbers, texts, strict=True):
            self._digests[number] = digest_keys([match_key(text)])

    def find(self, number: int) -> Match | None:
        kept_number = self._kept.get(self._digests[number])
        return None if kept_number is None else Match(kept_number, 1.0)

    def add(self, number: int) -> None:
        self._kept[self._digests[number]] = number


class NearFinder:
    """Find texts that share words and word pairs.

    The score is their Jaccard similarity (``minhash``).
    """

    def __init__(self, threshold: float) -> None:
        self._index = NearIndex(threshold)
        self._kept: list[int] = []  # the number of each text in the index
        self._sketches: dict[int, Sketch] = {}  # of the current block, by number

    def look(self, numbers: Sequence[int], texts: Sequence[str]) -> None:
        sketches = self._index.sketch(texts)
        self._sketches = dict(zip(numbers, sketches, strict=True))

    def find(self, number: int) -> Match | None:
        nearest = self._index.nearest(self._sketches[number])
        if nearest is None:
            return None
        place, similarity = nearest
        return Match(self._kept[place], similarity)

    def add(self, number: int) -> None:
        self._index.add(self._sketches[number])
        self._kept.append(number)


class MeaningFinder:
    """Find texts whose vectors are close; the score is their cosine.

    Most pairs are far apart, and a bound from a few components is enough to show this. Let a and b
    be the components of two vectors on the first principal axes, and r and s the lengths of their
    remaining parts. Then, by Cauchy-Schwarz,

        cosine <= a . b + r s

    Only pairs whose bound reaches the threshold are compared in full.

    Args:
        units: vectors of length 1, ``(n, D)``; row i is of text i.
        threshold: least cosine of a duplicate.
        left_out: numbers of texts that are compared with no other text.
    """

    def __init__(self, units: Floats32, threshold: float, left_out: Collection[int] = ()) -> None:
        self._units = units
        self._threshold = threshold
        self._left_out = frozenset(left_out)
        self._short = _shortened(units)
        # The short vectors and the numbers of the texts that were added.
        self._kept = np.empty_like(self._short)
        self._numbers: list[int] = []
        # The current block of texts:
        self._places: dict[int, int] = {}  # from the number of a text to its place in the block
        self._nearest: dict[int, Match] = {}  # by number, the nearest text added before the block
        self._inside = units[:0]  # cosines: entry (i, j) is that of places i and j
        self._added: list[int] = []  # the places whose texts were added

    def look(self, numbers: Sequence[int], texts: Sequence[str]) -> None:
        """Begin a block; find for each of its texts the nearest of the texts added so far."""
        block = self._units[list(numbers)]
        short = self._short[list(numbers)]
        lowest = self._threshold - _ROUNDING
        self._nearest = {}
        for first in range(0, len(self._numbers), _TILE):
            tile = self._numbers[first : first + _TILE]
            # Entry (i, j) bounds the cosine of text i of the block and text j of the tile.
            bounds = short @ self._kept[first : first + len(tile)].T
            for place in np.flatnonzero(bounds.max(axis=1) >= lowest).tolist():
                near = np.flatnonzero(bounds[place] >= lowest).tolist()
                others = [tile[tile_place] for tile_place in near]
                match = _best_match(others, self._units[others] @ block[place])
                number = numbers[place]
                self._nearest[number] = _nearer(self._nearest.get(number), match)
        self._places = {number: place for place, number in enumerate(numbers)}
        self._inside = block @ block.T
        self._added = []

    def find(self, number: int) -> Match | None:
        if number in self._left_out:
            return None
        nearest = self._nearest.get(number)
        if self._added:
            # The texts added from this block are the last ones of `_numbers`.
            others = self._numbers[-len(self._added) :]
            match = _best_match(others, self._inside[self._places[number], self._added])
            nearest = _nearer(nearest, match)
        if nearest is None or nearest.score < self._threshold - _ROUNDING_OF_COSINES:
            return None
        return Match(nearest.kept_number, min(1.0, nearest.score))  # rounding may exceed 1

    def add(self, number: int) -> None:
        if number in self._left_out:
            return
        self._kept[len(self._numbers)] = self._short[number]
        self._numbers.append(number)
        self._added.append(self._places[number])


def _best_match(numbers: Sequence[int], cosines: Floats32) -> Match:
    best = int(cosines.argmax())
    return Match(numbers[best], float(cosines[best]))


def _nearer(earlier: Match | None, later: Match) -> Match:
    """Return the match with the higher score, or the earlier match if both scores are equal."""
    if earlier is None or later.score > earlier.score:
        return later
    return earlier


def _shortened(units: Floats32) -> Floats32:
    """Shorten vectors ``(n, D)`` of length 1 to m + 1 numbers each.

    These are the components on the first m principal axes, and the length of the remaining part.
    The inner product of two rows of the result is at least the cosine of their vectors.
    """
    sample = units[:: max(1, len(units) // _SAMPLE)]
    # Eigenvalues ascend, so the first principal axes are the last columns.
    _, axes = np.linalg.eigh(sample.T @ sample)
    leading = units @ axes[:, -_N_AXES:].astype(np.float32)
    remaining_length = np.sqrt(np.maximum(0, 1 - (leading**2).sum(axis=1, keepdims=True)))
    return np.hstack([leading, remaining_length])


def find_duplicates(
    order: Sequence[int],
    texts: Sequence[str],
    finders: dict[DuplicateKind, Finder],
    n_known: int = 0,
) -> Iterator[tuple[int, FoundText]]:
    """Yield the number of each duplicate, and what it repeats.

    Args:
        order: the numbers of the texts to compare; a text can only repeat an earlier one.
        texts: all texts; text i has the number i.
        finders: a finder for each kind; the first finder that finds a match decides the kind.
        n_known: this many texts at the beginning of ``order`` are kept, even if they repeat a text.
    """
    for first in range(0, len(order), _BLOCK):
        block = order[first : first + _BLOCK]
        for finder in finders.values():
            finder.look(block, [texts[number] for number in block])
        for place, number in enumerate(block, start=first):
            duplicate = None if place < n_known else _first_match(number, finders)
            if duplicate is not None:
                yield number, duplicate
                continue
            for finder in finders.values():
                finder.add(number)


def _first_match(number: int, finders: dict[DuplicateKind, Finder]) -> FoundText | None:
    """Return the kind and the match of the first finder that finds one."""
    for kind, finder in finders.items():
        match = finder.find(number)
        if match is not None:
            return kind, match
    return None
