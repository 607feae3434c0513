import gzip
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from simcse_cli.data.formats import count_lines
from simcse_cli.errors import ConfigError, DataError, NothingFoundError, OutputError
from simcse_cli.files import inputs, streams
from simcse_cli.files.atomic import (
    atomic_path,
    check_output,
    fsync_tree,
    standard_output,
    temporary_beside,
    write_json,
    writing,
)
from simcse_cli.files.digests import sha256_file
from simcse_cli.files.encodings import plausible_encodings
from simcse_cli.files.inputs import Inputs, read_json, require_file
from simcse_cli.files.locks import sole_writer
from simcse_cli.files.output import require_same_settings, work_folder
from simcse_cli.files.streams import iter_lines, open_standard_streams
from simcse_cli.files.system import default_cache_dir
from simcse_cli.models.word_vectors import WordVectors


def test_lines_end_at_newlines_only(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\ntw\u2028o\x0b\n\nlast".encode())
    assert list(iter_lines(path)) == ["one", "tw\u2028o\x0b", "", "last"]


def test_a_cache_folder_needs_a_home_or_a_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "simcse"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # no entry
    with pytest.raises(ConfigError, match="no home folder") as caught:
        default_cache_dir()
    assert "SIMCSE_CACHE" in caught.value.hint
    monkeypatch.setenv("SIMCSE_CACHE", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"


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


@pytest.mark.parametrize("program", ["zip", "gzip", "bz2", "lzma"])
def test_packed_files_are_named_with_the_command_that_unpacks_them(tmp_path, program):
    path = tmp_path / "a.txt"
    if program == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("inside.txt", "one\ntwo\n")
    else:
        content = importlib.import_module(program).compress(b"one\ntwo\n")
        path.write_bytes(content)
    with pytest.raises(DataError, match="need text") as caught:
        list(iter_lines(path))
    _, _, command = caught.value.hint.partition(": ")
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"no {command.split()[0]} here")
    text = tmp_path / "text.txt"
    subprocess.run(command.replace("FILE", str(text)), shell=True, check=True)
    assert list(iter_lines(text)) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "encoding", "command"),
    [
        ("a.txt", "utf-16-le", "iconv -f utf-16le -t utf-8 a.txt > a-utf8.txt"),
        ("a.txt", "utf-16-be", "iconv -f utf-16be -t utf-8 a.txt > a-utf8.txt"),
        ("a.txt", "utf-32-le", "iconv -f utf-32le -t utf-8 a.txt > a-utf8.txt"),
        ("a.txt", "utf-32-be", "iconv -f utf-32be -t utf-8 a.txt > a-utf8.txt"),
        ("a b.csv", "cp1252", "iconv -f cp1252 -t utf-8 'a b.csv' > 'a b-utf8.csv'"),
        ("a.csv", "cp1252", "iconv -f cp1252 -t utf-8 a.csv > a-utf8.csv"),
        ("a.csv.gz", "latin1", "zcat a.csv.gz | iconv -f cp1252 -t utf-8 > a-utf8.csv"),
    ],
)
def test_the_command_that_mends_an_encoding_does(tmp_path, monkeypatch, name, encoding, command):
    monkeypatch.chdir(tmp_path)
    text = "Frage;Antwort\nété;Straße\n"
    content = text.encode(encoding)
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match=r"UTF-8|UTF-16|UTF-32") as caught:
        list(iter_lines(name))
    assert caught.value.hint.endswith(command)
    subprocess.run(command, shell=True, check=True)
    (fixed,) = tmp_path.glob("*-utf8.*")
    assert list(iter_lines(fixed)) == text.splitlines()


