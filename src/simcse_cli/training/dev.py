"""Scores during training: of the pairs of one file, of STS tasks, or of transfer tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simcse_cli.analysis.geometry import alignment, uniformity
from simcse_cli.choices import Aggregation, Metric, Probe, TransferProtocol
from simcse_cli.data.senteval import StsSubset, StsTask, read_stsb_file
from simcse_cli.data.transfer_files import TransferTask
from simcse_cli.errors import DataError, TrainingError
from simcse_cli.evaluation.correlation import correlate, cosine_rows
from simcse_cli.evaluation.embedding_cache import Encode, EvaluationCache, encode_distinct
from simcse_cli.evaluation.sts import score_sts_task
from simcse_cli.evaluation.transfer import score_transfer_task
from simcse_cli.metrics import DEV_SUFFIX
from simcse_cli.progress import Progress, SilentProgress

POSITIVE_ABOVE = 4.0  # gold score of the pairs that count as positives for alignment
TRANSFER_PROTOCOL = TransferProtocol.FAST  # the paper's dev mode


@dataclass(frozen=True)
class DevScore:
    """One dev evaluation; None where the data or the vectors do not define a value.

    ``tasks`` holds the scores behind the mean of a suite, by measure (``STSBenchmark-dev``).
    """

    score: float | None
    alignment: float | None
    uniformity: float | None
    tasks: Mapping[str, float | None] = field(default_factory=dict)


NO_SCORE = DevScore(None, None, None)


class DevSet(Protocol):
    """What scores a model during training."""

    def score(self, encode: Encode) -> DevScore:
        """Return the scores of an encoder, dropout off."""


@dataclass(frozen=True)
class DevPairs:
    """The pairs of an STS-B file."""

    pairs: StsSubset
    metric: Metric

    def score(self, encode: Encode) -> DevScore:
        """Return the correlation over the file, and its geometry."""
        return evaluate_dev(encode, self.pairs, self.metric)


@dataclass(frozen=True)
class DevSts:
    """STS tasks; ``pairs`` are those that alignment and uniformity are taken on."""

    tasks: Sequence[StsTask]
    metric: Metric
    pairs: StsSubset

    def score(self, encode: Encode) -> DevScore:
        """Return the mean over tasks of the correlation over a task's concatenated subsets."""
        subsets = [self.pairs, *(subset for task in self.tasks for subset in task.subsets.values())]
        vectors = encode_distinct(encode, [text for part in subsets for text in (*part.left, *part.right)])
        if not all(np.isfinite(vector).all() for vector in vectors.values()):
            return NO_SCORE
        metric = Metric(self.metric.value)
        tasks = {
            measure_of(task): score_sts_task(task, vectors).score(metric, Aggregation.ALL)
            for task in self.tasks
        }
        left, right = ([vectors[text] for text in side] for side in (self.pairs.left, self.pairs.right))
        return DevScore(mean_score(tasks), *geometry(np.stack(left), np.stack(right), self.pairs.gold), tasks)


@dataclass(frozen=True)
class DevTransfer:
    """Transfer tasks; alignment and uniformity are taken on ``pairs`` where there are any."""

    tasks: Sequence[TransferTask]
    pairs: StsSubset | None
    progress: Progress

    def score(self, encode: Encode) -> DevScore:
        """Return the mean dev accuracy in the fast protocol ("Avg. transfer" of SimCSE's Table D.2)."""
        tasks: dict[str, float | None] = {}
        with self.progress.task("dev accuracy of transfer tasks", len(self.tasks)) as shown:
            for task in self.tasks:
                try:
                    tasks[task.name + DEV_SUFFIX] = self._accuracy(task, encode)
                except (DataError, TrainingError) as error:
                    # The vectors are not finite, or a probe has diverged.
                    self.progress.warn(error.message)
                    return NO_SCORE
                shown.advance()
        if self.pairs is None:
            return DevScore(mean_score(tasks), None, None, tasks)
        measured = evaluate_dev(encode, self.pairs)
        return DevScore(mean_score(tasks), measured.alignment, measured.uniformity, tasks)

    def _accuracy(self, task: TransferTask, encode: Encode) -> float:
        return score_transfer_task(
            task,
            encode,
            protocol=TRANSFER_PROTOCOL,
            probe=Probe.SENTEVAL,
            cache=EvaluationCache(None, ""),
            progress=SilentProgress(),
        ).dev_accuracy


def read_dev_set(path: Path | str) -> StsSubset:
    """Return the pairs of an STS-B file."""
    return read_stsb_file(path)


def measure_of(task: StsTask) -> str:
    """Return the name of a task's score in tables: ``STSBenchmark-dev``, ``STS12`` for a test set."""
    return task.name if task.split == "test" else f"{task.name}-{task.split}"


def mean_score(tasks: Mapping[str, float | None]) -> float | None:
    """Return the plain mean over tasks, None while one of them has no score."""
    known = [score for score in tasks.values() if score is not None]
    return float(np.mean(known)) if len(known) == len(tasks) else None


def geometry(
    left: NDArray[np.float32], right: NDArray[np.float32], gold: NDArray[np.float64]
) -> tuple[float | None, float | None]:
    """Return alignment over pairs with a gold score above 4, and uniformity over the sentences of both sides.

    Source: Wang and Isola 2020; Gao et al. 2021, section 3. None where they are undefined.
    """
    positive = gold > POSITIVE_ABOVE
    return (
        alignment(left[positive], right[positive]) if positive.any() else None,
        uniformity(np.concatenate([left, right])) if len(gold) else None,
    )


def evaluate_dev(encode: Encode, pairs: StsSubset, metric: Metric = Metric.SPEARMAN) -> DevScore:
    """Score vectors on dev pairs.

    Args:
        encode: maps sentences to vectors, dropout off.
        pairs: sentences with gold scores in [0, 5].
        metric: correlation of cosine and gold.

    Returns:
        The correlation as a fraction, and the geometry of the pairs.
    """
    vectors = encode([*pairs.left, *pairs.right])
    if not np.isfinite(vectors).all():
        return NO_SCORE
    left, right = vectors[: pairs.n_pairs], vectors[pairs.n_pairs :]
    correlation = correlate(Metric(metric.value), cosine_rows(left, right), pairs.gold)
    return DevScore(correlation, *geometry(left, right, pairs.gold))
