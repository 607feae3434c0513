"""Formats of vector files, and the types of stored components.

A file of any format is made from a raw file, which holds the rows one after the other.
"""

import json
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from enum import StrEnum
from hashlib import sha256
from itertools import chain, islice, repeat
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from simcse_cli.arrays import Array, Floats32
from simcse_cli.encoding.parts import windows
from simcse_cli.errors import ConfigError, DataError, reason_of
from simcse_cli.files.safetensors import header_of_one
from simcse_cli.files.schema import foreign_format
from simcse_cli.settings.choices import VectorType

_Dtype = np.dtype[Any]
_Shape = tuple[int, int]
HEADER_BYTES = 256
"""Space before the rows of a raw file, for a header.

The header holds the number of rows, so it is written last.
"""
CHUNK_ROWS = 8192


class VectorFile(StrEnum):
    NPY = ".npy"
    NPZ = ".npz"
    SAFETENSORS = ".safetensors"
    PARQUET = ".parquet"
    JSONL = ".jsonl"


WITH_TEXT = frozenset({VectorFile.PARQUET, VectorFile.JSONL})
DAMAGED = "it is damaged or unfinished: encode it again with --force"


STORED: dict[VectorType, _Dtype] = {
    VectorType.FLOAT32: np.dtype("<f4"),
    VectorType.FLOAT16: np.dtype("<f2"),
    VectorType.INT8: np.dtype("int8"),
    VectorType.BINARY: np.dtype("uint8"),
}


def vector_file(path: Path) -> VectorFile:
    try:
        return VectorFile(path.suffix.lower())
    except ValueError:
        raise ConfigError(
            f"-o {path}: unknown ending {path.suffix or '(none)'!r}",
            hint=f"use one of {', '.join(VectorFile)}",
        ) from None


def stored_width(kind: VectorType, dim: int) -> int:
    """Return the number of stored items in a row; bits are packed eight to a byte."""
    return (dim + 7) // 8 if kind is VectorType.BINARY else dim


def quantize(vectors: Floats32, kind: VectorType) -> Array:
    """Convert rows to the stored type, each row independently of the others.

    ``int8`` scales each row so that its largest absolute component is 127. This changes lengths,
    but hardly cosines: the cosines of 300 captions encoded by MiniLM change by 5e-4 (root mean
    square) and at most 3e-3. ``binary`` stores which components are positive, for comparison by
    Hamming distance: eight components to a byte, the first one in the highest bit. A zero row stays
    zero.
    """
    match kind:
        case VectorType.INT8:
            largest = np.abs(vectors).max(axis=1, keepdims=True)
            return np.rint(127 * vectors / np.where(largest > 0, largest, 1)).astype(np.int8)
        case VectorType.BINARY:
            return np.packbits(vectors > 0, axis=1)
        case _:
            with np.errstate(over="ignore"):  # an overflow is an error below, not a warning
                stored = vectors.astype(STORED[kind], copy=False)
            if not np.isfinite(stored).all():
                raise DataError(
                    f"a component is too large for {kind}", hint="store them with --dtype float32"
                )
            return stored


def finish_file(
    raw: Path,
    target: Path,
    dtype: _Dtype,
    shape: _Shape,
    texts: Iterable[str],
    ids: Iterable[Any] | None = None,
) -> Path:
    """Turn a raw file into the format of the target, and return the path of the complete file.

    The raw file has ``HEADER_BYTES`` of space and then the rows. For ``.npy`` and ``.safetensors``,
    the raw file itself becomes the complete file; other formats are written to ``target``. Equal
    rows give equal bytes.

    ``.npz`` and ``.safetensors`` hold an array ``vectors``. Parquet and JSON Lines hold ``text``
    and ``vector``, preceded by ``id`` if there are ids.
    """
    # Two formats are the raw file itself, once its header is filled in.
    form = vector_file(target)
    if form in (VectorFile.NPY, VectorFile.SAFETENSORS):
        with raw.open("r+b") as stream:
            stream.write(_header(form, dtype, shape))
        return raw

    # The others are written block by block, so that memory stays small.
    with raw.open("rb") as stream:
        stream.seek(HEADER_BYTES)
        blocks = _stream_blocks(stream, dtype, shape[1])
        if form is VectorFile.NPZ:
            _write_archive(target, stream, _header(form, dtype, shape))
        elif form is VectorFile.JSONL:
            id_entries: Iterable[dict[str, Any]] = repeat({}, shape[0])
            if ids is not None:
                id_entries = ({"id": row_id} for row_id in ids)
            _write_lines(target, blocks, texts, id_entries)
        else:
            # Even without rows, one empty block gives the file its columns.
            first = next(blocks, np.empty((0, shape[1]), dtype))
            next_ids = None if ids is None else iter(ids)
            _write_parquet(target, first, blocks, iter(texts), next_ids)
    return target


