"""Training files as they are written: the ending of the name decides; the same rows give the same bytes."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from simcse_cli.data.readers import FileFormat, guess_format
from simcse_cli.errors import OutputError
from simcse_cli.files import STDIO, atomic_path, atomic_text

Row = tuple[str, ...]


def output_format(output: Path | str, columns: Sequence[str]) -> FileFormat:
    """Return the format that the name of an output stands for; stdout is text for one column, else CSV."""
    if str(output) == STDIO:
        return FileFormat.TEXT if len(columns) == 1 else FileFormat.CSV
    fmt = guess_format(output)
    if fmt in (FileFormat.PARQUET, FileFormat.HUB):
        raise OutputError(
            f"{output}: cannot write {fmt}", hint="name it .txt, .csv, .tsv or .jsonl (also .gz)"
        )
    if fmt is FileFormat.TEXT and len(columns) > 1:
        raise OutputError(
            f"{output}: plain text cannot hold the columns {', '.join(columns)}",
            hint="name it .csv, .tsv or .jsonl (also .gz)",
        )
    return fmt


@contextmanager
def open_rows(
    output: Path | str,
    columns: Sequence[str],
    *,
    force: bool = False,
    beside: Callable[[Path], object] | None = None,
) -> Iterator[Callable[[Row], object]]:
    """Yield a function that writes one row of clean texts; the file appears when the block ends well.

    ``beside`` gets the complete file before it appears: what it writes beside that comes to lie beside the output.

    Raises:
        OutputError: the output exists without ``force``, cannot be written, or cannot hold the columns.
    """
    fmt = output_format(output, columns)
    with _open_text(output, force=force, beside=beside) as stream:
        yield _row_writer(stream, fmt, columns)


@contextmanager
def _open_text(
    output: Path | str, *, force: bool, beside: Callable[[Path], object] | None
) -> Iterator[TextIO]:
    if Path(output).suffix != ".gz":
        with atomic_text(output, force=force, beside=beside) as stream:
            yield stream
        return
    # No name and no date in the gzip header: the same rows give the same bytes.
    with (
        atomic_path(output, force=force, beside=beside) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as stream,
    ):
        yield stream


def _row_writer(stream: TextIO, fmt: FileFormat, columns: Sequence[str]) -> Callable[[Row], object]:
    if fmt is FileFormat.TEXT:
        return lambda row: stream.write(f"{row[0]}\n")
    if fmt is FileFormat.JSONL:
        return lambda row: stream.write(
            json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n"
        )
    if fmt is FileFormat.TSV:
        stream.write("\t".join(columns) + "\n")
        return lambda row: stream.write("\t".join(row) + "\n")
    table = csv.writer(stream, lineterminator="\n")
    table.writerow(columns)
    return table.writerow
