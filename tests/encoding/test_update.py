"""`encode --update`: the vectors of an encoding from scratch, whatever was new, changed, gone, or killed."""

import csv
import json
import os
import re
import shlex
import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from helpers import SENTENCES, build_tiny_model, sigterm_in_second_window
from simcse_cli.encoding import formats, parts
from simcse_cli.encoding.search_index import SearchIndex, index_files
from simcse_cli.files.locks import sole_writer
from simcse_cli.models.encode import ReadyEncoder

FIRST = {f"t{number}": text for number, text in enumerate(SENTENCES[:12])}
SECOND = {
    **{name: text for name, text in FIRST.items() if name not in ("t3", "t5")},
    "t1": "Another text of the second ticket.",
    "t20": "A new ticket.",
    "t21": "And one more.",
}
ENDINGS = [".npy", ".npz", ".safetensors", ".parquet", ".jsonl"]


class Killed(BaseException):
    pass


@pytest.fixture
def encode(invoke, tiny_model_dir, tmp_path):
    """Return a function that encodes rows from id to text into ``name``, and gives the outcome."""

    def run(rows, name, *more, model=tiny_model_dir):
        table = tmp_path / "tickets.csv"
        with table.open("w", newline="") as stream:
            csv.writer(stream).writerows([("id", "body"), *rows.items()])
        output = ["-o", tmp_path / name, "--id-column", "id", "--column", "body"]
        return invoke("encode", table, *output, "--model", model, "--device", "cpu", *more)

    return run


def read(path):
    """Return ids and vectors of an output, by a reader that is not the program's."""
    if path.suffix == ".parquet":
        table = parquet.read_table(path)
        return table["id"].to_pylist(), np.stack(table["vector"].to_numpy())
    if path.suffix == ".jsonl":
        rows = list(map(json.loads, path.read_text().splitlines()))
        return [row["id"] for row in rows], np.array([row["vector"] for row in rows], np.float32)
    lines = path.with_name(f"{path.name}.ids.jsonl").read_text().splitlines()
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        vectors = load_file(path)["vectors"]
    else:
        vectors = np.load(path)
        vectors = vectors if path.suffix == ".npy" else vectors["vectors"]
    return [json.loads(line)["id"] for line in lines], vectors


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_update_has_the_vectors_of_an_encoding_from_scratch(encode, tmp_path, ending):
    """Those of unchanged texts bit for bit; and a second update finds nothing to do."""
    path, scratch = tmp_path / f"v{ending}", tmp_path / f"scratch{ending}"
    assert encode(FIRST, path.name, "--update").exit_code == 0
    before = dict(zip(*read(path), strict=True))
    done = encode(SECOND, path.name, "--update", "--drop-gone")
    assert done.exit_code == 0, done.stderr
    told = "2 new, 1 changed, 2 gone (dropped), 9 as before"
    assert told in " ".join(done.stderr.split())

    assert encode(SECOND, scratch.name).exit_code == 0
    ids, vectors = read(path)
    wanted_ids, wanted = read(scratch)
    assert ids == wanted_ids == list(SECOND)
    np.testing.assert_allclose(vectors, wanted, atol=1e-6)
    for name, vector in zip(ids, vectors, strict=True):
        if FIRST.get(name) == SECOND[name]:
            np.testing.assert_array_equal(vector, before[name])
    side, wanted_side = (
        json.loads(each.with_name(f"{each.name}.json").read_text()) for each in (path, scratch)
    )
    for key in side.keys() - {"rows_sha256"}:
        assert side[key] == wanted_side[key], key

    written = path.read_bytes(), path.stat().st_mtime_ns
    done = encode(SECOND, path.name, "--update", "--drop-gone")
    assert "0 new, 0 changed, 0 gone, 12 as before" in " ".join(done.stderr.split())
    assert (path.read_bytes(), path.stat().st_mtime_ns) == written


def test_what_follows_an_update_that_keeps_gone_rows_works_as_typed(
    encode, invoke, tiny_model_dir, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert "--embeddings" in encode(FIRST, "v.npy", "--update").stderr
    for _ in range(2):  # the second one finds nothing to do
        assert "next:" not in encode(SECOND, "v.npy", "--update").stderr
    search = ["analyze", "search", "tickets.csv", "--column", "body", "a ticket"]
    search += ["--model", tiny_model_dir, "--device", "cpu"]
    done = invoke(*search, "--embeddings", "v.npy")
    shown = " ".join(done.stderr.split())
    told = "v.npy: 14 vectors for 12 sentences of tickets.csv, need one vector for each"
    assert (done.exit_code, told in shown) == (1, True), shown
    assert "gone from tickets.csv: repeat its `simcse encode` with --update --drop-gone" in shown
    shown = " ".join(encode(SECOND, "v.npy", "--update", "--drop-gone").stderr.split())
    assert re.search(
        r"next: simcse analyze search .* --id-column \w+ .* --embeddings \S+v\.npy", shown
    )
    assert invoke(*search, "--embeddings", "v.npy").exit_code == 0

    encode(FIRST, "w.npy", "--index", "w.index")
    done = encode(SECOND, "w.npy", "--update")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("next: ")]
    assert "search --index " in line
    assert "--embeddings" not in line
    words = shlex.split(line.removeprefix("next: simcse "))
    assert invoke(*words, "--device", "cpu").exit_code == 0


