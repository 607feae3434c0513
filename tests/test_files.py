import gzip
import io
import json
import sys

import pytest

from simcse_cli.errors import DataError, OutputError
from simcse_cli.files import (
    atomic_path,
    check_output,
    iter_lines,
    read_json,
    require_file,
    sha256_file,
    write_json,
)


def test_lines_end_at_newlines_only(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\ntw\u2028o\x0b\n\nlast".encode())
    assert list(iter_lines(path)) == ["one", "tw\u2028o\x0b", "", "last"]


def test_gzip_and_stdin_are_read(tmp_path, monkeypatch):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"x\ny\n"))
    assert list(iter_lines(path)) == ["x", "y"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"z\n")))
    assert list(iter_lines("-")) == ["z"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"fine\nab\x00c\n", "line 2: a NUL byte"),
        (b"fine\ncaf\xe9\n", "line 2, byte 4: not UTF-8"),
    ],
)
def test_bad_text_names_file_line_and_fix(tmp_path, content, message):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(iter_lines(path))
    assert "a.txt" in caught.value.message


def test_truncated_gzip_is_explained(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x\n" * 1000)[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        list(iter_lines(path))


def test_missing_file_and_folder_are_told_apart(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        require_file(tmp_path / "x")
    with pytest.raises(DataError, match="is a folder"):
        require_file(tmp_path)


def test_failed_write_leaves_nothing(tmp_path):
    target = tmp_path / "out.txt"

    def write_half():
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_finished_write_replaces_at_once(tmp_path):
    target = tmp_path / "out.txt"
    target.write_text("old")
    with atomic_path(target, force=True) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"


def test_existing_output_needs_force(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(OutputError, match="exists already"):
        check_output(tmp_path / "x")
    assert check_output(tmp_path / "x", force=True)


def test_full_disk_names_the_file_and_the_fix(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write .*out") as caught, atomic_path(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert "free some space" in caught.value.hint


def test_output_below_a_file_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(OutputError, match="cannot create the folder"):
        check_output(tmp_path / "x" / "y" / "z")


def test_json_round_trip_and_broken_json(tmp_path):
    write_json(tmp_path / "a.json", {"ü": [1, None]})
    assert read_json(tmp_path / "a.json") == {"ü": [1, None]}
    (tmp_path / "b.json").write_text('{"a": 1,\n oops}')
    with pytest.raises(DataError, match=r"b\.json, line 2"):
        read_json(tmp_path / "b.json")
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "c.json", float("nan"))
    assert not (tmp_path / "c.json").exists()
    assert json.loads((tmp_path / "a.json").read_text())


def test_sha256_of_abc(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_file(tmp_path / "a").startswith("ba7816bf8f01cfea")
