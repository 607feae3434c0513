"""Atomic file writes, one writer an output, text input with errors that name the line, and digests.

``-`` is standard input or output, opened here; messages to people go through the console.
"""

import codecs
import contextlib
import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import stat
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from simcse_cli.errors import ConfigError, DataError, OutputError, SimcseError, reason_of
from simcse_cli.schema import foreign_format, parse_json

STDIO = "-"
LONGEST_NAME = 215
"""Bytes in the name of an output: 255 less what the names of files beside it add."""
_REMOTE = re.compile(r"(s3|gs|gcs|abfss?|file)://")
_REMOTE_BLOCK = 8 << 20  # each is a request of its own
_held: list[int] = []
_HOLDER = b'{"pid": '  # how what a lock says of its holder begins
_LEFTOVER = re.compile(r"\.(?P<name>.+)\.simcse-[0-9a-f]{8}\.(?P<kind>tmp|old)", re.DOTALL)


def default_cache_dir() -> Path:
    """Return the cache folder: ``SIMCSE_CACHE``, else ``simcse`` below ``XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        ConfigError: no variable names one, and the user has no home folder.
    """
    if chosen := os.environ.get("SIMCSE_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simcse"
    except RuntimeError:
        raise ConfigError(
            "there is no home folder to keep a cache in",
            hint="name a folder for it: export SIMCSE_CACHE=FOLDER",
        ) from None


def check_output(path: Path | str, *, force: bool = False) -> Path:
    """Return ``path`` if it may be written, creating its parent folder.

    Raises:
        OutputError: it exists and ``force`` is off, or its folder cannot be created or written.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder, need a file name", hint="name a file inside it")
        if os.path.lexists(path) and not force:
            raise OutputError(
                f"{path} exists already", hint="choose another name, or overwrite it with --force"
            )
        if path.exists() and not path.is_file():
            raise OutputError(f"{path} is no regular file", hint="choose another name; - is standard output")
    except OSError as error:
        raise output_error(path, error) from error
    _make_folder_of(path)
    return path


def _make_folder_of(path: Path) -> None:
    """Create the folder of an output; OutputError if it or the name of the output cannot be."""
    n_bytes = len(os.fsencode(path.name))
    if n_bytes > LONGEST_NAME:
        raise OutputError(
            f"{path.name[:40]}...: the name has {n_bytes} bytes, it can have {LONGEST_NAME}",
            hint="choose a shorter name",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot create the folder {path.parent}: {error.strerror}", hint="choose another place with -o"
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"the folder {path.parent} is not writable", hint="choose another place with -o")


def output_error(path: Path, error: OSError) -> OutputError:
    """Return the error to raise when writing ``path`` failed: it names the file and, for a full disk, the fix."""
    hint = {
        errno.ENOSPC: "free some space or choose another place with -o",
        errno.EDQUOT: "free some space or choose another place with -o",
        errno.EFBIG: "raise the limit on file sizes (ulimit -f) or choose another place with -o",
        errno.ENAMETOOLONG: "choose a shorter name",
    }.get(error.errno or 0)
    return OutputError(f"cannot write {path}: {error.strerror or error}", hint=hint)


@contextmanager
def sole_writer(target: Path, *beside: Path) -> Iterator[None]:
    """Hold the lock of an output while the block writes it, and remove what killed writers of it left first.

    The lock is ``flock`` on the file ``.NAME.lock`` beside the output, or ``.lock`` inside it where the
    output is a folder that exists. The operating system frees it when its holder ends, however it ends. On a
    file system without locks the block goes on without one. ``beside`` are other files that only writers of
    ``target`` write.

    Raises:
        OutputError: another process writes the output: says which, where and since when.
    """
    if str(target) == STDIO:
        yield
        return
    _make_folder_of(target)
    with ExitStack() as stack:
        try:
            path = _lock_path(target)
            lock = _lock(path, target)
            stack.callback(_unlock, path, lock)
            if path.parent == target:
                remove_leftovers(target)
            else:
                for parent in {target.parent, *(other.parent for other in beside)}:
                    names = {other.name for other in (target, *beside) if other.parent == parent}
                    remove_leftovers(parent, names)
        except OSError as error:
            raise output_error(target, error) from error
        _held.append(lock)
        stack.callback(_held.remove, lock)
        yield


def _lock_path(target: Path) -> Path:
    return target / ".lock" if target.is_dir() else target.with_name(f".{target.name}.lock")


def lock_text(target: Path) -> str | None:
    """Return who writes an output since when, as its lock says; None where nobody does."""
    try:
        return _lock_path(target).read_text(encoding="utf-8")
    except OSError:
        return None


def held_locks() -> tuple[int, ...]:
    """Return the descriptors of the locks held here: a process that gets them holds the locks too."""
    return tuple(_held)


def is_locked(folder: Path) -> bool:
    """Tell whether a folder holds a lock of this program: something writes it, or was killed while it did."""
    try:
        return (folder / ".lock").read_bytes().startswith(_HOLDER)
    except OSError:
        return False


def _lock(path: Path, target: Path) -> int:
    """Return the descriptor of the lock file, which holds the lock and says whose it is."""
    while True:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OutputError(f"{path} is a link", hint=f"remove it: rm {path}") from error
            raise
        with ExitStack() as on_failure:
            on_failure.callback(os.close, lock)
            _take(lock, target)
            holder = os.pread(lock, 1000, 0)
            if holder and not holder.startswith(_HOLDER):
                raise OutputError(f"{path} is no lock of this program", hint="rename it")
            if not (os.path.lexists(path) and os.path.samestat(os.fstat(lock), os.lstat(path))):
                continue  # its holder has removed it in between
            on_failure.callback(path.unlink, missing_ok=True)
            facts = {"pid": os.getpid(), "host": socket.gethostname()}
            facts["since"] = datetime.now(UTC).isoformat(timespec="seconds")
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps(facts).encode(), 0)
            on_failure.pop_all()
        return lock


def _take(lock: int, target: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(
            f"{target} is being written by {_holder(os.pread(lock, 1000, 0))}",
            hint="wait until it has finished, or choose another place with -o",
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise


def _holder(facts: bytes) -> str:
    try:
        holder = json.loads(facts)
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _unlock(path: Path, lock: int) -> None:
    path.unlink(missing_ok=True)
    os.close(lock)


def temporary_beside(target: Path, kind: str = "tmp") -> Path:
    """Return a random name beside ``target``; ``remove_leftovers`` knows it."""
    return target.with_name(f".{target.name}.simcse-{secrets.token_hex(4)}.{kind}")


def remove_leftovers(folder: Path, names: Collection[str] | None = None) -> None:
    """Remove what killed writers left in a folder: what stands for the outputs ``names``, or for any.

    The caller holds their lock. A folder that was put aside for a new one (``old``) is put back if the new one
    did not come.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        found = _LEFTOVER.fullmatch(path.name)
        if found is None or (names is not None and found["name"] not in names):
            continue
        if found["kind"] == "old" and not os.path.lexists(folder / found["name"]):
            os.replace(path, folder / found["name"])
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # some file systems cannot for folders
            raise
    finally:
        os.close(descriptor)


def settle(folder: Path) -> None:
    """Give the files in a new folder the mode that the umask gave the folder, and return when all is on the disk."""
    mode = stat.S_IMODE(folder.stat().st_mode) & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)
        sync(path)
    sync(folder)


