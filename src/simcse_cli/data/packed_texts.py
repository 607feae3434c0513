"""Many texts in two arrays, in memory or on disk."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 20


class PackedTexts(Sequence[str]):
    """Texts as their UTF-8 bytes, one after the other, with the end of each: 8 bytes a text beside its own.

    Raises:
        ValueError: the ends do not increase, or lie outside of the content.

    Example:
        >>> texts = PackedTexts.of(["one", "zwölf", ""])
        >>> texts[1], len(texts), texts.ends.tolist()
        ('zwölf', 3, [3, 9, 9])
    """

    def __init__(self, content: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        blocks = (ends[max(0, start - 1) : start + _BLOCK] for start in range(0, len(ends), _BLOCK))
        is_increasing = all((block[1:] >= block[:-1]).all() for block in blocks)
        if len(ends) and not (is_increasing and ends[0] >= 0 and ends[-1] <= len(content)):
            raise ValueError("the positions of its sentences are not increasing")
        self.content, self.ends = content, ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        if isinstance(texts, cls):
            return texts
        content, ends = bytearray(), array("q")
        for text in texts:
            content += text.encode()
            ends.append(len(content))
        return cls(np.frombuffer(content or b"\n", np.uint8), np.frombuffer(ends, np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: Any) -> str | list[str]:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        start = self.ends[row - 1] if row else 0
        return bytes(self.content[start : self.ends[row]]).decode("utf-8", "replace")
