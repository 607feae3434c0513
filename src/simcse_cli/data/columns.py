"""What tables call their columns, and how a row is asked for one under any of its usual names."""

from collections.abc import Sequence

from simcse_cli.errors import DataError

Record = dict[str, str]

POSITIONAL = ("anchor", "positive", "hard_negative")
"""Columns of a table without a header, in order."""

_SENTENCE_NAMES = ("text", "sentence", "line", "content", "caption", "document", "anchor", "sent0")
ALIASES: dict[str, tuple[str, ...]] = {
    "anchor": (
        *("sent0", "sentence1", "sentence_a", "premise", "question1", "query", "text", "sentence"),
        *("source", "src", "text1", "text_a", "context"),
    ),
    "positive": (
        *("sent1", "sentence2", "sentence_b", "hypothesis", "question2", "entailment", "paraphrase"),
        *("target", "tgt", "text2", "text_b"),
    ),
    "hard_negative": ("hard_neg", "sent2", "sentence3", "negative", "contradiction"),
    "text": _SENTENCE_NAMES[1:],
    "label": ("gold_label", "labels", "class", "entailment_judgment"),
}
"""Column names of common files, by the name used here; earlier ones win."""

_OTHER_NAMES = (
    *("id", "score", "is_duplicate", "quality", "image_id", "image"),
    *("normal_sentence", "simple_sentence"),
)
_ALIAS_NAMES = frozenset(name for names in ALIASES.values() for name in names)
HEADER_NAMES = _ALIAS_NAMES | frozenset(ALIASES) | frozenset(_OTHER_NAMES)
"""A first row with one of these is a header."""


def resolve_columns(record: Record, columns: Sequence[str], place: str) -> tuple[str, ...]:
    """Return the names under which a row holds ``columns``.

    Raises:
        DataError: one of them is missing under any of its names; says which columns there are.
    """
    found = tuple(find_column(record, column) for column in columns)
    missing = [column for column, name in zip(columns, found, strict=True) if name is None]
    if missing:
        raise DataError(
            f"{place}: the columns are {', '.join(record)}; missing is {', '.join(missing)}",
            hint="rename the columns, or build the file with `simcse prepare`; see `simcse prepare --help`",
        )
    return tuple(name for name in found if name is not None)


def find_column(record: Record, column: str) -> str | None:
    """Return the name under which a row holds ``column``: its own, else its first alias, in any case."""
    by_lower = {name.strip().lower(): name for name in reversed(list(record))}
    for name in (column.lower(), *ALIASES.get(column, ())):
        if name in by_lower:
            return by_lower[name]
    return None
