import gzip
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcse_cli.data.formats import FileFormat, guess_format, parse_hub_source
from simcse_cli.data.given import Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.table import Table
from simcse_cli.data.text import clean_text
from simcse_cli.data.writers import open_rows
from simcse_cli.errors import DataError, UsageError
from simcse_cli.files.output import Output

PAIR = Given({"left": "anchor", "right": "positive"})
TWO = ["A dog runs, fast.", 'He said "no".']


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def write_as(folder: Path, suffix: str) -> Path:
    """Write the sentences of TWO in the format that a suffix stands for."""
    path = folder / f"two{suffix}"
    if suffix == ".txt":
        path.write_text("".join(f"{text}\n" for text in TWO))
    elif suffix == ".txt.gz":
        path.write_bytes(gzip.compress("".join(f"{text}\n" for text in TWO).encode()))
    elif suffix == ".jsonl":
        path.write_text(
            "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TWO))
        )
    elif suffix == ".csv":
        path.write_text('text,score\n"A dog runs, fast.",1\n"He said ""no"".",2\n')
    elif suffix == ".tsv":
        path.write_text('score\ttext\n1\tA dog runs, fast.\n2\tHe said "no".\n')
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": TWO, "score": [1.0, None]}), path)
    return path


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_sentences_reads_every_format(tmp_path, suffix):
    assert list(Table(write_as(tmp_path, suffix), Job.TEXTS).texts()) == TWO


def test_sentences_keeps_blank_lines_and_unicode_separators(tmp_path):
    path = write(tmp_path / "a.txt", "one\n\ntwo\u2028still two\r\n")
    assert list(Table(path, Job.TEXTS).texts()) == ["one", "", "two\u2028still two"]


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv"])
def test_texts_that_nobody_sees_are_empty(tmp_path, suffix):
    texts = ["one", "\u200b", "\u00ad", "a\u00adb", "😀"]
    if suffix == ".jsonl":
        content = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    else:
        content = "\n".join(["text", *texts][suffix == ".txt" :]) + "\n"
    path = write(tmp_path / f"a{suffix}", content)
    assert list(Table(path, Job.TEXTS).texts()) == ["one", "", "", "a\u00adb", "😀"]


def test_sentences_reads_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("a b\nç\n".encode())))
    assert list(Table("-", Job.TEXTS).texts()) == ["a b", "ç"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(("value", "found"), [({"text": "a"}, "an object"), (["a", "b"], "a list")])
def test_sentences_takes_no_nested_value_for_a_sentence(tmp_path, suffix, value, found):
    path = tmp_path / f"a{suffix}"
    if suffix == ".jsonl":
        path.write_text(json.dumps({"data": value}) + "\n")
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"data": [value]}), path)
    if isinstance(value, dict):
        assert list(Table(path, Job.TEXTS, Given().of_texts("data.text")).texts()) == ["a"]
        return
    with pytest.raises(DataError, match=f"(line|row) 1: column data holds {found}, need a text"):
        list(Table(path, Job.TEXTS, Given().of_texts("data")).texts())


@pytest.mark.parametrize("row", ['{"id": "c"}', '{"id": "c", "title": "What is it?"}'])
@pytest.mark.parametrize("column", [None, "text"])
def test_a_row_that_lacks_its_text_is_not_read_from_another_column(tmp_path, row, column):
    lines = ['{"id": "a", "title": "t", "text": "How are you?"}', '{"id": "b", "text": null}', row]
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    texts = Table(path, Job.TEXTS, Given().of_texts(column)).texts()
    assert [next(texts), next(texts)] == ["How are you?", ""]
    with pytest.raises(DataError, match=r"line 3: (other columns than in row 1|no column text)"):
        next(texts)


@pytest.mark.parametrize(
    ("first", "later"),
    [("text", "label"), ("label", "text"), ("text", "title"), ("question", "answer"), ("a", "b")],
)
def test_a_row_whose_only_column_is_another_is_no_text(tmp_path, first, later):
    rows = [{first: "How are you?"}, {later: "It is closed today."}]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=f"line 2: other columns than in row 1: {later}") as caught:
        list(Table(path, Job.TEXTS).texts())
    assert caught.value.hint.startswith("give every row the columns of the first")


