"""`analyze trace`: the path of a run through alignment and uniformity, from ``metrics.jsonl``."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.analysis.options import TraceOptions
from simcse_cli.analysis.presentation import Analysis, NamedSource, name_sources
from simcse_cli.analysis.spaces import seeds_entry
from simcse_cli.arrays import Booleans, Floats, Integers
from simcse_cli.comparison.join import is_pareto_optimal
from simcse_cli.errors import DataError, UsageError
from simcse_cli.files.inputs import require_present
from simcse_cli.progress import Progress
from simcse_cli.results import plots
from simcse_cli.results.columns import columns
from simcse_cli.results.report import Report, mean_rows
from simcse_cli.results.runs import is_run, read_metrics, read_run_record

MOST_ARROWS = 6
_ARRAYS = ("steps", "alignment", "uniformity", "dev_score")  # fields of a `Trace`
SEEDS_CAPTION = (
    " Thin lines: single seeds of a system, under their mean; band: one deviation over them."
)
STAR: dict[str, Any] = {"s": 150, "marker": "*", "edgecolor": plots.INK, "linewidth": 0.7}


@dataclass(frozen=True)
class Trace:
    """Measurements of one run in step order, each array ``(T,)``; a missing dev score is NaN.

    ``group`` is the name of the system if the run is one of its seeds.
    """

    name: str
    steps: Integers
    alignment: Floats
    uniformity: Floats
    dev_score: Floats
    n_dev_pairs: int | None = None
    group: str | None = None

    def at(self, kept: Booleans) -> "Trace":
        """Return the measurements at which the mask ``kept``, ``(T,)``, is true."""
        return replace(self, **{name: getattr(self, name)[kept] for name in _ARRAYS})

    def until(self, step: int) -> "Trace":
        return self.at(self.steps <= step)

    @property
    def points(self) -> Floats:
        """``(T, 2)``: uniformity and alignment, the two axes of the figure."""
        return np.stack([self.uniformity, self.alignment], axis=1)

    @property
    def best(self) -> int | None:
        """Position of the highest dev score, the first of equal ones; None without any."""
        if not np.isfinite(self.dev_score).any():
            return None
        return int(np.nanargmax(self.dev_score))


def read_trace(run: Path | str, name: str, group: str | None = None) -> Trace:
    """Return the measurements of a run at the steps that have both alignment and uniformity.

    ``run`` is a folder or its ``metrics.jsonl``. A resumed run logs the steps after its checkpoint
    again; each step keeps its last measurement.
    """
    require_present(run)
    path = Path(run)
    if path.is_dir():
        path /= "metrics.jsonl"
    hint = (
        "train with --eval-every N and --dev-file FILE or --dev-suite sts; each evaluation "
        "measures both"
    )
    if not path.exists():
        raise DataError(
            f"{run} has no metrics.jsonl, need a run folder of `simcse train`", hint=hint
        )
    by_step: dict[int, tuple[float, float, float]] = {}
    n_without_alignment = 0
    for line in read_metrics(path):
        if line.uniformity is None:
            continue
        if line.alignment is None:
            n_without_alignment += 1
            continue
        dev = np.nan if line.dev_score is None else line.dev_score
        by_step[line.step] = (line.alignment, line.uniformity, dev)
    if n_without_alignment and not by_step:
        raise DataError(
            f"{path}: no alignment was measured, as no dev pair is positive",
            hint="leave this run out, or train it with a --dev-file that has positive pairs",
        )
    if len(by_step) < 2:
        raise DataError(
            f"{path} measures alignment and uniformity at {len(by_step)} steps, need 2", hint=hint
        )
    steps = np.array(sorted(by_step), dtype=np.int64)
    alignment, uniformity, dev_score = np.array([by_step[step] for step in steps.tolist()]).T
    n_pairs = read_run_record(run).data.get("n_dev_pairs") if is_run(run) else None
    return Trace(name, steps, alignment, uniformity, dev_score, n_pairs, group)


@dataclass(frozen=True)
class TracedSystem:
    """What a figure draws in one colour: a run, or the mean over the seeds of a system.

    ``mean`` is the run itself, or the mean over the ``seeds`` at the steps that all of them
    measured; ``shared`` are the seeds at these steps. ``deviation`` ``(T,)`` is the sample
    deviation (n - 1) of the dev score over seeds.
    """

    mean: Trace
    seeds: Sequence[Trace] = ()
    shared: Sequence[Trace] = ()
    deviation: Floats | None = None


def traced_systems(traces: Sequence[Trace]) -> list[TracedSystem]:
    # A run that is not a seed of a system is a system by itself.
    by_system: dict[str, list[Trace]] = {}
    for trace in traces:
        by_system.setdefault(trace.group or trace.name, []).append(trace)
    return [_traced_system(name, members) for name, members in by_system.items()]


def _traced_system(name: str, members: Sequence[Trace]) -> TracedSystem:
    """Return a single run as it is, or seeds with their mean at the steps that all measured."""
    if len(members) == 1:
        return TracedSystem(members[0])
    steps = reduce(np.intersect1d, (member.steps for member in members))
    shared = [member.at(np.isin(member.steps, steps)) for member in members]

    def values(measure: str) -> Floats:
        """Return the values of all seeds at the shared steps, ``(seeds, T)``."""
        return np.stack([getattr(member, measure) for member in shared])

    scores = values("dev_score")
    mean = Trace(
        f"{name} (mean of {len(members)})",
        steps,
        values("alignment").mean(axis=0),
        values("uniformity").mean(axis=0),
        scores.mean(axis=0),
        members[0].n_dev_pairs,
    )
    return TracedSystem(mean, members, shared, scores.std(axis=0, ddof=1))


@plots.house_style()
def trace_figure(
    traces: Sequence[Trace], first_steps: int = 100, *, dev: bool = True
) -> plots.Figure:
    """Return a figure with panels for the first steps of runs, the whole runs, and dev scores.

    Source: Gao et al. 2021, Figure 2, and Figure 1 of the reproducibility report. Uniformity is to
    the right and alignment upwards; lower is better in both. Arrows point along training, a large
    hollow marker is the start, and a star is the best dev score. If there are several systems, a
    grey line joins their Pareto front.

    The seeds of a system are thin lines in its colour, under their mean. The band around its dev
    scores is one deviation on both sides. The panel of the first steps is left out if no run goes
    beyond them, and that of dev scores if ``dev`` is off or no run has any.
    """
    longest = max(int(trace.steps[-1]) for trace in traces)
    has_dev = any(trace.best is not None for trace in traces)
    path_panels = [(f"whole run ({longest:,} steps)", list(traces))]
    if longest > first_steps:
        beginnings = [trace.until(first_steps) for trace in traces]
        path_panels.insert(0, (f"first {first_steps} steps", beginnings))
    draws_dev = has_dev and dev
    n_panels = len(path_panels) + int(draws_dev)
    figure, panels = plots.new_figure(0.4 + 4.2 * n_panels, 4.4, n_panels)
    # A panel of dev scores, if there is one, comes after those of the paths.
    for axes, (title, shown) in zip(panels[: len(path_panels)], path_panels, strict=True):
        axes.set_title(title)
        _draw_paths(axes, shown, traces)
    if draws_dev:
        _draw_dev_scores(panels[-1], traces)

    # The legend explains the marks, which have no colour of their own.
    marks: dict[str, Any] = {"marker": "o", "linestyle": "", "color": plots.SOFT}
    panels[0].plot([], [], **marks, markersize=8, markerfacecolor="white", label="start")
    if has_dev:
        marks |= {"marker": "*"}
        panels[0].plot([], [], **marks, markersize=12, label="best dev score")
    handles, labels = panels[0].get_legend_handles_labels()
    plots.legend_below(figure, handles, labels)
    return figure


def _draw_paths(axes: plots.Axes, traces: Sequence[Trace], whole: Sequence[Trace]) -> None:
    """Draw the paths of ``traces``, which may be beginnings of the ``whole`` ones."""
    # Draw pale lines for the seeds of each system, then its mean.
    systems = traced_systems(traces)
    for position, system in enumerate(systems):
        for seed in system.seeds:
            axes.plot(*seed.points.T, color=plots.colour(position), linewidth=0.8, alpha=0.35)
        if len(system.mean.steps):
            _draw_path(axes, system.mean, position)

    # A star on each best step that is in the panel, in front of the start of any other run.
    for position, system in enumerate(traced_systems(whole)):
        best = system.mean.best
        shown = systems[position].mean
        if best is not None and system.mean.steps[best] in shown.steps:
            point = system.mean.points[best]
            axes.scatter(*point, color=plots.colour(position), zorder=9, **STAR)

    # The front joins the points that no other point beats in both measures.
    if len(systems) > 1:
        points = np.concatenate([system.mean.points for system in systems])
        front = points[is_pareto_optimal(points)]
        front = front[np.argsort(front[:, 0])]  # from left to right
        axes.plot(
            *front.T,
            color=plots.SOFT,
            linewidth=1.0,
            marker="o",
            markersize=7,
            markerfacecolor="none",
            zorder=5,
            label="Pareto front",
        )

    axes.margins(0.08)
    plots.geometry_axes(axes)


def _draw_path(axes: plots.Axes, trace: Trace, position: int) -> None:
    """Draw a path with arrows and a hollow marker at its start."""
    tint = plots.colour(position)
    look = plots.point_style(position)
    points = trace.points
    axes.plot(*points.T, linewidth=1.3, markersize=4, label=plots.shown(trace.name), **look)

    # A few arrows, evenly spread over the moves between points.
    n_moves = len(points) - 1
    arrow = {"arrowstyle": "-|>", "color": tint, "linewidth": 1.3, "mutation_scale": 13}
    for move in np.unique(np.linspace(0, n_moves - 1, min(MOST_ARROWS, n_moves)).astype(int)):
        axes.annotate("", tuple(points[move + 1]), tuple(points[move]), arrowprops=arrow)
    look |= {"markersize": 9, "markerfacecolor": "white", "markeredgewidth": 1.6, "zorder": 8}
    axes.plot(*points[:1].T, **look)


def _draw_dev_scores(axes: plots.Axes, traces: Sequence[Trace]) -> None:
    for position, system in enumerate(traced_systems(traces)):
        trace = system.mean
        tint = plots.colour(position)
        measured = np.isfinite(trace.dev_score)
        scores = 100 * trace.dev_score
        if system.deviation is not None:
            ends = scores - 100 * system.deviation, scores + 100 * system.deviation
            axes.fill_between(trace.steps, *ends, color=tint, alpha=0.18, linewidth=0)
        look = plots.point_style(position)
        axes.plot(trace.steps[measured], scores[measured], markersize=4, **look)
        best = trace.best
        if best is not None:
            axes.scatter(trace.steps[best], scores[best], color=tint, zorder=4, **STAR)
    # Widen the axis, so that mere noise in the scores of any run looks small.
    for trace in traces:
        measured = np.isfinite(trace.dev_score)
        if trace.n_dev_pairs is not None and measured.any():
            plots.show_noise(axes, (100 * trace.dev_score[measured]).tolist(), trace.n_dev_pairs)
    axes.set(title="dev score", xlabel="step", ylabel="dev score x100 (higher is better)")


def trace_analysis(
    traces: Sequence[Trace], first_steps: int = 100, *, dev: bool = True
) -> Analysis:
    """Return the paths of runs, with a panel of their dev scores; CSV and JSON have every point."""
    # Each measurement is a row; a missing dev score is None, since JSON has no NaN.
    point_keys = ("run", "step", "alignment", "uniformity", "dev_score")
    points = []
    for trace in traces:
        arrays = [getattr(trace, name).tolist() for name in _ARRAYS]
        for values in zip(*arrays, strict=True):
            point = dict(zip(point_keys, (trace.name, *values), strict=True))
            if np.isnan(point["dev_score"]):
                point["dev_score"] = None
            points.append(point)

    # The table has a row for each run, with its first, last and best values, then means over seeds.
    end_keys = ("first_alignment", "last_alignment", "first_uniformity", "last_uniformity")
    keys = ["run", "n_points", "last_step", *end_keys, "best_dev_score", "best_step"]
    notes = []
    if len(traces) > 1:
        keys.append("n_on_front")
        notes.append(
            "on Pareto front: points of the run that no point of any run beats in both measures"
        )
    shown = columns(*keys)
    rows = _summaries(traces)
    systems = traced_systems(traces)
    means: list[dict[str, Any]] = []
    seed_rows: list[dict[str, Any]] = []
    groups: list[str | None] = []  # the group of each of the `seed_rows`
    for system in systems:
        if system.seeds and len(system.mean.steps):
            # The front is that of all points, so a mean has no count of its own.
            summaries = [_summary(seed) for seed in system.shared]
            means += mean_rows(summaries, shown, system.seeds[0].group or "")
            seed_rows += summaries
            groups += [seed.group for seed in system.seeds]
    if means:
        notes.append("deviation: over the seeds (n - 1)")
    notes += chain.from_iterable(map(_notes_on_mean, systems))
    caption = (
        "Alignment against uniformity along training, arrows in the direction of training. Large "
        "hollow marker: start; star: best dev score"
    )
    caption += "; grey rings: Pareto front of the runs." if len(systems) > 1 else "."
    if len(systems) < len(traces):  # some system has several seeds
        caption += SEEDS_CAPTION
    return Analysis(
        title="Paths of training runs",
        text="Measured on the development pairs at every evaluation of the run. Lower is better "
        "in both.",
        caption=caption,
        tables=[Report("Alignment and uniformity along training", shown, rows + means, notes)],
        payload={"analysis": "trace", "runs": rows, "points": points}
        | seeds_entry(seed_rows, groups),
        figure=lambda: trace_figure(traces, first_steps, dev=dev),
        terminal_plot=lambda: plots.geometry_scatter(
            {trace.name: trace.points for trace in traces}
        ),
        series=[Report("Measurements", columns(*point_keys), points)],
    )


def _summaries(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Return one row per run: first and last values, best score, and points on the Pareto front."""
    # ``on_front`` has the points of the first trace, then those of the second, and so on.
    on_front = is_pareto_optimal(np.concatenate([trace.points for trace in traces]))
    rows = []
    start = 0
    for trace in traces:
        end = start + len(trace.steps)
        rows.append(_summary(trace) | {"n_on_front": int(on_front[start:end].sum())})
        start = end
    return rows


