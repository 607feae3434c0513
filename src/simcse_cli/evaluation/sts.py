"""The STS suite: choose and read the tasks, and score an encoder in the settings of the literature.

Source: the SentEval protocol as Gao et al. 2021 (Table 5, appendix B) use it: no regressor, cosine
similarity, Spearman over the concatenated subsets of a year.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from simcse_cli.arrays import Floats
from simcse_cli.data.demo import data_dir_or_demo, is_demo_corpus
from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.pair_files import SCORED_PAIR, read_scored_pairs
from simcse_cli.data.senteval import (
    Split,
    StsTask,
    has_split,
    read_sts_task,
    resolve_senteval_dir,
    sts_files,
)
from simcse_cli.errors import DataError, UsageError
from simcse_cli.evaluation.correlation import aggregate, correlate, cosine_rows
from simcse_cli.evaluation.embedding_cache import Embeddings, Encode, encode_distinct
from simcse_cli.evaluation.options import StsOptions
from simcse_cli.evaluation.regressor import REGRESSED_TASKS, regress_task
from simcse_cli.files.digests import sha256_file
from simcse_cli.progress import SILENT, Progress
from simcse_cli.results.columns import parse_tasks
from simcse_cli.results.examples import SubsetPairs
from simcse_cli.results.result import SuiteResult, TaskResult
from simcse_cli.settings.choices import STS_TASKS, Aggregation, Metric, StsProtocol

# Increase this when a change of the evaluation changes scores, so that kept results are not reused.
_RESULT_VERSION = 3


@dataclass(frozen=True)
class StsSetting:
    """How a paper scores STS: Gao et al. 2021, Table B.1.

    Two papers that report the same encoder can differ by ten points because one averages the
    subsets of a year and the other concatenates them.

    A paper may report several ``metrics``; the first one is the score. ``paper`` is the citation.
    """

    metrics: tuple[Metric, ...]
    aggregation: Aggregation
    regressor: bool
    paper: str

    @property
    def metric(self) -> Metric:
        return self.metrics[0]


_SPEARMAN = (Metric.SPEARMAN,)
_PEARSON = (Metric.PEARSON,)

# Each has the metrics, the aggregation, whether a regressor is trained, and the paper.
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


def resolve_setting(options: StsOptions) -> StsSetting:
    """Return the setting of the protocol; options that the user gave replace parts of it."""
    setting = STS_SETTINGS[options.protocol]
    if options.metric is not None:
        setting = replace(setting, metrics=(options.metric,))
    if options.aggregation is not None:
        setting = replace(setting, aggregation=options.aggregation)
    if options.regressor is not None:
        setting = replace(setting, regressor=options.regressor)
    return setting


def check_task_name(name: str, taken: Sequence[str], option: str) -> None:
    if name in taken:
        raise UsageError(
            f"there is a task called {name}; give the file another name", option=option
        )


@dataclass(frozen=True)
class StsSuite:
    """The names of the tasks to score, and where their pairs are.

    ``own_tasks`` are the user's own pairs; all other tasks are in the SentEval folder ``data_dir``.
    """

    data_dir: Path | str | None
    tasks: Sequence[str] = STS_TASKS
    split: Split = "test"
    own_tasks: Mapping[str, StsTask] = field(default_factory=dict)

    @classmethod
    def of_options(cls, options: StsOptions, progress: Progress) -> Self:
        """Choose the tasks and read the pair files.

        Pair files are always scored. Of the tasks in a SentEval folder, these are scored:

        - with ``--tasks``: those that it names;
        - otherwise, with ``--split dev``: STS-B;
        - otherwise: all that have the split, or none if there are pair files.

        The demo corpus stands in for a missing folder. Without ``--tasks``, only its STS-B is
        scored.
        """
        split = cast(Split, options.split)
        columns = parse_columns(options.columns, SCORED_PAIR)
        given = Given.of(options, columns, roles=SCORED_PAIR, progress=progress)
        own_tasks: dict[str, StsTask] = {}
        for path in options.pair_file or ():
            check_task_name(path.stem, [*STS_TASKS, *own_tasks], "--pair-file")
            pairs = read_scored_pairs(path, given)
            own_tasks[path.stem] = StsTask(path.stem, split="test", subsets={"test": pairs})

        # The tasks of a SentEval folder.
        named: tuple[str, ...] = ()
        data_dir = options.data_dir
        if options.tasks is not None:
            named = parse_tasks(options.tasks, STS_TASKS)
            with_split = [name for name in STS_TASKS if has_split(name, split)]
            if not set(named) & set(with_split):
                raise UsageError(
                    f"no {split} set of {', '.join(named)}, need one of {', '.join(with_split)}",
                    option="--split",
                    hint=f"leave out --split {split} to score the test sets",
                )
        elif split == "dev":
            named = ("STSBenchmark",)
        elif not own_tasks:
            named = tuple(name for name in STS_TASKS if has_split(name, split))
        if named:
            data_dir = data_dir_or_demo(data_dir, progress)
            if options.tasks is None and is_demo_corpus(data_dir):
                named = ("STSBenchmark",)
        return cls(data_dir, (*named, *own_tasks), split, own_tasks)

    def read_task(self, name: str, split: Split) -> StsTask:
        """Return the pairs of a task in a split, or of a pair file, which has no splits."""
        if self.data_dir is None or name in self.own_tasks:
            return self.own_tasks[name]
        return read_sts_task(self.data_dir, name, split=split)

    def read(self, progress: Progress) -> tuple[dict[str, StsTask], dict[str, str]]:
        """Return the tasks that can be read, and why the others cannot, both by name.

        Warn about each of the others; raise DataError if no task can be read.
        """
        if self.data_dir is not None and any(name not in self.own_tasks for name in self.tasks):
            resolve_senteval_dir(self.data_dir)  # raises once, not for each task
        tasks: dict[str, StsTask] = {}
        missing: dict[str, str] = {}
        for name in self.tasks:
            if name not in self.own_tasks and not has_split(name, self.split):
                missing[name] = f"{name} has no {self.split} split"
                continue
            try:
                tasks[name] = self.read_task(name, self.split)
            except DataError as error:
                missing[name] = error.message
        leave_out(missing, self.tasks, self.data_dir, progress)
        return tasks, missing

    def key(self, setting: StsSetting) -> dict[str, Any]:
        """Return the cache key of a result: all that it depends on besides the encoder.

        Data are represented by their digests.
        """
        # A regressor is trained on the other splits of a task, so the result depends on them too.
        splits = {self.split}
        if setting.regressor:
            splits.add("all")
        # Some years have files of the same name, so names include the folder.
        files: dict[str, str] = {}
        for task in self.tasks:
            if self.data_dir is None or task in self.own_tasks:
                continue
            for split in splits:
                if not has_split(task, split):
                    continue
                for path in sts_files(self.data_dir, task, split=split):
                    if path.is_file():
                        files[f"{path.parent.name}/{path.name}"] = sha256_file(path)
        return {
            "version": _RESULT_VERSION,
            "tasks": list(self.tasks),
            "split": self.split,
            "metric": setting.metric.value,
            "aggregation": setting.aggregation.value,
            "regressor": setting.regressor,
            "files": files,
            "pair_files": {name: task.digest for name, task in self.own_tasks.items()},
        }


def leave_out(
    missing: Mapping[str, str],
    tasks: Sequence[str],
    data_dir: Path | str | None,
    progress: Progress,
) -> None:
    """Warn about each task without data; raise DataError if no task has data.

    ``missing`` maps the tasks without data to the reasons.
    """
    for name, reason in missing.items():
        progress.warn(f"{name} is left out of the average: {reason}")
    if len(missing) == len(tasks):
        what = (
            f"none of {', '.join(tasks)} can be scored below {data_dir}: "
            f"{next(iter(missing.values()))}"
        )
        raise DataError(what, hint="check the folder with `simcse prepare senteval --data-dir DIR`")


def score_sts_task(task: StsTask, vectors: Mapping[str, Embeddings]) -> dict[str, SubsetPairs]:
    """Return the cosines of each subset, with the gold scores and the sentences."""
    scored = {}
    for name, subset in task.subsets.items():
        left = np.stack([vectors[text] for text in subset.left])
        right = np.stack([vectors[text] for text in subset.right])
        cosines = cosine_rows(left, right)
        scored[name] = SubsetPairs(subset.gold, cosines, tuple(subset.left), tuple(subset.right))
    return scored


def cosine_and_gold(subsets: Mapping[str, SubsetPairs]) -> list[tuple[Floats, Floats]]:
    return [(pairs.cosine, pairs.gold) for pairs in subsets.values()]


def sts_task_result(
    subsets: Mapping[str, SubsetPairs], metric: Metric, aggregation: Aggregation, data_sha256: str
) -> TaskResult:
    """Return the score of a task by one metric and aggregation.

    The result also has the scores by all other metrics and aggregations, and those of each subset.
    """
    cosines_and_golds = cosine_and_gold(subsets)
    by_metric: dict[str, dict[str, float | None]] = {}
    for each_metric in Metric:
        by_metric[each_metric.value] = {
            each_aggregation.value: aggregate(each_metric, each_aggregation, cosines_and_golds)
            for each_aggregation in Aggregation
        }
    n_pairs = 0
    parts: dict[str, dict[str, float | None]] = {}
    for name, pairs in subsets.items():
        n_pairs += len(pairs.gold)
        parts[name] = {"n_pairs": len(pairs.gold)}
        for each_metric in Metric:
            parts[name][each_metric.value] = correlate(each_metric, pairs.cosine, pairs.gold)
    score = by_metric[metric][aggregation]
    return TaskResult(score, n_pairs, parts, data_sha256, extra=by_metric)


def evaluate_sts(
    encode: Encode,
    suite: StsSuite,
    setting: StsSetting = STS_SETTINGS[StsProtocol.SIMCSE],
    *,
    progress: Progress = SILENT,
) -> SuiteResult:
    """Score an encoder on STS tasks by the correlation of its cosines with the gold scores.

    ``encode`` is called once with all distinct sentences of all tasks. If the setting has a
    regressor, ``encode`` is called again for STS-B and SICK-R, with the sentences of all their
    splits, and the predictions of the regressor, in 1 .. 5, replace the cosines of these two tasks.
    """
    tasks, missing = suite.read(progress)
    sentences = [sentence for task in tasks.values() for sentence in task.sentences]

    # The time covers encoding and scoring, but not the reading of files.
    started = time.perf_counter()
    vectors = encode_distinct(encode, sentences)
    scored = {name: score_sts_task(task, vectors) for name, task in tasks.items()}
    seconds = time.perf_counter() - started

    # The regressor is trained on other splits of the task, so it needs the SentEval folder.
    for name in REGRESSED_TASKS:
        if setting.regressor and name in tasks and suite.data_dir is not None:
            predicted = regress_task(name, encode, suite.data_dir, progress=progress)
            scored[name] = {"test": replace(scored[name]["test"], cosine=predicted)}

    # The subsets of a task become one score.
    metric = setting.metric
    aggregation = setting.aggregation
    results: dict[str, TaskResult | None] = dict.fromkeys(suite.tasks)
    for name, subsets in scored.items():
        result = sts_task_result(subsets, metric, aggregation, tasks[name].digest)
        if result.score is None:
            golds = [pairs.gold for pairs in subsets.values()]
            progress.warn(f"{name} has no score: {why_undefined(golds, aggregation)}")
        results[name] = result
    settings = {"metric": metric.value, "aggregation": aggregation.value, "split": suite.split}
    figures = _speed_figures(len(sentences), seconds)
    return SuiteResult("sts", settings, results, missing, figures, examples=scored)


def why_undefined(golds: Sequence[Floats], aggregation: Aggregation) -> str:
    """Return the reason why a task has no score; ``golds`` are the gold scores of each subset."""
    if aggregation is Aggregation.ALL:
        golds = [np.concatenate(golds)]
    for gold in golds:
        if len(gold) < 2:
            return "a correlation needs two pairs or more"
        if np.ptp(gold) == 0:
            return f"all pairs are rated {gold[0]:g}"
    return "all pairs have the same cosine"


def _speed_figures(n_sentences: int, seconds: float) -> dict[str, float | None]:
    rate = None
    if seconds > 0:
        rate = n_sentences / seconds
    return {"n_sentences": n_sentences, "seconds": seconds, "sentences_per_second": rate}


def evaluate_per_task(
    encode_for: Callable[[str], Encode], suite: StsSuite, setting: StsSetting, *, progress: Progress
) -> SuiteResult:
    """Score each task with its own encode function, which ``encode_for`` makes from its name.

    Post-processing that is fitted on each task (``--fit target``) needs this.
    """
    # A task without data must not cost the others their scores.
    results: list[SuiteResult] = []
    missing: dict[str, str] = {}
    for task in suite.tasks:
        try:
            only_task = replace(suite, tasks=(task,))
            results.append(evaluate_sts(encode_for(task), only_task, setting, progress=progress))
        except DataError as error:
            # If no task can be scored, the error of the last one is raised.
            if task == suite.tasks[-1] and not results:
                raise
            missing[task] = error.message
            progress.warn(f"{task} is left out of the average: {error.message}")

    # Join the results of single tasks.
    tasks: dict[str, TaskResult | None] = dict.fromkeys(suite.tasks)
    examples: dict[str, Any] = {}
    for result in results:
        tasks |= result.tasks
        examples |= result.examples
    n_sentences = sum(result.figures["n_sentences"] for result in results)
    seconds = sum(result.figures["seconds"] for result in results)
    figures = _speed_figures(n_sentences, seconds)
    return replace(results[0], tasks=tasks, missing=missing, figures=figures, examples=examples)
