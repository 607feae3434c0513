"""The figure of training traces: runs move through alignment and uniformity, beside their dev scores."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simcse_cli.analysis.plots import colour, dash, house_style, marker, new_figure
from simcse_cli.analysis.trace import Trace, pareto_front

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ARROWS = 6


def trace_figure(traces: Sequence[Trace], first_steps: int = 100) -> "Figure":
    """Return the runs' paths over the first steps and over the whole run, and their dev scores by step.

    Source: Gao et al. 2021, Figure 2, and Figure 1 of the reproducibility report: uniformity to the right,
    alignment upwards, lower is better in both; arrows point along training. A hollow marker is the start, the
    star the best dev score; grey rings and the line through them are the Pareto front over all runs shown.

    Args:
        traces: one for each run.
        first_steps: last step of the left panel; it is left out where no run goes beyond it.
    """
    longest = max(int(trace.steps[-1]) for trace in traces)
    has_dev = any(trace.best is not None for trace in traces)
    parts = [(f"first {first_steps} steps", [trace.until(first_steps) for trace in traces])]
    whole = (f"whole run ({longest:,} steps)", list(traces))
    parts = [*parts, whole] if longest > first_steps else [whole]
    with house_style():
        n_panels = len(parts) + has_dev
        figure, panels = new_figure(0.4 + 4.2 * n_panels, 4.4, n_panels)
        for axes, (title, shown) in zip(panels, parts, strict=False):
            axes.set_title(title)
            _draw_paths(axes, shown)
        if has_dev:
            _draw_dev_scores(panels[-1], traces)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)))
    return figure


def _draw_paths(axes: "Axes", traces: Sequence[Trace]) -> None:
    for position, trace in enumerate(traces):
        x, y = trace.uniformity, trace.alignment
        tint = colour(position)
        axes.plot(x, y, color=tint, linestyle=dash(position), linewidth=1.3, label=trace.name)
        axes.scatter(x[:1], y[:1], s=45, marker=marker(position), facecolor="white", edgecolor=tint, zorder=4)
        axes.scatter(x[1:], y[1:], s=10, marker=marker(position), color=tint, zorder=3)
        _draw_arrows(axes, trace, tint)
        if trace.best is not None:
            best = trace.best
            axes.scatter(
                x[best], y[best], s=150, marker="*", color=tint, edgecolor="black", linewidth=0.7, zorder=6
            )
    points = np.concatenate([trace.points for trace in traces])
    front = points[pareto_front(points)]
    front = front[np.argsort(front[:, 0])]
    axes.plot(front[:, 0], front[:, 1], color="#777777", linewidth=1.0, zorder=2)
    axes.scatter(
        front[:, 0], front[:, 1], s=40, facecolor="none", edgecolor="#777777", zorder=5, label="Pareto front"
    )
    axes.margins(0.08)
    axes.set_xlabel("uniformity (lower is better)")
    axes.set_ylabel("alignment (lower is better)")


def _draw_arrows(axes: "Axes", trace: Trace, tint: str) -> None:
    n_moves = len(trace.steps) - 1
    for move in (
        np.unique(np.linspace(0, n_moves - 1, min(MOST_ARROWS, n_moves)).astype(int)) if n_moves else []
    ):
        start, end = trace.points[move], trace.points[move + 1]
        axes.annotate(
            "",
            xy=tuple(end),
            xytext=tuple(start),
            arrowprops={"arrowstyle": "-|>", "color": tint, "linewidth": 1.3, "mutation_scale": 13},
        )


def _draw_dev_scores(axes: "Axes", traces: Sequence[Trace]) -> None:
    for position, trace in enumerate(traces):
        measured = np.isfinite(trace.dev_score)
        scores = 100 * trace.dev_score[measured]
        axes.plot(trace.steps[measured], scores, color=colour(position), linestyle=dash(position))
        if trace.best is not None:
            axes.scatter(
                trace.steps[trace.best],
                100 * trace.dev_score[trace.best],
                s=150,
                marker="*",
                color=colour(position),
                edgecolor="black",
                linewidth=0.7,
                zorder=4,
            )
    axes.set_title("dev score")
    axes.set_xlabel("step")
    axes.set_ylabel("dev score x 100 (higher is better)")
