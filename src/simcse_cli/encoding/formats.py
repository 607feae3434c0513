"""Formats of vector files, and the types of stored components.

All formats are made from raw consecutive rows.
"""

import json
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from enum import StrEnum
from hashlib import sha256
from itertools import chain, islice, repeat
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.errors import ConfigError, DataError, reason_of
from simcse_cli.files.safetensors import header_of_one
from simcse_cli.files.schema import foreign_format

HEADER_BYTES = 256
"""Space reserved before the rows: the header holds their number, so it is written last."""
CHUNK_ROWS = 8192


class VectorFile(StrEnum):
    NPY = ".npy"
    NPZ = ".npz"
    SAFETENSORS = ".safetensors"
    PARQUET = ".parquet"
    JSONL = ".jsonl"


WITH_TEXT = frozenset({VectorFile.PARQUET, VectorFile.JSONL})


class VectorType(StrEnum):
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


def vector_file(path: Path) -> VectorFile:
    try:
        return VectorFile(path.suffix.lower())
    except ValueError:
        what = f"-o {path}: unknown ending {path.suffix or '(none)'!r}"
        raise ConfigError(what, hint=f"use one of {', '.join(VectorFile)}") from None


def stored_width(kind: VectorType, dim: int) -> int:
    """Return the number of stored items in a row; bits are packed eight to a byte."""
    return (dim + 7) // 8 if kind is VectorType.BINARY else dim


def quantize(vectors: NDArray[np.float32], kind: VectorType) -> NDArray[Any]:
    """Convert rows to the stored type, each independently.

    Rows can therefore be written as they come.

    ``int8`` scales each row so that its largest component is 127: cosines survive (to about 1e-4),
    lengths do not. ``binary`` keeps the signs, eight to a byte, first component in the highest bit:
    compare rows by Hamming distance. A zero row stays zero (binary: no bit set).
    """
    match kind:
        case VectorType.INT8:
            largest = np.abs(vectors).max(axis=1, keepdims=True)
            return np.rint(127 * vectors / np.where(largest > 0, largest, 1)).astype(np.int8)
        case VectorType.BINARY:
            return np.packbits(vectors > 0, axis=1)
        case _:
            with np.errstate(over="ignore"):
                stored = vectors.astype(STORED[kind], copy=False)
            if not np.isfinite(stored).all():
                what = f"a component is too large for {kind}"
                raise DataError(what, hint="store them with --dtype float32")
            return stored


def finish_file(
    raw: Path,
    target: Path,
    dtype: np.dtype[Any],
    shape: tuple[int, int],
    texts: Iterable[str],
    ids: Iterable[Any] | None = None,
) -> Path:
    """Turn a raw file into the target's format.

    The raw file has ``HEADER_BYTES`` of space and then rows. Equal rows give equal bytes.

    ``.npz`` and ``.safetensors`` hold ``vectors``; parquet and JSON Lines hold ``text`` and
    ``vector``, preceded by ``id`` if there are ids. Returns the complete file: for ``.npy`` and
    ``.safetensors`` the raw one with its header.
    """
    # Two formats are the raw file itself, once its header is filled in.
    form = vector_file(target)
    if form in (VectorFile.NPY, VectorFile.SAFETENSORS):
        header = _npy_header if form is VectorFile.NPY else _safetensors_header
        with raw.open("r+b") as stream:
            stream.write(header(dtype, shape))
        return raw

    # The others are written block by block, so that memory stays small.
    with raw.open("rb") as stream:
        stream.seek(HEADER_BYTES)
        blocks = _stream_blocks(stream, dtype, shape[1])
        if form is VectorFile.NPZ:
            entry = zipfile.ZipInfo("vectors.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with (
                zipfile.ZipFile(target, "w") as archive,
                archive.open(entry, "w", force_zip64=True) as out,
            ):
                out.write(_npy_header(dtype, shape))
                shutil.copyfileobj(stream, out, 1 << 20)
        elif form is VectorFile.JSONL:
            rows = (row for block in blocks for row in block)
            names = repeat({}, shape[0]) if ids is None else ({"id": own} for own in ids)
            with target.open(
                "w", encoding="utf-8", errors="backslashreplace", newline="\n"
            ) as lines:
                lines.writelines(
                    json_line(*record) for record in zip(texts, rows, names, strict=True)
                )
        else:
            _write_parquet(
                target, blocks, shape[1], dtype, iter(texts), None if ids is None else iter(ids)
            )
    return target


def json_line(text: str, row: NDArray[Any], name: dict[str, Any] | None = None) -> str:
    """Return one JSON Lines record.

    Its float32 components have enough digits to be read back exactly.
    """
    values = ",".join(str(value) for value in row)
    head = json.dumps({**(name or {}), "text": text}, ensure_ascii=False, default=str)
    return f'{head[:-1]}, "vector": [{values}]}}\n'


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, int]) -> bytes:
    # Version 1.0.
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    length = HEADER_BYTES - 10
    return (
        b"\x93NUMPY\x01\x00"
        + length.to_bytes(2, "little")
        + text.ljust(length - 1).encode()
        + b"\n"
    )


def _safetensors_header(dtype: np.dtype[Any], shape: tuple[int, int]) -> bytes:
    return header_of_one("vectors", dtype, shape, HEADER_BYTES)


