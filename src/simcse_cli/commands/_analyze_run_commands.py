"""`simcse analyze trace` and `overlap`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcse_cli.choices import OutputFormat
from simcse_cli.commands import options as opt
from simcse_cli.commands._analyze_output import (
    Findings,
    HtmlOption,
    LabelsOption,
    Outputs,
    PlotOption,
    TerminalPlotOption,
    html_table,
    labels_of,
    show,
)
from simcse_cli.commands._analyze_runs import trace_findings
from simcse_cli.console import get_console
from simcse_cli.report import Column, Report

if TYPE_CHECKING:
    from simcse_cli.analysis.html import HtmlSection
    from simcse_cli.analysis.lexical import PairOverlaps
    from simcse_cli.analysis.trace import Trace


RunsArgument = Annotated[
    list[str] | None, typer.Argument(help="Run folders of `simcse train`.", show_default=False)
]
RunsOption = Annotated[
    list[str] | None, typer.Option("--model", "-m", help="Run folder; the same as naming it as an argument.")
]


def read_traces(runs: Sequence[str], labels: Sequence[str] | None) -> "list[Trace]":
    """Return the paths of the runs, named by label or folder."""
    from simcse_cli.analysis.trace import read_trace

    return [read_trace(run, name) for run, name in zip(runs, labels_of(runs, labels), strict=True)]


def trace_command(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Run folders of `simcse train`.", show_default=False)
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Run folder; the same as naming it as an argument."),
    ] = None,
    first: Annotated[int, typer.Option(min=1, help="Last step of the panel that shows the beginning.")] = 100,
    label: LabelsOption = None,
    fmt: opt.FormatOption = OutputFormat.TABLE,
    output: opt.OutputOption = None,
    plot: PlotOption = None,
    html: HtmlOption = None,
    terminal_plot: TerminalPlotOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Alignment, uniformity and dev score along training runs (Figure 2)."""
    folders = [*(runs or []), *(model or [])]
    if not folders:
        raise typer.BadParameter("need at least one run folder", param_hint="RUNS")
    outputs = Outputs(fmt, output, plot, html, terminal_plot, force)
    outputs.check()
    show(trace_findings(read_traces(folders, label), first), outputs, get_console())


def overlap_report(overlaps: "Sequence[PairOverlaps]") -> Report:
    """Return one row a file."""
    columns = [Column("file"), Column("n_pairs", "pairs", "count"), Column("mean", "mean F1", "score")]
    columns += [Column(key, kind="score") for key in ("q25", "median", "q75")]
    note = "Gao et al. 2021 report 39 for NLI entailment pairs, 60 for QQP, 55 for ParaNMT."
    rows = [{"file": each.name, "n_pairs": each.n_pairs, **each.summary()} for each in overlaps]
    return Report("Lexical overlap of pairs (F1 between the words of the two sides)", columns, rows, [note])


def overlap_findings(overlaps: "Sequence[PairOverlaps]", *, multiset: bool) -> Findings:
    """Return the files as table, numbers, figure and page."""
    import numpy as np

    from simcse_cli.analysis.figures import OVERLAP_BINS, overlap_figure
    from simcse_cli.analysis.terminal_plots import bar_lines

    by_name = {each.name: each.values for each in overlaps}
    report = overlap_report(overlaps)

    def sections() -> "list[HtmlSection]":
        from simcse_cli.analysis.html import HtmlFigure, HtmlSection
        from simcse_cli.analysis.plots import figure_svg

        figure = HtmlFigure(figure_svg(overlap_figure(by_name)), "Distribution of F1; vertical lines: means.")
        text = "2 |A and B| / (|A| + |B|) of the words of the two sides of each pair."
        return [HtmlSection("Lexical overlap", text, [figure], [html_table(report)])]

    counts = {name: np.histogram(values, OVERLAP_BINS)[0] / len(values) for name, values in by_name.items()}
    return Findings(
        reports=[report],
        payload={"analysis": "overlap", "multiset": multiset, "files": report.rows},
        figure=lambda: overlap_figure(by_name),
        terminal=lambda: bar_lines(counts) + "F1 from 0 (left) to 1 (right)\n",
        sections=sections,
        title="Lexical overlap",
    )


def overlap_command(
    files: Annotated[list[Path], typer.Argument(help="Tables of pairs; - is stdin.", show_default=False)],
    columns: Annotated[
        str, typer.Option(help="The two columns to compare, comma-separated; usual names are recognised.")
    ] = "anchor,positive",
    distinct: Annotated[bool, typer.Option("--distinct", help="Count each distinct word once.")] = False,
    label: LabelsOption = None,
    fmt: opt.FormatOption = OutputFormat.TABLE,
    output: opt.OutputOption = None,
    plot: PlotOption = None,
    html: HtmlOption = None,
    terminal_plot: TerminalPlotOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Lexical overlap of the two sides of sentence pairs, as in section 4 of the paper."""
    from simcse_cli.analysis.lexical import read_overlaps

    left, _, right = columns.partition(",")
    if not left or not right or "," in right:
        raise typer.BadParameter(
            f"{columns!r}: need two names, as in anchor,positive", param_hint="--columns"
        )
    outputs = Outputs(fmt, output, plot, html, terminal_plot, force)
    outputs.check()
    console = get_console()
    names = labels_of([str(path) for path in files], label)
    overlaps = [
        read_overlaps(path, name, (left.strip(), right.strip()), multiset=not distinct, progress=console)
        for path, name in zip(files, names, strict=True)
    ]
    show(overlap_findings(overlaps, multiset=not distinct), outputs, console)
