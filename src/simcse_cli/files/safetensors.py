"""Headers of safetensors files, for what the safetensors library cannot write or read.

A file has three parts: 8 bytes with the length of the header (little-endian), the header in JSON,
which may end in spaces, and the bytes of the tensors.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.arrays import Array

_TYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I8": "|i1", "U8": "|u1"}


def header_of_one(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], length: int) -> bytes:
    """Return the ``length`` bytes before a single tensor: the header's size and the header."""
    (kind,) = (kind for kind, code in _TYPES.items() if code == dtype.str)
    n_bytes = int(np.prod(shape)) * dtype.itemsize
    tensor = {"dtype": kind, "shape": list(shape), "data_offsets": [0, n_bytes]}
    return _padded(json.dumps({name: tensor}), length)


def mapped_tensors(path: Path) -> dict[str, Array]:
    """Return the tensors of a file as memory maps; the caller has checked the layout."""
    header, start = _read_header(path)
    header.pop("__metadata__", None)
    tensors: dict[str, Array] = {}
    for name, entry in header.items():
        dtype = _TYPES[entry["dtype"]]
        offset = start + entry["data_offsets"][0]
        shape = tuple(entry["shape"])
        tensors[name] = np.memmap(path, dtype, mode="r", offset=offset, shape=shape)
    return tensors


def sort_metadata(path: Path) -> None:
    """Sort the metadata of a file, so that equal content gives equal bytes."""
    header, start = _read_header(path)
    # Sorting only moves keys, so the header keeps its length.
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    with path.open("r+b") as stream:
        stream.write(_padded(text, start))


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a file, and the number of bytes before its tensors."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        return json.loads(stream.read(length)), 8 + length


def _padded(text: str, length: int) -> bytes:
    """Return ``length`` bytes: a header's size in 8 bytes, and the header, followed by spaces."""
    return (length - 8).to_bytes(8, "little") + text.encode().ljust(length - 8)
