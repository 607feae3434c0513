"""What an epoch draws: neighbouring sentences, pairs for Contrastive Tension, spans, masked tokens."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOT_MASKED = -100
_KEPT_SHARE = _RANDOM_SHARE = 0.1
_Indices = NDArray[np.int64]


def positions_in_documents(documents: Sequence[Sequence[str]]) -> tuple[list[str], _Indices]:
    """Return all sentences in order and, for each, how many sentences follow it in its own document."""
    sentences = [sentence for document in documents for sentence in document]
    following = [np.arange(len(document) - 1, -1, -1) for document in documents]
    return sentences, np.concatenate(following).astype(np.int64) if following else np.zeros(0, np.int64)


def sample_next(
    following: _Indices, *, window: int, generator: np.random.Generator
) -> tuple[_Indices, _Indices]:
    """Return anchor and positive indices; a positive is drawn evenly from the next ``window`` sentences.

    Source: Gao et al. 2021, Table 2, "next sentence" (window 1) and "next 3 sentences" (window 3).

    Args:
        following: how many sentences of its document follow each sentence; those with 0 are no anchors. Near
            the end of a document the draw is among the sentences that are left.
        window: at least 1.
        generator: draws the positives; the same state gives the same pairs.
    """
    anchors = np.flatnonzero(following > 0)
    return anchors, anchors + generator.integers(1, np.minimum(following[anchors], window) + 1)


def sample_tension_pairs(
    n_sentences: int, *, n_negatives: int = 7, generator: np.random.Generator
) -> tuple[_Indices, _Indices, NDArray[np.bool_]]:
    """Return an epoch of Contrastive Tension: left indices, right indices, which pairs are positive.

    Source: Carlsson et al. 2021, as in their code. Each sentence s gives a group of ``1 + n_negatives``
    consecutive rows: (s, s), then pairs of two independently drawn sentences, neither of them s. The groups
    come shuffled.

    Raises:
        ValueError: fewer than 2 sentences, which leaves nothing to draw.
    """
    if n_sentences < 2:
        raise ValueError(f"{n_sentences} distinct sentences: need at least 2 to draw negative pairs")
    own = generator.permutation(n_sentences)
    drawn = generator.integers(0, n_sentences - 1, size=(2, n_sentences, n_negatives))
    drawn += drawn >= own[:, None]  # skip over the group's own sentence
    left, right = (np.concatenate([own[:, None], side], axis=1) for side in drawn)
    is_positive = np.zeros(left.shape, dtype=bool)
    is_positive[:, 0] = True
    return left.ravel(), right.ravel(), is_positive.ravel()


@dataclass(frozen=True)
class Span:
    """Tokens ``start`` to ``stop`` (exclusive) of a document."""

    start: int
    stop: int


@dataclass(frozen=True)
class SpanSampler:
    """Anchor and positive spans of DeCLUTR (Giorgi et al. 2021, section 3.1, and their code).

    Attributes:
        n_anchors: anchors of one document.
        n_positives: positives of one anchor.
        min_length: shortest span in tokens.
        max_length: end of span lengths in tokens (exclusive), and length of the blocks that anchors start in.
    """

    n_anchors: int = 2
    n_positives: int = 2
    min_length: int = 32
    max_length: int = 512

    @property
    def min_document(self) -> int:
        """Fewest tokens a document needs: two blocks for each anchor."""
        return 2 * self.n_anchors * self.max_length

    def _length(self, a: float, b: float, generator: np.random.Generator) -> int:
        """Return ``floor(beta * (max - min) + min)`` with beta drawn from Beta(a, b)."""
        return int(generator.beta(a, b) * (self.max_length - self.min_length) + self.min_length)

    def sample(self, n_tokens: int, generator: np.random.Generator) -> list[tuple[Span, list[Span]]]:
        """Return the anchors of one document, each with its positives.

        Anchor lengths follow Beta(4, 2) (long), positive lengths Beta(2, 4) (short). An anchor starts
        anywhere in a randomly chosen block; that block and its neighbours are closed to the next anchor while
        others are left. A positive starts anywhere from its own length before the anchor to the anchor's end,
        moved into the document: it overlaps the anchor, touches it or lies inside.

        Raises:
            ValueError: the document is shorter than ``min_document``.
        """
        if n_tokens < self.min_document:
            raise ValueError(f"a document of {n_tokens} tokens: need at least {self.min_document}")
        blocks = list(range(n_tokens // self.max_length))
        groups = []
        for _ in range(self.n_anchors):
            block = blocks[int(generator.integers(len(blocks)))]
            rest = [other for other in blocks if other != block]
            blocks = [other for other in rest if abs(other - block) > 1] or rest
            anchor = self._anchor(block, n_tokens, generator)
            groups.append(
                (anchor, [self._positive(anchor, n_tokens, generator) for _ in range(self.n_positives)])
            )
        return groups

    def _anchor(self, block: int, n_tokens: int, generator: np.random.Generator) -> Span:
        length = self._length(4, 2, generator)
        start = block * self.max_length + int(generator.integers(self.max_length))
        start = min(start, n_tokens - length)
        return Span(start, start + length)

    def _positive(self, anchor: Span, n_tokens: int, generator: np.random.Generator) -> Span:
        length = self._length(2, 4, generator)
        start = int(generator.integers(anchor.start - length, anchor.stop + 1))
        start = max(0, min(start, n_tokens - length))
        return Span(start, start + length)


def mask_tokens(
    rows: Sequence[Sequence[int]],
    *,
    probability: float,
    mask_id: int,
    special_ids: Collection[int],
    n_vocabulary: int,
    generator: np.random.Generator,
) -> tuple[list[list[int]], list[list[int]]]:
    """Return rows with some tokens masked, and labels: the original id where one was chosen, -100 elsewhere.

    Source: Devlin et al. 2019, section 3.1. Each token that is not special is chosen with ``probability``; of
    the chosen, 80% become the mask token, 10% a random token and 10% stay as they are.

    Args:
        rows: token ids with special tokens.
        probability: in (0, 1); 0.15 in all sources.
        mask_id: id of the mask token.
        special_ids: ids that are never chosen.
        n_vocabulary: random tokens are drawn below this id.
        generator: makes all draws.
    """
    lengths = np.array([len(row) for row in rows])
    ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    chosen = (generator.random(len(ids)) < probability) & ~np.isin(ids, list(special_ids))
    labels = np.where(chosen, ids, NOT_MASKED)
    fate = generator.random(len(ids))
    random_ids = generator.integers(0, n_vocabulary, size=len(ids))
    ids = np.where(chosen & (fate < 1 - _KEPT_SHARE - _RANDOM_SHARE), mask_id, ids)
    ids = np.where(chosen & (fate >= 1 - _RANDOM_SHARE), random_ids, ids)
    borders = np.cumsum(lengths)[:-1]
    masked, targets = ([part.tolist() for part in np.split(values, borders)] for values in (ids, labels))
    return masked, targets
