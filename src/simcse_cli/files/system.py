"""Functions that differ between operating systems: locks, links, disks, memory and processes."""

import ctypes
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from simcse_cli.errors import ConfigError

_LOCKED_BYTE = 1 << 30
"""The byte to lock on Windows, where nobody can read a locked byte.

It lies behind the text that names the holder, so that the text can be read.
"""
_FROM_HERE = -100  # AT_FDCWD of Linux
_EXCHANGE = 2  # RENAME_EXCHANGE
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def open_itself(path: Path, flags: int) -> int:
    """Open a file and return its descriptor; raise OSError (``ELOOP``) if it is a link."""
    if sys.platform == "win32":
        if path.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        return os.open(path, flags | os.O_BINARY, 0o666)
    # Without O_NONBLOCK, opening a named pipe could wait for ever.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def try_lock(descriptor: int) -> bool:
    """Lock a file until its descriptor is closed; return False if another process has locked it.

    On a file system without locks, the result is True.
    """
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def remove_locked(path: Path, descriptor: int) -> None:
    """Close and remove a file that this process has locked."""
    if sys.platform == "win32":
        # Windows removes no open file, so close it first; the next holder may then have it open.
        os.close(descriptor)
        with suppress(PermissionError):
            path.unlink(missing_ok=True)
        return
    try:
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk; Windows skips folders."""
    flags = os.O_RDONLY
    if sys.platform == "win32":
        if path.is_dir():
            return
        flags = os.O_RDWR  # Windows flushes only what is open for writing
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot flush a folder.
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def memory_bytes() -> int | None:
    """Return the memory of this machine in bytes; None if the system does not tell it."""
    import psutil  # takes 20 ms, and is needed only for records

    try:
        return int(psutil.virtual_memory().total)
    except OSError:
        return None


def swap_names(new: Path, old: Path) -> bool:
    """Exchange two paths in one step; if that is impossible, change nothing and return False."""
    if not sys.platform.startswith("linux"):
        return False
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    # The argument before each path is the folder that the path is relative to: the current one.
    status = renameat2(_FROM_HERE, os.fsencode(new), _FROM_HERE, os.fsencode(old), _EXCHANGE)
    return int(status) == 0


def usable_cores(quotas: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores that the CPU affinity and the container's quota allow.

    ``quotas`` is the folder of control groups.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1

    # Read quota and period, in microseconds; a quota of "max" or -1 means none.
    numbers: list[str] = []
    with suppress(OSError):
        numbers = (quotas / "cpu.max").read_text().split()
    if not numbers:
        with suppress(OSError):  # version 1 of control groups
            quota = (quotas / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (quotas / "cpu" / "cpu.cfs_period_us").read_text()
            numbers = [quota.strip(), period.strip()]
    if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
        cores = min(cores, max(1, int(numbers[0]) // int(numbers[1])))
    return cores


def peak_process_bytes() -> int:
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    # macOS counts bytes, Linux counts KiB.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def apart(descriptors: Sequence[int]) -> dict[str, Any]:
    """Return the options of ``Popen`` for a process that Ctrl-C does not reach.

    The process inherits the ``descriptors``, except on Windows.
    """
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"pass_fds": descriptors, "start_new_session": True}


def stop_signals() -> tuple[signal.Signals, ...]:
    if sys.platform == "win32":
        return signal.SIGINT, signal.SIGTERM, signal.SIGBREAK
    return signal.SIGINT, signal.SIGTERM


def ask_to_stop(process: "subprocess.Popen[bytes]", signum: int) -> None:
    """Pass a stop signal on to a process started with ``apart``; Windows can only send SIGBREAK."""
    if sys.platform == "win32":
        signum = signal.CTRL_BREAK_EVENT
    process.send_signal(signum)


def default_cache_dir() -> Path:
    """Return the cache folder: ``SIMCSE_CACHE``, or ``simcse`` in the user's cache."""
    if chosen := os.environ.get("SIMCSE_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simcse"
    except RuntimeError:
        what = "there is no home folder to keep a cache in"
        raise ConfigError(what, hint="name a folder for it: export SIMCSE_CACHE=FOLDER") from None