@contextmanager
def own_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside ``target`` for what will take its place, deleted at the end.

    Its name is random, so no name in it can be somebody's link; ``publish`` moves what is in it.
    """
    folder = temporary_beside(target)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(complete: Path, target: Path, folder: Path) -> None:
    """Move a complete file to ``target``, and before it the other files in ``folder`` beside it.

    All are on the disk before the first is moved. Whoever finds the target finds what belongs to it: an earlier
    target is removed before another's files come.
    """
    settle(folder)
    others = [path for path in folder.iterdir() if path != complete]
    if others:
        target.unlink(missing_ok=True)
    for path in others:
        os.replace(path, target.with_name(path.name))
    os.replace(complete, target)
    sync(target.parent)


@contextmanager
def atomic_path(
    target: Path | str, *, force: bool = False, beside: Callable[[Path], object] | None = None
) -> Iterator[Path]:
    """Yield a temporary path; rename it to ``target`` on success, delete it on any failure.

    ``beside`` gets the complete temporary file; files that it writes beside that come to lie beside the target.

    Raises:
        OutputError: the target exists (without ``force``) or cannot be written.
    """
    target = check_output(target, force=force)
    try:
        with own_folder(target) as folder:
            temporary = folder / target.name
            yield temporary
            if beside is not None:
                beside(temporary)
            check_output(target, force=force)
            publish(temporary, target, folder)
    except OSError as error:
        raise output_error(target, error) from error
    except Exception as error:
        told = re.search(r"\(os error (\d+)\)", str(error))  # libraries in Rust say it in words
        if told is None or isinstance(error, SimcseError):
            raise
        code = int(told[1])
        raise output_error(target, OSError(code, os.strerror(code))) from error


@contextmanager
def atomic_text(
    target: Path | str, *, force: bool = False, beside: Callable[[Path], object] | None = None
) -> Iterator[TextIO]:
    """Yield a UTF-8 text stream that becomes ``target`` on success; ``-`` is stdout and is written as it comes.

    Half characters, as in file names that are not UTF-8, are written as the escapes that JSON has for them.
    """
    if str(target) == STDIO:
        with standard_output() as stream:
            yield stream
        return
    with (
        atomic_path(target, force=force, beside=beside) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as stream,
    ):
        yield stream


def open_standard_streams() -> None:
    """Make the standard streams take any text in any locale: data are UTF-8, half characters are shown as escapes.

    Closed ones are opened to nothing, or the next file would get their number and with it what libraries print.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors=errors)


