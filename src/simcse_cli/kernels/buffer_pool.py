"""Buffers that the passes over a model use again: fresh pages would cost more than the arithmetic on them."""

import math
import weakref
from collections import deque
from collections.abc import Sequence
from threading import Lock

import numpy as np
import torch
from torch import Tensor, nn

# A new buffer has one part in so many more than asked for: the next batch may be a little larger.
_SPARE = 8
_ALIGNMENT = 64  # bytes


class BufferPool:
    """Lends memory to tensors and gets it back when nothing refers to the tensor or a view of it any more.

    May be used from several threads. Holds about as much as was in use at one time.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        self._returned: deque[np.ndarray] = deque()  # by finalizers, which may run while the lock is held
        self._lock = Lock()

    def tensor(self, sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a CPU tensor with whatever values the memory holds."""
        n_bytes = math.prod(sizes) * dtype.itemsize
        buffer = self._take(n_bytes)
        lease = buffer[:n_bytes]
        weakref.finalize(lease, self._returned.append, buffer)
        return torch.from_numpy(lease).view(dtype).view(sizes)  # keeps the lease as long as it lives

    def concatenated(self, parts: Sequence[Tensor]) -> Tensor:
        """Return tensors one after the other along their first axis."""
        sizes = (sum(map(len, parts)), *parts[0].shape[1:])
        return torch.cat(list(parts), out=self.tensor(sizes, parts[0].dtype))

    def _take(self, size: int) -> np.ndarray:
        """Return the smallest free buffer that is large enough and at most twice that, or a new one.

        A new one takes the place of the largest free one that is too small and at least half as large.
        """
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            fitting = [buffer for buffer in self._free if size <= len(buffer) <= 2 * size]
            outgrown = [buffer for buffer in self._free if len(buffer) < size <= 2 * len(buffer)]
            chosen = min(fitting, key=len) if fitting else max(outgrown, key=len, default=None)
            self._free = [buffer for buffer in self._free if buffer is not chosen]
        if fitting and chosen is not None:
            return chosen
        return np.empty(size + size // _SPARE + _ALIGNMENT, np.uint8)


_OF_MODULE: weakref.WeakKeyDictionary[nn.Module, BufferPool] = weakref.WeakKeyDictionary()


def pool_of(module: nn.Module) -> BufferPool:
    """Return the pool that belongs to a module and lives as long as it does."""
    return _OF_MODULE.setdefault(module, BufferPool())
