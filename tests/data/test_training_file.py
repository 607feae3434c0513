import json

import pytest
from pyarrow import csv, parquet

from helpers import Told
from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.given import Told as GivenTold
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.packed_texts import PackedTexts
from simcse_cli.data.training_file import (
    StoredRows,
    join_rows,
    read_labelled_rows,
    read_training_documents,
    read_training_rows,
    split_documents,
)
from simcse_cli.errors import DataError, OutputError
from simcse_cli.files.digests import sha256_file


@pytest.mark.parametrize(
    ("name", "content", "columns", "rows"),
    [
        ("a.txt", "a  b\n\nc\n", ("anchor",), [("a b",), ("c",)]),
        ("a.csv", "positive,id,anchor\nb,1,a\n,2,c\n", ("anchor", "positive"), [("a", "b")]),
        ("b.csv", "sent1,id,sent0\nb,1,a\nd,2,\n", ("anchor",), [("a",)]),
    ],
)
def test_read_training_rows_takes_the_columns_there_are_and_drops_empty_texts(
    tmp_path, name, content, columns, rows
):
    path = tmp_path / name
    path.write_text(content)
    read = read_training_rows(path)
    assert (read.columns, list(read.rows), read.digest) == (columns, rows, sha256_file(path))
    assert read.n_dropped == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": 1, "positive": "b"}', "no two columns look like texts"),
        ('{"anchor": "a", "hard_negative": "c"}', "2 columns hold texts, a pair has two"),
        (
            '{"anchor": "a", "positive": "b"}\n{"anchor": "c"}',
            "line 2: a single column, two texts are needed",
        ),
        ('{"anchor": " "}', "holds no training example"),
    ],
)
def test_read_training_rows_says_what_is_wrong(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        read_training_rows(tmp_path / "a.jsonl", n_columns=1 if "example" in message else 2)


def test_a_row_with_other_columns_is_no_question(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"question": "a b c d", "answer": "e f g h"}\n'
        '{"x": "a b c d e", "y": "f g h i j", "z": "k l m n o"}\n'
    )
    with pytest.raises(DataError, match="line 2: 3 columns hold texts") as caught:
        read_training_rows(tmp_path / "a.jsonl", n_columns=2)
    assert "--columns" not in caught.value.hint
    assert "the columns of the first" in caught.value.hint


