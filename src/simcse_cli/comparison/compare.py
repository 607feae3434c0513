"""`simcse compare`: gather the entries, join them, test the differences, and show what changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcse_cli.comparison import changes
from simcse_cli.comparison.entries import (
    Entry,
    EntryKind,
    from_published,
    label_and_path,
    load_entries,
)
from simcse_cli.comparison.join import (
    Comparison,
    ToleranceCheck,
    add_means,
    averaged_tasks,
    join,
    measures_of,
    merge_parts,
    without_members,
)
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.comparison.published import PublishedSystem, load_table
from simcse_cli.comparison.significance import (
    chosen_notes,
    interval_notes,
    run_tests,
    tests_tables,
    verdicts,
)
from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.progress import Progress
from simcse_cli.results.columns import columns, find_measure, in_order, is_score, label, listed
from simcse_cli.results.examples import read_pair_scores, read_predictions
from simcse_cli.results.report import Column, ColumnKind, Outcome, Report
from simcse_cli.results.runs import short_names

FRONT_MARK = "*"
EXAMPLES_SHOWN = 6


@dataclass(frozen=True)
class Compared(Outcome):
    """The outcome of a comparison; ``check`` is None without ``--check``."""

    check: ToleranceCheck | None


def compare(items: Sequence[str], options: CompareOptions, progress: Progress) -> Compared:
    """Compare the runs and results that the arguments ``items`` name.

    The outcome has one table of the systems, with the verdicts of the tests as notes. ``--details``
    adds further tables. The JSON has their content in any case.
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

    # The table of scores comes first, then the tables that explain it.
    scores, *details = comparison_tables(comparison)
    scores.notes += verdicts(tests, options.correction) + interval_notes(tests)
    scores.notes += chosen_notes(comparison)
    reports = [scores]
    if options.details:
        reports += details
        reports += tests_tables(tests, options.resamples, options.correction)
    if options.cost:
        reports.append(cost_table(comparison.entries))
        payload["cost"] = {entry.label: entry.cost for entry in comparison.entries if entry.cost}

    changed, change_tables = _changes(comparison, options)
    payload |= changed
    reports += change_tables

    # The caller first shows the outcome, and then raises an error for scores out of tolerance.
    check = None
    if options.check:
        # A column that was named is to be checked, so its score must not be missing.
        are_required = options.measures is not None
        check = comparison.check(options.tolerance / 100, are_required=are_required)
        payload["check"] = check.to_json()
    return Compared(reports, payload, check)


def _changes(
    comparison: Comparison, options: CompareOptions
) -> tuple[dict[str, Any], list[Report]]:
    """Return the settings and examples that changed, as a JSON object and as the tables to show."""
    n_examples = EXAMPLES_SHOWN if options.examples is None else options.examples
    settings, settings_table = changes.setting_changes(comparison.entries)
    pairs, pairs_table = changes.example_changes(
        comparison.systems("pair_scores"),
        read=read_pair_scores,
        find=changes.changed_pairs,
        table=changes.pairs_table,
        n=n_examples,
    )
    predictions, predictions_table = changes.example_changes(
        comparison.systems("predictions"),
        read=read_predictions,
        find=changes.changed_predictions,
        table=changes.predictions_table,
        n=n_examples,
    )

    # A table without rows is not shown.
    tables = []
    if options.details:
        tables.append(settings_table)
    if options.details or options.examples is not None:
        tables += [pairs_table, predictions_table]
    payload = {
        "changed_settings": settings,
        "changed_pairs": pairs,
        "changed_predictions": predictions,
    }
    return payload, [table for table in tables if table is not None and table.rows]


def gather(items: Sequence[str], options: CompareOptions) -> Comparison:
    """Return the runs and results that ``items`` name as one comparison, published rows first.

    Differences are taken to the first of these that there is:

    - the baseline
    - the only published row
    - the first of several systems, if there are no published rows
    """
    published = _published_entries(options)

    # A path after --baseline is read as one more argument, unless an argument names it already.
    baseline = options.baseline
    added = []
    if baseline is not None and Path(baseline).exists():
        paths = {Path(label_and_path(item)[1]).resolve() for item in items}
        if Path(baseline).resolve() not in paths:
            added = [baseline]

    # Load the entries, and refuse an entry that two arguments name.
    labels = _labels_apart([*added, *items])
    loaded: list[Entry] = []
    seen: set[tuple[Path, str]] = set()
    for item, item_label in zip(items, labels[len(added) :], strict=True):
        entries = load_entries(item, item_label, view=options)
        sources = set(map(_source_and_label, entries))
        if not seen.isdisjoint(sources):
            what = f"{item} is named twice, and would count as two seeds"
            raise UsageError(what, option="RUN_OR_RESULT", hint="name each run or result once")
        seen |= sources
        loaded += entries
    # The added baseline comes first, except for entries that were read with a folder above.
    for item, item_label in zip(added, labels, strict=False):
        entries = load_entries(item, item_label, view=options)
        loaded = [entry for entry in entries if _source_and_label(entry) not in seen] + loaded
    user_entries = add_means(merge_parts(loaded))
    if not user_entries:
        raise UsageError("name at least one run folder or result file", option="RUN_OR_RESULT")

    # Find the entry that differences are taken to, and the measures to choose from.
    systems = without_members(user_entries)
    reference: Entry | None = None
    if baseline is not None:
        reference = _find(baseline, user_entries)
    elif len(published) == 1:
        reference = published[0]
    elif not published and len(systems) > 1:
        reference = systems[0]
    entries = [*published, *user_entries]
    available = in_order(measures_of(entries))
    return join(
        entries,
        reference=reference,
        measures=[find_measure(name, available) for name in listed(options.measures)],
        pareto_measures=[find_measure(name, available) for name in listed(options.pareto)],
    )


