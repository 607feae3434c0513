import numpy as np
import pytest

from simcse_cli.analysis.densities import rating_groups
from simcse_cli.analysis.figures import (
    GeometryPoint,
    density_figure,
    geometry_figure,
    overlap_figure,
    retrieval_figure,
    spectrum_figure,
)
from simcse_cli.analysis.plots import figure_svg, save_figure
from simcse_cli.analysis.retrieval import RetrievalScores
from simcse_cli.analysis.spectrum import describe_spectrum
from simcse_cli.analysis.trace import Trace
from simcse_cli.analysis.trace_figure import trace_figure
from simcse_cli.errors import OutputError

POINTS = [GeometryPoint("one", 0.2, -2.0, 0.7), GeometryPoint("two", 0.3, -3.0, 0.8)]
MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def texts_of(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts if text.get_text()]


def trace(name: str, n_steps: int, *, dev: bool = True) -> Trace:
    steps = np.arange(n_steps) * 10
    line = np.linspace(0.0, 1.0, n_steps)
    return Trace(name, steps, 0.2 + line, -1 - line, line if dev else np.full(n_steps, np.nan))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_save_figure_writes_the_kind_its_ending_says(tmp_path, ending):
    save_figure(geometry_figure(POINTS), tmp_path / f"figure.{ending}")
    assert (tmp_path / f"figure.{ending}").read_bytes().startswith(MAGIC[ending])


def test_save_figure_refuses_another_ending(tmp_path):
    with pytest.raises(OutputError, match=r"\.png, \.svg or \.pdf"):
        save_figure(geometry_figure(POINTS), tmp_path / "figure.gif")


def test_save_figure_keeps_an_existing_file(tmp_path):
    (tmp_path / "mine.png").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        save_figure(geometry_figure(POINTS), tmp_path / "mine.png")


def test_figure_svg_is_the_same_every_time():
    assert figure_svg(geometry_figure(POINTS)) == figure_svg(geometry_figure(POINTS))


def test_geometry_figure_names_every_point_and_colours_by_score():
    figure = geometry_figure(POINTS)
    assert texts_of(figure) == ["one", "two"]
    assert figure.axes[0].collections[0].get_array().tolist() == [70.0, 80.0]


def test_geometry_figure_without_a_score_has_no_colour_bar():
    assert len(geometry_figure([GeometryPoint("one", 0.2, -2.0)]).axes) == 1


def test_labels_of_close_points_do_not_cover_each_other():
    points = [GeometryPoint(f"model number {i}", 0.2 + i / 500, -2.0) for i in range(4)]
    figure = geometry_figure(points)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_spectrum_figure_draws_every_relative_value():
    spectrum = describe_spectrum(np.random.default_rng(0).normal(size=(20, 6)))
    (line,) = spectrum_figure({"one": spectrum}).axes[0].lines
    np.testing.assert_array_equal(line.get_ydata(), spectrum.relative)


def test_density_figure_has_a_panel_a_model_and_survives_empty_groups():
    groups = rating_groups(np.array([0.1, 0.2, 0.9]), np.array([0.5, 0.6, 4.5]))
    figure = density_figure({"one": groups, "two": groups})
    figure.draw_without_rendering()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one", "two"]


def test_retrieval_figure_draws_hit_rate_and_recall():
    scores = RetrievalScores(5, np.array([0.1, 0.2]), np.array([0.4, 0.6]), 0.5)
    panels = retrieval_figure({"one": scores}).axes
    assert [panel.lines[0].get_ydata().tolist() for panel in panels] == [[40.0, 60.0], [10.0, 20.0]]


def test_overlap_figure_shares_add_up_to_all_pairs():
    figure = overlap_figure({"file": np.array([0.0, 0.5, 1.0, 1.0])})
    assert figure.axes[0].patches[0].get_data().values.sum() == pytest.approx(100)


@pytest.mark.parametrize(
    ("n_steps", "dev", "titles"),
    [
        (15, True, ["first 100 steps", "whole run (140 steps)", "dev score"]),
        (15, False, ["first 100 steps", "whole run (140 steps)"]),
        (5, True, ["whole run (40 steps)", "dev score"]),
    ],
)
def test_trace_figure_has_the_panels_that_the_runs_allow(n_steps, dev, titles):
    figure = trace_figure([trace("one", n_steps, dev=dev), trace("two", n_steps, dev=dev)])
    assert [axes.get_title(loc="left") for axes in figure.axes] == titles
