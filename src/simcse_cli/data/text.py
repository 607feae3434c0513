"""Clean and compare text: words, keys that ignore spelling details, lexical overlap."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

import regex

_ASCII_WORD = re.compile(r"[^\W_]+")
# In scripts written without spaces, each character counts as a word.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(
    rf"[{_UNSPACED}]\p{{M}}*|[\p{{L}}\p{{M}}\p{{N}}--{_UNSPACED}]+", regex.VERSION1
)
_UNSPACED_LETTER = regex.compile(rf"[{_UNSPACED}]\p{{M}}*")
_TERM_RUN = regex.compile(
    rf"(?:[{_UNSPACED}]\p{{M}}*)+|[\p{{L}}\p{{M}}\p{{N}}--{_UNSPACED}]+", regex.VERSION1
)
# White space other than the plain space.
_ASCII_SPACES = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f"
_SPACES = _ASCII_SPACES + "".join(filter(str.isspace, map(chr, range(0x80, 0x3001))))
_CONTROL = regex.compile(r"[[\p{Cc}\p{Cs}]--\s]", regex.VERSION1)
# Symbols and emoji are content, with the colours of skin and the tags of flags. So are percent
# signs, which Unicode calls punctuation. Of the modifiers (Sk) only ^ is: the grave accent is a
# quote in tokenised text.
_SYMBOLS = r"\p{So}\p{Sm}\p{Sc}\^\p{Emoji_Modifier}\U000e0020-\U000e007f%‰‱٪"
_NOT_IN_KEY = regex.compile(rf"[^\p{{L}}\p{{M}}\p{{N}}{_SYMBOLS}]")
_KEY_WORD = regex.compile(
    rf"[{_UNSPACED}]\p{{M}}*|[\p{{L}}\p{{M}}\p{{N}}--{_UNSPACED}]+|[{_SYMBOLS}]", regex.VERSION1
)
_ASCII_KEY_WORD = re.compile(r"[^\W_]+|[$%+<=>^|~]")
_ASCII_NOT_IN_KEY = "".join(filter(_NOT_IN_KEY.fullmatch, map(chr, range(128)))).encode()
_CONTENT = regex.compile(r"[\p{L}\p{M}\p{N}\p{So}]")
# The marks that tell two texts apart: between two digits (1/2), a minus before a number (-1), and
# a hash after a letter (C#). The group keeps them when a text is split.
_SIGNS = re.compile(r"((?<=\d)[\W_]+(?=\d)|(?<![^\s(\[])-(?=\d)|(?<=[^\W\d_])#+)")
# Every text with a mark of the first two kinds matches this. Most texts do not, and this search
# costs less than the splitting.
_MAY_HAVE_SIGNS = re.compile(r"[-\d](?:(?<=\d)[\W_]+\d|(?<=-)\d)")
# The space of a mixed number (1 1/2), also with PTB's 1\/2.
_MIXED_NUMBER = re.compile(r"(?<=\d)\s+(?=\d+\s*\\?/\s*\d)")
# NFKC would join these to the digit before them: 10² would be 102, and 1½ would be 11/2.
_BEHIND_DIGIT = regex.compile(r"(?<=\d)[\p{No}⁺⁻₊₋]")
# What goes between the digit and such a character, by the kind of character; ^ for other kinds.
_BORDERS = {"<fraction>": " ", "<sub>": "_"}
# Characters that nobody sees, such as soft hyphens, joiners and the selectors of emoji; but a
# zero-width space separates words, and the tags of flags can be seen.
_UNSEEN = regex.compile(
    r"[\p{Default_Ignorable_Code_Point}--[\u200b\U000e0020-\U000e007f]]", regex.V1
)
_SEEN = regex.compile(r"[^\s\p{Cc}\p{Cf}\p{Cs}\p{Default_Ignorable_Code_Point}]")
_DASH = regex.compile(r"\p{Pd}|\N{MINUS SIGN}")
# In a mark, spacing, quotes and the backslash of PTB's "1\\/2" are left out.
_NOT_IN_SIGNS = re.compile(r"[\s\\'\"‘’“”]+")


def clean_text(text: str) -> str:
    """Return the text on one line, without control characters and lone surrogates."""
    if not text.isprintable():
        text = _CONTROL.sub("", text)
    return one_line(text)


def one_line(text: str) -> str:
    """Return the text with runs of white space as one space; a text that nobody sees is ""."""
    return visible(" ".join(text.split()))


def visible(text: str) -> str:
    """Return the text, or "" if it is nothing but unseen characters, such as zero-width spaces."""
    return text if text.isprintable() or _SEEN.search(text) else ""


def are_lines(texts: Iterable[str]) -> bool:
    """Tell whether ``one_line`` would return all texts as they are; look at all of them at once.

    If some texts are empty, the answer may be False where True is right.
    """
    joined = " ".join(("", *texts, ""))  # a space at an end of a text makes a double space
    spaces = _ASCII_SPACES if joined.isascii() else _SPACES
    has_other_spaces = "  " in joined or any(space in joined for space in spaces)
    return not has_other_spaces and joined.isprintable()


def has_control_characters(text: str) -> bool:
    return not text.isprintable() and _CONTROL.search(text) is not None


def words(text: str) -> list[str]:
    """Return the lower-cased words: runs of letters, marks and digits, in Unicode's form NFKC.

    ``"It's 5 p.m."`` gives it, s, 5, p, m. In scripts without spaces each character is a word.
    Soft hyphens and joiners cut no word, but a zero-width space does.
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return list(map(str, _WORD.findall(_lower(text))))


