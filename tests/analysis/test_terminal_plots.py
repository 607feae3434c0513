import numpy as np

from simcse_cli.analysis.terminal_plots import bar_line, bar_lines, scatter


def test_bar_line_runs_from_blank_to_full():
    assert bar_line(np.array([0.0, 4.0, 8.0])) == " ▄█"


def test_bar_line_averages_stretches_and_skips_nan():
    assert bar_line(np.array([0.0, 8.0, np.nan, np.nan, 8.0, np.nan]), width=3) == "▄ █"


def test_bar_line_of_zeros_is_blank():
    assert bar_line(np.zeros(4)) == "    "


def test_bar_lines_share_one_scale():
    assert bar_lines({"a": np.array([1.0]), "long": np.array([2.0])}) == "a     ▄\nlong  █\n"


def test_scatter_puts_the_highest_point_on_top_and_the_lowest_left():
    points = {"up": np.array([[1.0, 1.0]]), "down": np.array([[0.0, 0.0]])}
    lines = scatter(points, x_label="x", y_label="y", width=5, height=3).splitlines()
    assert lines[1] == "1.000 |    A"
    assert lines[3] == "0.000 |B    "
    assert lines[-2:] == ["  A  up", "  B  down"]


def test_scatter_marks_where_series_meet():
    points = {"one": np.array([[0.0, 0.0], [1.0, 1.0]]), "two": np.array([[0.0, 0.0]])}
    assert "|*" in scatter(points, x_label="x", y_label="y", width=5, height=3)


def test_scatter_of_one_point_is_drawn():
    assert "A" in scatter({"only": np.array([[2.0, 3.0]])}, x_label="x", y_label="y")
