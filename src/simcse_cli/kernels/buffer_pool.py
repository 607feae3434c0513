"""Buffers that the passes over a model use again: fresh pages would cost more than the arithmetic on them."""

import math
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

_ALIGNMENT = 64  # bytes, of a cache line and of a vector


class BufferPool:
    """Lends memory to tensors and gets it back when nothing refers to the tensor or a view of it any more.

    May be used from several threads: its only shared steps are those of a deque, which are atomic. Buffers are powers
    of two in size, so that the next batch, a little larger, finds the same ones; pages that nobody writes to are never
    asked of the system.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[np.ndarray]] = {}  # by the exponent of their size

    def tensor(self, sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a CPU tensor with whatever values the memory holds, at an address of a multiple of 64 bytes."""
        n_bytes = math.prod(sizes) * dtype.itemsize
        exponent = max(n_bytes - 1, 0).bit_length()
        home = self._free.setdefault(exponent, deque())
        try:
            buffer = home.pop()
        except IndexError:
            buffer = _aligned(1 << exponent)
        lease = buffer[:n_bytes].view(_Lease)
        lease.buffer, lease.home = buffer, home
        return torch.from_numpy(lease).view(dtype).view(sizes)  # keeps the lease as long as it lives

    def concatenated(self, parts: Sequence[Tensor]) -> Tensor:
        """Return tensors one after the other along their first axis."""
        sizes = (sum(map(len, parts)), *parts[0].shape[1:])
        return torch.cat(list(parts), out=self.tensor(sizes, parts[0].dtype))


class _Lease(np.ndarray):
    """The lent part of a buffer, which takes the buffer home at its end."""

    buffer: np.ndarray
    home: deque[np.ndarray]

    def __del__(self) -> None:
        self.home.append(self.buffer)


def _aligned(size: int) -> np.ndarray:
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


_OF_MODULE: weakref.WeakKeyDictionary[nn.Module, BufferPool] = weakref.WeakKeyDictionary()


def pool_of(module: nn.Module) -> BufferPool:
    """Return the pool that belongs to a module and lives as long as it does."""
    return _OF_MODULE.setdefault(module, BufferPool())
