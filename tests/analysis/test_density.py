from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import gaussian_kde

from analysis.cases import space
from simcse_cli.analysis.density import (
    GRID,
    NO_CURVE,
    RIDGE_HEIGHT,
    STATISTICS,
    RatingGroup,
    density_analysis,
    density_figure,
    kernel_density,
    rating_groups,
)


def test_rating_groups_are_half_open_and_the_last_is_closed():
    gold = np.array([0.0, 0.99, 1.0, 3.999, 4.0, 5.0])
    groups = rating_groups(np.linspace(-1, 1, 6), gold)
    assert [group.n_pairs for group in groups] == [2, 1, 0, 1, 2]
    assert [group.label for group in groups] == ["[0,1)", "[1,2)", "[2,3)", "[3,4)", "[4,5]"]


@pytest.mark.parametrize(
    ("top", "labels"),
    [
        (1.0, ["[0,0.2)", "[0.2,0.4)", "[0.4,0.6)", "[0.6,0.8)", "[0.8,1]"]),
        (10.0, ["[0,2)", "[2,4)", "[4,6)", "[6,8)", "[8,10]"]),
        (-5.0, ["[-5,-3.8)", "[-3.8,-2.6)", "[-2.6,-1.4)", "[-1.4,-0.2)", "[-0.2,1]"]),
    ],
)
def test_rating_groups_are_fifths_of_the_scale(top, labels):
    gold = np.array([0, 1, 2, 3, 4, 5]) / 5 * top
    groups = rating_groups(np.zeros(6), gold)
    assert [group.label for group in groups] == labels
    assert [group.n_pairs for group in groups] == [1, 1, 1, 1, 2][:: 1 if top > 0 else -1]


def test_the_highest_rating_is_in_the_last_group_whatever_the_rounding():
    """A fifth of the way from -0.13 to 1 five times is 0.9999999999999999."""
    groups = rating_groups(np.zeros(2), np.array([-0.13, 1.0]))
    assert [group.n_pairs for group in groups] == [1, 0, 0, 0, 1]
    assert groups[-1].high == 1.0


def test_rating_group_summary_of_known_cosines():
    group = RatingGroup(0, 5, True, np.array([0.0, 0.2, 0.4, 0.6, 0.8]))
    assert group.summary() == pytest.approx(
        {
            "rating": "[0,5]",
            "n_pairs": 5,
            "mean": 0.4,
            "std": np.sqrt(0.08),
            "q25": 0.2,
            "median": 0.4,
            "q75": 0.6,
        }
    )


def test_rating_group_without_pairs_has_no_summary():
    empty = rating_groups(np.array([0.5]), np.array([4.5]))[0]
    assert {empty.summary()[key] for key in STATISTICS} == {None}
    assert not empty.density.any()
    alone = rating_groups(np.array([0.5]), np.array([4.5]))[4]
    assert not alone.density.any()
    assert alone.summary() == {"rating": "[4,5]", "n_pairs": 1, "std": 0} | dict.fromkeys(
        ("mean", "q25", "median", "q75"), 0.5
    )


def test_kernel_density_equals_scipy_away_from_the_bounds():
    values = np.random.default_rng(2).normal(0.1, 0.1, size=300)
    oracle = gaussian_kde(values, bw_method=300**-0.2 * values.std() / values.std(ddof=1))(GRID)
    np.testing.assert_allclose(kernel_density(values), oracle, atol=1e-9)


@pytest.mark.parametrize("values", [np.ones(5), np.linspace(-1, 1, 9), np.array([0.3])])
def test_kernel_density_integrates_to_one_between_the_bounds(values):
    assert np.trapezoid(kernel_density(values), GRID) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize(
    ("value", "position", "times"), [(0.0, 200, 1), (1.0, 400, 2), (-1.0, 0, 2)]
)
def test_kernel_density_of_equal_values_is_a_narrow_bell_reflected_at_the_bounds(
    value, position, times
):
    density = kernel_density(np.full(5, value))
    assert density[position] == density.max() == pytest.approx(times / (0.005 * np.sqrt(2 * np.pi)))


def test_density_figure_has_a_panel_a_model_and_ridges_in_the_order_of_ratings():
    groups = rating_groups(np.array([0.1, 0.2, 0.88, 0.92]), np.array([0.5, 0.6, 4.5, 4.6]))
    figure = density_figure({"one": groups, "two": groups})
    figure.draw_without_rendering()
    axes, other = figure.axes
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["one", "two"]
    assert [panel.get_ylabel() for panel in figure.axes] == ["gold rating", ""]
    assert axes.get_shared_y_axes().joined(
        axes, other
    )  # so that the first names the groups of both
    low, high = axes.get_xlim()
    assert high == 1
    assert -0.1 < low < 0.05
    assert np.interp(low, GRID, groups[0].density) < 0.005 * groups[4].density.max()
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["[0,1)\nn = 2", "[1,2)\nn = 0", "[2,3)\nn = 0", "[3,4)\nn = 0", "[4,5]\nn = 2"]
    assert not axes.spines["left"].get_visible()
    bottom, top = axes.get_ylim()
    assert -0.2 < bottom < 0
    assert 4 + RIDGE_HEIGHT < top < 4.2 + RIDGE_HEIGHT

    outlines = [line for line in axes.lines if len(line.get_xdata()) == len(GRID)][::-1]
    heights = [outline.get_ydata() - level for level, outline in enumerate(outlines)]
    assert max(height.max() for height in heights) == pytest.approx(1.2)
    for height, group in zip(heights, groups, strict=True):
        np.testing.assert_allclose(
            height, 1.2 / groups[4].density.max() * group.density, atol=1e-12
        )
    # From the back: the fill of the highest rating, its outline, the fill of the next.
    layers = [
        each.get_zorder()
        for pair in zip(axes.collections, outlines[::-1], strict=True)
        for each in pair
    ]
    assert layers == sorted(set(layers))
    drawn = [line for line in axes.lines if len(line.get_xdata())]  # not the one of the legend
    ticks = [line for line in drawn if line.get_xdata()[0] == line.get_xdata()[-1]]
    assert [tick.get_xdata()[0] for tick in ticks] == pytest.approx([0.9, 0.9, 0.15, 0.15])
    assert [tick.get_ydata()[0] for tick in ticks] == [4, 4, 0, 0]
    for white, black in (ticks[:2], ticks[2:]):
        assert max(layers) < white.get_zorder() < black.get_zorder()
        level = white.get_ydata()[0]
        assert level < black.get_ydata()[1] < white.get_ydata()[1] < level + 0.3


