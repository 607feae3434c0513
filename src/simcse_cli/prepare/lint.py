"""``prepare lint``: count the faults of a training file in one pass.

To detect a mixed corpus, the language of a text is guessed coarsely: in the Latin alphabet by
function words of seven languages, else by the script.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import chain, islice
from typing import Any, NamedTuple

from simcse_cli.data.formats import InputPath, cells_in_text
from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.grid import SAMPLE_ROWS
from simcse_cli.data.jobs import Job
from simcse_cli.data.kinds import cell_text, is_missing, list_items, to_number
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.roles import decide, told_line
from simcse_cli.data.show import shorten
from simcse_cli.data.sides import SET
from simcse_cli.data.table import RowPosition, Table
from simcse_cli.data.text import digest_keys, has_control_characters, match_key, visible, words
from simcse_cli.data.training_file import iter_training_rows
from simcse_cli.data.writers import Row
from simcse_cli.errors import DataError
from simcse_cli.prepare.options import LintFileOptions
from simcse_cli.progress import Progress
from simcse_cli.results.columns import columns
from simcse_cli.results.report import Column, Outcome, Report

CountTokens = Callable[[Sequence[str]], list[int]]
"""A function that counts the sub-words of each text, including special tokens."""

# UTF-8 read as Latin-1 or Windows-1252 ("Ã©", "â€™"), replacement characters, byte order marks.
_MOJIBAKE = re.compile(r"[ÃÂ][\u0080-\u00bf]|â€|Ã[ŠŒŽšœžŸ]|[\ufffd\ufeff]")
_FUNCTION_WORDS = {
    "English": "the of and to is that was for with his they are from this have not but had you "
    "which were",
    "German": "der und das nicht ist ein eine ich wir mit auf für von zu dem sich auch wird einen "
    "sind",
    "French": "les des est une dans que qui pour pas sur nous vous avec sont cette du au été mais "
    "ses",
    "Spanish": "los las una que por para con del está como más pero sus fue este muy esta hay y el",
    "Italian": "il che di non una per sono della con gli nel alla più anche è ha questo dei ma lo",
    "Dutch": "het een van niet zijn dat met voor op de hij ook naar maar wordt aan bij deze heeft "
    "uit",
    "Portuguese": "não uma os que com para do da em foi mais dos são como mas pelo ao à sua ele",
}
_LANGUAGES_OF: dict[str, list[str]] = {}  # by function word
for _language, _listed in _FUNCTION_WORDS.items():
    for _word in _listed.split():
        _LANGUAGES_OF.setdefault(_word, []).append(_language)
_MIN_FUNCTION_WORDS = 3
_EXAMPLE_LENGTH = 60
_TOKEN_BATCH = 1024


class Check(StrEnum):
    meaning: str

    def __new__(cls, name: str, meaning: str) -> "Check":
        check = str.__new__(cls, name)
        check._value_ = name
        check.meaning = meaning
        return check

    EMPTY = "empty", "a text is empty"
    MISSING_VALUE = "missing_value", "a text such as nan or None, as programs write a missing value"
    LIST_AS_TEXT = "list_as_text", "a list of texts in brackets where one text is expected"
    CELLS_AS_TEXT = "cells_as_text", "a line of a text file that holds the cells of a table"
    NUMBER_AS_TEXT = (
        "number_as_text",
        "a number where a text is expected: a score, a label or an id",
    )
    TRUNCATED = "truncated", "a text has more sub-words than --max-length and is cut in training"
    CONTROL_CHARACTERS = "control_characters", "control characters other than white space"
    WRONG_ENCODING = "wrong_encoding", "UTF-8 that was read as Latin-1, or replacement characters"
    LANGUAGE_MIX = "language_mix", "a text in another language or script than most"
    REPEATED_TEXT = "repeated_text", "the text occurs before"
    DUPLICATE_PAIR = "duplicate_pair", "the row occurs before"
    SHARED_TEXT = (
        "shared_text",
        "a text occurs in an earlier row: if they meet in a batch, it is its own negative",
    )
    SWAPPED_COLUMNS = "swapped_columns", "the row occurs before with two columns exchanged"
    ANCHOR_IS_POSITIVE = "anchor_is_positive", "anchor and positive are the same"
    POSITIVE_IS_HARD_NEGATIVE = (
        "positive_is_hard_negative",
        "positive and hard negative are the same",
    )


@dataclass(frozen=True)
class Finding:
    """The number and share of the rows that a check found, and an example.

    The example is made of the row ``first_row`` of ``file``, counted from 1.
    """

    check: Check
    n_rows: int
    share: float
    first_row: int
    example: str
    file: str | None = None


class _CheckedRow(NamedTuple):
    """A row with its place: its number over all files, its number in its file, and the file."""

    number: int
    number_in_file: int
    file: str | None
    texts: Row


class _Tally:
    """Counts rows by what they hold, and keeps the first row of each kind."""

    def __init__(self) -> None:
        self.n_rows: Counter[Any] = Counter()
        self.first: dict[Any, _CheckedRow] = {}

    def add(self, what: Hashable, row: _CheckedRow) -> None:
        self.n_rows[what] += 1
        self.first.setdefault(what, row)


class Linter:
    """Count the rows that each check finds.

    A text of more than ``max_length`` sub-words counts as truncated; without ``count_tokens``,
    sub-words are not counted. ``position`` holds the file and number of the row that is being
    checked; without it, rows are numbered over all files. Checks of repetitions remember digests of
    the rows: about 340 bytes for each pair, and 60 for each single text of `prepare lint`.
    """

    def __init__(
        self,
        count_tokens: CountTokens | None,
        max_length: int,
        position: RowPosition | None = None,
    ) -> None:
        self.count_tokens = count_tokens
        self.max_length = max_length
        self.n_rows = 0
        self._position = position
        self._found = _Tally()  # by check
        self._spoken = _Tally()  # by the set of languages in a row

        # Digests of whole rows, of rows with two columns exchanged, and of single texts.
        self._seen: set[int] = set()
        self._exchanged: set[int] = set()
        self._texts: set[int] = set()
        self._pending: list[_CheckedRow] = []  # rows whose tokens are not yet counted
        self.files: list[Table] = []
        # What separates cells in the lines of a text file, or None if the lines have no cells.
        self._separator: str | None = None

    def open_file(self, table: Table) -> None:
        """Begin a file; ``lint_outcome`` will show how it is read, above the findings."""
        self.files.append(table)
        self._separator = None
        if table.is_text:
            rows = table.reading.grid.first_rows(SAMPLE_ROWS)
            self._separator = cells_in_text([line for (line,) in rows])

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Check each row, and yield it."""
        for row in rows:
            self.check(row)
            yield row

    def check(self, texts: Row) -> None:
        """Note the faults of a row; whether it is truncated is checked later, in batches."""
        self.n_rows += 1
        position = self._position or RowPosition(self.n_rows)
        row = _CheckedRow(self.n_rows, position.row, position.file, texts)
        languages = frozenset(filter(None, map(guess_language, texts)))
        if languages:
            self._spoken.add(languages, row)

        # A fault that several texts of a row have counts once.
        row_faults = set[Check]()
        for text in texts:
            row_faults |= _faults_of(text)
        for check in row_faults:
            self._found.add(check, row)
        if self._separator is not None and self._separator in texts[0]:
            self._found.add(Check.CELLS_AS_TEXT, row)
        if len(texts) > 1:
            self._check_pair(row)
        elif self.files:
            # Only `prepare lint` opens tables; other commands do not remember single texts.
            self._check_repeated(row)
        if self.count_tokens is not None:
            self._pending.append(row)
            if len(self._pending) == _TOKEN_BATCH:
                self._count_pending()

    def findings(self) -> list[Finding]:
        """Return a finding for each check that has found a row so far."""
        self._count_pending()
        self._find_mix()
        findings = []
        for check in Check:
            n_rows = self._found.n_rows[check]
            if not n_rows:
                continue
            first = self._found.first[check]
            example = _example(first.texts)
            share = n_rows / self.n_rows
            findings.append(
                Finding(check, n_rows, share, first.number_in_file, example, first.file)
            )
        return findings

    def _find_mix(self) -> None:
        """Note the rows with a language other than the most frequent one."""
        rows_by_language = Counter[str]()
        for spoken, n_rows in self._spoken.n_rows.items():
            for language in sorted(spoken):  # so that the choice between equal counts is fixed
                rows_by_language[language] += n_rows
        main = max(rows_by_language, key=rows_by_language.__getitem__, default=None)
        # The sets with another language than the main one.
        others = [spoken for spoken in self._spoken.n_rows if spoken - {main}]
        if others:
            n_rows = sum(self._spoken.n_rows[spoken] for spoken in others)
            self._found.n_rows[Check.LANGUAGE_MIX] = n_rows
            # The earliest row has the lowest number, which comes first in the tuples.
            first = min(self._spoken.first[spoken] for spoken in others)
            self._found.first[Check.LANGUAGE_MIX] = first

    def _check_repeated(self, row: _CheckedRow) -> None:
        digest = digest_keys([match_key(row.texts[0])])
        if digest in self._seen:
            self._found.add(Check.REPEATED_TEXT, row)
        self._seen.add(digest)

    def _check_pair(self, row: _CheckedRow) -> None:
        """Note the texts that a row repeats, within the row or from earlier rows."""
        note = self._found.add
        keys = list(map(match_key, row.texts))
        if keys[0] == keys[1]:
            note(Check.ANCHOR_IS_POSITIVE, row)
        if len(keys) > 2 and keys[1] == keys[2]:
            note(Check.POSITIVE_IS_HARD_NEGATIVE, row)

        # Rows are compared by match keys. A shared text must be exactly equal, since training
        # masks only exactly equal texts.
        digest = digest_keys(keys)
        text_digests = {digest_keys([text]) for text in row.texts}
        if digest in self._seen:
            note(Check.DUPLICATE_PAIR, row)
        elif digest in self._exchanged:
            note(Check.SWAPPED_COLUMNS, row)
        if text_digests & self._texts:
            note(Check.SHARED_TEXT, row)
        self._texts |= text_digests
        self._seen.add(digest)
        # A later row may be this row with anchor and positive exchanged, or positive and negative.
        self._exchanged.add(digest_keys([keys[1], keys[0], *keys[2:]]))
        if len(keys) > 2:
            self._exchanged.add(digest_keys([keys[0], keys[2], keys[1]]))

    def _count_pending(self) -> None:
        """Count the sub-words in the pending rows, and note the rows that training would cut."""
        rows = self._pending
        self._pending = []
        if not rows or self.count_tokens is None:
            return
        texts = list(chain.from_iterable(row.texts for row in rows))
        lengths = iter(self.count_tokens(texts))
        for row in rows:
            row_lengths = islice(lengths, len(row.texts))
            if max(row_lengths) > self.max_length:
                self._found.add(Check.TRUNCATED, row)


