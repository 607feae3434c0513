"""Atomic file writes, text input with errors that name the line, and digests.

``-`` is standard input or output, opened here; messages to people go through the console.
"""

import gzip
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from simcse_cli.errors import DataError, OutputError

STDIO = "-"


def check_output(path: Path | str, *, force: bool = False) -> Path:
    """Return ``path`` if it may be written, creating its parent folder.

    Raises:
        OutputError: it exists and ``force`` is off, or its folder cannot be created or written.
    """
    path = Path(path)
    if path.is_dir():
        raise OutputError(f"{path} is a folder, need a file name", hint="name a file inside it")
    if path.exists() and not force:
        raise OutputError(f"{path} exists already", hint="choose another name, or overwrite it with --force")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot create the folder {path.parent}: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"the folder {path.parent} is not writable", hint="choose another place with -o")
    return path


def output_error(path: Path, error: OSError) -> OutputError:
    """Return the error to raise when writing ``path`` failed: it names the file and, for a full disk, the fix."""
    hint = "free some space or choose another place with -o" if error.errno == 28 else None
    return OutputError(f"cannot write {path}: {error.strerror or error}", hint=hint)


@contextmanager
def atomic_path(target: Path | str, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; rename it to ``target`` on success, delete it on any failure.

    Raises:
        OutputError: the target exists (without ``force``) or cannot be written.
    """
    target = check_output(target, force=force)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise output_error(target, error) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_text(target: Path | str, *, force: bool = False) -> Iterator[TextIO]:
    """Yield a UTF-8 text stream that becomes ``target`` on success; ``-`` is stdout and is written as it comes."""
    if str(target) == STDIO:
        yield sys.stdout
        sys.stdout.flush()
        return
    with (
        atomic_path(target, force=force) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        yield stream


def write_json(target: Path | str, value: Any, *, force: bool = True) -> None:
    """Write ``value`` as indented JSON; NaN is refused (a missing score is null)."""
    with atomic_text(target, force=force) as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False, allow_nan=False)
        stream.write("\n")


def read_json(path: Path | str) -> Any:
    """Return the JSON value of a file; DataError where it is missing or is not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text") from error


def sha256_file(path: Path | str) -> str:
    """Return 64 hex digits."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def require_file(path: Path | str, *, hint: str | None = None) -> Path:
    """Return ``path`` if it is a readable file with something in it.

    Raises:
        DataError: it is missing, a folder, unreadable or empty.
    """
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder, need a file", hint=hint)
    if not path.exists():
        raise DataError(f"{path} does not exist", hint=hint)
    if not os.access(path, os.R_OK):
        raise DataError(f"{path} cannot be read (permission denied)", hint=hint)
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path} is empty", hint=hint)
    return path


def _decoded_lines(stream: Iterable[bytes], name: str, encoding: str) -> Iterator[str]:
    for number, raw in enumerate(stream, start=1):
        if b"\0" in raw:
            raise DataError(
                f"{name}, line {number}: a NUL byte; this is a binary file, need text",
                hint="give a .txt, .jsonl, .csv, .tsv or .parquet file (named so, possibly .gz)",
            )
        try:
            line = raw.decode(encoding)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}, byte {error.start + 1}: not {encoding.upper()} text",
                hint=f"convert it first, for example: iconv -f latin1 -t utf-8 {name} > fixed.txt",
            ) from error
        if number == 1:
            line = line.removeprefix("\ufeff")
        yield line.rstrip("\r\n")


def iter_lines(source: Path | str, *, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text file without their line ends; ``-`` is stdin and ``.gz`` is unpacked.

    Lines end at LF only (CR LF is accepted), so that no Unicode separator splits a sentence.

    Raises:
        DataError: missing, empty, binary or wrongly encoded input; names file, line and byte.
    """
    if str(source) == STDIO:
        yield from _decoded_lines(sys.stdin.buffer, "standard input", encoding)
        return
    path = require_file(source)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            yield from _decoded_lines(stream, str(path), encoding)
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