@pytest.mark.parametrize(
    ("content", "encoding"),
    [(b"~{\n~{", "hz"), (b"0+\n", "utf-7"), (b"\n~\x1b$)C", "utf-16"), (b"xn---", "idna")],
)
def test_text_that_only_a_whole_block_shows_to_be_wrong(tmp_path, content, encoding):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.txt.*: (not .* text|UTF-16 text that is cut)"):
        list(iter_lines(path, encoding=encoding, asks_encoding=True))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_wide_encoding_with_a_byte_order_mark_is_read(tmp_path, encoding):
    lines = [
        "Größe\tĊ",
        "",
        "\u0a0a 😀",
        "the end",
    ]  # characters with the byte of a line end in them
    (tmp_path / "a.txt").write_bytes(
        "\ufeff".encode(encoding) + "\r\n".join(lines).encode(encoding)
    )
    assert list(iter_lines(tmp_path / "a.txt")) == lines
    assert count_lines(tmp_path / "a.txt") == len(lines)
    (tmp_path / "b.txt").write_bytes((tmp_path / "a.txt").read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"b\.txt: {encoding[:6].upper()} text that is cut"):
        list(iter_lines(tmp_path / "b.txt"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "UTF-16BE", "utf-16", "utf-32", "utf-32-le"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_wide_letters_are_read_where_the_encoding_is_given(tmp_path, encoding, mark):
    lines = ["Größe\tĊ", "", "\u0a0a 😀", "the end"]
    path = tmp_path / "a.txt"
    path.write_bytes((mark + "\r\n".join(lines)).encode(encoding))
    assert list(iter_lines(path, encoding=encoding)) == lines
    assert count_lines(path, encoding) == len(lines)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"{encoding.upper()} text that is cut or damaged"):
        list(iter_lines(path, encoding=encoding))


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
    with (
        pytest.raises(OutputError, match=r"cannot write .*out") as caught,
        atomic_path(tmp_path / "out"),
    ):
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


def write_alone(path):
    with sole_writer(path):
        pass


def test_second_writer_is_told_who_the_first_is(tmp_path):
    told = rf"out\.npy is being written by process {os.getpid()} on .+ since 20"
    with sole_writer(tmp_path / "out.npy"):
        with pytest.raises(OutputError, match=told):
            write_alone(tmp_path / "out.npy")
        write_alone(tmp_path / "other.npy")
    write_alone(tmp_path / "out.npy")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_made_for_an_output_that_failed_is_not_left(tmp_path):
    (tmp_path / "mine").mkdir()
    for names in ("new/deep", "mine/new", "mine"):
        with pytest.raises(KeyError), sole_writer(tmp_path / names / "out.npy"):
            raise KeyError
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]
    with sole_writer(tmp_path / "new" / "deep" / "out.npy"):
        (tmp_path / "new" / "kept").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "mine", "new"]


def test_lock_of_a_folder_lies_inside_it(tmp_path):
    (tmp_path / "run").mkdir()
    with sole_writer(tmp_path / "run"):
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
        with pytest.raises(OutputError, match="being written"):
            write_alone(tmp_path / "run")


def test_lock_is_free_once_its_holder_is_killed(tmp_path):
    code = "import sys; from pathlib import Path; from simcse_cli.files.locks import sole_writer\n"
    code += "with sole_writer(Path(sys.argv[1])): print(1, flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "out"], **pipes) as holder:
        holder.stdout.readline()
        with pytest.raises(OutputError, match=f"process {holder.pid} "):
            write_alone(tmp_path / "out")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert (tmp_path / ".out.lock").exists()
    write_alone(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_lock_touches_no_file_of_the_user(tmp_path):
    lock = tmp_path / ".out.lock"
    lock.write_text("mine")
    with pytest.raises(OutputError, match="no lock of this program"):
        write_alone(tmp_path / "out")
    assert lock.read_text() == "mine"
    lock.unlink()
    (tmp_path / "mine").write_text("mine")
    lock.symlink_to("mine")
    with pytest.raises(OutputError, match="is a link"):
        write_alone(tmp_path / "out")
    assert (tmp_path / "mine").read_text() == "mine"


def test_only_leftovers_of_this_output_are_removed(tmp_path):
    ours, other = (
        temporary_beside(tmp_path / "out.txt"),
        temporary_beside(tmp_path / "out.txt.json"),
    )
    mine = [
        tmp_path / name
        for name in ("out.txt.tmp", ".out.txt.tmp", ".out.txt.0123abcd.tmp", ".out.txt.old")
    ]
    for path in (ours, *mine):
        path.write_text("")
    other.mkdir()
    (other / "out.txt.json").write_text("")
    with sole_writer(tmp_path / "out.txt"):
        assert not ours.exists()
        assert other.exists()
    with sole_writer(tmp_path / "out.txt", tmp_path / "out.txt.json"):
        assert not other.exists()
    assert sorted(tmp_path.iterdir()) == sorted(mine)


def test_folder_that_was_put_aside_comes_back(tmp_path):
    temporary_beside(tmp_path / "model", "old").mkdir()
    with sole_writer(tmp_path):
        assert (tmp_path / "model").is_dir()


def test_files_have_the_mode_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with atomic_path(tmp_path / "out") as temporary:
            temporary.touch(0o600)  # as libraries do that make a safe temporary file
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "weights").touch(0o600)
        fsync_tree(tmp_path / "folder")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "folder" / "weights").stat().st_mode & 0o777 == 0o640


