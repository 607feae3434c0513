"""What `simcse compare` does: gather what the user named, join it, test it, and say what changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcse_cli.comparison.changes import changed_pairs, changed_predictions, changed_settings
from simcse_cli.comparison.entries import Entry, add_means, from_published, merge_parts
from simcse_cli.comparison.join import Comparison, ToleranceCheck, join, without_members
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.comparison.published import load_table
from simcse_cli.comparison.results import StsView
from simcse_cli.comparison.significance import run_tests
from simcse_cli.comparison.sources import load_entries
from simcse_cli.comparison.tables import (
    comparison_json,
    comparison_tables,
    cost_table,
    pairs_table,
    predictions_table,
    settings_table,
    tests_tables,
)
from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.progress import Progress
from simcse_cli.results.columns import find_measure, listed
from simcse_cli.results.examples import read_pair_scores, read_predictions
from simcse_cli.results.report import Outcome, Report
from simcse_cli.settings.declare import refuse_unused

Changes = tuple[list[Any], Report | None]


@dataclass(frozen=True)
class Compared(Outcome):
    """What there is to say, with the result of ``--check``."""

    check: ToleranceCheck | None


def compare(items: Sequence[str], options: CompareOptions, progress: Progress) -> Compared:
    """Return everything there is to say: scores, differences, tests, settings and examples that changed."""
    if not options.check:
        refuse_unused(options, ["tolerance"], "has no use without --check")
    comparison = gather(items, options)
    for warning in comparison.warnings:
        progress.warn(warning)
    tests = run_tests(comparison, options, progress)
    reports = comparison_tables(comparison) + tests_tables(tests, options.resamples, options.correction)
    payload = comparison_json(comparison) | {"tests": [test.to_json() for test in tests]}
    if options.cost:
        reports.append(cost_table(comparison.entries))
        payload["cost"] = {entry.label: entry.cost for entry in comparison.entries if entry.cost}
    pairs, predictions = comparison.saved("pair_scores"), comparison.saved("predictions")
    for name, (changes, table) in {
        "changed_settings": _changed_settings(comparison),
        "changed_pairs": _changed_examples(
            pairs, read_pair_scores, changed_pairs, pairs_table, options.examples
        ),
        "changed_predictions": _changed_examples(
            predictions, read_predictions, changed_predictions, predictions_table, options.examples
        ),
    }.items():
        payload[name] = [vars(change) for change in changes]
        if changes and table is not None:
            reports.append(table)
    check = comparison.check(options.tolerance / 100) if options.check else None
    if check is not None:
        payload["check"] = check.to_json()
    return Compared(reports, payload, check)


def gather(items: Sequence[str], options: CompareOptions) -> Comparison:
    """Return what the user named as one comparison, published rows first.

    Differences are taken to the baseline; without one to the published row, if there is exactly one; without
    any row to the first of several entries.
    """
    published = _published_entries(options)
    own = _own_entries(items, options)
    if not own:
        raise UsageError("name at least one run folder or result file", option="RUN_OR_RESULT")
    entries = [*published, *own]
    available = dict.fromkeys(name for entry in entries for name in entry.scores)
    return join(
        entries,
        reference=_reference(options.baseline, published, own),
        measures=[find_measure(name, available) for name in listed(options.measures)],
        pareto_measures=[find_measure(name, available) for name in listed(options.pareto)],
    )


def _own_entries(items: Sequence[str], options: CompareOptions) -> list[Entry]:
    view, baseline = StsView(options.aggregation, options.metric), options.baseline
    paths = [item.partition("=")[2] or item for item in items]
    if baseline is not None and Path(baseline).exists() and baseline not in paths:
        items = [baseline, *items]
    return add_means(merge_parts([entry for item in items for entry in load_entries(item, view=view)]))


def _published_entries(options: CompareOptions) -> list[Entry]:
    tables = [load_table(name) for name in options.against or ()]
    if not options.row:
        refuse_unused(options, ["group"], "has no use without --row")
        return [from_published(system) for table in tables for system in table.all_systems()]
    if not tables:
        raise UsageError("name the table of the row with --against", option="--row")
    found = []
    for row in options.row:
        systems, errors = [], []
        for table in tables:
            try:
                systems.append(table.system(row, group=options.group))
            except ConfigError as error:
                errors.append(error)
        if not systems:
            raise errors[0]
        found += systems
    return [from_published(system) for system in found]


def _reference(baseline: str | None, published: Sequence[Entry], own: Sequence[Entry]) -> Entry | None:
    if baseline is not None:
        return _find(baseline, own)
    if len(published) == 1:
        return published[0]
    independent = without_members(own)
    return independent[0] if not published and len(independent) > 1 else None


def _find(name: str, own: Sequence[Entry]) -> Entry:
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


def _changed_settings(comparison: Comparison) -> Changes:
    """Return how the settings of two runs differ; nothing unless there are exactly two."""
    runs = [entry for entry in comparison.entries if entry.config]
    if len(runs) != 2:
        return [], None
    before, after = runs
    changes = changed_settings(before.config, after.config)
    return changes, settings_table(changes, before.label, after.label)


def _changed_examples(
    saved: Sequence[tuple[Entry, Path]],
    read: Callable[[Path], Any],
    find: Callable[..., list[Any]],
    table: Callable[[Sequence[Any], str, str], Report],
    n: int,
) -> Changes:
    """Return the ``n`` examples that changed most from the baseline of the tests to the last entry with a file."""
    if len(saved) < 2 or n == 0:
        return [], None
    (before, before_path), *_, (after, after_path) = saved
    changes = find(read(before_path), read(after_path), n=n)
    return changes, table(changes, before.label, after.label)
