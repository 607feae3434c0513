"""Settings and examples that changed between two entries."""

import numpy as np
import pytest

from simcse_cli.comparison.changes import changed_pairs, changed_predictions, changed_settings, rank_errors
from simcse_cli.results.examples import SubsetPairs, TaskPredictions


def test_changed_settings_are_those_that_differ() -> None:
    changes = changed_settings({"lr": 1.0, "seed": 1}, {"lr": 2.0, "seed": 1, "patience": 3})
    assert [(change["key"], change["before"], change["after"]) for change in changes] == [
        ("lr", 1.0, 2.0),
        ("patience", None, 3),
    ]


def test_rank_errors_closed_form() -> None:
    assert rank_errors(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])).tolist() == [1.0, 0.0, 1.0]
    assert rank_errors(np.array([0.3, 0.1, 0.1]), np.array([5.0, 0.0, 0.0])).tolist() == [0.0, 0.0, 0.0]


def test_changed_pairs_find_the_pair_that_moved() -> None:
    gold = np.arange(5.0)
    texts = tuple(f"sentence {i}" for i in range(5))
    right_order = SubsetPairs(gold, gold / 5, texts, texts)
    last_first = SubsetPairs(gold, np.array([0.1, 0.2, 0.3, 0.4, 0.0]))
    (gain,) = changed_pairs({"STS12": {"s": last_first}}, {"STS12": {"s": right_order}}, n=1)
    assert (gain["index"], gain["left"], gain["gain"]) == (4, "sentence 4", 1.0)
    (loss,) = changed_pairs({"STS12": {"s": right_order}}, {"STS12": {"s": last_first}}, n=1)
    assert loss["gain"] == -1.0


def test_changed_pairs_pass_over_other_data() -> None:
    a = SubsetPairs(np.array([1.0, 2.0]), np.array([0.1, 0.2]))
    b = SubsetPairs(np.array([1.0, 3.0]), np.array([0.1, 0.2]))
    assert changed_pairs({"STS12": {"s": a}}, {"STS12": {"s": b}}, n=3) == []


def predictions(wrong: list[int], n: int = 8) -> TaskPredictions:
    gold = np.arange(n) % 2
    predicted = gold.copy()
    predicted[wrong] ^= 1
    return TaskPredictions(gold, predicted, tuple(map(str, range(n))))


@pytest.mark.parametrize(("n", "gained", "lost"), [(0, 0, 0), (1, 1, 0), (2, 1, 1), (4, 3, 1), (99, 5, 1)])
def test_changed_predictions_are_half_losses_where_there_are_enough(n: int, gained: int, lost: int) -> None:
    before = {"MR": predictions([0, 1, 2]), "CR": predictions([3, 4]), "MPQA": predictions([0])}
    after = {"MR": predictions([7]), "CR": predictions([]), "MPQA": predictions([], n=6)}
    changes = changed_predictions(before, after, n=n)
    assert [change["is_gain"] for change in changes] == [True] * gained + [False] * lost
    in_turn = [("MR", 0), ("CR", 3), ("MR", 1), ("CR", 4), ("MR", 2)]
    assert [(change["task"], change["index"]) for change in changes[:gained]] == in_turn[:gained]
    if lost:
        last = changes[-1]
        assert (last["gold"], last["predicted_before"], last["predicted_after"], last["left"]) == (
            1,
            1,
            0,
            "7",
        )