def test_a_row_may_have_its_text_under_another_usual_name(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "A dog."}\n{"Sentence": "A cat."}\n"A hen."\n')
    assert list(Table(path, Job.TEXTS).texts()) == ["A dog.", "A cat.", "A hen."]
    path = write(tmp_path / "b.jsonl", '{"My text": "A dog."}\n{"my_text": "A cat."}\n')
    given = Given().of_texts("My text")
    assert list(Table(path, Job.TEXTS, given).texts()) == ["A dog.", "A cat."]


@pytest.mark.parametrize(
    ("row", "is_alike"),
    [
        ({"premise": "Is it far?", "hypothesis": "Is it a long way?", "label": 1}, True),
        ({"left": "Is it far?", "remark": "Asked twice a week.", "score": 1}, False),
        ({"left": "Is it far?", "right": "Is it a long way?", "votes": 1}, False),
    ],
)
def test_a_row_of_a_pair_needs_usual_names_in_place_of_those_of_row_1(tmp_path, row, is_alike):
    rows = [{"left": "Where is it?", "right": "Where can I find it?", "score": 2}, row]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    found = Table(path, Job.SCORED).rows("left", "right", "score")
    assert next(found) == (1, tuple(rows[0].values()))
    if is_alike:
        assert next(found) == (2, tuple(row.values()))
        return
    with pytest.raises(DataError, match="line 2: "):
        next(found)


@pytest.mark.parametrize("header", ["id,title,body", "n,title,body"])
def test_sentences_takes_the_named_column(tmp_path, header):
    path = write(tmp_path / "a.csv", f"{header}\n1,T,B\n")
    assert list(Table(path, Job.TEXTS, Given().of_texts("body")).texts()) == ["B"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (None, "2 columns hold texts, one is needed"),
        ("body", "no column body; there are id, title, remark"),
    ],
)
def test_sentences_names_the_columns_when_unclear(tmp_path, column, message):
    path = write(tmp_path / "a.csv", "id,title,remark\n1,A title here,Another remark there\n")
    with pytest.raises(DataError, match=message) as caught:
        list(Table(path, Job.TEXTS, Given().of_texts(column)).texts())
    assert "--column" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", 'anchor,b\n"c"d,e\n', "line 2: not valid CSV"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', "line 2: not valid JSON"),
        ("a.jsonl", '{"text": "a"}\n7\n', "line 2: a JSON int, need an object"),
        ("a.parquet", "not parquet", "need a parquet file"),
    ],
)
def test_table_names_file_and_line_of_what_is_wrong(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=message) as caught:
        list(Table(path, Job.TEXTS).texts())
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("name", "place"), [("a.jsonl", "line 3"), ("a.json", "item 2"), ("a.parquet", "row 1")]
)
def test_a_place_counts_what_the_file_has(tmp_path, name, place):
    rows = [{"text": "A dog."}, {"text": ["A cat."]}]
    path = tmp_path / name
    if name.endswith(".parquet"):
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": [[], ["A cat."]]}), path)
    elif name.endswith(".json"):
        path.write_text(json.dumps(rows, indent=1))
    else:
        path.write_text("".join(f"{json.dumps(row)}\n\n" for row in rows))
    with pytest.raises(DataError, match=f"{name}, {place}: column text holds a list"):
        list(Table(path, Job.TEXTS, Given().of_texts("text")).texts())


def test_table_reads_json_lists_strings_and_other_values(tmp_path):
    path = write(tmp_path / "a.jsonl", '["a", "b"]\n"c"\n\n{"text": null, "n": 2, "list": ["x"]}\n')
    with pytest.raises(DataError, match="line 4: no two columns look like texts"):
        list(Table(path, Job.ROWS).rows("anchor"))
    path = write(tmp_path / "b.jsonl", '["A dog."]\n"A cat."\n\n{"n": 2, "text": null}\n')
    assert list(Table(path, Job.TEXTS).texts()) == ["A dog.", "A cat.", ""]


def test_columns_of_one_name_get_numbers_that_no_column_has(tmp_path):
    path = write(tmp_path / "a.csv", "text,text,text.1,text\nA dog,A cat,A hen,A cow\n")
    names = Table(path, Job.LINT).reading.grid.names
    assert names == ("text.2", "text.3", "text.1", "text.4")


