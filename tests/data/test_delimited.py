import re

import pytest

from simcse_cli.data.delimited import choose_separator, is_stsb_line, open_delimited
from simcse_cli.data.given import Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.table import Table
from simcse_cli.errors import DataError


def grid_of(text, header=None, separator=None):
    return open_delimited(
        iter(text.splitlines()), "a.csv", Given(header=header, separator=separator)
    )


def rows_of(text, header=None, separator=None):
    grid = grid_of(text, header, separator)
    return [tuple(cells) for _, cells in grid.rows]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("a dog\n", [("a dog",)]),
        ("A dog.,A cat.\nA cow.,A hen.\n", [("A dog.", "A cat."), ("A cow.", "A hen.")]),
        ("sent0,sent1,hard_neg\na,b,c\n", [("a", "b", "c")]),
        (",anchor,positive\n0,a,b\n", [("0", "a", "b")]),
        ('anchor,positive\nA,"b\nb"\n\n"c,c",D.\n', [("A", "b\nb"), ("c,c", "D.")]),
        ("anchor;positive\na, then b;c\n", [("a, then b", "c")]),
        ("anchor|positive\na, then b|c\n", [("a, then b", "c")]),
        ("anchor\tpositive\na, then b\tc\n", [("a, then b", "c")]),
        ("A dog.||A | cat.\nA cow.||A hen.\n", [("A dog.", "A | cat."), ("A cow.", "A hen.")]),
        ("A dog.|||A cat.\n", [("A dog.", "A cat.")]),
        ("A dog, he said.\nA cow, she said.\n", [("A dog, he said.",), ("A cow, she said.",)]),
        ("A dog.\n\n\nA cat.\n", [("A dog.",), ("A cat.",)]),
        ("anchor,positive\na,b,,\nc\n", [("a", "b"), ("c", "")]),
        ("A report;;\n\nquery;answer;note\na;b;\n", [("a", "b", "")]),
        ("sep=;\nquery;answer\na;b\n", [("a", "b")]),
    ],
)
def test_lines_are_cut_into_cells(content, rows):
    assert rows_of(content) == rows


@pytest.mark.parametrize(("separator", "given"), [("\t", None), (" ", " "), (";", None)])
def test_the_numbers_of_rows_that_r_writes_have_no_name_in_the_header(separator, given):
    lines = [['"s1"', '"s2"', '"score"']]
    lines += [[f"{n}", f'"A {n}, dog."', f'"B {n}, cat."', f"{n}.5"] for n in range(3, 9)]
    text = "".join(separator.join(cells) + "\n" for cells in lines)
    grid = grid_of(text, separator=given)
    assert (grid.names, grid.is_named) == (("column1", "s1", "s2", "score"), True)
    assert rows_of(text, separator=given)[0] == ("3", "A 3, dog.", "B 3, cat.", "3.5")
    with pytest.raises(DataError, match="4 cells below 3 columns"):
        rows_of(text, False, given or separator)


@pytest.mark.parametrize(
    "text",
    [
        "id,text\n" + "".join(f"{n},Well,it is {n}.\n" for n in range(9)),
        "s1,s2\n" + "".join(f"{n % 3},Well,it is {n}.\n" for n in range(9)),
        "s1,s2\n" + "".join(f"So {n},Well,it is {n}.\n" for n in range(9)),
        "s1,s2\n" + "".join(f"{n},Well,it is {n}.\n" for n in range(3)),
    ],
)
def test_other_rows_that_are_wider_than_the_header_are_refused(text):
    with pytest.raises(DataError, match="3 cells below 2 columns"):
        rows_of(text)


@pytest.mark.parametrize(
    ("line", "separator"),
    [
        ("a\tb", "\t"),
        ("a||b", "||"),
        ("a:::b", ":::"),
        ("4,2;b", ";"),
        ("a|b", "|"),
        ("a,b", ","),
        ("a, b", "none"),
    ],
)
def test_the_first_separator_that_fits_is_taken(line, separator):
    assert choose_separator([line] * 3, "a.csv") == separator