def test_what_lies_beside_is_there_before_the_output(tmp_path, monkeypatch):
    target, other = tmp_path / "out", tmp_path / "out.json"
    target.write_text("old")
    moved = []
    replace = os.replace
    monkeypatch.setattr(
        os, "replace", lambda a, b: (moved.append((b.name, target.exists())), replace(a, b))
    )
    with atomic_path(
        target, force=True, companions=lambda path: write_text(f"{path}.json", path)
    ) as path:
        path.write_text("rows")
    assert moved == [("out.json", False), ("out", False)]
    assert (target.read_text(), other.read_text()) == ("rows", "about rows")
    assert sorted(tmp_path.iterdir()) == [target, other]


def write_text(path, about):
    Path(path).write_text(f"about {about.read_text()}")


def test_file_that_appears_meanwhile_is_not_overwritten(tmp_path):
    target = tmp_path / "out"
    appear = atomic_path(target, companions=lambda path: target.touch())
    with pytest.raises(OutputError, match="exists already"), appear as path:
        path.write_text("ours")
    assert target.read_text() == ""


@pytest.mark.parametrize("check", [check_output, require_file, write_alone])
def test_name_that_is_too_long_is_explained(tmp_path, check):
    with pytest.raises((OutputError, DataError), match=r"name"):
        check(tmp_path / ("ä" * 200))


def test_devices_and_dangling_links_are_no_outputs(tmp_path):
    for force in (False, True):
        with pytest.raises(OutputError, match="no regular file") as caught:
            check_output("/dev/null", force=force)
        assert "use -o - for standard output" in caught.value.hint
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="no regular file"), sole_writer(tmp_path / "pipe"):
        pass
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(OutputError, match="exists already"):
        check_output(tmp_path / "link")


def test_changed_input_is_told(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a")
    inputs = Inputs([path, "-", "hf://a/b"])
    inputs.require_unchanged()
    path.write_text("ab")
    with pytest.raises(DataError, match=r"in\.txt has changed"):
        inputs.require_unchanged()


def test_standard_input_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    descriptor = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    with os.fdopen(descriptor, "rb") as raw, io.TextIOWrapper(raw) as unreadable:
        monkeypatch.setattr(sys, "stdin", unreadable)
        with pytest.raises(DataError, match=r"standard input cannot be read: .*Bad file"):
            list(iter_lines("-"))


def test_closed_standard_streams_are_explained(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(DataError, match="standard input is closed"):
        list(iter_lines("-"))
    with pytest.raises(OutputError, match="standard output is closed"), standard_output():
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_standard_output_is_explained(monkeypatch):
    message = "cannot write standard output: No space left"
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OutputError, match=message), standard_output() as stream:
            stream.write("x")


def test_names_that_are_not_utf8_survive_json(tmp_path):
    write_json(tmp_path / "a.json", {"input": "caf\udce9.txt"})
    assert read_json(tmp_path / "a.json") == {"input": "caf\udce9.txt"}


def test_full_disk_that_a_library_tells_in_words_is_explained(tmp_path):
    with pytest.raises(OutputError, match="No space left"), atomic_path(tmp_path / "out"):
        raise RuntimeError("I/O error: No space left on device (os error 28)")


def test_stdout_takes_any_text_in_any_locale(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    open_standard_streams()
    out.write("–ü caf\udce9")
    out.flush()
    assert out.buffer.getvalue() == "–ü caf\\udce9".encode()


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path):
    code = (
        "import os, sys; from simcse_cli.files.streams import open_standard_streams; "
        "open_standard_streams()\n"
    )
    code += "sys.exit(os.open(sys.argv[1], os.O_CREAT))"
    command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code, tmp_path / "out"]
    assert subprocess.run(command, check=False).returncode == 3


