"""`analyze density`: the cosine similarity of rated pairs by group, as numbers and curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from simcse_cli.analysis.overlap import summarize
from simcse_cli.analysis.presentation import Analysis
from simcse_cli.analysis.spaces import EmbeddingSpace, spaces_payload
from simcse_cli.arrays import AnyFloats, Floats
from simcse_cli.evaluation.alignment import rating_scale, scale_note
from simcse_cli.evaluation.correlation import LEAST_COSINE_RANGE
from simcse_cli.results import plots
from simcse_cli.results.columns import columns
from simcse_cli.results.report import Report

N_GROUPS = 5
GRID = np.linspace(-1.0, 1.0, 401)
SMALLEST_BANDWIDTH = 0.005
LEAST_RISE = 0.005  # share of the highest density; a curve below it cannot be seen
RIDGE_HEIGHT = 1.2  # height of the highest ridge; the feet of neighbouring ridges are 1 apart
STATISTICS = ("mean", "std", "q25", "median", "q75")
NO_CURVE = "A group of one pair, or of equal cosines, has no curve, only a mean."


@dataclass(frozen=True)
class RatingGroup:
    """The cosines of the pairs with a rating in ``[low, high)``.

    The last group is ``closed``: it includes ``high``.
    """

    low: float
    high: float
    closed: bool
    cosines: Floats

    @property
    def label(self) -> str:
        """The interval as mathematicians write it, for example ``[3,4)``."""
        return f"[{self.low:g},{self.high:g}{']' if self.closed else ')'}"

    @property
    def n_pairs(self) -> int:
        return len(self.cosines)

    def summary(self) -> dict[str, Any]:
        """Return the label, size, mean, standard deviation (divisor n) and quartiles of the group.

        The statistics of an empty group are None.
        """
        facts = {"rating": self.label, "n_pairs": self.n_pairs} | dict.fromkeys(STATISTICS)
        if self.n_pairs:
            facts |= summarize(self.cosines) | {"std": float(self.cosines.std())}
        return facts

    @property
    def has_curve(self) -> bool:
        """Whether the cosines have a spread, from which a bandwidth follows."""
        return self.n_pairs > 1 and float(np.ptp(self.cosines)) >= LEAST_COSINE_RANGE

    @cached_property
    def density(self) -> Floats:
        """Density over ``GRID``; zeros in a group without a curve."""
        if self.has_curve:
            return kernel_density(self.cosines)
        return np.zeros_like(GRID)


def rating_groups(cosines: AnyFloats, gold: AnyFloats) -> list[RatingGroup]:
    """Return the cosines ``(N,)`` in five groups by gold rating ``(N,)``.

    The groups are equal parts of the rating scale. Source: Gao et al. 2021, Figure G.1, which has
    five groups of STS-B but does not state their edges. Here, the groups of STS-B have integer
    edges, a toolkit default, and 1478, 1334, 1520, 2288 and 2008 pairs.
    """
    start, end = rating_scale(gold)
    edges = [start + (end - start) * number / N_GROUPS for number in range(N_GROUPS)]
    edges.append(end)  # the formula above might miss it by a rounding error
    groups = []
    for low, high in pairwise(edges):
        closed = high == edges[-1]
        inside = (gold >= low) & (gold < high)
        if closed:
            inside |= gold == high
        groups.append(RatingGroup(low, high, closed, np.asarray(cosines[inside], dtype=np.float64)))
    return groups


def kernel_density(cosines: AnyFloats) -> Floats:
    """Return a Gaussian kernel density estimate on ``GRID``; its integral over [-1, 1] is 1.

    The bandwidth follows Scott's rule, ``std * n^(-1/5)``. It is at least the step of the grid,
    0.005, since the grid would miss narrower peaks. The mass that a plain estimate would put beyond
    -1 and 1 is reflected back.
    """
    points = np.asarray(cosines, dtype=np.float64)
    bandwidth = max(SMALLEST_BANDWIDTH, float(points.std()) * len(points) ** -0.2)
    # The mirror images of the values at -1 and at 1 bring the reflected mass back inside.
    mirrored = np.concatenate([points, -2.0 - points, 2.0 - points])
    # One point of the grid at a time, to save memory.
    sums = [np.exp(-0.5 * ((point - mirrored) / bandwidth) ** 2).sum() for point in GRID]
    density: Floats = np.array(sums) / (len(points) * bandwidth * np.sqrt(2 * np.pi))
    return density


@plots.house_style()
def density_figure(by_model: Mapping[str, Sequence[RatingGroup]]) -> plots.Figure:
    """Draw one ridge plot per model: the density of cosines per group, highest rating on top.

    Source: Gao et al. 2021, Figure G.1. Heights are comparable within a panel; the black tick is
    the mean. The groups are the same in every panel, so only the first panel names them.
    """
    figure, panels = plots.new_figure(1.4 + 3.6 * len(by_model), 4.6, len(by_model), sharey=True)
    # The axis begins where the first ridge rises, or at the lowest mean if that is further left:
    # a group without a ridge shows only its mean.
    groups_of_all = [group for groups in by_model.values() for group in groups]
    densities = np.array([group.density for group in groups_of_all])
    rises = (densities > LEAST_RISE * densities.max()).any(axis=0)
    means = [float(group.cosines.mean()) for group in groups_of_all if group.n_pairs]
    start = min([*GRID[rises].tolist(), *means])
    for axes, (name, groups) in zip(panels, by_model.items(), strict=True):
        _draw_ridges(axes, groups)
        axes.set(title=plots.shown(name), xlabel="cosine similarity")
        axes.set_xlim(max(-1.0, start - 0.05), 1.0)
    panels[0].set_ylabel("gold rating")
    tick: dict[str, Any] = {"marker": "|", "markersize": 11, "markeredgewidth": 2.5}
    handles = panels[0].plot([], [], color=plots.INK, linestyle="", **tick)
    plots.legend_below(figure, handles, ["mean of the group"])
    return figure


def _draw_ridges(axes: plots.Axes, groups: Sequence[RatingGroup]) -> None:
    highest = max(float(group.density.max()) for group in groups)
    scale = RIDGE_HEIGHT / (highest or 1.0)  # if no group has a ridge, any scale serves
    tints = plots.shades(len(groups))

    # Ridges are drawn from the top down, so that each covers the foot of the one above it.
    for level, group in reversed(list(enumerate(groups))):
        ridge = level + scale * group.density
        # A ridge takes two layers, its area and its outline; lower ridges lie in front.
        layer = 2 * (len(groups) - level)
        axes.fill_between(
            GRID, level, ridge, color=tints[level], alpha=0.9, linewidth=0, zorder=layer
        )
        axes.plot(GRID, ridge, color="white", linewidth=1.2, zorder=layer + 1)
        axes.axhline(level, color=plots.SOFT, linewidth=0.6, zorder=layer + 1)
        if group.n_pairs:
            # A wide white line under the dark tick gives it an outline.
            mean = float(group.cosines.mean())
            axes.plot([mean, mean], [level, level + 0.25], color="white", linewidth=4.5, zorder=100)
            axes.plot(
                [mean, mean], [level, level + 0.22], color=plots.INK, linewidth=2.5, zorder=101
            )

    # The names of the groups stand where an axis would have its ticks.
    names = [f"{group.label}\nn = {group.n_pairs:,}" for group in groups]
    axes.set_yticks(range(len(groups)), names)
    axes.set_ylim(-0.1, len(groups) - 1 + RIDGE_HEIGHT + 0.1)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def density_analysis(spaces: Sequence[EmbeddingSpace]) -> Analysis:
    """Return statistics and the density of the cosines of each space, by rating group."""
    data = spaces[0].data
    per_space = [rating_groups(space.cosines, data.pairs.gold) for space in spaces]
    by_name = {space.label: groups for space, groups in zip(spaces, per_space, strict=True)}

    # The table has a row for each model and rating group, JSON an object for each model.
    shown = columns("label", "rating", "n_pairs", *STATISTICS, label="model")
    rows = []
    for name, groups in by_name.items():
        rows += [{"label": name, **group.summary()} for group in groups]
    lacks_curve = any(
        group.n_pairs and not group.has_curve for groups in per_space for group in groups
    )
    # The caption has the note on curves too, but not the note on the scale.
    curve_notes = [NO_CURVE] if lacks_curve else []
    notes = list(curve_notes)
    if scale := scale_note(data.pairs.gold):
        notes.append(scale)
    objects = []
    for groups in per_space:
        records = [group.summary() | {"density": group.density.tolist()} for group in groups]
        objects.append({"groups": records})

    # The terminal shows the curves from the smallest cosine upwards, high ratings first.
    def curves() -> str:
        lowest = min(float(space.cosines.min()) for space in spaces)
        # Start at the last point of the grid that is at most ``lowest``. There is none if rounding
        # has made a cosine less than -1; then start at the first point.
        start = max(0, int(GRID.searchsorted(lowest, side="right")) - 1)
        lines = {}
        for name, groups in by_name.items():
            for group in reversed(groups):
                lines[f"{name} {group.label}"] = group.density[start:]
        return plots.bar_lines(lines) + f"cosine from {GRID[start]:.2f} (left) to 1 (right)\n"

    return Analysis(
        title="Cosine similarity by gold rating",
        text="Distribution of cosine similarity in each group of gold ratings: the further apart "
        "the groups, the better the model tells them apart.",
        caption="One panel a model, one ridge a rating group; the black tick is the mean of the "
        f"group. {' '.join([*curve_notes, f'Data: {data.name}.'])}",
        tables=[Report(f"Cosine similarity by gold rating on {data.name}", shown, rows, notes)],
        payload=spaces_payload("density", spaces, objects),
        figure=lambda: density_figure(by_name),
        terminal_plot=curves,
    )
