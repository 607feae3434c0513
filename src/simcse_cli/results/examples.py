"""Saved scores of single examples: written by ``eval --save-scores``, read by ``compare``.

The files are JSON Lines with one object per example, in the order of the evaluation: the scored
pairs of STS, or the test examples of transfer tasks in the order of the protocol (by number of
words, then by label)::

    {"task": "STS12", "subset": "MSRpar", "index": 0, "gold": 4.4, "cosine": 0.83,
     "left": "...", "right": "..."}
    {"task": "MRPC", "index": 0, "gold": 1, "predicted": 0, "left": "...", "right": "..."}

``index`` counts from 0 within a subset or a transfer task, so that two files of the same data can
be compared example by example. Sentences may be absent; only pairs have ``right``.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.arrays import Booleans, Floats, Integers
from simcse_cli.errors import DataError
from simcse_cli.files.digests import sha256_file
from simcse_cli.files.inputs import STDIO
from simcse_cli.files.output import output_text
from simcse_cli.files.schema import checked
from simcse_cli.files.streams import iter_json_lines
from simcse_cli.progress import SILENT, Progress


@dataclass(frozen=True)
class SubsetPairs:
    """The n pairs of one subset: gold scores ``(n,)``, cosines ``(n,)`` and perhaps sentences.

    ``left`` and ``right`` hold one sentence of each pair; both are empty if none were saved.
    """

    gold: Floats
    cosine: Floats
    left: tuple[str, ...] = ()
    right: tuple[str, ...] = ()


PairScores = dict[str, dict[str, SubsetPairs]]  # by task and subset


@dataclass(frozen=True)
class TaskPredictions:
    """The n test examples of one task: gold and predicted classes ``(n,)``, perhaps sentences.

    ``left`` and ``right`` are empty if the sentences were not saved. If the examples are single
    sentences, ``right`` is empty.
    """

    gold: Integers
    predicted: Integers
    left: tuple[str, ...] = ()
    right: tuple[str, ...] = ()

    @property
    def correct(self) -> Booleans:
        """Whether each prediction is right, ``(n,)``."""
        return np.asarray(self.gold == self.predicted)


def write_pair_scores(target: Path | str, scores: PairScores, *, force: bool = False) -> None:
    groups = []
    for task, parts in scores.items():
        for subset, pairs in parts.items():
            groups.append(((task, subset), pairs))
    _PAIRS.write(target, groups, force=force)


def read_pair_scores(source: Path | str) -> PairScores:
    """Return the pairs of a file by task and subset, in order of index.

    A DataError names the file, and the line or the subset.
    """
    scores: PairScores = {}
    for (task, subset), gold, cosine, texts in _PAIRS.read(source):
        if not all(texts):
            texts = ((), ())  # the sentences of one side alone are of no use
        scores.setdefault(task, {})[subset] = SubsetPairs(gold, cosine, *texts)
    return scores


def saved_facts(key: str, path: Path, progress: Progress = SILENT) -> dict[str, str]:
    """Report that a file of examples was written, and return what the result records of it.

    This is the path under ``key``, and a digest. For standard output there is neither a report nor
    a digest.
    """
    if str(path) == STDIO:
        return {key: str(path)}
    progress.info(f"wrote {path}")
    return {key: str(path), f"{key}_sha256": sha256_file(path)}


def same_pairs(a: PairScores, b: PairScores, task: str) -> bool:
    """Tell whether both results have the task, with the same subsets, gold scores and sentences.

    Sentences are compared only if both have them.
    """
    first = a.get(task)
    second = b.get(task)
    if first is None or second is None or first.keys() != second.keys():
        return False
    return all(_same_items(first[subset], second[subset]) for subset in first)


def write_predictions(
    target: Path | str, tasks: Mapping[str, TaskPredictions], *, force: bool = False
) -> None:
    _CLASSES.write(target, [((task,), found) for task, found in tasks.items()], force=force)


def read_predictions(source: Path | str) -> dict[str, TaskPredictions]:
    """Return the predictions of a file by task, in order of index.

    A DataError names the file, and the line or the task.
    """
    tasks = {}
    for (task,), gold, predicted, texts in _CLASSES.read(source):
        tasks[task] = TaskPredictions(gold, predicted, *texts)
    return tasks


def same_examples(
    a: Mapping[str, TaskPredictions], b: Mapping[str, TaskPredictions], task: str
) -> bool:
    """Tell whether both results have the task, with the same gold classes and sentences.

    Sentences are compared only if both have them.
    """
    first = a.get(task)
    second = b.get(task)
    return first is not None and second is not None and _same_items(first, second)


def _same_items(a: SubsetPairs | TaskPredictions, b: SubsetPairs | TaskPredictions) -> bool:
    if not np.array_equal(a.gold, b.gold):
        return False
    if not a.left or not b.left:
        return True
    return a.left == b.left and a.right == b.right


# The names of the group, its gold values, the outputs for it, and its left and right sentences.
_Group = tuple[tuple[str, ...], np.ndarray, np.ndarray, Sequence[tuple[str, ...]]]


@dataclass(frozen=True)
class _FileFormat:
    """One kind of example file, with its examples in groups: subsets, or whole tasks."""

    group_keys: tuple[str, ...]  # JSON keys whose values name the group of an example
    output_key: str  # JSON key of what the model gave for an example
    dtype: type[np.generic]  # of the gold values and the outputs
    suite: str  # the evaluation that writes the file

    @property
    def hint(self) -> str:
        return f"write the file again with `simcse eval {self.suite} --save-scores FILE`"

    def write(
        self,
        target: Path | str,
        groups: Iterable[tuple[tuple[str, ...], SubsetPairs | TaskPredictions]],
        *,
        force: bool,
    ) -> None:
        """Write examples as lines of JSON; a group is a pair of its names and its examples."""
        with output_text(target, force=force) as stream:
            for names, examples in groups:
                group = dict(zip(self.group_keys, names, strict=True))
                columns: dict[str, Sequence[Any]] = {
                    "index": range(examples.gold.size),
                    "gold": examples.gold.tolist(),
                    self.output_key: getattr(examples, self.output_key).tolist(),
                }
                for side in ("left", "right"):
                    if sentences := getattr(examples, side):
                        columns[side] = sentences
                for values in zip(*columns.values(), strict=True):
                    record = group | dict(zip(columns, values, strict=True))
                    stream.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")

    def read(self, source: Path | str) -> Iterable[_Group]:
        """Yield each group, with its examples in order of index.

        Groups come in the order in which they first occur. The sentences of a side are empty if a
        line of the group lacks its sentence.
        """
        # The lines of a group may lie anywhere in the file, so all are read first.
        grouped: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for record in self._read_lines(source):
            names = tuple(record[key] for key in self.group_keys)
            grouped.setdefault(names, []).append(record)

        # Sort each group by index; missing or repeated indices are refused.
        for names, records in grouped.items():
            records.sort(key=lambda record: int(record["index"]))
            if [record["index"] for record in records] != list(range(len(records))):
                raise DataError(
                    f"{source}, {' '.join(map(str, names))}: indices are not 0 to "
                    f"{len(records) - 1}, each once",
                    hint=self.hint,
                )
            texts = []
            for side in ("left", "right"):
                side_texts = tuple(record[side] for record in records if side in record)
                texts.append(side_texts if len(side_texts) == len(records) else ())
            gold = np.array([record["gold"] for record in records], dtype=self.dtype)
            outputs = np.array([record[self.output_key] for record in records], dtype=self.dtype)
            yield names, gold, outputs, texts

    def _read_lines(self, source: Path | str) -> Iterator[dict[str, Any]]:
        """Yield the object of each line, after a check of its keys and their types."""
        number_type: Any = int if issubclass(self.dtype, np.integer) else float
        required: dict[str, Any] = dict.fromkeys(self.group_keys, str)
        required |= {"index": int, "gold": number_type, self.output_key: number_type}
        types = required | {"left": str, "right": str}
        for number, content in iter_json_lines(source, hint=self.hint):
            place = f"{source}, line {number}"
            keys = content if isinstance(content, dict) else {}
            missing = [key for key in required if key not in keys]
            if missing:
                needed = f"a line has all of {', '.join(required)}"
                raise DataError(f"{place}: no {', '.join(missing)}; {needed}", hint=self.hint)
            record = {}
            for key, value in content.items():
                value_type = types.get(key, Any)
                record[key] = checked(value, value_type, f"{place}: {key}", hint=self.hint)
            yield record


_PAIRS = _FileFormat(("task", "subset"), output_key="cosine", dtype=np.float64, suite="sts")
_CLASSES = _FileFormat(("task",), output_key="predicted", dtype=np.int64, suite="transfer")
