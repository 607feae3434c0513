"""The file of predicted classes: written, read back, lined up, and refused with the line that is wrong."""

from pathlib import Path

import numpy as np
import pytest

from simcse_cli.errors import DataError, OutputError
from simcse_cli.predictions import TaskPredictions, read_predictions, same_examples, write_predictions

LINE = '{"task": "MR", "index": %d, "gold": 1, "predicted": 0}'


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
        ("{", "line 1: not a JSON object"),
        ('{"task": "MR", "index": 0}', "line 1: no gold, predicted; a line has all of task, index"),
        ((LINE % 0).replace("1", '"yes"'), "index, gold, predicted need to be numbers"),
        (LINE % 1, "MR: indices are not 0 to 0"),
    ],
)
def test_malformed_predictions_name_the_place_and_the_fix(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(DataError, match=message) as caught:
        read_predictions(path)
    assert "simcse eval transfer --save-scores" in str(caught.value.hint)


def test_predictions_are_not_overwritten_unasked(tmp_path: Path) -> None:
    write_predictions(tmp_path / "p.jsonl", {})
    with pytest.raises(OutputError, match="exists already"):
        write_predictions(tmp_path / "p.jsonl", {})


def test_same_examples_needs_the_same_classes_and_sentences() -> None:
    plain, texts = {"MR": task([0, 1], [0, 0])}, {"MR": task([0, 1], [1, 1], ("a", "b"))}
    other_texts, other_classes = {"MR": task([0, 1], [1, 1], ("a", "c"))}, {"MR": task([1, 1], [1, 1])}
    assert same_examples(plain, texts, "MR")
    assert same_examples(texts, texts, "MR")
    assert not same_examples(texts, other_texts, "MR")
    assert not same_examples(plain, other_classes, "MR")
    assert not same_examples(plain, texts, "CR")
