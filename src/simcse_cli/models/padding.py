"""Token-id rows into batches."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor


def pad(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Return ``(B, L)`` ids and mask, padded on the right to the longest row."""
    length = max(len(row) for row in rows)
    ids = np.full((len(rows), length), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


def token_batches(lengths: Sequence[int], batch_tokens: int, *, padded: bool = True) -> Iterator[list[int]]:
    """Yield row positions in batches of similar length that stay within ``batch_tokens``.

    Longest first, so that memory peaks at once; a row longer than the budget gets a batch of its own.

    Args:
        lengths: tokens of each row.
        batch_tokens: the budget.
        padded: whether every row of a batch counts as long as its longest; otherwise each counts as it is.

    Example:
        >>> list(token_batches([4, 2, 3], 7)), list(token_batches([4, 2, 3], 7, padded=False))
        ([[0], [2, 1]], [[0, 2], [1]])
    """
    batch: list[int] = []
    used = 0
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        cost = max(1, lengths[batch[0]] if padded and batch else lengths[row])
        if batch and used + cost > batch_tokens:
            yield batch
            batch, used, cost = [], 0, max(1, lengths[row])
        batch.append(row)
        used += cost
    if batch:
        yield batch
