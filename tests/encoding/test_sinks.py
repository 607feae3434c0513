import hashlib
import json
import os
import zipfile

import numpy as np
import pytest
from pyarrow import parquet
from safetensors.numpy import load_file

from helpers import CountingProgress
from simcse_cli.encoding import formats, parts
from simcse_cli.encoding.formats import (
    STORED,
    RowDigest,
    json_line,
    quantize,
    read_blocks,
    stored_width,
)
from simcse_cli.encoding.job import EncodeJob
from simcse_cli.encoding.journal import Journal, drop_unfinished, is_unfinished
from simcse_cli.encoding.parts import ProcessGroup, cut
from simcse_cli.encoding.sinks import VectorSink, finish_killed
from simcse_cli.errors import ConfigError, DataError, OutputError
from simcse_cli.progress import SILENT
from simcse_cli.settings.choices import VectorType

SENTENCES = [f"sentence {i}" + " ü" * (i % 3) for i in range(57)]


def encode(sentences, progress=None):
    rng = [np.random.default_rng(abs(hash_text(s))) for s in sentences]
    return np.stack([g.normal(size=10) for g in rng]).astype(np.float32)


def write(encode, sentences, path, *, settings=None, total=None, progress=SILENT, **details):
    """Write vectors of width 10 and return the number of rows."""
    job = EncodeJob(sentences, encode, settings or {}, total)
    return job.run(VectorSink(path, **{"dim": 10, **details}), progress)


def hash_text(text):
    return int.from_bytes(text.encode()[-6:], "little")


def read(path):
    match path.suffix:
        case ".npy":
            return np.load(path)
        case ".npz":
            return np.load(path)["vectors"]
        case ".safetensors":
            return load_file(path)["vectors"]
        case ".parquet":
            return np.array(parquet.read_table(path)["vector"].to_pylist(), np.float32)
        case _:
            return np.array(
                [json.loads(line)["vector"] for line in path.read_text().splitlines()], np.float32
            )


