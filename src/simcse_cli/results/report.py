"""Reports: tables of typed columns with notes, written as text, CSV, Markdown and LaTeX."""

import csv
import io
import json
import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import stdev
from string import Template
from typing import Any, Literal

from simcse_cli.errors import UsageError
from simcse_cli.settings.choices import OutputFormat

DASH = "–"
GAP = 2  # characters between columns on a terminal
NARROWEST_TEXT = 20  # characters that a column of texts keeps when it is narrowed
# Control characters, with the escape that begins a terminal command; direction marks; and lone
# surrogates.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

ColumnKind = Literal["text", "score", "difference", "number", "signed", "count", "seconds"]
_FORMATS: dict[ColumnKind, str] = {
    "score": ".2f",
    "difference": "+.2f",
    "number": ".4g",
    "signed": "+.4g",
    "count": ",",
    "seconds": ".1f",
}


def printable(text: str, *, is_json: bool = False) -> str:
    """Escape control characters as Python does, or with ``is_json`` as JSON does.

    A terminal or browser then shows the characters instead of obeying them.
    """
    if is_json:
        # Without the quotes that JSON puts around a text.
        return _UNPRINTABLE.sub(lambda match: json.dumps(match[0])[1:-1], text)
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


@dataclass(frozen=True)
class Column:
    """One column of a report.

    The kind says how a value is shown. A ``score`` is a fraction, shown x100 with two decimals; a
    ``difference`` is shown like a score, always with a sign. A ``number`` has four significant
    digits; a ``signed`` number also has its sign. In a table, both kinds get zeros at their end
    to align their decimals, as ``_with_zeros`` says. A ``count`` has thousands separators, and
    ``seconds`` have one decimal. None is shown as a dash. If a row also has a value under
    ``deviation_key``, the cell is ``value ± deviation``.
    """

    key: str
    label: str | None = None
    kind: ColumnKind = "text"

    @property
    def deviation_key(self) -> str:
        return f"{self.key} deviation"

    @property
    def heading(self) -> str:
        return self.key if self.label is None else self.label

    def show(self, value: Any) -> str:
        if value is None:
            return DASH
        if self.kind == "text":
            return str(value)
        if self.kind in ("score", "difference"):
            value = 100 * value
        shown = format(value, _FORMATS[self.kind])
        # A value that is rounded to zero loses its sign: -0.00 and +0.00 become 0.00.
        is_zero = not shown.strip("+-0.")
        return shown.lstrip("+-") if is_zero else shown


@dataclass
class Report:
    """A table with a title and notes; each row maps keys of columns to values."""

    title: str
    columns: list[Column]
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    def blocks(self, width: int) -> list[list[tuple[int, int]]]:
        """Cut the table into blocks, shown one below the other, of at most ``width`` characters.

        A block is a list of columns, each as its position and its width. Columns are narrowed, the
        widest first: headings and texts then wrap, but numbers are never cut. Columns that still do
        not fit are put into another block, which begins with the first column again.
        """
        rows = self.cells()
        full_widths = []
        least_widths: list[int] = []
        blocks: list[list[int]] = [[]]
        for i, column in enumerate(self.columns):
            # The width of the column in full, and at its narrowest.
            least_width = cell_width = max((len(row[i]) for row in rows), default=0)
            word_width = max(map(len, column.heading.split()), default=0)
            full_widths.append(max(cell_width, len(column.heading)))
            if column.kind == "text":
                least_width = min(cell_width, NARROWEST_TEXT)
            least_widths.append(max(word_width, least_width))

            # If the block would be too wide even at its narrowest, start a new one with the first
            # column. Each block has at least one column besides the first.
            block = blocks[-1]
            narrowest = [least_widths[j] for j in (*block, i)]
            if len(block) > 1 and _span(narrowest) > width:
                block = [0]
                blocks.append(block)
            block.append(i)

        # Now that the blocks are known, make their columns as wide as ``width`` allows.
        placed = []
        for block in blocks:
            narrowest = [least_widths[i] for i in block]
            widths = _shrunk([full_widths[i] for i in block], narrowest, width)
            placed.append(list(zip(block, widths, strict=True)))
        return placed

    def cells(self) -> list[list[str]]:
        """Return the text of each cell, row by row."""
        shown = [_column_cells(column, self.rows) for column in self.columns]
        return [[cells[i] for cells in shown] for i in range(len(self.rows))]


