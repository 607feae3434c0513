"""Find near duplicates by MinHash.

Candidates come from locality-sensitive hashing, and their Jaccard similarity is exact. Source:
Broder 1997, "On the resemblance and containment of documents"; banding as in Leskovec,
Rajaraman and Ullman, "Mining of Massive Datasets", chapter 3.

A text is the set of its words and word pairs (its shingles), with a mark at either end of the text.
So a sentence with one word replaced stays near, but the same words in another order do not. Memory
is about 2 kB per stored text.
"""

import zlib
from array import array
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from simcse_cli.arrays import Floats
from simcse_cli.data.text import key_words

N_BANDS = 16
ROWS_PER_BAND = 4
_SEED = 20210418

Sketch = tuple[NDArray[np.uint32], list[int]]
"""What the index needs of a text: the values of its shingles, and its key in each band."""


def shingles(text: str) -> NDArray[np.uint32]:
    """Return the distinct CRC-32 values of the words and word pairs of a text, sorted.

    Marks that change a number or a name, symbols and emoji are words, too.
    """
    tokens = key_words(text)
    pairs = (f"{left} {right}" for left, right in pairwise(["<", *tokens, ">"]))
    values = sorted({zlib.crc32(piece.encode()) for piece in (*tokens, *pairs)})
    return np.array(values, dtype=np.uint32)


def jaccard(values: NDArray[np.uint32], others: Sequence[NDArray[np.uint32]]) -> Floats:
    """Return the Jaccard similarity of a set to each of the others: intersection over union.

    A set is a sorted array of distinct values, and not empty. The result is ``(len(others),)``.
    """
    # Look up all other sets at once.
    sizes = np.array([len(other) for other in others])
    starts = np.cumsum(sizes) - sizes
    joined = np.concatenate(others)
    # A value above all of ``values`` has its place behind the last one. It is compared with the
    # last one instead, and differs from it.
    places = np.minimum(np.searchsorted(values, joined), len(values) - 1)
    n_shared = np.add.reduceat(values[places] == joined, starts, dtype=np.int64)
    similarity: Floats = n_shared / (len(values) + sizes - n_shared)
    return similarity


class NearIndex:
    """Store texts, and find the stored texts that a text nearly repeats.

    Texts that have the same key in a band are candidates. Texts of Jaccard similarity s become
    candidates with the probability ``1 - (1 - s**4)**16``, which is 0.99 at 0.7, 0.64 at 0.5, 0.12
    at 0.3. Candidates are compared exactly, so no text below the threshold is returned.
    """

    def __init__(self, threshold: float) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold is {threshold}, need a value above 0 and at most 1")
        self.threshold = threshold
        self._stored: list[NDArray[np.uint32]] = []
        # The texts with the same key in a band form a chain. `_last` holds the last text of each
        # chain by its key. `_previous` has for each text and band the text before it in the chain.
        self._last: dict[int, int] = {}
        self._previous = array("q")
        # Factors are odd, since multiplication by an odd number loses nothing modulo 2**64.
        draw = np.random.default_rng(_SEED)
        n_hashes = N_BANDS * ROWS_PER_BAND
        self._factors = draw.integers(1, 2**63, size=n_hashes, dtype=np.uint64) * 2 + 1
        self._offsets = draw.integers(2**63, size=n_hashes, dtype=np.uint64)
        self._mixers = (
            draw.integers(1, 2**63, size=(N_BANDS, ROWS_PER_BAND), dtype=np.uint64) * 2 + 1
        )

    def sketch(self, texts: Sequence[str]) -> list[Sketch]:
        """Return the sketch of each text; many texts at once are faster than single ones."""
        sets = [shingles(text) for text in texts]
        starts = np.cumsum([0, *(len(values) for values in sets[:-1])])
        joined = np.concatenate(sets).astype(np.uint64)
        # One hash is computed after the other, to take little memory. Products overflow on purpose:
        # they are taken modulo 2**64. Only their high bits depend on all bits of a shingle, so the
        # low 32 bits are cut off.
        smallest = np.empty((len(self._factors), len(texts)), dtype=np.uint64)
        for number, (factor, offset) in enumerate(zip(self._factors, self._offsets, strict=True)):
            hashed = (factor * joined + offset) >> np.uint64(32)
            np.minimum.reduceat(hashed, starts, out=smallest[number])
        # The key of a band is a hash: the sum of its values, each times a random factor. The number
        # of the band is mixed into the high bits, so that bands with equal sums have different
        # keys.
        bands = smallest.reshape(N_BANDS, ROWS_PER_BAND, len(texts)) * self._mixers[:, :, None]
        sums = bands.sum(axis=1, dtype=np.uint64)
        keys = sums ^ (np.arange(N_BANDS, dtype=np.uint64)[:, None] << np.uint64(58))
        return list(zip(sets, keys.T.tolist(), strict=True))

    def add(self, sketch: Sketch) -> None:
        """Store a text; the number of the first text is 0, and each later text has the next one."""
        values, keys = sketch
        number = len(self._stored)
        self._stored.append(values)
        for key in keys:
            self._previous.append(self._last.get(key, -1))  # -1: no text before
            self._last[key] = number

    def find(self, sketch: Sketch) -> list[int]:
        """Return the numbers of the stored texts whose similarity reaches the threshold."""
        return [number for number, _ in self._near(sketch)]

    def nearest(self, sketch: Sketch) -> tuple[int, float] | None:
        """Return the number and the similarity of the nearest stored text, or None if none is near.

        If several texts are equally near, the first of them is returned.
        """
        return max(self._near(sketch), key=itemgetter(1), default=None)

    def _near(self, sketch: Sketch) -> list[tuple[int, float]]:
        """Return the number and similarity of each stored text that reaches the threshold."""
        values, keys = sketch
        candidates: set[int] = set()
        # In each band, follow the chain of texts with the same key from its last text to its first.
        for band, key in enumerate(keys):
            number = self._last.get(key, -1)
            while number >= 0:
                candidates.add(number)
                number = self._previous[number * N_BANDS + band]
        if not candidates:
            return []
        numbers = np.array(sorted(candidates))
        similarity = jaccard(values, [self._stored[number] for number in numbers])
        is_near = similarity >= self.threshold
        return list(zip(numbers[is_near].tolist(), similarity[is_near].tolist(), strict=True))