def test_new_rows_are_added_by_an_update(encode, invoke, tiny_model_dir, tmp_path):
    encode(FIRST, "v.npy")
    table = tmp_path / "tickets.csv"
    with table.open("a") as stream:
        stream.write("t30,One more ticket.\n")
    search = ["analyze", "search", table, "--column", "body", "a ticket", "--device", "cpu"]
    search += ["--model", tiny_model_dir, "--embeddings", tmp_path / "v.npy"]
    done = invoke(*search)
    hint = "repeat its `simcse encode` with --update, which adds the rows that are new"
    assert hint in " ".join(done.stderr.split())


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_rows_that_are_gone_stay_at_the_end_unless_they_are_dropped(encode, tmp_path, ending):
    path = tmp_path / f"v{ending}"
    encode(FIRST, path.name)
    before = dict(zip(*read(path), strict=True))
    done = encode(SECOND, path.name, "--update")
    assert "2 gone (kept)" in " ".join(done.stderr.split())
    ids, vectors = read(path)
    assert ids == [*SECOND, "t3", "t5"]
    np.testing.assert_array_equal(vectors[-2:], [before["t3"], before["t5"]])
    if ending == ".parquet":
        texts = parquet.read_table(path)["text"].to_pylist()
        assert texts == [*SECOND.values(), FIRST["t3"], FIRST["t5"]]

    # A text that comes back is known again, and then all go.
    done = encode({**SECOND, "t5": FIRST["t5"]}, path.name, "--update")
    assert "0 new, 0 changed, 1 gone (kept), 13 as before" in " ".join(done.stderr.split())
    encode({"t5": FIRST["t5"]}, path.name, "--update", "--drop-gone")
    ids, vectors = read(path)
    assert ids == ["t5"]
    np.testing.assert_array_equal(vectors, [before["t5"]])


@pytest.mark.parametrize("index", ["v.idx", "v.faiss"])
@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_an_index_beside_it_stays_in_step(encode, invoke, tmp_path, ending, index):
    """It has the rows of the vectors, their ids and texts, those that are gone included."""
    if index.endswith(".faiss"):
        pytest.importorskip("faiss")
    path = tmp_path / f"v{ending}"
    assert encode(FIRST, path.name, "--index", tmp_path / index).exit_code == 0
    done = encode(SECOND, path.name, "--update")
    assert done.exit_code == 0, done.stderr
    found = SearchIndex.load(tmp_path / index)
    ids, vectors = read(path)
    assert list(found.ids) == ids == [*SECOND, "t3", "t5"]
    assert list(found.sentences) == [*SECOND.values(), FIRST["t3"], FIRST["t5"]]
    cosines, rows = found.search(vectors, 1)
    np.testing.assert_array_equal(rows[:, 0], np.arange(len(ids)))
    np.testing.assert_allclose(cosines, 1, atol=1e-5)
    done = encode(SECOND, path.name, "--update", "--index", tmp_path / "other.idx")
    assert "which an update keeps in step" in " ".join(done.stderr.split())

    (tmp_path / index).unlink()
    assert encode(SECOND, path.name, "--update", "--drop-gone").exit_code == 0
    assert list(SearchIndex.load(tmp_path / index).ids) == list(SECOND)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--pooler", "cls_before_pooler"), "pooler 'avg', not 'cls_before_pooler'"),
        (("--prompt", "query: "), "prompt None, not 'query: '"),
        (("--truncate-dim", "8"), "truncate_dim None, not 8"),
        (("--normalize",), "normalize False, not True"),
        (("--dtype", "float16"), "dtype 'float32', not 'float16'"),
        (("--precision", "bf16"), "precision 'fp32', not 'bf16'"),
        (("--max-length", "5"), "max_length None, not 5"),
        (("--column", "id"), "column 'body', not 'id'"),
    ],
)
def test_other_settings_than_recorded_are_named(encode, tmp_path, more, said):
    encode(FIRST, "v.parquet", "--pooler", "avg")
    written = (tmp_path / "v.parquet").read_bytes()
    pooler = () if more[0] == "--pooler" else ("--pooler", "avg")
    done = encode(SECOND, "v.parquet", "--update", *pooler, *more)
    assert done.exit_code == 1
    assert f"was written with {said}" in " ".join(done.stderr.split())
    assert (tmp_path / "v.parquet").read_bytes() == written


