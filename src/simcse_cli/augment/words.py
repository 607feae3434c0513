"""Text as words or graphemes, the difference of two texts, and lists of English words.

Words are separated by white space, as in the SimCSE authors' own augmentation (issue 231 of their
repository). A grapheme is one character as a reader sees it (Unicode Annex 29): a letter with its
accents, a flag, a family emoji, a Devanagari cluster.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import NamedTuple

import regex

from simcse_cli.files.resources import resource
from simcse_cli.files.schema import parse_yaml
from simcse_cli.results.report import DiffRow
from simcse_cli.settings.choices import TextUnit

_GRAPHEME = regex.compile(r"\X")
_SPACED_GRAPHEME = regex.compile(r"\s*\X")
# White space that carries a combining mark or a joiner is part of a grapheme, so it cuts nothing.
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
    """Cut the stripped text into graphemes, each with the white space before it."""
    return [match.group() for match in _SPACED_GRAPHEME.finditer(text.strip())]


def graphemes_of(text: str) -> list[str]:
    """Return the graphemes, white space among them; together they are the text."""
    return [match.group() for match in _GRAPHEME.finditer(text)]


def grapheme_starts(text: str) -> set[int]:
    return {match.start() for match in _GRAPHEME.finditer(text)}


def split_units(text: str, unit: TextUnit) -> list[str]:
    return split_words(text) if unit is TextUnit.WORD else split_graphemes(text)


def join_units(units: Iterable[str], unit: TextUnit) -> str:
    return " ".join(units) if unit is TextUnit.WORD else "".join(units).strip()


def is_unspaced(text: str) -> bool:
    """Tell whether ``text`` has six letters in a row of a script written without spaces."""
    return not text.isascii() and _UNSPACED_RUN.search(text) is not None


def split_punctuation(word: str) -> tuple[str, str, str]:
    """Return the punctuation before a word, the word, and the punctuation after it.

    ``"(cat's),"`` gives ``("(", "cat's", "),")``; punctuation alone is the first part.
    """
    parts = _WORD_PARTS.fullmatch(word)
    if parts is None:
        return "", word, ""
    return parts[1], parts[2], parts[3]


def match_case(word: str, replacement: str) -> str:
    """Return ``replacement`` with the capitals of ``word``.

    If ``word`` is two or more capitals, the result is all capitals. Else, if ``word`` begins with a
    capital, so does the result. Otherwise ``replacement`` is unchanged.
    ``match_case("Dog", "hound")`` is Hound; ``match_case("dog", "Paris")`` is Paris.
    """
    if len(word) > 1 and word.isupper():
        return replacement.upper()
    if word[:1].isupper():
        return replacement[:1].upper() + replacement[1:]
    return replacement


class TextChange(NamedTuple):
    """A stretch of words in both texts; one side is empty if words were added or removed."""

    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        return self.before == self.after


def diff_row(name: str, before: str, after: str, unit: TextUnit) -> DiffRow:
    """Return how a text was changed, in words or graphemes.

    The label of the row is ``name``, with the edit distance.
    """
    units = split_units(before, unit)
    distance, changes = word_changes(units, split_units(after, unit))
    separator = " " if unit is TextUnit.WORD else ""
    old_parts = []  # each part with a flag: true if it was changed
    new_parts = []
    for change in changes:
        if change.before:
            old_parts.append((separator.join(change.before), not change.is_equal))
        if change.after:
            new_parts.append((separator.join(change.after), not change.is_equal))
    title = f"{name}: distance {distance}, {len(units)} {unit}s"
    return DiffRow(title, old_parts, new_parts, separator)


def word_changes(before: Sequence[str], after: Sequence[str]) -> tuple[int, list[TextChange]]:
    """Return the edit distance in words, and the stretches of one cheapest edit.

    The distance counts removed, added and replaced words (Levenshtein): 0 for equal texts, at most
    the length of the longer one. The stretches are kept and changed in turn; together they are the
    whole of both texts.
    """
    # Go back from the last words to the first, along the cheapest steps.
    costs = _cost_table(before, after)
    changes: list[TextChange] = []
    i = len(before)
    j = len(after)
    while i or j:
        if i and j and costs[i][j] == costs[i - 1][j - 1] + (before[i - 1] != after[j - 1]):
            i -= 1
            j -= 1
            changes.append(TextChange((before[i],), (after[j],)))
        elif i and costs[i][j] == costs[i - 1][j] + 1:
            i -= 1
            changes.append(TextChange((before[i],), ()))
        else:
            j -= 1
            changes.append(TextChange((), (after[j],)))

    # The changes are in reverse order. Join runs of equal words, and runs of changed words.
    stretches = []
    for _, run in groupby(reversed(changes), lambda change: change.is_equal):
        befores, afters = zip(*run, strict=True)
        stretches.append(TextChange(tuple(chain(*befores)), tuple(chain(*afters))))
    return costs[-1][-1], stretches


def _cost_table(before: Sequence[str], after: Sequence[str]) -> list[list[int]]:
    """Return the edit distance from each prefix of ``before`` (rows) to each one of ``after``."""
    costs = [list(range(len(after) + 1))]
    for i, word in enumerate(before, start=1):
        row = [i]
        for j, other in enumerate(after, start=1):
            removal = costs[-1][j] + 1
            addition = row[-1] + 1
            replacement = costs[-1][j - 1] + (word != other)  # equal words cost nothing
            row.append(min(removal, addition, replacement))
        costs.append(row)
    return costs


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ENGLISH = parse_yaml(resource("english.yaml"), "english")
_CLASSES = {name: word_set(listed) for name, listed in _ENGLISH.items()}
EDA_STOP_WORDS = _CLASSES.pop("eda_stop_words")
VERBS = _CLASSES.pop("verbs")
"""Lemmas of verbs; a past of irregular spelling is added to its lemma, as in ``stop/stopped``."""
DETERMINERS = _CLASSES["determiners"]
PREPOSITIONS = _CLASSES["prepositions"]
SUBJECT_PRONOUNS = _CLASSES["subject_pronouns"]
BE_AND_HAVE = _CLASSES["be_and_have"]
MODALS_AND_DO = _CLASSES["modals_and_do"]
FUNCTION_WORDS = frozenset().union(*_CLASSES.values())
"""The words of all closed classes."""
