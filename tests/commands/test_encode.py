import csv
import hashlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers import SENTENCES, plain_vectors, sigterm_in_second_window
from simcse_cli.encoding import parts
from simcse_cli.encoding.journal import Journal
from simcse_cli.encoding.search_index import SearchIndex
from simcse_cli.files.locks import sole_writer
from simcse_cli.models.encode import ReadyEncoder


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("\n".join(SENTENCES) + "\n\nafter a blank line\n")
    return path


def test_row_i_is_line_i_and_the_side_file_records_the_model(
    invoke, source, tiny_model_dir, tmp_path
):
    outcome = invoke(
        "encode", source, "-o", tmp_path / "v.npy", "-m", tiny_model_dir, "--pooler", "avg"
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout == ""
    vectors = np.load(tmp_path / "v.npy")
    expected = plain_vectors(tiny_model_dir, "avg", [*SENTENCES, "", "after a blank line"])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    side = json.loads((tmp_path / "v.npy.json").read_text())
    assert (side["pooler"], side["n_rows"], side["dim"], side["dtype"]) == (
        "avg",
        26,
        32,
        "float32",
    )
    assert len(side["model_digest"].removeprefix("2-")) == len(side["input_sha256"]) == 64
    assert (side["format"], side["precision"], "capability" in side) == (1, "fp32", False)
    assert "v.npy: 26 x 32 float32" in outcome.stderr


def test_stdin_to_stdout_as_json_lines(invoke, tiny_model_dir):
    outcome = invoke("encode", "-", "-o", "-", "-m", tiny_model_dir, "-q", input="one\ntwo ü\n")
    rows = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert [row["text"] for row in rows] == ["one", "two ü"]
    assert all(len(row["vector"]) == 32 for row in rows)
    assert outcome.stderr == ""


def test_normalize_and_dtype(invoke, source, tiny_model_dir, tmp_path):
    command = ("encode", source, "-m", tiny_model_dir, "--normalize")
    invoke(*command, "-o", tmp_path / "a.npy")
    invoke(*command, "-o", tmp_path / "b.npy", "--dtype", "float16")
    full, half = np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy")
    np.testing.assert_allclose(np.linalg.norm(full, axis=1), 1, atol=1e-5)
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, full, atol=1e-3)


def test_column_of_a_table(invoke, tiny_model_dir, tmp_path):
    (tmp_path / "t.tsv").write_text("id\tcaption\n1\tone\n2\ttwo\n")
    outcome = invoke(
        "encode",
        tmp_path / "t.tsv",
        "--column",
        "caption",
        "-o",
        tmp_path / "v.npy",
        "-m",
        tiny_model_dir,
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert len(np.load(tmp_path / "v.npy")) == 2


def test_a_wrong_type_in_a_file_of_settings_is_named_with_its_place(invoke, source, tmp_path):
    (tmp_path / "e.yaml").write_text("dtype: int9\n")
    outcome = invoke("encode", source, "-o", tmp_path / "v.npy", "--config", tmp_path / "e.yaml")
    assert outcome.exit_code == 1
    needed = "need one of float32, float16, int8, binary"
    assert f"e.yaml: dtype 'int9', {needed}" in " ".join(outcome.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.txt", "-o", "v.npy"), "nowhere.txt does not exist"),
        (("{source}", "-o", "v.txt"), "unknown ending"),
        (("{source}", "-o", "v.npy", "--pooler", "cls", "-m", "{headless}"), "would be random"),
        (("{source}", "-o", "v.npy", "--precision", "fp16", "--device", "cpu"), "fp16 needs a GPU"),
    ],
)
def test_bad_requests_name_the_fix(
    invoke, source, tiny_model_dir, tmp_path, monkeypatch, arguments, message
):
    from safetensors.torch import load_file, save_file

    monkeypatch.chdir(tmp_path)
    weights = tiny_model_dir / "model.safetensors"
    kept = {k: v for k, v in load_file(weights).items() if not k.startswith("pooler.")}
    save_file(kept, weights, metadata={"format": "pt"})
    filled = [a.format(source=source, headless=tiny_model_dir) for a in arguments]
    outcome = invoke("encode", *filled, *(() if "-m" in filled else ("-m", tiny_model_dir)))
    assert outcome.exit_code == 1
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not (tmp_path / "v.npy").exists()


