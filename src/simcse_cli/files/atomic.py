"""Write files that appear complete or not at all."""

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from simcse_cli.errors import OutputError, SimcseError
from simcse_cli.files.inputs import STDIO
from simcse_cli.files.system import sync

EXISTS_HINT = "choose another name, or overwrite it with --force"
LONGEST_NAME = 215
"""Maximum bytes in the name of an output: 255 minus the suffixes of files beside it."""
_HINTS = {
    errno.ENOSPC: "free some space or choose another place with -o",
    errno.EDQUOT: "free some space or choose another place with -o",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f) or choose another place with -o",
    errno.ENAMETOOLONG: "choose a shorter name",
}
_ADDRESS = re.compile(r"\w[\w+-]+:/")  # not C:/; a Path keeps one of the two slashes
_LEFTOVER = re.compile(r"\.(?P<name>.+)\.simcse-[0-9a-f]{8}\.(?P<kind>tmp|old)", re.DOTALL)


def check_output(path: Path | str, *, force: bool = False) -> Path:
    """Return ``path`` if it may be written, after creating its folder, or raise OutputError.

    With ``force``, there may be a file already.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder, need a file name", hint="name a file inside it")
        make_folder_of(path)
        if os.path.lexists(path) and not force:
            raise OutputError(f"{path} exists already", hint=EXISTS_HINT)
    except OSError as error:
        raise output_error(path, error) from error
    return path


def require_local(path: Path) -> None:
    """Raise OutputError if the path of an output is an address, such as ``s3://BUCKET/FILE``."""
    if _ADDRESS.match(str(path)):
        address = str(path).replace(":/", "://", 1)
        hint = "write to a path here, and copy it to the address"
        raise OutputError(f"{address} is an address, need a path on this machine", hint=hint)


def make_folder_of(path: Path) -> None:
    """Create the folder of an output.

    Raise OutputError if that fails, or if the path is an address or a device, or its name too long.
    """
    require_local(path)
    n_bytes = len(os.fsencode(path.name))
    if n_bytes > LONGEST_NAME:
        what = f"{path.name[:40]}...: the name has {n_bytes} bytes, it can have {LONGEST_NAME}"
        raise OutputError(what, hint="choose a shorter name")
    if _is_special(path):
        hint = "use -o - for standard output, or choose another name"
        raise OutputError(f"{path} is no regular file", hint=hint)
    hint = "choose another place with -o"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot create the folder {path.parent}: {error.strerror}"
        raise OutputError(what, hint=hint) from error
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"the folder {path.parent} is not writable", hint=hint)


def _is_special(path: Path) -> bool:
    """Tell whether a path is that of a device, a pipe or a socket."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    # A path such as /dev/stdout may be a link to a regular file, but it is special all the same.
    is_regular = stat.S_ISREG(mode) and path.parent != Path("/dev")
    return not (is_regular or stat.S_ISDIR(mode))


def output_error(path: Path, error: OSError, *, hint: str | None = None) -> OutputError:
    """Return the error of a failed write; it names the file and, for some errors, the fix."""
    hint = hint or _HINTS.get(error.errno or 0)
    return OutputError(f"cannot write {path}: {error.strerror or error}", hint=hint)


def temporary_beside(target: Path, kind: str = "tmp") -> Path:
    """Return a random name beside ``target`` that ``remove_leftovers`` recognises.

    ``kind`` is ``tmp`` for new content, or ``old`` for a folder that is moved aside.
    """
    return target.with_name(f".{target.name}.simcse-{os.urandom(4).hex()}.{kind}")


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files that killed writers have left in a folder.

    The files are those of the output ``name``, by default of all outputs; the caller holds their
    lock. A folder that was moved aside (``old``) is restored if its replacement never appeared.
    """
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        leftover = _LEFTOVER.fullmatch(path.name)
        if leftover is None or name not in (None, leftover["name"]):
            continue
        # Until its replacement has appeared, a folder that was moved aside is the only copy.
        if leftover["kind"] == "old" and not os.path.lexists(folder / leftover["name"]):
            os.replace(path, folder / leftover["name"])
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def fsync_tree(folder: Path) -> None:
    """Give the files in a new folder the folder's permissions, and flush all to disk."""
    # The folder has its permissions from the umask; files are not executable.
    mode = stat.S_IMODE(folder.stat().st_mode) & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)
        sync(path)
    sync(folder)


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``target`` for its new content; delete it at the end."""
    folder = temporary_beside(target)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(complete: Path, target: Path, folder: Path) -> None:
    """Move the file ``complete`` to ``target``, and its companions beside the target.

    The companions are the other files in ``folder``. If there are any, an earlier target is removed
    first and the new target comes last, so that no target ever has the companions of another one.
    If ``complete`` lies outside the folder, it must be on disk already.
    """
    # Write everything to disk first, so that no name ever leads to missing bytes.
    fsync_tree(folder)
    companions = [path for path in folder.iterdir() if path != complete]
    if companions:
        target.unlink(missing_ok=True)
    for path in companions:
        os.replace(path, target.with_name(path.name))
    os.replace(complete, target)
    sync(target.parent)


@contextmanager
def writing(target: Path, *, hint: str | None = None) -> Iterator[None]:
    """Within the block, turn an error of the operating system into one that names the output.

    The error may come from a Rust library, which has the system's number in its text. ``hint``
    replaces the usual hints, which suit only an output that the user named.
    """
    try:
        yield
    except OSError as error:
        raise output_error(target, error, hint=hint) from error
    except Exception as error:
        match = re.search(r"\(os error (\d+)\)", str(error))  # Rust puts the number into its text
        if match is None or isinstance(error, SimcseError):
            raise
        code = int(match[1])
        refusal = OSError(code, os.strerror(code))
        raise output_error(target, refusal, hint=hint) from refusal


@contextmanager
def atomic_path(
    target: Path | str, *, force: bool = False, companions: Callable[[Path], object] | None = None
) -> Iterator[Path]:
    """Yield a temporary path that becomes ``target`` on success.

    The function ``companions`` is called with the complete temporary file. All files that it writes
    beside the temporary file will be beside the target.
    """
    target = check_output(target, force=force)
    with writing(target), staging_folder(target) as folder:
        temporary = folder / target.name
        yield temporary
        if companions is not None:
            companions(temporary)
        # Another program may have created the target in the meantime.
        check_output(target, force=force)
        publish(temporary, target, folder)


@contextmanager
def atomic_text(
    target: Path | str, *, force: bool = False, companions: Callable[[Path], object] | None = None
) -> Iterator[TextIO]:
    """Yield a UTF-8 text stream that becomes ``target`` on success; ``-`` writes to stdout.

    Lone surrogates, as in file names that are not UTF-8, are written as JSON escapes. The function
    ``companions`` writes further files beside the target, as ``atomic_path`` says; stdout has none.
    """
    if str(target) == STDIO:
        with standard_output() as stream:
            yield stream
        return
    with (
        atomic_path(target, force=force, companions=companions) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as stream,
    ):
        yield stream


@contextmanager
def standard_output() -> Iterator[TextIO]:
    """Yield stdout and flush it at the end; raise BrokenPipeError if its reader has ended."""
    if sys.stdout is None:
        hint = "write to a file, or redirect it: > FILE"
        raise OutputError("standard output is closed", hint=hint)
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # Python flushes the rest of the buffer at exit: send it to the null device.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise output_error(Path("standard output"), error) from error


def write_json(target: Path | str, value: Any) -> None:
    """Write ``value`` as indented JSON; refuse NaN (a missing score is null)."""
    with atomic_text(target, force=True) as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False, allow_nan=False)
        stream.write("\n")