def test_two_separators_that_fit_are_asked_about():
    text = "A dog;has,legs.\nA cow;gives,milk.\nA hen;lays,eggs.\n"
    with pytest.raises(DataError, match="two separators fit every row") as asked:
        rows_of(text)
    assert "--separator ';'" in asked.value.hint
    assert rows_of(text, header=False, separator=",")[0] == ("A dog;has", "legs.")
    assert rows_of(text, header=False, separator="none")[0] == ("A dog;has,legs.",)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_marks_and_line_ends_of_windows_are_no_text(tmp_path, mark, end):
    path = tmp_path / "a.csv"
    path.write_bytes(mark + end.join([b"anchor,positive", b'"a', b'b",c', b"", b"d,e", b""]))
    table = Table(path, Job.ROWS)
    assert list(table.rows("anchor", "positive")) == [(3, ("a\nb", "c")), (5, ("d", "e"))]


@pytest.mark.parametrize(
    ("text", "header", "names"),
    [
        ("Frage,Antwort\nWer ist das?,Das ist er.\n", None, ("Frage", "Antwort")),
        ("dog,cat\nhorse,cow\n", True, ("dog", "cat")),
        ("anchor,positive\na,b\n", False, ("1", "2")),
        ("text,,\na,b,c\n", None, ("text", "column2", "column3")),
        ("text,n,text\na,b,c\n", None, ("text.1", "n", "text.2")),
    ],
)
def test_names_are_those_of_the_header_or_numbers(text, header, names):
    assert grid_of(text, header).names == names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("A dog.,b\nc,d,e\nf,g\n", "line 2: 3 cells below 2 columns: 'c | d | e'"),
        ("anchor;positive\na;b;c\n", "line 2: 3 cells below 2 columns"),
        ('A dog.,b\n"c"d,e\n', "line 2: not valid CSV"),
        ('A dog.,b\n"c,d\n', "line 2: not valid CSV"),
        ('text,b\nA dog.,1\n\n"A cat.,2\nA hen.,3\nA cow.,4\n', "line 4: not valid CSV"),
        ('text,b\n"A\ndog.",1\n"A cat.,2\n"A hen.",3\nA cow.,4\n', "line 4: not valid CSV"),
        ('sep=;\nanchor;positive\na;b\n"c"d;e\n', "line 4: not valid CSV"),
        ("dog,cat\nhorse,cow\n", "row 1 may be the header: 'dog | cat' above 'horse | cow'"),
    ],
)
def test_what_cannot_be_cut_is_named(content, message):
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        rows_of(content)
    assert caught.value.message.startswith("a.csv")
    assert "--" in caught.value.hint or "quote" in caught.value.hint or '"' in caught.value.hint


def test_a_wide_row_after_the_sample_is_named():
    text = "question,answer\n" + "How?,So.\n" * 500 + "Who?,He,or she.\n"
    with pytest.raises(
        DataError, match=r"line 502: 3 cells below 2 columns: 'Who\? \| He \| or she\.'"
    ):
        rows_of(text)


def test_cells_may_be_of_any_length():
    long = "word " * 60_000
    assert rows_of(f"text,id\n{long},7\n") == [(long, "7")]


@pytest.mark.parametrize("text", ["", "\n\n", "anchor,positive\n"])
def test_a_table_may_have_no_rows(text):
    assert rows_of(text) == []


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        ('"a ""b"" c"', 'a "b" c'),
        ('"quoted"', '"quoted"'),
        ('a "b" c', 'a "b" c'),
        ('"a" "b"', '"a" "b"'),
    ],
)
def test_tsv_quoting_is_undone_only_where_certain(cell, read):
    assert rows_of(f"text\tlabel\n{cell}\t1\n") == [(read, "1")]


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


def test_a_long_line_of_spaces_takes_no_time(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + " " * 300_000 + "x,0\nA dog runs.,1\n")
    assert Table(tmp_path / "a.csv", Job.TEXTS).count() == 2


def test_spaces_behind_the_rule_of_a_markdown_table_do_no_harm(tmp_path):
    (tmp_path / "a.csv").write_text("| asked | told | \n|---|:-:| \n| Who is it? | It is me. | \n")
    grid = Table(tmp_path / "a.csv", Job.ROWS).reading.grid
    assert (grid.names, grid.first_rows()) == (("asked", "told"), [["Who is it?", "It is me."]])


def test_a_usual_name_that_looks_like_an_id_is_no_evidence_against_a_header():
    rows = "".join(f"s{n},s10000{n},{n % 5}\n" for n in range(8))
    assert grid_of(f"sentence1,sentence2,score\n{rows}").names == (
        "sentence1",
        "sentence2",
        "score",
    )
    with pytest.raises(DataError, match="row 1 may be the header"):
        grid_of(f"s17,sentence2,score\n{rows}")