def test_existing_output_is_kept(invoke, source, tiny_model_dir, tmp_path):
    (tmp_path / "v.npy").write_bytes(b"precious")
    command = ("encode", source, "-o", tmp_path / "v.npy", "-m", tiny_model_dir)
    assert invoke(*command).exit_code == 1
    assert (tmp_path / "v.npy").read_bytes() == b"precious"
    assert invoke(*command, "--force").exit_code == 0


def test_settings_come_from_a_file_too(invoke, source, tiny_model_dir, tmp_path):
    (tmp_path / "c.yaml").write_text(f"model: {tiny_model_dir}\nnormalize: true\n")
    outcome = invoke("encode", source, "-o", tmp_path / "v.npy", "--config", tmp_path / "c.yaml")
    assert outcome.exit_code == 0, outcome.stderr
    np.testing.assert_allclose(np.linalg.norm(np.load(tmp_path / "v.npy"), axis=1), 1, atol=1e-5)
    (tmp_path / "c.yaml").write_text("normalise: true\n")
    outcome = invoke("encode", source, "-o", tmp_path / "w.npy", "--config", tmp_path / "c.yaml")
    assert outcome.exit_code == 1
    assert "did you mean normalize?" in outcome.stderr


@pytest.mark.parametrize(
    ("line", "message", "code"),
    [
        ("max-length: five", "max_length 'five', need a whole number", 1),
        ("max-length: 1", "max_length 1: need at least 3", 1),
        ("precision: fp33", "precision 'fp33', need one of fp32", 1),
        ("device: gpu", "device: 'gpu'; need auto, cpu", 2),
    ],
)
def test_a_bad_setting_of_a_file_names_the_file(invoke, source, tmp_path, line, message, code):
    file = tmp_path / "c.yaml"
    file.write_text(f"{line}\ntext: null\n")
    outcome = invoke("encode", source, "-o", tmp_path / "v.npy", "--config", file)
    assert outcome.exit_code == code
    assert f"error: {file}: {message}" in " ".join(outcome.stderr.split())


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.csv", "-"])
def test_pairs_are_written_with_their_cosines(invoke, tiny_model_dir, tmp_path, name):
    pairs = [
        (SENTENCES[0], SENTENCES[2]),
        (SENTENCES[3], SENTENCES[3]),
        (SENTENCES[4], SENTENCES[9]),
    ]
    text = "".join(f"{a}\t{b}\n" for a, b in pairs)
    if name.endswith("csv"):
        text = "id,question1,question2\n" + "".join(
            f'{i},"{a}","{b}"\n' for i, (a, b) in enumerate(pairs)
        )
    (tmp_path / "pairs.tsv").write_text(text)
    (tmp_path / "pairs.csv").write_text(text)
    source = name if name == "-" else tmp_path / name
    outcome = invoke(
        "encode", source, "--pairs", "-m", tiny_model_dir, "--pooler", "avg", input=text
    )
    assert outcome.exit_code == 0, outcome.stderr
    rows = list(csv.DictReader(outcome.stdout.splitlines()))
    assert [(row["sentence1"], row["sentence2"]) for row in rows] == pairs
    left, right = (plain_vectors(tiny_model_dir, "avg", side) for side in zip(*pairs, strict=True))
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    expected = (left * right).sum(axis=1) / norms
    assert [float(row["cosine"]) for row in rows] == pytest.approx(expected.tolist(), abs=1e-5)
    # A table holds six digits, JSON Lines the same number.
    words = ("--pairs", "-m", tiny_model_dir, "--pooler", "avg", "-o", tmp_path / "pairs.jsonl")
    assert invoke("encode", source, *words, input=text).exit_code == 0
    records = map(json.loads, (tmp_path / "pairs.jsonl").read_text().splitlines())
    assert [f"{record['cosine']:.6f}" for record in records] == [row["cosine"] for row in rows]


