import pytest

from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.names import (
    POSITIONAL,
    are_couple,
    are_languages,
    fold,
    is_hard_negative,
    is_known,
)
from simcse_cli.data.pair_files import SCORED_PAIR
from simcse_cli.errors import UsageError
from simcse_cli.settings.tables import TableOptions


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
        ("anchor\rpositive", "no list of columns"),
    ],
)
def test_columns_that_say_nothing_are_refused(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse_columns(text, SCORED_PAIR, "--column")
    assert caught.value.option == "--column"


@pytest.mark.parametrize(
    ("column", "name"), [("body", "body"), ("text=body", "body"), ("a=b", "a=b")]
)
def test_a_column_of_texts_may_have_its_role_before_it(column, name):
    assert Given().of_texts(column).columns == {"text": name}


@pytest.mark.parametrize(
    ("typed", "separator"), [("tab", "\t"), ("\\t", "\t"), ("||", "||"), (None, None)]
)
def test_separators_that_are_hard_to_type_have_names(typed, separator):
    assert Given.of(TableOptions(separator=typed)).separator == separator


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"separator": ""}, "one character"),
        ({"encoding": "utf-9"}, "unknown"),
        ({"encoding": "base64"}, "unknown"),
        ({"separator": "\n"}, "one character"),
    ],
)
def test_options_that_say_nothing_are_refused(values, message):
    with pytest.raises(UsageError, match=message):
        TableOptions(**values)


def test_names_are_compared_without_case_spaces_and_hyphens():
    assert fold(" Hard-Negative ") == fold("hard negative") == "hard_negative"
    assert is_known("#1 String")
    assert is_known("Die Frage") is False
    assert [
        is_hard_negative(name) for name in ("negative_2", "neg3", "sentence3", "sentence2")
    ] == [True] * 3 + [False]
    assert are_languages(["de", "en"])
    assert not are_languages(["de", "de"])


@pytest.mark.parametrize(
    ("first", "second", "are"),
    [
        ("frase_1", "frase_2", True),
        ("Tekst 1", "Tekst 2", True),
        ("text0", "text1", True),
        ("left_text", "right_text", True),
        ("a_side", "b_side", True),
        ("frase_1", "frase_3", False),
        ("frase_1", "texto_2", False),
        ("1", "2", False),
    ],
)
def test_couples_differ_at_one_end(first, second, are):
    assert are_couple(first, second) is are
