"""Masked tokens for masked language modelling."""

from collections.abc import Collection, Sequence

import numpy as np

NOT_MASKED = -100
KEPT_SHARE = RANDOM_SHARE = 0.1

Rows = list[list[int]]


def mask_tokens(
    rows: Sequence[Sequence[int]],
    *,
    probability: float,
    mask_id: int,
    special_ids: Collection[int],
    n_vocabulary: int,
    generator: np.random.Generator,
) -> tuple[Rows, Rows]:
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
    ids = np.where(chosen & (fate < 1 - KEPT_SHARE - RANDOM_SHARE), mask_id, ids)
    ids = np.where(chosen & (fate >= 1 - RANDOM_SHARE), random_ids, ids)
    borders = np.cumsum(lengths)[:-1]
    masked, targets = ([part.tolist() for part in np.split(values, borders)] for values in (ids, labels))
    return masked, targets
