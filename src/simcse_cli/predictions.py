"""Predicted classes of a transfer evaluation: written by ``eval transfer --save-scores``, read by ``compare``.

The file is JSON Lines, one object per test example, in the order of the protocol (by number of words, then by
label), which is that of the data whatever the classifier::

    {"task": "MRPC", "index": 0, "gold": 1, "predicted": 0, "left": "...", "right": "..."}

``index`` counts the test examples of a task from 0, so that two files of the same data line up by task and
index. ``right`` is there for tasks of sentence pairs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.files import atomic_text, in_index_order, iter_checked_records

TEXT_KEYS = ("task",)
NUMBER_KEYS = ("index", "gold", "predicted")
_REWRITE = "write the file again with `simcse eval transfer --save-scores FILE`"


@dataclass(frozen=True)
class TaskPredictions:
    """The test examples of one task: classes ``(n,)`` int64; the sentences may be absent."""

    gold: np.ndarray
    predicted: np.ndarray
    left: tuple[str, ...] = ()
    right: tuple[str, ...] = ()

    @property
    def correct(self) -> np.ndarray:
        """Return which examples were classified correctly, ``(n,)`` bool."""
        return np.asarray(self.gold == self.predicted)


def write_predictions(
    target: Path | str, tasks: Mapping[str, TaskPredictions], *, force: bool = False
) -> None:
    """Write the predictions as JSON Lines, complete or not at all.

    Raises:
        OutputError: the file exists (without ``force``) or cannot be written.
    """
    with atomic_text(target, force=force) as stream:
        for task, found in tasks.items():
            for index in range(found.gold.size):
                stream.write(json.dumps(_record(task, index, found), ensure_ascii=False) + "\n")


def read_predictions(source: Path | str) -> dict[str, TaskPredictions]:
    """Return the predictions of a file by task, each sorted by index.

    Raises:
        DataError: a line is not JSON or lacks a key, or a task has a gap; names file and line.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in iter_checked_records(source, texts=TEXT_KEYS, numbers=NUMBER_KEYS, hint=_REWRITE):
        rows.setdefault(record["task"], []).append(record)
    return {task: _task(records, f"{source}, {task}") for task, records in rows.items()}


def same_examples(a: Mapping[str, TaskPredictions], b: Mapping[str, TaskPredictions], task: str) -> bool:
    """Say whether both hold this task with the same classes, and the same sentences where both saved them."""
    if task not in a or task not in b or not np.array_equal(a[task].gold, b[task].gold):
        return False
    texts = [(found.left, found.right) for found in (a[task], b[task]) if found.left]
    return len(set(texts)) < 2


def _record(task: str, index: int, found: TaskPredictions) -> dict[str, Any]:
    classes = {"gold": int(found.gold[index]), "predicted": int(found.predicted[index])}
    texts = {"left": found.left, "right": found.right}
    return {
        "task": task,
        "index": index,
        **classes,
        **{side: values[index] for side, values in texts.items() if values},
    }


def _task(records: Sequence[dict[str, Any]], place: str) -> TaskPredictions:
    ordered = in_index_order(records, place=place, hint=_REWRITE)
    return TaskPredictions(
        gold=np.array([record["gold"] for record in ordered], dtype=np.int64),
        predicted=np.array([record["predicted"] for record in ordered], dtype=np.int64),
        left=_texts(ordered, "left"),
        right=_texts(ordered, "right"),
    )


def _texts(records: Sequence[dict[str, Any]], side: str) -> tuple[str, ...]:
    return tuple(record[side] for record in records) if all(side in record for record in records) else ()