def _faults_of(text: str) -> set[Check]:
    """Return the faults that show in a text alone, without other texts."""
    text_faults = set[Check]()
    if not visible(text).strip():
        text_faults.add(Check.EMPTY)
    elif is_missing(text):
        text_faults.add(Check.MISSING_VALUE)
    if list_items(text) is not None:
        text_faults.add(Check.LIST_AS_TEXT)
    if to_number(text) is not None:
        text_faults.add(Check.NUMBER_AS_TEXT)
    if has_control_characters(text):
        text_faults.add(Check.CONTROL_CHARACTERS)
    if not text.isascii() and _MOJIBAKE.search(text):
        text_faults.add(Check.WRONG_ENCODING)
    return text_faults


def _example(row: Row) -> str:
    """Return the start of a row as one printable line."""
    text = ""
    for character in " | ".join(row):
        # The escape of a character is its `repr` without the quotes.
        text += character if character.isprintable() else repr(character)[1:-1]
    if len(text) > _EXAMPLE_LENGTH:
        return text[: _EXAMPLE_LENGTH - 1] + "…"
    return text


def guess_language(text: str) -> str | None:
    """Return a language such as ``English``, a script such as ``Cyrillic``, or None if unsure.

    A text is in a script other than Latin if most of its letters are. It is in a language if it has
    three function words of the language, and twice as many as of any other language.
    """
    if not text.isascii():
        scripts = Counter(_script(character) for character in text if character.isalpha())
        for script, count in scripts.items():
            if script == "Latin" or 2 * count <= scripts.total():
                continue
            # Ideographs with kana among them are Japanese.
            if script == "CJK" and any("\u3041" <= letter <= "\u30ff" for letter in text):
                return "Japanese"
            return script
    known_words = _LANGUAGES_OF.keys() & words(text)
    n_words = Counter(dict.fromkeys(_FUNCTION_WORDS, 0))  # by language
    for word in known_words:
        n_words.update(_LANGUAGES_OF[word])
    (best, n_best), (_, n_next) = n_words.most_common(2)
    is_sure = n_best >= _MIN_FUNCTION_WORDS and n_best >= 2 * n_next
    return best if is_sure else None


@lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    """Return the script of a letter by its Unicode name; ``CJK`` stands for ideographs and kana."""
    name = unicodedata.name(letter, "").partition(" ")[0]
    if name in ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC"):
        return "CJK"
    return name.capitalize() or "Unknown"


def lint_files(
    files: Sequence[InputPath],
    options: LintFileOptions,
    count_tokens: CountTokens | None,
    progress: Progress,
) -> Linter:
    """Check every row of the files; return the linter, which holds what it has found."""
    position = RowPosition()
    linter = Linter(count_tokens, options.max_length, position)
    roles = (*POSITIONAL, "text", "label")
    given = Given.of(options, parse_columns(options.columns, roles), roles=roles, progress=progress)
    given = replace(given, never_asks=True)
    with progress.task("rows checked") as task:
        for source in files:
            table = Table(source, Job.LINT, given)
            linter.open_file(table)
            for row in training_rows(table, position):
                linter.check(row)
                task.advance()
    if not linter.n_rows:
        raise DataError(f"{', '.join(map(str, files))}: no rows")
    return linter


def training_rows(table: Table, position: RowPosition) -> Iterator[Row]:
    """Yield the rows that training would read.

    If cells hold lists of texts, a row of the table gives all rows that training makes of it. From
    a table without lists, rows that training would skip for their label are yielded as well.
    Columns that no job recognises are taken as they are. ``position`` follows the rows of the
    table.
    """
    roles = tuple(table.reading.roles.columns)
    places = table.reading.places(*roles)
    recognised = {*POSITIONAL, "text", SET}.intersection(roles)
    if recognised and any(map(table.is_list, places)):
        yield from (row for _, row in iter_training_rows(table, position=position))
        return
    position.open(table.name)
    for _, cells in table.rows(*roles):
        position.row += 1
        yield tuple(map(cell_text, cells))


