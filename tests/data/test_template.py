"""Texts of several columns, and ids beside them: `--text '{subject} {body}'`, `--id-column`."""

import csv
import json

import numpy as np
import pytest
from pyarrow import parquet

from simcse_cli.data.given import Given
from simcse_cli.data.ids import require_unique
from simcse_cli.data.jobs import Job
from simcse_cli.data.table import Table
from simcse_cli.data.template import Template
from simcse_cli.data.training_file import read_training_rows
from simcse_cli.errors import DataError, UsageError

TICKETS = [
    ("t1", "Refund", "Where is my money?"),
    ("t2", "", "The parcel never came."),
    ("t3", "Password", ""),
    ("t4", "", ""),
]
TEXTS = ["Refund: Where is my money?", "The parcel never came.", "Password", ""]


@pytest.fixture(params=["csv", "tsv", "jsonl", "parquet"])
def tickets(tmp_path, request):
    path = tmp_path / f"tickets.{request.param}"
    names = ("id", "subject", "body")
    if request.param == "parquet":
        import pyarrow as pa

        columns = dict(zip(names, map(list, zip(*TICKETS, strict=True)), strict=True))
        parquet.write_table(pa.table(columns), path)
    elif request.param == "jsonl":
        rows = [dict(zip(names, row, strict=True)) for row in TICKETS]
        lacking = [{name: cell for name, cell in row.items() if cell} for row in rows]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in lacking))
    else:
        with path.open("w", newline="") as stream:
            separator = "," if request.param == "csv" else "\t"
            csv.writer(stream, delimiter=separator).writerows([names, *TICKETS])
    return path


@pytest.mark.parametrize(
    ("template", "cells", "text"),
    [
        ("{a} {b}", ["x", "y"], "x y"),
        ("{a} {b}", [" ", "y"], "y"),
        ("{a}: {b}", ["x", ""], "x"),
        ("About {a}. Text: {b}", ["", "y"], "Text: y"),
        ("{a} (in {b})", ["x", "y"], "x (in y)"),
        ("{a} (in {b})", ["x", ""], "x"),
        ("{a}", ["x"], "x"),
        ("{a}{a}", ["x", "x"], "xx"),
    ],
)
def test_an_empty_cell_is_left_out_with_the_words_before_it(template, cells, text):
    assert Template.parse(template).fill(cells) == text


def test_a_template_names_a_column():
    with pytest.raises(UsageError, match="need names of columns in braces"):
        Template.parse("subject body")


def test_every_format_gives_the_texts_of_a_template_and_the_cells_beside_them(tickets):
    given = Given().of_texts(None, "{subject}: {body}")
    found = list(Table(tickets, Job.TEXTS, given).texts_with("id"))
    assert found == [(text, (row[0],)) for text, row in zip(TEXTS, TICKETS, strict=True)]
    assert list(Table(tickets, Job.TEXTS, given).texts(start=2)) == TEXTS[2:]


def test_an_unknown_column_is_an_error_that_lists_the_columns(tickets, invoke):
    done = invoke("encode", tickets, "-o", "-", "--text", "{title} {body}")
    assert done.exit_code == 1
    assert "no column title; there are id, subject, body" in done.stderr
    lines = tickets.with_name("lines.txt")
    lines.write_text("One text.\nAnother text.\n")
    done = invoke("encode", lines, "-o", "-", "--text", "{title} {body}")
    assert done.exit_code == 2
    assert "--text" in done.stderr
    assert "needs a table" in done.stderr


def test_a_template_and_a_column_exclude_each_other(tickets, invoke):
    done = invoke("encode", tickets, "-o", "-", "--text", "{subject}", "--column", "body")
    assert done.exit_code == 2
    assert "has no use with --text" in " ".join(done.stderr.split())


def test_vectors_of_a_template_are_those_of_its_texts(tickets, invoke, tiny_model_dir, tmp_path):
    """And a part of the rows is counted that has no text in any of the columns."""
    model = ["--model", tiny_model_dir, "--device", "cpu"]
    plain, output = tmp_path / "plain.npy", tmp_path / "v.parquet"
    lines = tmp_path / "texts.txt"
    lines.write_text("".join(f"{text}\n" for text in TEXTS))
    template = ["--text", "{subject}: {body}", "--id-column", "id"]
    done = invoke("encode", tickets, "-o", output, *template, *model)
    assert done.exit_code == 0, done.stderr
    assert "1 text is empty" in done.stderr
    assert invoke("encode", lines, "-o", plain, *model).exit_code == 0
    found = parquet.read_table(output)
    assert found["id"].to_pylist() == [row[0] for row in TICKETS]
    assert found["text"].to_pylist() == TEXTS
    np.testing.assert_array_equal(np.stack(found["vector"].to_numpy()), np.load(plain))
    side = json.loads((tmp_path / "v.parquet.json").read_text())
    assert (side["text"], side["column"]) == ("{subject}: {body}", None)


def test_training_reads_the_texts_of_a_template(tickets):
    found = read_training_rows(tickets, Given().of_texts(None, "{subject}: {body}"))
    assert found.columns == ("anchor",)
    assert list(found.rows) == [(text,) for text in TEXTS if text]
    assert found.n_dropped == TEXTS.count("")


def test_training_on_pairs_refuses_a_template(tickets, invoke, tiny_model_dir):
    words = ["train", "--train-file", tickets, "--text", "{subject}", "--model", tiny_model_dir]
    done = invoke(*words, "--mode", "sup")
    assert done.exit_code == 1
    assert "--text makes single texts, and --objective simcse-sup reads pairs" in done.stderr
    done = invoke(*words, "--mode", "unsup", "--columns", "body")
    assert done.exit_code == 2
    assert "has no use with --text" in " ".join(done.stderr.split())


def test_ids_that_repeat_are_named_by_their_rows():
    require_unique(lambda: ["a", "b", 3], "f.csv", "id")
    with pytest.raises(DataError, match=r"f\.csv: rows 2 and 4 have the id 'b' in column id"):
        require_unique(lambda: iter(["a", "b", "c", "b", "a"]), "f.csv", "id")


@pytest.mark.parametrize("missing", ["", " ", None, float("nan")])
def test_a_row_without_an_id_is_named(missing):
    with pytest.raises(DataError, match=r"f\.csv: row 2 has no id in column id"):
        require_unique(lambda: ["a", missing, "b"], "f.csv", "id")


@pytest.mark.parametrize(
    "command", [["encode"], ["prepare", "duplicates"], ["analyze", "groups", "--k", "2"]]
)
def test_every_command_refuses_an_id_of_two_rows(command, invoke, tiny_model_dir, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("id,text\na,The first text.\nb,A second text.\na,And a third one.\n")
    options = ["--id-column", "id", "-o", tmp_path / "out.csv"]
    if command == ["encode"]:
        options[-1] = tmp_path / "out.parquet"
    done = invoke(*command, table, *options, "--model", tiny_model_dir)
    assert done.exit_code == 1
    assert "rows 1 and 3 have the id 'a' in column id" in done.stderr
