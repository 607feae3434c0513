"""Tables of `simcse compare`: scores, differences, tests, what changed, and the published tables themselves."""

from collections.abc import Mapping, Sequence
from typing import Any

from simcse_cli.comparison.changes import PairChange, PredictionChange, SettingChange
from simcse_cli.comparison.entries import Entry
from simcse_cli.comparison.join import Comparison
from simcse_cli.comparison.published import PublishedTable, load_table, origins, table_ids
from simcse_cli.comparison.significance import TaskTest
from simcse_cli.results.columns import is_score, label
from simcse_cli.results.report import Column, Outcome, Report
from simcse_cli.settings.choices import Correction

FRONT_MARK = "*"


def comparison_tables(comparison: Comparison) -> list[Report]:
    """Return the table of scores, and that of differences where a line shares a score with the reference."""
    scores, reference = _scores_table(comparison), comparison.reference
    if reference is None:
        return [scores]
    others = [entry for entry in comparison.entries if entry is not reference]
    rows = [{"system": entry.label, **comparison.differences(entry)} for entry in others]
    shared = [name for name in comparison.measures if any(name in row for row in rows)]
    if not shared:
        return [scores]
    columns = [Column("system"), *(_column(name, "difference") for name in shared)]
    return [scores, Report(f"Difference to {reference.label}", columns, rows, list(comparison.unlike_data))]


def _scores_table(comparison: Comparison) -> Report:
    """Return one row an entry, followed by its interval or its deviation where it has one."""
    columns = [Column("system"), *(_column(name, "score") for name in comparison.measures)]
    notes = []
    if comparison.pareto_measures:
        columns.append(Column("front", "Pareto"))
        over = ", ".join(label(name) for name in comparison.pareto_measures)
        notes.append(f"{FRONT_MARK} no other line is at least as good in all of {over} and better in one")
    rows: list[dict[str, Any]] = []
    for entry in comparison.entries:
        mark = FRONT_MARK if entry.label in comparison.front else ""
        rows.append({"system": entry.label, **entry.scores, "front": mark})
        rows += _extra_rows(entry, comparison.measures)
    notes += comparison.unlike_data
    if any(entry.members for entry in comparison.entries):
        notes.append("deviation: sample standard deviation over the members (n - 1)")
    return Report("Scores", columns, rows, notes)


def _extra_rows(entry: Entry, measures: Sequence[str]) -> list[dict[str, Any]]:
    """Return deviation and interval rows as far as they say something about these measures."""
    parts: list[tuple[str, Mapping[str, float]]] = [
        ("deviation", entry.deviations),
        ("95% low", {name: low for name, (low, _) in entry.intervals.items()}),
        ("95% high", {name: high for name, (_, high) in entry.intervals.items()}),
    ]
    return [
        {"system": f"  {name}", **values, "front": ""}
        for name, values in parts
        if any(measure in values for measure in measures)
    ]


def _column(measure: str, kind: Any) -> Column:
    plain: Any = "signed" if kind == "difference" else "number"
    return Column(measure, label(measure), kind if is_score(measure) else plain)


def tests_tables(tests: Sequence[TaskTest], n_resamples: int, correction: Correction) -> list[Report]:
    """Return a table for each suite that was tested."""
    sts = [test for test in tests if test.suite == "sts"]
    transfer = [test for test in tests if test.suite == "transfer"]
    columns = [
        Column("candidate", "system"),
        Column("measure", "task"),
        Column("n_pairs", "pairs", "count"),
        Column("difference", kind="difference"),
        Column("low", "95% low", "difference"),
        Column("high", "95% high", "difference"),
        Column("p_value", "p", "number"),
        Column("p_corrected", f"p ({correction})", "number"),
    ]
    note = (
        f"paired bootstrap over examples, {n_resamples:,} resamples, two-sided; "
        f"{correction} correction, tests: {len(tests)}"
    )
    tables = []
    if sts:
        tables.append(Report(f"Paired tests against {sts[0].baseline}", columns, _test_rows(sts), [note]))
    if transfer:
        columns = [Column("n_pairs", "examples", "count") if c.key == "n_pairs" else c for c in columns]
        columns += [
            Column("n_only_candidate", "only system right", "count"),
            Column("n_only_baseline", "only baseline", "count"),
            Column("p_mcnemar", "McNemar p", "number"),
            Column("p_mcnemar_corrected", f"({correction})", "number"),
        ]
        n_exact = sum(test.discordance is not None for test in transfer)
        exact = f"McNemar: exact, two-sided; {correction} correction, tests: {n_exact}"
        title = f"Paired tests of accuracy against {transfer[0].baseline}"
        tables.append(Report(title, columns, _test_rows(transfer), [note, exact]))
    return tables