def test_pairs_keep_the_ids_of_their_rows(invoke, tiny_model_dir, tmp_path):
    """Rows with an empty text are left out, so the number of a row does not name its pair."""
    text = "nr,question1,question2\nq1,A dog.,A cat.\nq2,,A cow.\nq1,A dog.,A cow.\nq4,A man.,\n"
    (tmp_path / "pairs.csv").write_text(text)
    words = ("--pairs", "--id-column", "nr", "-m", tiny_model_dir, "--pooler", "avg")
    plain = invoke("encode", tmp_path / "pairs.csv", "--pairs", *words[3:])
    for source in (tmp_path / "pairs.csv", "-"):
        outcome = invoke("encode", source, *words, input=text)
        assert outcome.exit_code == 0, outcome.stderr
        rows = list(csv.DictReader(outcome.stdout.splitlines()))
        assert [row.pop("id") for row in rows] == ["q1", "q1"]
        assert rows == list(csv.DictReader(plain.stdout.splitlines()))
    assert "not used" not in outcome.stderr
    wrong = invoke("encode", tmp_path / "pairs.csv", "--pairs", "--id-column", "no", *words[3:])
    assert "pairs.csv: no column no; there are nr, question1, question2" in wrong.stderr


def test_ids_of_a_pipe_are_refused_as_it_is_read_once(invoke, tmp_path):
    words = ("encode", "-", "--column", "text", "--id-column", "id", "-o", tmp_path / "v.parquet")
    outcome = invoke(*words, input="id,text\n1,A dog.\n2,A cat.\n")
    assert outcome.exit_code == 2
    assert "--id-column: needs an input that can be read again" in outcome.stderr


@pytest.mark.parametrize("name", ["v.npy", "./v.npy"])
def test_an_index_is_not_written_over_its_vectors(invoke, source, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    outcome = invoke("encode", source, "-o", "v.npy", "--index", name, "-m", "nowhere/model")
    assert outcome.exit_code == 2
    assert "--index: v.npy is the output, -o" in outcome.stderr


def test_a_single_pair_comes_through_a_pipe(invoke, tiny_model_dir):
    outcome = invoke(
        "encode", "-", "--pairs", "-m", tiny_model_dir, "-q", input="Yes, a cat.\tA dog, no.\n"
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.startswith('sentence1,sentence2,cosine\n"Yes, a cat.","A dog, no.",')


def test_pairs_go_to_a_file_and_need_two_columns(invoke, tiny_model_dir, tmp_path):
    (tmp_path / "t.csv").write_text("id,one,two,three\n1,a cat,a dog,a cow\n")
    command = (
        "encode",
        tmp_path / "t.csv",
        "--pairs",
        "-m",
        tiny_model_dir,
        "-o",
        tmp_path / "o.jsonl",
    )
    refused = invoke(*command)
    assert refused.exit_code == 1
    assert "1 id | 2 one | 3 two | 4 three" in refused.stderr
    assert not (tmp_path / "o.jsonl").exists()
    assert invoke(*command, "--column", "one,two").exit_code == 0
    assert json.loads((tmp_path / "o.jsonl").read_text())["sentence2"] == "a dog"
    assert [path.name for path in tmp_path.glob("*o.*")] == ["o.jsonl"]
    assert invoke(*command, "--column", "one").exit_code == 2


def test_vectors_need_a_file_or_stdout(invoke, source, tiny_model_dir):
    outcome = invoke("encode", source, "-m", tiny_model_dir)
    assert outcome.exit_code == 2
    assert "--output" in outcome.stderr


@pytest.fixture
def encode(invoke, source, tiny_model_dir, tmp_path):
    """Return a function that encodes the source to ``v.npy``."""

    def run(*arguments, source=source):
        return invoke("encode", source, "-o", tmp_path / "v.npy", "-m", tiny_model_dir, *arguments)

    return run


def names(folder):
    return sorted(path.name for path in folder.glob("*v.*"))


def test_second_encode_is_told_who_writes(encode, tmp_path):
    with sole_writer(tmp_path / "v.npy"):
        outcome = encode("--force")
    assert outcome.exit_code == 1
    assert f"v.npy is being written by process {os.getpid()} on " in outcome.stderr
    assert encode().exit_code == 0
    assert names(tmp_path) == ["v.npy", "v.npy.json"]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"caf\xe9\n", "x.txt", "not UTF-8"),
        (b"a,b\n1,2\n", "x.csv", "no column text"),
        (None, "x.txt", "not exist"),
    ],
)
def test_error_before_the_first_vectors_leaves_nothing(
    encode, source, tmp_path, content, name, message
):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    column = ("--column", "text") if name.endswith("csv") else ()
    outcome = encode(*column, source=tmp_path / name)
    assert outcome.exit_code == 1
    assert message in outcome.stderr
    assert names(tmp_path) == []
    assert encode().exit_code == 0


