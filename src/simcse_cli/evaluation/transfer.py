"""`simcse eval transfer`: frozen sentence vectors, a linear classifier, test accuracy.

Source: SentEval (Conneau and Kiela 2018), as used by Gao et al. 2021 (Table E.1 and appendix E).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from simcse_cli.arrays import Integers
from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.transfer_files import (
    TransferTask,
    missing_transfer_files,
    read_task_file,
    read_transfer_task,
)
from simcse_cli.errors import DataError, TrainingError, UsageError, kept_on_interrupt, require_extra
from simcse_cli.evaluation import probe
from simcse_cli.evaluation.bootstrap import resample_accuracy, with_intervals
from simcse_cli.evaluation.embedding_cache import Encode, EvaluationCache, cache_folder
from simcse_cli.evaluation.eval_encoder import EvalEncoder, keep_in_run
from simcse_cli.evaluation.fit_postprocess import open_with_postprocess
from simcse_cli.evaluation.folds import Fold, RowIndices, stratified_folds
from simcse_cli.evaluation.linear import Features, difference_and_product, require_finite
from simcse_cli.evaluation.options import EncoderOptions, TransferOptions
from simcse_cli.evaluation.probe import ProbeResult
from simcse_cli.evaluation.several import evaluate_checkpoints
from simcse_cli.evaluation.sts import check_task_name, leave_out
from simcse_cli.files.output import require_writable
from simcse_cli.progress import SILENT, Progress
from simcse_cli.results.columns import AVERAGE, columns, parse_tasks
from simcse_cli.results.examples import TaskPredictions, saved_facts, write_predictions
from simcse_cli.results.report import DASH, Outcome, Report, mean_and_deviation
from simcse_cli.results.result import SuiteResult, TaskResult
from simcse_cli.settings.choices import TRANSFER_TASKS, Probe, TransferProtocol

# Increase this when a change of the probe changes scores, so that kept results are not reused.
_RESULT_VERSION = 1
_FEWEST_EXAMPLES = round(1 / probe.HOLDOUT_SHARE)  # a smaller training set would hold out none
_ARRAY_FIELDS = ("test_rows", "predictions")  # of a ProbeResult


@dataclass(frozen=True)
class TransferSuite:
    """The names of the tasks to score, where their examples are, and how to score them.

    ``own_tasks`` are in files of the user; all other tasks are in the SentEval folder ``data_dir``.
    """

    data_dir: Path | str | None
    tasks: Sequence[str] = TRANSFER_TASKS
    own_tasks: Mapping[str, TransferTask] = field(default_factory=dict)
    protocol: TransferProtocol = TransferProtocol.DEFAULT
    probe: Probe = Probe.SENTEVAL

    @classmethod
    def of_options(cls, options: TransferOptions, progress: Progress = SILENT) -> Self:
        """Choose the tasks and read the task files.

        Raise DataError if a task file has too few examples.
        """
        roles = ("text", "label", "left", "right")
        by_role = parse_columns(options.columns, roles)
        given = Given.of(options, by_role, roles=roles, progress=progress)
        own_tasks: dict[str, TransferTask] = {}
        for path in options.task_file or ():
            check_task_name(path.stem, [*TRANSFER_TASKS, *own_tasks], "--task-file")
            own_tasks[path.stem] = read_task_file(path, given)
            # The splits are drawn only to raise an error if there are too few examples.
            outer_splits(own_tasks[path.stem], probe.PROBE_SETTINGS[options.protocol])

        # If there are task files, tasks of a SentEval folder are scored only if they are named.
        named: tuple[str, ...] = ()
        data_dir = None
        if options.tasks is not None or not own_tasks:
            named = parse_tasks(options.tasks, TRANSFER_TASKS)
            data_dir = options.data_dir
        if data_dir is None and named:
            raise UsageError(
                "need a SentEval folder (or SIMCSE_DATA), or --task-file FILE", option="--data-dir"
            )
        return cls(data_dir, (*named, *own_tasks), own_tasks, options.protocol, options.probe)

    def missing(self, progress: Progress = SILENT) -> dict[str, str]:
        """Return a mapping from each task without its files to the reason, and warn about them.

        Raise DataError if no task has its files.
        """
        missing: dict[str, str] = {}
        if self.data_dir is not None:
            senteval_names = tuple(name for name in self.tasks if name not in self.own_tasks)
            for name, paths in missing_transfer_files(self.data_dir, senteval_names).items():
                missing[name] = f"no {', '.join(map(str, paths))}"
        leave_out(missing, self.tasks, self.data_dir, progress)
        return missing

    def read_task(self, name: str) -> TransferTask:
        if self.data_dir is None or name in self.own_tasks:
            return self.own_tasks[name]
        return read_transfer_task(self.data_dir, name)

    def score_task(
        self, task: TransferTask, encode: Encode, cache: EvaluationCache, progress: Progress
    ) -> tuple[TaskResult, TaskPredictions]:
        """Return the score and the predictions of a task, from the cache if they are kept there."""
        # The key holds everything that a score depends on besides the encoder.
        key = {
            "version": _RESULT_VERSION,
            "probe": self.probe.value,
            "settings": asdict(probe.PROBE_SETTINGS[self.protocol]),
            "data": task.digest,  # of the texts, the labels and the rows of each split
        }
        if self.probe is Probe.SKLEARN:
            key["tolerance"] = probe.TOLERANCE

        # With a result that is kept, nothing is encoded and no probe is run.
        kept = cache.load_result(task.name, key)
        if kept is not None:
            progress.info(f"{task.name}: kept from an earlier call")
            result = _unpacked(kept)
        else:
            result = self._run_probe(task, encode, cache, progress)
            cache.save_result(task.name, key, _packed(result))
        return _score(task, result)

    def _run_probe(
        self, task: TransferTask, encode: Encode, cache: EvaluationCache, progress: Progress
    ) -> ProbeResult:
        """Encode the sentences of a task, and return the result of the probe."""
        settings = probe.PROBE_SETTINGS[self.protocol]
        outer, dev_rows = outer_splits(task, settings)
        # The features are a vector or, for pairs, the difference and the product of two vectors;
        # `sentences` holds the left sentences of all pairs, then the right ones.
        features: Features = cache.embed(task.name, task.sentences, encode)
        if task.right:
            features = difference_and_product(*np.split(features, 2))
        require_finite(features, task.name)

        run: Callable[..., ProbeResult] = probe.run_sklearn_probe
        if self.probe is Probe.SENTEVAL:
            run = partial(probe.run_probe, settings=settings)
        try:
            return run(
                features,
                task.labels,
                outer,
                dev_rows=dev_rows,
                progress=progress,
                description=f"{task.name} probe",
            )
        except TrainingError as error:
            # The probe does not know the name of the task.
            raise TrainingError(f"{task.name}: {error.message}", hint=error.hint) from error


def _unpacked(packed: Mapping[str, Any]) -> ProbeResult:
    """Return the result of a probe from the JSON values that ``_packed`` makes."""
    values = dict(packed)
    values["penalties"] = tuple(values["penalties"])
    for name in _ARRAY_FIELDS:
        values[name] = np.array(values[name].split(), dtype=np.int64)
    return ProbeResult(**values)


def _packed(result: ProbeResult) -> dict[str, Any]:
    """Return the result of a probe as JSON values, with its arrays of integers as text."""
    packed = dict(vars(result))
    for name in _ARRAY_FIELDS:
        packed[name] = " ".join(map(str, packed[name].tolist()))
    return packed


def evaluate_transfer(
    encode: Encode,
    suite: TransferSuite,
    *,
    cache: EvaluationCache | None = None,
    progress: Progress = SILENT,
) -> SuiteResult:
    """Score an encoder on transfer tasks; one-hot vectors of the labels score 1.

    ``encode`` is called once per task with its distinct sentences. The probe ``sklearn`` takes only
    the number of outer folds from the protocol. With a ``cache``, only vectors and tasks that it
    lacks are computed.
    """
    cache = cache or EvaluationCache(None, "")  # without a folder, nothing is kept
    missing = suite.missing(progress)

    # Score the tasks that have their files.
    started = time.perf_counter()
    results: dict[str, TaskResult | None] = dict.fromkeys(suite.tasks)
    predictions: dict[str, TaskPredictions] = {}
    for name in suite.tasks:
        if name in missing:
            continue
        task = suite.read_task(name)
        for remark in task.size_remarks():
            progress.warn(remark)
        results[name], predictions[name] = suite.score_task(task, encode, cache, progress)
    seconds = time.perf_counter() - started

    settings = {"protocol": suite.protocol.value, "probe": suite.probe.value}
    dev = [task.extra["dev_accuracy"] for task in results.values() if task]
    figures = {"average_dev": mean_and_deviation(dev)[0], "seconds": seconds}
    return SuiteResult("transfer", settings, results, missing, figures, examples=predictions)


def outer_splits(
    task: TransferTask, settings: probe.ProbeSettings
) -> tuple[list[Fold], RowIndices | None]:
    """Return the outer splits of a task, and its dev rows.

    - A task with a dev set has one split, and dev rows.
    - A task with a test set, but no dev set, has one split, and None for the dev rows.
    - Any other task is split into folds, and has None for the dev rows.

    Raise DataError if a class has too few examples for the folds, or if there are too few training
    examples to hold some out for early stopping.
    """
    if "dev" in task.parts:
        return [Fold(task.rows("train"), task.rows("test"))], task.rows("dev")

    n_folds = settings.n_folds
    if "all" in task.parts:
        # Of n_folds + 2 examples of a class, an outer fold tests at most two. This leaves one for
        # each of the n_folds inner folds, which all need an example of every class.
        _check_class_sizes(task, task.rows("all"), n_folds, n_tested=2)
        folds = stratified_folds(task.labels, n_folds, seed=settings.fit.seed)
    else:
        train = task.rows("train")
        _check_class_sizes(task, train, n_folds, n_tested=0)
        folds = [Fold(train, task.rows("test"))]

    # The smallest training set must have rows to hold out.
    fewest = min(len(fold.train) for fold in folds)
    if fewest < _FEWEST_EXAMPLES:
        raise DataError(
            f"{task.name}: {fewest} training examples, need {_FEWEST_EXAMPLES} to hold some out",
            hint="use more data, or give dev examples too",
        )
    return folds, None


def _check_class_sizes(
    task: TransferTask, rows: RowIndices, n_folds: int, *, n_tested: int
) -> None:
    """Raise DataError if a class has fewer than ``n_folds + n_tested`` examples among ``rows``.

    ``n_tested`` is the most that an outer fold tests; 0 if the task has a test set of its own.
    """
    counts = np.bincount(task.labels[rows], minlength=task.n_classes)
    smallest = int(counts.min())
    if smallest >= n_folds + n_tested:
        return

    # The fast protocol has fewer folds, so it needs fewer examples of a class. Without a test set,
    # it trains on four of five outer folds, which must hold enough examples in all.
    hint = "use more data"
    n_fast = probe.PROBE_SETTINGS[TransferProtocol.FAST].n_folds
    n_training = 0.8 * len(rows) if n_tested else len(rows)
    if n_fast < n_folds and smallest >= n_fast + n_tested and n_training >= _FEWEST_EXAMPLES:
        hint += ", or the fast protocol with its five folds: --protocol fast"
    rarest = ""
    if task.classes:
        rarest = f" ({task.classes[int(counts.argmin())]})"
    raise DataError(
        f"{task.name}: a class{rarest} has {smallest} training examples, "
        f"need {n_folds + n_tested} for {n_folds} folds",
        hint=hint,
    )


def _score(task: TransferTask, result: ProbeResult) -> tuple[TaskResult, TaskPredictions]:
    """Return the score of a task and its predictions, from the result of the probe."""
    gold = task.labels[result.test_rows]
    left = tuple(task.left[row] for row in result.test_rows)
    right: tuple[str, ...] = ()
    if task.right:
        right = tuple(task.right[row] for row in result.test_rows)
    extra: dict[str, Any] = {"dev_accuracy": result.dev_accuracy}
    if task.name == "MRPC":
        extra["f1"] = f1_score(gold, result.predictions)
    if task.classes:
        extra["classes"] = list(task.classes)
    extra["penalties"] = list(result.penalties)
    score = TaskResult(result.accuracy, len(gold), data_sha256=task.digest, extra=extra)
    return score, TaskPredictions(gold, result.predictions, left, right)


def f1_score(gold: Integers, predicted: Integers) -> float:
    """Return the F1 score of class 1; 0 if no example is labelled or predicted as this class.

    F1 is ``2 * hits / (n_labelled + n_predicted)``: the numbers of examples that are labelled as
    class 1, and predicted as class 1; ``hits`` are both.
    """
    hits = int(((gold == 1) & (predicted == 1)).sum())
    total = int((gold == 1).sum() + (predicted == 1).sum())
    return 2 * hits / max(1, total)


def eval_transfer(
    encoder: EncoderOptions, options: TransferOptions, progress: Progress, *, force: bool
) -> Outcome:
    """Score transfer tasks; ``force`` overwrites the files that options name."""
    # Check everything that needs no model.
    if options.probe is Probe.SKLEARN:
        require_extra("sklearn", "--probe sklearn")
    if options.save_scores is not None:
        require_writable(options.save_scores, force=force)
    suite = TransferSuite.of_options(options, progress)
    suite.missing()  # raises if no task has its files
    folder = cache_folder(options.cache_dir, options.cache, progress)
    continues = "finished tasks are kept; the same command continues"
    message = continues if folder else "nothing is kept"

    @kept_on_interrupt(lambda: message)
    def run(opened: EvalEncoder) -> SuiteResult:
        cache = EvaluationCache(
            folder, opened.cache_key, keep_vectors=not options.checkpoints, progress=progress
        )
        result = evaluate_transfer(opened.encode, suite, cache=cache, progress=progress)
        return result.with_settings(**opened.facts())

    # Score each checkpoint of a run, or one encoder.
    if options.checkpoints:
        return evaluate_checkpoints(encoder, run, transfer_checkpoints, progress, by="average_dev")
    result = run(open_with_postprocess(encoder, options.data_dir, progress, force=force))
    if options.ci:
        resampled = {}
        for name, examples in result.examples.items():
            resampled[name] = resample_accuracy(name, examples.correct)
        result = with_intervals(result, resampled)

    # Save the result, and make its table.
    payload = result.to_json()
    if options.save_scores is not None:
        write_predictions(options.save_scores, result.examples, force=force)
        payload |= saved_facts("predictions", options.save_scores, progress)
    keep_in_run(encoder, payload, progress)
    return Outcome([transfer_report(result)], payload)


def transfer_report(result: SuiteResult) -> Report:
    settings = result.settings
    dev: dict[str, float | None] = dict.fromkeys(result.tasks)
    dev |= {name: task.extra["dev_accuracy"] for name, task in result.tasks.items() if task}
    notes = result.notes()
    mrpc = result.tasks.get("MRPC")
    if mrpc and "f1" in mrpc.extra:
        notes.insert(0, f"MRPC F1 {100 * mrpc.extra['f1']:.2f}")
    return Report(
        f"Transfer: accuracy x100, {settings['protocol']} protocol, {settings['probe']} probe, "
        f"pooler {settings['pooler'] or DASH}",
        [*columns("model"), *columns(*result.tasks, AVERAGE, kind="score")],
        [
            {"model": f"{settings['model']} (dev)", **dev, AVERAGE: result.figures["average_dev"]},
            {"model": settings["model"], **result.row},
            *result.interval_rows(),
        ],
        notes,
    )


def transfer_checkpoints(results: Sequence[SuiteResult], run: str) -> Report:
    first = results[0]
    settings = first.settings
    return Report(
        f"Transfer along {run}: accuracy x100, {settings['protocol']} protocol, "
        f"{settings['probe']} probe",
        columns(*first.tasks, AVERAGE, "average_dev", kind="score"),
        [result.row | {"average_dev": result.figures["average_dev"]} for result in results],
        [*first.missing_notes(), "best: highest mean dev accuracy"],
    )