def written(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def test_a_third_column_that_is_taken_for_hard_negatives_is_told(tmp_path):
    path = written(
        tmp_path / "a.tsv", [(f"Who is {n}?", f"It is {n}.", f"{n}?") for n in "abc" * 4]
    )
    told = Told()
    given = Given(roles=POSITIONAL, header=False, told=GivenTold(told))
    assert read_training_rows(path, given, n_columns=2).columns == POSITIONAL
    line = "anchor = column 1, positive = column 2, hard_negative = column 3"
    assert told.lines == [f"{path}: {line}"]


@pytest.mark.parametrize("third", ["CC-BY 2.0 by user {}.", "It is not the {0:.1} of {0:.1}."])
def test_a_third_column_that_repeats_itself_is_asked_about(tmp_path, third):
    names = [f"{'ab'[n % 2]}{n}" for n in range(12)]
    rows = [(f"Who is {name} now?", f"So {name} is it.", third.format(name)) for name in names]
    path = written(tmp_path / "a.tsv", rows)
    given = Given(roles=POSITIONAL, header=False)
    with pytest.raises(DataError, match="texts of column 3 repeat each other") as caught:
        read_training_rows(path, given, n_columns=2)
    assert "--columns anchor=1,positive=2,hard_negative=3" in caught.value.hint
    assert "--columns anchor=1,positive=2\n" in caught.value.hint
    # As many rows of one premise have openings in common in all columns.
    written(path, [(third.format(name), *row[1:]) for name, row in zip(names, rows, strict=True)])
    assert read_training_rows(path, given, n_columns=2).columns == POSITIONAL


def dpr(anchor, positives, negatives):
    sides = ([{"title": "T", "text": text} for text in texts] for texts in (positives, negatives))
    return dict(zip(("question", "positive_ctxs", "negs"), (anchor, *sides), strict=True))


@pytest.mark.parametrize("first", [["N1.", "N2."], ["N1."], []])
def test_a_row_whose_list_is_shorter_has_an_empty_cell(tmp_path, first):
    rows = [
        dpr("How?", ["So."], first),
        dpr("Why?", ["Thus."], ["N3.", "N4."]),
        dpr("When?", [], ["N5.", "N6."]),
        dpr("Who?", ["He."], []) | {"negs": None},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = "anchor=question,positive=positive_ctxs.0.text"
    given = Given(parse_columns(text, POSITIONAL))
    read = read_training_rows(tmp_path / "a.jsonl", given, n_columns=2)
    assert list(read.rows) == [("How?", "So."), ("Why?", "Thus."), ("Who?", "He.")]
    assert read.n_dropped == 1
    given = Given(parse_columns(f"{text},hard_negative=negs.1.text", POSITIONAL))
    read = read_training_rows(tmp_path / "a.jsonl", given, n_columns=2)
    assert ("Why?", "Thus.", "N4.") in list(read.rows)
    assert len(list(read.rows)) == (2 if len(first) == 2 else 1)


def test_an_object_is_not_offered_as_a_text(tmp_path):
    rows = [{"_id": f"q{n}", "text": f"What is {n}?", "metadata": {}} for n in range(4)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="no two columns look like texts") as caught:
        read_training_rows(tmp_path / "a.jsonl", Given(roles=POSITIONAL), n_columns=2)
    assert "metadata" not in caught.value.hint


def test_an_item_without_the_field_of_row_1_is_an_error(tmp_path):
    rows = [dpr("How?", ["So."], []), dpr("Why?", ["Thus."], []) | {"positive_ctxs": [{"a": "b"}]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = Given(parse_columns("anchor=question,positive=positive_ctxs.0.text", POSITIONAL))
    with pytest.raises(DataError, match=r"line 2: no column positive_ctxs\.0\.text"):
        read_training_rows(tmp_path / "a.jsonl", given, n_columns=2)


def test_split_documents_breaks_at_blank_lines():
    lines = ["", "a ", "b", "", "  ", "c", ""]
    assert split_documents(lines) == [["a", "b"], ["c"]]
    assert split_documents([]) == []


def test_read_training_documents_of_text_and_tables(tmp_path):
    (tmp_path / "a.txt").write_text("a\nb\n\nc\n")
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"text": "a\nb"}) + "\n" + json.dumps({"text": "c"})
    )
    for name in ("a.txt", "a.jsonl"):
        read = read_training_documents(tmp_path / name)
        assert (read.documents, len(read)) == ([["a", "b"], ["c"]], 3)


@pytest.mark.parametrize(
    ("content", "message"), [("a\nb\n", "no blank line"), ("\n \n", "no sentence")]
)
def test_read_training_documents_needs_documents(tmp_path, content, message):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        read_training_documents(tmp_path / "a.txt")


def test_read_labelled_rows_drops_pairs_without_a_label_or_a_text(tmp_path):
    labels = ["neutral", "-", "contradiction"]
    rows = [
        {"sentence1": "p", "sentence2": h, "gold_label": x}
        for h, x in zip("hi ", labels, strict=True)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_labelled_rows(tmp_path / "a.jsonl")
    assert (read.rows, read.n_dropped) == ([("p", "h", "neutral")], 2)
    (tmp_path / "b.jsonl").write_text(json.dumps(rows[1]))
    with pytest.raises(DataError, match="holds no labelled pair"):
        read_labelled_rows(tmp_path / "b.jsonl")


def rows_of(path, text, columns=None, keep=()):
    path.write_text(text)
    read = read_training_rows(path, Given(columns or {}, keep_labels=keep), n_columns=2)
    return read.columns, list(read.rows)


TRIPLET, PAIR = ("anchor", "positive", "hard_negative"), ("anchor", "positive")


@pytest.mark.parametrize(
    ("name", "text", "columns", "rows"),
    [
        # lists: as many rows as there are of the more frequent kind, dealt in turn
        ("a.jsonl", '{"query": "q", "pos": ["p", "r"], "neg": ["x", "y", "z"]}', TRIPLET,
         [("q", "p", "x"), ("q", "r", "y"), ("q", "p", "z")]),
        ("a.jsonl", '{"query": "q", "pos": ["p", "r"], "prompt": "for search"}', PAIR, [("q", "p"), ("q", "r")]),
        ("a.jsonl", '{"q": "q", "pos": ["p"], "neg": ["x"]}', TRIPLET, [("q", "p", "x")]),
        ("a.jsonl", '{"q": "q", "pos": "p", "negs": "x"}', TRIPLET, [("q", "p", "x")]),
        ("a.jsonl", '{"set": ["a", "b", "c"]}', PAIR, [("a", "b"), ("a", "c"), ("b", "c")]),
        ("a.jsonl", '["a", "b"]\n["c", "d"]', PAIR, [("a", "b"), ("c", "d")]),
        ("a.jsonl", '{"anchor": "a", "positive": "b", "negative": "c"}', TRIPLET, [("a", "b", "c")]),
        ("a.jsonl", '{"texts": ["a", "b"]}', PAIR, [("a", "b")]),
        ("a.jsonl", '{"pos": ["p", "r"], "query": "q"}', PAIR, [("q", "p"), ("q", "r")]),
        ("a.csv", "query,response\nq,r\n", PAIR, [("q", "r")]),
        ("a.csv", "anchor,positive,negative_1,negative_2\na,b,c,d\n", TRIPLET, [("a", "b", "c"), ("a", "b", "d")]),
        ("a.csv", "anchor;positive\nOne, two;Three\n", PAIR, [("One, two", "Three")]),
        ("a.csv", "One dog.; Two.\nA cat.; Four.\n", PAIR, [("One dog.", "Two."), ("A cat.", "Four.")]),
        # labels say which rows are pairs
        ("a.csv", "sentence1,sentence2,label\na,b,1\nc,d,0\n", PAIR, [("a", "b")]),
        ("a.csv", "premise,hypothesis,label\na,b,0\nc,d,1\ne,f,2\n", PAIR, [("a", "b")]),
        ("a.csv", "premise,hypothesis,label\na,b,n\nc,d,e\ne,f,c\ng,h,-1\n", PAIR, [("c", "d")]),
        ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "gold_label": "entailment"}\n'
         '{"sentence1": "c", "sentence2": "d", "gold_label": "contradiction"}', PAIR, [("a", "b")]),
    ],
)  # fmt: skip
def test_layouts_of_other_tools_become_rows(tmp_path, name, text, columns, rows):
    assert rows_of(tmp_path / name, text) == (columns, rows)