def test_finished_output_is_finished_for_resume_and_in_the_way_for_others(encode, source, tmp_path):
    index = tmp_path / "v.idx"
    assert "wrote " in encode("--index", index).stderr.partition("v.npy: ")[2]
    written = (tmp_path / "v.npy").read_bytes(), index.read_bytes()
    outcome = encode("--index", index, "--resume")
    assert (outcome.exit_code, "is already finished" in outcome.stderr) == (0, True)
    for changed, name in ((("--normalize",), "normalize"), (("--dtype", "float16"), "dtype")):
        outcome = encode("--resume", *changed)
        assert outcome.exit_code == 1
        assert f"exists already and has {name} " in outcome.stderr
    source.write_text("another\n")
    outcome = encode("--resume")
    said = " ".join(outcome.stderr.split())
    assert f"exists already and has another input: {source} has changed" in said
    (tmp_path / "v.npy.json").rename(tmp_path / "aside.json")
    assert (
        "exists already, without a side file that tells what it holds" in encode("--resume").stderr
    )
    assert ((tmp_path / "v.npy").read_bytes(), index.read_bytes()) == written


def test_what_a_stream_gave_is_never_taken_for_finished(invoke, tiny_model_dir, tmp_path):
    command = ("encode", "-", "-o", tmp_path / "v.npy", "-m", tiny_model_dir, "--resume")
    assert invoke(*command, input="one\ntwo\n").exit_code == 0
    refused = invoke(*command, input="three\nfour\n")
    assert refused.exit_code == 1
    said = " ".join(refused.stderr.split())
    assert "v.npy exists already, and what comes from - may differ from its input" in said


def test_an_index_of_another_output_is_not_taken_for_its_own(encode, source, tmp_path):
    encode("--index", tmp_path / "v.idx")
    source.write_text("another\n")
    (tmp_path / "v.npy").rename(tmp_path / "w.npy")
    (tmp_path / "v.npy.json").rename(tmp_path / "w.npy.json")
    assert encode().exit_code == 0
    refused = encode("--index", tmp_path / "v.idx", "--resume")
    assert refused.exit_code == 1
    said = " ".join(refused.stderr.split())
    assert f"{tmp_path / 'v.idx'} exists already" in said
    (tmp_path / "v.idx").unlink()
    said = " ".join(encode("--index", tmp_path / "v.idx", "--resume").stderr.split())
    assert f"exists already and was not written with --index {tmp_path / 'v.idx'}" in said