# The commands that stand for each job.
_JOBS = {
    Job.ROWS: "train --mode sup, prepare pairs",
    Job.TEXTS: "encode, search, augment",
    Job.SCORED: "eval sts --pair-file, --dev-file",
    Job.NLI: "prepare nli, train --objective sbert",
    Job.LABELLED: "eval transfer --task-file",
}


def _reading_facts(table: Table) -> dict[str, Any]:
    """Return how a table is read: its header, its columns with their kinds, and its first rows.

    The entry ``jobs`` has each job that can use the table, with the columns that the job takes, or
    with the question that it asks the user.
    """
    grid = table.reading.grid
    header = "row 1" if grid.is_named else "none"
    if table.is_text:
        header = "none: plain text, a line is a text"
    column_facts = []
    for name, kind in zip(grid.names, grid.kinds, strict=True):
        column_facts.append({"column": name, "kind": kind.value})
    jobs = []
    for job, commands in _JOBS.items():
        taken = _taken(table, job)
        if taken is not None:
            jobs.append({"commands": commands, "takes": taken})
    rows = grid.first_rows()
    facts: dict[str, Any] = {"file": table.name, "header": header, "columns": column_facts}
    return facts | {"jobs": jobs, "rows": rows}


def _taken(table: Table, job: Job) -> str | None:
    """Say which columns a job takes, or what the user has to tell it about the columns.

    The result is None if the table does not suit the job.
    """
    grid = table.reading.grid
    if table.is_text:
        return "each line" if job is Job.TEXTS else None
    try:
        roles = decide(grid, job, Given())
    except DataError as asked:
        what = asked.message.removeprefix(f"{grid.source}: ").partition("\n")[0]
        # Any table may hold rows or texts; for other jobs, an error means that it does not suit.
        return f"asks: {what}" if job in (Job.ROWS, Job.TEXTS) else None
    line, _ = told_line(grid, roles)
    return line.removeprefix(f"{grid.source}: ")


