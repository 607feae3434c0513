"""Find texts that repeat one kept before: exactly, nearly, or in meaning.

Each text in turn is compared with those kept so far: either it is kept as well, or it is a
duplicate of the nearest of them. So every duplicate is close to a kept text itself, and not only
to another duplicate.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from simcse_cli.arrays import Floats32
from simcse_cli.data.text import digest_keys, match_key
from simcse_cli.prepare.minhash import NearIndex, Sketch
from simcse_cli.settings.choices import DuplicateKind

_BLOCK = 1024
_TILE = 8192  # kept texts that a block is compared with at once
_N_AXES = 95  # one component for the rest of a vector comes beside them
_SAMPLE = 20_000  # texts that the axes are computed from
_ROUNDING = 1e-4  # bounds may be too low by so much


class Match(NamedTuple):
    """The kept text that a text repeats, by its number, and how similar both are."""

    kept_number: int
    score: float


FoundText = tuple[DuplicateKind, Match]


class Finder(Protocol):
    """Finds the nearest of the texts added so far; texts come in blocks, known by numbers."""

    def look(self, numbers: Sequence[int], texts: Sequence[str]) -> None:
        """Prepare a block of texts for ``find`` and ``add``, which know them by their numbers."""

    def find(self, number: int) -> Match | None:
        """Return the kept text that a text of the block repeats, if there is one."""

    def add(self, number: int) -> None:
        """Keep a text of the block, so that later texts are compared with it."""


class ExactFinder:
    """Texts that are equal up to case, spacing and punctuation; the score is 1."""

    def __init__(self) -> None:
        self._kept: dict[int, int] = {}
        self._keys: dict[int, int] = {}

    def look(self, numbers: Sequence[int], texts: Sequence[str]) -> None:
        self._keys = {}
        for number, text in zip(numbers, texts, strict=True):
            self._keys[number] = digest_keys([match_key(text)])

    def find(self, number: int) -> Match | None:
        kept_number = self._kept.get(self._keys[number])
        return None if kept_number is None else Match(kept_number, 1.0)

    def add(self, number: int) -> None:
        self._kept[self._keys[number]] = number


class NearFinder:
    """Texts that share words and word pairs.

    The score is their Jaccard similarity (``minhash``).
    """

    def __init__(self, threshold: float) -> None:
        self._index = NearIndex(threshold)
        self._kept: list[int] = []
        self._sketches: dict[int, Sketch] = {}

    def look(self, numbers: Sequence[int], texts: Sequence[str]) -> None:
        sketches = self._index.sketch(texts)
        self._sketches = dict(zip(numbers, sketches, strict=True))

    def find(self, number: int) -> Match | None:
        nearest = self._index.nearest(self._sketches[number])
        return None if nearest is None else Match(self._kept[nearest[0]], nearest[1])

    def add(self, number: int) -> None:
        self._index.add(self._sketches[number])
        self._kept.append(number)


class MeaningFinder:
    """Texts whose vectors are close; the score is their cosine.

    Most pairs are far apart, and a bound of few components shows it. With a and b the components
    of two vectors on the first principal axes, and r and s the lengths of their remaining parts
    (Cauchy-Schwarz):

        cosine <= a . b + r s

    Only pairs whose bound reaches the threshold are compared in full.

    Args:
        units: ``(n, D)`` vectors of length 1, a row a text.
        threshold: least cosine.
    """

    def __init__(self, units: Floats32, threshold: float) -> None:
        self._units = units
        self._threshold = threshold
        self._short = _shortened(units)
        self._kept = np.empty_like(self._short)
        self._numbers: list[int] = []
        # Of the current block: `_places` holds the place of each text, `_nearest` its nearest text
        # among those added before the block, `_inside` the cosines within the block, and `_added`
        # the places of the texts that were added since it began.
        self._places: dict[int, int] = {}
        self._nearest: dict[int, Match] = {}
        self._inside = units[:0]
        self._added: list[int] = []

    def look(self, numbers: Sequence[int], texts: Sequence[str]) -> None:
        """Compare a block with all texts added before it, by products of matrices."""
        block = self._units[list(numbers)]
        short = self._short[list(numbers)]
        lowest = self._threshold - _ROUNDING
        self._nearest = {}
        for first in range(0, len(self._numbers), _TILE):
            tile = self._numbers[first : first + _TILE]
            bounds = short @ self._kept[first : first + len(tile)].T
            for place in np.flatnonzero(bounds.max(axis=1) >= lowest).tolist():
                others = [tile[at] for at in np.flatnonzero(bounds[place] >= lowest).tolist()]
                match = _best_match(others, self._units[others] @ block[place])
                number = numbers[place]
                self._nearest[number] = _nearer(self._nearest.get(number), match)
        self._places = {number: place for place, number in enumerate(numbers)}
        self._inside = block @ block.T
        self._added = []

    def find(self, number: int) -> Match | None:
        nearest = self._nearest.get(number)
        if self._added:
            # The texts added from this block are the last ones of `_numbers`.
            others = self._numbers[-len(self._added) :]
            match = _best_match(others, self._inside[self._places[number], self._added])
            nearest = _nearer(nearest, match)
        if nearest is None or nearest.score < self._threshold:
            return None
        return Match(nearest.kept_number, min(1.0, nearest.score))

    def add(self, number: int) -> None:
        self._kept[len(self._numbers)] = self._short[number]
        self._numbers.append(number)
        self._added.append(self._places[number])


def _best_match(numbers: Sequence[int], cosines: Floats32) -> Match:
    best = int(cosines.argmax())
    return Match(numbers[best], float(cosines[best]))


def _nearer(earlier: Match | None, match: Match) -> Match:
    """Return the nearer match; of equally near ones the earlier stays."""
    if earlier is None or match.score > earlier.score:
        return match
    return earlier


def _shortened(units: Floats32) -> Floats32:
    """Return ``(n, m + 1)``: vectors on their first m principal axes, and the length of the rest.

    The product of two rows is at least the cosine of their vectors.
    """
    sample = units[:: max(1, len(units) // _SAMPLE)]
    # Eigenvalues ascend, so that the first principal axes are the last columns.
    _, axes = np.linalg.eigh(sample.T @ sample)
    leading = units @ axes[:, -_N_AXES:].astype(np.float32)
    remaining_length = np.sqrt(np.maximum(0, 1 - (leading**2).sum(axis=1, keepdims=True)))
    return np.hstack([leading, remaining_length])


def find_duplicates(
    order: Sequence[int],
    texts: Sequence[str],
    finders: dict[DuplicateKind, Finder],
    n_known: int = 0,
) -> Iterator[tuple[int, DuplicateKind, Match]]:
    """Yield the number, kind and match of each duplicate; the first kind to find one counts.

    Args:
        order: the numbers of the texts, those to keep first.
        texts: all texts, by their numbers.
        finders: one for each kind.
        n_known: number of texts at the beginning that are kept whatever they repeat.
    """
    for first in range(0, len(order), _BLOCK):
        block = order[first : first + _BLOCK]
        for finder in finders.values():
            finder.look(block, [texts[number] for number in block])
        for place, number in enumerate(block, start=first):
            duplicate = None if place < n_known else _first_match(number, finders)
            if duplicate is not None:
                yield number, *duplicate
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