@pytest.mark.parametrize("cosines", [[0.9], [0.9, 0.9]])
def test_a_group_without_spread_is_a_tick_and_does_not_set_the_scale(cosines):
    ratings = [0.5, 0.6, *[4.5] * len(cosines)]
    groups = rating_groups(np.array([0.1, 0.5, *cosines]), np.array(ratings))
    figure = density_figure({"one": groups})
    (axes,) = figure.axes
    outlines = [line for line in axes.lines if len(line.get_xdata()) == len(GRID)]
    assert outlines[0].get_ydata().tolist() == [4.0] * len(GRID)
    assert outlines[-1].get_ydata().max() == pytest.approx(RIDGE_HEIGHT)
    ticks = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2]
    assert ticks.count(pytest.approx(0.9)) == 2  # black on white
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["mean of the group"]
    alone = density_figure({"one": rating_groups(np.array([-0.4]), np.array([4.5]))})
    assert alone.axes[0].get_xlim() == pytest.approx((-0.45, 1.0))


def test_titles_of_panels_lie_side_by_side():
    groups = rating_groups(np.array([0.1, 0.2, 0.9, 0.8]), np.array([0.5, 0.6, 4.5, 5.0]))
    names = [f"{i} SimCSE on MiniLM-L6, temperature 0.2, ten steps of 16 rows" for i in range(3)]
    figure = density_figure(dict.fromkeys(names, groups))
    figure.draw_without_rendering()
    boxes = [axes._left_title.get_window_extent() for axes in figure.axes]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
    assert boxes[-1].x1 <= figure.bbox.x1
    assert [axes.get_title(loc="left").replace("\n", " ") for axes in figure.axes] == names


def test_density_figure_ends_at_the_bounds_of_cosines():
    groups = rating_groups(np.array([-0.98, -0.9, 0.9]), np.array([0.5, 0.5, 4.5]))
    assert density_figure({"one": groups}).axes[0].get_xlim() == (-1, 1)


def test_curves_of_opposite_vectors_start_at_minus_1():
    left = np.random.default_rng(0).standard_normal((8, 8))
    opposite = space(left, -left, np.arange(8) / 2)
    assert opposite.cosines.min() < -1
    assert "cosine from -1.00 (left)" in density_analysis([opposite]).terminal_plot()


def test_density_analysis_of_two_spaces():
    angle = np.arccos(0.507)
    right = [[1, 0], [np.cos(angle), np.sin(angle)]]
    low, high = (
        space([[1, 0], [1, 0]], right, [4.5, 0.5]),
        space(np.eye(2), np.eye(2), [4.5, 0.5], label="two"),
    )
    found = density_analysis([low, high])
    (table,) = found.tables
    assert (
        table.title
        == density_analysis([low]).tables[0].title
        == "Cosine similarity by gold rating on some"
    )
    headings = ["model", "rating", "pairs", "mean", "std", "q25", "median", "q75"]
    assert [column.heading for column in table.columns] == headings
    assert table.cells()[:2] == [
        ["one", "[0,1)", "1", "0.507", "0", "0.507", "0.507", "0.507"],
        ["one", "[1,2)", "0", "–", "–", "–", "–", "–"],
    ]
    assert [row["label"] for row in table.rows] == ["one"] * 5 + ["two"] * 5
    first = found.payload["models"][0]["groups"][0]
    assert (first["rating"], first["n_pairs"], first["mean"]) == ("[0,1)", 1, pytest.approx(0.507))
    assert set(first["density"]) == {0.0}
    assert table.notes == [NO_CURVE]
    assert NO_CURVE in found.caption
    *lines, ends = found.terminal_plot().splitlines()
    assert (
        ends == "cosine from 0.51 (left) to 1 (right)"
    )  # 0.505, the last point of the grid before 0.507
    names = [
        f"{name} {rating}"
        for name in ("one", "two")
        for rating in ("[4,5]", "[3,4)", "[2,3)", "[1,2)", "[0,1)")
    ]
    assert [line[:9] for line in lines] == names


def test_a_scale_that_is_not_that_of_sts_is_told():
    found = density_analysis([space(np.eye(2), np.eye(2), [1, 7])])
    assert "ratings are taken for a scale from 0 to 10" in found.tables[0].notes[-1]
