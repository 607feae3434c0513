"""Settings and examples that changed between two entries."""

from pathlib import Path

import numpy as np
import pytest

from comparison.cases import entry
from simcse_cli.comparison.changes import (
    changed_pairs,
    changed_predictions,
    changed_settings,
    example_changes,
    pairs_table,
    predictions_table,
    rank_errors,
    setting_changes,
)
from simcse_cli.comparison.entries import SavedExamples
from simcse_cli.comparison.join import System
from simcse_cli.results.examples import SubsetPairs, TaskPredictions


def test_changed_settings_are_those_that_differ() -> None:
    changes = changed_settings({"lr": 1.0, "seed": 1}, {"lr": 2.0, "seed": 1, "patience": 3})
    assert [(change["key"], change["before"], change["after"]) for change in changes] == [
        ("lr", 1.0, 2.0),
        ("patience", None, 3),
    ]


def test_rank_errors_closed_form() -> None:
    assert rank_errors(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])).tolist() == [
        1.0,
        0.0,
        1.0,
    ]
    assert rank_errors(np.array([0.3, 0.1, 0.1]), np.array([5.0, 0.0, 0.0])).tolist() == [
        0.0,
        0.0,
        0.0,
    ]
    assert rank_errors(np.array([0.2, 0.1]), np.array([1.0, 2.0])).tolist() == [1.0, 1.0]
    assert rank_errors(np.array([0.3]), np.array([5.0])).tolist() == [0.0]


def test_changed_pairs_find_the_pair_that_moved() -> None:
    gold = np.arange(5.0)
    texts = tuple(f"sentence {i}" for i in range(5))
    right_order = SubsetPairs(gold, gold / 5, texts, texts)
    last_first = SubsetPairs(gold, np.array([0.1, 0.2, 0.3, 0.4, 0.0]))
    (gain,) = changed_pairs({"STS12": {"s": last_first}}, {"STS12": {"s": right_order}}, n=1)
    numbers = {
        "cosine_before": 0.0,
        "cosine_after": 0.8,
        "error_before": 1.0,
        "error_after": 0.0,
        "gain": 1.0,
    }
    pair = {"gold": 4.0, "left": "sentence 4", "right": "sentence 4"}
    assert gain == {"task": "STS12", "subset": "s", "index": 4} | pair | numbers
    (loss,) = changed_pairs({"STS12": {"s": right_order}}, {"STS12": {"s": last_first}}, n=1)
    assert loss["gain"] == -1.0


def test_changed_pairs_are_the_largest_moves_from_gain_to_loss() -> None:
    gold = np.arange(5.0)
    before, after = np.array([0.0, 4, 2, 3, 1]), np.array([3.0, 1, 2, 4, 0])
    found = changed_pairs(
        {"STS12": {"s": SubsetPairs(gold, before)}}, {"STS12": {"s": SubsetPairs(gold, after)}}, n=4
    )
    assert [(change["index"], change["gain"]) for change in found] == [
        (1, 0.75),
        (3, -0.25),
        (4, -0.25),
        (0, -0.75),
    ]
    assert {(change["left"], change["right"]) for change in found} == {
        ("", "")
    }  # they were not saved
    table = pairs_table(found, "old", "new")
    headings = [
        "task",
        "pair",
        "gold",
        "cosine before",
        "after",
        "rank error before",
        "after",
        "sentence 1",
        "sentence 2",
    ]
    assert [column.heading for column in table.columns] == headings
    assert table.cells()[0] == ["STS12", "s 1", "1", "4", "1", "75.00", "0.00", "", ""]
    assert (
        pairs_table([change | {"task": "STSBenchmark"} for change in found], "", "").cells()[0][0]
        == "STS-B"
    )


def test_sentences_come_from_whichever_file_has_them() -> None:
    gold, texts = np.array([1.0, 2.0]), ("a", "b")
    plain, full = (
        SubsetPairs(gold, np.array([1.0, 2.0])),
        SubsetPairs(gold, np.array([2.0, 1.0]), texts, texts),
    )
    for before, after in ((plain, full), (full, plain)):
        (found,) = changed_pairs({"STS12": {"s": before}}, {"STS12": {"s": after}}, n=1)
        assert (found["left"], found["right"]) == ("a", "a")


@pytest.mark.parametrize("n_runs", [0, 1, 3])
def test_settings_are_set_side_by_side_for_two_runs_only(n_runs: int) -> None:
    runs = [entry(f"run {i}", config={"lr": i}) for i in range(n_runs)]
    assert setting_changes([entry("result"), *runs]) == ([], None)


def test_settings_that_differ_are_shown_with_short_digests() -> None:
    digests = [letter * 64 for letter in "ab"]
    before = entry("old", config={"data.sha256": digests[0], "name": "n" * 20, "dev_sha256": None})
    after = entry(
        "new", config={"data.sha256": digests[1], "name": "m" * 20, "dev_sha256": "c" * 64}
    )
    changes, table = setting_changes([before, entry("result"), after])
    assert changes[0] == {"key": "data.sha256", "before": digests[0], "after": digests[1]}
    assert [column.heading for column in table.columns] == ["setting", "old", "new"]
    assert table.cells() == [
        ["data.sha256", "a" * 12 + "…", "b" * 12 + "…"],
        ["name", "n" * 20, "m" * 20],
        ["dev_sha256", "–", "c" * 12 + "…"],
    ]


