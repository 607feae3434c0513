"""`encode --force` whose output is its own input: refused before anything is written."""

import json
import os

import pytest

from simcse_cli.encoding import parts

ROWS = [{"id": number, "text": f"Text number {number}."} for number in range(20)]


@pytest.fixture
def lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parts, "WINDOW", 4)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "link.jsonl").symlink_to(path)
    os.link(path, tmp_path / "v.npy.ids.jsonl")
    os.link(path, tmp_path / "v.npy.json")
    os.link(path, tmp_path / "w.shard-1-of-2.jsonl")
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\nA cat.\tA dog.\n")
    return path


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    "arguments",
    [
        ["rows.jsonl", "-o", "rows.jsonl"],
        ["rows.jsonl", "-o", "../{folder}/rows.jsonl"],
        ["rows.jsonl", "-o", "link.jsonl"],
        ["link.jsonl", "-o", "rows.jsonl"],
        ["rows.*", "-o", "./rows.jsonl"],
        ["file://{path}/rows.jsonl", "-o", "rows.jsonl"],
        ["rows.jsonl", "-o", "v.npy"],  # whose side file is the input
        ["v.npy.ids.jsonl", "-o", "u.npy", "--index", "rows.jsonl"],
        ["rows.jsonl", "-o", "w.jsonl", "--shard", "1/2"],
        ["pairs.tsv", "--pairs", "-o", "./pairs.tsv"],
    ],
)
def test_an_output_that_is_read_is_refused(invoke, lines, tmp_path, tiny_model_dir, arguments):
    before = contents(tmp_path)
    words = [word.format(folder=tmp_path.name, path=tmp_path) for word in arguments]
    for force in ((), ("--force",)):
        outcome = invoke("encode", *words, "-m", tiny_model_dir, "--pooler", "avg", *force)
        assert outcome.exit_code == (2 if force else outcome.exit_code) != 0
        assert force == () or "is read by this command, and would be replaced" in outcome.stderr
        assert contents(tmp_path) == before


@pytest.mark.parametrize("place", ["parts", "file://{folder}/parts"])
def test_parts_that_are_read_are_not_removed(invoke, lines, tmp_path, tiny_model_dir, place):
    words = ("-m", tiny_model_dir, "--pooler", "avg")
    assert invoke("encode", lines, "-o", "parts", *words).exit_code == 0
    before = contents(tmp_path / "parts")
    place = place.format(folder=tmp_path)
    source = f"{place}/part-0000[12]-of-00005.parquet"
    outcome = invoke("encode", source, "-o", place, *words, "--force")
    assert (outcome.exit_code, contents(tmp_path / "parts")) == (2, before)
    outcome = invoke("encode", "--merge", "parts/part-00002-of-00005.parquet", "parts", "--force")
    assert (outcome.exit_code, contents(tmp_path / "parts")) == (2, before)


@pytest.mark.parametrize("index", ["v.npy", "./v.npy.json", "v.npy.ids.jsonl"])
def test_an_index_in_the_place_of_a_file_of_the_output_is_refused(
    invoke, lines, tmp_path, tiny_model_dir, index
):
    (tmp_path / "v.npy.json").unlink()
    words = ("-m", tiny_model_dir, "--pooler", "avg", "--index", index)
    outcome = invoke("encode", lines, "-o", "v.npy", *words)
    assert outcome.exit_code == 2
    assert "is the output, -o, or beside it" in outcome.stderr
