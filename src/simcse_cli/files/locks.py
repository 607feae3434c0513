"""Locks that allow one writer for each output.

A lock names its holder, and is freed when the holder ends.
"""

import errno
import json
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from simcse_cli.errors import OutputError
from simcse_cli.files.atomic import make_folder_of, remove_leftovers, writing
from simcse_cli.files.inputs import STDIO
from simcse_cli.files.system import open_itself, remove_locked, try_lock

_held: list[int] = []  # descriptors of the lock files of this process
_BEGINNING = '{"pid": '  # of the text of a lock file


@contextmanager
def sole_writer(target: Path, *companions: Path) -> Iterator[None]:
    """Hold the lock of an output while the block writes it; remove the remains of killed writers.

    The lock is on the file ``.NAME.lock`` beside the output, or on ``.lock`` inside an existing
    output folder. The operating system frees it when the holder ends for any reason. On a file
    system without locks, the block runs without one. ``companions`` are other files that only
    writers of ``target`` write; their remains are removed, too. At the end, the folders that this
    call created are removed if they are empty.
    """
    if str(target) == STDIO:
        yield
        return
    missing = [folder for folder in target.parents if not folder.exists()]
    with ExitStack() as stack:
        stack.callback(remove_empty, missing)
        make_folder_of(target)

        with writing(target):
            path = _lock_path(target)
            lock = _lock(path, target)
            stack.callback(_release, path, lock, target)
            if path.parent == target:  # the output is a folder
                remove_leftovers(target)
            else:
                for file in (target, *companions):
                    remove_leftovers(file.parent, file.name)
        _held.append(lock)
        stack.callback(_held.remove, lock)
        yield


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, the innermost first, until one is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _lock_path(target: Path) -> Path:
    if target.is_dir():
        return target / ".lock"
    return target.with_name(f".{target.name}.lock")


def lock_text(target: Path) -> str | None:
    """Return the text of an output's lock file, which names its writer; None if there is none."""
    try:
        return _lock_path(target).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def held_locks() -> tuple[int, ...]:
    """Return the descriptors of the locks; a child process that inherits them holds the locks."""
    return tuple(_held)


def is_locked(folder: Path) -> bool:
    """Tell whether a folder has a lock file of this program, even one of a killed writer."""
    return folder.is_dir() and (lock_text(folder) or "").startswith(_BEGINNING)


def _lock(path: Path, target: Path) -> int:
    """Take the lock, record its holder in the lock file, and return the file's descriptor."""
    while True:
        lock = _open_lock(path)
        with ExitStack() as clean_up:
            clean_up.callback(os.close, lock)
            if not try_lock(lock):
                hint = "wait until it has finished, or choose another place with -o"
                what = f"{target} is being written by {_holder(_content(lock))}"
                raise OutputError(what, hint=hint)

            # The file is locked now. It must be a file of this program, and still have its name.
            content = _content(lock)
            if content and not content.startswith(_BEGINNING):
                raise OutputError(f"{path} is no lock of this program", hint="rename it")
            if not (os.path.lexists(path) and os.path.samestat(os.fstat(lock), os.lstat(path))):
                # The previous holder has removed the file meanwhile: close it, and open a new one.
                continue
            # The lock is held now. If recording its holder fails, the file must be removed, not
            # only closed; ``remove_locked`` does both.
            clean_up.pop_all()  # drops ``os.close``
            clean_up.callback(remove_locked, path, lock)
            _record_holder(lock)
            clean_up.pop_all()  # the lock is kept
        return lock


def _open_lock(path: Path) -> int:
    try:
        return open_itself(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OutputError(f"{path} is a link", hint=f"remove it: rm {path}") from error
        raise


def _record_holder(lock: int) -> None:
    """Write into a lock file that this process holds it."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    os.ftruncate(lock, 0)
    os.lseek(lock, 0, os.SEEK_SET)
    os.write(lock, json.dumps(facts).encode())


def _release(path: Path, lock: int, target: Path) -> None:
    with writing(target):  # if this fails, the file stays, and the next holder uses it
        remove_locked(path, lock)


def _content(lock: int) -> str:
    """Return the text of the open lock file."""
    os.lseek(lock, 0, os.SEEK_SET)
    return os.read(lock, 1000).decode("utf-8", "replace")


def _holder(facts: str) -> str:
    """Say in words which process wrote ``facts``, the text of a lock file."""
    try:
        holder = json.loads(facts)
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
