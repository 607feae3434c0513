"""The published tables that runs are compared with, as shipped in ``resources/published``.

One file holds one table: its source, the settings it was measured under, its rows, the cells in
which an extraction of the document was misread (already set right in ``rows``), and the rows whose
printed average is not the mean of their cells. ``docs/compare.md`` describes the format; users may
write their own tables in it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from simcse_cli.errors import ConfigError, DataError
from simcse_cli.files.inputs import read_text
from simcse_cli.files.resources import resource
from simcse_cli.files.schema import checked, parse_yaml
from simcse_cli.results.columns import MTEB_PREFIX, columns, is_score
from simcse_cli.results.report import Column, ColumnKind, Outcome, Report

_FOLDER = files("simcse_cli") / "resources" / "published"
_PREFIXES = ("simcse", "v1", "repro", "nc", "repo")
_REQUIRED_KEYS = ("id", "source", "label", "title", "columns", "rows")
_FORMAT_HINT = "docs/compare.md shows the format of a table"


@dataclass(frozen=True)
class Source:
    """A document: ``short`` for table headings, ``citation`` in full."""

    short: str
    citation: str


@dataclass(frozen=True)
class MisreadCell:
    """A cell whose extracted figure was misread; the table holds ``published``."""

    row: str
    column: str
    extracted: float
    published: float
    group: str | None = None


@dataclass(frozen=True)
class AverageException:
    """A printed average that is not the mean of its row, and the reason.

    ``mean`` is the mean of the row. A ``row`` of ``*`` stands for every row.
    """

    row: str
    reason: str
    group: str | None = None
    mean: float | None = None


@dataclass(frozen=True)
class TableRow:
    """One line as printed; ``values`` run along the table's columns and a blank cell is None."""

    name: str
    values: tuple[float | None, ...]
    group: str | None = None
    origin: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    measures: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class PublishedSystem:
    """A published system as one line of figures: scores are fractions, keyed by measure."""

    table: str
    name: str
    group: str | None
    scores: Mapping[str, float]
    settings: Mapping[str, str]

    @property
    def label(self) -> str:
        """The name, with its group where it has one; accepted wherever a row is named."""
        return f"{self.name} ({self.group})" if self.group else self.name


