"""Buffers that the passes over a model use again: fresh pages would cost more than the arithmetic on them."""

import math
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

_ALIGNMENT = 64  # bytes, of a cache line and of a vector
_HUGE_PAGE = 1 << 21  # bytes; NumPy asks the system for them in arrays of 4 MiB and more
# What NumPy holds values of so many bytes as; it has no bfloat16.
_HELD_AS = {1: np.dtype(np.uint8), 2: np.dtype(np.int16), 4: np.dtype(np.float32), 8: np.dtype(np.float64)}


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
        exponent = max(math.prod(sizes) * dtype.itemsize - 1, 0).bit_length()
        home = self._free.setdefault(exponent, deque())
        try:
            buffer = home.pop()
        except IndexError:
            buffer = _aligned(1 << exponent)
        lease = _Lease(sizes, _HELD_AS[dtype.itemsize], buffer)  # type: ignore[arg-type]
        lease.home = home
        tensor = torch.from_numpy(lease)  # keeps the lease as long as it lives
        return tensor if tensor.dtype is dtype else tensor.view(dtype)

    def concatenated(self, parts: Sequence[Tensor]) -> Tensor:
        """Return tensors one after the other along their first axis."""
        sizes = (sum(map(len, parts)), *parts[0].shape[1:])
        return torch.cat(list(parts), out=self.tensor(sizes, parts[0].dtype))


class _Lease(np.ndarray):
    """The lent part of a buffer, its base, which takes the buffer home at its end."""

    home: deque[np.ndarray]

    def __del__(self) -> None:
        self.home.append(self.base)  # type: ignore[arg-type]  # and no other name: modules may be gone by now


def _aligned(size: int) -> np.ndarray:
    """Return so many bytes, in huge pages where they fill one: the processor finds those faster than small ones."""
    alignment = _HUGE_PAGE if size >= _HUGE_PAGE else _ALIGNMENT
    memory = np.empty(size + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size]


_OF_MODULE: weakref.WeakKeyDictionary[nn.Module, BufferPool] = weakref.WeakKeyDictionary()


def pool_of(module: nn.Module) -> BufferPool:
    """Return the pool that belongs to a module and lives as long as it does."""
    return _OF_MODULE.setdefault(module, BufferPool())