def test_another_template_is_named(invoke, tiny_model_dir, tmp_path):
    table, output = tmp_path / "t.csv", tmp_path / "v.jsonl"
    table.write_text(
        "id,subject,body\n1,A subject here,And a body\n2,Another subject,And its body\n"
    )
    more = ["--id-column", "id", "--model", tiny_model_dir, "--update", "--text"]
    assert invoke("encode", table, "-o", output, *more, "{subject} {body}").exit_code == 0
    done = invoke("encode", table, "-o", output, *more, "{body} {subject}")
    assert "text '{subject} {body}', not '{body} {subject}'" in " ".join(done.stderr.split())


def test_another_model_and_an_output_without_ids_are_refused(encode, invoke, tmp_path):
    encode(FIRST, "v.parquet")
    build_tiny_model(tmp_path / "other", seed=1)
    done = encode(SECOND, "v.parquet", "--update", model=tmp_path / "other")
    assert "was written with another model" in " ".join(done.stderr.split())
    damaged = tmp_path / "v.parquet.json"
    side = json.loads(damaged.read_text())
    damaged.write_text(json.dumps({**side, "rows_sha256": "0" * 64}))
    assert "is not what its side file describes" in encode(SECOND, "v.parquet", "--update").stderr
    damaged.write_text(json.dumps({**side, "id_column": None}))
    assert "was written without ids" in encode(SECOND, "v.parquet", "--update").stderr
    damaged.unlink()
    assert "has no side file" in encode(SECOND, "v.parquet", "--update").stderr


def test_an_update_has_one_writer(encode, tmp_path):
    encode(FIRST, "v.parquet")
    with sole_writer(tmp_path / "v.parquet"):
        done = encode(SECOND, "v.parquet", "--update")
    assert done.exit_code == 1
    assert f"is being written by process {os.getpid()}" in done.stderr


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_a_killed_update_goes_on(encode, tmp_path, monkeypatch, ending):
    """The earlier output stays meanwhile, and what was encoded is not encoded again."""
    monkeypatch.setattr(parts, "WINDOW", 4)
    path, third = tmp_path / f"v{ending}", dict(list(FIRST.items())[:4])
    encode(third, path.name)
    written = path.read_bytes()
    with sigterm_in_second_window(monkeypatch):
        done = encode(FIRST, path.name, "--update")
    assert done.exit_code == 128 + signal.SIGTERM
    assert path.read_bytes() == written
    encoded = []
    real = ReadyEncoder.encode

    def count(self, sentences, **options):
        encoded.extend(sentences)
        return real(self, sentences, **options)

    monkeypatch.setattr(ReadyEncoder, "encode", count)
    done = encode(FIRST, path.name, "--update")
    assert done.exit_code == 0, done.stderr
    assert "continuing " in done.stderr
    assert encoded == list(SENTENCES[8:12])
    assert read(path)[0] == list(FIRST)
    assert not list(tmp_path.glob("*.part*")) + list(tmp_path.glob(".*"))


@pytest.mark.parametrize("index", [(), ("--index", "v.idx")])
@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_an_update_killed_at_any_step_of_publishing_is_finished_by_the_next(
    encode, tmp_path, monkeypatch, ending, index
):
    """Every call that removes or moves a file is where the program ends once."""
    monkeypatch.chdir(tmp_path)
    path, wanted = tmp_path / f"v{ending}", tmp_path / f"wanted{ending}"
    encode(FIRST, wanted.name, *(each.replace("v.", "wanted.") for each in index))
    encode(SECOND, wanted.name, "--update")
    seen = []
    for n_calls in range(20):
        for left in tmp_path.glob("*v.*"):
            left.unlink()
        encode(FIRST, path.name, *index)
        steps = iter(range(n_calls))

        def dies(*arguments, steps=steps, real=os.replace):
            if next(steps, None) is None:
                raise Killed
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", dies)
            try:
                encode(SECOND, path.name, "--update")
                is_killed = False
            except Killed:
                is_killed = True
        done = encode(SECOND, path.name, "--update")
        assert done.exit_code == 0, done.stderr
        assert path.read_bytes() == wanted.read_bytes()
        assert read(path)[0] == read(wanted)[0]
        side, wanted_side = (
            json.loads(each.with_name(f"{each.name}.json").read_text()) for each in (path, wanted)
        )
        if index:
            assert Path("v.idx").read_bytes() == Path("wanted.idx").read_bytes()
            assert (side.pop("index"), wanted_side.pop("index")) == ("v.idx", "wanted.idx")
        assert side == wanted_side
        assert not list(tmp_path.glob(".*")) + list(tmp_path.glob("*.part*"))
        seen.append(is_killed)
        if not is_killed:
            break
    assert seen[0]
    assert not seen[-1]
    assert all(first >= second for first, second in pairwise(seen))


