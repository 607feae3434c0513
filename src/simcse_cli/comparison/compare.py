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
    averaged_tasks,
    join,
    merge_parts,
    without_members,
)
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.comparison.published import load_table
from simcse_cli.comparison.significance import chosen_notes, run_tests, tests_tables, verdicts
from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.progress import Progress
from simcse_cli.results.columns import columns, find_measure, is_score, label, listed
from simcse_cli.results.examples import read_pair_scores, read_predictions
from simcse_cli.results.report import Column, Outcome, Report
from simcse_cli.results.runs import short_names

FRONT_MARK = "*"
EXAMPLES_SHOWN = 6


@dataclass(frozen=True)
class Compared(Outcome):
    check: ToleranceCheck | None


def compare(items: Sequence[str], options: CompareOptions, progress: Progress) -> Compared:
    """Return one table of the systems, with verdicts of the tests as notes.

    The rest is shown with ``--details``.

    The JSON has everything in any case.
    """
    comparison = gather(items, options)
    for warning in comparison.warnings:
        progress.warn(warning)
    tests = run_tests(comparison, options, progress)
    payload: dict[str, Any] = {
        "reference": None if comparison.reference is None else comparison.reference.label,
        "measures": list(comparison.measures),
        "pareto_measures": list(comparison.pareto_measures),
        "warnings": list(comparison.warnings),
        "entries": [_entry_json(entry, comparison) for entry in comparison.entries],
        "tests": [test.to_json() for test in tests],
    }

    # The table for a paper, then what explains it.
    scores, *details = comparison_tables(comparison)
    scores.notes += [*verdicts(tests, options.correction), *chosen_notes(comparison)]
    details += tests_tables(tests, options.resamples, options.correction)
    reports = [scores, *details] if options.details else [scores]
    if options.cost:
        reports.append(cost_table(comparison.entries))
        payload["cost"] = {entry.label: entry.cost for entry in comparison.entries if entry.cost}

    # What changed between two runs, and which examples moved most.
    n_examples = EXAMPLES_SHOWN if options.examples is None else options.examples
    of_pairs = read_pair_scores, changes.changed_pairs, changes.pairs_table
    of_classes = read_predictions, changes.changed_predictions, changes.predictions_table
    pairs, predictions = comparison.saved("pair_scores"), comparison.saved("predictions")
    wants_examples = options.details or options.examples is not None
    for name, is_shown, (found, table) in (
        ("changed_settings", options.details, changes.setting_changes(comparison.entries)),
        ("changed_pairs", wants_examples, changes.example_changes(pairs, *of_pairs, n_examples)),
        (
            "changed_predictions",
            wants_examples,
            changes.example_changes(predictions, *of_classes, n_examples),
        ),
    ):
        payload[name] = found
        if is_shown and found and table is not None:
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
    loaded = [entry for item in _named_apart(items) for entry in load_entries(item, view=options)]
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


def _named_apart(items: Sequence[str]) -> list[str]:
    """Return the arguments with labels before folders, and before files, whose names repeat.

    A label is as much of the path as is needed to tell them apart.
    """
    labels: dict[str, str] = {}
    for is_kind in (Path.is_dir, Path.is_file):
        sources = list(dict.fromkeys(item for item in items if is_kind(Path(item))))
        stems = [item.removesuffix(".json") for item in sources]
        labels |= dict(zip(sources, short_names(stems), strict=True))
    named = []
    for item in items:
        label = labels.get(item)
        is_plain = label is None or label == Path(item.removesuffix(".json")).name
        named.append(item if is_plain else f"{label}={item}")
    return named


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
    """Return the table of the systems, then those of their seeds and of the differences, if any."""
    systems, reference = comparison.shown(), comparison.reference
    tables = [_scores_table(comparison, systems)]
    if len(systems) < len(comparison.entries):
        shown = [*columns("system"), *(_column(name, "score") for name in comparison.measures)]
        rows = [
            {"system": entry.label, **entry.scores}
            for entry in comparison.entries
            if entry not in systems
        ]
        tables.append(Report("Seeds and other repetitions", shown, rows))
    if reference is None:
        return tables
    others = [entry for entry in systems if entry is not reference]
    rows = [{"system": entry.label, **comparison.differences(entry)} for entry in others]
    shared = [name for name in comparison.measures if any(name in row for row in rows)]
    if shared:
        shown = [*columns("system"), *(_column(name, "difference") for name in shared)]
        title = f"Difference to {reference.label}"
        tables.append(Report(title, shown, rows, list(comparison.unlike_data)))
    return tables


def _scores_table(comparison: Comparison, systems: Sequence[Entry]) -> Report:
    # What single seeds alone have stands in the table of seeds.
    held = {name for entry in systems for name in entry.scores}
    measures = [name for name in comparison.measures if name in held] or comparison.measures
    shown = [*columns("system"), *(_column(name, "score") for name in measures)]
    notes = []
    if comparison.pareto_measures:
        shown += columns("front")
        over = ", ".join(label(name) for name in comparison.pareto_measures)
        notes.append(
            f"{FRONT_MARK} no other line is at least as good in all of {over} and better in one"
        )
    rows: list[dict[str, Any]] = []
    for entry in systems:
        row: dict[str, Any] = {"system": entry.label, **entry.scores}
        row["front"] = FRONT_MARK if entry.label in comparison.front else ""
        for column in shown:
            if column.key in entry.deviations:
                row[column.deviation_key] = entry.deviations[column.key]
        rows.append(row)
        low, high = ({name: ends[i] for name, ends in entry.intervals.items()} for i in (0, 1))
        for name, values in (("95% low", low), ("95% high", high)):
            if any(measure in values for measure in comparison.measures):
                rows.append({"system": f"  {name}", **values, "front": ""})
    notes += comparison.unlike_data
    notes += [
        f"{label(average)}: mean of {', '.join(map(label, tasks))}"
        for average, tasks in averaged_tasks(systems).items()
        if average in measures and not set(tasks).issubset(measures)
    ]
    if any(entry.members for entry in systems):
        notes.append("±: sample standard deviation over the members (n - 1)")
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
        "hours: of all calls that worked on a run, dev evaluations included; peak: of the "
        "first process"
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
