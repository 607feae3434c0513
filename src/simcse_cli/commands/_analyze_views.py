"""The three views of an embedding space: geometry, spectrum and densities as tables, numbers and pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcse_cli.commands._analyze_output import Findings, html_table
from simcse_cli.commands._analyze_space import MeasuredSpace
from simcse_cli.report import Column, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simcse_cli.analysis.html import HtmlSection
    from simcse_cli.analysis.rated_pairs import RatedPairs

Spaces = Sequence[MeasuredSpace]


def _score_label(pairs: "RatedPairs") -> str:
    """Return what the score column is called."""
    return "STS-B test" if pairs.name == "STS-B" else "Spearman"


def _geometry_report(spaces: Spaces) -> Report:
    """Return one row a system: alignment, uniformity, effective rank, isotropy, mean cosine and score."""
    pairs = spaces[0].pairs
    columns = [
        Column("label", "model"),
        Column("alignment", kind="number"),
        Column("uniformity", kind="number"),
        Column("effective_rank", "eff. rank", "number"),
        Column("isotropy", kind="number"),
        Column("mean_cosine", "mean cosine", "number"),
        Column("score", _score_label(pairs), "score"),
    ]
    sizes = spaces[0].geometry
    return Report(
        f"Geometry on {pairs.name}: {sizes.n_positives:,} positive pairs, {sizes.n_sentences:,} sentences",
        columns,
        [_geometry_row(space) for space in spaces],
        ["Lower alignment and uniformity are better; compare effective rank only between equal widths."],
    )


def _geometry_row(space: MeasuredSpace) -> dict[str, Any]:
    """Return the numbers of one system."""
    return {
        **space.system.facts(),
        "dim": space.left.shape[1],
        "n_positives": space.geometry.n_positives,
        "n_sentences": space.geometry.n_sentences,
        "alignment": space.geometry.alignment,
        "uniformity": space.geometry.uniformity,
        "effective_rank": space.spectrum.effective_rank,
        "isotropy": space.spectrum.isotropy,
        "mean_cosine": space.geometry.mean_cosine,
        "score": space.score,
    }


def _geometry_drawing(spaces: Spaces) -> "Figure":
    """Return the scatter of the systems, coloured by score."""
    from simcse_cli.analysis.figures import GeometryPoint, geometry_figure

    points = [
        GeometryPoint(space.system.label, space.geometry.alignment, space.geometry.uniformity, space.score)
        for space in spaces
    ]
    return geometry_figure(points, f"{_score_label(spaces[0].pairs)}, Spearman x 100")


def _geometry_plot(spaces: Spaces) -> str:
    """Return the scatter in characters."""
    import numpy as np

    from simcse_cli.analysis.terminal_plots import scatter

    points = {
        space.system.label: np.array([[space.geometry.uniformity, space.geometry.alignment]])
        for space in spaces
    }
    return scatter(points, x_label="uniformity", y_label="alignment")


def _spectrum_report(spaces: Spaces) -> Report:
    """Return one row a system: summaries, and the relative singular value at a few ranks."""
    ranks = [2, 10, 50, 100, 200, 300]
    rows = []
    for space in spaces:
        relative = space.spectrum.relative
        row = {
            **space.system.facts(),
            "dim": space.left.shape[1],
            "effective_rank": space.spectrum.effective_rank,
        }
        row |= {"isotropy": space.spectrum.isotropy}
        rows.append(row | {f"s{k}": float(relative[k - 1]) for k in ranks if k <= len(relative)})
    columns = [
        Column("label", "model"),
        Column("dim", kind="count"),
        Column("effective_rank", "eff. rank", "number"),
    ]
    columns += [Column("isotropy", kind="number"), *(Column(f"s{k}", f"s{k}/s1", "number") for k in ranks)]
    return Report(f"Singular values on {spaces[0].pairs.name}, {_preparation(spaces[0])}", columns, rows)


def _preparation(space: MeasuredSpace) -> str:
    rows = "unit rows" if space.normalize else "raw rows"
    return f"{rows}, centred" if space.center else f"{rows}, not centred"


def _spectrum_series(spaces: Spaces) -> Report:
    """Return every singular value as one long table."""
    columns = [Column("model"), Column("rank", kind="count"), Column("singular_value", kind="number")]
    rows = [
        {
            "model": space.system.label,
            "rank": rank,
            "singular_value": float(value),
            "relative": float(relative),
        }
        for space in spaces
        for rank, (value, relative) in enumerate(
            zip(space.spectrum.singular_values, space.spectrum.relative, strict=True), start=1
        )
    ]
    return Report("Singular values", [*columns, Column("relative", kind="number")], rows)


def _spectrum_row(space: MeasuredSpace) -> dict[str, Any]:
    """Return the numbers of one system, all singular values included."""
    return {
        **space.system.facts(),
        "effective_rank": space.spectrum.effective_rank,
        "isotropy": space.spectrum.isotropy,
        "singular_values": space.spectrum.singular_values.tolist(),
    }


def _spectrum_drawing(spaces: Spaces) -> "Figure":
    """Return the curves of the systems."""
    from simcse_cli.analysis.figures import spectrum_figure

    return spectrum_figure({space.system.label: space.spectrum for space in spaces})


def _spectrum_plot(spaces: Spaces) -> str:
    """Return the curves in characters, the largest value left out of the scale."""
    from simcse_cli.analysis.terminal_plots import bar_lines

    return bar_lines({space.system.label: space.spectrum.relative[1:] for space in spaces})


def _density_report(spaces: Spaces) -> Report:
    """Return one row a system and rating group."""
    columns = [Column("label", "model"), Column("rating"), Column("n_pairs", "pairs", "count")]
    columns += [Column(key, kind="number") for key in ("mean", "std", "q25", "median", "q75")]
    rows = [{"label": space.system.label} | row for space in spaces for row in _group_rows(space)]
    return Report(f"Cosine similarity by gold rating on {spaces[0].pairs.name}", columns, rows)


def _group_rows(space: MeasuredSpace) -> list[dict[str, Any]]:
    """Return the summary of each rating group."""
    return [{"rating": group.label, "n_pairs": group.n_pairs, **group.summary()} for group in space.groups]


def _density_row(space: MeasuredSpace) -> dict[str, Any]:
    """Return the numbers of one system, the curves included."""
    curves = [group.density().tolist() for group in space.groups]
    groups = [row | {"density": curve} for row, curve in zip(_group_rows(space), curves, strict=True)]
    return {**space.system.facts(), "groups": groups}


def _density_drawing(spaces: Spaces) -> "Figure":
    """Return the ridge plots."""
    from simcse_cli.analysis.figures import density_figure

    return density_figure({space.system.label: space.groups for space in spaces})


def _density_plot(spaces: Spaces) -> str:
    """Return the densities in characters, over the cosines that occur."""
    from simcse_cli.analysis.densities import GRID
    from simcse_cli.analysis.terminal_plots import bar_lines

    start = GRID.searchsorted(min(float(space.cosines.min()) for space in spaces), side="right") - 1
    lines = {
        f"{space.system.label} {group.label}": group.density()[start:]
        for space in spaces
        for group in reversed(space.groups)
    }
    return bar_lines(lines) + f"cosine from {GRID[start]:.2f} (left) to 1 (right)\n"


@dataclass(frozen=True)
class View:
    """One view of embedding spaces and how it is shown."""

    name: str
    title: str
    text: str
    caption: str
    report: Callable[[Spaces], Report]
    row: Callable[[MeasuredSpace], dict[str, Any]]
    drawing: "Callable[[Spaces], Figure]"
    plot: Callable[[Spaces], str]
    series: Callable[[Spaces], Report] | None = None

    def section(self, spaces: Spaces) -> "HtmlSection":
        """Return the view as a part of the page."""
        from simcse_cli.analysis.html import HtmlFigure, HtmlSection
        from simcse_cli.analysis.plots import figure_svg

        figure = HtmlFigure(figure_svg(self.drawing(spaces)), f"{self.caption} Data: {spaces[0].pairs.name}.")
        return HtmlSection(self.title, self.text, [figure], [html_table(self.report(spaces))])


GEOMETRY = View(
    "geometry",
    "Alignment and uniformity",
    "Alignment: mean squared distance between the unit vectors of pairs rated above 4. Uniformity: log of "
    "the mean of exp(-2 squared distance) over all pairs of sentences. Lower is better in both.",
    "One point a model, coloured by its correlation with the gold ratings.",
    _geometry_report,
    _geometry_row,
    _geometry_drawing,
    _geometry_plot,
)
SPECTRUM = View(
    "spectrum",
    "Singular values",
    "Singular values of the matrix of sentence vectors, divided by the largest: the slower they fall, the "
    "more directions the model uses.",
    "One curve a model; the horizontal axis is logarithmic.",
    _spectrum_report,
    _spectrum_row,
    _spectrum_drawing,
    _spectrum_plot,
    _spectrum_series,
)
DENSITY = View(
    "density",
    "Cosine similarity by gold rating",
    "Distribution of cosine similarity in each group of gold ratings: the further apart the groups, the "
    "better the model tells them apart.",
    "One panel a model, one ridge a rating group; the black tick is the mean of the group.",
    _density_report,
    _density_row,
    _density_drawing,
    _density_plot,
)
VIEWS = (GEOMETRY, SPECTRUM, DENSITY)


def view_findings(view: View, spaces: Spaces, extra_sections: "Callable[[], list[HtmlSection]]") -> Findings:
    """Return one view for the terminal, and all views (with ``extra_sections``) for the page."""
    pairs = spaces[0].pairs
    return Findings(
        reports=[view.report(spaces)],
        payload={
            "analysis": view.name,
            "data": pairs.name,
            "n_pairs": len(pairs.gold),
            "models": [view.row(space) for space in spaces],
        },
        figure=lambda: view.drawing(spaces),
        terminal=lambda: view.plot(spaces),
        sections=lambda: [each.section(spaces) for each in VIEWS] + extra_sections(),
        title=f"Embedding spaces on {pairs.name}",
        series=[view.series(spaces)] if view.series else [],
    )
