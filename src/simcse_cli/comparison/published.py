"""The published tables that runs are compared with, as shipped in ``resources/published``.

One file holds one table: its source, the settings under which it was measured, and its rows. It
also lists the cells that were misread when the document was extracted (``rows`` has them right),
and the rows whose printed average is not the mean of their cells. ``docs/compare.md`` describes the
format; users may write their own tables in it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
_SOURCE_ORDER = ("simcse", "v1", "repro", "nc", "repo")
_REQUIRED_KEYS = ("id", "source", "label", "title", "columns", "rows")
_FORMAT_HINT = "docs/compare.md shows the format of a table"


@dataclass(frozen=True)
class Source:
    """A document: its ``short`` name, for headings of tables, and its full ``citation``."""

    short: str
    citation: str


@dataclass(frozen=True)
class MisreadCell:
    """A cell that was misread as ``extracted``; the rows of the table hold ``published``."""

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
    """One row as printed, with a value for each column of the table; a blank cell is None.

    If ``measures`` is not empty, it replaces the measures of the table's columns for this row.
    """

    name: str
    values: tuple[float | None, ...]
    group: str | None = None
    origin: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    measures: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class PublishedSystem:
    """The numbers of one published system by measure; scores are fractions."""

    table: str
    name: str
    group: str | None
    scores: Mapping[str, float]
    settings: Mapping[str, str]

    @property
    def label(self) -> str:
        """The name with the group, if there is one; ``--row`` takes a label as well as a name."""
        return f"{self.name} ({self.group})" if self.group else self.name


@dataclass(frozen=True)
class PublishedTable:
    """One published table.

    ``systems`` says what a run is compared with: a row, a column, or a single cell (if the columns
    are conditions of one measure). ``measures`` holds the measure of each column; it is empty if
    these are unknown. ``unit`` is ``points`` if scores are printed x100, otherwise ``plain``.
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
        """Return every system with at least one number that a run can be compared with."""
        systems = []
        for row in self._system_rows():
            scores: dict[str, float] = {}
            # A table may leave its measures out; then there is nothing to compare.
            for measure, printed in zip(row.measures, row.values, strict=False):
                value = self.scaled(printed, measure)
                if measure is not None and value is not None:
                    scores[measure] = value
            if scores:
                settings = {**self.settings, **row.settings}
                systems.append(PublishedSystem(self.id, row.name, row.group, scores, settings))
        return systems

    def _system_rows(self) -> Iterator[TableRow]:
        """Yield one row for each system, with its measures, whatever the layout of the table."""
        if self.systems == "columns":
            # Only tables of MTEB have a column for each system; their rows are tasks.
            measures = tuple(MTEB_PREFIX + row.name for row in self.rows)
            for i, column in enumerate(self.columns):
                values = tuple(row.values[i] for row in self.rows)
                yield TableRow(column, values, measures=measures)
        elif self.systems == "rows":
            for row in self.rows:
                yield replace(row, measures=row.measures or self.measures)
        else:
            for row in self.rows:
                cells = zip(self.columns, row.values, self.cell_measures(row), strict=True)
                for column, value, measure in cells:
                    name = f"{row.name}, {column}"
                    yield replace(row, name=name, values=(value,), measures=(measure,))

    def system(self, name: str, *, group: str | None = None) -> PublishedSystem:
        """Return the system of this name; upper case, spaces and punctuation do not matter.

        ``group`` is needed if several groups have a system of this name.
        """
        wanted = _plain(name)
        labels: dict[str, str] = {}  # from a simplified label to the label as printed
        matches = []
        for system in self.all_systems():
            if group is not None and _plain(system.group or "") != _plain(group):
                continue
            plain = _plain(system.label)
            labels[plain] = system.label
            if wanted in (plain, _plain(system.name)):
                matches.append(system)
        if len(matches) == 1:
            return matches[0]
        if matches:
            groups = ", ".join(str(system.group) for system in matches)
            raise ConfigError(
                f"{self.id} has {len(matches)} rows named {matches[0].name!r} (groups {groups}), "
                "need one",
                hint=f"choose with --group {matches[0].group}",
            )

        # Suggest the rows that contain the name, then those that are spelt alike.
        near = [key for key in labels if wanted in key]
        near += get_close_matches(wanted, labels, n=3, cutoff=0.5)
        nearest = ", ".join(repr(labels[key]) for key in dict.fromkeys(near[:5]))
        if nearest:
            nearest = f"; nearest: {nearest}"
        place = self.id if group is None else f"{self.id}, group {group!r},"
        raise ConfigError(
            f"{place} has no row {name!r}{nearest}",
            hint=f"see its rows with `simcse compare --show {self.id}`",
        )

    def stored(self, row: TableRow) -> dict[str, float | None]:
        """Return the cells of a row by column, as fractions or plain numbers."""
        cells = zip(self.columns, self.cell_measures(row), row.values, strict=True)
        return {column: self.scaled(value, measure) for column, measure, value in cells}

    def cell_measures(self, row: TableRow | None = None) -> Sequence[str | None]:
        """Return the measure of each column, or None if it is unknown.

        A row may replace the measures of the columns. Columns that are systems have no measure.
        """
        if self.systems == "columns":
            return [None] * len(self.columns)
        measures = row.measures if row is not None and row.measures else self.measures
        return measures or [None] * len(self.columns)

    def scaled(self, value: float | None, measure: str | None) -> float | None:
        """Return a printed number as it is stored: points as a fraction, others unchanged."""
        if value is None or not self.is_fraction(measure):
            return value
        return round(value / 100, 12)  # without the rounding error of the division

    def is_fraction(self, measure: str | None) -> bool:
        return self.unit == "points" and (measure is None or is_score(measure))


