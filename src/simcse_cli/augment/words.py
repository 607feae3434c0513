"""Text as words or graphemes and back, and the English words that are never replaced.

Words are separated by white space, as in the SimCSE authors' own augmentation (issue 231 of their
repository). A grapheme is one character as a reader sees it (Unicode Annex 29): a letter with its accents, a
flag, a family emoji, a Devanagari cluster.
"""

from collections.abc import Iterable

import regex

from simcse_cli.files.schema import parse_yaml
from simcse_cli.files.streams import resource
from simcse_cli.settings.choices import TextUnit

_GRAPHEME = regex.compile(r"\X")
_SPACED_GRAPHEME = regex.compile(r"\s*\X")
# White space that carries a combining mark or a joiner belongs to that grapheme, so it separates nothing.
_WORD_BREAK = regex.compile(r"\s+(?!\p{M}|\u200d)")
_WORD_PARTS = regex.compile(r"([^\p{L}\p{N}]*)(.*?)([^\p{L}\p{M}\p{N}]*)")
_UNSPACED_RUN = regex.compile(
    r"(?:[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]\p{M}*){6,}"
)


def split_words(text: str) -> list[str]:
    """Split at white space, without cutting a grapheme."""
    if text.isascii():
        return text.split()
    return [word for word in _WORD_BREAK.split(text.strip()) if word]


def split_graphemes(text: str) -> list[str]:
    """Return the graphemes, each with the white space before it; joined they are ``text.strip()`` again."""
    return [match.group() for match in _SPACED_GRAPHEME.finditer(text.strip())]


def grapheme_starts(text: str) -> set[int]:
    return {match.start() for match in _GRAPHEME.finditer(text)}


def split_units(text: str, unit: TextUnit) -> list[str]:
    return split_words(text) if unit is TextUnit.WORD else split_graphemes(text)


def join_units(units: Iterable[str], unit: TextUnit) -> str:
    return " ".join(units) if unit is TextUnit.WORD else "".join(units).strip()


def is_unspaced(text: str) -> bool:
    """Return whether ``text`` has six or more letters in a row of a script in which a "word" is a whole phrase."""
    return not text.isascii() and _UNSPACED_RUN.search(text) is not None


def split_punctuation(word: str) -> tuple[str, str, str]:
    """Return the punctuation before a word, the word, and the punctuation after it; punctuation alone comes first.

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


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ENGLISH = parse_yaml(resource("english.yaml"), "english")
_CLASSES = {name: word_set(listed) for name, listed in _ENGLISH.items()}
EDA_STOP_WORDS = _CLASSES.pop("eda_stop_words")
DETERMINERS, PREPOSITIONS = _CLASSES["determiners"], _CLASSES["prepositions"]
SUBJECT_PRONOUNS = _CLASSES["subject_pronouns"]
BE_AND_HAVE, MODALS_AND_DO = _CLASSES["be_and_have"], _CLASSES["modals_and_do"]
FUNCTION_WORDS = frozenset().union(*_CLASSES.values())
"""All closed classes."""
