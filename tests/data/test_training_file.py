import json

import pytest

from simcse_cli.data.training_file import (
    read_labelled_rows,
    read_training_documents,
    read_training_rows,
    split_documents,
)
from simcse_cli.errors import DataError
from simcse_cli.files import sha256_file


@pytest.mark.parametrize(
    ("name", "content", "columns", "rows"),
    [
        ("a.txt", "a  b\n\nc\n", ("anchor",), [("a b",), ("c",)]),
        ("a.csv", "sent1,id,sent0\nb,1,a\n,2,c\n", ("anchor", "positive"), [("a", "b")]),
        ("a.tsv", "a\tb\tc\n", ("anchor", "positive", "hard_negative"), [("a", "b", "c")]),
    ],
)
def test_read_training_rows_takes_the_columns_there_are_and_drops_empty_texts(
    tmp_path, name, content, columns, rows
):
    path = tmp_path / name
    path.write_text(content)
    read = read_training_rows(path)
    assert (read.columns, read.rows, read.digest) == (columns, rows, sha256_file(path))
    assert read.n_dropped == (0 if name == "a.tsv" else 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": 1, "positive": "b"}', "columns id, positive; need anchor, or anchor and positive"),
        ('{"anchor": "a", "hard_negative": "c"}', "columns anchor, hard_negative; need anchor"),
        ('{"anchor": "a", "positive": "b"}\n{"anchor": "c"}', "line 2: column 'positive' is missing"),
        ('{"anchor": " "}', "holds no training example"),
    ],
)
def test_read_training_rows_says_what_is_wrong(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        read_training_rows(tmp_path / "a.jsonl")


def test_split_documents_breaks_at_blank_lines():
    lines = ["", "a ", "b", "", "  ", "c", ""]
    assert split_documents(lines) == [["a", "b"], ["c"]]
    assert split_documents([]) == []


def test_read_training_documents_of_text_and_tables(tmp_path):
    (tmp_path / "a.txt").write_text("a\nb\n\nc\n")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a\nb"}) + "\n" + json.dumps({"text": "c"}))
    for name in ("a.txt", "a.jsonl"):
        read = read_training_documents(tmp_path / name)
        assert (read.documents, len(read)) == ([["a", "b"], ["c"]], 3)


@pytest.mark.parametrize(("content", "message"), [("a\nb\n", "no blank line"), ("\n \n", "no sentence")])
def test_read_training_documents_needs_documents(tmp_path, content, message):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        read_training_documents(tmp_path / "a.txt")


def test_read_labelled_rows_drops_pairs_without_a_label_or_a_text(tmp_path):
    labels = ["neutral", "-", "contradiction"]
    rows = [{"sentence1": "p", "sentence2": h, "gold_label": x} for h, x in zip("hi ", labels, strict=True)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_labelled_rows(tmp_path / "a.jsonl")
    assert (read.rows, read.n_dropped) == ([("p", "h", "neutral")], 2)
    (tmp_path / "b.jsonl").write_text(json.dumps(rows[1]))
    with pytest.raises(DataError, match="holds no labelled pair"):
        read_labelled_rows(tmp_path / "b.jsonl")