ENDINGS = [".npy", ".npz", ".safetensors", ".parquet", ".jsonl"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_row_i_is_sentence_i_in_every_format(tmp_path, ending):
    path = tmp_path / f"v{ending}"
    assert write(encode, SENTENCES, path, window=8) == 57
    np.testing.assert_array_equal(read(path), encode(SENTENCES))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", VectorType)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_finished_file_is_read_in_blocks(tmp_path, ending, kind, monkeypatch):
    """With the texts where the format has room, and an error that says how many rows were expected."""
    monkeypatch.setattr(formats, "CHUNK_ROWS", 8)
    path, has_texts = tmp_path / f"v{ending}", ending in (".parquet", ".jsonl")
    write(encode, SENTENCES, path, window=8, kind=kind)
    side = {"dtype": kind, "n_rows": 57, "dim": 10}
    blocks = list(read_blocks(path, side))
    rows = np.concatenate([rows for rows, _, _ in blocks])
    np.testing.assert_array_equal(rows, quantize(encode(SENTENCES), kind), strict=True)
    np.testing.assert_array_equal(read(path).astype(rows.dtype), rows)
    assert [len(rows) for rows, _, _ in blocks] == [8] * 7 + [1]
    assert [text for _, texts, _ in blocks for text in texts or ()] == SENTENCES * has_texts
    found = "holds 57 rows, its side file says 1,058" if has_texts else "does not hold 1,058 x "
    with pytest.raises(DataError, match=found):
        list(read_blocks(path, side | {"n_rows": 1058}))
    if ending == ".npy":
        assert path.stat().st_size == 256 + 57 * stored_width(kind, 10) * STORED[kind].itemsize


def test_a_json_line_keeps_letters_and_digits():
    row = np.array([0.1, -2], np.float32)
    assert json_line("ü", row, id=3) == '{"id": 3, "text": "ü", "vector": [0.1,-2.0]}\n'


@pytest.mark.parametrize("texts", [None, ["a", "ü"]])
def test_a_digest_is_that_of_all_rows_and_of_the_texts_if_there_are_any(texts):
    rows, digest = np.arange(6, dtype=np.float16).reshape(3, 2), RowDigest()
    digest.add(rows[:2], texts)
    digest.add(rows[2:], texts and texts[:1])
    found = {"rows_sha256": hashlib.sha256(rows.tobytes()).hexdigest()}
    if texts:
        found["texts_sha256"] = hashlib.sha256("a\nü\na\n".encode()).hexdigest()
    assert digest.facts() == found


class Killed(BaseException):
    pass


def interrupted(n_calls):
    calls = []

    def encode_or_die(sentences, progress=None):
        calls.append(1)
        if len(calls) > n_calls:
            raise Killed
        return encode(sentences)

    return encode_or_die


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("n_calls", [0, 1, 5])
def test_resumed_run_gives_the_same_bytes(tmp_path, ending, n_calls):
    whole, path = tmp_path / f"whole{ending}", tmp_path / f"v{ending}"
    write(encode, SENTENCES, whole, window=8)
    with pytest.raises(Killed):
        write(interrupted(n_calls), SENTENCES, path, window=8)
    assert not path.exists()
    assert (tmp_path / f"v{ending}.part").exists() == is_unfinished(path) == (n_calls > 0)
    if n_calls:
        assert bool((tmp_path / f"v{ending}.part.txt").stat().st_size) == (
            ending in (".parquet", ".jsonl")
        )
        with (tmp_path / f"v{ending}.part").open("ab") as stream:
            stream.write(b"half a row that the kill left")
    progress = CountingProgress()
    write(encode, SENTENCES, path, window=8, resume=True, total=57, progress=progress)
    assert path.read_bytes() == whole.read_bytes()
    n_left = 57 - 8 * n_calls
    assert (progress.n_done, progress.n_expected, progress.warnings) == (n_left, n_left, [])


def test_progress_within_a_window_is_counted_once(tmp_path):
    def encode_half(sentences, progress):
        with progress.task("inner") as task:
            task.advance()
            task.advance(2)
        assert outer.n_done == 3
        return encode(sentences)

    outer = CountingProgress()
    write(encode_half, SENTENCES[:5], tmp_path / "v.npy", total=5, progress=outer)
    assert outer.n_done == 5


@pytest.mark.parametrize(
    ("n_done", "note"),
    [
        (16, "16 sentences are kept; add --resume to the same command to continue"),
        (0, "nothing is kept: sentences are kept 8 at a time"),
    ],
)
def test_ctrl_c_tells_how_much_is_kept(tmp_path, n_done, note):
    def stop(sentences, progress):
        if sentences[0] == SENTENCES[n_done]:
            raise KeyboardInterrupt
        return encode(sentences)

    with pytest.raises(KeyboardInterrupt) as stopped:
        write(stop, SENTENCES, tmp_path / "v.npy", window=8)
    assert stopped.value.__notes__ == [note]
    drop_unfinished(tmp_path / "v.npy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_two_processes_give_the_bytes_of_one(tmp_path, ending):
    one, two = tmp_path / f"one{ending}", tmp_path / f"two{ending}"
    write(encode, SENTENCES, one, window=8)
    done: list[int] = []

    def wait_for_other():
        if not done:
            done.append(1)
            assert write(encode, SENTENCES, two, window=8, group=ProcessGroup(1, 2)) == 0

    with pytest.raises(Killed):
        write(interrupted(2), SENTENCES, two, window=8, group=ProcessGroup(0, 2))
    assert is_unfinished(two)
    group = ProcessGroup(0, 2, wait_for_other)
    assert write(encode, SENTENCES, two, window=8, group=group, resume=True) == 57
    assert two.read_bytes() == one.read_bytes()


def test_unfinished_file_needs_resume_or_force(tmp_path):
    path = tmp_path / "v.npy"
    with pytest.raises(Killed):
        write(interrupted(2), SENTENCES, path, window=8)
    with pytest.raises(OutputError, match="interrupted run") as caught:
        write(encode, SENTENCES, path, window=8)
    assert "--resume" in caught.value.hint
    assert write(encode, SENTENCES, path, window=8, force=True) == 57


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"settings": {"model_digest": "b"}}, "has model_digest 'a', not 'b'"),
        ({"dim": 11}, "has dim 10, not 11"),
        ({"kind": VectorType.INT8}, "has dtype 'float32', not 'int8'"),
        ({"window": 16}, "has window 8, not 16"),
        ({"group": ProcessGroup(0, 3)}, "has processes 2, not 3"),
        ({"keep_texts": True}, "has texts False, not True"),
    ],
)
def test_resume_with_another_setting_is_refused(tmp_path, changed, message):
    path = tmp_path / "v.npy"
    given = {"dim": 10, "window": 8, "settings": {"model_digest": "a"}, "group": ProcessGroup(0, 2)}
    with pytest.raises(Killed):
        write(interrupted(2), SENTENCES, path, **given)
    with pytest.raises(DataError, match=message):
        write(encode, SENTENCES, path, **{**given, **changed}, resume=True)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("n_left", [0, 3, 12, 16, 30, 57])
