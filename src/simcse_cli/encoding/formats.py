"""Output files for vectors, each made from rows that lie one after another in a raw file."""

import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from simcse_cli.errors import ConfigError

HEADER_BYTES = 256
"""Room kept before the rows, so that the header, which holds their number, can be written last."""
CHUNK_ROWS = 8192


class VectorFile(StrEnum):
    """Formats by the ending of the output's name."""

    NPY = ".npy"
    NPZ = ".npz"
    SAFETENSORS = ".safetensors"
    PARQUET = ".parquet"
    JSONL = ".jsonl"


IN_PLACE = frozenset({VectorFile.NPY, VectorFile.SAFETENSORS})
WITH_TEXT = frozenset({VectorFile.PARQUET, VectorFile.JSONL})


def vector_file(path: Path) -> VectorFile:
    """Return the format of an output.

    Raises:
        ConfigError: the ending is none of the five.
    """
    try:
        return VectorFile(path.suffix.lower())
    except ValueError:
        raise ConfigError(
            f"-o {path}: unknown ending {path.suffix or '(none)'!r}",
            hint=f"use one of {', '.join(VectorFile)}",
        ) from None


def npy_header(dtype: np.dtype[Any], shape: tuple[int, int]) -> bytes:
    """Return a version 1.0 header of ``HEADER_BYTES`` bytes."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    length = HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def safetensors_header(dtype: np.dtype[Any], shape: tuple[int, int]) -> bytes:
    """Return a header for one tensor called ``vectors``, padded with spaces as the format allows."""
    kind = {"<f4": "F32", "<f2": "F16", "|i1": "I8", "|u1": "U8"}[dtype.str]
    n_bytes = shape[0] * shape[1] * dtype.itemsize
    text = json.dumps({"vectors": {"dtype": kind, "shape": list(shape), "data_offsets": [0, n_bytes]}})
    length = HEADER_BYTES - 8
    return length.to_bytes(8, "little") + text.ljust(length).encode()


def write_header(path: Path, kind: VectorFile, dtype: np.dtype[Any], shape: tuple[int, int]) -> None:
    """Fill the room before the rows of a raw file, which makes it a file of the given format."""
    header = npy_header(dtype, shape) if kind is VectorFile.NPY else safetensors_header(dtype, shape)
    with path.open("r+b") as stream:
        stream.write(header)
        stream.flush()
        os.fsync(stream.fileno())


def iter_row_blocks(raw: Path, dtype: np.dtype[Any], width: int) -> Iterator[NDArray[Any]]:
    """Yield the rows of a raw file in blocks, without reading it whole."""
    with raw.open("rb") as stream:
        stream.seek(HEADER_BYTES)
        while block := stream.read(CHUNK_ROWS * width * dtype.itemsize):
            yield np.frombuffer(block, dtype).reshape(-1, width)


def convert(
    raw: Path,
    target: Path,
    kind: VectorFile,
    dtype: np.dtype[Any],
    shape: tuple[int, int],
    texts: Iterable[str],
) -> None:
    """Write ``target`` from a raw file in a format that cannot be finished in place.

    ``.npz`` holds ``vectors``; parquet and JSON Lines hold ``text`` and ``vector``. Equal rows give equal bytes.
    """
    if kind is VectorFile.NPZ:
        entry = zipfile.ZipInfo("vectors.npy", date_time=(1980, 1, 1, 0, 0, 0))
        with zipfile.ZipFile(target, "w") as archive, archive.open(entry, "w", force_zip64=True) as out:
            out.write(npy_header(dtype, shape))
            with raw.open("rb") as stream:
                stream.seek(HEADER_BYTES)
                shutil.copyfileobj(stream, out, 1 << 20)
        return
    blocks = iter_row_blocks(raw, dtype, shape[1])
    if kind is VectorFile.JSONL:
        remaining = iter(texts)
        with target.open("w", encoding="utf-8", newline="\n") as lines:
            for block in blocks:
                lines.writelines(json_line(next(remaining), row) for row in block)
        return
    _write_parquet(target, blocks, shape[1], iter(texts))


def json_line(text: str, row: NDArray[Any]) -> str:
    """Return one JSON Lines record; float32 components are written with the digits that bring them back."""
    values = ",".join(str(value) for value in row)
    return f'{{"text": {json.dumps(text, ensure_ascii=False)}, "vector": [{values}]}}\n'


def _write_parquet(target: Path, blocks: Iterator[NDArray[Any]], width: int, texts: Iterator[str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    writer: Any = None
    try:
        for block in blocks:
            flat = pa.array(np.ascontiguousarray(block).ravel())
            vectors = pa.FixedSizeListArray.from_arrays(flat, width)
            table = pa.table({"text": [next(texts) for _ in range(len(block))], "vector": vectors})
            writer = writer or parquet.ParquetWriter(target, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def append_rows(stream: BinaryIO, rows: NDArray[Any]) -> None:
    """Write rows and make sure they are on disk before the caller records them as done."""
    stream.write(np.ascontiguousarray(rows).tobytes())
    stream.flush()
