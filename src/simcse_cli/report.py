"""What a result is: a table of typed columns with notes, and how it reads as text, CSV, Markdown and LaTeX."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from simcse_cli.choices import OutputFormat

MISSING = "–"

ColumnKind = Literal["text", "score", "difference", "number", "count", "seconds"]


@dataclass(frozen=True)
class Column:
    """One column of a report.

    ``score`` is a fraction shown x100 with two decimals, ``difference`` the same with its sign, ``number`` is
    shown with four significant digits, ``count`` with thousands separators, ``seconds`` with one decimal.
    None is a dash in every kind.
    """

    key: str
    label: str | None = None
    kind: ColumnKind = "text"

    @property
    def heading(self) -> str:
        return self.key if self.label is None else self.label

    def show(self, value: Any) -> str:
        if value is None:
            return MISSING
        match self.kind:
            case "score":
                return f"{100 * value:.2f}"
            case "difference":
                return f"{100 * value:+.2f}"
            case "number":
                return f"{value:.4g}"
            case "count":
                return f"{value:,}"
            case "seconds":
                return f"{value:.1f}"
            case _:
                return str(value)


@dataclass
class Report:
    """One table: what it shows, its columns and rows, and remarks under it."""

    title: str
    columns: list[Column]
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    def cells(self) -> list[list[str]]:
        return [[column.show(row.get(column.key)) for column in self.columns] for row in self.rows]


@dataclass(frozen=True)
class DiffRow:
    """A text and its changed version: stretches of words, each with whether the other side differs."""

    label: str
    before: list[tuple[str, bool]]
    after: list[tuple[str, bool]]
    separator: str = " "

    def marked(self, opening: str, closing: str, *, after: bool = True) -> str:
        """Return one side as text with its changes between marks."""
        side = self.after if after else self.before
        return self.separator.join(
            f"{opening}{words}{closing}" if changed else words for words, changed in side
        )


def to_csv(report: Report) -> str:
    """Return the report as CSV with full-precision values; a missing value is an empty cell."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.heading for column in report.columns])
    for row in report.rows:
        values = [row.get(column.key) for column in report.columns]
        writer.writerow(["" if value is None else value for value in values])
    return stream.getvalue()


def to_markdown(report: Report) -> str:
    """Return the report as a Markdown table, numbers right-aligned."""
    lines = [
        "| " + " | ".join(column.heading for column in report.columns) + " |",
        "|" + "|".join("---" if column.kind == "text" else "---:" for column in report.columns) + "|",
    ]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in report.cells()]
    lines += [f"\n{note}" for note in report.notes]
    return "\n".join(lines) + "\n"


_LATEX_ESCAPES = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {MISSING: "--", "\\": r"\textbackslash{}"})


def to_latex(report: Report) -> str:
    """Return the report as a LaTeX tabular with booktabs rules."""
    spec = "".join("l" if column.kind == "text" else "r" for column in report.columns)
    heading = " & ".join(column.heading.translate(_LATEX_ESCAPES) for column in report.columns)
    body = [" & ".join(cell.translate(_LATEX_ESCAPES) for cell in row) + r" \\" for row in report.cells()]
    head = [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", heading + r" \\", r"\midrule"]
    end = [r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in report.notes)]
    return "\n".join([*head, *body, *end]) + "\n"


def to_text(report: Report) -> str:
    """Return the report as plain lines with aligned columns, for outputs that are no terminal."""
    rows = [[column.heading for column in report.columns], *report.cells()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(report.columns))]
    lines = [report.title] if report.title else []
    for row in rows:
        cells = [
            cell.ljust(width) if column.kind == "text" else cell.rjust(width)
            for cell, width, column in zip(row, widths, report.columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines + report.notes) + "\n"


RENDERERS: dict[OutputFormat, Callable[[Report], str]] = {
    OutputFormat.CSV: to_csv,
    OutputFormat.MARKDOWN: to_markdown,
    OutputFormat.LATEX: to_latex,
}