def json_line(text: str, row: Array, **id_entry: Any) -> str:
    """Return the JSON Lines record of a text and its vector.

    ``id_entry`` is ``id=ID`` for a row that has an id. Components of float32 are written with
    enough digits to be read back exactly.
    """
    values = ",".join(str(value) for value in row)
    head = json.dumps({**id_entry, "text": text}, ensure_ascii=False, default=str)
    # The closing brace of ``head`` is left out.
    return f'{head[:-1]}, "vector": [{values}]}}\n'


def _header(form: VectorFile, dtype: _Dtype, shape: _Shape) -> bytes:
    """Return a header of ``HEADER_BYTES``, in the form of safetensors or of NumPy, version 1.0."""
    if form is VectorFile.SAFETENSORS:
        return header_of_one("vectors", dtype, shape, HEADER_BYTES)
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    # NumPy's magic string (6 bytes), its version (2) and the length (2) come before the text.
    text_length = HEADER_BYTES - 10
    padded = text.ljust(text_length - 1).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + text_length.to_bytes(2, "little") + padded


def _stream_blocks(stream: IO[bytes], dtype: _Dtype, width: int) -> Iterator[Array]:
    while block := stream.read(CHUNK_ROWS * width * dtype.itemsize):
        yield np.frombuffer(block, dtype).reshape(-1, width)


def _write_archive(target: Path, rows: IO[bytes], header: bytes) -> None:
    # A fixed date makes the files of equal rows equal; only zip64 allows entries above 2 GiB.
    entry = zipfile.ZipInfo("vectors.npy", date_time=(1980, 1, 1, 0, 0, 0))
    with (
        zipfile.ZipFile(target, "w") as archive,
        archive.open(entry, "w", force_zip64=True) as out,
    ):
        out.write(header)
        shutil.copyfileobj(rows, out, 1 << 20)


def _write_lines(
    target: Path,
    blocks: Iterator[Array],
    texts: Iterable[str],
    id_entries: Iterable[dict[str, Any]],
) -> None:
    rows = chain.from_iterable(blocks)
    with target.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as lines:
        for text, row, id_entry in zip(texts, rows, id_entries, strict=True):
            lines.write(json_line(text, row, **id_entry))


def _write_parquet(
    target: Path,
    first: Array,
    others: Iterator[Array],
    texts: Iterator[str],
    ids: Iterator[Any] | None,
) -> None:
    from pyarrow import parquet  # takes a fifth of a second, and other formats do not need it

    with target.open("wb") as stream:
        table = _table(first, texts, ids)
        schema = table.schema
        with parquet.ParquetWriter(stream, schema) as writer:
            writer.write_table(table)
            for block in others:
                writer.write_table(_table(block, texts, ids, schema))


def _table(
    block: Array, texts: Iterator[str], ids: Iterator[Any] | None, schema: Any = None
) -> Any:
    """Return a table of a block of rows with the next texts and ids.

    ``schema`` is that of the earlier blocks, or None for the first block: all blocks need one type
    of ids.
    """
    import pyarrow as pa  # see _write_parquet

    columns: dict[str, Any] = {}
    if ids is not None:
        kind = None if schema is None else schema.field("id").type
        columns["id"] = _id_column([next(ids) for _ in block], kind)
    columns["text"] = pa.array([next(texts) for _ in block], pa.string())
    columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), block.shape[1])
    return pa.table(columns)


def _id_column(ids: list[Any], kind: Any = None) -> Any:
    """Return ids as a column of parquet; ``kind`` is the type of earlier ids, if there are any."""
    import pyarrow as pa  # see _write_parquet

    try:
        return pa.array(ids, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError, OverflowError) as error:
        raise DataError(
            f"the ids are of several types, no text or too large ({reason_of(error)})",
            hint="choose another --id-column",
        ) from error