def _summary(trace: Trace) -> dict[str, Any]:
    best = trace.best
    return {
        "run": trace.name,
        "n_points": len(trace.steps),
        "last_step": int(trace.steps[-1]),
        "first_alignment": float(trace.alignment[0]),
        "last_alignment": float(trace.alignment[-1]),
        "first_uniformity": float(trace.uniformity[0]),
        "last_uniformity": float(trace.uniformity[-1]),
        "best_dev_score": None if best is None else float(trace.dev_score[best]),
        "best_step": None if best is None else int(trace.steps[best]),
    }


def _notes_on_mean(system: TracedSystem) -> Iterator[str]:
    """Yield what the mean over the seeds of a system leaves out, if anything."""
    name, steps = system.mean.name, system.mean.steps
    if not len(steps):
        yield f"{name} is not drawn: its seeds were measured at no step in common"
    elif any(len(seed.steps) > len(steps) for seed in system.seeds):
        yield f"{name}: over the steps that all seeds measured, the last is {steps[-1]:,}"


def trace_runs(
    runs: Sequence[str], options: TraceOptions, labels: Sequence[str] | None, progress: Progress
) -> Analysis:
    """Return the analysis of how runs move through alignment and uniformity.

    Warn of runs that are not finished.
    """
    folders = [*runs, *(options.model or [])]
    if not folders:
        raise UsageError("need at least one run folder", option="RUNS")
    named = name_sources(folders, labels)
    traces = [read_trace(source.path, source.label, source.group) for source in named]
    for source in named:
        if is_run(source.path):
            remark = read_run_record(source.path).unfinished(source.label)
            if remark is not None:
                progress.warn(remark)
    return trace_analysis(traces, options.first)


def trace_models(sources: Sequence[NamedSource], *, dev: bool = True) -> list[Analysis]:
    """Return a list with one analysis, of all sources that are runs with measurements.

    The list is empty if there is no such source. ``dev`` asks for a panel of dev scores.
    """
    traces = []
    for source in sources:
        if (Path(source.path) / "metrics.jsonl").is_file():
            # A run that was not evaluated along the way has no path to show.
            with suppress(DataError):
                traces.append(read_trace(source.path, source.label, source.group))
    if not traces:
        return []
    return [trace_analysis(traces, dev=dev)]