def _test_rows(tests: Sequence[TaskTest]) -> list[dict[str, Any]]:
    return [test.to_json() | {"measure": label(test.measure)} for test in tests]


def settings_table(changes: Sequence[SettingChange], before: str, after: str) -> Report:
    """Return the settings in which two runs differ; digests are shown by their first digits."""
    columns = [Column("key", "setting"), Column("before", before), Column("after", after)]
    rows = [
        {
            "key": change.key,
            "before": _short_digest(change.key, change.before),
            "after": _short_digest(change.key, change.after),
        }
        for change in changes
    ]
    return Report("Settings that differ", columns, rows)


def _short_digest(key: str, value: Any) -> Any:
    return f"{value[:12]}…" if key.endswith("sha256") and isinstance(value, str) else value


def cost_table(entries: Sequence[Entry]) -> Report:
    """Return what the runs among the entries were computed on, and took."""
    columns = [
        Column("system"),
        Column("hardware"),
        Column("precision"),
        Column("n_processes", "processes", "count"),
        Column("memory_gib", "peak GiB", "number"),
        Column("sentences_per_second", "sentences/s", "number"),
        Column("hours", kind="number"),
        Column("started"),
    ]
    rows = []
    for entry in entries:
        if entry.cost:
            peak = entry.cost["peak_memory_bytes"]
            facts = {"hardware": _hardware(entry.cost), "memory_gib": None if peak is None else peak / 2**30}
            rows.append({"system": entry.label, **entry.cost, **facts})
    notes = ["hours: of all calls that worked on a run, dev evaluations included; peak: of the first process"]
    return Report("Cost", columns, rows, notes)


def _hardware(cost: Mapping[str, Any]) -> str | None:
    """Return the GPU that a run used, else the processor with its cores."""
    found = cost["hardware"]
    if "gpu" in found:
        return str(found["gpu"])
    return f"{found['processor']}, {found.get('cores')} cores" if "processor" in found else None


def pairs_table(changes: Sequence[PairChange], before: str, after: str) -> Report:
    """Return the pairs whose rank error moved most, with their sentences."""
    columns = [
        Column("task"),
        Column("pair"),
        Column("gold", kind="number"),
        Column("cosine_before", "cosine before", "number"),
        Column("cosine_after", "after", "number"),
        Column("error_before", "rank error before", "score"),
        Column("error_after", "after", "score"),
        Column("left", "sentence 1"),
        Column("right", "sentence 2"),
    ]
    rows = [
        vars(change) | {"task": label(change.task), "pair": f"{change.subset} {change.index}"}
        for change in changes
    ]
    note = (
        f"before: {before}; after: {after}. Rank error: distance of the rank of the cosine from that of the "
        "gold score within the task, in % of its pairs; largest gain first, largest loss last"
    )
    return Report("Pairs that changed most", columns, rows, [note])