def test_lock_that_cannot_be_written_is_not_left(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(OutputError, match="No space left"):
        write_alone(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_endless_files_are_refused(monkeypatch):
    monkeypatch.setattr(streams, "LONGEST_LINE", 1000)
    monkeypatch.setattr(inputs, "LARGEST_TEXT", 1000)
    with pytest.raises(DataError, match="/dev/zero, line 1: more than"):
        list(iter_lines("/dev/zero"))
    with pytest.raises(DataError, match="/dev/zero, line 1: more than"):
        WordVectors("/dev/zero")
    with pytest.raises(DataError, match="/dev/zero has more than"):
        read_json("/dev/zero")


def test_the_longest_line_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "LONGEST_LINE", 5)
    monkeypatch.setattr(streams, "_BLOCK", 5)
    (tmp_path / "a.txt").write_bytes(b"1234\n12345\n")
    with pytest.raises(DataError, match=r"a\.txt, line 2: more than"):
        list(iter_lines(tmp_path / "a.txt"))
    (tmp_path / "a.txt").write_bytes(b"1234\n12345")
    assert list(iter_lines(tmp_path / "a.txt")) == ["1234", "12345"]


def test_an_error_number_of_a_rust_library_names_the_output(tmp_path):
    with (
        pytest.raises(OutputError, match=r"out: File too large") as caught,
        writing(tmp_path / "out"),
    ):
        raise RuntimeError("I/O error: File too large (os error 27)")
    assert "ulimit -f" in caught.value.hint
    with pytest.raises(RuntimeError), writing(tmp_path / "out"):
        raise RuntimeError("another error")


def test_a_work_folder_stays_only_if_something_is_done(tmp_path):
    folder = tmp_path / "o.mining"

    def fail(*, when_done: bool) -> None:
        with work_folder(folder, {"a": 1}, names=r"part\.npy", resume=False, force=False):
            if when_done:
                (folder / "part.npy").touch()
            raise DataError("no such input")

    for is_done in (False, True):
        with pytest.raises(DataError):
            fail(when_done=is_done)
        assert folder.exists() is is_done
    with (
        pytest.raises(NothingFoundError),
        work_folder(folder, {"a": 1}, names=r"part\.npy", resume=True, force=False),
    ):
        raise NothingFoundError("nothing is near")
    assert not folder.exists()


def test_a_missing_file_is_told_with_a_neighbour_of_like_name(tmp_path):
    (tmp_path / "captions.txt").write_text("a\n")
    with pytest.raises(DataError, match=r"caption.txt does not exist") as raised:
        require_file(tmp_path / "caption.txt")
    assert raised.value.hint == f"did you mean {tmp_path / 'captions.txt'}?"
    with pytest.raises(DataError) as raised:
        require_file(tmp_path / "other.tsv")
    assert raised.value.hint is None


def test_an_input_that_changed_since_an_interrupted_command_is_named():
    before = [{"path": "a.txt", "sha256": "1"}, {"path": "b.txt", "sha256": "2"}]
    now = [before[0], {"path": "b.txt", "sha256": "3"}]
    with pytest.raises(DataError, match=r"the search read other inputs; changed since: b\.txt"):
        require_same_settings(Path("w"), "the search", {"inputs": before}, {"inputs": now})
    require_same_settings(Path("w"), "the search", {"inputs": now}, {"inputs": now})


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "Er sagte „Nein“ zu mir.\nWir fahren über die Brücke."),
        ("cp932", "パスワードを忘れました。\n請求書はどこで見られますか。"),
        ("gb18030", "怎么给绿萝浇水？\n我忘记了密码。😂"),
        ("big5", "我昨天在台北看了一場電影。\n這家餐廳的菜非常好吃。"),
        ("cp949", "나는 어제 서울에서 영화를 보았다.\n이 식당의 음식은 정말 맛있다."),
        ("cp1254", "Bu lokanta çok güzel, yemekleri ışıl.\nHer sabah altıda kalkıyor."),
        ("cp1250", "Proszę przyjść późno.\nŹdźbło trawy żółknie."),
        ("iso8859_2", "Proszę przyjść późno.\nŹdźbło trawy żółknie."),
        ("cp1255", "הילד הלך לבית הספר בבוקר.\nהמסעדה הזאת טובה מאוד."),
        ("iso8859_6", "ذهب الولد إلى المدرسة صباحا.\nهذا المطعم جيد جدا."),
        ("cp866", "Я вчера смотрел фильм в Москве.\nЗимой в Москве холодно."),
        ("iso8859_5", "Я вчера смотрел фильм в Москве.\nЗимой в Москве холодно."),
        ("koi8_r", "Я вчера смотрел фильм в Москве.\nЗимой в Москве холодно."),
        ("mac_roman", "Das Mädchen läuft über die Straße.\nEr möchte größere Äpfel."),
        ("cp850", "Das Mädchen läuft über die Straße.\nEr möchte größere Äpfel."),
    ],
)
def test_the_encoding_that_reads_letters_is_named_first(encoding, text):
    first_line = text.partition("\n")[0]
    assert plausible_encodings(text.encode(encoding))[0] == (encoding, first_line)


