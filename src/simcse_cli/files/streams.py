"""Read text and bytes, with errors that name the line; ``-`` means a standard stream."""

import codecs
import csv
import gzip
import hashlib
import io
import os
import re
import shlex
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from difflib import get_close_matches
from functools import partial
from importlib.resources import files
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from simcse_cli.errors import ConfigError, DataError, reason_of
from simcse_cli.files.encodings import plausible_encodings
from simcse_cli.files.schema import checked, foreign_format, parse_json

STDIO = "-"
LONGEST_LINE = 64 << 20
LARGEST_TEXT = 1 << 28
"""Largest file that is read at once, such as JSON, in characters."""
_REMOTE = re.compile(r"(s3|gs|gcs|abfss?|file)://")
_REMOTE_BLOCK = 8 << 20  # each is a separate request


def default_cache_dir() -> Path:
    """Return the cache folder: ``SIMCSE_CACHE``, else ``simcse`` below ``XDG_CACHE_HOME`` or ``~/.cache``."""
    if chosen := os.environ.get("SIMCSE_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simcse"
    except RuntimeError:
        what = "there is no home folder to keep a cache in"
        raise ConfigError(what, hint="name a folder for it: export SIMCSE_CACHE=FOLDER") from None


def open_standard_streams() -> None:
    """Make the standard streams accept any text in any locale: UTF-8, with lone surrogates as escapes.

    Closed ones are opened to the null device: the next file would get their number, and the output
    of libraries.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            encoding = None if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors=errors, newline="\n")


def read_json(
    path: Path | str, kind: Any = Any, *, place: str | None = None, hint: str | None = None
) -> Any:
    """Return the JSON value of a file, converted to ``kind`` (see ``checked``); ``place`` is for messages."""
    text = read_text(path, hint=hint)
    return checked(parse_json(text, str(path), hint=hint), kind, place or str(path), hint=hint)


def read_text(path: Path | str, *, hint: str | None = None) -> str:
    """Return the text of a small file; raise DataError if it is missing, a folder, empty or not UTF-8."""
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


def iter_json_lines(
    source: Path | str, *, encoding: str = "utf-8", lenient: bool = False, hint: str | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each line of JSON Lines that is not blank; see ``parse_json``."""
    name = "standard input" if str(source) == STDIO else str(source)
    for number, line in enumerate(iter_lines(source, encoding=encoding), start=1):
        if line.strip():
            yield number, parse_json(line, name, line=number, lenient=lenient, hint=hint)


class Inputs:
    """The state of a command's input files at its start, to detect changes while they are read."""

    def __init__(self, paths: Iterable[Path | str]) -> None:
        self._seen = {path: _identity(path) for path in paths if str(path) != STDIO}

    def require_unchanged(self, *, hint: str | None = None) -> None:
        """Raise DataError if a file has changed; call this after reading."""
        for path, identity in self._seen.items():
            if _identity(path) != identity:
                hint = hint or "give a copy that nobody writes to"
                raise DataError(f"{path} has changed while it was read", hint=hint)


def _identity(path: Path | str) -> tuple[int, ...] | None:
    """Return facts that change with the content of a file; None if there is no file."""
    if is_remote(path):
        seen = remote_file(path)
        return (seen.size or 0, seen.mtime_ns or 0)
    try:
        found = Path(path).stat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):  # a pipe has other times after each read
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def resource(name: str) -> str:
    return (files("simcse_cli") / "resources" / name).read_text(encoding="utf-8")


def resource_rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a tab-separated file that comes with the package, by column."""
    return csv.DictReader(resource(name).splitlines(), delimiter="\t")


def sha256_file(path: Path | str) -> str:
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(*parts: str | bytes | memoryview) -> str:
    """Return the SHA-256 of concatenated parts as 64 hex digits; texts are UTF-8, where surrogates pass."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
    return state.hexdigest()


_ENCODER_MARK = "2-"


def encoder_digest(*parts: str | bytes | memoryview) -> str:
    """Return the digest of an encoder, with a mark that tells it from those of version 1.0.0.

    Those cover neither the tokenizer nor the configuration, so that nothing is known by them.
    """
    return _ENCODER_MARK + digest(*parts)


