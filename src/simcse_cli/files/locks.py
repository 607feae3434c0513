"""Locks that allow one writer per output, name their holder and are freed when it ends."""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from simcse_cli.errors import OutputError
from simcse_cli.files.atomic import _make_folder_of, output_error, remove_leftovers
from simcse_cli.files.streams import STDIO

_held: list[int] = []
_HOLDER = b'{"pid": '  # how what a lock says of its holder begins


@contextmanager
def sole_writer(target: Path, *companions: Path) -> Iterator[None]:
    """Hold the lock of an output while the block writes it; first remove what killed writers of it left.

    The lock is ``flock`` on the file ``.NAME.lock`` beside the output, or ``.lock`` inside an existing output folder.
    The operating system frees it when its holder ends for any reason. On a file system without locks the block runs
    without one. ``companions`` are other files that only writers of ``target`` write.

    Raises:
        OutputError: another process writes the output; the message tells which, where and since when.
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
                for parent in {target.parent, *(other.parent for other in companions)}:
                    names = {other.name for other in (target, *companions) if other.parent == parent}
                    remove_leftovers(parent, names)
        except OSError as error:
            raise output_error(target, error) from error
        _held.append(lock)
        stack.callback(_held.remove, lock)
        yield


def _lock_path(target: Path) -> Path:
    return target / ".lock" if target.is_dir() else target.with_name(f".{target.name}.lock")


def lock_text(target: Path) -> str | None:
    """Return who has been writing an output since when, from its lock; None without a writer."""
    try:
        return _lock_path(target).read_text(encoding="utf-8")
    except OSError:
        return None


def held_locks() -> tuple[int, ...]:
    """Return the descriptors of the locks held here; a process that inherits them shares the locks."""
    return tuple(_held)


def is_locked(folder: Path) -> bool:
    """Tell whether a folder holds a lock file of this program, from a running or a killed writer."""
    try:
        return (folder / ".lock").read_bytes().startswith(_HOLDER)
    except OSError:
        return False


def _lock(path: Path, target: Path) -> int:
    """Take the lock, record its holder in the lock file, and return the file's descriptor."""
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
