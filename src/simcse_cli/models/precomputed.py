"""A sentence encoder that looks up vectors which were computed elsewhere.

So any model can be evaluated, even one behind an API.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from safetensors.numpy import load_file

from simcse_cli.arrays import Array, Floats32
from simcse_cli.errors import DataError
from simcse_cli.files.digests import sha256_file
from simcse_cli.files.inputs import require_file
from simcse_cli.files.schema import foreign_format
from simcse_cli.files.streams import iter_lines
from simcse_cli.postprocess.unit_rows import refuse_binary
from simcse_cli.progress import SILENT, Progress

_FORMATS_HINT = (
    "give an .npy, .npz or .safetensors file with one array of shape (sentences, dimensions); "
    "parts in a folder are joined by `simcse encode FOLDER --merge FILE.npy`"
)
_BLOCK = 16_384
_HOW_TO_LIST = (
    "encode every text that is compared or that --fit FILE holds; those of the STS tasks are "
    "written by: simcse eval sts --data-dir DIR --write-sentences FILE"
)


def read_matrix(path: Path | str) -> Array:
    """Return the one two-dimensional array of numbers in a file; ``.npy`` stays on disk."""
    # The only array, with a row for each sentence.
    path = require_file(path, hint=_FORMATS_HINT)
    arrays = _read_arrays(path)
    if len(arrays) != 1:
        raise DataError(
            f"{path} holds {len(arrays)} arrays ({', '.join(arrays)}), need one", hint=_FORMATS_HINT
        )
    (matrix,) = arrays.values()
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise DataError(
            f"{path}: shape {matrix.shape} of {matrix.dtype}, need (sentences, dimensions) of "
            "numbers",
            hint=_FORMATS_HINT,
        )
    refuse_binary(matrix, str(path))
    # A damaged file may hold only zeros. A file larger than the memory can be read only in blocks.
    with np.errstate(invalid="ignore"):  # NaN is found later, where its sentence is known
        starts = range(0, len(matrix), _BLOCK)
        is_zero = not any(matrix[start : start + _BLOCK].any() for start in starts)
    if len(matrix) and is_zero:
        raise DataError(
            f"{path} holds only zeros", hint="the file is damaged: make or copy it again"
        )
    return matrix


def _read_arrays(path: Path) -> dict[str, Array]:
    with foreign_format(path, "an array", hint=_FORMATS_HINT):
        match path.suffix:
            case ".npy":
                return {path.name: open_memmap(path, mode="r")}
            case ".npz":
                with np.load(path, allow_pickle=False) as archive:
                    return dict(archive)
            case ".safetensors":
                return load_file(path)
    ending = path.suffix or "a name without ending"
    raise DataError(f"{path}: vectors are not read from {ending}", hint=_FORMATS_HINT)


class PrecomputedVectors:
    """An encoder that looks sentences up in a list of vectors.

    Sentences match when their white-space tokens are the same. If a sentence appears twice, its
    first row counts. Line i of ``sentences`` belongs to row i of ``embeddings``, ``(N, D)``.
    """

    def __init__(self, embeddings: Path | str, sentences: Path | str) -> None:
        self._embeddings_file = require_file(embeddings)
        self._sentences_file = require_file(sentences)
        self.name = Path(embeddings).name
        self._matrix = read_matrix(embeddings)
        self._rows: dict[str, int] = {}
        n_lines = 0
        for n_lines, line in enumerate(iter_lines(sentences), start=1):
            row = n_lines - 1
            self._rows.setdefault(_key(line), row)
        if n_lines != len(self._matrix):
            raise DataError(
                f"{embeddings} holds {len(self._matrix):,} vectors for the {n_lines:,} lines "
                f"of {sentences}",
                hint=_HOW_TO_LIST,
            )
        self.dim = int(self._matrix.shape[1])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the embeddings file."""
        return sha256_file(self._embeddings_file)

    def encode(self, sentences: Sequence[str], *, progress: Progress = SILENT) -> Floats32:
        """Return the vectors of the sentences, ``(len(sentences), D)``."""
        if missing := [sentence for sentence in sentences if _key(sentence) not in self._rows]:
            raise DataError(
                f"{self._sentences_file} lacks {len(set(missing)):,} sentences, the first is "
                f"{missing[0]!r}",
                hint=_HOW_TO_LIST,
            )
        rows = np.array([self._rows[_key(sentence)] for sentence in sentences], dtype=np.intp)
        vectors = np.asarray(self._matrix[rows], dtype=np.float32)
        broken = ~np.isfinite(vectors).all(axis=1)
        if broken.any():
            row = int(rows[broken][0])
            raise DataError(f"{self._embeddings_file}, row {row}: a value is not finite")
        return vectors


def _key(sentence: str) -> str:
    return " ".join(sentence.split())