def _source_and_label(entry: Entry) -> tuple[Path, str]:
    """Return the source and the label by which an entry is known if it is read twice.

    A run that is read twice would count as two seeds, even under two labels. So the label of a run
    does not count: it is empty, or the name of the variant.
    """
    source = Path(entry.source).resolve()
    if entry.kind is EntryKind.RUN or entry.variant:
        return source, entry.variant
    return source, entry.label


def _labels_apart(items: Sequence[str]) -> list[str]:
    """Return a label for each argument, or an empty text if its usual label will do.

    The usual label is the name of the folder or file. If others have the same name, the label is
    the shortest end of the path that no other shares.
    """
    labels: dict[str, str] = {}
    # Folders are compared with folders, and files with files. An argument LABEL=PATH is neither, so
    # it gets an empty label.
    for is_of_kind in (Path.is_dir, Path.is_file):
        sources = [item for item in items if is_of_kind(Path(item))]
        stems = [item.removesuffix(".json") for item in sources]
        labels |= dict(zip(sources, short_names(stems), strict=True))
    apart = []
    for item in items:
        usual_label = Path(item.removesuffix(".json")).name
        label = labels.get(item, usual_label)
        apart.append("" if label == usual_label else label)
    return apart


def _published_entries(options: CompareOptions) -> list[Entry]:
    """Return the rows that ``--row`` names in the published tables; without it, all their rows."""
    tables = [load_table(name) for name in options.against or ()]
    if not options.row:
        return [from_published(system) for table in tables for system in table.all_systems()]
    if not tables:
        raise UsageError("name the table of the row with --against", option="--row")

    # Each row has to be in at least one of the tables.
    wanted: list[PublishedSystem] = []
    for row in options.row:
        systems = []
        errors = []
        for table in tables:
            try:
                systems.append(table.system(row, group=options.group))
            except ConfigError as error:
                errors.append(error)
        if not systems:
            raise errors[0]
        wanted += systems
    return [from_published(system) for system in wanted]


def _find(name: str, entries: Sequence[Entry]) -> Entry:
    """Return the entry with this label or path; if repetitions share it, return their mean."""
    # A label is looked up first; the last part of a path is the usual label. The label of a mean is
    # longer: "NAME (mean of 3)".
    names = (name, Path(name).name)
    starts_of_means = tuple(f"{text} (mean of" for text in names)
    for entry in entries:
        if entry.label in names or entry.label.startswith(starts_of_means):
            return entry

    # Several entries may have the same path; their mean is taken if there is one.
    path = Path(name).resolve()
    same_path = [entry for entry in entries if Path(entry.source).resolve() == path]
    if len(same_path) > 1:
        labels = {entry.label for entry in same_path}
        for entry in entries:
            if labels == set(entry.members):
                return entry
    if same_path:
        return same_path[0]

    # If the path is a folder of seeds whose settings other runs repeat, the only mean is over all
    # of these runs, so it is no baseline.
    inside = set()
    for entry in entries:
        if not entry.members and path in Path(entry.source).resolve().parents:
            inside.add(entry.label)
    for entry in entries:
        if inside and inside < set(entry.members):
            others = ", ".join(label for label in entry.members if label not in inside)
            raise ConfigError(
                f"--baseline {name}: its runs have the settings of {others}, so that they are "
                f"seeds of one system, {entry.label}",
                hint="leave --baseline out, or name one seed",
            )
    known = ", ".join(entry.label for entry in entries)
    raise ConfigError(
        f"--baseline {name}: no such entry, need one of {known}",
        hint="give its label or its path",
    )


