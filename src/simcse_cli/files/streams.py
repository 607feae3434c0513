"""Read the lines of a text, with errors that name the line; ``-`` means a standard stream."""

import codecs
import gzip
import io
import os
import re
import shlex
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from simcse_cli.errors import DataError, reason_of
from simcse_cli.files.encodings import plausible_encodings
from simcse_cli.files.inputs import STDIO, open_input
from simcse_cli.files.schema import parse_json

LONGEST_LINE = 64 << 20

# The first bytes of a file that is no text; what the file is, and the command that makes it a text.
_BEGINNINGS = {
    b"\x1f\x8b": ("packed with gzip", "zcat {} > FILE"),
    b"PK\x03\x04": ("a zip archive", "unzip -p {} > FILE"),
    b"\xfd7zXZ": ("packed with xz", "xz -dc {} > FILE"),
    b"\x28\xb5\x2f\xfd": ("packed with zstd", "zstd -dc {} > FILE"),
    b"BZh": ("packed with bzip2", "bzip2 -dc {} > FILE"),
    b"SQLite format 3\0": (
        "an SQLite database",
        "sqlite3 -csv -header {} 'select * from TABLE' > FILE.csv",
    ),
}
_Stream = BinaryIO | gzip.GzipFile


def open_standard_streams() -> None:
    """Make the standard streams accept any text in any locale.

    Input and output are UTF-8, except on a terminal; lone surrogates are written as escapes. A
    closed stream is opened to the null device. Otherwise the next file that is opened would get the
    stream's descriptor, and libraries would write their output into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            encoding = None if stream.isatty() else "utf-8"  # None keeps that of the terminal
            stream.reconfigure(encoding=encoding, errors=errors, newline="\n")


def conversion_hint(name: str, command: str, ending: str) -> str:
    """Return a hint with the command that converts the file ``name``.

    ``command`` takes the file as its last argument, or else reads standard input. What it prints
    goes to a file whose name has ``ending`` added.
    """
    if name == "standard input":
        return f"put `{command}` into the pipe before it"
    plain = Path(name.removesuffix(".gz"))
    new_file = shlex.quote(f"{plain.stem}-{ending}{plain.suffix}")
    whole_command = f"{command} {shlex.quote(name)}"
    if name.endswith(".gz"):
        whole_command = f"zcat {shlex.quote(name)} | {command}"
    return f"convert it first, for example: {whole_command} > {new_file}"


def _encoding_hint(name: str, encoding: str, *, asks_encoding: bool = False) -> str:
    """Return how to read a file in this encoding.

    If the command has the option ``--encoding`` (``asks_encoding``), it is the answer. Otherwise,
    the file has to be converted to UTF-8.
    """
    if asks_encoding:
        return f"--encoding {encoding}"
    # Names have hyphens for iconv, where those of Python have underscores.
    iconv_name = {"mac_roman": "macintosh"}.get(encoding, encoding.replace("_", "-"))
    return conversion_hint(name, f"iconv -f {iconv_name} -t utf-8", "utf8")


def raw_lines(stream: _Stream, name: str) -> Iterator[bytes]:
    """Yield the lines of a binary stream with their ends; raise DataError if one is too long."""
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise _endless(name, number)
        yield line


def _endless(name: str, number: int) -> DataError:
    what = f"{name}, line {number}: more than {LONGEST_LINE >> 20} MiB without a line end"
    return DataError(what, hint="give a file with one sentence or record a line")


_BLOCK = 1 << 20


def _decoded_lines(
    stream: _Stream, name: str, encoding: str, *, asks_encoding: bool
) -> Iterator[str]:
    """Yield the lines of a stream without their ends; raise DataError for what is not text.

    Whole blocks are decoded, which is fast. Only for an error message are lines decoded one by one.
    """
    # Look at the first block, and put it back. In a wide encoding, a byte 10 may be no line end, so
    # such a text is converted to UTF-8 first.
    blocks = _whole_lines(stream, name)
    first = next(blocks, b"")
    blocks = chain([first], blocks)
    if not is_wide(encoding):
        encoding = encoding_of_mark(first) or encoding
    if is_wide(encoding):
        blocks = _utf8_lines(blocks, name, encoding)
        encoding = "utf-8"

    n_before = 0  # lines in the blocks before
    for block in blocks:
        if (b"\x1b$" in block or b"~{" in block) and _is_utf8(encoding):
            _refuse_seven_bits(block, name, n_before, asks_encoding=asks_encoding)
        if b"\0" in block:
            _refuse_packed(first, name)
            _refuse_nul(block, name, n_before)
        try:
            text = block.decode(encoding)
        except UnicodeError as error:
            _refuse_packed(first, name)
            raise _not_text(block, name, n_before, encoding, asks_encoding=asks_encoding) from error

        # Split the block into lines, without the byte order mark and without line ends.
        if not n_before:
            text = text.removeprefix("\ufeff")
        lines = text.split("\n")
        if lines[-1] == "":  # what follows the last line end
            del lines[-1]
        n_before += len(lines)
        if "\r" in text:
            lines = [line.rstrip("\r") for line in lines]
        yield from lines


def _whole_lines(stream: _Stream, name: str) -> Iterator[bytes]:
    """Yield blocks of whole lines as they arrive; raise DataError for a line that is too long."""
    # ``read1`` returns what has arrived, where ``read`` would wait for a full block.
    read = getattr(stream, "read1", stream.read)
    beginning = b""  # of a line whose end has not been read; it may come from several blocks
    n_lines = 0
    while block := read(_BLOCK):
        first_end = block.find(b"\n") + 1  # 0 if no line ends in this block
        if len(beginning) + (first_end or len(block)) > LONGEST_LINE:
            raise _endless(name, n_lines + 1)
        if not first_end:
            beginning += block
            continue
        last_end = block.rfind(b"\n") + 1
        whole = beginning + block[:last_end]
        beginning = block[last_end:]
        n_lines += whole.count(b"\n")
        yield whole
    if beginning:
        yield beginning


def _refuse_packed(start: bytes, name: str) -> None:
    """Raise DataError if a file begins like an archive or a database."""
    for beginning, (kind, command) in _BEGINNINGS.items():
        if start.startswith(beginning):
            unpacking = command.format(shlex.quote(name))
            raise DataError(f"{name}: {kind}, need text", hint=f"write a text file: {unpacking}")


def _refuse_nul(block: bytes, name: str, n_before: int) -> None:
    """Raise the error of a block with a NUL byte; ``n_before`` lines come before the block."""
    # In UTF-16, every second byte of an English text is 0; in UTF-32, two in four of most texts.
    high_bytes_of = {
        "utf-32le": block[2::4] + block[3::4],
        "utf-32be": block[::4] + block[1::4],
        "utf-16le": block[1::2],
        "utf-16be": block[::2],
    }
    for encoding, high_bytes in high_bytes_of.items():
        least_share = 0.9 if encoding.startswith("utf-32") else 0.5
        if not n_before and high_bytes.count(0) > least_share * len(high_bytes):
            raise DataError(
                f"{name}: {encoding.upper()} text without a byte order mark",
                hint=_encoding_hint(name, encoding),
            )
    number = n_before + block[: block.index(b"\0")].count(b"\n") + 1
    raise DataError(
        f"{name}, line {number}: a NUL byte; this is a binary file, need text",
        hint="give a .txt, .jsonl, .csv, .tsv or .parquet file (named so, possibly .gz)",
    )


# How letters outside ASCII begin in encodings of seven bits, which ASCII text seldom has.
_SEVEN_BITS = {
    "iso-2022-jp": re.compile(rb"\x1b\$(?:[@B]|\(D)"),
    "iso-2022-kr": re.compile(rb"\x1b\$\)C"),
    "hz": re.compile(rb"~\{(?:[!-w][!-~])+~\}"),
}


def _refuse_seven_bits(block: bytes, name: str, n_before: int, *, asks_encoding: bool) -> None:
    """Raise DataError if a block is in an encoding that writes all letters as ASCII.

    One line with the escapes of ISO-2022 is enough. The marks of HZ may occur in any text, so at
    least half of the lines must have them.
    """
    lines = block.split(b"\n")
    n_filled = sum(map(bool, lines))
    for encoding, pattern in _SEVEN_BITS.items():
        found = [number for number, line in enumerate(lines, start=1) if pattern.search(line)]
        if not found:
            continue
        hint = _encoding_hint(name, encoding, asks_encoding=asks_encoding)
        if encoding == "hz":
            # Not every iconv can convert HZ, so this is an error only if there is --encoding.
            if not asks_encoding or 2 * len(found) < n_filled:
                continue
            hint += "\n        if these are texts of plain ASCII: --encoding ascii"
        place = f"{name}, line {n_before + found[0]}"
        raise DataError(f"{place}: {encoding.upper()} text, need UTF-8", hint=hint)


def _not_text(
    block: bytes, name: str, n_before: int, encoding: str, *, asks_encoding: bool
) -> DataError:
    """Return the error of the first line that cannot be decoded, with encodings that might fit.

    ``n_before`` is the number of lines before the block.
    """
    # The first line that cannot be decoded gives the place. If the encoding carries a state from
    # line to line, there may be no such line, and the error names only the file.
    place = name
    for number, raw in enumerate(block.split(b"\n"), start=n_before + 1):
        try:
            raw.decode(encoding)
        except UnicodeError as error:
            place = f"{name}, line {number}, byte {getattr(error, 'start', 0) + 1}"
            break
    what = f"{place}: not {encoding.upper()} text"

    # If lines are in several encodings, no encoding reads the file.
    n_utf8, n_others = _count_utf8(block)
    if _is_utf8(encoding) and n_utf8 > n_others / 10:
        n_all = n_utf8 + n_others
        what += f"; of {n_all:,} lines that are not plain ASCII, {n_utf8:,} are UTF-8, need all"
        search = f"LC_ALL=C.UTF-8 {'zgrep' if name.endswith('.gz') else 'grep'} -naxv '.*'"
        if name != "standard input":
            search += f" {shlex.quote(name)}"
        return DataError(what, hint=f"mend the lines that are not UTF-8; list them: {search}")
    if n_utf8 and not n_others:
        return DataError(what, hint="it is UTF-8 text: leave out --encoding")
    choices = []
    for other, text in plausible_encodings(block):
        what += f"\n   as {other} it reads {text}"
        choices.append(_encoding_hint(name, other, asks_encoding=asks_encoding))
    if not choices:
        what += ", and no other encoding is found in which its letters make sense"
        needed = _encoding_hint(name, "NAME", asks_encoding=asks_encoding)
        choices.append(f"find out its encoding, NAME, then {needed}")
    return DataError(what, hint="\n        ".join(choices))


def _count_utf8(block: bytes) -> tuple[int, int]:
    """Count the lines that are not plain ASCII: those that are UTF-8, and the others."""
    n_utf8 = n_others = 0
    for line in block.split(b"\n"):
        try:
            line.decode()
            n_utf8 += not line.isascii()
        except UnicodeDecodeError:
            n_others += 1
    return n_utf8, n_others


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "utf-8"


def encoding_of_mark(start: bytes) -> str | None:
    """Return the wide encoding that a byte order mark names, as in Excel's "Unicode text"."""
    # The mark of UTF-32 begins with that of UTF-16, so it is looked for first.
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return None


