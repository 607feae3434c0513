import json

import pytest

from simcse_cli.data.columns import POSITIONAL, Record, parse_columns
from simcse_cli.data.training_file import (
    StoredRows,
    iter_training_rows,
    join_rows,
    read_labelled_rows,
    read_training_documents,
    read_training_rows,
    split_documents,
)
from simcse_cli.errors import DataError
from simcse_cli.files.streams import sha256_file


@pytest.mark.parametrize(
    ("name", "content", "columns", "rows"),
    [
        ("a.txt", "a  b\n\nc\n", ("anchor",), [("a b",), ("c",)]),
        ("a.csv", "sent1,id,sent0\nb,1,a\n,2,c\n", ("anchor", "positive"), [("a", "b")]),
        ("a.tsv", "a\tb\tc\n", ("anchor", "positive", "hard_negative"), [("a", "b", "c")]),
    ],
)
def test_read_training_rows_takes_the_columns_there_are_and_drops_empty_texts(tmp_path, name, content, columns, rows):
    path = tmp_path / name
    path.write_text(content)
    read = read_training_rows(path)
    assert (read.columns, list(read.rows), read.digest) == (columns, rows, sha256_file(path))
    assert read.n_dropped == (0 if name == "a.tsv" else 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": 1, "positive": "b"}', "the columns are id, positive; need anchor, or anchor and positive"),
        ('{"anchor": "a", "hard_negative": "c"}', "the columns are anchor, hard_negative; need anchor"),
        ('{"anchor": "a", "positive": "b"}\n{"anchor": "c"}', "line 2: no column positive; there are anchor"),
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
        read = read_training_documents(tmp_path / name, None)
        assert (read.documents, len(read)) == ([["a", "b"], ["c"]], 3)


@pytest.mark.parametrize(("content", "message"), [("a\nb\n", "no blank line"), ("\n \n", "no sentence")])
def test_read_training_documents_needs_documents(tmp_path, content, message):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        read_training_documents(tmp_path / "a.txt", None)


def test_read_labelled_rows_drops_pairs_without_a_label_or_a_text(tmp_path):
    labels = ["neutral", "-", "contradiction"]
    rows = [{"sentence1": "p", "sentence2": h, "gold_label": x} for h, x in zip("hi ", labels, strict=True)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_labelled_rows(tmp_path / "a.jsonl")
    assert (read.rows, read.n_dropped) == ([("p", "h", "neutral")], 2)
    (tmp_path / "b.jsonl").write_text(json.dumps(rows[1]))
    with pytest.raises(DataError, match="holds no labelled pair"):
        read_labelled_rows(tmp_path / "b.jsonl")


def rows_of(path, text, columns=None):
    path.write_text(text)
    read = read_training_rows(path, columns)
    return read.columns, list(read.rows)


TRIPLET, PAIR = ("anchor", "positive", "hard_negative"), ("anchor", "positive")


@pytest.mark.parametrize(
    ("name", "text", "columns", "rows"),
    [
        # lists: as many rows as there are of the more frequent kind, dealt in turn
        ("a.jsonl", '{"query": "q", "pos": ["p", "r"], "neg": ["x", "y", "z"]}', TRIPLET,
         [("q", "p", "x"), ("q", "r", "y"), ("q", "p", "z")]),
        ("a.jsonl", '{"query": "q", "pos": ["p", "r"], "prompt": "t"}', PAIR, [("q", "p"), ("q", "r")]),
        ("a.jsonl", '{"set": ["a", "b", "c"]}', PAIR, [("a", "b"), ("a", "c"), ("b", "c")]),
        ("a.jsonl", '["a", "b"]\n["c", "d"]', PAIR, [("a", "b"), ("c", "d")]),
        ("a.jsonl", '{"anchor": "a", "positive": "b", "negative": "c"}', TRIPLET, [("a", "b", "c")]),
        ("a.jsonl", '{"texts": ["a", "b"]}', PAIR, [("a", "b")]),
        ("a.jsonl", '{"pos": ["p", "r"], "query": "q"}', PAIR, [("q", "p"), ("q", "r")]),
        ("a.csv", "query,response\nq,r\n", PAIR, [("q", "r")]),
        ("a.csv", "anchor,positive,negative_1,negative_2\na,b,c,d\n", TRIPLET, [("a", "b", "c"), ("a", "b", "d")]),
        ("a.csv", "anchor;positive\nOne, two;Three\n", PAIR, [("One, two", "Three")]),
        ("a.csv", "one; two\nthree; four\n", PAIR, [("one", "two"), ("three", "four")]),
        # labels say which rows are pairs
        ("a.csv", "sentence1,sentence2,label\na,b,1\nc,d,0\n", PAIR, [("a", "b")]),
        ("a.csv", "anchor,positive,score\na,b,0.5\n", PAIR, [("a", "b")]),
        ("a.csv", "premise,hypothesis,label\na,b,0\nc,d,1\ne,f,2\n", PAIR, [("a", "b")]),
        ("a.csv", "premise,hypothesis,label\na,b,n\nc,d,e\ne,f,c\ng,h,-1\n", PAIR, [("c", "d")]),
        ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "gold_label": "entailment"}\n'
         '{"sentence1": "c", "sentence2": "d", "gold_label": "contradiction"}', PAIR, [("a", "b")]),
    ],
)  # fmt: skip
def test_layouts_of_other_tools_become_rows(tmp_path, name, text, columns, rows):
    assert rows_of(tmp_path / name, text) == (columns, rows)