def comparison_tables(comparison: Comparison) -> list[Report]:
    """Return up to three tables: of the systems, of their seeds, and of the differences.

    The table of the systems is always there; the others are left out if they are empty.
    """
    systems = comparison.shown()
    reference = comparison.reference
    tables = [_scores_table(comparison, systems)]
    repetitions: list[dict[str, Any]] = []
    for entry in comparison.entries:
        if entry not in systems:
            repetitions.append({"system": entry.label, **entry.scores})
    if repetitions:
        shown = _columns(comparison.measures, "score")
        tables.append(Report("Seeds and other repetitions", shown, repetitions))
    if reference is None:
        return tables
    rows = []
    for entry in systems:
        if entry is not reference:
            rows.append({"system": entry.label, **comparison.differences(entry)})
    measures_with_difference = {key for row in rows for key in row}
    compared = [name for name in comparison.measures if name in measures_with_difference]
    if compared:
        title = f"Difference to {reference.label}"
        shown = _columns(compared, "difference")
        tables.append(Report(title, shown, rows, list(comparison.unlike_data)))
    return tables


def _scores_table(comparison: Comparison, systems: Sequence[Entry]) -> Report:
    """Return the scores of systems as a table, with intervals and marks of the Pareto front."""
    # A measure that only single seeds have is shown in the table of seeds alone. But if all are
    # such, they are shown here, too.
    present = measures_of(systems)
    measures = [name for name in comparison.measures if name in present] or comparison.measures
    shown = _columns(measures, "score")
    notes = []
    if comparison.pareto_measures:
        shown += columns("front")
        over = ", ".join(map(label, comparison.pareto_measures))
        notes.append(
            f"{FRONT_MARK} no other line is at least as good in all of {over} and better in one"
        )

    # Each system has a line; if it has intervals, two more lines hold their lower and upper ends.
    rows: list[dict[str, Any]] = []
    has_intervals = False
    for entry in systems:
        row: dict[str, Any] = {"system": entry.label, **entry.scores}
        row["front"] = FRONT_MARK if entry.label in comparison.front else ""
        for column in shown:
            if column.key in entry.deviations:
                row[column.deviation_key] = entry.deviations[column.key]
        rows.append(row)
        if entry.intervals.keys().isdisjoint(comparison.measures):
            continue
        has_intervals = True
        for i, end in enumerate(("low", "high")):
            bounds = {name: ends[i] for name, ends in entry.intervals.items()}
            rows.append({"system": f"  95% {end}", **bounds, "front": ""})

    # The notes say what a reader cannot see in the columns.
    notes += comparison.unlike_data
    for average, tasks in averaged_tasks(systems).items():
        if average in measures and not set(tasks).issubset(measures):
            notes.append(f"{label(average)}: mean of {', '.join(map(label, tasks))}")
    if has_intervals:
        notes.append("95% low and high: interval over the examples, not over training seeds")
    if any(entry.members for entry in systems):
        notes.append("±: sample standard deviation over the members (n - 1)")
    return Report("Scores", shown, rows, notes)


def _columns(measures: Sequence[str], kind: ColumnKind) -> list[Column]:
    """Return the columns of a table: the system, then a column of this kind for each measure."""
    # Times and geometry are no fractions, so they are not shown x100 as scores are.
    unscaled: ColumnKind = "signed" if kind == "difference" else "number"
    shown = columns("system")
    for measure in measures:
        shown.append(Column(measure, label(measure), kind if is_score(measure) else unscaled))
    return shown


def cost_table(entries: Sequence[Entry]) -> Report:
    shown = columns(
        "system",
        "hardware",
        "precision",
        "n_processes",
        "memory_gib",
        "sentences_per_second",
        "hours",
        "started",
    )
    rows = []
    for entry in entries:
        if not entry.cost:
            continue
        row = {"system": entry.label, **entry.cost}
        # A GPU is shown by its name, a processor with its number of cores.
        hardware = entry.cost["hardware"]
        row["hardware"] = hardware.get("gpu")
        if "gpu" not in hardware and "processor" in hardware:
            row["hardware"] = f"{hardware['processor']}, {hardware.get('cores')} cores"
        peak = entry.cost["peak_memory_bytes"]
        row["memory_gib"] = None if peak is None else peak / 2**30
        rows.append(row)
    note = (
        "hours: of all calls that worked on a run, dev evaluations included; peak: of the "
        "first process"
    )
    return Report("Cost", shown, rows, [note])


def _entry_json(entry: Entry, comparison: Comparison) -> dict[str, Any]:
    measures = comparison.measures
    intervals = entry.intervals.items()
    deviations = entry.deviations.items()
    return {
        "label": entry.label,
        "kind": entry.kind.value,
        "source": entry.source,
        "seed": entry.seed,
        "settings": dict(entry.settings),
        "scores": {name: entry.scores.get(name) for name in measures},
        "differences": comparison.differences(entry),
        "intervals": {name: list(ends) for name, ends in intervals if name in measures},
        "deviations": {name: value for name, value in deviations if name in measures},
        "members": list(entry.members),
        "on_front": entry.label in comparison.front if comparison.pareto_measures else None,
    }
