import tempfile
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import accumulate
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO, Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from simcse_cli.arrays import Integers
from simcse_cli.files.atomic import writing


class PackedTexts(Sequence[str]):
    """Texts as one block of UTF-8 bytes, and the position in it where each text ends.

    Positions that decrease, or lie outside of the block, raise ValueError. ``errors`` says how to
    decode bytes that are not UTF-8.

    Example:
        >>> texts = PackedTexts.of(["one", "zwölf", ""])
        >>> texts[1], len(texts), texts.ends.tolist()
        ('zwölf', 3, [3, 9, 9])
    """

    def __init__(
        self, content: NDArray[np.uint8], ends: Integers, *, errors: str = "replace"
    ) -> None:
        is_increasing = (ends[1:] >= ends[:-1]).all()
        if len(ends) and not (is_increasing and ends[0] >= 0 and ends[-1] <= len(content)):
            raise ValueError("the positions of its sentences are not increasing")
        self.content = content
        self.ends = ends
        self._errors = errors
        self._bytes = np.ascontiguousarray(content).data

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        if isinstance(texts, cls):
            return texts
        stream = BytesIO()
        ends = _write(texts, stream)
        # NumPy takes no empty buffer; the byte in its place belongs to no text.
        return cls(
            np.frombuffer(stream.getvalue() or b"\n", np.uint8), ends, errors="surrogatepass"
        )

    @classmethod
    def stored(cls, texts: Iterable[str], path: Path | None = None) -> Self:
        """Return the texts in a new file, by default one that is removed when the process ends."""
        target = path or Path(tempfile.gettempdir())
        hint = None if path else "name a folder with more space: export TMPDIR=FOLDER"
        with (
            writing(target, hint=hint),
            path.open("w+b") if path else tempfile.TemporaryFile() as stream,
        ):
            ends = _write(texts, stream)
            stream.flush()
            # An empty file cannot be mapped.
            content = mmap(stream.fileno(), 0, access=ACCESS_READ) if ends.any() else b"\n"
        return cls(np.frombuffer(content, np.uint8), ends, errors="surrogatepass")

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: Any) -> str | list[str]:
        # The range resolves negative numbers and slices.
        rows = range(len(self))[row]
        if isinstance(rows, range):
            return list(map(self._text, rows))
        return self._text(rows)

    def _text(self, row: int) -> str:
        start = self.ends.item(row - 1) if row else 0
        return str(self._bytes[start : self.ends.item(row)], "utf-8", self._errors)


def _write(texts: Iterable[str], stream: IO[bytes]) -> Integers:
    lengths = (stream.write(text.encode("utf-8", "surrogatepass")) for text in texts)
    return np.fromiter(accumulate(lengths), np.int64)
