"""`simcse compare --list` and `--show TABLE`: the published tables themselves."""

from typing import TYPE_CHECKING, Any

from simcse_cli.metrics import is_score
from simcse_cli.report import Column, Report

if TYPE_CHECKING:
    from simcse_cli.comparison.published import Table


def list_report() -> tuple[Report, dict[str, Any]]:
    """Return the shipped tables, one row each, and the same as JSON."""
    from simcse_cli.comparison.published import load_table, table_ids

    tables = [load_table(name) for name in table_ids()]
    rows = [
        {
            "table": table.id,
            "source": table.source.short,
            "label": table.label,
            "title": table.title,
            "rows": len(table.rows),
            "systems": len(table.all_systems()),
        }
        for table in tables
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
    return Report("Published tables", columns, rows, notes), {"tables": rows}


def show_report(table: "Table") -> tuple[Report, dict[str, Any]]:
    """Return a table as printed, with corrections, exceptions and notes under it."""
    kinds = {name: _kind(table, index) for index, name in enumerate(table.columns)}
    columns = [Column("row")]
    columns += [Column("group")] if any(row.group for row in table.rows) else []
    columns += [Column(f"={name}", name, kinds[name]) for name in table.columns]
    columns += [Column("origin")] if any(row.origin for row in table.rows) else []
    rows: list[dict[str, Any]] = [
        {"row": row.name, "group": row.group, "origin": row.origin}
        | {f"={column}": value for column, value in table.stored(row).items()}
        for row in table.rows
    ]
    title = f"{table.id}: {table.title} ({table.source.short}, {table.label})"
    return Report(title, columns, rows, _notes(table)), _table_json(table)


def _kind(table: "Table", index: int) -> Any:
    if table.unit != "points":
        return "number"
    measure = table.measures[index] if table.systems != "columns" and table.measures else None
    return "score" if measure is None or is_score(measure) else "number"


def _notes(table: "Table") -> list[str]:
    from simcse_cli.comparison.published import origins

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


def _table_json(table: "Table") -> dict[str, Any]:
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