def test_an_index_that_a_killed_update_has_replaced_is_written_again(encode, tmp_path, monkeypatch):
    """Also if the input is again that of the output, so that no row is to be encoded."""
    index = tmp_path / "v.idx"
    encode(FIRST, "v.npy", "--index", index)
    written = index.read_bytes()

    def dies(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(formats, "finish_file", dies)
        with pytest.raises(Killed):
            encode(SECOND, "v.npy", "--update")
    assert index.read_bytes() != written
    done = encode(FIRST, "v.npy", "--update")
    assert done.exit_code == 0, done.stderr
    assert index.read_bytes() == written


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("-o", "-", "--id-column", "id", "--update"), "needs an output of one file"),
        (("-o", "folder", "--id-column", "id", "--update"), "needs an output of one file"),
        (("-o", "v.npy", "--update"), "has no use without --id-column"),
        (("-o", "v.npy", "--id-column", "id", "--drop-gone"), "has no use without --update"),
    ],
)
def test_options_that_an_update_needs(invoke, tmp_path, monkeypatch, more, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("id,text\n1,One text.\n")
    done = invoke("encode", "t.csv", *more)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_an_index_of_another_output_is_not_replaced(encode, tmp_path):
    """By an update that is the first to name it, with or without an output to update."""
    assert encode(FIRST, "v.npy", "--index", tmp_path / "v.idx").exit_code == 0
    written = (tmp_path / "v.idx").read_bytes()
    for _ in range(2):
        refused = encode(SECOND, "w.npy", "--update", "--index", tmp_path / "v.idx")
        assert (refused.exit_code, (tmp_path / "v.idx").read_bytes()) == (1, written)
        assert "v.idx exists already" in " ".join(refused.stderr.split())
        assert encode(SECOND, "w.npy", "--update").exit_code == 0
    done = encode(SECOND, "v.npy", "--update", "--index", tmp_path / "v.idx")
    assert done.exit_code == 0, done.stderr


def test_a_run_killed_before_its_side_file_appeared_goes_on_beside_its_ids(
    encode, tmp_path, monkeypatch
):
    monkeypatch.setattr(parts, "WINDOW", 8)
    with sigterm_in_second_window(monkeypatch):
        encode(FIRST, "v.npy")
    (tmp_path / "v.npy.ids.jsonl").write_text("moved to its place first")
    done = encode(FIRST, "v.npy", "--resume")
    assert done.exit_code == 0, done.stderr
    assert read(tmp_path / "v.npy")[0] == list(FIRST)


@pytest.mark.parametrize("index", ["v.idx", "v.faiss"])
def test_an_index_that_is_not_what_was_written_is_written_again(encode, tmp_path, index):
    """After it was replaced by an older copy, while no row has changed; another file is kept."""
    if index.endswith(".faiss"):
        pytest.importorskip("faiss")
    files = index_files(tmp_path / index)
    assert encode(FIRST, "v.npy", "--index", tmp_path / index).exit_code == 0
    older = [file.read_bytes() for file in files]
    assert encode(SECOND, "v.npy", "--update").exit_code == 0
    written = [file.read_bytes() for file in files]
    for file, content in zip(files, older, strict=True):
        file.write_bytes(content)
    refused = encode(SECOND, "v.npy", "--resume", "--index", tmp_path / index)
    assert refused.exit_code == 1
    again = encode(SECOND, "v.npy", "--update")
    assert again.exit_code == 0, again.stderr
    assert [file.read_bytes() for file in files] == written
    stamp = (tmp_path / "v.npy").stat().st_mtime_ns
    assert encode(SECOND, "v.npy", "--update").exit_code == 0
    assert (tmp_path / "v.npy").stat().st_mtime_ns == stamp  # nothing was to be done


@pytest.mark.parametrize("named", [True, False])
def test_a_file_that_is_no_index_is_kept(encode, tmp_path, named):
    index = tmp_path / "v.idx"
    words = ("--update", "--index", index) if named else ("--update",)
    assert encode(FIRST, "v.npy", "--index", index).exit_code == 0
    index.write_text("my notes")
    refused = encode(SECOND, "v.npy", *words)
    assert (refused.exit_code, index.read_text()) == (1, "my notes")
    assert "v.idx exists already" in " ".join(refused.stderr.split())
    assert encode(SECOND, "v.npy", *words, "--force", "--drop-gone").exit_code == 0
    assert list(SearchIndex.load(index).ids) == list(SECOND)
