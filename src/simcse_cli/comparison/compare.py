"""`simcse compare`: gather the entries, join them, test the differences, and show what changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcse_cli.comparison import changes
from simcse_cli.comparison.entries import Entry, from_published, load_entries
from simcse_cli.comparison.join import (
    Comparison,
    ToleranceCheck,
    add_means,
    join,
    merge_parts,
    without_members,
)
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.comparison.published import load_table
from simcse_cli.comparison.significance import run_tests, tests_tables
from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.progress import Progress
from simcse_cli.results.columns import columns, find_measure, is_score, label, listed
from simcse_cli.results.examples import read_pair_scores, read_predictions
from simcse_cli.results.report import Column, Outcome, Report
from simcse_cli.results.runs import short_names

FRONT_MARK = "*"


@dataclass(frozen=True)
class Compared(Outcome):
    check: ToleranceCheck | None


def compare(items: Sequence[str], options: CompareOptions, progress: Progress) -> Compared:
    comparison = gather(items, options)
    for warning in comparison.warnings:
        progress.warn(warning)
    tests = run_tests(comparison, options, progress)
    reports = comparison_tables(comparison) + tests_tables(
        tests, options.resamples, options.correction
    )
    payload: dict[str, Any] = {
        "reference": None if comparison.reference is None else comparison.reference.label,
        "measures": list(comparison.measures),
        "pareto_measures": list(comparison.pareto_measures),
        "warnings": list(comparison.warnings),
        "entries": [_entry_json(entry, comparison) for entry in comparison.entries],
        "tests": [test.to_json() for test in tests],
    }
    if options.cost:
        reports.append(cost_table(comparison.entries))
        payload["cost"] = {entry.label: entry.cost for entry in comparison.entries if entry.cost}
    of_pairs = read_pair_scores, changes.changed_pairs, changes.pairs_table
    of_classes = read_predictions, changes.changed_predictions, changes.predictions_table
    pairs, predictions = comparison.saved("pair_scores"), comparison.saved("predictions")
    for name, (found, table) in {
        "changed_settings": changes.setting_changes(comparison.entries),
        "changed_pairs": changes.example_changes(pairs, *of_pairs, options.examples),
        "changed_predictions": changes.example_changes(predictions, *of_classes, options.examples),
    }.items():
        payload[name] = found
        if found and table is not None:
            reports.append(table)
    check = comparison.check(options.tolerance / 100) if options.check else None
    if check is not None:
        payload["check"] = check.to_json()
    return Compared(reports, payload, check)


def gather(items: Sequence[str], options: CompareOptions) -> Comparison:
    """Return the named runs and results as one comparison, published rows first.

    Differences are taken to the baseline; without one to the published row, if there is exactly
    one; without any row to the first of several entries.
    """
    published, baseline = _published_entries(options), options.baseline
    paths = [item.partition("=")[2] or item for item in items]
    if baseline is not None and Path(baseline).exists() and baseline not in paths:
        items = [baseline, *items]
    loaded = [entry for item in _named_folders(items) for entry in load_entries(item, view=options)]
    own = add_means(merge_parts(loaded))
    if not own:
        raise UsageError("name at least one run folder or result file", option="RUN_OR_RESULT")
    entries = [*published, *own]
    available = dict.fromkeys(name for entry in entries for name in entry.scores)
    if baseline is not None:
        reference: Entry | None = _find(baseline, own)
    elif len(published) == 1:
        reference = published[0]
    else:
        independent = [] if published else without_members(own)
        reference = independent[0] if len(independent) > 1 else None
    return join(
        entries,
        reference=reference,
        measures=[find_measure(name, available) for name in listed(options.measures)],
        pareto_measures=[find_measure(name, available) for name in listed(options.pareto)],
    )


def _named_folders(items: Sequence[str]) -> list[str]:
    """Return the arguments with a label before folders whose names repeat, so that they are told apart."""
    folders = list(dict.fromkeys(item for item in items if Path(item).is_dir()))
    labels = dict(zip(folders, short_names(folders), strict=True))
    return [
        f"{item}={item}" if labels.get(item) == item and Path(item).name != item else item
        for item in items
    ]


def _published_entries(options: CompareOptions) -> list[Entry]:
    tables = [load_table(name) for name in options.against or ()]
    if not options.row:
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


def _find(name: str, own: Sequence[Entry]) -> Entry:
    """Return the entry of this label or path; for a group of repetitions, its mean."""
    plain = Path(name).name
    for entry in own:
        if entry.label in (name, plain) or entry.label.startswith(
            (f"{name} (mean of", f"{plain} (mean of")
        ):
            return entry
    found = [entry for entry in own if Path(entry.source) == Path(name)]
    for entry in own:
        if len(found) > 1 and set(entry.members) == {member.label for member in found}:
            return entry
    if found:
        return found[0]
    what = (
        f"--baseline {name}: no such entry, need one of {', '.join(entry.label for entry in own)}"
    )
    raise ConfigError(what, hint="give its label or its path")


def comparison_tables(comparison: Comparison) -> list[Report]:
    scores, reference = _scores_table(comparison), comparison.reference
    if reference is None:
        return [scores]
    others = [entry for entry in comparison.entries if entry is not reference]
    rows = [{"system": entry.label, **comparison.differences(entry)} for entry in others]
    shared = [name for name in comparison.measures if any(name in row for row in rows)]
    if not shared:
        return [scores]
    shown = [*columns("system"), *(_column(name, "difference") for name in shared)]
    return [
        scores,
        Report(f"Difference to {reference.label}", shown, rows, list(comparison.unlike_data)),
    ]


def _scores_table(comparison: Comparison) -> Report:
    shown = [*columns("system"), *(_column(name, "score") for name in comparison.measures)]
    notes = []
    if comparison.pareto_measures:
        shown += columns("front")
        over = ", ".join(label(name) for name in comparison.pareto_measures)
        notes.append(
            f"{FRONT_MARK} no other line is at least as good in all of {over} and better in one"
        )
    rows: list[dict[str, Any]] = []
    for entry in comparison.entries:
        mark = FRONT_MARK if entry.label in comparison.front else ""
        rows.append({"system": entry.label, **entry.scores, "front": mark})
        low, high = ({name: ends[i] for name, ends in entry.intervals.items()} for i in (0, 1))
        rows += [
            {"system": f"  {name}", **values, "front": ""}
            for name, values in (
                ("deviation", entry.deviations),
                ("95% low", low),
                ("95% high", high),
            )
            if any(measure in values for measure in comparison.measures)
        ]
    notes += comparison.unlike_data
    if any(entry.members for entry in comparison.entries):
        notes.append("deviation: sample standard deviation over the members (n - 1)")
    return Report("Scores", shown, rows, notes)


def _column(measure: str, kind: Any) -> Column:
    plain: Any = "signed" if kind == "difference" else "number"
    return Column(measure, label(measure), kind if is_score(measure) else plain)


def cost_table(entries: Sequence[Entry]) -> Report:
    rate = ("sentences_per_second", "hours", "started")
    shown = columns("system", "hardware", "precision", "n_processes", "memory_gib", *rate)
    rows = []
    for entry in entries:
        if entry.cost:
            peak, found = entry.cost["peak_memory_bytes"], entry.cost["hardware"]
            processor = (
                f"{found['processor']}, {found.get('cores')} cores"
                if "processor" in found
                else None
            )
            facts = {"memory_gib": None if peak is None else peak / 2**30}
            facts["hardware"] = found.get("gpu", processor)
            rows.append({"system": entry.label, **entry.cost, **facts})
    notes = [
        "hours: of all calls that worked on a run, dev evaluations included; peak: of the first process"
    ]
    return Report("Cost", shown, rows, notes)


def _entry_json(entry: Entry, comparison: Comparison) -> dict[str, Any]:
    measures = comparison.measures
    return {
        "label": entry.label,
        "kind": entry.kind.value,
        "source": entry.source,
        "seed": entry.seed,
        "settings": dict(entry.settings),
        "scores": {name: entry.scores.get(name) for name in measures},
        "differences": comparison.differences(entry),
        "intervals": {
            name: list(ends) for name, ends in entry.intervals.items() if name in measures
        },
        "deviations": {name: value for name, value in entry.deviations.items() if name in measures},
        "members": list(entry.members),
        "on_front": entry.label in comparison.front if comparison.pareto_measures else None,
    }
