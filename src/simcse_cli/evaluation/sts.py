"""The STS suite: settings of the literature, scores, and what is kept of them.

Source: the SentEval protocol as Gao et al. 2021 (Table 5, appendix B) use it: no regressor, cosine similarity,
Spearman over the concatenated subsets of a year.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from simcse_cli.data.columns import parse_columns
from simcse_cli.data.pair_files import SCORED_PAIR, read_scored_pairs
from simcse_cli.data.senteval import Split, StsTask, has_split, read_sts_task, resolve_senteval_dir, sts_files
from simcse_cli.errors import DataError, UsageError
from simcse_cli.evaluation.bootstrap import SuiteIntervals, resample_sts, suite_intervals
from simcse_cli.evaluation.correlation import Floats, aggregate, correlate, cosine_rows
from simcse_cli.evaluation.embedding_cache import Encode, encode_distinct
from simcse_cli.files.streams import sha256_file
from simcse_cli.progress import Progress, SilentProgress
from simcse_cli.results.examples import PairScores, SubsetPairs
from simcse_cli.settings.choices import STS_TASKS, Aggregation, Metric, StsProtocol

# Raise when a change of the evaluation moves its numbers: kept results are then not reused.
_RESULT_VERSION = 2


@dataclass(frozen=True)
class StsSetting:
    """How a paper scores STS: Gao et al. 2021, Table B.1.

    Two papers that report the same encoder can differ by ten points because one averages the subsets of a year
    and the other concatenates them.

    The first of ``metrics`` is taken as the score; ``paper`` is the citation.
    """

    metrics: tuple[Metric, ...]
    aggregation: Aggregation
    regressor: bool
    paper: str

    @property
    def metric(self) -> Metric:
        return self.metrics[0]


_SPEARMAN, _PEARSON = (Metric.SPEARMAN,), (Metric.PEARSON,)

STS_SETTINGS: dict[StsProtocol, StsSetting] = {
    StsProtocol.SIMCSE: StsSetting(_SPEARMAN, Aggregation.ALL, False, "Gao et al. 2021"),
    StsProtocol.HILL: StsSetting(_SPEARMAN + _PEARSON, Aggregation.ALL, False, "Hill et al. 2016"),
    StsProtocol.INFERSENT: StsSetting(_PEARSON, Aggregation.MEAN, True, "Conneau et al. 2017"),
    StsProtocol.SENTEVAL: StsSetting(_PEARSON, Aggregation.MEAN, True, "Conneau and Kiela 2018"),
    StsProtocol.SBERT: StsSetting(_SPEARMAN, Aggregation.ALL, False, "Reimers and Gurevych 2019"),
    StsProtocol.IS_BERT: StsSetting(_SPEARMAN, Aggregation.ALL, False, "Zhang et al. 2020"),
    StsProtocol.BERT_FLOW: StsSetting(_SPEARMAN, Aggregation.WMEAN, False, "Li et al. 2020"),
    StsProtocol.BERT_WHITENING: StsSetting(_SPEARMAN, Aggregation.WMEAN, False, "Su et al. 2021"),
    StsProtocol.WIETING: StsSetting(_PEARSON, Aggregation.MEAN, False, "Wieting et al. 2020"),
    StsProtocol.DECLUTR: StsSetting(_SPEARMAN, Aggregation.MEAN, False, "Giorgi et al. 2021"),
}


def resolve_setting(
    protocol: StsProtocol = StsProtocol.SIMCSE,
    *,
    metric: Metric | None = None,
    aggregation: Aggregation | None = None,
    regressor: bool | None = None,
) -> StsSetting:
    """Return the setting of a protocol with single choices overridden; None keeps the protocol's own."""
    setting = STS_SETTINGS[protocol]
    return replace(
        setting,
        metrics=setting.metrics if metric is None else (metric,),
        aggregation=setting.aggregation if aggregation is None else aggregation,
        regressor=setting.regressor if regressor is None else regressor,
    )


@dataclass(frozen=True)
class SubsetScore:
    """Predicted and gold similarity of one subset."""

    predicted: Floats
    gold: Floats

    def correlation(self, metric: Metric) -> float | None:
        return correlate(metric, self.predicted, self.gold)


@dataclass(frozen=True)
class StsTaskScore:
    """One task: its subsets and the score under every aggregation."""

    name: str
    split: str
    subsets: dict[str, SubsetScore]
    data_sha256: str = ""

    @property
    def pairs(self) -> list[tuple[Floats, Floats]]:
        """Predicted and gold values of each subset."""
        return [(subset.predicted, subset.gold) for subset in self.subsets.values()]

    @property
    def n_pairs(self) -> int:
        return sum(len(subset.gold) for subset in self.subsets.values())

    def score(self, metric: Metric, aggregation: Aggregation) -> float | None:
        """Return the task's score; a task with one test set has the same under every aggregation."""
        return aggregate(metric, aggregation, self.pairs)

    def to_json(self, metric: Metric, aggregation: Aggregation) -> dict[str, Any]:
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
            "data_sha256": {name: task.data_sha256 for name, task in self.tasks.items() if task is not None},
            "average": self.average,
            "n_sentences": self.n_sentences,
            "seconds": self.seconds,
            "sentences_per_second": self.n_sentences / self.seconds if self.seconds > 0 else None,
        }


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
    return StsTaskScore(task.name, task.split, subsets, task.digest)


