"""``prepare lint``: count the faults of a training file in one pass.

Languages are guessed coarsely, to detect a mixed corpus: texts in the Latin alphabet by function words of seven
languages, all others by script.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import chain

from simcse_cli.data.columns import POSITIONAL, find_column, is_number, parse_columns
from simcse_cli.data.formats import InputPath
from simcse_cli.data.table import Table
from simcse_cli.data.text import digest_keys, has_control_characters, match_key, words
from simcse_cli.data.training_file import iter_training_rows
from simcse_cli.data.writers import Row
from simcse_cli.errors import DataError
from simcse_cli.prepare.options import LintFileOptions
from simcse_cli.progress import Progress
from simcse_cli.results.columns import columns
from simcse_cli.results.report import Column, Outcome, Report

CountTokens = Callable[[Sequence[str]], list[int]]
"""A function that counts the sub-words of each text, including special tokens."""

# UTF-8 read as Latin-1 or Windows-1252 ("Ã©", "â€™"), the replacement character, or an inner byte order mark.
_MOJIBAKE = re.compile(r"[ÃÂ][\u0080-\u00bf]|â€|Ã[ŠŒŽšœžŸ]|[\ufffd\ufeff]")
_FUNCTION_WORDS = {
    "English": "the of and to is that was for with his they are from this have not but had you which were",
    "German": "der und das nicht ist ein eine ich wir mit auf für von zu dem sich auch wird einen sind",
    "French": "les des est une dans que qui pour pas sur nous vous avec sont cette du au été mais ses",
    "Spanish": "los las una que por para con del está como más pero sus fue este muy esta hay y el",
    "Italian": "il che di non una per sono della con gli nel alla più anche è ha questo dei ma lo",
    "Dutch": "het een van niet zijn dat met voor op de hij ook naar maar wordt aan bij deze heeft uit",
    "Portuguese": "não uma os que com para do da em foi mais dos são como mas pelo ao à sua ele",
}
_LANGUAGES_OF: dict[str, list[str]] = {}
for _language, _list in _FUNCTION_WORDS.items():
    for _word in _list.split():
        _LANGUAGES_OF.setdefault(_word, []).append(_language)
_MIN_FUNCTION_WORDS = 3
_EXAMPLE_LENGTH = 60
_TOKEN_BATCH = 1024


class Check(StrEnum):
    meaning: str

    def __new__(cls, name: str, meaning: str) -> "Check":
        check = str.__new__(cls, name)
        check._value_, check.meaning = name, meaning
        return check

    EMPTY = "empty", "a text is empty"
    NUMBER_AS_TEXT = "number_as_text", "a number where a text is expected: a score, a label or an id"
    TRUNCATED = "truncated", "a text has more sub-words than --max-length and is cut in training"
    CONTROL_CHARACTERS = "control_characters", "control characters other than white space"
    WRONG_ENCODING = "wrong_encoding", "UTF-8 that was read as Latin-1, or replacement characters"
    LANGUAGE_MIX = "language_mix", "a text in another language or script than most"
    DUPLICATE_PAIR = "duplicate_pair", "the row occurs before"
    SHARED_TEXT = (
        "shared_text",
        "a text occurs in an earlier row: if they meet in a batch, it is its own negative",
    )
    SWAPPED_COLUMNS = "swapped_columns", "the row occurs before with two columns exchanged"
    ANCHOR_IS_POSITIVE = "anchor_is_positive", "anchor and positive are the same"
    POSITIVE_IS_HARD_NEGATIVE = "positive_is_hard_negative", "positive and hard negative are the same"


@dataclass(frozen=True)
class Finding:
    """The result of a check: the number of rows and the first of them, numbered from 1 in its file."""

    check: Check
    n_rows: int
    share: float
    first_row: int
    example: str
    file: str | None = None


class Linter:
    """Count the rows that each check finds; without ``count_tokens`` there is no check for truncated texts.

    Checks of pairs remember digests of the rows (about 340 bytes per pair); rows of one text take constant memory.
    """

    def __init__(self, count_tokens: CountTokens | None, max_length: int) -> None:
        self.count_tokens, self.max_length, self.n_rows = count_tokens, max_length, 0
        # Rows of each check and of each language: their number, and the first of them.
        self._found: Counter[str] = Counter()
        self._first: dict[str, tuple[int, str]] = {}
        self._seen: set[int] = set()
        self._exchanged: set[int] = set()
        self._texts: set[int] = set()
        self._pending: list[Row] = []
        self._files: list[tuple[int, str]] = []

    def open_file(self, name: str) -> None:
        self._files.append((self.n_rows, name))

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self.check(row)
            yield row

    def check(self, row: Row) -> None:
        self.n_rows += 1
        for language in {guess_language(text) for text in row}:
            self._note(language or "", row, language is not None)
        self._note(Check.EMPTY, row, any(not text.strip() for text in row))
        self._note(Check.NUMBER_AS_TEXT, row, any(map(is_number, row)))
        self._note(Check.CONTROL_CHARACTERS, row, any(map(has_control_characters, row)))
        self._note(Check.WRONG_ENCODING, row, any(not t.isascii() and _MOJIBAKE.search(t) for t in row))
        if len(row) > 1:
            self._check_pair(row)
        if self.count_tokens is not None:
            self._pending.append(row)
            if len(self._pending) == _TOKEN_BATCH:
                self._count_pending()

    def findings(self) -> list[Finding]:
        self._count_pending()
        languages = [what for what in self._found if what not in list(Check)]
        main = max(languages, key=self._found.__getitem__, default=None)
        if others := [language for language in languages if language != main]:
            self._found[Check.LANGUAGE_MIX] = sum(self._found[language] for language in others)
            self._first[Check.LANGUAGE_MIX] = min(self._first[language] for language in others)
        findings = []
        for check in Check:
            if n_rows := self._found[check]:
                number, example = self._first[check]
                start, file = next((each for each in reversed(self._files) if each[0] < number), (0, None))
                findings.append(Finding(check, n_rows, n_rows / self.n_rows, number - start, example, file))
        return findings

    def _note(self, what: str, row: Row, found: bool, number: int | None = None) -> None:
        if found:
            self._found[what] += 1
            if what not in self._first:
                self._first[what] = (number or self.n_rows, _example(row))

    def _check_pair(self, row: Row) -> None:
        keys = [match_key(text) for text in row]
        self._note(Check.ANCHOR_IS_POSITIVE, row, keys[0] == keys[1])
        self._note(Check.POSITIVE_IS_HARD_NEGATIVE, row, len(row) > 2 and keys[1] == keys[2])
        digest = digest_keys(keys)
        self._note(Check.DUPLICATE_PAIR, row, digest in self._seen)
        texts = {digest_keys([text]) for text in row}
        self._note(Check.SHARED_TEXT, row, not texts.isdisjoint(self._texts))
        self._texts |= texts
        self._note(Check.SWAPPED_COLUMNS, row, digest in self._exchanged and digest not in self._seen)
        self._seen.add(digest)
        self._exchanged.add(digest_keys([keys[1], keys[0], *keys[2:]]))
        if len(keys) > 2:
            self._exchanged.add(digest_keys([keys[0], keys[2], keys[1]]))

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


def guess_language(text: str) -> str | None:
    """Return a language such as ``English``, a script such as ``Cyrillic``, or None if unsure.

    A text is in a language if it has three of its function words, and twice as many as of any other language.
    """
    if not text.isascii():
        scripts = Counter(_script(character) for character in text if character.isalpha())
        for script, count in scripts.items():
            if script != "Latin" and 2 * count > scripts.total():
                return script
    found = _LANGUAGES_OF.keys() & words(text)
    hits = Counter(dict.fromkeys(_FUNCTION_WORDS, 0))
    hits.update(language for word in found for language in _LANGUAGES_OF[word])
    (best, n_best), (_, n_next) = hits.most_common(2)
    return best if n_best >= _MIN_FUNCTION_WORDS and n_best >= 2 * n_next else None


@lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    """Return the script of a letter: the first word of its Unicode name, which is ``CJK`` for ideographs."""
    name = unicodedata.name(letter, "").partition(" ")[0]
    return name if name == "CJK" else name.capitalize() or "Unknown"


def lint_files(
    files: Sequence[InputPath], options: LintFileOptions, count_tokens: CountTokens | None, progress: Progress
) -> Linter:
    linter, columns = Linter(count_tokens, options.max_length), parse_columns(options.columns, POSITIONAL)
    with progress.task("rows checked") as task:
        for source in files:
            linter.open_file(str(source))
            for row in training_rows(source, columns, encoding=options.encoding):
                linter.check(row)
                task.advance()
    if not linter.n_rows:
        raise DataError(f"{', '.join(map(str, files))}: no rows")
    return linter


def training_rows(
    source: InputPath, columns: Mapping[str, str] | None = None, *, encoding: str = "utf-8"
) -> Iterator[Row]:
    """Yield the rows of a training file, whatever their label: the columns that training reads, else all."""
    records = Table(source, encoding=encoding, columns=(columns or {}).values()).records()
    if (first := next(records, None)) is None:
        return
    found = columns or {name: own for name in POSITIONAL if (own := find_column(first, name))}
    records = chain([first], records)
    if "anchor" in found and found.keys() != {"anchor", "hard_negative"}:
        yield from (row for _, row in iter_training_rows(records, found))
    else:
        yield from (tuple("" if cell is None else str(cell) for cell in row.values()) for row in records)


def faults(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that ``--strict`` refuses: all but shared texts, which training keeps apart."""
    return [finding for finding in findings if finding.check is not Check.SHARED_TEXT]


def list_findings(findings: Iterable[Finding]) -> str:
    return ", ".join(f"{finding.check} {finding.n_rows:,}" for finding in findings)


def lint_outcome(sources: Sequence[InputPath], linter: Linter) -> Outcome:
    found = {finding.check: asdict(finding) for finding in linter.findings()}
    clean = {"n_rows": 0, "share": 0.0, "first_row": None, "example": None, "file": None}
    rows = [
        {**found.get(check, clean), "check": check.replace("_", " "), "meaning": check.meaning}
        for check in Check
        if linter.count_tokens or check is not Check.TRUNCATED
    ]
    counted = [Column("check"), Column("n_rows", "rows", "count"), Column("share", "%", "score")]
    files = columns("file") if len(sources) > 1 else []
    shown = [*counted, *files, Column("first_row", "first", "count"), *columns("example", "meaning")]
    payload = {"inputs": list(sources), "n_rows": linter.n_rows, "findings": list(found.values())}
    return Outcome([Report(f"Lint of {linter.n_rows:,} rows", shown, rows)], payload)