def _stream_blocks(stream: IO[bytes], dtype: np.dtype[Any], width: int) -> Iterator[NDArray[Any]]:
    while block := stream.read(CHUNK_ROWS * width * dtype.itemsize):
        yield np.frombuffer(block, dtype).reshape(-1, width)


def _write_parquet(
    target: Path,
    blocks: Iterator[NDArray[Any]],
    width: int,
    dtype: np.dtype[Any],
    texts: Iterator[str],
    ids: Iterator[Any] | None,
) -> None:
    import pyarrow as pa  # takes a fifth of a second, and other formats do not need it
    from pyarrow import parquet

    writer: Any = None
    with target.open("wb") as stream:
        try:
            for block in chain(blocks, [np.empty((0, width), dtype)]):
                if writer is not None and not len(block):
                    break
                vectors = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), width)
                columns = {
                    "text": pa.array([next(texts) for _ in block], pa.string()),
                    "vector": vectors,
                }
                if ids is not None:
                    kind = writer and writer.schema.field("id").type
                    columns = {"id": _id_column([next(ids) for _ in block], kind), **columns}
                table = pa.table(columns)
                writer = writer or parquet.ParquetWriter(stream, table.schema)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def _id_column(ids: list[Any], kind: Any) -> Any:
    """Return ids as a column of the same type as those of earlier blocks."""
    import pyarrow as pa  # see _write_parquet

    try:
        return pa.array(ids, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        what = f"the ids are of several types ({reason_of(error)})"
        raise DataError(what, hint="choose another --id-column") from error


Block = tuple[NDArray[Any], list[str] | None, list[Any] | None]


class RowDigest:
    """SHA-256 over the stored rows of a vector file and over its texts, if it has any.

    The texts have a digest of their own and are hashed one per line.
    """

    def __init__(self) -> None:
        self._rows, self._texts = sha256(), sha256()
        self._has_texts = False

    def add(self, rows: NDArray[Any], texts: Iterable[str] | None) -> None:
        for start in range(0, len(rows), CHUNK_ROWS):
            self._rows.update(np.ascontiguousarray(rows[start : start + CHUNK_ROWS]).data)
        if texts is not None:
            self._has_texts = True
            for text in texts:
                self._texts.update(f"{text}\n".encode("utf-8", "surrogatepass"))

    def facts(self) -> dict[str, str]:
        found = {"rows_sha256": self._rows.hexdigest()}
        return found | ({"texts_sha256": self._texts.hexdigest()} if self._has_texts else {})


def read_blocks(path: Path, dtype: np.dtype[Any], shape: tuple[int, int]) -> Iterator[Block]:
    """Yield blocks of rows, texts and ids of a finished file.

    Texts or ids that the file does not hold are None.
    """
    form = vector_file(path)
    n_rows = 0
    with foreign_format(path, "a file of vectors written by `simcse encode`"):
        if form is VectorFile.PARQUET:
            blocks = _parquet_blocks(path, dtype, shape[1])
        elif form is VectorFile.JSONL:
            blocks = _json_blocks(path, dtype)
        else:
            blocks = ((rows, None, None) for rows in _array_blocks(path, form, dtype, shape))
        for block in blocks:
            n_rows += len(block[0])
            yield block
    if n_rows != shape[0]:
        raise DataError(
            f"{path} holds {n_rows:,} rows, its side file says {shape[0]:,}", hint=DAMAGED
        )


DAMAGED = "it is damaged or unfinished: encode it again with --force"


def _array_blocks(
    path: Path, form: VectorFile, dtype: np.dtype[Any], shape: tuple[int, int]
) -> Iterator[NDArray[Any]]:
    with ExitStack() as stack:
        header = _safetensors_header if form is VectorFile.SAFETENSORS else _npy_header
        if form is VectorFile.NPZ:
            archive = stack.enter_context(zipfile.ZipFile(path))
            stream: IO[bytes] = stack.enter_context(archive.open("vectors.npy"))
        else:
            stream = stack.enter_context(path.open("rb"))
        if stream.read(HEADER_BYTES) != header(dtype, shape):
            raise DataError(f"{path} does not hold {shape[0]:,} x {shape[1]} {dtype}", hint=DAMAGED)
        yield from _stream_blocks(stream, dtype, shape[1])


def _parquet_blocks(path: Path, dtype: np.dtype[Any], width: int) -> Iterator[Block]:
    from pyarrow import parquet  # see _write_parquet

    with parquet.ParquetFile(path) as table:
        for batch in table.iter_batches(CHUNK_ROWS):
            rows = batch.column("vector").flatten().to_numpy()
            ids = batch.column("id").to_pylist() if "id" in batch.schema.names else None
            yield (
                rows.astype(dtype, copy=False).reshape(-1, width),
                batch.column("text").to_pylist(),
                ids,
            )


def _json_blocks(path: Path, dtype: np.dtype[Any]) -> Iterator[Block]:
    with path.open(encoding="utf-8") as lines:
        while records := [json.loads(line) for line in islice(lines, CHUNK_ROWS)]:
            ids = [record["id"] for record in records] if "id" in records[0] else None
            rows = np.array([record["vector"] for record in records], dtype)
            yield rows, [record["text"] for record in records], ids
