import pytest

from simcse_cli.data.columns import (
    POSITIONAL,
    columns_hint,
    find_column,
    has_header,
    parse_columns,
    resolve_columns,
    suggest_columns,
)
from simcse_cli.data.pair_files import SCORED_PAIR, read_scored_pairs
from simcse_cli.data.table import Table
from simcse_cli.data.training_file import read_training_rows
from simcse_cli.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("names", "column", "found"),
    [
        (["Premise", "ANCHOR"], "anchor", "ANCHOR"),  # its own name before every alias
        (["sentence1", "sent0"], "anchor", "sent0"),  # the earlier alias
        ([" Question1 "], "anchor", " Question1 "),
        (["text", "TEXT"], "text", "text"),  # the first of equal names
        (["body"], "anchor", None),
        (["Body"], "body", "Body"),
        ([], "anchor", None),
    ],
)
def test_find_column_takes_the_own_name_then_the_first_alias(names, column, found):
    assert find_column(dict.fromkeys(names, ""), column) == found


@pytest.mark.parametrize(
    ("given", "header"),
    [([], None), ([""], None), (["1", "2"], False), (["1", "body"], True), (["anchor"], None)],
)
def test_columns_asked_for_tell_of_a_header(given, header):
    assert has_header(given) is header


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (None, {}),
        ("", {}),
        ("Question", {"anchor": "Question"}),
        ("Question, Answer", {"anchor": "Question", "positive": "Answer"}),
        ("positive=2,anchor=1", {"positive": "2", "anchor": "1"}),
        ('anchor="a, b"', None),
        ('"anchor=a, b"', {"anchor": "a, b"}),
        ("anchor=a=b", {"anchor": "a=b"}),
    ],
)
def test_parse_columns_reads_names_with_and_without_roles(text, columns):
    if columns is None:
        with pytest.raises(UsageError, match="need anchor=NAME"):
            parse_columns(text, POSITIONAL)
    else:
        assert parse_columns(text, POSITIONAL) == columns


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lefty=A,right=B", "did you mean left=A"),
        ("left=A,left=B", "left is named twice"),
        ("a,b,c,d", "need left=NAME"),
        ("left=", "did you mean left=NAME"),
    ],
)
def test_columns_that_say_nothing_are_refused(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse_columns(text, SCORED_PAIR, "--column")
    assert caught.value.option == "--column"


def test_resolve_columns_says_which_column_is_missing():
    with pytest.raises(DataError, match="line 2: the columns are anchor, positive; missing: hard_negative"):
        resolve_columns({"anchor": "", "positive": ""}, ("anchor", "hard_negative"), "a.csv, line 2")


def test_resolve_columns_takes_the_given_name_and_no_other():
    row = dict.fromkeys(("anchor", "question", "answer"), "")
    given = {"anchor": "Question"}
    assert resolve_columns(row, POSITIONAL[:2], "a.csv", given) == ("question", "answer")
    with pytest.raises(DataError, match=r"a\.csv: the columns are anchor, question, answer; no column Frage"):
        resolve_columns(row, POSITIONAL[:2], "a.csv", {"anchor": "Frage"})


def test_columns_hint_can_be_pasted():
    hint = columns_hint({"id": 7, "my text": "How is it?", "answer": "Fine."}, POSITIONAL[:2])
    assert "--columns 'anchor=my text,positive=answer' " in hint
    assert "anchor=1,positive=2" in hint
    hint = columns_hint({"no": "7", "text": "How is it?"}, POSITIONAL[:2])
    assert hint.startswith("no column looks like positive; to take one anyway: --columns anchor=text,positive=no ")
    hint = columns_hint({"a": "7", "b": ""}, POSITIONAL)
    assert hint == "give a table with 3 columns: anchor, positive, hard_negative"


@pytest.mark.parametrize(
    ("name", "content", "roles", "suggested"),
    [
        ("a.csv", "Ticket-Nr;Betreff;Text\nT-1;Drucker;Er druckt nicht.\nT-2;Maus;Sie klickt nicht.\n",
         POSITIONAL[:2], "anchor=Betreff,positive=Text"),
        ("a.csv", "sku,title\nAB-12,Red mug\nAB-13,Blue mug\n", ["text"], "text=title"),
        ("a.csv", ",title\n0,Mugs\n1,Cups\n", ["text"], "text=title"),
        ("a.csv", "lang,when,utterance\nen,2024-01-02,Hello\nen,2024-01-03,Goodbye\n", ["text"], "text=utterance"),
        ("a.csv", "who,body,reply\nAnn Lee,The lid is off.,Put it on again.\n", POSITIONAL[:2],
         "anchor=body,positive=reply"),
        ("a.csv", "answer,frage\nIt is new.,Is it new?\n", POSITIONAL[:2], "anchor=frage,positive=answer"),
        ("a.csv", "no,first,second,points\n1,A dog.,A cat.,2.5\n2,A car.,A van.,3\n", SCORED_PAIR,
         "left=first,right=second,score=points"),
        ("a.csv", "first;second;points;\nA dog.;A cat.;2,5;\nA car.;A van.;3;\n", SCORED_PAIR,
         "left=first,right=second,score=points"),
        ("a.csv", "ref,comment,queue\nX1,Not paid,it\nX2,Not sent,hr\nX3,Broken lid,it\n", ["text", "label"],
         "text=comment,label=queue"),
        ("a.csv", "review,stars\nA fine film it was.,1\nNot a good film.,0\n", ["text", "label"],
         "text=review,label=stars"),
        ("a.jsonl", '{"url": "https://a.b/c-d", "n": 3, "body": "Two words"}', ["text"], "text=body"),
        ("a.csv", "id,code\n1,AB\n2,CD\n", ["text"], "text=NAME"),
    ],
)  # fmt: skip
def test_columns_are_suggested_as_a_person_would(name, content, roles, suggested, tmp_path):
    (tmp_path / name).write_text(content)
    record = next(Table(tmp_path / name).records())
    assert suggest_columns(record, roles) == dict(part.split("=") for part in suggested.split(","))


@pytest.mark.parametrize(("name", "place"), [("a.tsv", "a.tsv"), ("a.jsonl", "a.jsonl, line 1")])
def test_columns_are_named_where_they_are(name, place, tmp_path):
    (tmp_path / name).write_text('{"q": "A dog.", "x": "A cat."}\n' if "jsonl" in name else "q\tx\nA dog.\tA cat.\n")
    for read in (read_scored_pairs, read_training_rows, lambda source: [*Table(source).sentences("z")]):
        with pytest.raises(DataError) as error:
            read(tmp_path / name)
        assert error.value.message.startswith(f"{tmp_path / place}: ")


def test_a_line_end_in_column_names_is_no_list_of_columns():
    with pytest.raises(UsageError, match="no list of columns"):
        parse_columns("anchor\rpositive", POSITIONAL)