def check_ids_of_parquet(ids: Iterable[Any]) -> None:
    """Raise the error that writing these ids would raise, before anything is computed."""
    kind = None
    for block in windows(ids, CHUNK_ROWS):
        kind = _id_column(block, kind).type


class Block(NamedTuple):
    rows: Array
    texts: list[str] | None = None
    ids: list[Any] | None = None


class RowDigest:
    """Compute the SHA-256 digest of a vector file's rows, and another one of its texts.

    Rows are hashed as they are stored, and texts one per line. A file without texts has only the
    digest of its rows.
    """

    def __init__(self) -> None:
        self._rows = sha256()
        self._texts = sha256()
        self._has_texts = False

    def add(self, rows: Array, texts: Iterable[str] | None) -> None:
        for start in range(0, len(rows), CHUNK_ROWS):
            self._rows.update(np.ascontiguousarray(rows[start : start + CHUNK_ROWS]).data)
        if texts is not None:
            self._has_texts = True
            for text in texts:
                self._texts.update(f"{text}\n".encode("utf-8", "surrogatepass"))

    def facts(self) -> dict[str, str]:
        digests = {"rows_sha256": self._rows.hexdigest()}
        if self._has_texts:
            digests["texts_sha256"] = self._texts.hexdigest()
        return digests


def layout_of(side: Mapping[str, Any]) -> tuple[_Dtype, _Shape]:
    """Return the type and the shape of the stored rows of an output, from its side file."""
    kind = VectorType(side["dtype"])
    return STORED[kind], (side["n_rows"], stored_width(kind, side["dim"]))


def read_blocks(path: Path, side: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the rows, texts and ids of a finished vector file, block by block.

    ``side`` is the content of its side file; raise DataError if the file does not fit it. ``texts``
    or ``ids`` of a block are None if the file holds none.
    """
    dtype, shape = layout_of(side)
    form = vector_file(path)
    n_rows = 0
    with foreign_format(path, "a file of vectors written by `simcse encode`"):
        if form is VectorFile.PARQUET:
            blocks = _parquet_blocks(path, dtype, shape[1])
        elif form is VectorFile.JSONL:
            blocks = _json_blocks(path, dtype)
        else:
            blocks = map(Block, _array_blocks(path, form, dtype, shape))
        for block in blocks:
            n_rows += len(block.rows)
            yield block
    if n_rows != shape[0]:
        raise DataError(
            f"{path} holds {n_rows:,} rows, its side file says {shape[0]:,}", hint=DAMAGED
        )


def _array_blocks(path: Path, form: VectorFile, dtype: _Dtype, shape: _Shape) -> Iterator[Array]:
    with ExitStack() as stack:
        if form is VectorFile.NPZ:
            archive = stack.enter_context(zipfile.ZipFile(path))
            stream: IO[bytes] = stack.enter_context(archive.open("vectors.npy"))
        else:
            stream = stack.enter_context(path.open("rb"))
        if stream.read(HEADER_BYTES) != _header(form, dtype, shape):
            raise DataError(f"{path} does not hold {shape[0]:,} x {shape[1]} {dtype}", hint=DAMAGED)
        yield from _stream_blocks(stream, dtype, shape[1])


def _parquet_blocks(path: Path, dtype: _Dtype, width: int) -> Iterator[Block]:
    from pyarrow import parquet  # see _write_parquet

    with parquet.ParquetFile(path) as table:
        for batch in table.iter_batches(CHUNK_ROWS):
            values = batch.column("vector").flatten().to_numpy()
            rows = values.astype(dtype, copy=False).reshape(-1, width)
            ids = batch.column("id").to_pylist() if "id" in batch.schema.names else None
            yield Block(rows, batch.column("text").to_pylist(), ids)


def _json_blocks(path: Path, dtype: _Dtype) -> Iterator[Block]:
    with path.open(encoding="utf-8") as lines:
        while records := [json.loads(line) for line in islice(lines, CHUNK_ROWS)]:
            ids = [record["id"] for record in records] if "id" in records[0] else None
            rows = np.array([record["vector"] for record in records], dtype)
            yield Block(rows, [record["text"] for record in records], ids)
