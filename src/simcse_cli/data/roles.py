"""Decide what the columns of a table are for a job: by the user, by names, by content, or ask."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from simcse_cli.data import names
from simcse_cli.data.facts import TEXT_KINDS, Facts
from simcse_cli.data.given import Given
from simcse_cli.data.grid import Grid
from simcse_cli.data.jobs import Job
from simcse_cli.data.judges import (
    Places,
    Roles,
    filter_pairs,
    find_label,
    find_nli_label,
    find_score,
)
from simcse_cli.data.kinds import Kind
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.question import MOST_CHOICES, Choice, UndecidedError, question
from simcse_cli.data.show import shorten
from simcse_cli.data.sides import SET, find_sides, find_text

_MOST_UNUSED = 6


def decide(grid: Grid, job: Job, given: Given) -> Roles:
    """Return the columns of a table for a job.

    Raises:
        DataError: with the first rows and a command for each choice, where they are not certain.
    """
    try:
        return _decide(Facts(grid, given), job)
    except UndecidedError as case:
        raise question(grid, given, case) from None


def _decide(facts: Facts, job: Job) -> Roles:
    named = _named(facts)
    if job is Job.LINT:
        return _of_lint(facts, named)
    if job.is_single:
        return _of_texts(facts, job, named)
    if job is Job.LABELLED:
        return _of_labelled(facts, named)
    found: Places = find_sides(facts, job, named)
    if job is Job.ROWS and SET not in found:
        return filter_pairs(facts, found, named)
    if job is Job.SCORED:
        return _and_label(found, "score", find_score(facts, found, named))
    if job is Job.NLI:
        return _and_label(found, "label", find_nli_label(facts, found, named))
    return Roles(found)


def _and_label(found: Places, role: str, at: int) -> Roles:
    return Roles({**found, role: (at,)})


# ------------------------------------------------------------------ what the user named
def _named(facts: Facts) -> dict[str, int]:
    """Return the columns that the user gave by name or number."""
    found: dict[str, int] = {}
    for role, name in facts.given.columns.items():
        at = facts.find(name)
        asks_for_usual_names = name == role != "text" and facts.grid.is_named
        if at is not None:
            found[role] = at
        elif not asks_for_usual_names:
            raise _no_column(facts, role, name)
    return found


def _no_column(facts: Facts, role: str, name: str) -> UndecidedError:
    rest = {}
    for own, text in facts.given.columns.items():
        at = facts.find(text)
        if own != role and at is not None:
            rest[own] = at
    choices = [Choice({**rest, role: at}) for at in facts.every if at not in rest.values()]
    return UndecidedError(_without_column(facts, name), choices[:MOST_CHOICES])


def _without_column(facts: Facts, name: str) -> str:
    if not facts.grid.is_named:
        return f"no column {name}; row 1 is no header"
    shown = ", ".join(shorten(each, 40) for each in facts.grid.names[:20])
    return f"no column {name}; there are {shown}"


# ------------------------------------------------------------------ single texts
def _of_texts(facts: Facts, job: Job, named: Mapping[str, int]) -> Roles:
    template = facts.given.template
    if template is not None:
        return Roles({"text": tuple(_of_template(facts, name) for name in template.columns)})
    at = named.get("text", named.get("anchor"))
    if at is not None and "positive" not in named:
        return Roles({"text": (at,)})
    if job is Job.VIEWS and _has_views(facts, named):
        return Roles(find_sides(facts, job, named))
    return Roles({"text": (find_text(facts, facts.every),)})


def _of_template(facts: Facts, name: str) -> int:
    at = facts.find(name)
    if at is None:
        raise UndecidedError(_without_column(facts, name))
    return at


def _has_views(facts: Facts, named: Mapping[str, int]) -> bool:
    if "positive" in named:
        return True
    return facts.grid.is_named and None not in map(facts.find, POSITIONAL[:2])


def _of_labelled(facts: Facts, named: Mapping[str, int]) -> Roles:
    """Return the columns of classes, and of the texts or pairs that they are of."""
    if "text" in named:
        found: Places = {"text": (named["text"],)}
        return _and_label(found, "label", find_label(facts, found, named))
    if {"left", "right"} <= named.keys():
        found = find_sides(facts, Job.LABELLED, named)
        return _and_label(found, "label", find_label(facts, found, named))

    # Pairs have strong names on both sides, names that go together, or two columns of texts.
    free = [at for at in facts.every if at not in named.values()]
    has_sides = bool(facts.strong("anchor") and facts.strong("positive"))
    fitting = [at for at in free if facts.fits(at)]
    has_couple = any(facts.are_couple(*pair) for pair in combinations(fitting, 2))
    if not has_sides and not has_couple and len(facts.left_over(TEXT_KINDS, free)) != 2:
        label = _label_if_known(facts, named)
        found = {"text": (find_text(facts, [at for at in free if at != label]),)}
        return _and_label(found, "label", find_label(facts, found, named))

    sides = find_sides(facts, Job.LABELLED, named)
    found = {side: sides[side] for side in Job.LABELLED.sides}
    label = find_label(facts, found, named)
    if has_sides and facts.names[label] in (*names.TOPICS, *names.DESCRIBING):
        raise _of_text_or_pair(facts, found, label)
    return _and_label(found, "label", label)


def _of_text_or_pair(facts: Facts, found: Places, label: int) -> UndecidedError:
    (left,), (right,) = (found[side] for side in Job.LABELLED.sides)
    what = f"{facts.describe(label)} may be of {facts.describe(left)} or of the pair"
    choices = (
        Choice({"text": left, "label": label}, "texts"),
        Choice({"left": left, "right": right, "label": label}, "pairs"),
    )
    return UndecidedError(what, choices)


def _label_if_known(facts: Facts, named: Mapping[str, int]) -> int | None:
    if "label" in named:
        return named["label"]
    for name in names.LABELS:
        if name in facts.names:
            return facts.names.index(name)
    return None


# ------------------------------------------------------------------ lint
def _of_lint(facts: Facts, named: Mapping[str, int]) -> Roles:
    """Return the columns of rows, else of single texts, else all that hold words."""
    if named:
        wanted = {role: (at,) for role, at in named.items() if role in POSITIONAL}
        return Roles(wanted or {"text": (next(iter(named.values())),)})
    try:
        return Roles(find_sides(facts, Job.LINT, {}))
    except UndecidedError:
        pass
    try:
        return Roles({"text": (find_text(facts, facts.every),)})
    except UndecidedError:
        pass
    texts = [at for at in facts.every if facts.kinds[at] in (*TEXT_KINDS, Kind.WORD)]
    return Roles({f"column {at + 1}": (at,) for at in texts or facts.every})


# ------------------------------------------------------------------ the line
def told_line(grid: Grid, roles: Roles, beside: Sequence[str | None] = ()) -> tuple[str, bool]:
    """Return what was read from a table in a line, and whether there are columns that were not.

    Those in ``beside`` are read for something else.
    """
    used = {at for places in roles.columns.values() for at in places}
    unused = []
    for at, name in enumerate(grid.names):
        is_blank = grid.kinds[at] is Kind.EMPTY and name.startswith("column")
        if at not in used and name not in beside and not is_blank:
            unused.append(name)
    read = []
    for role, places in roles.columns.items():
        shown = ", ".join(grid.names[at] for at in places)
        read.append(f"{role} = {shown}" if grid.is_named else f"{role} = column {shown}")
    line = f"{grid.source}: {', '.join(read)}"
    if unused:
        shown = ", ".join(unused[:_MOST_UNUSED])
        more = len(unused) - _MOST_UNUSED
        line += f"; not used: {shown}" + (f" and {more} more" if more > 0 else "")
    return line, bool(unused)