@pytest.mark.parametrize(
    ("n_files", "n", "expected"),
    [(3, 1, "file 0 -> file 2, 1"), (2, 2, "file 0 -> file 1, 2"), (1, 1, None), (2, 0, None)],
)
def test_examples_are_those_that_changed_from_the_first_to_the_last(
    n_files: int, n: int, expected: str
) -> None:
    systems = [
        System(str(i), ((entry(str(i)), [SavedExamples(Path(f"file {i}"))]),))
        for i in range(n_files)
    ]
    found = example_changes(
        systems,
        lambda path: {"task": str(path)},
        lambda before, after, *, n: [f"{before['task']} -> {after['task']}, {n}"],
        lambda changes, before, after: (changes, before, after),
        n,
    )
    assert found == (([expected], ([expected], "0", str(n_files - 1))) if expected else ([], None))


def changes_of_seeds(seeds, find):
    """Return the examples that changed between systems with these seeds, and what they are of."""
    systems = []
    for number, of_system in enumerate(seeds):
        members = [(entry(f"{number}.{seed}", seed=seed), []) for seed in of_system]
        systems.append(System(str(number), tuple(members)))
    return example_changes(
        systems, dict, find, lambda _, before, after: f"{before} -> {after}", n=1
    )


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ([(1, 2, 3), (1, 2, 3)], "0.1 -> 1.1"),
        ([(1, 2, 3), (4, 3, 2)], "0.2 -> 1.2"),
        ([(1, 2), (2, 1), (3, 4)], "0.1 -> 2.3"),
        ([(None,), (None, None)], "0.None -> 1.None"),
    ],
)
def test_examples_are_of_the_same_seed_if_both_systems_have_one(seeds, expected: str) -> None:
    assert changes_of_seeds(seeds, lambda *_, n: [{}]) == ([{}], expected)


def test_examples_are_of_the_first_seed_that_changed() -> None:
    found = iter([[], [{}]])
    changed = changes_of_seeds([(1, 2), (2, 1)], lambda *_, n: next(found))
    assert changed == ([{}], "0.2 -> 1.2")
    assert changes_of_seeds([(1, 2), (2, 1)], lambda *_, n: []) == ([], None)


def test_pairs_that_kept_their_rank_are_no_changes() -> None:
    gold = np.array([1.0, 2.0, 3.0, 4.0])
    before = SubsetPairs(gold, np.array([0.1, 0.2, 0.3, 0.4]))
    after = SubsetPairs(gold, np.array([0.1, 0.2, 0.5, 0.4]))
    found = changed_pairs({"STS12": {"s": before}}, {"STS12": {"s": after}}, n=9)
    assert [change["index"] for change in found] == [2, 3]
    assert changed_pairs({"STS12": {"s": before}}, {"STS12": {"s": before}}, n=9) == []


def test_changed_pairs_pass_over_other_data() -> None:
    a = SubsetPairs(np.array([1.0, 2.0]), np.array([0.1, 0.2]))
    b = SubsetPairs(np.array([1.0, 3.0]), np.array([0.1, 0.2]))
    assert changed_pairs({"STS12": {"s": a}}, {"STS12": {"s": b}}, n=3) == []


def predictions(wrong: list[int], n: int = 8) -> TaskPredictions:
    gold = np.arange(n) % 2
    predicted = gold.copy()
    predicted[wrong] ^= 1
    return TaskPredictions(gold, predicted, tuple(map(str, range(n))))


@pytest.mark.parametrize(
    ("n", "gained", "lost"), [(0, 0, 0), (1, 1, 0), (2, 1, 1), (4, 3, 1), (99, 5, 1)]
)
def test_changed_predictions_are_half_losses_where_there_are_enough(
    n: int, gained: int, lost: int
) -> None:
    before = {"MR": predictions([0, 1, 2]), "CR": predictions([3, 4]), "MPQA": predictions([0])}
    after = {"MR": predictions([7]), "CR": predictions([]), "MPQA": predictions([], n=6)}
    changes = changed_predictions(before, after, n=n)
    assert [change["is_gain"] for change in changes] == [True] * gained + [False] * lost
    in_turn = [("MR", 0), ("CR", 3), ("MR", 1), ("CR", 4), ("MR", 2)]
    assert [(change["task"], change["index"]) for change in changes[:gained]] == in_turn[:gained]
    if lost:
        texts = {"left": "7", "right": ""}
        classes = {"gold": 1, "predicted_before": 1, "predicted_after": 0}
        assert changes[-1] == {"task": "MR", "index": 7, "is_gain": False} | classes | texts


def test_predictions_are_shown_with_both_sentences() -> None:
    gold = np.array([0, 1])
    before = {"MRPC": TaskPredictions(gold, 1 - gold, ("a", "b"), ("c", "d"))}
    found = changed_predictions(before, {"MRPC": TaskPredictions(gold, gold)}, n=2)
    found += [found[0] | {"task": "SST2", "right": ""}]
    table = predictions_table(found, "old", "new")
    headings = ["task", "example", "gold", "class before", "after", "sentence"]
    assert [column.heading for column in table.columns] == headings
    assert table.cells() == [
        ["MRPC", "0", "0", "1", "0", "a | c"],
        ["MRPC", "1", "1", "0", "1", "b | d"],
        ["SST-2", "0", "0", "1", "0", "a"],
    ]
    assert table.notes == [
        "before: old; after: new. Examples that only one gets right, gains first"
    ]
