"""Roles of table columns: our names, the names in common files, and names given by the user."""

import csv
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from simcse_cli.data.text import words
from simcse_cli.errors import DataError, UsageError

V = TypeVar("V")

POSITIONAL = ("anchor", "positive", "hard_negative")
"""Columns of a table without a header, in order."""

COLUMN_ALIASES: dict[str, tuple[str, ...]] = {
    "anchor": (
        *("sent0", "sentence1", "sentence_a", "premise", "question1", "query", "text", "sentence"),
        *("source", "src", "text1", "text_a", "context", "#1 string", "normal_sentence"),
    ),
    "positive": (
        *("sent1", "sentence2", "sentence_b", "hypothesis", "question2", "entailment", "paraphrase"),
        *("target", "tgt", "text2", "text_b", "pos", "response", "answer", "passage"),
        *("#2 string", "simple_sentence"),
    ),
    "hard_negative": ("hard_neg", "sent2", "sentence3", "negative", "contradiction", "neg", "negatives"),
    "text": ("sentence", "line", "content", "caption", "document", "anchor", "sent0"),
    "label": (
        *("gold_label", "labels", "class", "entailment_judgment", "is_duplicate", "quality"),
        *("alignment_label", "category", "intent"),
    ),
    "score": ("similarity_score", "relatedness_score", "similarity", "rating", "gold"),
}
COLUMN_ALIASES["left"] = ("anchor", *COLUMN_ALIASES["anchor"])
COLUMN_ALIASES["right"] = ("positive", *COLUMN_ALIASES["positive"])
"""Names of columns in common files, by our name for them; earlier ones take precedence."""


class Record(dict[str, V], Generic[V]):
    """The columns of a row by name, and the place of the row: file and line.

    For CSV, where a quoted cell may span lines, the line is the last one of the row; for parquet and Hub datasets it is
    the row, from 1. A column that the row does not have, possible in JSON Lines, is a DataError.

    Attributes:
        head: a function that returns the first rows of the table, if they can be read again.
        columns_place: the place of the names of the columns: the row in JSON Lines, else the table.
    """

    def __init__(
        self,
        values: Iterable[tuple[str, V]],
        table: str,
        number: int,
        *,
        has_names: bool = False,
        head: Callable[[], Sequence[Mapping[str, Any]]] = tuple,
    ) -> None:
        super().__init__(values)
        self._table, self._number, self.head = table, number, head
        self.columns_place = self.place if has_names else table

    @property
    def place(self) -> str:
        return f"{self._table}, line {self._number}"

    def __missing__(self, column: str) -> V:
        what = f"{self.place}: no column {column}; there are {', '.join(self)}"
        raise DataError(what, hint="give every row the columns of the first")


def find_column(record: Mapping[str, Any], column: str) -> str | None:
    """Return the name of ``column`` in a row: its own name, else its first alias, in any case."""
    if column in record:
        return column
    by_lower = {name.strip().lower(): name for name in reversed(list(record))}
    for name in (column.lower(), *COLUMN_ALIASES.get(column, ())):
        if name in by_lower:
            return by_lower[name]
    return None


def has_header(given: Iterable[str | None]) -> bool | None:
    """Tell from the requested columns whether a CSV or TSV file has a header; None if they do not decide it."""
    names = [column_name(name) for name in given if name]
    if names and all(name.isdigit() for name in names):
        return False
    return None if set(names) <= set(POSITIONAL) else True


def column_name(text: str) -> str:
    """Return the column of ``NAME``, or of its role and its name as ``--columns`` takes them, ``text=NAME``."""
    return re.sub("^(text|anchor)=", "", text)


def parse_columns(text: str | None, roles: Sequence[str], option: str = "--columns") -> dict[str, str]:
    """Parse ``anchor=Question,positive=Answer``, or ``Question,Answer`` in the order of the roles; empty for None."""
    try:
        parts = [] if text is None else [part.strip() for part in next(csv.reader([text]), [])]
    except csv.Error:  # a line end without quotes
        raise UsageError(f"{text!r} is no list of columns", option=option) from None
    if text is not None and not any("=" in part for part in parts) and 0 < len(parts) <= len(roles):
        parts = [f"{role}={part}" for role, part in zip(roles, parts, strict=False)]
    found: dict[str, str] = {}
    for part in parts:
        role, _, name = (side.strip() for side in part.partition("="))
        if role in found:
            raise UsageError(f"{role} is named twice in {text!r}", option=option)
        if role not in roles or not name:
            wanted = ",".join(f"{each}=NAME" for each in roles)
            near = get_close_matches(role, roles, n=1)
            what = f"did you mean {near[0]}={name or 'NAME'}?" if near else f"need {wanted}"
            raise UsageError(f"{part!r}; {what}", option=option)
        found[role] = name
    return found


