"""The figures of `simcse analyze`: each function draws one from numbers that were computed elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.analysis.densities import GRID, RatingGroup
from simcse_cli.analysis.labels import place_labels
from simcse_cli.analysis.plots import GRADED_COLOURS, colour, dash, house_style, new_figure
from simcse_cli.analysis.retrieval import RetrievalScores
from simcse_cli.analysis.spectrum import Spectrum

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RIDGE_HEIGHT = 1.2
RANK_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
OVERLAP_BINS = np.linspace(0, 1, 21)


@dataclass(frozen=True)
class GeometryPoint:
    """One model in the scatter of alignment and uniformity; ``score`` is a fraction, None when unknown."""

    name: str
    alignment: float
    uniformity: float
    score: float | None = None


def geometry_figure(
    points: Sequence[GeometryPoint], score_label: str = "STS-B test, Spearman x 100"
) -> "Figure":
    """Return the scatter of models: uniformity to the right, alignment upwards, lower is better in both.

    Source: Gao et al. 2021, Figure 3. Points are coloured by score, where every model has one.
    """
    with house_style():
        figure, (axes,) = new_figure(6.4, 4.6)
        x, y = [point.uniformity for point in points], [point.alignment for point in points]
        scores = [100 * point.score for point in points if point.score is not None]
        graded: dict[str, Any] = {"c": scores, "cmap": GRADED_COLOURS} if len(scores) == len(points) else {}
        spots = axes.scatter(x, y, s=70, edgecolor="black", linewidth=0.8, zorder=3, **graded)
        if graded:
            figure.colorbar(spots, ax=axes, label=score_label)
        axes.margins(0.22)
        axes.set_xlabel("uniformity (lower is better)")
        axes.set_ylabel("alignment (lower is better)")
        place_labels(figure, axes, list(zip(x, y, strict=True)), [point.name for point in points])
    return figure


def spectrum_figure(spectra: Mapping[str, Spectrum]) -> "Figure":
    """Return the singular values of each model divided by its largest (Gao et al. 2021, Figure F.1)."""
    with house_style():
        figure, (axes,) = new_figure(6.4, 4.2)
        for position, (name, spectrum) in enumerate(spectra.items()):
            ranks = np.arange(1, len(spectrum.relative) + 1)
            label = f"{name} (effective rank {spectrum.effective_rank:.0f})"
            axes.plot(ranks, spectrum.relative, color=colour(position), linestyle=dash(position), label=label)
        axes.set_ylim(0, 1.02)
        _rank_axis(axes, max(len(spectrum.relative) for spectrum in spectra.values()))
        axes.set_xlabel("rank of the singular value")
        axes.set_ylabel("singular value / largest")
        axes.legend()
    return figure


def _rank_axis(axes: "Axes", last: int) -> None:
    axes.set_xscale("log")
    axes.set_xticks([tick for tick in RANK_TICKS if tick <= last])
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.minorticks_off()


def density_figure(groups_by_model: Mapping[str, Sequence[RatingGroup]]) -> "Figure":
    """Return one ridge plot a model: the density of cosines per rating group, highest ratings on top.

    Source: Gao et al. 2021, Figure G.1. Heights are comparable inside a panel; the black tick is the mean.
    The groups are the same in every panel, so only the first one names them.
    """
    with house_style():
        figure, panels = new_figure(1.4 + 3.6 * len(groups_by_model), 4.6, len(groups_by_model), sharey=True)
        lowest = min(
            (
                float(group.cosines.min())
                for groups in groups_by_model.values()
                for group in groups
                if group.n_pairs
            ),
            default=-1.0,
        )
        for axes, (name, groups) in zip(panels, groups_by_model.items(), strict=True):
            _draw_ridges(axes, groups)
            axes.set_title(name)
            axes.set_xlabel("cosine similarity")
            axes.set_xlim(max(-1.0, lowest - 0.05), 1.0)
        panels[0].set_ylabel("gold rating")
    return figure


def _draw_ridges(axes: "Axes", groups: Sequence[RatingGroup]) -> None:
    import matplotlib

    densities = [group.density() for group in groups]
    scale = RIDGE_HEIGHT / max(max(float(density.max()) for density in densities), 1e-12)
    shades = matplotlib.colormaps[GRADED_COLOURS](np.linspace(0.05, 0.95, len(groups)))
    for level, (group, density) in reversed(list(enumerate(zip(groups, densities, strict=True)))):
        ridge = level + scale * density
        depth = 2 * (len(groups) - level)
        axes.fill_between(GRID, level, ridge, color=shades[level], alpha=0.9, linewidth=0, zorder=depth)
        axes.plot(GRID, ridge, color="white", linewidth=1.2, zorder=depth + 1)
        axes.axhline(level, color="#999999", linewidth=0.6, zorder=depth + 1)
        if group.n_pairs:
            mean = float(group.cosines.mean())
            axes.plot([mean, mean], [level, level + 0.25], color="white", linewidth=4.5, zorder=100)
            axes.plot([mean, mean], [level, level + 0.22], color="black", linewidth=2.5, zorder=101)
    axes.set_yticks(range(len(groups)), [f"{group.label}\nn = {group.n_pairs:,}" for group in groups])
    axes.set_ylim(-0.1, len(groups) - 1 + RIDGE_HEIGHT + 0.1)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def retrieval_figure(scores: Mapping[str, RetrievalScores]) -> "Figure":
    """Return hit rate and recall against the number of sentences looked at, one curve a model."""
    with house_style():
        figure, panels = new_figure(8.6, 3.9, 2, sharey=True)
        for axes, measure in zip(panels, ("hit_rate", "recall"), strict=True):
            for position, (name, score) in enumerate(scores.items()):
                values: NDArray[np.float64] = 100 * getattr(score, measure)
                ranks = np.arange(1, score.depth + 1)
                axes.plot(ranks, values, color=colour(position), linestyle=dash(position), label=name)
            _rank_axis(axes, max(score.depth for score in scores.values()))
            axes.set_xlabel("sentences looked at, k")
            axes.set_ylim(0, 102)
        panels[0].set_title("at least one relevant (hit rate@k)")
        panels[1].set_title("share of the relevant (recall@k)")
        panels[0].set_ylabel("% of queries, or of relevant sentences")
        panels[0].legend(loc="lower right")
    return figure


def overlap_figure(overlaps: Mapping[str, NDArray[np.float64]]) -> "Figure":
    """Return the distribution of lexical overlap of each pair file, with its mean as a vertical line."""
    with house_style():
        figure, (axes,) = new_figure(6.4, 4.0)
        for position, (name, values) in enumerate(overlaps.items()):
            counts, _ = np.histogram(values, OVERLAP_BINS)
            shares = 100 * counts / len(values)
            style: dict[str, Any] = {"color": colour(position), "linestyle": dash(position)}
            axes.stairs(
                shares, OVERLAP_BINS, linewidth=1.8, label=f"{name} (mean {values.mean():.0%})", **style
            )
            axes.axvline(float(values.mean()), linewidth=1.0, **style)
        axes.set_xlim(0, 1)
        axes.set_xlabel("F1 between the words of the two sides")
        axes.set_ylabel("% of pairs")
        axes.legend()
    return figure
