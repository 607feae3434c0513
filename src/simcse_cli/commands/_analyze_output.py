"""What the `analyze` commands share: their options, and results as tables, figures and one HTML page."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcse_cli.choices import OutputFormat
from simcse_cli.console import Console
from simcse_cli.files import check_output
from simcse_cli.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simcse_cli.analysis.html import HtmlSection, HtmlTable

LabelsOption = Annotated[
    list[str] | None,
    typer.Option("--label", help="Name in tables and figures; repeat, in the order of the models or files."),
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="Draw the figure to this file: .png, .svg or .pdf.")
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", help="Write one self-contained page with all figures and tables.")
]
TerminalPlotOption = Annotated[
    bool | None,
    typer.Option(
        "--terminal-plot/--no-terminal-plot", help="Small plot under the table; default: on a terminal."
    ),
]


@dataclass(frozen=True)
class Outputs:
    """Where results go: what the output flags of a command say."""

    fmt: OutputFormat = OutputFormat.TABLE
    output: Path | None = None
    plot: Path | None = None
    html: Path | None = None
    terminal_plot: bool | None = None
    force: bool = False

    def check(self) -> None:
        """Refuse what cannot be written before anything is computed.

        Raises:
            OutputError: a figure of another kind, or a file that exists (without ``force``).
        """
        from simcse_cli.analysis.plots import check_figure_path

        if self.plot is not None:
            check_figure_path(self.plot)
        for path in (self.plot, self.html):
            if path is not None:
                check_output(path, force=self.force)


@dataclass(frozen=True)
class Findings:
    """What one command found, ready to be shown.

    Attributes:
        reports: tables for people.
        payload: the JSON object.
        figure: draws the figure; called only where it is wanted.
        terminal: returns the small plot.
        sections: returns the parts of the HTML page.
        series: every single number as one long table, which CSV gets instead of ``reports``.
    """

    reports: list[Report]
    payload: dict[str, Any]
    figure: "Callable[[], Figure]"
    terminal: Callable[[], str]
    sections: "Callable[[], list[HtmlSection]]"
    title: str
    series: list[Report] = field(default_factory=list)


def show(findings: Findings, outputs: Outputs, console: Console) -> None:
    """Write findings to stdout and to the files asked for."""
    from simcse_cli.analysis.html import html_page
    from simcse_cli.analysis.plots import save_figure
    from simcse_cli.files import atomic_text

    reports = findings.series if outputs.fmt is OutputFormat.CSV and findings.series else findings.reports
    console.emit(reports, findings.payload, outputs.fmt, output=outputs.output, force=outputs.force)
    wanted = sys.stdout.isatty() if outputs.terminal_plot is None else outputs.terminal_plot
    if wanted and outputs.fmt is OutputFormat.TABLE:
        console.print_data("\n" + findings.terminal())
    if outputs.plot is not None:
        save_figure(findings.figure(), outputs.plot, force=outputs.force)
        console.info(f"wrote {outputs.plot}")
    if outputs.html is not None:
        with atomic_text(outputs.html, force=outputs.force) as stream:
            stream.write(html_page(findings.title, _made_by(), findings.sections()))
        console.info(f"wrote {outputs.html}")


def _made_by() -> str:
    from simcse_cli import __version__

    return f"Written by simcse {__version__}. Scores are shown x 100; for full precision use --format json."


def html_table(report: Report) -> "HtmlTable":
    """Return a report as a table of the page."""
    from simcse_cli.analysis.html import HtmlTable

    return HtmlTable(
        title=report.title,
        headings=[column.heading for column in report.columns],
        rows=report.cells(),
        is_number=[column.kind != "text" for column in report.columns],
        notes=report.notes,
    )


def labels_of(sources: Sequence[str], given: Sequence[str] | None) -> list[str]:
    """Return a name for each source: its label, else its last part, or all of it where that repeats.

    Raises:
        typer.BadParameter: there are labels, but not one for each source, or one twice.
    """
    if given:
        if len(given) != len(sources) or len(set(given)) < len(given):
            raise typer.BadParameter(
                f"{len(given)} labels for {len(sources)} sources, need a different one for each",
                param_hint="--label",
            )
        return list(given)
    short = [Path(source).name or source for source in sources]
    return [name if short.count(name) == 1 else source for name, source in zip(short, sources, strict=True)]
