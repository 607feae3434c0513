"""Memory that the passes over a model reuse.

The page faults of newly allocated memory can cost more time than the arithmetic in it.
"""

import math
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

_ALIGNMENT = 64  # bytes of a cache line, and of a vector register
_HUGE_PAGE = 1 << 21  # bytes; NumPy requests huge pages for arrays of 4 MiB and more
# NumPy types by the bytes of a value: NumPy lacks bfloat16, so a type of the same size stands in.
_NUMPY_TYPES = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.int16),
    4: np.dtype(np.float32),
    8: np.dtype(np.float64),
}


class BufferPool:
    """Lend memory to tensors, and take it back when no tensor or view refers to it any more.

    Threads may share a pool: they meet only in operations of a deque, which are atomic. The size of
    a buffer is a power of two, so that a slightly larger batch fits the same buffers. The unused
    rest of a buffer costs little, since pages that are never written to take no memory.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[np.ndarray]] = {}  # by the exponent of the size

    def tensor(self, sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return an uninitialised CPU tensor, aligned to 64 bytes."""
        # The exponent of the smallest power of two that is at least the number of bytes.
        exponent = max(math.prod(sizes) * dtype.itemsize - 1, 0).bit_length()
        free_buffers = self._free.setdefault(exponent, deque())

        # No check beforehand: another thread may take the last free buffer in between.
        try:
            buffer = free_buffers.pop()
        except IndexError:
            buffer = _aligned(1 << exponent)
        lease = _Lease(sizes, _NUMPY_TYPES[dtype.itemsize], buffer)  # type: ignore[arg-type]
        # When the tensor is deleted, so is the lease, which then gives its buffer back.
        lease.free_buffers = free_buffers
        tensor = torch.from_numpy(lease)  # the tensor keeps the lease alive
        return tensor if tensor.dtype is dtype else tensor.view(dtype)

    def concatenated(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the parts joined along their rows, in memory of this pool."""
        sizes = (sum(map(len, parts)), *parts[0].shape[1:])
        return torch.cat(list(parts), out=self.tensor(sizes, parts[0].dtype))


class _Lease(np.ndarray):
    """The lent part of a buffer; when it is deleted, the buffer (its base) is free again."""

    free_buffers: deque[np.ndarray]

    def __del__(self) -> None:
        # This uses no global name: at interpreter exit, modules may be gone.
        self.free_buffers.append(self.base)  # type: ignore[arg-type]


def _aligned(size: int) -> np.ndarray:
    """Return memory aligned to cache lines, or to huge pages if it is as large as one."""
    alignment = _ALIGNMENT
    if size >= _HUGE_PAGE:
        alignment = _HUGE_PAGE
    memory = np.empty(size + alignment, np.uint8)
    start = -memory.ctypes.data % alignment  # bytes up to the next aligned address
    return memory[start : start + size]


_POOLS: weakref.WeakKeyDictionary[nn.Module, BufferPool] = weakref.WeakKeyDictionary()


def pool_of(module: nn.Module) -> BufferPool:
    """Return the pool of a module, which lives as long as the module."""
    return _POOLS.setdefault(module, BufferPool())
