import pytest

from simcse_cli.data.columns import resolve_columns
from simcse_cli.data.delimited import SEPARATORS, is_stsb_line, table_rows
from simcse_cli.data.table import Table
from simcse_cli.errors import DataError


def rows_of(text, header=None, separators=SEPARATORS):
    return [row for _, row in table_rows(iter(text.splitlines()), "a.csv", separators, (), header)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a\n", [("a",)]),
        ("a,b\nc,d\n", [("a", "b"), ("c", "d")]),
        ("a,b,c\n", [("a", "b", "c")]),
        ("sent0,sent1,hard_neg\na,b,c\n", [("a", "b", "c")]),
        ("anchor,positive,hard_negative\na,b,c\n", [("a", "b", "c")]),
        ("hard_negative,positive,anchor\nc,b,a\n", [("a", "b", "c")]),
        ("Sentence1,Sentence2\na,b\n", [("a", "b")]),
        (",anchor,positive\n0,a,b\n", [("a", "b")]),
        ('a,"b\nb"\n\n"c,c",d\n', [("a", "b\nb"), ("c,c", "d")]),
        ("anchor;positive\na, then b;c\n", [("a, then b", "c")]),
        ("anchor|positive\na, then b|c\n", [("a, then b", "c")]),
        ("anchor\tpositive\na, then b\tc\n", [("a, then b", "c")]),
        ("a;b\nc;d\n", [("a", "b"), ("c", "d")]),
        ("a|b\nc|d\n", [("a", "b"), ("c", "d")]),
        ("a, or b | c\nd\n", None),
        ("a | b\n", [("a | b",)]),  # a single row is no table
        ("a\n\n\nb\n", [("a",), ("b",)]),
    ],
)
def test_columns_are_found_by_header_and_by_position(content, expected):
    if expected is None:
        with pytest.raises(DataError, match=r"a\.csv, line 2: 1 columns, need 2"):
            rows_of(content)
        return
    records = rows_of(content)
    columns = ("anchor", "positive", "hard_negative")[: len(expected[0])]
    names = resolve_columns(records[0], columns, "a.csv")
    assert [tuple(record[name] for name in names) for record in records] == expected


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_marks_and_line_ends_of_windows_are_no_text(tmp_path, mark, end):
    path = tmp_path / "a.csv"
    path.write_bytes(mark + end.join([b"anchor,positive", b'"a', b'b",c', b"", b"d,e", b""]))
    found = list(Table(path).texts())
    assert found == [{"anchor": "a\nb", "positive": "c"}, {"anchor": "d", "positive": "e"}]
    assert [record.place for record in found] == [f"{path}, line 3", f"{path}, line 5"]


@pytest.mark.parametrize(
    ("text", "header", "names"),
    [
        ("Frage,Antwort\nWer ist das?,Das ist er.\n", None, ["Frage", "Antwort"]),  # names above sentences
        ("dog,cat\nhorse,cow\n", None, ["anchor", "positive"]),  # words above words
        ("dog,cat\nhorse,cow\n", True, ["dog", "cat"]),
        ("anchor,positive\na,b\n", False, ["1", "2"]),  # data that looks like a header
        ("myText,n\na,b\n", None, ["myText", "n"]),
        ("w,x,y,z\na,b,c,d\n", None, ["w", "x", "y", "z"]),  # too many columns for a file without a header
        ("text,,\na,b,c\n", None, ["text", "column2", "column3"]),
    ],
)
def test_a_header_is_told_from_data(text, header, names):
    assert list(rows_of(text, header)[0]) == names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\nc,d,e\n", "line 2: 3 columns, need 2"),
        ("a\tb\nc\n", "line 2: 1 columns, need 2"),
        ("anchor;positive\na;b;c\n", "line 2: 3 columns, need 2"),
        ('a,b\n"c"d,e\n', "line 2: not valid CSV"),
        ('a,b\n"c,d\n', "line 2: not valid CSV"),
        (
            "1,2,3,3\n",
            "line 1: 3 stands there twice; need a header with a different name for each of the 4 columns",
        ),
    ],
)
def test_a_ragged_or_broken_row_is_named(content, message):
    with pytest.raises(DataError, match=message) as caught:
        rows_of(content, separators="\t" if "\t" in content else SEPARATORS)
    assert caught.value.message.startswith("a.csv, ")
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "\n\n", "anchor,positive\n"])
def test_a_table_may_have_no_rows(text):
    assert rows_of(text) == []


@pytest.mark.parametrize(
    ("cell", "read"),
    [('"a ""b"" c"', 'a "b" c'), ('"quoted"', '"quoted"'), ('a "b" c', 'a "b" c'), ('"a" "b"', '"a" "b"')],
)
def test_tsv_quoting_is_undone_only_where_certain(cell, read):
    assert rows_of(f"text\tlabel\n{cell}\t1\n", separators="\t") == [{"text": read, "label": "1"}]


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("main-news\tfile\t2016\t1\t2.5\ta\tb", True),
        ("main-news\tfile\t2016\t1\t2.5\ta\tb\tlicence", True),
        ("main-news\tfile\t2016\t1\t7.5\ta\tb", False),
        ("genre\tfile\tyear\tid\tscore\tsentence1\tsentence2", False),
        ("2.5\ta\tb", False),
    ],
)
def test_a_line_of_stsb_has_a_score_in_its_fifth_column(line, is_one):
    assert is_stsb_line(line) is is_one


def test_a_short_row_of_an_stsb_file_is_named():
    whole = "main-news\tfile\t2016\t1\t2.5\ta\tb"
    with pytest.raises(DataError, match=r"a\.csv, line 2: 2 columns, need 7"):
        rows_of(f"{whole}\na\tb\n")