def test_resume_keeps_what_agrees_with_the_input_and_encodes_the_rest(tmp_path, ending, n_left):
    path, calls = tmp_path / f"v{ending}", []
    with pytest.raises(Killed):
        write(interrupted(4), SENTENCES, path, window=8)
    changed = SENTENCES[:n_left] + ["other"] * (n_left not in (16, 57))

    def encode_and_count(sentences, progress=None):
        calls.append(len(sentences))
        return encode(sentences)

    write(encode_and_count, changed, path, window=8, resume=True)
    np.testing.assert_array_equal(read(path), encode(changed))
    assert sum(calls) == len(changed) - min(32, n_left // 8 * 8)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "texts", "journal", "rows", "type"])
def test_resume_encodes_again_what_was_damaged(tmp_path, ending, damage):
    whole, path = tmp_path / f"whole{ending}", tmp_path / f"v{ending}"
    write(encode, SENTENCES, whole, window=8)
    with pytest.raises(Killed):
        write(interrupted(5), SENTENCES, path, window=8)
    part = tmp_path / f"v{ending}.part"
    texts, journal = part.with_name(part.name + ".txt"), part.with_name(part.name + ".json")
    match damage:
        case "cut":
            os.truncate(part, 500)
        case "flip":
            content = bytearray(part.read_bytes())
            content[700] ^= 1
            part.write_bytes(content)
        case "gone":
            part.unlink()
        case "texts":
            texts.write_bytes(texts.read_bytes()[:-3])
        case "rows":
            journal.write_text(journal.read_text().replace('"rows": 8', '"rows": 9', 1))
        case "type":
            journal.write_text(
                journal.read_text().replace('"row_bytes": 320', '"row_bytes": "320"', 1)
            )
        case _:
            journal.write_bytes(journal.read_bytes()[:-3])
    progress = CountingProgress()
    write(encode, SENTENCES, path, window=8, resume=True, progress=progress)
    assert path.read_bytes() == whole.read_bytes()
    assert sorted(tmp_path.iterdir()) == [path, whole]
    n_lost = {"cut": 5, "flip": 4, "gone": 5, "texts": 1, "rows": 5}.get(damage)
    if n_lost is None or (damage == "texts" and ending not in (".parquet", ".jsonl")):
        assert progress.warnings == []
    else:
        assert progress.warnings == [f"{part} was changed: {n_lost} of 5 parts are encoded again"]


def test_damaged_journal_names_the_fix(tmp_path):
    path = tmp_path / "v.npy"
    with pytest.raises(Killed):
        write(interrupted(2), SENTENCES, path, window=8)
    (tmp_path / "v.npy.part.json").write_text("{")
    with pytest.raises(DataError, match=r"v\.npy\.part\.json is damaged") as caught:
        write(encode, SENTENCES, path, window=8, resume=True)
    assert "--force" in caught.value.hint
    assert write(encode, SENTENCES, path, window=8, force=True) == 57


def test_no_file_of_the_user_is_taken_for_a_partial_one(tmp_path):
    part = tmp_path / "v.npy.part"
    part.symlink_to("mine")
    (tmp_path / "mine").write_text("mine")
    for resume in (False, True):
        with pytest.raises(OutputError, match=r"v\.npy\.part exists already"):
            write(encode, SENTENCES, tmp_path / "v.npy", resume=resume)
    write(encode, SENTENCES, tmp_path / "v.npy", force=True)
    assert (tmp_path / "mine").read_text() == "mine"


def test_nothing_is_created_before_the_first_vectors(tmp_path):
    with pytest.raises(Killed):
        write(interrupted(0), SENTENCES, tmp_path / "v.npy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_kill_after_the_output_appeared_is_finished_by_resume(tmp_path, ending, monkeypatch):
    path = tmp_path / f"v{ending}"

    def die_when_there(self):
        if path.exists():
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", die_when_there)
        with pytest.raises(Killed):
            write(encode, SENTENCES, path, window=8)
    written = path.read_bytes()
    finish_killed(path)
    assert path.read_bytes() == written
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("change", ["longer", "other", None])
def test_only_the_file_that_was_finished_is_taken_for_the_output(tmp_path, monkeypatch, change):
    """By a process that was killed in between, and by a second one, which leaves the files to the first."""
    path = tmp_path / "v.npy"
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", lambda self: None)
        write(encode, SENTENCES, path, window=8, group=ProcessGroup(0, 1))
    if change is None:
        (tmp_path / "v.npy.part.json").rename(tmp_path / "v.npy.part-0.json")
        for rank, is_left in ((1, True), (0, False)):
            finish_killed(path, ProcessGroup(rank, 2))
            assert is_unfinished(path) == is_left
        return
    other = tmp_path / "other.npy"
    other.write_bytes(path.read_bytes())
    if change == "longer":
        with path.open("ab") as out:
            out.write(b"mine")
    else:
        other.replace(path)
    finish_killed(path)
    with pytest.raises(OutputError, match=r"v\.npy exists already"):
        write(encode, SENTENCES, path, window=8, resume=True)


def test_what_lies_beside_gets_all_rows_and_texts(tmp_path):
    seen = {}

    def beside(folder, rows, texts):
        assert not (tmp_path / "v.npy").exists()
        seen.update(rows=np.array(rows), texts=list(texts))
        (folder / "v.npy.json").write_text("beside")

    write(encode, SENTENCES, tmp_path / "v.npy", window=8, keep_texts=True, companions=beside)
    np.testing.assert_array_equal(seen["rows"], encode(SENTENCES))
    assert seen["texts"] == SENTENCES
    assert (tmp_path / "v.npy.json").read_text() == "beside"


@pytest.mark.parametrize(
    ("total", "found"), [(None, "input is empty"), (5, "has changed while it was read")]
)
def test_empty_input_leaves_nothing(tmp_path, total, found):
    with pytest.raises(DataError, match=found):
        write(encode, [], tmp_path / "v.npy", total=total)
    assert list(tmp_path.iterdir()) == []


def test_unknown_ending_names_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown ending '\.txt'"):
        write(encode, SENTENCES, tmp_path / "v.txt")


def test_full_disk_is_explained_and_continued(tmp_path, monkeypatch):
    path, n_left = tmp_path / "v.npy", [9]
    sync = os.fsync

    def fail_later(descriptor):
        n_left[0] -= 1
        if n_left[0] < 0:
            raise OSError(28, "No space left on device")
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_later)
        with pytest.raises(OutputError, match=r"v\.npy: No space left") as caught:
            write(encode, SENTENCES, path, window=8)
    assert "free some space" in caught.value.hint
    assert caught.value.hint.endswith("to continue here, add --resume")
    write(encode, SENTENCES, path, window=8, resume=True)
    np.testing.assert_array_equal(read(path), encode(SENTENCES))


def test_npz_has_no_time_stamp(tmp_path):
    write(encode, SENTENCES, tmp_path / "v.npz")
    assert zipfile.ZipFile(tmp_path / "v.npz").infolist()[0].date_time == (1980, 1, 1, 0, 0, 0)


def test_quantize_types():
    vectors = np.array([[1.0, -0.5, 0.25], [0.0, 0.0, 0.0]], np.float32)
    assert quantize(vectors, VectorType.FLOAT16).dtype == np.float16
    for scale in (1, 0.5, 8):
        assert quantize(scale * vectors, VectorType.INT8).tolist() == [[127, -64, 32], [0, 0, 0]]
    assert quantize(vectors, VectorType.BINARY).tolist() == [[0b10100000], [0]]
    with pytest.raises(DataError, match="a component is too large for float16"):
        quantize(vectors * 1e5, VectorType.FLOAT16)


def test_int8_keeps_cosines_to_a_thousandth():
    vectors = np.random.default_rng(0).normal(size=(50, 384)).astype(np.float32)
    small = quantize(vectors, VectorType.INT8).astype(np.float32)
    cosine = (
        (vectors * small).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(small, axis=1)
    )
    assert cosine.min() > 0.999


def test_a_window_has_8192_rows():
    assert [(part.start, part.stop) for part in cut(20_000, 2)] == [(0, 8192), (8192, 20_000)]


@pytest.mark.parametrize("n_rows", [1, 7, 8, 9, 64, 65])
@pytest.mark.parametrize("n_parts", [1, 2, 3, 20])
def test_parts_are_whole_windows_and_cover_the_input(monkeypatch, n_rows, n_parts):
    monkeypatch.setattr(parts, "WINDOW", 8)
    made = cut(n_rows, n_parts)
    assert [part.number for part in made] == list(range(1, n_parts + 1))
    assert [row for part in made for row in range(part.start, part.stop)] == list(range(n_rows))
    assert all(part.start % 8 == 0 or part.start == n_rows for part in made)
    sizes = [-(-(part.stop - part.start) // 8) for part in made]
    assert max(sizes) - min(sizes) <= 1