def test_lists_below_many_plain_texts_keep_all_of_their_texts(tmp_path):
    plain = '{"anchor": "q", "positive": "p"}\n' * 150
    last = '{"anchor": "s", "positive": ["a  b", "c", ""]}\n{"anchor": "t", "positive": []}\n'
    _, rows = rows_of(tmp_path / "a.jsonl", plain + last)
    assert rows == [("q", "p")] * 150 + [("s", "a b"), ("s", "c")]


def test_nothing_in_a_cell_is_no_text(tmp_path):
    text = '{"anchor": ["a", null, NaN, " "], "positive": "b"}'
    assert rows_of(tmp_path / "a.jsonl", text) == (PAIR, [("a", "b")])


QUESTIONS = (
    "Question,Answer\nWho wrote Faust in 1808?,Goethe wrote it.\nWhere is the river Main?,It is "
    "in Germany.\n"
)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (QUESTIONS, None),
        (QUESTIONS, "positive=Answer"),
        (QUESTIONS, "anchor=1"),
        (QUESTIONS.replace("Question,Answer", "Frage,Erklärung"), None),
        (QUESTIONS.replace("Question,Answer", "source,target"), None),
        (QUESTIONS.replace("Question,Answer", "my text,other"), "my text,other"),
    ],
)
def test_the_sides_are_found_by_name_by_content_or_as_given(tmp_path, text, columns):
    found, rows = rows_of(tmp_path / "a.csv", text, parse_columns(columns, POSITIONAL))
    assert found == PAIR
    assert rows[0] == tuple(text.split("\n")[1].split(","))


def test_columns_by_number_take_every_row_of_a_table_without_header(tmp_path):
    text = "Dog,Cat\nA dog runs fast here.,A cat sits over there.\n" * 2
    columns, rows = rows_of(tmp_path / "a.csv", text, {"anchor": "2", "positive": "1"})
    assert (columns, rows[0], len(rows)) == (PAIR, ("Cat", "Dog"), 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence1,sentence2,score\na,b,4.5\n", "column score judges the pairs"),
        ("nr,sentence1,sentence2,score\n7,a,b,4.5\n", "column score judges the pairs"),
        ("sentence1,sentence2,label\na,b,sports\n", "column label judges the pairs"),
        ("sentence1,sentence2,label\na,b,0\n", "left out rows that are not pairs: 1 with label 0"),
    ],
)
def test_rows_whose_meaning_is_not_clear_are_asked_about(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path / "a.csv", text)
    assert rows_of(tmp_path / "a.csv", text, {"anchor": "sentence1", "positive": "sentence2"})[
        1
    ] == [("a", "b")]


def test_a_label_may_be_kept(tmp_path):
    text = "sentence1,sentence2,same\na,b,yes\nc,d,no\ne,f,yes\n"
    assert rows_of(tmp_path / "a.csv", text, keep=("YES",)) == (PAIR, [("a", "b"), ("e", "f")])
    pair = {"anchor": "1", "positive": "2", "label": "3"}
    assert rows_of(tmp_path / "a.csv", text, pair, ("no",)) == (PAIR, [("c", "d")])


