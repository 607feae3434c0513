"""The files that a command reads: checked, opened and read, on this machine or in a cloud store."""

import io
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from simcse_cli.errors import DataError, UsageError
from simcse_cli.files.digests import sha256_file
from simcse_cli.files.schema import checked, foreign_format, parse_json

STDIO = "-"
"""The name of standard input and output."""
LARGEST_TEXT = 1 << 28
"""The largest file that is read as a whole, such as JSON, in characters."""
_REMOTE = re.compile(r"(s3|gs|gcs|abfss?|file)://")
_REMOTE_BLOCK = 8 << 20  # bytes to read in one request


def require_file(path: Path | str, *, hint: str | None = None) -> Path:
    """Return ``path`` if it is a readable file that is not empty, else raise DataError."""
    path = Path(path)
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder, need a file", hint=hint)
        if not path.exists():
            raise DataError(f"{path} does not exist", hint=hint or _hint_at_similar(path))
        if not os.access(path, os.R_OK):
            raise DataError(f"{path} cannot be read (permission denied)", hint=hint)
        if path.is_file() and path.stat().st_size == 0:
            raise DataError(f"{path} is empty", hint=hint)
    except OSError as error:  # such as a name that is too long, or a closed folder
        raise DataError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    return path


def require_present(source: Path | str, *, hint: str | None = None) -> None:
    """Raise DataError if a source is the path of a file or folder that does not exist.

    The check takes no time, so that a misspelt name is reported before slow imports. It skips
    standard input, addresses, globs and ``FILE:WEIGHT``, which their readers check.
    """
    text = str(source)
    is_local = text != STDIO and ":" not in text and not any(sign in text for sign in "*?[")
    if is_local and not os.path.exists(text):  # noqa: PTH110 - fails for long names
        require_file(text, hint=hint)  # raises the error


def _hint_at_similar(path: Path) -> str | None:
    """Return a hint at a file beside ``path`` with a similar name, or None if there is none."""
    with suppress(OSError):
        names = [file.name for file in islice(path.parent.iterdir(), 1000)]
        for near in get_close_matches(path.name, names, n=1, cutoff=0.8):
            return f"did you mean {path.with_name(near)}?"
    return None


def is_stream(path: Path | str) -> bool:
    """Tell whether an input is standard input or a pipe, which can be read only once."""
    return str(path) == STDIO or Path(path).is_fifo()


def is_remote(path: Path | str) -> bool:
    """Tell whether a path is an address of S3, Google Cloud Storage, Azure, or ``file://``."""
    return _REMOTE.match(str(path)) is not None


def local_path(path: Path | str) -> Path | str:
    """Return the path in an address ``file://``; leave other paths and addresses as they are."""
    # ``Path("file:///a")`` is ``file:/a``, so only one slash is looked for.
    if not str(path).startswith("file:/"):
        return path
    _, local = file_system(path)
    return type(path)(local)


def file_system(address: Path | str) -> tuple[Any, str]:
    """Return the pyarrow file system of an address and the path in it."""
    from pyarrow import fs  # takes a tenth of a second, and local files do not need it

    with foreign_format(address, "an address such as s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"):
        system, path = fs.FileSystem.from_uri(str(address))
    return system, str(path)


def remote_file(address: Path | str) -> Any:
    """Return what pyarrow knows of a file at an address: type, size and time of last change."""
    system, path = file_system(address)
    with foreign_format(address, "a file that can be reached"):
        return system.get_file_info(path)


def file_state(file: Path | str) -> str:
    """Return a fingerprint of a file: its SHA-256, or the size and time of a remote one."""
    if not is_remote(file):
        return sha256_file(file)
    record = remote_file(file)
    return f"{record.size} {record.mtime_ns}"


@contextmanager
def open_input(source: Path | str) -> Iterator[BinaryIO]:
    """Yield a seekable stream of a file's bytes; raise DataError if it cannot be opened."""
    if not is_remote(source):
        with require_file(source).open("rb") as stream:
            yield stream
        return
    system, path = file_system(source)
    with foreign_format(source, "a file that can be reached"):
        raw = system.open_input_file(path)
    with io.BufferedReader(raw, _REMOTE_BLOCK) as stream:
        yield stream


def read_json(
    path: Path | str, kind: Any = Any, *, place: str | None = None, hint: str | None = None
) -> Any:
    """Return the JSON value of a file, converted to ``kind`` by ``checked``.

    ``place`` names the value in messages; by default it is the path.
    """
    text = read_text(path, hint=hint)
    return checked(parse_json(text, str(path), hint=hint), kind, place or str(path), hint=hint)


def read_text(path: Path | str, *, hint: str | None = None) -> str:
    """Return the text of a small file; raise DataError if it cannot be read or is not UTF-8."""
    try:
        with require_file(path, hint=hint).open(encoding="utf-8") as stream:
            text = stream.read(LARGEST_TEXT + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text", hint=hint) from error
    if len(text) > LARGEST_TEXT:
        raise DataError(f"{path} has more than {LARGEST_TEXT >> 20} MiB", hint=hint)
    return text


class Inputs:
    """The state of input files when a command starts, to detect changes while it reads them."""

    def __init__(self, paths: Iterable[Path | str]) -> None:
        self._seen = {path: _identity(path) for path in paths if str(path) != STDIO}

    def require_unchanged(self, *, hint: str | None = None) -> None:
        """Raise DataError if a file has changed; call this after reading."""
        for path, identity in self._seen.items():
            if _identity(path) != identity:
                hint = hint or "give a copy that nobody writes to"
                raise DataError(f"{path} has changed while it was read", hint=hint)

    def __contains__(self, file: Path | str) -> bool:
        """Tell whether a file is one of these files, under whatever name or link."""
        path = local_path(file)
        if is_remote(path):
            return file in self._seen
        identity = _identity(path)
        return identity is not None and identity in self._seen.values()

    def require_apart(self, output: Path | str) -> None:
        """Raise UsageError if an output is one of the files, under whatever name or link."""
        if output in self:
            raise UsageError(
                f"{output} is read by this command, and would be replaced",
                hint="choose another name for the output",
            )


def _identity(path: Path | str) -> tuple[int, ...] | None:
    """Return facts that change when a file is written, or None if it is no regular file."""
    path = local_path(path)
    if is_remote(path):
        remote = remote_file(path)
        return (remote.size or 0, remote.mtime_ns or 0)
    try:
        status = Path(path).stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):  # such as a pipe, whose times change with each read
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