def _lower(text: str) -> str:
    """Return the text in small letters and form NFKC, without unseen characters; İ gives i."""
    lowered = unicodedata.normalize("NFKC", text).lower().replace("i\u0307", "i")
    return str(_UNSEEN.sub("", lowered))


def terms(text: str) -> list[str]:
    """Return the words, but in scripts without spaces the pairs of neighbouring characters.

    A character without a neighbour of its script stands alone.

    Example:
        >>> terms("配送料 is free"), terms("猫 cat")
        (['配送', '送料', 'is', 'free'], ['猫', 'cat'])
    """
    if text.isascii():
        return words(text)
    found: list[str] = []
    for run in map(str, _TERM_RUN.findall(_lower(text))):
        letters = _UNSPACED_LETTER.findall(run)
        if len(letters) < 2:
            found.append(run)
        else:
            found.extend(map("".join, pairwise(letters)))
    return found


def count_words(text: str) -> int:
    """Return the number of words between spaces; in scripts without spaces, two letters are a word.

    Example:
        >>> count_words("It's 5 p.m."), count_words("怎么给绿萝浇水?")
        (3, 4)
    """
    if text.isascii():
        return len(text.split())
    n_words = 0
    for run in text.split():
        n_letters = len(_UNSPACED_LETTER.findall(run))
        n_words += max(1, (n_letters + 1) // 2)
    return n_words


def match_key(text: str) -> str:
    """Return the text without case, spacing, Unicode variants, and punctuation of no meaning.

    Tokenised and plain spellings of a sentence have the same key: ``"It is n't so ."`` and ``"It
    isn't so"``. Symbols and emoji are kept, and so are marks that change a number or a name: those
    between two digits (``4.95``, ``1/2``), a minus that starts a number (``-1``), percent signs,
    and a hash after a letter (``C#``). A space between a number and a fraction becomes a plus. The
    key of a text without letters, digits and emoji is the text itself, on one line.

    Example:
        >>> match_key("Half: 1 / 2 of C#'s."), match_key("covid-19"), match_key("1½ + 10²")
        ('half1/2ofc#s', 'covid19', '1+1/2+10^2')
    """
    plain = _plain(text)
    key = _content(plain)
    # Without digits, the only mark that tells texts apart is a hash.
    if key.isalpha() and "#" not in plain:
        return key
    if not _CONTENT.search(key):
        return one_line(text)
    parts = _split_signs(plain)
    if len(parts) > 1:
        parts[::2] = map(_content, parts[::2])
        key = "".join(parts)
    return key


def key_words(text: str) -> list[str]:
    """Return the words, marks and symbols of a text; joined, they are its ``match_key``.

    Example:
        >>> key_words("Half: 1 / 2 of C#'s."), key_words("5% 😀")
        (['half', '1', '/', '2', 'of', 'c', '#', 's'], ['5', '%', '😀'])
    """
    plain = _plain(text)
    if not _CONTENT.search(plain):
        return one_line(text).split()
    found: list[str] = []
    for place, part in enumerate(_split_signs(plain)):
        if place % 2:
            found.append(part)
        elif part.isascii():
            found.extend(_ASCII_KEY_WORD.findall(part))
        else:
            found.extend(map(str, _KEY_WORD.findall(part)))
    return list(filter(None, found))


def _plain(text: str) -> str:
    """Return the text without case and Unicode variants, with one kind of dash."""
    if text.isascii():
        return text.lower()
    plain = _lower(_BEHIND_DIGIT.sub(_with_border, text)).casefold()
    plain = plain.replace("⁄", "/").replace("\u200b", " ")
    return str(_DASH.sub("-", plain))


def _split_signs(plain: str) -> list[str]:
    """Split a text at the marks that tell texts apart, as in ``1/2``, ``-1`` and ``c#``.

    The parts alternate: text, mark, text, ... Most texts have no mark, and stay whole.
    """
    # The pattern finds all marks but the hash.
    if "#" not in plain and not _MAY_HAVE_SIGNS.search(plain):
        return [plain]
    parts = _SIGNS.split(_MIXED_NUMBER.sub("+", plain))  # 1 1/2 is 1+1/2, not 11/2
    parts[1::2] = (_NOT_IN_SIGNS.sub("", signs) for signs in parts[1::2])
    return parts


def _with_border(behind_digit: regex.Match[str]) -> str:
    character = str(behind_digit.group())
    kind = unicodedata.decomposition(character).partition(" ")[0]
    return _BORDERS.get(kind, "^") + character


def _content(text: str) -> str:
    if text.isascii():
        return text.encode().translate(None, _ASCII_NOT_IN_KEY).decode()
    return text.translate(_KEY_TABLE)


class _KeyTable(dict[int, int | None]):
    """A table for ``str.translate``: it looks each character up once, in a third of the time."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if _NOT_IN_KEY.match(chr(code)) else code
        return self[code]


_KEY_TABLE = _KeyTable()


def digest_keys(keys: Iterable[str]) -> int:
    """Return a 64-bit digest of texts in their order, such as the match keys of a row."""
    joined = "\x1f".join(keys).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(joined, digest_size=8).digest(), "big")


def overlap_f1(first: str, second: str, *, multiset: bool = True) -> float | None:
    """Return the F1 of the words that two texts share, in [0, 1]; None if neither has a word.

    With A and B the words of the two texts:

        F1 = 2 |A and B| / (|A| + |B|)

    Source: Gao et al. 2021, section 4: 39% for NLI entailment pairs, 60% for QQP, 55% for ParaNMT.
    The paper names neither tokeniser nor case; multisets of lower-cased words (toolkit default)
    give 39.6% on the entailment pairs of the SNLI development and test sets.

    Without ``multiset`` each distinct word counts once. The value is 1 for the same words in any
    order, and 0 if the texts share no word.
    ``"a dog runs"`` and ``"a dog sleeps here"`` give 4/7.
    """
    collect = list if multiset else set
    left = Counter(collect(words(first)))
    right = Counter(collect(words(second)))
    n_words = left.total() + right.total()
    return 2 * (left & right).total() / n_words if n_words else None


@dataclass
class OverlapMean:
    """Running mean of ``overlap_f1`` over pairs with words; its value is None before the first."""

    n_pairs: int = 0
    total: float = 0.0

    def add(self, first: str, second: str) -> None:
        f1 = overlap_f1(first, second)
        if f1 is not None:
            self.n_pairs += 1
            self.total += f1

    @property
    def value(self) -> float | None:
        return self.total / self.n_pairs if self.n_pairs else None
