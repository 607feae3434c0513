"""Training runs as paths through alignment and uniformity: table, numbers and figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcse_cli.commands._analyze_output import Findings, html_table
from simcse_cli.report import Column, Report

if TYPE_CHECKING:
    from simcse_cli.analysis.html import HtmlSection
    from simcse_cli.analysis.trace import Trace

TITLE = "Paths of training runs"


def trace_rows(traces: "Sequence[Trace]") -> list[dict[str, Any]]:
    """Return one summary a run: both ends of its path, its best dev score, its share of the Pareto front."""
    import numpy as np

    from simcse_cli.analysis.trace import pareto_front

    on_front = pareto_front(np.concatenate([trace.points for trace in traces]))
    rows, start = [], 0
    for trace in traces:
        best, end = trace.best, start + len(trace.steps)
        rows.append(
            {
                "run": trace.name,
                "n_points": len(trace.steps),
                "last_step": int(trace.steps[-1]),
                "first_alignment": float(trace.alignment[0]),
                "last_alignment": float(trace.alignment[-1]),
                "first_uniformity": float(trace.uniformity[0]),
                "last_uniformity": float(trace.uniformity[-1]),
                "best_dev_score": None if best is None else float(trace.dev_score[best]),
                "best_step": None if best is None else int(trace.steps[best]),
                "n_on_front": int(on_front[start:end].sum()),
            }
        )
        start = end
    return rows


def trace_report(traces: "Sequence[Trace]") -> Report:
    """Return the summaries as a table."""
    columns = [
        Column("run"),
        Column("n_points", "points", "count"),
        Column("last_step", "last step", "count"),
        Column("first_alignment", "alignment: first", "number"),
        Column("last_alignment", "last", "number"),
        Column("first_uniformity", "uniformity: first", "number"),
        Column("last_uniformity", "last", "number"),
        Column("best_dev_score", "best dev", "score"),
        Column("best_step", "at step", "count"),
        Column("n_on_front", "on Pareto front", "count"),
    ]
    return Report("Alignment and uniformity along training", columns, trace_rows(traces))


def trace_points(traces: "Sequence[Trace]") -> list[dict[str, Any]]:
    """Return every measurement of every run."""
    return [
        {
            "run": trace.name,
            "step": int(step),
            "alignment": float(alignment),
            "uniformity": float(uniformity),
            "dev_score": float(dev) if dev == dev else None,
        }
        for trace in traces
        for step, alignment, uniformity, dev in zip(
            trace.steps, trace.alignment, trace.uniformity, trace.dev_score, strict=True
        )
    ]


def trace_findings(traces: "Sequence[Trace]", first_steps: int) -> Findings:
    """Return the runs as table, numbers, figure and page."""
    from simcse_cli.analysis.terminal_plots import scatter
    from simcse_cli.analysis.trace_figure import trace_figure

    points = trace_points(traces)
    columns = [Column("run"), Column("step", kind="count")]
    columns += [Column(key, kind="number") for key in ("alignment", "uniformity", "dev_score")]
    return Findings(
        reports=[trace_report(traces)],
        payload={"analysis": "trace", "runs": trace_rows(traces), "points": points},
        figure=lambda: trace_figure(traces, first_steps),
        terminal=lambda: scatter(
            {trace.name: trace.points for trace in traces}, x_label="uniformity", y_label="alignment"
        ),
        sections=lambda: [trace_section(traces, first_steps)],
        title=TITLE,
        series=[Report("Measurements", columns, points)],
    )


def trace_section(traces: "Sequence[Trace]", first_steps: int = 100) -> "HtmlSection":
    """Return the runs as a part of the page."""
    from simcse_cli.analysis.html import HtmlFigure, HtmlSection
    from simcse_cli.analysis.plots import figure_svg
    from simcse_cli.analysis.trace_figure import trace_figure

    caption = (
        "Alignment against uniformity along training, arrows in the direction of training. Hollow marker: "
        "start; star: best dev score; grey rings: Pareto front of all runs shown."
    )
    text = "Measured on the development pairs at every evaluation of the run. Lower is better in both."
    figure = HtmlFigure(figure_svg(trace_figure(traces, first_steps)), caption)
    return HtmlSection(TITLE, text, [figure], [html_table(trace_report(traces))])


def trace_sections(runs: Sequence[tuple[str, str]]) -> "list[HtmlSection]":
    """Return the paths of those ``(folder, name)`` that are training runs with measurements; none is fine."""
    from simcse_cli.analysis.trace import read_trace
    from simcse_cli.errors import DataError

    traces = []
    for folder, name in runs:
        if (Path(folder) / "metrics.jsonl").is_file():
            try:
                traces.append(read_trace(folder, name))
            except DataError:  # a run that was not evaluated along the way has no path to show
                continue
    return [trace_section(traces)] if traces else []
