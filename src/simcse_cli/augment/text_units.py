"""Text as a list of units (whole words or graphemes) and back, for operators that must not cut inside one.

A word is what stands between white space, as in the SimCSE authors' own augmentation (issue 231 of their
repository). A grapheme is one character as a reader sees it (Unicode Annex 29): a letter with its accents, a
flag, a family emoji, a Devanagari cluster.
"""

from collections.abc import Iterable

import regex

from simcse_cli.choices import TextUnit

_GRAPHEME = regex.compile(r"\X")
_SPACED_GRAPHEME = regex.compile(r"\s*\X")
# White space that carries a combining mark or a joiner belongs to that grapheme, so it separates nothing.
_WORD_BREAK = regex.compile(r"\s+(?!\p{M}|\u200d)")
_WORD_PARTS = regex.compile(r"([^\p{L}\p{N}]*)(.*?)([^\p{L}\p{M}\p{N}]*)")
_UNSPACED_RUN = regex.compile(
    r"(?:[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]\p{M}*){6,}"
)


def split_words(text: str) -> list[str]:
    """Return the words of ``text``: what white space separates; no grapheme is cut."""
    if text.isascii():
        return text.split()
    return [word for word in _WORD_BREAK.split(text.strip()) if word]


def split_graphemes(text: str) -> list[str]:
    """Return the graphemes of ``text``, each with the white space before it, which is not counted.

    Joined without a separator the list is ``text.strip()`` again.
    """
    return [match.group() for match in _SPACED_GRAPHEME.finditer(text.strip())]


def grapheme_starts(text: str) -> set[int]:
    """Return the offsets at which a grapheme of ``text`` begins."""
    return {match.start() for match in _GRAPHEME.finditer(text)}


def split_units(text: str, unit: TextUnit) -> list[str]:
    """Return the units of ``text``; an empty list for blank text."""
    return split_words(text) if unit is TextUnit.WORD else split_graphemes(text)


def join_units(units: Iterable[str], unit: TextUnit) -> str:
    """Return the text of ``units``: words with one space between them, graphemes as they are."""
    return " ".join(units) if unit is TextUnit.WORD else "".join(units).strip()


def is_unspaced(text: str) -> bool:
    """Return whether ``text`` holds a run of six or more letters of a script written without spaces.

    Chinese, Japanese, Thai, Lao, Khmer, Burmese and Tibetan: there a "word" between spaces is a whole phrase.
    """
    return not text.isascii() and _UNSPACED_RUN.search(text) is not None


def split_punctuation(word: str) -> tuple[str, str, str]:
    """Return what stands before, in and after a word; a word of punctuation alone stands before nothing.

    ``"(cat's),"`` gives ``("(", "cat's", "),")``.
    """
    parts = _WORD_PARTS.fullmatch(word)
    return (parts[1], parts[2], parts[3]) if parts is not None else ("", word, "")


def match_case(word: str, replacement: str) -> str:
    """Return ``replacement`` with the capitals of ``word``: all of them, the first letter, or as it is.

    ``match_case("Dog", "hound")`` is Hound; ``match_case("dog", "Paris")`` stays Paris.
    """
    if len(word) > 1 and word.isupper():
        return replacement.upper()
    if word[:1].isupper():
        return replacement[:1].upper() + replacement[1:]
    return replacement
