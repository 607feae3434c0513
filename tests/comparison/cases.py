"""Entries, result files, run folders and saved scores with chosen numbers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.comparison.entries import Entry, EntryKind, from_published
from simcse_cli.comparison.published import load_table
from simcse_cli.results.examples import (
    SubsetPairs,
    TaskPredictions,
    write_pair_scores,
    write_predictions,
)
from simcse_cli.results.result import PUBLISHED, known_sets
from simcse_cli.results.runs import RunRecord


def entry(label: str, **fields: Any) -> Entry:
    return Entry(
        label, fields.pop("kind", EntryKind.RESULT), f"{label}.json", **{"scores": {}, **fields}
    )


def published(table: str, row: str, group: str | None = None) -> Entry:
    return from_published(load_table(table).system(row, group=group))


def write_sts_result(path: Path, scores: Mapping[str, float | None], **settings: Any) -> Path:
    """Write a result of ``eval sts``; wmean is 0.02 below ``all``, Pearson 0.01 below Spearman."""
    tasks = {
        name: None
        if score is None
        else {
            "n_pairs": known_sets()[name, "test"][PUBLISHED][0],
            "score": score,
            "spearman": {"all": score, "mean": score - 0.01, "wmean": score - 0.02},
            "pearson": {"all": score - 0.01, "mean": score - 0.02, "wmean": score - 0.03},
        }
        for name, score in scores.items()
    }
    asked = {
        "metric": "spearman",
        "aggregation": "all",
        "split": "test",
        "pooler": "avg",
    } | settings
    result = {"suite": "sts", "model": "tiny", **asked, "tasks": tasks, "seconds": 2.0}
    path.write_text(json.dumps(result))
    return path


def write_run(
    folder: Path,
    *,
    seed: int = 1,
    lr: float = 3e-5,
    best_score: float = 0.8,
    best_step: int = 20,
    status: str = "finished",
    dev_file: str = "sts-dev.csv",
    dev_sha256: str = "abcdef0123",
    **data: object,
) -> Path:
    """Write the record and metrics of a run of 20 steps."""
    folder.mkdir(parents=True)
    config = {"objective": "simcse-unsup", "lr": lr, "seed": seed, "dev_metric": "spearman"}
    data |= {"n_examples": 100, "dev_file": dev_file, "dev_sha256": dev_sha256}
    RunRecord(
        status=status,
        objective="simcse-unsup",
        model="tiny",
        seed=seed,
        config=config,
        data=data,
        total_steps=20,
        step=20,
        pooler="cls_before_pooler",
        best_score=best_score,
        best_step=best_step,
    ).write(folder)
    steps = [
        {"step": 10, "dev_score": best_score - 0.1, "alignment": 0.3, "uniformity": -2.0},
        {"step": 20, "loss": 0.1},
        {"step": 20, "dev_score": best_score, "alignment": 0.2, "uniformity": -2.5},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return folder


def write_pairs(path: Path, *, noise: float, n: int = 200) -> Path:
    """Write the pairs of two STS12 subsets; the cosine is the gold score with noise of this deviation."""
    rng, scores = np.random.default_rng(5), {}
    for subset in ("MSRpar", "MSRvid"):
        gold = rng.integers(0, 51, n) / 10
        cosine = gold / 5 + noise * rng.normal(size=n)
        texts = tuple(f"{subset} sentence {i}" for i in range(n))
        scores[subset] = SubsetPairs(gold, cosine, texts, texts)
    write_pair_scores(path, {"STS12": scores})
    return path


def write_transfer_result(path: Path, wrong: Mapping[str, Sequence[int]], *, n: int = 40) -> Path:
    """Write a result of ``eval transfer`` with its predictions; ``wrong`` names the examples missed, by task."""
    tasks, predictions = {}, {}
    for task, missed in wrong.items():
        gold = np.arange(n) % 2
        predicted = gold.copy()
        predicted[list(missed)] ^= 1
        predictions[task] = TaskPredictions(
            gold, predicted, tuple(f"{task} sentence {i}" for i in range(n))
        )
        accuracy = float(predictions[task].correct.mean())
        tasks[task] = {"accuracy": accuracy, "dev_accuracy": accuracy, "n_test": n}
    saved = path.with_suffix(".predictions.jsonl")
    write_predictions(saved, predictions)
    path.write_text(
        json.dumps({"suite": "transfer", "model": "tiny", "protocol": "default", "tasks": tasks})
    )
    return path
