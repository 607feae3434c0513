"""Saved scores of examples: written, read back, lined up, and refused with the line that is wrong."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simcse_cli.errors import DataError, OutputError
from simcse_cli.results.examples import (
    SubsetPairs,
    TaskPredictions,
    read_pair_scores,
    read_predictions,
    same_examples,
    same_pairs,
    write_pair_scores,
    write_predictions,
)

EXAMPLE = '{"task": "MR", "index": %d, "gold": 1, "predicted": 0}'
PAIR = '{"task": "STS12", "subset": "a", "index": %d, "gold": 1.5, "cosine": 0.5}'


def task(gold: list[int], predicted: list[int], *texts: tuple[str, ...]) -> TaskPredictions:
    return TaskPredictions(np.array(gold), np.array(predicted), *texts)


def test_predictions_come_back_as_written(tmp_path: Path) -> None:
    tasks = {
        "MRPC": task([1, 0], [1, 1], ("a", "\u00fc"), ("b", 'c"')),
        "TREC": task([5], [2], ("Why ?",)),
        "MR": task([0], [0]),
    }
    write_predictions(tmp_path / "p.jsonl", tasks)
    found = read_predictions(tmp_path / "p.jsonl")
    assert list(found) == list(tasks)
    for name, expected in tasks.items():
        assert found[name].gold.tolist() == expected.gold.tolist()
        assert found[name].predicted.tolist() == expected.predicted.tolist()
        assert (found[name].left, found[name].right) == (expected.left, expected.right)
    assert found["MRPC"].correct.tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: not valid JSON"),
        ('{"task": "MR", "index": 0}', "line 1: no gold, predicted; a line has all of task, index"),
        ((EXAMPLE % 0).replace("1", '"yes"'), "line 1: gold: .yes., need a whole number"),
        (EXAMPLE % 1, "MR: indices are not 0 to 0"),
    ],
)
def test_malformed_predictions_name_the_place_and_the_fix(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(DataError, match=message) as caught:
        read_predictions(path)
    assert "simcse eval transfer --save-scores" in str(caught.value.hint)


@pytest.mark.parametrize("write", [write_predictions, write_pair_scores])
def test_saved_scores_are_not_overwritten_unasked(
    write: Callable[..., None], tmp_path: Path
) -> None:
    write(tmp_path / "p.jsonl", {})
    with pytest.raises(OutputError, match="exists already"):
        write(tmp_path / "p.jsonl", {})


def test_same_examples_needs_the_same_classes_and_sentences() -> None:
    plain, texts = {"MR": task([0, 1], [0, 0])}, {"MR": task([0, 1], [1, 1], ("a", "b"))}
    other_texts, other_classes = (
        {"MR": task([0, 1], [1, 1], ("a", "c"))},
        {"MR": task([1, 1], [1, 1])},
    )
    assert same_examples(plain, texts, "MR")
    assert same_examples(texts, texts, "MR")
    assert not same_examples(texts, other_texts, "MR")
    assert not same_examples(plain, other_classes, "MR")
    assert not same_examples(plain, texts, "CR")


def test_same_pairs_needs_the_same_sentences_where_both_have_them() -> None:
    gold = np.array([0.0, 1.0])
    plain = {"own": {"test": SubsetPairs(gold, gold)}}
    texts = {"own": {"test": SubsetPairs(gold, gold, ("a", "b"), ("c", "d"))}}
    other = {"own": {"test": SubsetPairs(gold, gold, ("a", "b"), ("c", "e"))}}
    assert same_pairs(plain, texts, "own")
    assert same_pairs(texts, texts, "own")
    assert not same_pairs(texts, other, "own")


def test_pair_scores_come_back_as_written(tmp_path: Path) -> None:
    first = SubsetPairs(np.array([5.0, 0.25]), np.array([0.1, 1 / 3]), ("a", "ü "), ("b", 'c"'))
    second = SubsetPairs(np.array([2.0]), np.array([-0.5]))
    path = tmp_path / "pairs.jsonl"
    write_pair_scores(path, {"STS12": {"x": first, "y": second}})
    found = read_pair_scores(path)["STS12"]
    for subset, expected in (("x", first), ("y", second)):
        assert found[subset].gold.tolist() == expected.gold.tolist()
        assert found[subset].cosine.tolist() == expected.cosine.tolist()
        assert (found[subset].left, found[subset].right) == (expected.left, expected.right)


def test_pair_scores_are_sorted_by_index(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join([PAIR % 1, (PAIR % 0).replace("0.5}", "0.7}")]) + "\n")
    assert read_pair_scores(path)["STS12"]["a"].cosine.tolist() == [0.7, 0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: not valid JSON"),
        ('{"task": "STS12", "index": 0}', "line 1: no subset, gold, cosine"),
        ("[]", "line 1: no task"),
        ((PAIR % 0).replace("1.5", '"high"'), "line 1: gold: .high., need a finite number"),
        (PAIR % 1, "STS12 a: indices are not 0 to 0"),
        (f"{PAIR % 0}\n{PAIR % 0}", "indices are not 0 to 1"),
    ],
)
def test_malformed_pair_scores_name_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(DataError, match=message):
        read_pair_scores(path)


def test_same_pairs_have_the_same_sentences_if_both_have_any() -> None:
    def pairs(*left: str) -> dict[str, dict[str, SubsetPairs]]:
        gold = np.array([1.0, 0.0])
        return {"t": {"s": SubsetPairs(gold, gold, left, ("x", "y")[: len(left)])}}

    assert same_pairs(pairs("a", "b"), pairs("a", "b"), "t")
    assert not same_pairs(pairs("a", "b"), pairs("a", "c"), "t")
    assert same_pairs(pairs("a", "b"), pairs(), "t")


def test_same_pairs_needs_the_same_subsets_and_gold() -> None:
    a = {"t": {"s": SubsetPairs(np.array([1.0, 2.0]), np.array([0.1, 0.2]))}}
    other_gold = {"t": {"s": SubsetPairs(np.array([1.0, 3.0]), np.array([0.1, 0.2]))}}
    other_subset = {"t": {"u": a["t"]["s"]}}
    assert same_pairs(a, a, "t")
    assert not same_pairs(a, other_gold, "t")
    assert not same_pairs(a, other_subset, "t")
    assert not same_pairs(a, {}, "t")
