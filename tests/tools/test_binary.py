"""The head of the one-file binary, with a payload of a few bytes in place of an interpreter and its packages."""

import importlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import LIMIT_S, wait_until

zstandard = pytest.importorskip("zstandard")
pytestmark = [
    pytest.mark.upkeep,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]
SOURCES = Path(__file__).resolve().parents[2] / "tools" / "binary"
# Stands for the interpreter: unpacks with this one, and is the program.
INTERPRETER = f"""#!/bin/sh
case "$1" in
  -m) shift 2; echo "ran $*$LD_LIBRARY_PATH" ;;
  *) echo "$$" >> "$COUNT"; ${{SLOW:+exec sleep 600}} ${{CODE:+exit $CODE}}; exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def build():
    sys.path.insert(0, str(SOURCES))
    try:
        yield importlib.import_module("build")
    finally:
        sys.path.remove(str(SOURCES))


@pytest.fixture(scope="module")
def stub(build, tmp_path_factory):
    path = tmp_path_factory.mktemp("stub") / "stub"
    build.compile_stub(path)
    return path


@pytest.fixture
def make(build, stub, tmp_path):
    """Return a function that writes the binary, for a machine with that glibc and so much room."""
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin/python3").write_text(INTERPRETER)
    (root / "bin/python3").chmod(0o755)
    shutil.copy(SOURCES / "unpack.py", root)
    (root / "lib" / ("long" * 30)).mkdir(parents=True)
    runtime, archive = tmp_path / "runtime.tar", tmp_path / "archive.tar.zst"
    files = [root / "bin/python3", root / "unpack.py"]
    (root / "lib" / ("long" * 30) / "data").write_bytes(bytes(range(256)) * 5000)
    build.write_runtime(root, files, runtime)
    build.write_archive(root, files, archive)

    def assemble(*, glibc=2, unpacked=10**6):
        build.assemble(stub, runtime, archive, "1.2", unpacked, glibc, tmp_path / "simcse")
        return tmp_path / "simcse"

    return assemble


@pytest.fixture
def binary(make):
    return make()


def environment(binary, **variables):
    packages = str(Path(zstandard.__file__).parents[1])
    places = {"SIMCSE_CACHE": str(binary.parent / "cache"), "COUNT": str(binary.parent / "count")}
    return places | {"PYTHONPATH": packages} | variables


def start(binary, *words, **variables):
    return subprocess.run(
        [binary, *words],
        env=environment(binary, **variables),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def unpacked(binary):
    return sorted(
        path.name for path in (binary.parent / "cache/binary").iterdir() if path.name != ".lock"
    )


def test_unpacks_once_and_passes_the_arguments_on(binary):
    first, second = start(binary, "eval", "a b"), start(binary, "-q")
    (name,) = unpacked(binary)
    data = binary.parent / "cache/binary" / name / "lib" / ("long" * 30) / "data"
    assert (first.stdout, second.stdout) == ("ran eval a b\n", "ran -q\n")
    assert name.startswith("1.2-")
    assert first.stderr == f"simcse: unpacking into {data.parents[2]}, once\n"
    assert second.stderr == ""
    assert data.read_bytes() == bytes(range(256)) * 5000
    assert (binary.parent / "cache/binary").stat().st_mode & 0o777 == 0o700


def test_two_first_starts_unpack_once(binary):
    starts = [
        subprocess.Popen(
            [binary, str(i)],
            env=environment(binary),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for i in range(2)
    ]
    assert [each.communicate(timeout=LIMIT_S)[0] for each in starts] == [b"ran 0\n", b"ran 1\n"]
    assert len((binary.parent / "count").read_text().splitlines()) == 1


@pytest.fixture
def unpacking(binary):
    """Return a first start that does not finish, and its unpacker's process id."""
    count = binary.parent / "count"
    first = subprocess.Popen(
        [binary],
        env=environment(binary, SLOW="1"),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: count.exists() and count.read_text().endswith("\n"))
    assert unpacked(binary) == [".unpacking"]
    yield first, int(count.read_text())
    first.kill()
    first.wait()
    first.stderr.close()


@pytest.mark.parametrize("kill", [os.killpg, os.kill])
def test_a_killed_first_start_counts_for_nothing(binary, unpacking, kill):
    kill(
        unpacking[0].pid, signal.SIGKILL
    )  # the unpacker ends with it, else the next start would wait
    assert start(binary).stdout == "ran \n"
    assert len(unpacked(binary)) == 1
    assert ".unpacking" not in unpacked(binary)


@pytest.mark.parametrize(
    ("kill", "number"),
    [
        (os.killpg, signal.SIGINT),
        (os.kill, signal.SIGINT),
        (os.kill, signal.SIGTERM),
        (os.kill, signal.SIGHUP),
    ],
)
def test_a_stopped_first_start_leaves_nothing(binary, unpacking, kill, number):
    first, unpacker = unpacking
    kill(first.pid, number)
    _, told = first.communicate()
    assert first.returncode == -number
    assert told.splitlines()[1:] == ["simcse: stopped while it was unpacked; nothing is kept"]
    assert unpacked(binary) == []
    with pytest.raises(ProcessLookupError):
        os.kill(unpacker, 0)


