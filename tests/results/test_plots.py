from xml.etree import ElementTree

import numpy as np
import pytest

from simcse_cli.analysis.spectrum import Spectrum, spectrum_figure
from simcse_cli.errors import OutputError
from simcse_cli.progress import SilentProgress
from simcse_cli.results.plots import (
    bar_line,
    bar_lines,
    curve_style,
    geometry_scatter,
    inline_svg,
    new_figure,
    save_figure,
    show_noise,
)

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def draw():
    drawn, (axes,) = new_figure(2, 2)
    axes.plot([0, 1], [1, 0], label="a")
    axes.legend()
    return drawn


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_save_figure_writes_the_kind_its_ending_says(tmp_path, ending):
    save_figure(draw(), tmp_path / f"figure.{ending}")
    assert (tmp_path / f"figure.{ending}").read_bytes().startswith(MAGIC[ending])


def test_save_figure_refuses_another_ending(tmp_path):
    with pytest.raises(OutputError, match=r"\.png, \.svg or \.pdf"):
        save_figure(draw(), tmp_path / "figure.gif")


def test_save_figure_keeps_an_existing_file(tmp_path):
    (tmp_path / "mine.png").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        save_figure(draw(), tmp_path / "mine.png")


def test_inline_svg_is_the_same_every_time():
    assert inline_svg(draw(), "f-") == inline_svg(draw(), "f-")


def test_bar_line_runs_from_blank_to_full():
    assert bar_line(np.array([0.0, 4.0, 8.0])) == " ▄█"


def test_bar_line_averages_stretches_and_skips_nan():
    assert bar_line(np.array([0.0, 8.0, np.nan, np.nan, 8.0, np.nan]), width=3) == "▄ █"


@pytest.mark.parametrize(
    ("scores", "limits"), [([90.0], (88.1, 91.9)), ([70.0, 95.0], (60.0, 99.0))]
)
def test_an_axis_of_correlations_shows_two_standard_errors(scores, limits):
    _, (axes,) = new_figure(3, 3)
    axes.set_ylim((89.9, 90.1) if len(scores) == 1 else (60.0, 99.0))
    show_noise(axes, scores, 401)  # (1 - 0.9^2) / sqrt(400) = 0.0095
    assert axes.get_ylim() == pytest.approx(limits)


def test_bar_line_of_zeros_is_blank():
    assert bar_line(np.zeros(4)) == "    "


def test_a_series_without_values_has_no_bars():
    assert bar_line(np.zeros(0)) == ""
    assert bar_lines({"a": np.array([1.0]), "b": np.zeros(0)}) == "a  █\nb  \n"


def test_bar_lines_share_one_scale():
    assert bar_lines({"a": np.array([1.0]), "long": np.array([2.0])}) == "a     ▄\nlong  █\n"


def test_scatter_puts_the_highest_point_on_top_and_the_lowest_left():
    points = {"up": np.array([[1.0, 1.0]]), "down": np.array([[0.0, 0.0]])}
    lines = geometry_scatter(points, width=5, height=3).splitlines()
    assert lines[1] == "1.000 |    A"
    assert lines[3] == "0.000 |B    "
    assert lines[-2:] == ["  A  up", "  B  down"]


def test_scatter_marks_where_series_meet():
    points = {"one": np.array([[0.0, 0.0], [1.0, 1.0]]), "two": np.array([[0.0, 0.0]])}
    assert "|*" in geometry_scatter(points, width=5, height=3)


def test_scatter_of_one_point_is_drawn():
    assert "A" in geometry_scatter({"only": np.array([[2.0, 3.0]])})


def test_ten_curves_differ_in_dash_and_twenty_in_colour_or_dash():
    styles = [curve_style(position) for position in range(20)]
    assert len({style["linestyle"] for style in styles[:10]}) == 10
    assert len({(style["color"], style["linestyle"]) for style in styles}) == 20


@pytest.mark.parametrize("label", ["run", "SimCSE on MiniLM-L6, temperature 0.2, ten steps of 16"])
def test_a_legend_of_many_names_lies_below_the_axes(label):
    names = [f"{i} {label}" for i in range(10)]
    figure = spectrum_figure(dict.fromkeys(names, Spectrum(1.5, 0.5, np.array([2.0, 1.0]))))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.y1 < axes.get_tightbbox().y0
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert legend.get_texts()[0].get_text().splitlines()[-1] == "(effective rank 2)"
    assert axes.get_window_extent().height > 300


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_any_name_of_a_folder_is_a_label(tmp_path, ending):
    names = ["_run", "caf\udce9", "a\x1b[31mb"]  # the second is of bytes that are not UTF-8
    figure = spectrum_figure(dict.fromkeys(names, Spectrum(1.5, 0.5, np.array([2.0, 1.0]))))
    path = tmp_path / f"a.{ending}"
    save_figure(figure, path)
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(names)
    if ending == "svg":
        ElementTree.parse(path)


def test_characters_that_no_font_has_are_told_by_one_message_for_all_files(tmp_path):
    figure, _ = new_figure(3, 2)
    figure.text(0.1, 0.5, "ok \U0001304f\U00013050")  # hieroglyphs
    said = SilentProgress()
    save_figure(figure, tmp_path / "a.png", progress=said)
    inline_svg(figure, "f-", said)
    assert len(said.warnings) == 2
    assert len(set(said.warnings)) == 1
    assert "2 characters of the figure are boxes: \U0001304f \U00013050;" in said.warnings[0]
