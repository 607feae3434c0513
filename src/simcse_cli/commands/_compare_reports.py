"""Tables and JSON of `simcse compare`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcse_cli.metrics import is_score, label
from simcse_cli.report import Column, Report

if TYPE_CHECKING:
    from simcse_cli.comparison.changes import PairChange, PredictionChange, SettingChange
    from simcse_cli.comparison.entries import Entry
    from simcse_cli.comparison.tables import Comparison

FRONT_MARK = "*"


def comparison_reports(comparison: "Comparison") -> list[Report]:
    """Return the table of scores, and that of differences where there is a reference."""
    reports = [scores_report(comparison)]
    if comparison.reference is not None:
        reports.append(differences_report(comparison, comparison.reference))
    return reports


def scores_report(comparison: "Comparison") -> Report:
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
    if any(entry.members for entry in comparison.entries):
        notes.append("deviation: sample standard deviation over the members (n - 1)")
    return Report("Scores", columns, rows, notes)


def differences_report(comparison: "Comparison", reference: "Entry") -> Report:
    """Return score minus reference for every other entry."""
    columns = [Column("system"), *(_column(name, "difference") for name in comparison.measures)]
    rows = [
        {"system": entry.label, **comparison.differences(entry)}
        for entry in comparison.entries
        if entry is not reference
    ]
    return Report(f"Difference to {reference.label}", columns, rows)


def settings_report(changes: "Sequence[SettingChange]", before: str, after: str) -> Report:
    """Return the settings in which two runs differ."""
    columns = [Column("setting"), Column("before", before), Column("after", after)]
    rows = [
        {
            "setting": change.key,
            "before": _shown(change.key, change.before),
            "after": _shown(change.key, change.after),
        }
        for change in changes
    ]
    return Report("Settings that differ", columns, rows)


def changes_report(changes: "Sequence[PairChange]", before: str, after: str) -> Report:
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
        {
            **vars(change.pair),
            **vars(change),
            "task": label(change.pair.task),
            "pair": f"{change.pair.subset} {change.pair.index}",
        }
        for change in changes
    ]
    note = (
        f"before: {before}; after: {after}. Rank error: distance of the rank of the cosine from that of the "
        "gold score within the task, in % of its pairs; largest gain first, largest loss last"
    )
    return Report("Pairs that changed most", columns, rows, [note])


def predictions_report(changes: "Sequence[PredictionChange]", before: str, after: str) -> Report:
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
        {
            **vars(change),
            "task": label(change.task),
            "text": " | ".join(side for side in (change.left, change.right) if side),
        }
        for change in changes
    ]
    note = f"before: {before}; after: {after}. Examples that only one gets right, gains first"
    return Report("Predictions that changed", columns, rows, [note])


def comparison_json(comparison: "Comparison") -> dict[str, Any]:
    """Return the comparison as one JSON object."""
    return {
        "reference": None if comparison.reference is None else comparison.reference.label,
        "measures": list(comparison.measures),
        "pareto_measures": list(comparison.pareto_measures),
        "warnings": list(comparison.warnings),
        "entries": [_entry_json(entry, comparison) for entry in comparison.entries],
    }


def change_json(change: "PairChange") -> dict[str, Any]:
    """Return a changed pair as one flat object."""
    values = {name: value for name, value in vars(change).items() if name != "pair"}
    return {**vars(change.pair), **values, "gain": change.gain}


def prediction_json(change: "PredictionChange") -> dict[str, Any]:
    """Return a changed prediction as one flat object."""
    return {**vars(change), "is_gain": change.is_gain}


def _entry_json(entry: "Entry", comparison: "Comparison") -> dict[str, Any]:
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


def _shown(key: str, value: Any) -> Any:
    """Return a setting as tables show it: digests by their first digits."""
    return f"{value[:12]}…" if key.endswith("sha256") and isinstance(value, str) else value


def _column(measure: str, kind: Any) -> Column:
    return Column(measure, label(measure), kind if is_score(measure) else "number")


def _extra_rows(entry: "Entry", measures: Sequence[str]) -> list[dict[str, Any]]:
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
