"""Make batches from token-id rows."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simcse_cli.machine.transfer import to_device

CPU = torch.device("cpu")
TokenRows = Sequence[Sequence[int]]
"""Token ids with special tokens, one sequence per sentence."""


class PaddedRows(Sequence[Sequence[int]]):
    """Rows padded ahead of time, possibly already on another device.

    A slice holds views of the tensors.
    """

    def __init__(self, rows: TokenRows, ids: Tensor, mask: Tensor) -> None:
        self._rows = rows
        self._ids = ids
        self._mask = mask

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return PaddedRows(self._rows[index], self._ids[index], self._mask[index])
        return self._rows[index]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return ids and mask as ``pad`` would.

        Rows of a slice may have been padded to the length of rows outside it. They are cut to the
        longest row of the slice.
        """
        length = max(map(len, self._rows))
        return self._ids[:, :length], self._mask[:, :length]

    def pin_memory(self) -> "PaddedRows":
        return PaddedRows(self._rows, self._ids.pin_memory(), self._mask.pin_memory())

    def to(self, device: torch.device) -> "PaddedRows":
        return PaddedRows(self._rows, to_device(self._ids, device), to_device(self._mask, device))


def pad(rows: TokenRows, pad_id: int, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    """Return ``(B, L)`` ids and mask, padded on the right to the longest row."""
    length = max(map(len, rows))
    ids = np.full((len(rows), length), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return to_device(torch.from_numpy(ids), device), to_device(torch.from_numpy(mask), device)


def real_positions(rows: TokenRows) -> Tensor:
    """Return the positions of real tokens in the padded rows laid end to end, ``(T,)``.

    They follow from the lengths of the rows, so no mask has to be read from a GPU.
    """
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    is_real = np.arange(lengths.max()) < lengths[:, None]  # (R, L)
    return torch.from_numpy(np.flatnonzero(is_real))


def token_batches(
    lengths: Sequence[int], batch_tokens: int, *, padded: bool = True, alike: bool = False
) -> Iterator[list[int]]:
    """Yield batches of row positions; the rows of a batch have similar lengths.

    The longest rows come first, so that memory peaks in the first batch. A batch has at most
    ``batch_tokens`` tokens; a row of more gets a batch for itself. With ``padded``, every row
    counts as many tokens as the longest row of its batch; with ``alike``, all rows of a batch have
    the same length.

    Example:
        >>> list(token_batches([4, 2, 3], 7)), list(token_batches([4, 2, 3], 7, padded=False))
        ([[0], [2, 1]], [[0, 2], [1]])
    """
    batch: list[int] = []
    used = 0
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        cost_alone = max(1, lengths[row])  # an empty row costs a token
        cost = cost_alone
        if batch:
            longest = lengths[batch[0]]  # rows come from long to short
            if padded:
                cost = max(1, longest)
            has_other_length = alike and lengths[row] != longest
            if has_other_length or used + cost > batch_tokens:
                yield batch
                batch = []
                used = 0
                cost = cost_alone
        batch.append(row)
        used += cost
    if batch:
        yield batch
