"""Roles of table columns: our names, the names in common files, and names given by the user."""

import csv
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from simcse_cli.errors import DataError, UsageError

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
        *(
            "gold_label",
            "labels",
            "class",
            "entailment_judgment",
            "is_duplicate",
            "quality",
            "alignment_label",
        ),
        *("category", "intent"),
    ),
    "score": ("similarity_score", "relatedness_score", "similarity", "rating", "gold"),
}
COLUMN_ALIASES["left"] = ("anchor", *COLUMN_ALIASES["anchor"])
COLUMN_ALIASES["right"] = ("positive", *COLUMN_ALIASES["positive"])
"""Names of columns in common files, by our name for them; earlier ones take precedence."""


def find_column(record: Mapping[str, Any], column: str) -> str | None:
    """Return the name of ``column`` in a row: its own name, else its first alias, in any case."""
    by_lower = {name.strip().lower(): name for name in reversed(list(record))}
    for name in (column.lower(), *COLUMN_ALIASES.get(column, ())):
        if name in by_lower:
            return by_lower[name]
    return None


def has_header(given: Iterable[str | None]) -> bool | None:
    """Tell from the requested columns whether a CSV or TSV file has a header; None if they do not decide it."""
    names = [name for name in given if name]
    if names and all(name.isdigit() for name in names):
        return False
    return None if set(names) <= set(POSITIONAL) else True


def parse_columns(text: str | None, roles: Sequence[str], option: str = "--columns") -> dict[str, str]:
    """Parse ``anchor=Question,positive=Answer`` into a mapping from role to column; empty for None.

    Names without a role are assigned to the roles in order, so ``Question,Answer`` means the same for a pair.
    """
    parts = [] if text is None else [part.strip() for part in next(csv.reader([text]), [])]
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
            what = (
                f"{part!r}; did you mean {near[0]}={name or 'NAME'}?" if near else f"{part!r}; need {wanted}"
            )
            raise UsageError(what, option=option)
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


def columns_hint(record: Mapping[str, Any], columns: Sequence[str], option: str = "--columns") -> str:
    """Return a hint with an option that assigns the columns of a table; its first columns serve as placeholders."""
    free = [name for name in record if all(find_column({name: ""}, column) is None for column in columns)]
    chosen = {column: find_column(record, column) for column in columns}
    for column in columns:
        chosen[column] = chosen[column] or (free.pop(0) if free else "NAME")
    text = ",".join(f"{column}={name}" for column, name in chosen.items())
    numbers = ",".join(f"{column}={number}" for number, column in enumerate(columns, start=1))
    return f"say which is which: {option} {shlex.quote(text)} (in a table without a header: {numbers})"


_NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)


def is_number(text: str) -> bool:
    """Tell whether a text is a number alone: a score, a label or an id where sentences are expected."""
    return _NUMBER.fullmatch(text) is not None
