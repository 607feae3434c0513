"""Find the text that a text repeats among those kept so far: exactly, nearly, or in meaning.

Texts are taken in turn, and each is compared with those kept so far: it is kept itself, or it is a
duplicate of the nearest of them. So nothing is a duplicate by a chain of others, and a text is
never left out for one that is left out itself.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from simcse_cli.data.text import digest_keys, match_key
from simcse_cli.prepare.minhash import NearIndex, Sketch
from simcse_cli.settings.choices import DuplicateKind

_BLOCK = 1024
_TILE = 8192  # kept texts that a block is compared with at once


class Match(NamedTuple):
    """The kept text that a text repeats, by its number, and how similar both are."""

    of: int
    score: float


FoundText = tuple[DuplicateKind, Match]


class Finder(Protocol):
    """Finds the nearest of the texts that were added, in blocks of consecutive numbers."""

    def look(self, numbers: Sequence[int], texts: Sequence[str]) -> None:
        """Prepare for a block of texts, which are then asked for in turn by their numbers."""

    def find(self, number: int) -> Match | None: ...

    def add(self, number: int) -> None: ...


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
        of = self._kept.get(self._keys[number])
        return None if of is None else Match(of, 1.0)

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
        found = self._index.nearest(self._sketches[number])
        return None if found is None else Match(self._kept[found[0]], found[1])

    def add(self, number: int) -> None:
        self._index.add(self._sketches[number])
        self._kept.append(number)


class MeaningFinder:
    """Texts whose vectors are close; the score is their cosine.

    Args:
        units: ``(n, D)`` vectors of length 1, a row a text.
        threshold: least cosine.
    """

    def __init__(self, units: NDArray[np.float32], threshold: float) -> None:
        self._units, self._threshold = units, threshold
        self._kept = np.empty_like(units)
        self._numbers: list[int] = []
        # Of the current block: the place of each text, its nearest among the texts added before
        # the block, with the cosine, the cosines inside of the block, and the places added.
        self._places: dict[int, int] = {}
        self._nearest: list[tuple[int, float]] = []
        self._inside = units[:0]
        self._added: list[int] = []

    def look(self, numbers: Sequence[int], texts: Sequence[str]) -> None:
        """Compare a block with all texts added before it, by products of matrices."""
        block = self._units[list(numbers)]
        nearest = np.zeros(len(block), dtype=np.int64)
        scores = np.full(len(block), -np.inf, dtype=np.float32)
        for first in range(0, len(self._numbers), _TILE):
            cosines = block @ self._kept[first : min(first + _TILE, len(self._numbers))].T
            columns = cosines.argmax(axis=1)
            found = cosines[np.arange(len(block)), columns]
            is_nearer = found > scores
            nearest[is_nearer] = first + columns[is_nearer]
            scores[is_nearer] = found[is_nearer]
        self._nearest = list(zip(nearest.tolist(), scores.tolist(), strict=True))
        self._places = {number: place for place, number in enumerate(numbers)}
        self._inside = block @ block.T
        self._added = []

    def find(self, number: int) -> Match | None:
        place = self._places[number]
        nearest, score = self._nearest[place]
        if self._added:
            cosines = self._inside[place, self._added]
            best = int(cosines.argmax())
            if cosines[best] > score:
                nearest = len(self._numbers) - len(self._added) + best
                score = float(cosines[best])
        if score < self._threshold:
            return None
        return Match(self._numbers[nearest], min(1.0, score))

    def add(self, number: int) -> None:
        self._kept[len(self._numbers)] = self._units[number]
        self._numbers.append(number)
        self._added.append(self._places[number])


def find_duplicates(
    order: Sequence[int],
    texts: Sequence[str],
    finders: dict[DuplicateKind, Finder],
    n_known: int = 0,
) -> Iterator[tuple[int, DuplicateKind, Match]]:
    """Yield the number of each duplicate, with what it repeats; the first kind that finds counts.

    Args:
        order: the numbers of the texts, those to keep first.
        texts: all texts, by their numbers.
        finders: one for each kind.
        n_known: so many texts at the beginning are kept whatever they repeat, and not yielded.
    """
    for first in range(0, len(order), _BLOCK):
        block = order[first : first + _BLOCK]
        for finder in finders.values():
            finder.look(block, [texts[number] for number in block])
        for place, number in enumerate(block, start=first):
            found = None if place < n_known else _first_match(number, finders)
            if found is not None:
                yield number, *found
                continue
            for finder in finders.values():
                finder.add(number)


def _first_match(number: int, finders: dict[DuplicateKind, Finder]) -> FoundText | None:
    for kind, finder in finders.items():
        match = finder.find(number)
        if match is not None:
            return kind, match
    return None
