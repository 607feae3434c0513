"""Scale rows to length 1."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simcse_cli.arrays import AnyFloats
from simcse_cli.errors import DataError

_BLOCK_ROWS = 16_384
_Float = TypeVar("_Float", np.float32, np.float64)


def refuse_binary(vectors: AnyFloats, place: str) -> None:
    """Raise DataError for bytes of eight signs each, as `simcse encode --dtype binary` writes."""
    if vectors.dtype == np.uint8:
        raise DataError(
            f"{place} holds binary vectors, the signs of components, which have no cosine",
            hint="encode with --dtype float32 or int8, or compare by Hamming distance in FAISS",
        )


def unit_rows(
    vectors: AnyFloats,
    dtype: type[_Float],
    *,
    check_finite: bool = True,
    numbers: Sequence[int] | None = None,
) -> NDArray[_Float]:
    """Return the rows of ``(N, D)`` vectors, scaled to length 1, in ``dtype``; zero rows stay zero.

    Raise DataError for a row that is not finite, and name its number. If the rows are taken from a
    larger matrix, ``numbers`` holds their row numbers in the matrix, from 0. Without
    ``check_finite``, no error is raised, and such a row is not finite in the result either.
    """
    if vectors.ndim != 2:
        raise ValueError(f"vectors have shape {vectors.shape}, need two dimensions (N, D)")
    refuse_binary(vectors, "the array")
    units = np.empty(vectors.shape, dtype=dtype)
    limits = np.finfo(dtype)
    smallest = np.sqrt(limits.tiny / limits.eps)  # the least norm whose square keeps its digits
    for start in range(0, len(vectors), _BLOCK_ROWS):
        with np.errstate(over="ignore", invalid="ignore"):
            block = vectors[start : start + _BLOCK_ROWS].astype(dtype)
            norms = np.linalg.norm(block, axis=1, keepdims=True)
            if check_finite and not np.isfinite(norms).all():
                # The argmin of truth values is the place of the first False.
                row = start + int(np.isfinite(norms[:, 0]).argmin())
                if numbers is not None:
                    row = numbers[row]
                raise DataError(f"vector {row + 1:,} is not finite, or too large to be squared")
            # Squares of tiny numbers lose digits, so first divide a tiny row by its largest entry.
            is_tiny = norms[:, 0] < smallest
            if is_tiny.any():
                tiny = block[is_tiny]
                largest = np.abs(tiny).max(axis=1, keepdims=True, initial=0)
                enlarged = tiny / np.where(largest == 0, 1, largest)
                block[is_tiny] = enlarged
                norms[is_tiny] = np.linalg.norm(enlarged, axis=1, keepdims=True)
            norms[norms == 0] = 1
            np.divide(block, norms, out=units[start : start + _BLOCK_ROWS])
    return units