def faults(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings for which ``--strict`` fails: all but shared and repeated texts."""
    accepted = (Check.SHARED_TEXT, Check.REPEATED_TEXT)
    return [finding for finding in findings if finding.check not in accepted]


def list_findings(findings: Iterable[Finding]) -> str:
    return ", ".join(f"{finding.check} {finding.n_rows:,}" for finding in findings)


def lint_outcome(sources: Sequence[InputPath], linter: Linter) -> Outcome:
    """Return how each file is read, and then what the checks find in it."""
    readings = [_reading_facts(table) for table in linter.files]
    found_by_check = {finding.check: asdict(finding) for finding in linter.findings()}
    nothing_found = {"n_rows": 0, "share": 0.0, "first_row": None, "example": None, "file": None}
    rows = []
    for check in Check:
        if linter.count_tokens or check is not Check.TRUNCATED:
            description = {"check": check.replace("_", " "), "meaning": check.meaning}
            rows.append(found_by_check.get(check, nothing_found) | description)
    shown = [
        Column("check"),
        Column("n_rows", "rows", "count"),
        Column("share", "%", "score"),
        Column("first_row", "first", "count"),
        *columns("example", "meaning"),
    ]
    if len(sources) > 1:
        shown[3:3] = columns("file")  # just before "first", which is counted within that file
    reports = list(chain.from_iterable(map(_reading_reports, readings)))
    reports.append(Report(f"Lint of {linter.n_rows:,} rows", shown, rows))
    payload = {
        "inputs": list(sources),
        "n_rows": linter.n_rows,
        "findings": list(found_by_check.values()),
        "readings": readings,
    }
    return Outcome(reports, payload)


def _reading_reports(facts: dict[str, Any]) -> list[Report]:
    """Return a table of the columns of a file, and a table of what each job would take."""
    # The table has a row for each column of the file, with the first cells of this column.
    row_names = [f"row {n}" for n in range(1, len(facts["rows"]) + 1)]
    rows = []
    for place, column in enumerate(facts["columns"]):
        cells = [shorten(row[place], 40) for row in facts["rows"]]
        named_cells = dict(zip(row_names, cells, strict=True))
        rows.append({"number": str(place + 1), **column, **named_cells})
    shown = columns("number", "column", "kind", *row_names, number="#")
    reports = [Report(f"{facts['file']} (header: {facts['header']})", shown, rows)]
    if facts["jobs"]:
        taken = columns("commands", "takes")
        reports.append(Report("What the commands take", taken, facts["jobs"]))
    return reports
