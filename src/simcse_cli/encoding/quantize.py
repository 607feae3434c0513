"""Smaller number formats for vectors; each row stands for itself, so rows can be written as they come."""

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class VectorType(StrEnum):
    """How a component is stored."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"
    BINARY = "binary"


STORED: dict[VectorType, np.dtype[Any]] = {
    VectorType.FLOAT32: np.dtype("<f4"),
    VectorType.FLOAT16: np.dtype("<f2"),
    VectorType.INT8: np.dtype("int8"),
    VectorType.BINARY: np.dtype("uint8"),
}


def stored_width(kind: VectorType, dim: int) -> int:
    """Return the number of stored items in a row: bits are packed eight to a byte."""
    return (dim + 7) // 8 if kind is VectorType.BINARY else dim


def quantize(vectors: NDArray[np.float32], kind: VectorType) -> NDArray[Any]:
    """Return the rows in the stored type.

    ``int8`` scales each row so that its largest component is 127: cosines survive (to about 1e-4), lengths do
    not. ``binary`` keeps the signs, eight to a byte, first component in the highest bit: compare rows by
    Hamming distance. A zero row stays zero (binary: no bit set).
    """
    match kind:
        case VectorType.FLOAT32:
            return vectors.astype("<f4", copy=False)
        case VectorType.FLOAT16:
            return vectors.astype("<f2")
        case VectorType.INT8:
            largest = np.abs(vectors).max(axis=1, keepdims=True)
            return np.rint(127 * vectors / np.where(largest > 0, largest, 1)).astype(np.int8)
        case VectorType.BINARY:
            return np.packbits(vectors > 0, axis=1)
