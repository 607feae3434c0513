"""Decide which columns of a table a job reads: by the user, by names or by content, or ask."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, combinations

from simcse_cli.data import names
from simcse_cli.data.facts import ColumnFacts, Facts, by_name
from simcse_cli.data.given import Given
from simcse_cli.data.grid import Grid
from simcse_cli.data.jobs import Job
from simcse_cli.data.judges import (
    Roles,
    ask_with_labels,
    filter_pairs,
    find_label,
    find_nli_label,
    find_score,
)
from simcse_cli.data.kinds import Kind
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.question import MOST_CHOICES, Choice, UndecidedError, question
from simcse_cli.data.show import shorten
from simcse_cli.data.sides import SET, Found, couples, find_sides, find_text
from simcse_cli.errors import DataError, UsageError

_MOST_UNUSED = 6


def decide(grid: Grid, job: Job, given: Given) -> Roles:
    """Return the columns of a table for a job.

    Raises:
        DataError: the columns are not certain; it shows the first rows, and a command for each
            choice.
    """
    facts = Facts(grid, given)
    try:
        return _decide(facts, job)
    except UndecidedError as case:
        if not grid.sample:  # a header at most
            raise DataError(f"{grid.source} has no rows") from None
        raise question(facts, case) from None


def _decide(facts: Facts, job: Job) -> Roles:
    """Return the columns of a table for a job, or raise UndecidedError."""
    _require_named(facts)
    if job is Job.ROWS:
        try:
            found = find_sides(facts, job)
        except UndecidedError as case:
            raise ask_with_labels(facts, case) from case
        # All texts of a set are positives; in other tables, labels may tell which rows are pairs.
        if SET not in found:
            return filter_pairs(facts, found)
    elif job is Job.LINT:
        found = _lint_columns(facts)
    elif job.is_single:
        found = _text_columns(facts, job)
    elif job is Job.LABELLED:
        found = _labelled_columns(facts)
    else:
        found = find_sides(facts, job)
        if job is Job.SCORED:
            found["score"] = [find_score(facts, found)]
        elif job is Job.NLI:
            found["label"] = [find_nli_label(facts, found)]
    # --keep-label is for pairs without scores and classes; lint checks all rows in any case.
    if facts.given.keep_labels and job is not Job.LINT:
        are_pairs = set(job.sides) <= found.keys()
        if not (job.keeps_labels and are_pairs):
            what = "has no use here, only for pairs without scores and classes"
            raise UsageError(what, option="--keep-label")
        return filter_pairs(facts, found)
    return Roles.of(found)


# ------------------------------------------------------------------ what the user named
def _require_named(facts: Facts) -> None:
    """Raise UndecidedError if a column that the user named is missing."""
    for role, name in facts.given.columns.items():
        # If no column is named positive, ``positive=positive`` asks for one with a usual name.
        asks_for_usual_names = name == role and role != "text" and facts.grid.is_named
        if role in facts.named or asks_for_usual_names:
            continue
        # Keep the other columns that the user named, and offer every free column for this role.
        free = facts.all_but(facts.named.values())
        choices = [Choice({**facts.named, role: column}) for column in free]
        raise UndecidedError(_missing_column_text(facts, name), choices[:MOST_CHOICES])


def _missing_column_text(facts: Facts, name: str) -> str:
    if not facts.grid.is_named:
        return f"no column {name}; row 1 is no header"
    shown = ", ".join(shorten(title, 40) for title in facts.grid.names[:20])
    return f"no column {name}; there are {shown}"


# ------------------------------------------------------------------ single texts
def _text_columns(facts: Facts, job: Job) -> Found:
    """Return the columns of the template, if there is one, or else the column of single texts.

    ``Job.VIEWS`` can also read pairs. It gets the columns of both sides if the user named a
    positive, or if the user named no text and the table has columns anchor and positive.
    """
    template = facts.given.template
    if template is not None:
        return {"text": [_template_column(facts, name) for name in template.columns]}
    text = facts.named.get("text", facts.named.get("anchor"))
    # With a positive, the anchor is one side of a pair.
    if text is not None and "positive" not in facts.named:
        return {"text": [text]}
    if job is Job.VIEWS and _has_views(facts):
        return find_sides(facts, job)
    if facts.given.joins_titles and facts.grid.has_titles:
        return {"text": [_template_column(facts, name) for name in ("title", "text")]}
    return {"text": [find_text(facts, facts.columns)]}


def _template_column(facts: Facts, name: str) -> ColumnFacts:
    column = facts.find(name)
    if column is None:
        raise UndecidedError(_missing_column_text(facts, name))
    return column


def _has_views(facts: Facts) -> bool:
    """Tell whether the user named a positive, or the table names columns anchor and positive."""
    if "positive" in facts.named:
        return True
    return facts.grid.is_named and None not in map(facts.find, POSITIONAL[:2])


def _labelled_columns(facts: Facts) -> Found:
    """Return the columns of texts or of pairs, and the column of their classes."""
    found: Found
    if "text" in facts.named:
        found = {"text": [facts.named["text"]]}
    elif {"left", "right"} <= facts.named.keys():
        found = find_sides(facts, Job.LABELLED)
    else:
        return _find_labelled_columns(facts)
    found["label"] = [find_label(facts, found)]
    return found


def _find_labelled_columns(facts: Facts) -> Found:
    """Return the columns of pairs with classes, or of single texts with classes.

    A table holds pairs if its columns have strong names for both sides or names that go together.
    Two columns of texts under other names may be a pair, or a title and its text: UndecidedError
    asks the user.
    """
    fitting = facts.fitting(facts.named.values())
    texts = [
        column for column in fitting if column.name_allows_texts and column.kind is not Kind.WORD
    ]
    has_sides = bool(facts.strong("anchor") and facts.strong("positive"))
    are_pairs = has_sides or bool(couples(combinations(fitting, 2)))
    if not are_pairs and len(texts) != 2:
        known_label = _label_if_known(facts)
        text = find_text(facts, facts.all_but([*facts.named.values(), known_label]))
        return {"text": [text], "label": [find_label(facts, {"text": [text]})]}

    found = find_sides(facts, Job.LABELLED)
    found.pop("hard_negative", None)
    label = find_label(facts, found)
    # A topic may be of one text or of the pair; only the user can tell.
    if not are_pairs or (has_sides and label.is_topic):
        raise _text_or_pair(found, label)
    return found | {"label": [label]}


def _text_or_pair(found: Found, label: ColumnFacts) -> UndecidedError:
    (left,), (right,) = (found[side] for side in Job.LABELLED.sides)
    choices = (
        Choice({"text": left, "label": label}, "texts"),
        Choice({"text": right, "label": label}, "texts"),
        Choice({"left": left, "right": right, "label": label}, "pairs"),
    )
    return UndecidedError(f"{label} may be of {left}, of {right} or of the pair", choices)


def _label_if_known(facts: Facts) -> ColumnFacts | None:
    """Return the column of classes if the user named one or if one has a usual name."""
    if "label" in facts.named:
        return facts.named["label"]
    return next(iter(by_name(facts.columns, *names.LABELS)), None)


# ------------------------------------------------------------------ lint
def _lint_columns(facts: Facts) -> Found:
    """Return the columns of training rows, else of single texts, else all that may hold texts."""
    if facts.named:
        found: Found = {role: [facts.named[role]] for role in facts.named if role in POSITIONAL}
        if found:
            return found
        # Without a role of training rows, the first column that the user named holds the texts.
        return {"text": list(facts.named.values())[:1]}
    # Training rows have two sides, anchor and positive, and perhaps hard negatives.
    with suppress(UndecidedError):
        return find_sides(facts, Job.LINT)
    with suppress(UndecidedError):
        return {"text": [find_text(facts, facts.columns)]}
    # The columns that can hold texts by their content, or all columns if none can.
    texts = facts.fitting() or facts.columns
    return {f"column {column.at + 1}": [column] for column in texts}


# ------------------------------------------------------------------ the line
def told_line(grid: Grid, roles: Roles, beside: Sequence[str | None] = ()) -> tuple[str, bool]:
    """Return a line on how a table was read, and whether it mentions columns that are not used.

    Columns in ``beside``, named or numbered, are used for something else, such as ids. Empty
    columns without a name are not mentioned.
    """
    used_places = set(chain.from_iterable(roles.columns.values()))
    used_numbers = set(beside) - set(grid.names)  # a number that is also a name means the name
    unused = []
    for at, name in enumerate(grid.names):
        # A column without a name in the header is called ``columnN``.
        is_blank = grid.kinds[at] is Kind.EMPTY and name.startswith("column")
        is_used = at in used_places or name in beside or str(at + 1) in used_numbers
        if not is_used and not is_blank:
            unused.append(name)
    used_as = []
    prefix = "" if grid.is_named else "column "
    for role, places in roles.columns.items():
        # The texts of several columns are joined; several hard negatives stay apart.
        joint = " + " if role == "text" else ", "
        used_as.append(f"{role} = {prefix}{joint.join(grid.names_at(places))}")
    line = f"{grid.source}: {', '.join(used_as)}"
    if unused:
        line += f"; not used: {', '.join(unused[:_MOST_UNUSED])}"
    if len(unused) > _MOST_UNUSED:
        line += f" and {len(unused) - _MOST_UNUSED} more"
    return line, bool(unused)
