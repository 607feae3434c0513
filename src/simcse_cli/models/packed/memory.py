"""Memory that passes over a model hand on to each other, instead of asking the system for fresh pages each time."""

import math
import weakref
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from threading import Lock
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

Key = TypeVar("Key", bound=Hashable)
Shape = tuple[tuple[int, ...], torch.dtype]
"""Size of each axis, and the type of the values."""
_ALIGNMENT = 64  # bytes, of a cache line and of a vector
_SPARE = (
    8  # a new block has one part in so many more than asked for, since the next batch may be a little larger
)


class Memory:
    """Blocks that were used before; a tensor from here gives its block back when nothing refers to it any more.

    May be used from several threads. Holds as much as was in use at one time, about.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        self._returned: deque[np.ndarray] = deque()  # by finalizers, which may run while the lock is held
        self._lock = Lock()

    def tensors(self, shapes: Mapping[Key, Shape]) -> dict[Key, Tensor]:
        """Return CPU tensors of these shapes, side by side in one block, with whatever values it holds.

        The block is used again when the last of them, and the last view of one, is gone.
        """
        ends, end = {}, 0
        for key, (sizes, dtype) in shapes.items():
            start = end
            end = start + math.prod(sizes) * dtype.itemsize
            ends[key] = (start, end)
            end = -(-end // _ALIGNMENT) * _ALIGNMENT
        block = self._take(end)
        lease = block[:end]
        weakref.finalize(lease, self._returned.append, block)
        memory = torch.from_numpy(lease)  # keeps the lease for as long as a tensor uses this memory
        return {
            key: memory[slice(*ends[key])].view(dtype).view(sizes) for key, (sizes, dtype) in shapes.items()
        }

    def tensor(self, sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return one tensor; see ``tensors``."""
        return self.tensors({"": (sizes, dtype)})[""]

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return tensors one after the other along their first axis."""
        sizes = (sum(map(len, parts)), *parts[0].shape[1:])
        return torch.cat(list(parts), out=self.tensor(sizes, parts[0].dtype))

    def _take(self, size: int) -> np.ndarray:
        """Return the smallest free block that is large enough and not wasted on it, or a new one."""
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            fitting = [block for block in self._free if size <= len(block) <= 2 * size]
            outgrown = [block for block in self._free if len(block) < size <= 2 * len(block)]
            chosen = min(fitting, key=len) if fitting else max(outgrown, key=len, default=None)
            self._free = [block for block in self._free if block is not chosen]
        if fitting and chosen is not None:
            return chosen
        return np.empty(size + size // _SPARE + _ALIGNMENT, np.uint8)


_OF_MODULE: weakref.WeakKeyDictionary[nn.Module, Memory] = weakref.WeakKeyDictionary()


def memory_of(module: nn.Module) -> Memory:
    """Return the memory that belongs to a module and lives as long as it does."""
    return _OF_MODULE.setdefault(module, Memory())