def check_task_name(name: str, taken: Sequence[str], option: str) -> None:
    """Raise UsageError if another task has the name of a file."""
    if name in taken:
        raise UsageError(f"there is a task called {name}; give the file another name", option=option)


def read_pair_tasks(paths: Sequence[Path], columns: str | None) -> dict[str, StsTask]:
    """Return each pair file as a task of one test set, called by the file's stem."""
    names = parse_columns(columns, SCORED_PAIR)
    found: dict[str, StsTask] = {}
    for path in paths:
        check_task_name(path.stem, [*STS_TASKS, *found], "--pair-file")
        found[path.stem] = StsTask(path.stem, "test", {"test": read_scored_pairs(path, names)})
    return found


def read_task(
    data_dir: Path | str | None, name: str, split: Split, pair_tasks: Mapping[str, StsTask]
) -> StsTask:
    if name in pair_tasks or data_dir is None:
        return pair_tasks[name]
    return read_sts_task(data_dir, name, split=split)


def read_available_tasks(
    data_dir: Path | str | None,
    tasks: Sequence[str],
    split: Split,
    progress: Progress,
    pair_tasks: Mapping[str, StsTask],
) -> tuple[dict[str, StsTask], dict[str, str]]:
    """Return the tasks that can be read, and the reason for each that cannot."""
    if data_dir is not None and any(name not in pair_tasks for name in tasks):
        resolve_senteval_dir(data_dir)
    found: dict[str, StsTask] = {}
    missing: dict[str, str] = {}
    for name in tasks:
        if name not in pair_tasks and not has_split(name, split):
            missing[name] = f"{name} has no {split} split"
            continue
        try:
            found[name] = read_task(data_dir, name, split, pair_tasks)
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
    data_dir: Path | str | None,
    *,
    tasks: Sequence[str] = STS_TASKS,
    metric: Metric = Metric.SPEARMAN,
    aggregation: Aggregation = Aggregation.ALL,
    split: Split = "test",
    pair_tasks: Mapping[str, StsTask] | None = None,
    progress: Progress | None = None,
) -> StsResult:
    """Score an encoder on the STS tasks.

    ``encode`` is called once with all distinct sentences of all tasks. ``data_dir`` may be None where all
    tasks are pair files, which ``pair_tasks`` gives by name. An encoder that returns gold-ordered
    similarities scores 1.
    """
    progress = progress or SilentProgress()
    found, missing = read_available_tasks(data_dir, tasks, split, progress, pair_tasks or {})
    sentences = [sentence for task in found.values() for sentence in task.sentences]
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


def evaluate_per_task(
    evaluate: Callable[[str], StsResult], tasks: Sequence[str], *, progress: Progress
) -> StsResult:
    """Return one result over all tasks, each scored on its own, as post-processing fitted on the target needs.

    Raises:
        DataError: no task can be scored.
    """
    results: list[StsResult] = []
    missing: dict[str, str] = {}
    for task in tasks:
        try:
            results.append(evaluate(task))
        except DataError as error:
            if task == tasks[-1] and not results:
                raise
            missing[task] = error.message
            progress.warn(f"{task} is left out of the average: {error.message}")
    scores = {name: score for result in results for name, score in result.tasks.items()}
    return replace(
        results[0],
        tasks={task: scores.get(task) for task in tasks},
        missing=missing,
        seconds=sum(result.seconds for result in results),
        n_sentences=sum(result.n_sentences for result in results),
    )


def sts_intervals(result: StsResult) -> SuiteIntervals:
    """Return the intervals under the result's own metric and aggregation."""
    return suite_intervals(
        {
            name: resample_sts(name, task.pairs, metric=result.metric, aggregation=result.aggregation)
            for name, task in result.tasks.items()
            if task is not None
        }
    )


def sts_pair_scores(
    result: StsResult, data_dir: Path | str | None, pair_tasks: Mapping[str, StsTask]
) -> PairScores:
    """Return gold score, predicted similarity and sentences of every scored pair, in file order.

    Under a regressor the ``cosine`` of STS-B and SICK-R is the regressor's prediction instead, in 1 .. 5.
    """
    scores: PairScores = {}
    for name, task in result.tasks.items():
        if task is None:
            continue
        texts = read_task(data_dir, name, cast(Split, task.split), pair_tasks).subsets
        scores[name] = {
            subset: SubsetPairs(
                gold=score.gold,
                cosine=score.predicted,
                left=tuple(texts[subset].left),
                right=tuple(texts[subset].right),
            )
            for subset, score in task.subsets.items()
        }
    return scores


def sts_key(
    data_dir: Path | str | None,
    tasks: Sequence[str],
    split: Split,
    setting: StsSetting,
    pair_tasks: Mapping[str, StsTask],
) -> dict[str, Any]:
    """Return what a result depends on besides the encoder: tasks, setting, and digests of all data read."""
    files = {
        path
        for task in tasks
        if data_dir is not None and task not in pair_tasks
        for read in {split, "all" if setting.regressor and has_split(task, "all") else split}
        if has_split(task, read)
        for path in sts_files(data_dir, task, split=read)
    }
    return {
        "version": _RESULT_VERSION,
        "tasks": list(tasks),
        "split": split,
        "metric": setting.metric.value,
        "aggregation": setting.aggregation.value,
        "regressor": setting.regressor,
        "files": {path.name: sha256_file(path) for path in sorted(files) if path.is_file()},
        "pair_files": {name: task.digest for name, task in pair_tasks.items()},
    }
