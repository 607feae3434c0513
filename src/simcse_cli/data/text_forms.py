"""The forms in which texts are compared: cleaned, as words, and as a key that ignores details of spelling."""

import re
import unicodedata
from functools import cache

import regex

_ASCII_WORD = re.compile(r"[^\W_]+")
# Scripts written without spaces count each character as a word.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(rf"[{_UNSPACED}]\p{{M}}*|[\p{{L}}\p{{M}}\p{{N}}--{_UNSPACED}]+", regex.VERSION1)
_CONTROL = regex.compile(r"[[\p{Cc}\p{Cs}]--\s]", regex.VERSION1)
_NOT_IN_KEY = regex.compile(r"[^\p{L}\p{M}\p{N}]+")


def clean_text(text: str) -> str:
    """Return the text on one line: control characters removed, every run of white space one space.

    Lone surrogates (half of a character, from broken JSON escapes) count as control characters.
    """
    if not text.isprintable():
        text = _CONTROL.sub("", text)
    return " ".join(text.split())


def has_control_characters(text: str) -> bool:
    """Tell whether the text holds control characters other than white space."""
    return not text.isprintable() and _CONTROL.search(text) is not None


def words(text: str) -> list[str]:
    """Return the lower-cased words: runs of letters, marks and digits.

    ``"It's 5 p.m."`` gives it, s, 5, p, m. In scripts without spaces each character is a word.
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return [str(word) for word in _WORD.findall(text.lower())]


def match_key(text: str) -> str:
    """Return what is left of a text when case, spacing, punctuation and Unicode variants are set aside.

    Tokenised and plain spellings of a sentence have the same key: ``"It is n't so ."`` and ``"It isn't so"``.
    A text without letters and digits is its own key.
    """
    if text.isascii():
        key = "".join(_ASCII_WORD.findall(text.lower()))
    else:
        key = _NOT_IN_KEY.sub("", unicodedata.normalize("NFKC", text).casefold())
    return key or " ".join(text.split())


@cache
def script_of(character: str) -> str:
    """Return the script of a letter as the first word of its Unicode name, such as ``LATIN`` or ``CJK``."""
    return unicodedata.name(character, "UNKNOWN").split(" ", 1)[0]
