"""What each operating system does in its own way; stand-ins take the place of what only another one has."""

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest

from simcse_cli.errors import OutputError
from simcse_cli.files import system
from simcse_cli.files.locks import sole_writer
from simcse_cli.training.sweep import trial_name


@pytest.fixture
def locked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Take the branches of Windows; return where bytes of files were locked."""
    places: list[int] = []

    def locking(descriptor: int, mode: int, n_bytes: int) -> None:
        assert (mode, n_bytes) == (2, 1)
        places.append(os.lseek(descriptor, 0, os.SEEK_CUR))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    unlink = Path.unlink

    def unlink_closed(path: Path, missing_ok: bool = False) -> None:
        if str(path) in [each.path for each in psutil.Process().open_files()]:
            raise PermissionError(errno.EACCES, "used by another process")
        unlink(path, missing_ok=missing_ok)

    msvcrt = ModuleType("msvcrt")
    vars(msvcrt).update(LK_NBLCK=2, locking=locking)
    monkeypatch.setitem(sys.modules, "msvcrt", msvcrt)
    monkeypatch.setattr(system, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(os, "O_BINARY", 0, raising=False)
    monkeypatch.setattr(Path, "unlink", unlink_closed)
    return places


def test_a_lock_of_windows_has_one_holder_whom_others_can_read(tmp_path, locked_at):
    output, lock = tmp_path / "out", tmp_path / ".out.lock"
    with sole_writer(output):
        assert lock.stat().st_size < min(locked_at)  # nobody else can read a locked byte
        with pytest.raises(OutputError, match=f"being written by process {os.getpid()} on"):
            sole_writer(output).__enter__()
        assert lock.exists()
    assert len(locked_at) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_windows_that_the_next_holder_has_open_is_left_to_it(tmp_path, locked_at):
    with sole_writer(tmp_path / "out"):
        waiting = (tmp_path / ".out.lock").open()
    with waiting:
        assert (tmp_path / ".out.lock").exists()
    with sole_writer(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_removed_is_left_to_the_next_holder(tmp_path, monkeypatch):
    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with (
            pytest.raises(OutputError, match="Read-only file system"),
            sole_writer(tmp_path / "out"),
        ):
            pass
    assert (tmp_path / ".out.lock").exists()
    with sole_writer(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_links_are_not_followed(tmp_path, platform, request):
    if platform == "win32":
        request.getfixturevalue("locked_at")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number tells
        system.open_itself(tmp_path / "link", os.O_WRONLY | os.O_CREAT)
    assert caught.value.errno == errno.ELOOP
    descriptor = system.open_itself(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    os.close(descriptor)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["file", "link"]


@pytest.mark.usefixtures("locked_at")
def test_windows_flushes_files_that_are_open_for_writing_and_no_folders(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: flushed.append(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_RDWR)
    )
    (tmp_path / "file").touch()
    system.sync(tmp_path)
    system.sync(tmp_path / "file")
    assert flushed == [os.O_RDWR]


@pytest.mark.parametrize(("platform", "peak"), [("linux", 3 * 1024), ("darwin", 3), ("win32", 4)])
def test_peak_memory_is_in_bytes(platform, peak, monkeypatch):
    monkeypatch.setattr(system, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=3))
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=4))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    assert system.peak_process_bytes() == peak


def test_memory_is_that_of_all_pages():
    assert system.memory_bytes() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_processes_of_windows_are_stopped_by_the_signal_that_reaches_them(monkeypatch):
    process = Mock()
    system.ask_to_stop(process, signal.SIGTERM)
    assert system.apart([5]) == {"pass_fds": [5], "start_new_session": True}
    monkeypatch.setattr(system, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(signal, "CTRL_BREAK_EVENT", 1, raising=False)
    monkeypatch.setattr(signal, "SIGBREAK", 21, raising=False)
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 512, raising=False)
    system.ask_to_stop(process, signal.SIGTERM)
    assert [call.args for call in process.send_signal.call_args_list] == [(signal.SIGTERM,), (1,)]
    assert system.apart([5]) == {"creationflags": 512}
    assert 21 in system.stop_signals()


def test_a_folder_of_a_trial_has_a_name_on_every_system():
    assert trial_name({"model": r"a/b\c", "augment": "delete:0.2", "lr": 1e-5}) == (
        "model=a_b_c,augment=delete_0.2,lr=1e-05"
    )


def test_memory_that_the_system_does_not_tell_is_unknown(monkeypatch):
    monkeypatch.setattr(
        "psutil.virtual_memory", Mock(side_effect=FileNotFoundError("/proc/meminfo"))
    )
    assert system.memory_bytes() is None


@pytest.mark.parametrize(
    ("files", "n_cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_cores_are_those_of_the_affinity_and_the_quota(files, n_cores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert system.usable_cores(tmp_path) == n_cores


def test_two_names_are_swapped_in_one_step_where_the_system_can(tmp_path, monkeypatch):
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text(name)
    if system.swap_names(tmp_path / "new", tmp_path / "old"):
        assert (tmp_path / "old" / "content").read_text() == "new"
        assert (tmp_path / "new" / "content").read_text() == "old"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not system.swap_names(tmp_path / "new", tmp_path / "old")
