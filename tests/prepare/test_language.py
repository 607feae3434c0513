import pytest

from simcse_cli.prepare.language import guess_language


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat was in the house and it was not happy with that.", "English"),
        ("Das ist nicht der Hund, den ich auf dem Weg gesehen habe.", "German"),
        ("Les enfants sont dans une maison qui est au bord du lac.", "French"),
        ("Los niños están en una casa que está cerca del río y muy lejos.", "Spanish"),
        ("Де бабушка живёт", "Cyrillic"),
        ("我喜欢猫", "CJK"),
        ("नमस्ते दुनिया", "Devanagari"),
        ("Two dogs run.", None),
        ("", None),
        ("1234 !!", None),
    ],
)
def test_guess_language_of_clear_and_unclear_texts(text, expected):
    assert guess_language(text) == expected


def test_guess_language_goes_by_most_letters():
    assert guess_language("The word мир is in the title of that book.") == "English"
