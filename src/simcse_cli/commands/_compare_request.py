"""From what the user named to one comparison: entries, published rows, the reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from simcse_cli.choices import Aggregation, Metric
from simcse_cli.errors import ConfigError
from simcse_cli.metrics import find_measure

if TYPE_CHECKING:
    from simcse_cli.comparison.entries import Entry
    from simcse_cli.comparison.tables import Comparison


@dataclass(frozen=True)
class Request:
    """What to put side by side, as the user named it."""

    items: Sequence[str]
    tables: Sequence[str] = ()
    rows: Sequence[str] = ()
    group: str | None = None
    baseline: str | None = None
    measures: Sequence[str] = ()
    pareto: Sequence[str] = ()
    aggregation: Aggregation | None = None
    metric: Metric | None = None


def build_comparison(request: Request) -> "Comparison":
    """Return the comparison that was asked for, published rows first.

    Differences are taken to the baseline; without one to the published row, if there is exactly one; without
    any row to the first of several entries.

    Raises:
        typer.BadParameter: nothing to compare was named, or --row without --against.
        ConfigError: a table, row, measure or baseline is not found, or nothing is in common.
        DataError: a run or result cannot be read.
    """
    from simcse_cli.comparison.tables import compare

    published = _published_entries(request)
    own = _own_entries(request)
    if not own:
        raise typer.BadParameter("name at least one run folder or result file", param_hint="RUN_OR_RESULT")
    entries = [*published, *own]
    available = dict.fromkeys(name for entry in entries for name in entry.scores)
    return compare(
        entries,
        reference=_reference(request.baseline, published, own),
        measures=[find_measure(name, available) for name in request.measures],
        pareto_measures=[find_measure(name, available) for name in request.pareto],
    )


def _own_entries(request: Request) -> "list[Entry]":
    from simcse_cli.comparison.replicates import add_means, merge_parts
    from simcse_cli.comparison.results import StsView
    from simcse_cli.comparison.sources import load_entries

    view = StsView(request.aggregation, request.metric)
    items = list(request.items)
    paths = [item.partition("=")[2] or item for item in items]
    if request.baseline is not None and Path(request.baseline).exists() and request.baseline not in paths:
        items.insert(0, request.baseline)
    return add_means(merge_parts([entry for item in items for entry in load_entries(item, view=view)]))


def _published_entries(request: Request) -> "list[Entry]":
    from simcse_cli.comparison.entries import from_system
    from simcse_cli.comparison.published import load_table

    if request.rows and not request.tables:
        raise typer.BadParameter("name the table of the row with --against", param_hint="--row")
    tables = [load_table(name) for name in request.tables]
    if not request.rows:
        return [from_system(system) for table in tables for system in table.all_systems()]
    found = []
    for row in request.rows:
        systems, errors = [], []
        for table in tables:
            try:
                systems.append(table.system(row, group=request.group))
            except ConfigError as error:
                errors.append(error)
        if not systems:
            raise errors[0]
        found += systems
    return [from_system(system) for system in found]


def _reference(baseline: str | None, published: "list[Entry]", own: "list[Entry]") -> "Entry | None":
    if baseline is not None:
        return _named(baseline, own)
    if len(published) == 1:
        return published[0]
    members = {name for entry in own for name in entry.members}
    independent = [entry for entry in own if entry.label not in members]
    return independent[0] if not published and len(independent) > 1 else None


def _named(name: str, own: "list[Entry]") -> "Entry":
    """Return the entry of this label or path; for a group of repetitions, its mean."""
    plain = Path(name).name
    for entry in own:
        if entry.label in (name, plain) or entry.label.startswith((f"{name} (mean of", f"{plain} (mean of")):
            return entry
    for entry in own:
        if Path(entry.source) == Path(name):
            return entry
    raise ConfigError(
        f"--baseline {name}: no such entry, need one of {', '.join(entry.label for entry in own)}",
        hint="give its label or its path",
    )