def test_letters_that_make_no_sense_in_any_known_encoding_get_no_command_that_garbles(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("私はｺﾝﾋﾟｭｰﾀｰです\nﾃｽﾄﾃﾞｽ\n".encode("cp932"))
    with pytest.raises(DataError, match=r"a\.txt, line 1, byte 1: .*no other encoding") as caught:
        list(iter_lines(path, asks_encoding=True))
    assert caught.value.hint == "find out its encoding, NAME, then --encoding NAME"
    with pytest.raises(DataError, match=r"a\.txt, line 1, byte 1: .*no other encoding") as caught:
        list(iter_lines(path))
    assert "iconv -f NAME" in caught.value.hint


def test_a_file_with_lines_in_two_encodings_is_told_with_the_lines_to_mend(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"plain\nGr\xc3\xbc\xc3\x9fe\nEin Ma\xdf\n")
    match = r"a\.txt, line 3, byte 7: .* of 2 lines that are not plain ASCII, 1 are UTF-8"
    with pytest.raises(DataError, match=match) as caught:
        list(iter_lines(path, asks_encoding=True))
    command = caught.value.hint.partition(": ")[2]
    listed = subprocess.run(command, shell=True, check=True, capture_output=True).stdout
    assert listed == b"3:Ein Ma\xdf\n"
    path.write_bytes("a\nb\né\n".encode())
    with pytest.raises(DataError, match="line 3") as caught:
        list(iter_lines(path, encoding="ascii", asks_encoding=True))
    assert caught.value.hint == "it is UTF-8 text: leave out --encoding"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("iso-2022-jp", "plain\nパスワードを忘れました。\n"),
        ("iso-2022-kr", "plain\n이 식당의 음식은 정말 맛있다.\n"),
        ("hz", "plain\n怎么给绿萝浇水？\n"),
    ],
)
def test_encodings_of_seven_bits_are_not_read_as_ascii(tmp_path, encoding, text):
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(DataError, match=rf"a\.txt, line \d: {encoding.upper()} text") as caught:
        list(iter_lines(path, asks_encoding=True))
    assert caught.value.hint.startswith(f"--encoding {encoding}")
    assert list(iter_lines(path, encoding=encoding, asks_encoding=True)) == text.splitlines()


def test_plain_text_may_hold_what_begins_letters_in_hz_or_colours(tmp_path):
    lines = ["a ~{b~} c", "a ~{bc~} d", "\x1b[31mred\x1b[0m", "x", "y", "z"]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    assert list(iter_lines(tmp_path / "a.txt", asks_encoding=True)) == lines
