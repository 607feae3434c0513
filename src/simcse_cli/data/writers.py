"""Write training files in the format of their ending, each with a manifest.

A manifest records the inputs, the outputs, and how many rows were dropped and why. It holds no date
and no machine name: the same inputs, settings and seed give the same rows and the same manifest,
byte by byte.
"""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from simcse_cli.data.formats import FileFormat, guess_format
from simcse_cli.data.kinds import cell_text
from simcse_cli.data.text import one_line
from simcse_cli.errors import OutputError
from simcse_cli.files.atomic import atomic_path, atomic_text
from simcse_cli.files.digests import sha256_file
from simcse_cli.files.inputs import STDIO
from simcse_cli.files.output import Output
from simcse_cli.version import __version__

Row = tuple[str, ...]
"""One to three texts: a sentence, a pair, or a pair with a hard negative."""
Cells = tuple[str | float, ...]
"""What a row of a table may hold."""


def output_format(output: Path | str, columns: Sequence[str]) -> FileFormat:
    """Return the format of an output by its name; stdout is text for one column, otherwise CSV.

    Raise OutputError for a format that cannot be written, or cannot hold the columns.
    """
    if str(output) == STDIO:
        return FileFormat.TEXT if len(columns) == 1 else FileFormat.CSV
    fmt = guess_format(output)
    # A line of text has no columns.
    text_ending = ".txt, " if len(columns) == 1 else ""
    hint = f"name it {text_ending}.csv, .tsv or .jsonl (also .gz)"
    if fmt in (FileFormat.PARQUET, FileFormat.EXCEL, FileFormat.HUB):
        raise OutputError(f"{output}: cannot write {fmt}", hint=hint)
    if fmt is FileFormat.TEXT and len(columns) > 1:
        kind = "plain text"
        ending = Path(output).suffix
        if ending not in ("", ".txt", ".gz"):
            kind = f"a file of {ending}"
        what = f"{output}: {kind} cannot hold the columns {', '.join(columns)}"
        raise OutputError(what, hint=hint)
    return fmt


def row_output(
    path: Path,
    columns: Sequence[str],
    *,
    inputs: Iterable[Path | str],
    force: bool,
    manifest: bool = True,
) -> Output:
    """Return the output of a command that writes rows.

    With ``manifest``, its record is a manifest file; without, it has no record.
    """
    output_format(path, columns)  # refuses a name that does not fit
    record = manifest_path(path) if manifest else None
    return Output(path, record=record, key="simcse_version", inputs=inputs, force=force)


@contextmanager
def open_rows(
    output: Output, columns: Sequence[str], manifest: Callable[[Path], dict[str, Any]] | None = None
) -> Iterator[Callable[[Cells], object]]:
    """Yield a function that writes one row of numbers and clean texts.

    The file and its manifest appear together at the end. ``manifest`` takes the path of the
    complete file, which is still temporary, and returns the content of the manifest.
    """

    def write_record(complete: Path) -> None:
        facts = manifest(complete) if manifest else {}
        output.write_record(complete.parent, facts)

    fmt = output_format(output.path, columns)
    with _open_text(output.path, force=output.force, companions=write_record) as stream:
        yield _row_writer(stream, fmt, columns)


@contextmanager
def _open_text(
    output: Path | str, *, force: bool, companions: Callable[[Path], object]
) -> Iterator[TextIO]:
    """Yield a text stream that becomes the output, compressed if its name ends in ``.gz``.

    The function ``companions`` is called with the path of the complete temporary file. The files
    that it writes beside this file will appear beside the output.
    """
    if Path(output).suffix != ".gz":
        with atomic_text(output, force=force, companions=companions) as stream:
            yield stream
        return
    # No name and no date in the gzip header: the same rows give the same bytes.
    with (
        atomic_path(output, force=force, companions=companions) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, "utf-8", "backslashreplace", newline="\n") as stream,
    ):
        yield stream


def _row_writer(
    stream: TextIO, fmt: FileFormat, columns: Sequence[str]
) -> Callable[[Cells], object]:
    """Write the header, if the format has one, and return a function that writes a row."""
    if fmt is FileFormat.TEXT:
        return lambda row: stream.write(f"{row[0]}\n")
    if fmt is FileFormat.JSONL:

        def write_object(row: Any) -> None:
            # A row that is no tuple of cells is a value of JSON already.
            record = dict(zip(columns, row, strict=True)) if isinstance(row, tuple) else row
            # Values that JSON lacks, such as dates, are written as texts.
            stream.write(json.dumps(record, ensure_ascii=False, default=cell_text) + "\n")

        return write_object
    # Clean texts hold neither tabs nor line ends, so that nothing has to be quoted.
    if fmt is FileFormat.TSV:
        stream.write("\t".join(map(one_line, columns)) + "\n")
        return lambda row: stream.write("\t".join(map(_cell, row)) + "\n")
    table = csv.writer(stream, lineterminator="\n")
    table.writerow(columns)
    return lambda row: table.writerow(map(_cell, row))


def _cell(value: str | float) -> str:
    """Return a text as it is, and a number with six digits after the point."""
    return value if isinstance(value, str) else f"{value:.6f}"


def describe_file(path: Path | str) -> dict[str, Any]:
    """Return name, size and SHA-256 of a local file; any other source has a name only."""
    size = sha256 = None
    if str(path) != STDIO and Path(path).is_file():
        size = Path(path).stat().st_size
        sha256 = sha256_file(path)
    return {"path": str(path), "bytes": size, "sha256": sha256}


def build_manifest(
    kind: str,
    *,
    inputs: Sequence[Path | str],
    folder: Path,
    outputs: Iterable[tuple[Path, int]],
    settings: dict[str, Any],
    seed: int | None,
    **results: Any,
) -> dict[str, Any]:
    """Return the manifest as JSON values.

    ``outputs`` are the written files, each with its number of rows; the manifest names them
    relative to ``folder``. ``seed`` is None if nothing is random; ``results`` holds counts,
    findings and other results.
    """
    written = []
    for path, n_rows in outputs:
        name = path.relative_to(folder).as_posix()
        written.append(describe_file(path) | {"path": name, "rows": n_rows})
    return {
        "kind": kind,
        "simcse_version": __version__,
        "seed": seed,
        "settings": settings,
        "inputs": list(map(describe_file, inputs)),
        "outputs": written,
        **results,
    }


def manifest_path(output: Path | str) -> Path:
    return Path(f"{output}.manifest.json")