def is_older_digest(found: object, now: str) -> bool:
    """Tell whether a recorded digest of an encoder is of version 1.0.0, and that of today is not."""
    is_marked = isinstance(found, str) and found.startswith(_ENCODER_MARK)
    return found is not None and now.startswith(_ENCODER_MARK) and not is_marked


OLDER_DIGEST = (
    "is of simcse 1.0.0, whose record of a model leaves out its tokenizer and its configuration"
)


def require_file(path: Path | str, *, hint: str | None = None) -> Path:
    """Return ``path`` if it is a readable file with something in it."""
    path = Path(path)
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder, need a file", hint=hint)
        if not path.exists():
            raise DataError(f"{path} does not exist", hint=hint or _near(path))
        if not os.access(path, os.R_OK):
            raise DataError(f"{path} cannot be read (permission denied)", hint=hint)
        if path.is_file() and path.stat().st_size == 0:
            raise DataError(f"{path} is empty", hint=hint)
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise DataError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    return path


def _near(path: Path) -> str | None:
    """Return a hint at a neighbour of a missing file whose name is like its own."""
    near: list[str] = []
    with suppress(OSError):
        names = [each.name for each in islice(path.parent.iterdir(), 1000)]
        near = get_close_matches(path.name, names, 1, cutoff=0.8)
    return f"did you mean {path.with_name(near[0])}?" if near else None


def is_remote(path: Path | str) -> bool:
    """Tell whether an input or output is an address: S3, Google Cloud Storage, Azure, or ``file://``."""
    return _REMOTE.match(str(path)) is not None


def file_system(address: Path | str) -> tuple[Any, str]:
    """Return the pyarrow file system of an address and the path in it."""
    from pyarrow import fs  # takes a tenth of a second, and local files do not need it

    with foreign_format(address, "an address such as s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"):
        system, path = fs.FileSystem.from_uri(str(address))
    return system, str(path)


def remote_file(address: Path | str) -> Any:
    """Return what pyarrow knows about a file at an address: type, size and time of its last change."""
    system, path = file_system(address)
    with foreign_format(address, "a file that can be reached"):
        return system.get_file_info(path)


def file_state(file: Path | str) -> str:
    """Return a fingerprint of a file: its SHA-256, or the size and time of a remote one."""
    if not is_remote(file):
        return sha256_file(file)
    seen = remote_file(file)
    return f"{seen.size} {seen.mtime_ns}"


@contextmanager
def open_input(source: Path | str) -> Iterator[BinaryIO]:
    """Yield a seekable stream of the bytes of a file, local or remote; the errors are those of ``require_file``."""
    if not is_remote(source):
        with require_file(source).open("rb") as stream:
            yield stream
        return
    system, path = file_system(source)
    with foreign_format(source, "a file that can be reached"):
        raw = system.open_input_file(path)
    with io.BufferedReader(raw, _REMOTE_BLOCK) as stream:
        yield stream


def _conversion(name: str) -> str:
    """Return a hint that converts a file to UTF-8, under a name with the same ending."""
    if name == "standard input":
        return "put `iconv -f cp1252 -t utf-8` into the pipe before it"
    plain = Path(name.removesuffix(".gz"))
    fixed = shlex.quote(f"{plain.stem}-utf8{plain.suffix}")
    unpack = f"zcat {shlex.quote(name)} | " if name.endswith(".gz") else ""
    file = "" if unpack else f" {shlex.quote(name)}"
    return f"convert it first, for example: {unpack}iconv -f cp1252 -t utf-8{file} > {fixed}"


def raw_lines(stream: BinaryIO | gzip.GzipFile, name: str) -> Iterator[bytes]:
    """Yield the lines of a binary stream with their ends; a DataError for an endless one names the line."""
    for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), start=1):
        if len(line) > LONGEST_LINE:
            what = f"{name}, line {number}: more than {LONGEST_LINE >> 20} MiB without a line end"
            raise DataError(what, hint="give a file with one sentence or record a line")
        yield line


_BLOCK = 1 << 20


