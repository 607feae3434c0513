import itertools

import pytest

from simcse_cli.training.sweep_figure import SweepPoint, draw_sweep

VALUES = {
    "lr": [1e-5, 3e-5, 1e-3],
    "batch_size": [8, 16],
    "epochs": [1, 2],
    "pooler": ["cls", "avg"],
    "options.dual_encoder": [False, True],
}


def points(names):
    combinations = itertools.product(*(VALUES[name] for name in names))
    return [
        SweepPoint(dict(zip(names, values, strict=True)), 0.8 + 0.01 * i, 0.002)
        for i, values in enumerate(combinations)
    ]


def test_draw_sweep_of_one_setting_is_a_line_over_its_values():
    axes = draw_sweep(points(["lr"]), ["lr"]).axes[0]
    assert (axes.get_xlabel(), axes.get_xscale()) == ("lr", "log")
    assert axes.lines[0].get_xdata().tolist() == VALUES["lr"]
    assert axes.lines[-1].get_ydata()[0] == pytest.approx(82.0)


@pytest.mark.parametrize(
    ("name", "labels"), [("pooler", ["cls", "avg"]), ("options.dual_encoder", ["False", "True"])]
)
def test_draw_sweep_of_one_setting_without_numbers_names_its_values(name, labels):
    axes = draw_sweep(points([name]), [name]).axes[0]
    assert axes.get_xlabel() == name
    assert [label.get_text() for label in axes.get_xticklabels()] == labels
    assert (axes.lines[-1].get_xdata()[0], axes.lines[-1].get_ydata()[0]) == (
        1,
        pytest.approx(81.0),
    )


def test_draw_sweep_of_two_settings_is_a_grid_with_the_best_marked():
    axes = draw_sweep(points(["lr", "batch_size"]), ["lr", "batch_size"]).axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["80.00", "81.00", "82.00", "83.00", "84.00", "85.00 *"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("batch_size", "lr")


def test_draw_sweep_of_more_or_an_incomplete_grid_goes_trial_by_trial():
    names = ["lr", "batch_size", "epochs"]
    axes = draw_sweep(points(names), names).axes[0]
    assert axes.get_xlabel() == "trial"
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    assert draw_sweep(points(names[:2])[:5], names[:2]).axes[0].get_xlabel() == "trial"


def test_draw_sweep_of_repeated_trials_is_no_grid():
    """A search may draw the same settings again, so that there are as many trials as cells."""
    names = ["pooler", "epochs"]
    drawn = points(names)
    axes = draw_sweep([*drawn[:3], drawn[0]], names).axes[0]
    assert axes.get_xlabel() == "trial"


def test_draw_sweep_of_lists_names_them():
    drawn = [SweepPoint({"train_file": files}, 0.8) for files in (["a", "b"], ["c"])]
    axes = draw_sweep(drawn, ["train_file"]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["['a', 'b']", "['c']"]
