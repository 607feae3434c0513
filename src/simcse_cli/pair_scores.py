"""Per-pair results of an STS evaluation: written by ``eval --save-scores``, read by ``compare``.

The file is JSON Lines, one object per scored pair, in the order of the evaluation files, with the keys
``task``, ``subset``, ``index``, ``gold`` and ``cosine``, and with ``left`` and ``right`` where the sentences
were kept::

    {"task": "STS12", "subset": "MSRpar", "index": 0, "gold": 4.4, "cosine": 0.83, "left": ...}

``index`` counts the scored pairs of its subset from 0, so that two files of the same data line up by task,
subset and index. The sentences are only shown beside the pairs that changed most.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.files import atomic_text, in_index_order, iter_checked_records

TEXT_KEYS = ("task", "subset")
NUMBER_KEYS = ("index", "gold", "cosine")
_REWRITE = "write the file again with `simcse eval sts --save-scores FILE`"


@dataclass(frozen=True)
class SubsetPairs:
    """The pairs of one subset: ``gold`` and ``cosine`` are ``(n,)`` float64; the sentences may be absent."""

    gold: np.ndarray
    cosine: np.ndarray
    left: tuple[str, ...] = ()
    right: tuple[str, ...] = ()


# task -> subset -> its pairs
PairScores = dict[str, dict[str, SubsetPairs]]


def write_pair_scores(target: Path | str, scores: PairScores, *, force: bool = False) -> None:
    """Write the pairs as JSON Lines, complete or not at all.

    Raises:
        OutputError: the file exists (without ``force``) or cannot be written.
    """
    with atomic_text(target, force=force) as stream:
        for task, subsets in scores.items():
            for subset, pairs in subsets.items():
                for record in _records(task, subset, pairs):
                    stream.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")


def read_pair_scores(source: Path | str) -> PairScores:
    """Return the pairs of a file by task and subset, each sorted by index.

    Raises:
        DataError: a line is not JSON or lacks a key, or a subset has a gap; names file and line.
    """
    rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for record in iter_checked_records(source, texts=TEXT_KEYS, numbers=NUMBER_KEYS, hint=_REWRITE):
        rows.setdefault(record["task"], {}).setdefault(record["subset"], []).append(record)
    return {
        task: {subset: _subset(records, f"{source}, {task} {subset}") for subset, records in subsets.items()}
        for task, subsets in rows.items()
    }


def same_pairs(a: PairScores, b: PairScores, task: str) -> bool:
    """Say whether both hold this task with the same subsets and gold scores, so that they can be paired."""
    left, right = a.get(task), b.get(task)
    if left is None or right is None or left.keys() != right.keys():
        return False
    return all(np.array_equal(left[subset].gold, right[subset].gold) for subset in left)


def _records(task: str, subset: str, pairs: SubsetPairs) -> Iterable[dict[str, Any]]:
    for index, (gold, cosine) in enumerate(zip(pairs.gold.tolist(), pairs.cosine.tolist(), strict=True)):
        record = {"task": task, "subset": subset, "index": index, "gold": gold, "cosine": cosine}
        if pairs.left:
            record |= {"left": pairs.left[index], "right": pairs.right[index]}
        yield record


def _subset(records: Sequence[dict[str, Any]], place: str) -> SubsetPairs:
    ordered = in_index_order(records, place=place, hint=_REWRITE)
    with_text = all("left" in record and "right" in record for record in ordered)
    return SubsetPairs(
        gold=np.array([record["gold"] for record in ordered], dtype=np.float64),
        cosine=np.array([record["cosine"] for record in ordered], dtype=np.float64),
        left=tuple(record["left"] for record in ordered) if with_text else (),
        right=tuple(record["right"] for record in ordered) if with_text else (),
    )