@dataclass(frozen=True)
class PublishedTable:
    """One published table.

    ``systems`` is what a run is compared with: a row, a column, or a single cell (tables whose
    columns are conditions of one measure). ``unit`` is ``points`` for figures printed x100, else
    ``plain``.
    """

    id: str
    source: Source
    label: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    unit: str = "points"
    systems: Literal["rows", "columns", "cells"] = "rows"
    measures: tuple[str | None, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    corrections: tuple[MisreadCell, ...] = ()
    average_exceptions: tuple[AverageException, ...] = ()
    notes: tuple[str, ...] = ()

    def all_systems(self) -> list[PublishedSystem]:
        """Return every system that has at least one figure a run can be compared with."""
        # All layouts of tables are brought into one form: row, name and cells.
        lines: list[tuple[TableRow, str, Iterable[tuple[str | None, float | None]]]]
        if self.systems == "columns":
            lines = [
                (
                    TableRow(column, ()),
                    column,
                    [(MTEB_PREFIX + row.name, row.values[i]) for row in self.rows],
                )
                for i, column in enumerate(self.columns)
            ]
        elif self.systems == "cells":
            lines = [
                (row, f"{row.name}, {column}", [(measure, value)])
                for row in self.rows
                for column, measure, value in zip(
                    self.columns, self.measures, row.values, strict=True
                )
            ]
        else:
            lines = [
                (row, row.name, zip(row.measures or self.measures, row.values, strict=False))
                for row in self.rows
            ]

        # Cells without a figure are left out, and lines without any.
        found = []
        for row, name, cells in lines:
            stored = {
                measure: self.scaled(value, measure)
                for measure, value in cells
                if measure is not None
            }
            scores = {measure: value for measure, value in stored.items() if value is not None}
            if scores:
                settings = {**self.settings, **row.settings}
                found.append(PublishedSystem(self.id, name, row.group, scores, settings))
        return found

    def system(self, name: str, *, group: str | None = None) -> PublishedSystem:
        """Return the system of this name; upper case, spaces and punctuation do not matter."""
        systems = self.all_systems()
        if group is not None:
            systems = [system for system in systems if _plain(system.group or "") == _plain(group)]
        wanted = _plain(name)
        matches = [
            system for system in systems if wanted in (_plain(system.name), _plain(system.label))
        ]
        if len(matches) == 1:
            return matches[0]
        if matches:
            groups = ", ".join(str(system.group) for system in matches)
            what = (
                f"{self.id} has {len(matches)} rows named {matches[0].name!r} (groups {groups}), "
                "need one"
            )
            raise ConfigError(what, hint=f"choose with --group {matches[0].group}")
        labels = {_plain(system.label): system.label for system in systems}
        near = [labels[key] for key in labels if wanted in key]
        near += [labels[key] for key in get_close_matches(wanted, labels, n=3, cutoff=0.5)]
        nearest = (
            "; nearest: " + ", ".join(repr(label) for label in dict.fromkeys(near[:5]))
            if near
            else ""
        )
        place = self.id if group is None else f"{self.id}, group {group!r},"
        what = f"{place} has no row {name!r}{nearest}"
        raise ConfigError(what, hint=f"see its rows with `simcse compare --show {self.id}`")

    def stored(self, row: TableRow) -> dict[str, float | None]:
        """Return the cells of a row by column, as fractions or plain numbers."""
        measures: Sequence[str | None] = (
            () if self.systems == "columns" else row.measures or self.measures
        )
        padded = measures or (None,) * len(self.columns)
        cells = zip(self.columns, padded, row.values, strict=True)
        return {column: self.scaled(value, measure) for column, measure, value in cells}

    def scaled(self, value: float | None, measure: str | None) -> float | None:
        """Return a printed figure as stored: points as a fraction, plain numbers as they are."""
        if (
            value is None
            or self.unit != "points"
            or (measure is not None and not is_score(measure))
        ):
            return value
        return round(value / 100, 12)


def table_ids() -> list[str]:
    names = [entry.name for entry in _FOLDER.iterdir() if entry.name.endswith(".yaml")]

    def by_source(table_id: str) -> tuple[int, str, int]:
        prefix, _, number = table_id.partition(".")
        # The successors of SimCSE have one table each, named after the method.
        if prefix not in _PREFIXES:
            return len(_PREFIXES), table_id, 0
        letters, digits = re.sub(r"\d", "", number), re.sub(r"\D", "", number)
        return _PREFIXES.index(prefix), letters, int(digits or 0)

    return sorted(
        (name.removesuffix(".yaml") for name in names if not name.startswith("_")), key=by_source
    )


@cache
def load_table(name: str) -> PublishedTable:
    """Return a shipped table by id, or a user's own by the path of its YAML file."""
    if name.endswith((".yaml", ".yml")):
        place = str(Path(name))
        return _build(parse_yaml(read_text(place, hint=_FORMAT_HINT), place), place)
    by_plain_name = {key.lower(): key for key in table_ids()}
    if name.lower() not in by_plain_name:
        near = get_close_matches(name.lower(), by_plain_name, n=3, cutoff=0.5)
        nearest = f"; nearest: {', '.join(by_plain_name[key] for key in near)}" if near else ""
        what = f"no published table {name!r}{nearest}"
        raise ConfigError(what, hint="see them with `simcse compare --list`")
    return _build(_shipped(by_plain_name[name.lower()]), name)


@cache
def sources() -> Mapping[str, Source]:
    return {key: Source(**value) for key, value in _shipped("_sources")["sources"].items()}


@cache
def origins() -> Mapping[str, str]:
    return dict(_shipped("_sources")["origins"])


def _shipped(name: str) -> Any:
    return parse_yaml(resource(f"published/{name}.yaml"), name)


def _build(content: Any, place: str) -> PublishedTable:
    missing = [key for key in _REQUIRED_KEYS if not isinstance(content, dict) or key not in content]
    if missing:
        raise DataError(f"{place}: no {', '.join(missing)}", hint=_FORMAT_HINT)
    named = str(content["source"])
    source = asdict(sources().get(named, Source(short=named, citation=named)))
    table: PublishedTable = checked(
        {**content, "source": source}, PublishedTable, place, hint=_FORMAT_HINT
    )
    for row in table.rows:
        for what, cells in (("values", row.values), ("measures", row.measures or table.columns)):
            if len(cells) != len(table.columns):
                raise DataError(
                    f"{place}: row {row.name!r} has {len(cells)} {what}, need {len(table.columns)}",
                    hint=_FORMAT_HINT,
                )
    return table


def _plain(text: str) -> str:
    """Return the text in a form for comparison.

    It is in lower case and has only letters, numbers and the signs that tell rows apart.
    """
    return re.sub(r"[^a-z0-9.%=+]|\.(?!\d)", "", text.lower())


def published_tables(show: str | None) -> Outcome:
    if show is not None:
        return _show_table(load_table(show))
    shown = columns(
        "table", "source", "label", "title", "rows", "systems", label="in the source", title="what"
    )
    rows: list[dict[str, Any]] = []
    for table in map(load_table, table_ids()):
        rows.append(
            {
                "table": table.id,
                "source": table.source.short,
                "label": table.label,
                "title": table.title,
                "rows": len(table.rows),
                "systems": len(table.all_systems()),
            }
        )
    notes = ["comparable: rows or cells that a run can be compared with; see one with --show TABLE"]
    return Outcome([Report("Published tables", shown, rows, notes)], {"tables": rows})


def _show_table(table: PublishedTable) -> Outcome:
    settings = dict.fromkeys(key for row in table.rows for key in row.settings)
    measures = table.measures if table.systems != "columns" else ()
    kinds: list[ColumnKind] = [
        "score" if table.unit == "points" and (measure is None or is_score(measure)) else "number"
        for measure in measures or (None,) * len(table.columns)
    ]
    shown = [
        *columns("row", *["group"] * any(row.group for row in table.rows)),
        *(Column(f"={name}", name, kind) for name, kind in zip(table.columns, kinds, strict=True)),
        *(Column(f":{key}", key) for key in settings),
        *columns(*["origin"] * any(row.origin for row in table.rows)),
    ]
    rows: list[dict[str, Any]] = [
        {"row": row.name, "group": row.group, "origin": row.origin}
        | {f"={column}": value for column, value in table.stored(row).items()}
        | {f":{key}": value for key, value in row.settings.items()}
        for row in table.rows
    ]
    title = f"{table.id}: {table.title} ({table.source.short}, {table.label})"
    return Outcome([Report(title, shown, rows, _notes(table))], _table_json(table))


def _notes(table: PublishedTable) -> list[str]:
    notes = [f"source: {table.source.citation}"]
    if table.settings:
        notes.append(
            "settings: " + ", ".join(f"{key} {value}" for key, value in table.settings.items())
        )
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
            }
            | {"values": table.stored(row)}
            for row in table.rows
        ],
        "corrections": [vars(item) for item in table.corrections],
        "average_exceptions": [vars(item) for item in table.average_exceptions],
        "notes": list(table.notes),
    }