@contextmanager
def standard_output() -> Iterator[TextIO]:
    """Yield stdout, flushed at the end.

    Raises:
        OutputError: it is closed or full. A reader that has gone away stays a ``BrokenPipeError``.
    """
    if sys.stdout is None:
        raise OutputError("standard output is closed", hint="write to a file, or redirect it: > FILE")
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # what is left in the buffer would fail again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise output_error(Path("standard output"), error) from error


def write_json(target: Path | str, value: Any) -> None:
    """Write ``value`` as indented JSON; NaN is refused (a missing score is null)."""
    with atomic_text(target, force=True) as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False, allow_nan=False)
        stream.write("\n")


def read_json(path: Path | str, *, hint: str | None = None) -> Any:
    """Return the JSON value of a file; DataError where it cannot be read or is not JSON."""
    return parse_json(read_text(path, hint=hint), str(path), hint=hint)


def read_text(path: Path | str, *, hint: str | None = None) -> str:
    """Return a small text file as a whole; DataError where it is missing, a folder, empty or not UTF-8."""
    try:
        return require_file(path, hint=hint).read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text", hint=hint) from error


def iter_json_lines(
    source: Path | str, *, encoding: str = "utf-8", lenient: bool = False, hint: str | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each line of JSON Lines that is not blank; see ``parse_json``."""
    name = "standard input" if str(source) == STDIO else str(source)
    for number, line in enumerate(iter_lines(source, encoding=encoding), start=1):
        if line.strip():
            yield number, parse_json(line, name, line=number, lenient=lenient, hint=hint)


class Inputs:
    """The input files of a command as they were when it began, so that none changes unnoticed while it is read."""

    def __init__(self, paths: Iterable[Path | str]) -> None:
        self._seen = {path: _identity(path) for path in paths if str(path) != STDIO}

    def require_unchanged(self, *, hint: str = "give a copy that nobody writes to") -> None:
        """Raise DataError if a file is not the one that it was, to be called after it has been read."""
        for path, identity in self._seen.items():
            if _identity(path) != identity:
                raise DataError(f"{path} has changed while it was read", hint=hint)


def _identity(path: Path | str) -> tuple[int, ...] | None:
    """Return what changes with the content of a file; None where there is none."""
    if is_remote(path):
        system, inside = file_system(path)
        with foreign_format(path, "a file that can be reached"):
            seen = system.get_file_info(inside)
        return (seen.size or 0, seen.mtime_ns or 0)
    try:
        found = Path(path).stat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):  # a pipe has other times after each read
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def check_record(path: Path, key: str, *, force: bool) -> None:
    """Raise OutputError if the record beside an output would replace somebody's file: one without ``key``."""
    if force or not os.path.lexists(path):
        return
    try:
        found = read_json(path)
    except DataError:
        found = None
    if not isinstance(found, dict) or key not in found:
        check_output(path)


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
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder, need a file", hint=hint)
        if not path.exists():
            raise DataError(f"{path} does not exist", hint=hint)
        if not os.access(path, os.R_OK):
            raise DataError(f"{path} cannot be read (permission denied)", hint=hint)
        if path.is_file() and path.stat().st_size == 0:
            raise DataError(f"{path} is empty", hint=hint)
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise DataError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    return path


def is_remote(path: Path | str) -> bool:
    """Say whether an input or output is an address: S3, Google Cloud Storage, Azure, or ``file://``."""
    return _REMOTE.match(str(path)) is not None


def file_system(address: Path | str) -> tuple[Any, str]:
    """Return the pyarrow file system of an address and the path in it.

    Raises:
        DataError: no such address, or no access to it.
    """
    from pyarrow import fs  # a tenth of a second that local files need not pay

    with foreign_format(address, "an address such as s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"):
        system, path = fs.FileSystem.from_uri(str(address))
    return system, str(path)


@contextmanager
def open_input(source: Path | str) -> Iterator[BinaryIO]:
    """Yield the bytes of a file, local or remote, which can be read from any place.

    Raises:
        DataError: it is missing, a folder, unreadable or empty.
    """
    if not is_remote(source):
        with require_file(source).open("rb") as stream:
            yield stream
        return
    system, path = file_system(source)
    with foreign_format(source, "a file that can be reached"):
        raw = system.open_input_file(path)
    with io.BufferedReader(raw, _REMOTE_BLOCK) as stream:
        yield stream


def _conversion(name: str, encoding: str) -> str:
    """Return the hint that makes UTF-8 of a file, under a name of the same ending, which says the format."""
    if name == "standard input":
        return f"put `iconv -f {encoding} -t utf-8` into the pipe before it"
    plain = Path(name.removesuffix(".gz"))
    fixed = shlex.quote(f"{plain.stem}-utf8{plain.suffix}")
    unpack = f"zcat {shlex.quote(name)} | " if name.endswith(".gz") else ""
    file = "" if unpack else f" {shlex.quote(name)}"
    return f"convert it first, for example: {unpack}iconv -f {encoding} -t utf-8{file} > {fixed}"


def _decoded_lines(stream: Iterable[bytes], name: str, encoding: str) -> Iterator[str]:
    for number, raw in enumerate(stream, start=1):
        if number == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{name}: UTF-16 text, need UTF-8", hint=_conversion(name, "utf-16"))
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
                hint=_conversion(name, "latin1"),
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
        if sys.stdin is None:
            raise DataError("standard input is closed", hint="name a file, or redirect one: < FILE")
        yield from _decoded_lines(sys.stdin.buffer, "standard input", encoding)
        return
    try:
        is_packed = str(source).endswith(".gz")
        with open_input(source) as raw, gzip.open(raw) if is_packed else nullcontext(raw) as stream:
            yield from _decoded_lines(stream, str(source), encoding)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{source} cannot be read: {reason_of(error)}") from error