def test_table_streams(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\nbroken\n')
    with pytest.raises(DataError, match="line 2: not valid JSON"):
        next(Table(path, Job.TEXTS).texts())
    path = write(tmp_path / "b.jsonl", '{"text": "a"}\n' * 200 + "broken\n")
    assert next(Table(path, Job.TEXTS).texts()) == "a"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("-", FileFormat.TEXT),
        ("a.CSV.gz", FileFormat.CSV),
        ("a.tsv", FileFormat.TSV),
        ("a.b", FileFormat.TEXT),
        ("hf://a/b", FileFormat.HUB),
    ],
)
def test_guess_format_looks_at_the_name(name, expected):
    assert guess_format(name) is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hf://stanfordnlp/snli", ("stanfordnlp/snli", None, "train")),
        ("hf://nyu-mll/glue@qqp:validation", ("nyu-mll/glue", "qqp", "validation")),
        ("hf://datasets/a/b:test", ("a/b", None, "test")),
    ],
)
def test_parse_hub_source_splits_name_config_and_split(source, expected):
    assert parse_hub_source(source) == expected


def test_table_reads_a_saved_dataset(tmp_path):
    import datasets

    datasets.Dataset.from_dict({"text": TWO}).save_to_disk(tmp_path / "saved")
    assert list(Table(f"hf://{tmp_path}/saved", Job.TEXTS).texts()) == TWO


@settings(max_examples=60)
@given(
    data=st.binary(max_size=120) | st.text(max_size=60).map(str.encode),
    name=st.sampled_from(["a.csv", "a.tsv", "a.jsonl", "a.txt", "a.csv.gz", "a.parquet"]),
)
def test_any_bytes_are_rows_of_text_or_an_error_that_names_the_file(data, name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            rows = [record for _, record in Table(path, Job.LINT, Given(never_asks=True)).records()]
        except DataError as error:
            rows = []
            assert str(path) in error.message  # noqa: PT017 - both ends are fine
        for record in rows:
            assert all(isinstance(cell, str) for pair in record.items() for cell in pair)


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(st.text(min_size=1).map(clean_text).filter(bool), min_size=2, max_size=2),
        min_size=1,
    )
)
def test_rows_that_are_written_come_back(rows):
    for name in ("a.csv", "a.jsonl"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            with open_rows(Output(path), ("anchor", "positive")) as append:
                for row in rows:
                    append(tuple(row))
            assert [
                list(cells) for _, cells in Table(path, Job.COSINES, PAIR).rows("left", "right")
            ] == rows


def test_an_error_of_a_pipe_does_not_wait_for_a_second_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = Thread(target=(tmp_path / "pipe").write_text, args=("a line\n",), daemon=True)
    writer.start()
    with pytest.raises(UsageError, match="needs a table"):
        list(Table(tmp_path / "pipe", Job.TEXTS, Given().of_texts("b")).texts())


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (["One text.", "Two texts."], "note.text"),
        ([None, {"text": "Two texts."}], "note"),
        ([None, {"inner": {"text": "Two texts."}}], "note"),
        ([[{"text": "One text."}], [{"text": "Two texts."}]], "note"),
    ],
)
def test_parquet_gives_texts_by_the_path_of_their_column(tmp_path, column, name):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({name: column, "key": [{"part": 7}, {"part": 8}]})
    parquet.write_table(table, tmp_path / "a.parquet")
    names = Table(tmp_path / "a.parquet", Job.LINT).reading.grid.names
    assert names[0] in ("note.text", "note.inner.text", "note.0.text")
    table = Table(tmp_path / "a.parquet", Job.TEXTS, Given(columns={"text": names[0]}))
    assert list(table.texts()) == ["One text." if column[0] else "", "Two texts."]


def test_two_columns_of_ids_with_names_of_texts_are_offered(tmp_path):
    rows = "".join(f"s{n},s10000{n},{n % 5}\n" for n in range(8))
    (tmp_path / "a.csv").write_text(f"sentence1,sentence2,score\n{rows}")
    with pytest.raises(DataError, match="no two columns look like texts") as caught:
        _ = Table(tmp_path / "a.csv", Job.COSINES).reading
    assert "--columns left=sentence1,right=sentence2" in caught.value.hint