@pytest.mark.parametrize("missing", ["N/A", "<NA>", "null", r"\\N"])
def test_a_missing_label_of_json_lines_marks_no_pair(tmp_path, missing):
    row = '{"sentence1": "%s", "sentence2": "%s", "label": "%s"}\n'
    text = row % ("a", "b", "1") + row % ("c", "d", missing) + row % ("e", "f", "0")
    assert rows_of(tmp_path / "a.jsonl", text) == (PAIR, [("a", "b")])


def test_a_label_of_unknown_meaning_after_the_first_rows_is_named(tmp_path):
    text = "sentence1,sentence2,label\n" + "a,b,1\n" * 200 + "c,d,sports\n"
    with pytest.raises(DataError, match="line 202: label 'sports'; need 1 for a pair") as caught:
        rows_of(tmp_path / "a.csv", text)
    assert "--keep-label" in caught.value.hint


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
    with parquet.ParquetWriter(
        tmp_path / "a.parquet", pyarrow.schema([("text", pyarrow.string())])
    ) as writer:
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

    datasets.Dataset.from_dict(
        {"query": list("abcd"), "pos": [["x"], ["y"], ["z"], ["w"]]}
    ).save_to_disk(tmp_path / "d")
    read = read_training_rows(f"hf://{tmp_path / 'd'}", limit=3, n_columns=2)
    assert list(read.rows) == [("a", "x"), ("b", "y"), ("c", "z")]


def test_join_rows_needs_the_same_columns(tmp_path):
    (tmp_path / "a.csv").write_text("anchor,positive\na,b\n")
    (tmp_path / "b.txt").write_text("c\n")
    a, b = read_training_rows(tmp_path / "a.csv"), read_training_rows(tmp_path / "b.txt")
    joined = join_rows([(a, 2.0), (a, 1.0)])
    assert (list(joined.rows), joined.files) == ([("a", "b")] * 2, ((1, 2.0), (1, 1.0)))
    with pytest.raises(DataError, match=r"b\.txt has anchor, but .*a\.csv has anchor, positive"):
        join_rows([(a, 1.0), (b, 1.0)])


def test_a_full_folder_of_temporary_files_is_named_with_its_variable():
    def texts():
        yield "a"
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match=r"cannot write .*: No space") as caught:
        PackedTexts.stored(texts())
    assert "export TMPDIR=" in caught.value.hint


def sorted_rows(*values, name="is_match", n_rows=150):
    rows = [f"A dog {i}.,An animal {i}.,{value}" for value in values for i in range(n_rows)]
    return "\n".join([f"text_a,text_b,{name}", *rows])


@pytest.mark.parametrize("values", ["10", "01", ["yes", "no"], ["match", "other"]])
def test_a_label_that_changes_after_the_first_rows_is_asked_about(tmp_path, values):
    path = tmp_path / "a.csv"
    path.write_text(sorted_rows(*values))
    with pytest.raises(DataError, match="column is_match judges the pairs") as caught:
        read_training_rows(path, n_columns=2)
    assert f"label=is_match --keep-label {values[0]}" in caught.value.hint
    given = Given(keep_labels=(values[0],))
    assert len(read_training_rows(path, given, n_columns=2)) == 150
    columns = {"anchor": "text_a", "positive": "text_b"}
    assert len(read_training_rows(path, Given(columns), n_columns=2)) == 300

    table = csv.read_csv(path)
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column is_match judges the pairs"):
        read_training_rows(tmp_path / "a.parquet", n_columns=2)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ("1", "is_match"),
        (["one", "two"], "source"),
        ([f"part {number}" for number in range(9)], "part"),
        (["1", "", "1"], "is_match"),
    ],
)
def test_a_column_that_does_not_judge_may_change_after_the_first_rows(tmp_path, values, name):
    path = tmp_path / "a.csv"
    path.write_text(sorted_rows(*values, name=name))
    assert len(read_training_rows(path, n_columns=2)) == 150 * len(values)


@pytest.mark.parametrize(
    ("row", "offered"),
    [
        (
            {
                "question": "Where is it?",
                "answers": ["It is here."],
                "positive_ctxs": [{"text": "Here it is, in a box."}],
                "negative_ctxs": [{"text": "It was not there at all."}],
            },
            [
                "anchor=question,positive=answers",
                "anchor=question,positive=positive_ctxs.0.text",
                "anchor=answers,positive=positive_ctxs.0.text",
            ],
        ),
        ({"query": "Where is it?", "positive_ids": ["d1"], "negative_ids": ["d2", "d3"]}, []),
    ],
)
def test_neither_ids_nor_negatives_are_offered_as_a_side(tmp_path, row, offered):
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(DataError) as caught:
        read_training_rows(tmp_path / "a.jsonl", n_columns=2)
    hints = caught.value.hint.splitlines()
    assert [hint.partition("--columns ")[2] for hint in hints if "--columns" in hint] == offered