def table_ids() -> list[str]:
    """Return the ids of the shipped tables, sorted by source and then by number."""
    names = []
    for entry in _FOLDER.iterdir():
        file = Path(entry.name)
        if file.suffix == ".yaml" and file.stem[0] != "_":  # _sources.yaml is no table
            names.append(file.stem)

    def place_in_order(table_id: str) -> tuple[int, str, int]:
        prefix, _, number = table_id.partition(".")  # such as simcse.5 or simcse.D.1
        # The successors of SimCSE have one table each, named after the method; they come last.
        if prefix not in _SOURCE_ORDER:
            return len(_SOURCE_ORDER), table_id, 0
        # Within a source, tables with plain numbers come before those with letters (D.1, D.2).
        digits = re.sub(r"\D", "", number)
        letters = re.sub(r"\d", "", number)
        return _SOURCE_ORDER.index(prefix), letters, int(digits or 0)

    return sorted(names, key=place_in_order)


@cache
def load_table(name: str) -> PublishedTable:
    """Return a shipped table by id, or a user's own by the path of its YAML file."""
    if name.endswith((".yaml", ".yml")):
        place = str(Path(name))
        return _build(parse_yaml(read_text(place, hint=_FORMAT_HINT), place), place)
    by_plain_name = {key.lower(): key for key in table_ids()}
    plain = name.lower()
    if plain in by_plain_name:
        return _build(_shipped(by_plain_name[plain]), name)
    near = get_close_matches(plain, by_plain_name, n=3, cutoff=0.5)
    nearest = ", ".join(by_plain_name[key] for key in near)
    if nearest:
        nearest = f"; nearest: {nearest}"
    raise ConfigError(
        f"no published table {name!r}{nearest}", hint="see them with `simcse compare --list`"
    )


@cache
def sources() -> Mapping[str, Source]:
    return {key: Source(**value) for key, value in _shipped("_sources")["sources"].items()}


@cache
def origins() -> Mapping[str, str]:
    return dict(_shipped("_sources")["origins"])


