"""The STS suite: seven tasks, every distinct sentence encoded once.

Source: the SentEval protocol as Gao et al. 2021 (Table 5, appendix B) use it: no regressor, cosine similarity,
Spearman over the concatenated subsets of a year.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.choices import STS_TASKS, Aggregation, Metric
from simcse_cli.data.senteval import Split, StsTask, has_split, read_sts_task, resolve_senteval_dir
from simcse_cli.errors import DataError
from simcse_cli.evaluation.correlation import Floats, aggregate, correlate, cosine_rows
from simcse_cli.evaluation.types import Encode
from simcse_cli.progress import Progress, SilentProgress


@dataclass(frozen=True)
class SubsetScore:
    """Predicted and gold similarity of one subset, with its correlations."""

    predicted: Floats
    gold: Floats

    def correlation(self, metric: Metric) -> float | None:
        """Return the subset's own correlation."""
        return correlate(metric, self.predicted, self.gold)


@dataclass(frozen=True)
class StsTaskScore:
    """One task: its subsets and the score under every aggregation."""

    name: str
    split: str
    subsets: dict[str, SubsetScore]

    @property
    def n_pairs(self) -> int:
        """Number of scored pairs."""
        return sum(len(subset.gold) for subset in self.subsets.values())

    def score(self, metric: Metric, aggregation: Aggregation) -> float | None:
        """Return the task's score; a task with one test set has the same under every aggregation."""
        values = [(subset.predicted, subset.gold) for subset in self.subsets.values()]
        return aggregate(metric, aggregation, values)

    def to_json(self, metric: Metric, aggregation: Aggregation) -> dict[str, Any]:
        """Return the task's entry of the result file."""
        by_metric = {m.value: {a.value: self.score(m, a) for a in Aggregation} for m in Metric}
        return {
            "n_pairs": self.n_pairs,
            "score": self.score(metric, aggregation),
            **by_metric,
            "subsets": {
                name: {"n_pairs": len(subset.gold)} | {m.value: subset.correlation(m) for m in Metric}
                for name, subset in self.subsets.items()
            },
        }


@dataclass(frozen=True)
class StsResult:
    """The suite's outcome; a missing task is None and named in ``missing`` with the reason."""

    metric: Metric
    aggregation: Aggregation
    split: str
    tasks: dict[str, StsTaskScore | None]
    missing: dict[str, str]
    seconds: float
    n_sentences: int

    def scores(self) -> dict[str, float | None]:
        """Return the score of every task asked for."""
        return {
            name: None if task is None else task.score(self.metric, self.aggregation)
            for name, task in self.tasks.items()
        }

    @property
    def average(self) -> float | None:
        """Plain mean over the tasks that have a score."""
        present = [score for score in self.scores().values() if score is not None]
        return float(np.mean(present)) if present else None

    def to_json(self, **facts: Any) -> dict[str, Any]:
        """Return the result as one JSON object (``docs/evaluation.md``, result files)."""
        return {
            "suite": "sts",
            **facts,
            "metric": self.metric.value,
            "aggregation": self.aggregation.value,
            "split": self.split,
            "tasks": {
                name: None if task is None else task.to_json(self.metric, self.aggregation)
                for name, task in self.tasks.items()
            },
            "missing": self.missing,
            "average": self.average,
            "n_sentences": self.n_sentences,
            "seconds": self.seconds,
            "sentences_per_second": self.n_sentences / self.seconds if self.seconds > 0 else None,
        }


def encode_distinct(encode: Encode, sentences: Sequence[str]) -> Mapping[str, NDArray[np.float32]]:
    """Return the vector of every distinct sentence, from one call of ``encode``."""
    distinct = list(dict.fromkeys(sentences))
    return dict(zip(distinct, encode(distinct), strict=True))


def score_sts_task(task: StsTask, vectors: Mapping[str, NDArray[np.float32]]) -> StsTaskScore:
    """Return the cosine of every pair beside its gold score."""
    subsets = {
        name: SubsetScore(
            cosine_rows(
                np.stack([vectors[s] for s in subset.left]), np.stack([vectors[s] for s in subset.right])
            ),
            subset.gold,
        )
        for name, subset in task.subsets.items()
    }
    return StsTaskScore(task.name, task.split, subsets)


def read_available_tasks(
    data_dir: Path | str, tasks: Sequence[str], split: Split, progress: Progress
) -> tuple[dict[str, StsTask], dict[str, str]]:
    """Return the tasks that can be read, and the reason for each that cannot."""
    resolve_senteval_dir(data_dir)
    found: dict[str, StsTask] = {}
    missing: dict[str, str] = {}
    for name in tasks:
        if not has_split(name, split):
            missing[name] = f"{name} has no {split} split"
            continue
        try:
            found[name] = read_sts_task(data_dir, name, split=split)
        except DataError as error:
            missing[name] = error.message
    for name, reason in missing.items():
        progress.warn(f"{name} is left out of the average: {reason}")
    if not found:
        raise DataError(
            f"none of {', '.join(tasks)} can be scored below {data_dir}: {next(iter(missing.values()))}",
            hint="check the folder with `simcse prepare senteval --data-dir DIR`",
        )
    return found, missing


def evaluate_sts(
    encode: Encode,
    data_dir: Path | str,
    *,
    tasks: Sequence[str] = STS_TASKS,
    metric: Metric = Metric.SPEARMAN,
    aggregation: Aggregation = Aggregation.ALL,
    split: Split = "test",
    progress: Progress | None = None,
) -> StsResult:
    """Score an encoder on the STS tasks.

    Args:
        encode: maps sentences to vectors; called once with all distinct sentences of all tasks.
        data_dir: SentEval folder.
        tasks: task names in the order of the result.
        metric: which correlation is the score.
        aggregation: how the subsets of a year become one score.
        split: ``test``; ``dev`` exists for STS-B and SICK-R only.
        progress: gets a warning for every missing task.

    Returns:
        Scores as fractions. An encoder that returns gold-ordered similarities scores 1.

    Raises:
        DataError: no task can be read.
    """
    progress = progress or SilentProgress()
    found, missing = read_available_tasks(data_dir, tasks, split, progress)
    sentences = [
        s
        for task in found.values()
        for subset in task.subsets.values()
        for s in (*subset.left, *subset.right)
    ]
    started = time.perf_counter()
    vectors = encode_distinct(encode, sentences)
    scored = {name: score_sts_task(task, vectors) for name, task in found.items()}
    return StsResult(
        metric,
        aggregation,
        split,
        {name: scored.get(name) for name in tasks},
        missing,
        seconds=time.perf_counter() - started,
        n_sentences=len(sentences),
    )