def test_what_a_killed_process_completed_is_compared_with_the_settings(
    encode, source, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", lambda self: None)
        encode()
    assert names(tmp_path) == ["v.npy", "v.npy.json", "v.npy.part.json", "v.npy.part.txt"]
    refused = encode("--resume", "--normalize")
    assert refused.exit_code == 1
    assert "exists already and has normalize False, not True" in " ".join(refused.stderr.split())
    source.write_text("another\n")
    assert "exists already and has another input" in " ".join(encode("--resume").stderr.split())


@pytest.mark.parametrize("change", ["grow", "cut", "replace"])
def test_input_that_changes_meanwhile_ends_in_an_error_that_resume_mends(
    encode, source, tmp_path, monkeypatch, change
):
    real = ReadyEncoder.encode

    def encode_and_change(self, sentences, **options):
        match change:
            case "grow":
                with source.open("a") as stream:
                    stream.write("one more\n")
            case "cut":
                os.truncate(source, 40)
            case _:
                other = tmp_path / "other.txt"
                other.write_text(source.read_text().upper())
                other.replace(source)
        return real(self, sentences, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ReadyEncoder, "encode", encode_and_change)
        outcome = encode()
    assert outcome.exit_code == 1
    assert "input.txt has changed while it was read" in outcome.stderr
    assert not (tmp_path / "v.npy").exists()
    assert encode("--resume").exit_code == 0
    side = json.loads((tmp_path / "v.npy.json").read_text())
    assert side["input_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert (
        side["n_rows"]
        == len(np.load(tmp_path / "v.npy"))
        == source.read_text().count("\n") + (change == "cut")
    )
    assert names(tmp_path) == ["v.npy", "v.npy.json"]


def test_index_holds_the_sentences_that_were_encoded(encode, source, tmp_path):
    assert encode("--index", tmp_path / "v.idx").exit_code == 0
    assert (
        list(SearchIndex.load(tmp_path / "v.idx").sentences) == source.read_text().split("\n")[:-1]
    )


def test_an_index_for_faiss_is_complete_or_not_there(encode, tmp_path, monkeypatch):
    """FAISS has the rows of the vectors; either of its two files is in the way, and --resume misses both."""
    faiss = pytest.importorskip("faiss")
    index, texts = tmp_path / "v.faiss", tmp_path / "v.faiss.texts"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "faiss", None)
        assert "simcse-cli[faiss]" in encode("--index", index).stderr
    texts.write_text("mine")
    assert "v.faiss.texts exists already" in encode("--index", index).stderr
    texts.unlink()
    assert names(tmp_path) == []
    assert encode("--index", index, "--normalize").exit_code == 0
    assert names(tmp_path) == ["v.faiss", "v.faiss.texts", "v.npy", "v.npy.json"]
    rows = faiss.read_index(str(index)).reconstruct_n(0, len(SENTENCES))
    np.testing.assert_allclose(rows, np.load(tmp_path / "v.npy")[: len(SENTENCES)], rtol=1e-6)
    texts.unlink()
    assert (
        "v.faiss.texts does not exist" in encode("--index", index, "--normalize", "--resume").stderr
    )


def test_sigterm_leaves_what_resume_continues_and_nothing_else(encode, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "WINDOW", 8)
    with sigterm_in_second_window(monkeypatch):
        outcome = encode()
    assert outcome.exit_code == 128 + signal.SIGTERM
    assert outcome.stderr.endswith(
        "stopped\n8 sentences are kept; add --resume to the same command to continue\n"
    )
    assert names(tmp_path) == ["v.npy.part", "v.npy.part.json", "v.npy.part.txt"]
    assert encode("--resume").exit_code == 0
    assert names(tmp_path) == ["v.npy", "v.npy.json"]


@pytest.mark.parametrize("option", ["--truncate-dim", "--prompt", "--id-column", "--long"])
def test_resume_without_an_option_of_the_first_time_is_refused(
    encode, source, tmp_path, monkeypatch, option
):
    value = {"--truncate-dim": "8", "--prompt": "query: ", "--id-column": "n", "--long": "mean"}
    first = (option, value[option])
    table = tmp_path / "t.csv"
    rows = [f"{n},{text}" for n, text in enumerate(source.read_text().splitlines())]
    table.write_text("n,text\n" + "\n".join(rows) + "\n")
    monkeypatch.setattr(parts, "WINDOW", 8)
    with sigterm_in_second_window(monkeypatch):
        encode(*first, source=table)
    name = option[2:].replace("-", "_")
    refused = encode("--resume", source=table)
    assert refused.exit_code == 1
    assert f"has {name} " in refused.stderr
    assert encode(*first, "--resume", source=table).exit_code == 0
    refused = encode("--resume", source=table)
    assert f"exists already and has {name} " in " ".join(refused.stderr.split())