def _decoded_lines(
    stream: BinaryIO | gzip.GzipFile, name: str, encoding: str, *, asks_encoding: bool = False
) -> Iterator[str]:
    """Yield the lines of a stream, decoded in blocks; a fault in a block is looked for line by line."""
    n_before, blocks = 0, _whole_lines(stream, name)
    first = next(blocks, b"")
    blocks = chain([first], blocks)
    if is_utf16(first):
        blocks, encoding = _utf8_lines(blocks, name), "utf-8"
    for block in blocks:
        if b"\0" in block:
            _refuse_nul(block, name, n_before)
        try:
            text = block.decode(encoding)
        except UnicodeDecodeError as error:
            raise _not_text(block, name, n_before, encoding, asks_encoding=asks_encoding) from error
        if not n_before:
            text = text.removeprefix("\ufeff")
        lines = text.split("\n")
        if lines[-1] == "":
            del lines[-1]
        n_before += len(lines)
        if "\r" in text:
            lines = [line.rstrip("\r") for line in lines]
        yield from lines


def _whole_lines(stream: BinaryIO | gzip.GzipFile, name: str) -> Iterator[bytes]:
    """Yield blocks of whole lines as they come; a DataError for an endless line names it."""
    read = getattr(stream, "read1", stream.read)
    rest, n_lines = b"", 0
    while block := read(_BLOCK):
        first_end = block.find(b"\n") + 1
        if len(rest) + (first_end or len(block)) > LONGEST_LINE:
            what = (
                f"{name}, line {n_lines + 1}: more than {LONGEST_LINE >> 20} MiB without a line end"
            )
            raise DataError(what, hint="give a file with one sentence or record a line")
        if not first_end:
            rest += block
            continue
        last_end = block.rfind(b"\n") + 1
        whole, rest = rest + block[:last_end], block[last_end:]
        n_lines += whole.count(b"\n")
        yield whole
    if rest:
        yield rest


def _refuse_nul(block: bytes, name: str, n_before: int) -> None:
    number = n_before + block[: block.index(b"\0")].count(b"\n") + 1
    raise DataError(
        f"{name}, line {number}: a NUL byte; this is a binary file, need text",
        hint="give a .txt, .jsonl, .csv, .tsv or .parquet file (named so, possibly .gz)",
    )


def _not_text(
    block: bytes, name: str, n_before: int, encoding: str, *, asks_encoding: bool
) -> DataError:
    """Return the error of the first line that is not in the encoding, with those that it may be in."""
    for number, raw in enumerate(block.split(b"\n"), start=n_before + 1):
        try:
            raw.decode(encoding)
        except UnicodeDecodeError as error:
            place = f"{name}, line {number}, byte {error.start + 1}"
            break
    what = f"{place}: not {encoding.upper()} text"
    found = plausible_encodings(block) if asks_encoding else []
    if not found:
        return DataError(what, hint=_conversion(name))
    shown = "".join(f"\n   as {each} it reads {text}" for each, text in found)
    return DataError(
        what + shown, hint="\n        ".join(f"--encoding {each}" for each, _ in found)
    )


def is_utf16(start: bytes) -> bool:
    """Tell by its byte order mark whether a text is UTF-16, such as Excel's "Unicode text"."""
    return start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def _utf8_lines(raws: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield whole lines of a UTF-16 text, which comes in pieces, in UTF-8."""
    decoder, rest = codecs.getincrementaldecoder("utf-16")(), ""
    try:
        for raw in chain(raws, [b""]):
            lines, end, rest = (rest + decoder.decode(raw, final=not raw)).rpartition("\n")
            if end:
                yield (lines + end).encode()
    except UnicodeError as error:
        raise DataError(f"{name}: UTF-16 text that is cut or damaged ({error})") from error
    if rest:
        yield rest.encode()


def iter_lines(
    source: Path | str, *, encoding: str = "utf-8", asks_encoding: bool = False
) -> Iterator[str]:
    """Yield the lines of a text file without their ends, LF or CR LF alone; ``-`` is stdin and ``.gz`` is unpacked.

    ``asks_encoding`` is whether an error may name the option ``--encoding``.
    """
    if str(source) == STDIO:
        if sys.stdin is None:
            raise DataError("standard input is closed", hint="name a file, or redirect one: < FILE")
        yield from _decoded_lines(
            sys.stdin.buffer, "standard input", encoding, asks_encoding=asks_encoding
        )
        return
    try:
        is_packed = str(source).endswith(".gz")
        with open_input(source) as raw, gzip.open(raw) if is_packed else nullcontext(raw) as stream:
            yield from _decoded_lines(stream, str(source), encoding, asks_encoding=asks_encoding)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{source} cannot be read: {reason_of(error)}") from error
