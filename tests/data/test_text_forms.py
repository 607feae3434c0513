import pytest

from simcse_cli.data.text_forms import clean_text, has_control_characters, match_key, words


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (" a  b\tc\n", "a b c"),
        ("a\x07b", "ab"),
        ("a\u2028b\u00a0c\x85d", "a b c d"),
        ("half \ud83d pair", "half pair"),
        ("\u0928\u0940", "\u0928\u0940"),
        ("\U0001f468\u200d\U0001f469", "\U0001f468\u200d\U0001f469"),
    ],
)
def test_clean_text_keeps_one_line_of_printable_text(text, cleaned):
    assert clean_text(text) == cleaned
    cleaned.encode()


def test_has_control_characters_ignores_white_space():
    assert has_control_characters("a\x00b")
    assert not has_control_characters("a\tb\u00a0c\nd")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's 5 p.m.", ["it", "s", "5", "p", "m"]),
        ("Ça va_bien", ["ça", "va", "bien"]),
        ("我喜欢 cats", ["我", "喜", "欢", "cats"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("...", []),
    ],
)
def test_words_splits_by_script(text, expected):
    assert words(text) == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("It is n't so .", "It isn't so!"),
        ("A DOG", "a  dog"),
        ("ﬁne café", "fine cafe\u0301"),
        ("Straße", "STRASSE"),
    ],
)
def test_match_key_sets_spelling_details_aside(first, second):
    assert match_key(first) == match_key(second)


@pytest.mark.parametrize(("first", "second"), [("a dog", "a dot"), (":)", ":("), ("कि", "की")])
def test_match_key_keeps_different_texts_apart(first, second):
    assert match_key(first) != match_key(second)