def test_names_that_are_not_utf8_are_written_and_recorded(invoke, source, tiny_model_dir, tmp_path):
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    text = shutil.move(source, odd / "input.txt")
    for ending in ("npy", "npz", "safetensors", "parquet", "jsonl"):
        outcome = invoke("encode", text, "-o", odd / f"v.{ending}", "-m", tiny_model_dir)
        assert outcome.exit_code == 0, outcome.stderr
        assert json.loads((odd / f"v.{ending}.json").read_text())["input"] == str(text)
    outcome = invoke(
        "encode", text, "-o", odd / "w.npy", "-m", tiny_model_dir, "--index", odd / "w.idx"
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert len(SearchIndex.load(odd / "w.idx").sentences) == len(SENTENCES) + 2


def test_no_file_of_the_user_is_taken_for_a_side_file(encode, tmp_path):
    mine = tmp_path / "v.npy.json"
    mine.write_text('{"mine": 1}')
    outcome = encode()
    assert outcome.exit_code == 1
    assert "v.npy.json exists already" in outcome.stderr
    assert (mine.read_text(), names(tmp_path)) == ('{"mine": 1}', ["v.npy.json"])
    assert encode("--force").exit_code == 0
    (tmp_path / "v.npy").unlink()  # a side file of ours is no obstacle
    assert encode().exit_code == 0


def test_nothing_is_printed_before_the_columns_of_pairs_are_known(invoke, tiny_model_dir, tmp_path):
    (tmp_path / "pairs.tsv").write_text("q\tx\ty\nA dog.\tA cat.\tA cow.\n")
    outcome = invoke("encode", tmp_path / "pairs.tsv", "--pairs", "-m", tiny_model_dir)
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "pairs.tsv: row 1 may be the header" in outcome.stderr


@pytest.mark.parametrize("option", [(), ("--resume",), ("--force",)])
def test_a_folder_in_place_of_unfinished_work_is_an_error(option, invoke, tiny_model_dir, tmp_path):
    (tmp_path / "lines.txt").write_text("A dog.\nA cat.\n")
    (tmp_path / "v.npy.part.json").mkdir()
    command = ("encode", tmp_path / "lines.txt", "-o", tmp_path / "v.npy", "-m", tiny_model_dir)
    outcome = invoke(*command, "--pooler", "avg", *option)
    assert outcome.exit_code == 1
    assert "v.npy: Is a directory" in outcome.stderr


@pytest.mark.parametrize(("length", "is_told"), [("65", True), ("64", False), ("5", False)])
def test_a_length_beyond_that_of_the_model_is_told(encode, length, is_told):
    done = encode("--max-length", length)
    assert done.exit_code == 0
    told = f"--max-length {length}: " in done.stderr and "reads at most 64 sub-words" in done.stderr
    assert told is is_told


def test_the_search_that_follows_reads_a_beir_corpus_without_titles(
    invoke, tiny_model_dir, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    rows = ({"_id": f"d{i}", "title": f"About {i}", "text": f"Text {i}."} for i in range(6))
    Path("corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = invoke("encode", "corpus.jsonl", "-o", "v.npy", "-m", tiny_model_dir)
    assert "corpus.jsonl: text = text; not used: _id, title" in done.stderr
    assert "next: simcse analyze search corpus.jsonl --column text --model" in done.stderr
    done = invoke(
        "encode", "corpus.jsonl", "--text", "{title} {text}", "-o", "w.npy", "-m", tiny_model_dir
    )
    assert "next: simcse analyze search corpus.jsonl --text '{title} {text}'" in done.stderr


def test_a_file_whose_name_begins_with_a_dash(invoke, tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("-dash.txt").write_text("A cat.\nA dog.\n")
    words = ("-o", "v.npy", "-m", tiny_model_dir)
    refused = invoke("encode", "-dash.txt", *words)
    assert refused.exit_code == 2
    assert refused.stderr.endswith("begins with a dash: ./-dash.txt\n")
    done = invoke("encode", *words, "--", "-dash.txt")
    assert done.exit_code == 0
    assert "next: simcse analyze search ./-dash.txt --model" in done.stderr
    # Without such a file, it is an unknown option.
    Path("-dash.txt").unlink()
    assert "see simcse encode -h" in invoke("encode", "-dash.txt", *words).stderr