def predictions_table(changes: Sequence[PredictionChange], before: str, after: str) -> Report:
    """Return examples that only one of two models classifies correctly, with their sentences."""
    columns = [
        Column("task"),
        Column("index", "example", "count"),
        Column("gold", kind="count"),
        Column("predicted_before", "class before", "count"),
        Column("predicted_after", "after", "count"),
        Column("text", "sentence"),
    ]
    rows = [
        vars(change)
        | {
            "task": label(change.task),
            "text": " | ".join(side for side in (change.left, change.right) if side),
        }
        for change in changes
    ]
    note = f"before: {before}; after: {after}. Examples that only one gets right, gains first"
    return Report("Predictions that changed", columns, rows, [note])


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "reference": None if comparison.reference is None else comparison.reference.label,
        "measures": list(comparison.measures),
        "pareto_measures": list(comparison.pareto_measures),
        "warnings": list(comparison.warnings),
        "entries": [_entry_json(entry, comparison) for entry in comparison.entries],
    }


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
        "intervals": {name: list(ends) for name, ends in entry.intervals.items() if name in measures},
        "deviations": {name: value for name, value in entry.deviations.items() if name in measures},
        "members": list(entry.members),
        "on_front": entry.label in comparison.front if comparison.pareto_measures else None,
    }


def published_tables(show: str | None) -> Outcome:
    """Return the list of the published tables, or one of them as printed."""
    return _list_tables() if show is None else _show_table(load_table(show))


def _list_tables() -> Outcome:
    rows = [
        {
            "table": table.id,
            "source": table.source.short,
            "label": table.label,
            "title": table.title,
            "rows": len(table.rows),
            "systems": len(table.all_systems()),
        }
        for table in map(load_table, table_ids())
    ]
    columns = [
        Column("table"),
        Column("source"),
        Column("label", "in the source"),
        Column("title", "what"),
        Column("rows", kind="count"),
        Column("systems", "comparable", kind="count"),
    ]
    notes = ["comparable: how many rows (or cells) a run can stand beside; see one with --show TABLE"]
    return Outcome([Report("Published tables", columns, rows, notes)], {"tables": rows})


def _show_table(table: PublishedTable) -> Outcome:
    """Return a table as printed, with corrections, exceptions and notes under it."""
    columns = [Column("row")]
    columns += [Column("group")] if any(row.group for row in table.rows) else []
    columns += [Column(f"={name}", name, _cell_kind(table, i)) for i, name in enumerate(table.columns)]
    settings = dict.fromkeys(key for row in table.rows for key in row.settings)
    columns += [Column(f":{key}", key) for key in settings]
    columns += [Column("origin")] if any(row.origin for row in table.rows) else []
    rows: list[dict[str, Any]] = [
        {"row": row.name, "group": row.group, "origin": row.origin}
        | {f"={column}": value for column, value in table.stored(row).items()}
        | {f":{key}": value for key, value in row.settings.items()}
        for row in table.rows
    ]
    title = f"{table.id}: {table.title} ({table.source.short}, {table.label})"
    return Outcome([Report(title, columns, rows, _notes(table))], _table_json(table))


def _cell_kind(table: PublishedTable, index: int) -> Any:
    if table.unit != "points":
        return "number"
    measure = table.measures[index] if table.systems != "columns" and table.measures else None
    return "score" if measure is None or is_score(measure) else "number"


def _notes(table: PublishedTable) -> list[str]:
    notes = [f"source: {table.source.citation}"]
    if table.settings:
        notes.append("settings: " + ", ".join(f"{key} {value}" for key, value in table.settings.items()))
    used = dict.fromkeys(row.origin for row in table.rows if row.origin)
    notes += [f"{origin}: {origins()[origin]}" for origin in used if origin in origins()]
    notes += [
        f"corrected: {item.row}, {item.column}: {item.published} (misread as {item.extracted})"
        for item in table.corrections
    ]
    notes += [
        f"average: {'all rows' if item.row == '*' else item.row}: {item.reason}"
        for item in table.average_exceptions
    ]
    return notes + list(table.notes)


def _table_json(table: PublishedTable) -> dict[str, Any]:
    return {
        "table": table.id,
        "source": table.source.citation,
        "label": table.label,
        "title": table.title,
        "unit": "fraction" if table.unit == "points" else table.unit,
        "settings": dict(table.settings),
        "columns": list(table.columns),
        "rows": [
            {
                "name": row.name,
                "group": row.group,
                "origin": row.origin,
                "settings": dict(row.settings),
                "values": table.stored(row),
            }
            for row in table.rows
        ],
        "corrections": [vars(item) for item in table.corrections],
        "average_exceptions": [vars(item) for item in table.average_exceptions],
        "notes": list(table.notes),
    }