def test_an_older_glibc_is_named_before_anything_is_unpacked(make):
    binary = make(glibc=999)
    outcome = start(binary)
    assert outcome.returncode == 1
    assert f"this machine has {platform.libc_ver()[0]} " in outcome.stderr
    assert f" {platform.libc_ver()[1]}, this program needs glibc 2.999 or newer" in outcome.stderr
    assert unpacked(binary) == []
    assert start(make(glibc=int(platform.libc_ver()[1].split(".")[1]))).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a chroot")
def test_a_machine_without_glibc_is_told_so(binary, tmp_path):
    outcome = subprocess.run(
        ["/simcse"],
        env={"SIMCSE_CACHE": "/cache"},
        preexec_fn=lambda: os.chroot(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 1
    assert "this machine has no glibc (there is no /lib64/ld-linux-x86-64.so.2)" in outcome.stderr


@pytest.mark.parametrize("code", [1, 127])
def test_an_interpreter_that_does_not_run_is_no_lack_of_room(binary, code):
    outcome = start(binary, CODE=str(code))
    assert outcome.returncode == 1
    assert f"the interpreter in this file does not run here (exit code {code})" in outcome.stderr
    assert "room" not in outcome.stderr
    assert unpacked(binary) == []


def test_too_little_room_is_noticed_at_once(make):
    binary = make(unpacked=10**18)
    outcome = start(binary)
    assert outcome.returncode == 1
    assert re.search(
        r"has \d+ MB of free space, this program takes 1000000000000 MB", outcome.stderr
    )
    assert not (binary.parent / "count").exists()


def test_libraries_of_another_installation_are_not_taken(binary):
    assert start(binary, "--version", LD_LIBRARY_PATH="/elsewhere").stdout == "ran --version\n"


def test_the_version_of_glibc_is_that_of_the_newest_symbol(build, tmp_path):
    (tmp_path / "bin").mkdir()
    shutil.copy(shutil.which("gcc"), tmp_path / "bin/python3")
    assert 2 <= build.needed_glibc(tmp_path) <= int(platform.libc_ver()[1].split(".")[1])


def test_a_folder_without_its_interpreter_is_made_again(binary):
    start(binary)
    (name,) = unpacked(binary)
    (binary.parent / "cache/binary" / name / "bin/python3").unlink()
    assert start(binary).stdout == "ran \n"


@pytest.mark.parametrize("part", ["stub", "runtime", "archive", "trailer", "end"])
def test_damage_is_noticed(binary, stub, part):
    image = bytearray(binary.read_bytes())
    at = {
        "runtime": stub.stat().st_size + 600,
        "archive": len(image) - 300,
        "trailer": len(image) - 250,
    }
    if part == "end":
        del image[-1]
    elif part == "stub":
        del image[:-4096]
        image[:0] = stub.read_bytes()
    else:
        image[at[part]] ^= 1
    binary.write_bytes(image)
    outcome = start(binary)
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    assert outcome.stderr.splitlines()[-1] == (
        "simcse: this file is damaged or incomplete; copy or download it again"
    )
    assert not (binary.parent / "cache").exists() or unpacked(binary) == []


def test_a_folder_that_others_can_write_is_refused(binary):
    folder = binary.parent / "cache/binary"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    outcome = start(binary)
    assert outcome.returncode == 1
    assert "SIMCSE_CACHE" in outcome.stderr
    assert f"{folder}: others can write there" in outcome.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a folder of another user")
def test_a_folder_of_another_user_is_refused_for_the_next_one(binary):
    home, temporary = binary.parent / "home", binary.parent / "tmp"
    (home / ".cache/simcse/binary").mkdir(parents=True)
    os.chown(home / ".cache/simcse/binary", 12345, 12345)
    outcome = start(binary, SIMCSE_CACHE="", HOME=str(home), TMPDIR=str(temporary))
    assert outcome.stdout == "ran \n"
    assert len(list((temporary / "simcse-0/binary").iterdir())) == 2  # and the lock
    os.chown(temporary / "simcse-0", 12345, 12345)
    outcome = start(binary, SIMCSE_CACHE=str(home / ".cache/simcse"))
    assert outcome.returncode == 1
    assert "belongs to another user" in outcome.stderr


def test_a_full_disk_is_one_clear_message(binary):
    limited = ["sh", "-c", 'ulimit -f 1000; exec "$0"', str(binary)]
    outcome = subprocess.run(
        limited, env=environment(binary), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert outcome.returncode == 1
    assert "cannot unpack into" in outcome.stderr
    assert "File too large" in outcome.stderr
    assert "SIMCSE_CACHE" in outcome.stderr
    assert unpacked(binary) == []