def is_wide(encoding: str) -> bool:
    """Tell whether every letter has several bytes, as in UTF-16; a byte 10 may be in a letter."""
    return b"\0" in "\n".encode(encoding)


def _utf8_lines(raws: Iterable[bytes], name: str, encoding: str) -> Iterator[bytes]:
    """Convert pieces of a wide text, which may end anywhere, to blocks of whole UTF-8 lines."""
    decoder = codecs.getincrementaldecoder(encoding)()
    beginning = ""  # of a line whose end has not been read
    try:
        # The empty piece behind the others tells the decoder that the text ends.
        for raw in chain(raws, [b""]):
            text = beginning + decoder.decode(raw, final=not raw)
            # Without a line end in the text, ``rpartition`` returns all of it as ``beginning``.
            lines, end, beginning = text.rpartition("\n")
            if end:
                yield (lines + end).encode()
    except UnicodeError as error:
        what = f"{name}: {encoding.upper()} text that is cut or damaged ({error})"
        raise DataError(what) from error
    if beginning:
        yield beginning.encode()


def iter_lines(
    source: Path | str, *, encoding: str = "utf-8", asks_encoding: bool = False
) -> Iterator[str]:
    """Yield the lines of a text file without their ends, which are LF or CR LF.

    ``-`` is standard input, and a ``.gz`` file is unpacked. ``asks_encoding`` tells whether the
    command has the option ``--encoding``, which an error may then suggest.
    """
    name = "standard input" if str(source) == STDIO else str(source)
    try:
        with _opened(source) as stream:
            yield from _decoded_lines(stream, name, encoding, asks_encoding=asks_encoding)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} cannot be read: {reason_of(error)}") from error


@contextmanager
def _opened(source: Path | str) -> Iterator[_Stream]:
    """Yield stdin, or the stream of a file, which is unpacked if its name ends in ``.gz``."""
    if str(source) == STDIO:
        if sys.stdin is None:
            raise DataError("standard input is closed", hint="name a file, or redirect one: < FILE")
        yield sys.stdin.buffer
        return
    is_packed = str(source).endswith(".gz")
    with open_input(source) as raw, gzip.open(raw) if is_packed else nullcontext(raw) as stream:
        yield stream


def iter_json_lines(source: Path | str, *, hint: str | None = None) -> Iterator[tuple[int, Any]]:
    """Yield the line number and the value of each line that is not blank in a JSON Lines file."""
    name = "standard input" if str(source) == STDIO else str(source)
    for number, line in enumerate(iter_lines(source), start=1):
        if line.strip():
            yield number, parse_json(line, name, line=number, hint=hint)
