"""What is wrong with the rows of a training file, counted while they pass; nothing is changed."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from simcse_cli.data.text import has_control_characters, match_key
from simcse_cli.data.writers import Row
from simcse_cli.prepare.language import guess_language
from simcse_cli.prepare.rows import digest_keys

CountTokens = Callable[[Sequence[str]], list[int]]
"""Sub-words of each text, special tokens included."""

# UTF-8 read as Latin-1 or Windows-1252 ("Ã©", "â€™"), the replacement character, a byte order mark inside.
_MOJIBAKE = re.compile(r"[ÃÂ][\u0080-\u00bf]|â€|Ã[ŠŒŽšœžŸ]|[\ufffd\ufeff]")
_EXAMPLE_LENGTH = 60
_TOKEN_BATCH = 1024


class Check(StrEnum):
    """The lint checks; the value is the name in manifests and tables."""

    EMPTY = "empty"
    TRUNCATED = "truncated"
    CONTROL_CHARACTERS = "control_characters"
    WRONG_ENCODING = "wrong_encoding"
    LANGUAGE_MIX = "language_mix"
    DUPLICATE_PAIR = "duplicate_pair"
    SWAPPED_COLUMNS = "swapped_columns"
    ANCHOR_IS_POSITIVE = "anchor_is_positive"
    POSITIVE_IS_HARD_NEGATIVE = "positive_is_hard_negative"


EXPLANATIONS = {
    Check.EMPTY: "a text is empty",
    Check.TRUNCATED: "a text has more sub-words than --max-length and is cut in training",
    Check.CONTROL_CHARACTERS: "control characters other than white space",
    Check.WRONG_ENCODING: "UTF-8 that was read as Latin-1, or replacement characters",
    Check.LANGUAGE_MIX: "a text in another language or script than most",
    Check.DUPLICATE_PAIR: "the row occurs before",
    Check.SWAPPED_COLUMNS: "the row occurs before with two columns exchanged",
    Check.ANCHOR_IS_POSITIVE: "anchor and positive are the same",
    Check.POSITIVE_IS_HARD_NEGATIVE: "positive and hard negative are the same",
}


@dataclass(frozen=True)
class Finding:
    """One check that found something: how many rows, and the first of them."""

    check: Check
    n_rows: int
    share: float
    first_row: int
    example: str


@dataclass
class Linter:
    """Counts the rows that each check finds.

    Checks of pairs remember 8-byte digests of the rows (about 170 bytes per pair); rows of one text are
    checked in constant memory.

    Attributes:
        count_tokens: counts sub-words for the ``truncated`` check, which is left out without it.
        max_length: most sub-words that training keeps, special tokens included.
    """

    count_tokens: CountTokens | None = None
    max_length: int = 32
    n_rows: int = 0
    _found: Counter[Check] = field(default_factory=Counter)
    _first: dict[Check, tuple[int, str]] = field(default_factory=dict)
    _languages: Counter[str] = field(default_factory=Counter)
    _first_in_language: dict[str, tuple[int, str]] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _exchanged: set[int] = field(default_factory=set)
    _pending: list[Row] = field(default_factory=list)

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows unchanged and check each."""
        for row in rows:
            self.check(row)
            yield row

    def check(self, row: Row) -> None:
        """Check one row."""
        self.n_rows += 1
        self._check_languages(row)
        self._note(Check.EMPTY, row, any(not text.strip() for text in row))
        self._note(Check.CONTROL_CHARACTERS, row, any(map(has_control_characters, row)))
        self._note(Check.WRONG_ENCODING, row, any(not t.isascii() and _MOJIBAKE.search(t) for t in row))
        if len(row) > 1:
            self._check_pair(row)
        if self.count_tokens is not None:
            self._pending.append(row)
            if len(self._pending) == _TOKEN_BATCH:
                self._count_pending()

    def findings(self) -> list[Finding]:
        """Return what has been found so far, in the order of ``Check``."""
        self._count_pending()
        self._conclude_languages()
        return [
            Finding(check, self._found[check], self._found[check] / self.n_rows, *self._first[check])
            for check in Check
            if self._found[check]
        ]

    def _note(self, check: Check, row: Row, found: bool, number: int | None = None) -> None:
        if found:
            self._found[check] += 1
            if check not in self._first:
                self._first[check] = (number or self.n_rows, _example(row))

    def _check_pair(self, row: Row) -> None:
        keys = [match_key(text) for text in row]
        self._note(Check.ANCHOR_IS_POSITIVE, row, keys[0] == keys[1])
        self._note(Check.POSITIVE_IS_HARD_NEGATIVE, row, len(row) > 2 and keys[1] == keys[2])
        digest = digest_keys(keys)
        self._note(Check.DUPLICATE_PAIR, row, digest in self._seen)
        self._note(Check.SWAPPED_COLUMNS, row, digest in self._exchanged and digest not in self._seen)
        self._seen.add(digest)
        self._exchanged.add(digest_keys([keys[1], keys[0], *keys[2:]]))
        if len(keys) > 2:
            self._exchanged.add(digest_keys([keys[0], keys[2], keys[1]]))

    def _check_languages(self, row: Row) -> None:
        for language in {guess_language(text) for text in row}:
            if language is not None:
                self._languages[language] += 1
                if language not in self._first_in_language:
                    self._first_in_language[language] = (self.n_rows, _example(row))

    def _conclude_languages(self) -> None:
        main = self._languages.most_common(1)
        others = [language for language in self._languages if language != main[0][0]]
        if others:
            self._found[Check.LANGUAGE_MIX] = sum(self._languages[language] for language in others)
            number, example = min(self._first_in_language[language] for language in others)
            self._first[Check.LANGUAGE_MIX] = (number, example)

    def _count_pending(self) -> None:
        rows, self._pending = self._pending, []
        if not rows or self.count_tokens is None:
            return
        lengths = iter(self.count_tokens([text for row in rows for text in row]))
        for number, row in enumerate(rows, start=self.n_rows - len(rows) + 1):
            longest = max(next(lengths) for _ in row)
            self._note(Check.TRUNCATED, row, longest > self.max_length, number)


def _example(row: Row) -> str:
    text = " | ".join(row)
    text = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
    return text if len(text) <= _EXAMPLE_LENGTH else text[: _EXAMPLE_LENGTH - 1] + "…"
