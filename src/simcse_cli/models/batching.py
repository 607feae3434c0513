"""Sentences into batches, and batches onto the cores of a processor."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
# Above this many threads, holders of Python's lock would wait for each other; each then computes with several.
_MOST_WORKERS = 16


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


def map_on_cores(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield ``function(item)`` for each item in their order, several at a time on the threads of PyTorch.

    One item on one thread costs less than each of its products on all threads, which would wait for each
    other after every step. Results do not depend on the number of threads, up to ``_MOST_WORKERS``.

    Args:
        function: computes with PyTorch on the CPU; called in inference mode, from several threads at once.
        items: one alone is computed here, with all threads.
    """

    @torch.inference_mode()
    def compute(item: Item) -> Result:
        return function(item)

    n_threads = torch.get_num_threads()
    n_workers = min(n_threads, len(items), _MOST_WORKERS)
    if n_workers <= 1:
        yield from map(compute, items)
        return
    pool = ThreadPoolExecutor(
        n_workers, "simcse-encode", initializer=torch.set_num_threads, initargs=(n_threads // n_workers,)
    )
    try:
        yield from pool.map(compute, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(n_threads)  # each thread has its own number; the default of new ones is shared
