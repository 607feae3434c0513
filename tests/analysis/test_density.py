import numpy as np
import pytest
from scipy.stats import gaussian_kde

from simcse_cli.analysis.density import (
    GRID,
    STATISTICS,
    RatingGroup,
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
    ],
)
def test_rating_groups_are_fifths_of_the_scale(top, labels):
    gold = np.array([0, 1, 2, 3, 4, 5]) / 5 * top
    groups = rating_groups(np.zeros(6), gold)
    assert [group.label for group in groups] == labels
    assert [group.n_pairs for group in groups] == [1, 1, 1, 1, 2]


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


def test_rating_groups_refuse_unequal_lengths():
    with pytest.raises(ValueError, match="2 cosines but 1 ratings"):
        rating_groups(np.zeros(2), np.zeros(1))


def test_kernel_density_equals_scipy_away_from_the_bounds():
    values = np.random.default_rng(2).normal(0.1, 0.1, size=300)
    oracle = gaussian_kde(values, bw_method=300**-0.2 * values.std() / values.std(ddof=1))(GRID)
    np.testing.assert_allclose(kernel_density(values), oracle, atol=1e-9)


@pytest.mark.parametrize("values", [np.ones(5), np.linspace(-1, 1, 9), np.array([0.3])])
def test_kernel_density_integrates_to_one_between_the_bounds(values):
    assert np.trapezoid(kernel_density(values), GRID) == pytest.approx(1.0, abs=2e-3)


def test_kernel_density_needs_values():
    with pytest.raises(ValueError, match="at least one"):
        kernel_density(np.array([]))


def test_density_figure_has_a_panel_a_model_and_survives_empty_groups():
    groups = rating_groups(np.array([0.1, 0.2, 0.9]), np.array([0.5, 0.6, 4.5]))
    figure = density_figure({"one": groups, "two": groups})
    figure.draw_without_rendering()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one", "two"]