def resolve_columns(
    record: Mapping[str, Any],
    columns: Sequence[str],
    place: str,
    given: Mapping[str, str] | None = None,
    option: str = "--columns",
) -> tuple[str, ...]:
    """Return the names of ``columns`` in a row: those given by the user, else our own or usual ones."""
    names = {column: (given or {}).get(column, column) for column in columns}
    found = {column: find_column(record, name) for column, name in names.items()}
    missing = [column for column, name in found.items() if name is None]
    if missing:
        wrong = [names[column] for column in missing if names[column] != column]
        what = f"no column {', '.join(wrong)}" if wrong else f"missing: {', '.join(missing)}"
        raise DataError(
            f"{place}: the columns are {', '.join(record)}; {what}",
            hint=columns_hint(record, columns, option),
        )
    return tuple(name for name in found.values() if name is not None)


def columns_hint(
    record: Mapping[str, Any], columns: Sequence[str], option: str = "--columns", *, is_optional: bool = False
) -> str:
    """Return a hint with an option that assigns the columns of a table; a positive may be optional."""
    chosen = suggest_columns(record, columns)
    if columns == POSITIONAL[:2] and chosen["positive"] == "NAME" != chosen["anchor"] and is_optional:
        chosen, columns = {"anchor": chosen["anchor"]}, columns[:1]
    if len(record) < len(columns):
        return f"give a table with {len(columns)} columns: {', '.join(columns)}"
    unlike = [column for column, name in chosen.items() if name == "NAME"]
    chosen |= zip(unlike, [name for name in record if name not in chosen.values()], strict=False)
    say = f"no column looks like {', '.join(unlike)}; to take one anyway" if unlike else "say which is which"
    text = ",".join(f"{column}={name}" for column, name in chosen.items())
    numbers = ",".join(f"{column}={number}" for number, column in enumerate(columns, start=1))
    return f"{say}: {option} {shlex.quote(text)} (in a table without a header: {numbers})"


def suggest_columns(record: Mapping[str, Any], columns: Sequence[str]) -> dict[str, str]:
    """Return the columns of a table that seem to be these, by their names and the first rows; ``NAME`` if none does.

    A usual name counts, except for the general ones of any text. Texts are the columns with the longest texts, in the
    order of the table; a score is a number, rather not a running one, and a label rather repeats.
    """
    rows = (record.head() if isinstance(record, Record) else ()) or [record]
    chosen = {column: find_column(record, column) or "" for column in columns}
    if "anchor" in chosen and (question := find_column(record, "question")):
        chosen["anchor"] = question
    for column, name in chosen.items():
        if name.strip().lower() in ("text", *COLUMN_ALIASES["text"]):
            chosen[column] = ""
    free = [name for name in record if name not in chosen.values()]
    values = {name: [_shown(row[name]) for row in rows if row.get(name)] for name in free}
    texts = {name: own for name, own in values.items() if is_text_column(name, own)}
    length = {name: sum(map(len, own)) / len(own) for name, own in texts.items()}
    wanted = [column for column, name in chosen.items() if not name and column not in ("score", "label")]
    longest = sorted(length, key=lambda name: length[name], reverse=True)[: len(wanted)]
    chosen.update(zip(wanted, sorted(longest, key=free.index), strict=False))
    others = [each for each in reversed(free) if values[each] and each not in length]
    others = [name for name in others if not _ID_NAME.search(name)]
    numbers = [name for name in others if all(map(is_number, values[name]))]
    for column, fitting, repeats in (("score", numbers, 0), ("label", others, 1)):
        if chosen.get(column) == "":
            fitting.sort(key=lambda name: _is_running(values[name]) + repeats * len(set(values[name])))
            chosen[column] = next(iter(fitting), "")
    return {column: name or "NAME" for column, name in chosen.items()}


def _shown(value: Any) -> str:
    return str(value[0] if isinstance(value, list) else value).strip()


def is_text_column(name: str, values: Sequence[str]) -> bool:
    """Tell whether values are texts: most have several words, or they are different words and not called an id."""
    n_words = [sum(not any(map(str.isdigit, word)) for word in words(value)) for value in values]
    if 2 * sum(n > 1 for n in n_words) > len(values):
        return "://" not in values[0]
    is_word = all(value.isalpha() and len(value) > 3 and not value.isupper() for value in values)
    return bool(values) and is_word and len(set(values)) == len(values) and not _ID_NAME.search(name)


def _is_running(values: Sequence[str]) -> bool:
    return all(map(str.isdigit, values)) and len({int(each) - n for n, each in enumerate(values)}) == 1


_ID_NAME = re.compile(r"(^|[\W_]|(?<=[a-z])(?=I))(id|nr|no|num|number|key|code|sku|uuid|index)$", re.IGNORECASE)
_NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)(e[+-]?\d+)?\s*%?\s*", re.IGNORECASE)


def is_number(text: str) -> bool:
    """Tell whether a text is a number alone: a score, a label or an id where sentences are expected."""
    return _NUMBER.fullmatch(text) is not None
