import gzip
import hashlib
import json

import pytest

from simcse_cli.data.jobs import Job
from simcse_cli.data.table import Table
from simcse_cli.data.writers import build_manifest, describe_file, manifest_path, open_rows
from simcse_cli.errors import OutputError
from simcse_cli.files.atomic import write_json
from simcse_cli.files.output import Output

ROWS = [("A dog, running.", 'He said "no".'), ("ç", '"all quoted"')]
COLUMNS = ("anchor", "positive")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.csv.gz", "a.jsonl.gz"])
def test_open_rows_writes_what_readers_read(tmp_path, name):
    with open_rows(Output(tmp_path / name), COLUMNS) as write:
        for row in ROWS:
            write(row)
    assert [
        tuple(record.values()) for _, record in Table(tmp_path / name, Job.LINT).records()
    ] == ROWS


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_half_of_a_character_is_written_as_its_escape(tmp_path, name):
    with open_rows(Output(tmp_path / name), ("text",)) as write:
        write(("\ud800 a",))
    assert list(Table(tmp_path / name, Job.TEXTS).texts()) == ["\ud800 a"]


def test_a_header_of_tsv_is_one_line_with_one_name_a_column(tmp_path):
    with open_rows(Output(tmp_path / "a.tsv"), ("left\tside", "b\nc")) as write:
        write(("one", "two"))
    assert (tmp_path / "a.tsv").read_text() == "left side\tb c\none\ttwo\n"


def test_open_rows_writes_plain_lines(tmp_path):
    with open_rows(Output(tmp_path / "a.txt"), ("text",)) as write:
        write(("a",))
        write(("b",))
    assert (tmp_path / "a.txt").read_bytes() == b"a\nb\n"


def test_open_rows_gives_the_same_gzip_bytes(tmp_path):
    for name in ("a.txt.gz", "b.txt.gz"):
        with open_rows(Output(tmp_path / name), ("text",)) as write:
            write(("a",))
    assert (tmp_path / "a.txt.gz").read_bytes() == (tmp_path / "b.txt.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.txt.gz").read_bytes()) == b"a\n"


def test_open_rows_leaves_nothing_behind_after_an_error(tmp_path):
    with pytest.raises(TypeError), open_rows(Output(tmp_path / "a.csv"), COLUMNS) as write:
        write((None,))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.parquet", "cannot write parquet"),
        ("a.xlsx", "cannot write excel"),
        ("a.txt", "plain text cannot hold the columns anchor, positive"),
        ("a.npy", r"a file of \.npy cannot hold"),
    ],
)
def test_open_rows_refuses_formats_that_do_not_fit(tmp_path, name, message):
    with (
        pytest.raises(OutputError, match=message) as caught,
        open_rows(Output(tmp_path / name), COLUMNS),
    ):
        pass
    assert caught.value.hint == "name it .csv, .tsv or .jsonl (also .gz)"


def test_open_rows_proposes_plain_text_for_one_column(tmp_path):
    with (
        pytest.raises(OutputError, match="cannot write parquet") as caught,
        open_rows(Output(tmp_path / "a.parquet"), ("text",)),
    ):
        pass
    assert caught.value.hint == "name it .txt, .csv, .tsv or .jsonl (also .gz)"


def test_open_rows_does_not_overwrite(tmp_path):
    (tmp_path / "a.csv").write_text("mine")
    with (
        pytest.raises(OutputError, match="exists already"),
        open_rows(Output(tmp_path / "a.csv"), COLUMNS),
    ):
        pass
    assert (tmp_path / "a.csv").read_text() == "mine"


def test_describe_file_gives_size_and_digest(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc")
    assert describe_file(path) == {
        "path": str(path),
        "bytes": 3,
        "sha256": hashlib.sha256(b"abc").hexdigest(),
    }


def test_describe_file_of_stdin_and_hub_has_no_digest():
    for name in ("-", "hf://a/b"):
        assert describe_file(name) == {"path": name, "bytes": None, "sha256": None}


def test_manifest_is_the_same_wherever_the_output_lies(tmp_path):
    written = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        output = folder / "out.txt"
        output.write_text("a\n")
        manifest = build_manifest(
            "sentences",
            inputs=["-"],
            folder=folder,
            outputs=[(output, 1)],
            settings={},
            seed=1,
            counts={},
        )
        write_json(manifest_path(output), manifest)
        written.append(manifest_path(output))
    assert written[0].name == "out.txt.manifest.json"
    assert written[0].read_bytes() == written[1].read_bytes()
    assert json.loads(written[0].read_text())["outputs"][0]["path"] == "out.txt"
