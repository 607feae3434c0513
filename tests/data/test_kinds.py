from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from simcse_cli.data.headers import decide_header
from simcse_cli.data.kinds import Kind, cell_text, is_missing, kind_of, list_items, to_number


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["", "nan", "None"], Kind.EMPTY),
        (["1", "2", "3"], Kind.ID),
        (["3.0", "4.0", "5.0"], Kind.ID),
        (["104", "250", "117"], Kind.ID),
        (["doc_12", "A10.1", "ORD/2200"], Kind.ID),
        (["https://example.org/a", "https://example.org/b"], Kind.ID),
        (["2024-05-07", "2024-05-08"], Kind.DATE),
        (["03.11.2022", "04.11.2022"], Kind.DATE),
        (["2024/05/07 8:03:11 PM"], Kind.DATE),
        (["0", "1", "1"], Kind.LABEL),
        (["-1", "1"], Kind.LABEL),
        (["7", "7", "7"], Kind.LABEL),
        (["ham", "spam", "ham"], Kind.LABEL),
        (["yes", "no"], Kind.LABEL),
        (["The same long sentence stands here."] * 3, Kind.LABEL),
        (["4.2", "0.6"], Kind.SCORE),
        (["4,2", "85%"], Kind.SCORE),
        (["3", "0", "5", "3"], Kind.SCORE),
        (["dog", "cat", "cow"], Kind.WORD),
        (["How are you?", "Fine."], Kind.TEXT),
        (["右膝关节疼痛", "慢性咳嗽", "头痛"], Kind.WORD),
        (["怎么给绿萝浇水?", "图书馆几点关门?"], Kind.TEXT),
        ([["a", "b"], ["c"]], Kind.LIST),
        (["['a', 'b']", '["c"]'], Kind.LIST),
        ([True, False, True], Kind.LABEL),
        ([date(2024, 5, 7), date(2024, 5, 8)], Kind.DATE),
        ([Decimal("4.25"), Decimal("0.60"), Decimal("0.60")], Kind.SCORE),
    ],
)
def test_a_column_is_what_its_cells_are(cells, kind):
    assert kind_of(cells) is kind


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.543", 0.543),
        (" -1 ", -1),
        ("1e-3", 0.001),
        ("0,5", 0.5),
        ("85%", 85),
        ("1.2.3", None),
        ("", None),
        ("4 cats", None),
        ("nan", None),
        ("1e999", None),
    ],
)
def test_a_number_is_a_number_alone(text, number):
    assert to_number(text) == number


def test_lists_are_read_in_both_spellings():
    assert list_items("['a', \"it's\"]") == ["a", "it's"]
    assert list_items('["a"]') == ["a"]
    assert list_items(r"['\sum x']") == [r"\sum x"]
    assert list_items("[1, 2]") is None
    assert list_items("[sic] he said") is None
    assert is_missing(" NaN ")
    assert is_missing("\\N")  # MySQL and PostgreSQL
    assert not is_missing("Nancy")


@pytest.mark.parametrize(
    ("rows", "found", "by_look"),
    [
        (["Frage,Antwort", "Wer ist das?,Das ist er."], True, False),  # known names
        (["id,x", "7,A dog runs."], True, False),
        (["a dog,a cat"], False, False),  # a single row
        (["dog,cat", "horse,cow"], None, False),  # words above words
        (
            ["positive,A dog.", "negative,A cat.", "positive,A cow."],
            False,
            False,
        ),  # a label that recurs
        (["0,1", "How?,So.", "When?,Now."], True, False),
        (["q1,How?", "q2,When?", "q3,Who?"], False, False),
        (["key,When?", "q2,Who?", "q3,How?"], True, False),
        (["de,en", "Hund,dog", "Katze,cat"], True, False),
        (
            ["What they asked,What we said", *[f"How is {n}?,It is {n}." for n in "abcde"]],
            True,
            True,
        ),
        (["Who are you?,I am new.", *[f"How is {n}?,It is {n}." for n in "abcde"]], False, False),
        ([",text", "0,A dog.", "1,A cat.", "2,A cow."], True, False),  # an index
        (
            ["4.2,", "0.6,13", "3.8,16", "1.1,19"],
            None,
            False,
        ),  # a number, and an empty cell over numbers
    ],
)
def test_a_header_is_told_from_data(rows, found, by_look):
    header = decide_header([row.split(",") for row in rows])
    assert (header.found, header.by_look) == (found, by_look)


def test_a_name_that_the_user_gives_makes_a_header():
    rows = [["Hund", "dog"], ["Katze", "cat"]]
    assert decide_header(rows, ["DOG"]).found
    assert decide_header(rows, ["1"]).found is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (None, ""),
        (float("nan"), ""),
        (Decimal("NaN"), ""),
        (True, "true"),
        (4.0, "4.0"),
        (Decimal("0.60"), "0.60"),
        (date(2024, 5, 7), "2024-05-07"),
        (datetime(2024, 5, 7, 8, 3, tzinfo=UTC), "2024-05-07 08:03:00+00:00"),
        (["a", None], '["a", null]'),
        ({"a": date(2024, 5, 7)}, '{"a": "2024-05-07"}'),
    ],
)
def test_a_cell_as_text(value, text):
    assert cell_text(value) == text