def test_nothing_in_a_cell_is_no_text():
    record = {"anchor": ["a", None, float("nan"), " "], "positive": "b"}
    assert list(iter_training_rows([Record(record.items(), "t", 1)])) == [(PAIR, ("a", "b"))]


@pytest.mark.parametrize("given", ["positive=B", "anchor=A,hard_negative=B"])
def test_columns_that_make_no_row_are_refused(tmp_path, given):
    (tmp_path / "a.csv").write_text("A,B,C\nA dog.,A cat.,7\n")
    with pytest.raises(DataError, match=r"a.csv: --columns names .*; need anchor, or") as caught:
        read_training_rows(tmp_path / "a.csv", parse_columns(given, POSITIONAL))
    assert "--columns anchor=A,positive=B (" in caught.value.hint


QUESTIONS = "Question,Answer\nWho wrote Faust in 1808?,Goethe wrote it.\nWhere is the river Main?,It is in Germany.\n"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (QUESTIONS, "--columns anchor=Question,positive=Answer "),
        (QUESTIONS.replace("Question,Answer", "Frage,Erklärung"), "--columns 'anchor=Frage,positive=Erklärung' "),
        ("src_de,tgt_en\nein Hund,a dog\n", "--columns anchor=src_de,positive=tgt_en "),
        ("my text,other\nA dog runs fast.,B c d e.\nA cat sits there.,D e f g.\n",
         "--columns 'anchor=my text,positive=other' "),
    ],
)  # fmt: skip
def test_unknown_headers_are_asked_about_not_trained_on(tmp_path, text, hint):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match="the columns are") as caught:
        read_training_rows(path)
    assert text.split("\n")[0].split(",")[0] in caught.value.message
    assert hint in caught.value.hint
    columns, rows = rows_of(path, text, parse_columns(hint.split("columns ")[1].strip(" '"), POSITIONAL))
    assert columns == PAIR
    assert rows[0] == tuple(text.split("\n")[1].split(","))


def test_columns_by_number_take_every_row_of_a_table_without_header(tmp_path):
    text = "Dog,Cat\nA dog runs fast here.,A cat sits over there.\n" * 2
    columns, rows = rows_of(tmp_path / "a.csv", text, {"anchor": "2", "positive": "1"})
    assert (columns, rows[0], len(rows)) == (PAIR, ("Cat", "Dog"), 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence1,sentence2,score\na,b,4.5\n", "which of these scored pairs are positives"),
        ("sentence1,sentence2,label\na,b,sports\n", "label 'sports'; need 1 for a pair"),
        ("sentence1,sentence2,label\na,b,0\n", "left out rows that are not pairs: 1 with label 0"),
    ],
)
def test_rows_whose_meaning_is_not_clear_are_asked_about(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path / "a.csv", text)
    assert rows_of(tmp_path / "a.csv", text, {"anchor": "sentence1", "positive": "sentence2"})[1] == [("a", "b")]


def test_stored_rows_are_a_sequence_of_what_went_in():
    rows = [("a", "ü"), ("", "\ud800 b"), ("ccc", "d")]
    stored = StoredRows(iter(rows))
    assert (list(stored), len(stored), stored[-1], stored[1:]) == (rows, 3, rows[2], rows[1:])
    assert (stored[-3], list(StoredRows([]))) == (rows[0], [])
    for index in (3, -4):
        with pytest.raises(IndexError):
            stored[index]


def test_rows_of_a_large_table_do_not_stay_in_memory(tmp_path):
    import tracemalloc

    import pyarrow
    from pyarrow import parquet

    n, text = 40_000, "a sentence that is long enough to be seen in memory, " * 5
    with parquet.ParquetWriter(tmp_path / "a.parquet", pyarrow.schema([("text", pyarrow.string())])) as writer:
        for start in range(0, n, 2000):
            part = [f"{i} {text}" for i in range(start, start + 2000)]
            writer.write_table(pyarrow.table({"text": part}))
    tracemalloc.start()
    read = read_training_rows(tmp_path / "a.parquet")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(read) == n
    assert read.rows[n - 1] == (f"{n - 1} {text}".strip(),)
    assert peak < n * len(text) / 2  # all rows together are more than ten million characters


def test_a_saved_dataset_is_read_as_far_as_asked(tmp_path):
    import datasets

    datasets.Dataset.from_dict({"query": list("abcd"), "pos": [["x"], ["y"], ["z"], ["w"]]}).save_to_disk(
        tmp_path / "d"
    )
    read = read_training_rows(f"hf://{tmp_path / 'd'}", limit=3)
    assert list(read.rows) == [("a", "x"), ("b", "y"), ("c", "z")]


def test_join_rows_needs_the_same_columns(tmp_path):
    (tmp_path / "a.csv").write_text("anchor,positive\na,b\n")
    (tmp_path / "b.txt").write_text("c\n")
    a, b = read_training_rows(tmp_path / "a.csv"), read_training_rows(tmp_path / "b.txt")
    joined = join_rows([(a, 2.0), (a, 1.0)])
    assert (list(joined.rows), joined.files) == ([("a", "b")] * 2, ((1, 2.0), (1, 1.0)))
    with pytest.raises(DataError, match=r"b\.txt has anchor, but .*a\.csv has anchor, positive"):
        join_rows([(a, 1.0), (b, 1.0)])