@dataclass(frozen=True)
class Outcome:
    """The result of a command: tables, and the JSON object of the same content.

    CSV shows the ``series``, tables of every single number; without them it shows the ``reports``.
    """

    reports: Sequence[Report]
    payload: dict[str, Any]
    series: Sequence[Report] = field(default=(), kw_only=True)

    def text(self, fmt: OutputFormat) -> str:
        """Return the result in a format; TABLE is plain text."""
        if fmt is OutputFormat.JSON:
            text = json.dumps(self.payload, indent=2, ensure_ascii=False, allow_nan=False)
            return printable(text, is_json=True) + "\n"
        reports = self.reports
        if fmt is OutputFormat.CSV and self.series:
            reports = self.series
        return "\n".join(map(RENDERERS[fmt], reports))


def _column_cells(column: Column, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the text of each cell of a column: its value, and ``± deviation`` if there is one."""
    values = [column.show(row.get(column.key)) for row in rows]
    if column.kind in ("number", "signed"):
        values = _with_zeros(values)
    cells = []
    for row, value in zip(rows, values, strict=True):
        deviation = row.get(column.deviation_key)
        if deviation is None:
            cells.append(value)
            continue
        # Two digits are enough for the deviation of a plain number.
        spread = format(deviation, ".2g") if column.kind == "number" else column.show(deviation)
        cells.append(f"{value} ± {spread}")
    return cells


def _with_zeros(numbers: Sequence[str]) -> list[str]:
    """Return the numbers of a column, all with the same number of decimals if possible.

    Zeros are added at the end, but the number furthest from 0 gets at most four significant digits.
    For example, -3.817 and -3.74 give -3.817 and -3.740; 0.0038 beside them stays.
    """
    # Dashes and numbers with an exponent are left as they are.
    plain = [number for number in numbers if number.lstrip("+-").replace(".", "").isdigit()]
    most_decimals = max((len(number.partition(".")[2]) for number in plain), default=0)
    furthest = max((abs(float(number)) for number in plain), default=0.0)
    digits_before_point = len(str(int(furthest))) if furthest >= 1 else 0
    decimals = min(most_decimals, max(4 - digits_before_point, 0))
    padded = []
    for number in numbers:
        whole, _, fraction = number.partition(".")
        if number in plain and len(fraction) < decimals:
            number = f"{whole}.{fraction:0<{decimals}}"
        padded.append(number)
    return padded


def _span(widths: list[int]) -> int:
    """Return the width of columns side by side, with the gaps between them."""
    return sum(widths) + GAP * (len(widths) - 1)


def _shrunk(widths: list[int], least: list[int], limit: int) -> list[int]:
    """Narrow the widest columns until all fit into ``limit`` or have their least width."""
    while _span(widths) > limit and widths != least:
        can_shrink = [i for i in range(len(widths)) if widths[i] > least[i]]
        widest = max(can_shrink, key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def mean_and_deviation(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the mean and the sample deviation, which divides by n - 1.

    Both are None without values, or if one of them is None. A single value has no deviation.
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, None
    deviation = stdev(known) if len(known) > 1 else None
    return sum(known) / len(known), deviation


def mean_rows(
    rows: Sequence[dict[str, Any]], columns: Sequence[Column], name: str
) -> list[dict[str, Any]]:
    """Return two rows: the mean of some rows, labelled with ``name``, and their sample deviation.

    A number that one of the rows lacks is None in both. A text that all rows share is in both rows,
    a count that all share only in the mean. The deviation of a single row has no numbers.
    """
    label_key = columns[0].key
    mean: dict[str, Any] = {label_key: f"{name} (mean of {len(rows)})"}
    deviation: dict[str, Any] = {label_key: "  deviation"}
    for column in columns[1:]:
        key = column.key
        values: list[Any] = [row.get(key) for row in rows]
        if column.kind in ("text", "count"):
            mean[key] = values[0] if len(set(values)) == 1 else None
            deviation[key] = mean[key] if column.kind == "text" else None
        else:
            mean[key], deviation[key] = mean_and_deviation(values)
    return [mean, deviation]


def with_seed_means(report: Report, system_of: Mapping[str, str | None]) -> Report:
    """Return a table with the means and deviations over seeds below its rows.

    ``system_of`` maps the label of a row (its first cell) to the system that the row is a seed of,
    or to None. Rows of one system are averaged if all their other texts are the same, too. A single
    seed has no mean.
    """
    label_key = report.columns[0].key
    text_keys = [column.key for column in report.columns[1:] if column.kind == "text"]
    rows_by_system: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in report.rows:
        system = system_of.get(row[label_key])
        if system:
            rows_by_system.setdefault((system, *map(row.get, text_keys)), []).append(row)

    means = []
    for (system, *_), rows in rows_by_system.items():
        if len(rows) > 1:
            means += mean_rows(rows, report.columns, system)
    if not means:
        return report
    notes = [*report.notes, "deviation: over the seeds (n - 1)"]
    return Report(report.title, report.columns, [*report.rows, *means], notes)


@dataclass(frozen=True)
class DiffRow:
    """A text before and after a change, in stretches; the flag of each tells whether it changed."""

    label: str
    before: list[tuple[str, bool]]
    after: list[tuple[str, bool]]
    separator: str = " "

    def marked(self, opening: str, closing: str, *, after: bool = True) -> str:
        """Return the text after the change, or before it, with marks around changed stretches."""
        side = self.after if after else self.before
        stretches = []
        for text, changed in side:
            stretches.append(f"{opening}{text}{closing}" if changed else text)
        return self.separator.join(stretches)


def to_csv(report: Report) -> str:
    """Return the table as CSV with unformatted values; each deviation is in a further column."""
    columns: list[Column] = []
    for column in report.columns:
        columns.append(column)
        if any(column.deviation_key in row for row in report.rows):
            columns.append(Column(column.deviation_key, f"{column.heading} deviation"))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.heading for column in columns])
    for row in report.rows:
        writer.writerow([row.get(column.key) for column in columns])
    return printable(stream.getvalue())


# Signs that Markdown, or HTML inside it, would interpret: of code, emphasis, cells, link targets,
# tags and entities, and backslashes before punctuation.
_MARKDOWN_SIGNS = re.compile(r"[`*|]|(?<=\])\(|<(?=[A-Za-z/!?])|&(?=#?\w+;)|\\(?=[!-/:-@\[-`{-~])")


def markdown(text: str) -> str:
    r"""Escape text for a line or a cell of a table in Markdown.

    Example:
        >>> print(markdown("![x](http:y) <b>p < 0.05, a|b"))
        ![x]\(http:y) \<b>p < 0.05, a\|b
    """
    return printable(_MARKDOWN_SIGNS.sub(r"\\\g<0>", text.replace("\n", " ")))


def to_markdown(report: Report) -> str:
    # The line below the headings: numbers are set to the right.
    rule = "|".join("---" if column.kind == "text" else "---:" for column in report.columns)
    rows = [[column.heading for column in report.columns], *report.cells()]
    lines = []
    for row in rows:
        lines.append(f"| {' | '.join(map(markdown, row))} |")
    lines.insert(1, f"|{rule}|")
    lines += [f"\n{markdown(note)}" for note in report.notes]
    return "\n".join(lines) + "\n"


_LATEX_ESCAPES = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {c: f"${c}$" for c in "<>|"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {DASH: "--", "…": r"\dots{}", "±": r"$\pm$"}
)


_LATEX_TABLE = Template(r"""% needs \usepackage{booktabs}
\begin{table}
\centering
\caption{$caption.}
\label{tab:$slug}
\begin{tabular}{$spec}
\toprule
$heading \\
\midrule
$body\bottomrule
\end{tabular}
\end{table}
""")


def _latex(text: str) -> str:
    return printable(text).translate(_LATEX_ESCAPES)


def to_latex(report: Report) -> str:
    spec = "".join("l" if column.kind == "text" else "r" for column in report.columns)
    heading = " & ".join(_latex(column.heading) for column in report.columns)
    body = ""
    for row in report.cells():
        cells = []
        for cell, column in zip(row, report.columns, strict=True):
            # The sign of a number is in math mode; elsewhere a minus is set as a hyphen.
            is_signed = column.kind != "text" and cell[0] in "+-"
            cells.append(f"${cell[0]}${_latex(cell[1:])}" if is_signed else _latex(cell))
        line = " & ".join(cells)
        # The \\ before this line would take a star or a bracket at its start as an option.
        body += ("{}" if line.startswith(("[", "*")) else "") + line + " \\\\\n"
    slug = re.sub(r"\W+", "-", report.title.lower()).strip("-") or "results"
    caption = _latex(". ".join([report.title or "Results", *report.notes]))
    return _LATEX_TABLE.substitute(
        caption=caption, slug=slug, spec=spec, heading=heading, body=body
    )


def _width(text: str) -> int:
    """Return how many places a text takes on a terminal: wide letters take two, marks none."""
    if text.isascii():
        return len(text)
    width = 0
    for char in text:
        if unicodedata.category(char) not in ("Mn", "Me", "Cf"):
            width += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return width


def to_text(report: Report) -> str:
    rows = [[column.heading for column in report.columns], *report.cells()]
    widths = [max(map(_width, cells)) for cells in zip(*rows, strict=True)]
    lines = [report.title] if report.title else []
    for row in rows:
        cells = []
        for cell, width, column in zip(row, widths, report.columns, strict=True):
            padding = " " * (width - _width(cell))
            cells.append(cell + padding if column.kind == "text" else padding + cell)
        lines.append("  ".join(cells).rstrip())
    return printable("\n".join(lines + report.notes)) + "\n"


RENDERERS: dict[OutputFormat, Callable[[Report], str]] = {
    OutputFormat.TABLE: to_text,
    OutputFormat.CSV: to_csv,
    OutputFormat.MARKDOWN: to_markdown,
    OutputFormat.LATEX: to_latex,
}
_ENDINGS = {
    ".json": OutputFormat.JSON,
    ".csv": OutputFormat.CSV,
    ".md": OutputFormat.MARKDOWN,
    ".tex": OutputFormat.LATEX,
}


def file_format(output: Path, fmt: OutputFormat) -> OutputFormat:
    """Return the format of an output file by its ending; ``fmt`` is the format of stdout.

    A file without an ending has the format ``fmt``, or JSON if this is TABLE; the number in
    ``run-1.5`` is no ending. Raise UsageError for an unknown ending. If ``fmt`` is not TABLE, also
    raise it for an ending of another format.
    """
    ending = output.suffix.lower()
    wanted = OutputFormat.JSON if fmt is OutputFormat.TABLE else fmt
    if not ending or ending[1:].isdigit():
        return wanted
    usual_ending = next(known for known, meant in _ENDINGS.items() if meant is wanted)
    hint = f"-o {shlex.quote(str(output.with_suffix(usual_ending)))}"
    if ending not in _ENDINGS:
        raise UsageError(
            f"{output}: results have no format {ending}, need one of {', '.join(_ENDINGS)}",
            option="--output",
            hint=hint,
        )
    if fmt not in (OutputFormat.TABLE, _ENDINGS[ending]):
        raise UsageError(
            f"{output} is the name of a file of {_ENDINGS[ending]}, but --format says {fmt}",
            option="--output",
            hint=f"{hint}, or leave out --format",
        )
    return _ENDINGS[ending]