def _shipped(name: str) -> Any:
    return parse_yaml(resource(f"published/{name}.yaml"), name)


def _build(content: Any, place: str) -> PublishedTable:
    """Return a table from the content of its YAML file; raise DataError if the format is wrong."""
    present = content if isinstance(content, dict) else {}
    missing = [key for key in _REQUIRED_KEYS if key not in present]
    if missing:
        raise DataError(f"{place}: no {', '.join(missing)}", hint=_FORMAT_HINT)
    source_id = str(content["source"])
    # A source that is not listed in ``_sources.yaml`` is its own citation.
    source = asdict(sources().get(source_id, Source(short=source_id, citation=source_id)))
    table: PublishedTable = checked(
        {**content, "source": source}, PublishedTable, place, hint=_FORMAT_HINT
    )

    # There must be as many values and measures as columns. Where measures are missing, the columns
    # stand in for them, so that the number is right.
    counted: list[tuple[str, str, Sequence[Any]]] = []
    if table.systems != "columns":
        counted.append(("the table", "measures", table.measures or table.columns))
    for row in table.rows:
        counted.append((f"row {row.name!r}", "values", row.values))
        counted.append((f"row {row.name!r}", "measures", row.measures or table.columns))
    for owner, what, cells in counted:
        if len(cells) != len(table.columns):
            raise DataError(
                f"{place}: {owner} has {len(cells)} {what}, need {len(table.columns)}",
                hint=_FORMAT_HINT,
            )
    return table


def _plain(text: str) -> str:
    """Return a text in lower case, with only letters, digits and the signs that tell rows apart.

    These signs are % = + and a full stop before a digit.
    """
    return re.sub(r"[^a-z0-9.%=+]|\.(?!\d)", "", text.lower())


def published_tables(show: str | None) -> Outcome:
    """Return the published table named ``show``, or the list of all tables if it is None."""
    if show is not None:
        return _show_table(load_table(show))
    shown = columns(
        "table", "source", "label", "title", "rows", "systems", label="in the source", title="what"
    )
    rows = []
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
    shown = columns("row")
    if any(row.group for row in table.rows):
        shown += columns("group")
    # The marks = and : tell columns and settings from other keys of the same name.
    for name, measure in zip(table.columns, table.cell_measures(), strict=True):
        kind: ColumnKind = "score" if table.is_fraction(measure) else "number"
        shown.append(Column(f"={name}", name, kind))
    settings: dict[str, str] = {}
    for row in table.rows:
        settings |= row.settings
    shown += [Column(f":{key}", key) for key in settings]
    if any(row.origin for row in table.rows):
        shown += columns("origin")

    rows = []
    for row in table.rows:
        cells: dict[str, Any] = {"row": row.name, "group": row.group, "origin": row.origin}
        cells |= {f"={column}": value for column, value in table.stored(row).items()}
        cells |= {f":{key}": value for key, value in row.settings.items()}
        rows.append(cells)
    title = f"{table.id}: {table.title} ({table.source.short}, {table.label})"
    return Outcome([Report(title, shown, rows, _notes(table))], _table_json(table))


def _notes(table: PublishedTable) -> list[str]:
    """Return the notes below a table: its source and settings, corrections and exceptions."""
    notes = [f"source: {table.source.citation}"]
    if table.settings:
        settings = ", ".join(f"{key} {value}" for key, value in table.settings.items())
        notes.append(f"settings: {settings}")
    used = dict.fromkeys(row.origin for row in table.rows if row.origin)
    notes += [f"{origin}: {origins()[origin]}" for origin in used if origin in origins()]
    for cell in table.corrections:
        correction = f"{cell.published} (misread as {cell.extracted})"
        notes.append(f"corrected: {cell.row}, {cell.column}: {correction}")
    for item in table.average_exceptions:
        row = "all rows" if item.row == "*" else item.row
        notes.append(f"average: {row}: {item.reason}")
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
