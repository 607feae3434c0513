import pytest

from simcse_cli.augment.words import (
    grapheme_starts,
    is_unspaced,
    join_units,
    match_case,
    split_graphemes,
    split_punctuation,
    split_units,
    split_words,
)
from simcse_cli.settings.choices import TextUnit

FAMILY = "👨‍👩‍👧"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  two\twords \n", ["two", "words"]),
        ("", []),
        ("über das Wasser", ["über", "das", "Wasser"]),
        ("东京 タワー", ["东京", "タワー"]),
        ("a \u0301b c", ["a \u0301b", "c"]),  # the accent makes the space before it its base
        ("no\u00a0break", ["no", "break"]),
    ],
)
def test_split_words_cuts_at_white_space_but_not_in_a_grapheme(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize(
    ("text", "graphemes"),
    [
        ("abc", ["a", "b", "c"]),
        ("a b", ["a", " b"]),
        ("e\u0301te", ["e\u0301", "t", "e"]),
        (f"x{FAMILY}🇩🇪🇫🇷", ["x", FAMILY, "🇩🇪", "🇫🇷"]),
        ("नमस्ते", ["न", "म", "स्ते"]),
        ("각", ["각"]),
    ],
)
def test_split_graphemes_keeps_what_readers_see_as_one_character(
    text: str, graphemes: list[str]
) -> None:
    assert split_graphemes(text) == graphemes
    assert join_units(graphemes, TextUnit.CHAR) == text


def test_split_units_and_join_units_are_inverse_up_to_white_space() -> None:
    text = " Käse  und 🧀 "
    assert join_units(split_units(text, TextUnit.WORD), TextUnit.WORD) == "Käse und 🧀"
    assert join_units(split_units(text, TextUnit.CHAR), TextUnit.CHAR) == "Käse  und 🧀"


def test_grapheme_starts_leave_out_combining_marks() -> None:
    assert grapheme_starts("e\u0301a") == {0, 2}


@pytest.mark.parametrize(
    ("text", "unspaced"),
    [
        ("今天天气很好我们去公园", True),
        ("ภาษาไทยเขียนติดกัน", True),
        ("plain English", False),
        ("the city of 东京 in Japan", False),
        ("한국어는 띄어쓰기가 있다", False),
    ],
)
def test_is_unspaced_recognises_scripts_without_spaces(text: str, unspaced: bool) -> None:
    assert is_unspaced(text) is unspaced


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("(cat's),", ("(", "cat's", "),")),
        ("...", ("...", "", "")),
        ("«naïve»", ("«", "naïve", "»")),
        ("1850", ("", "1850", "")),
    ],
)
def test_split_punctuation_leaves_the_word(word: str, parts: tuple[str, str, str]) -> None:
    assert split_punctuation(word) == parts


@pytest.mark.parametrize(
    ("word", "replacement", "cased"),
    [
        ("Dog", "hound", "Hound"),
        ("DOG", "hound", "HOUND"),
        ("dog", "Paris", "Paris"),
        ("I", "we", "We"),
        ("TV", "set", "SET"),
    ],
)
def test_match_case_follows_the_original(word: str, replacement: str, cased: str) -> None:
    assert match_case(word, replacement) == cased
