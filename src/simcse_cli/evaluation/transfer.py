"""The seven transfer tasks: frozen sentence vectors, a linear classifier, test accuracy.

Source: SentEval (Conneau and Kiela 2018), as used by Gao et al. 2021 (Table E.1 and appendix E).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.data.columns import parse_columns
from simcse_cli.data.transfer_files import (
    TransferTask,
    missing_transfer_files,
    read_task_file,
    read_transfer_task,
)
from simcse_cli.errors import DataError, TrainingError
from simcse_cli.evaluation.embedding_cache import Encode, EvaluationCache, digest_of
from simcse_cli.evaluation.folds import Fold, RowIndices, stratified_folds
from simcse_cli.evaluation.linear import difference_and_product, require_finite
from simcse_cli.evaluation.probe import HOLDOUT_SHARE, PROBE_SETTINGS, ProbeResult, ProbeSettings, run_probe
from simcse_cli.evaluation.sklearn_probe import run_sklearn_probe
from simcse_cli.evaluation.sts import check_task_name, leave_out
from simcse_cli.progress import SILENT, Progress
from simcse_cli.results.examples import TaskPredictions
from simcse_cli.results.report import mean_and_deviation
from simcse_cli.results.result import SuiteResult, TaskResult
from simcse_cli.settings.choices import TRANSFER_TASKS, Probe, TransferProtocol

_RESULT_VERSION = 1  # raise when a change of the probe moves its numbers: kept results are then not reused


def evaluate_transfer(
    encode: Encode,
    data_dir: Path | str | None,
    *,
    tasks: Sequence[str] = TRANSFER_TASKS,
    protocol: TransferProtocol = TransferProtocol.DEFAULT,
    probe: Probe = Probe.SENTEVAL,
    file_tasks: Mapping[str, TransferTask] | None = None,
    cache: EvaluationCache | None = None,
    progress: Progress = SILENT,
) -> SuiteResult:
    """Score an encoder on transfer tasks; vectors that are the one-hot labels score 1.

    ``encode`` is called once per task with its distinct sentences. ``data_dir`` may be None where all tasks are task
    files, which ``file_tasks`` gives by name. With the probe ``sklearn``, only the number of outer folds of the
    ``protocol`` counts. A second call with the same ``cache`` only does what is missing.

    Raises:
        DataError: no task has all its files, or vectors are not finite.
        TrainingError: a probe diverged or did not converge; tasks finished before it are kept in the cache.
    """
    cache = cache or EvaluationCache(None, "")
    own = file_tasks or {}
    missing = missing_tasks(data_dir, tasks, own, progress)
    started = time.perf_counter()
    results: dict[str, TaskResult | None] = dict.fromkeys(tasks)
    predictions: dict[str, TaskPredictions] = {}
    for name in tasks:
        if name in missing:
            continue
        task = own[name] if name in own or data_dir is None else read_transfer_task(data_dir, name)
        for remark in task.size_remarks():
            progress.warn(remark)
        results[name], predictions[name] = score_transfer_task(
            task, encode, protocol=protocol, probe=probe, cache=cache, progress=progress
        )
    result = SuiteResult("transfer", {"protocol": protocol.value, "probe": probe.value}, results, missing)
    dev = [task.extra["dev_accuracy"] for task in results.values() if task]
    figures = {"average_dev": mean_and_deviation(dev)[0], "seconds": time.perf_counter() - started}
    return replace(result, figures=figures, examples=predictions)


def read_file_tasks(
    paths: Sequence[Path], columns: str | None, protocol: TransferProtocol
) -> dict[str, TransferTask]:
    """Read task files; each task is named after its file and has enough examples for the folds."""
    names = parse_columns(columns, ("text", "label", "left", "right"))
    found: dict[str, TransferTask] = {}
    for path in paths:
        check_task_name(path.stem, [*TRANSFER_TASKS, *found], "--task-file")
        found[path.stem] = read_task_file(path, names)
        outer_splits(found[path.stem], PROBE_SETTINGS[protocol])
    return found


def missing_tasks(
    data_dir: Path | str | None,
    tasks: Sequence[str],
    own: Mapping[str, TransferTask],
    progress: Progress = SILENT,
) -> dict[str, str]:
    """Return the reason for each task that lacks files, with a warning; raise DataError if all do."""
    named = [] if data_dir is None else [name for name in tasks if name not in own]
    files = missing_transfer_files(data_dir or "", tuple(named))
    missing = {name: f"no {', '.join(map(str, paths))}" for name, paths in files.items()}
    leave_out(missing, tasks, data_dir, progress)
    return missing


def score_transfer_task(
    task: TransferTask,
    encode: Encode,
    *,
    protocol: TransferProtocol,
    probe: Probe,
    cache: EvaluationCache,
    progress: Progress,
) -> tuple[TaskResult, TaskPredictions]:
    """Return the score of one task and its predictions, from the cache if it is there."""
    settings = PROBE_SETTINGS[protocol]
    key = {
        "version": _RESULT_VERSION,
        "probe": probe.value,
        "settings": asdict(settings),
        "data": digest_of(task.left, task.right, task.labels),
    }
    kept = cache.load_result(task.name, key)
    if kept is not None:
        progress.info(f"{task.name}: kept from an earlier call")
        rows = {name: np.array(kept[name].split(), dtype=np.int64) for name in ("test_rows", "predictions")}
        penalties = tuple(kept["penalties"])
        return _score(task, ProbeResult(kept["dev_accuracy"], kept["accuracy"], penalties, **rows))
    outer, dev_rows = outer_splits(task, settings)
    features: NDArray[np.floating] = cache.embed(task.name, task.sentences, encode)
    if task.right:
        n = len(task.left)
        features = difference_and_product(features[:n], features[n:])
    require_finite(features, task.name)
    run: Callable[..., ProbeResult] = (
        run_sklearn_probe if probe is Probe.SKLEARN else partial(run_probe, settings=settings)
    )
    how = {"dev_rows": dev_rows, "progress": progress, "description": f"{task.name} probe"}
    try:
        result = run(features, task.labels, outer, **how)
    except TrainingError as error:
        raise TrainingError(f"{task.name}: {error.message}", hint=error.hint) from error
    rows = {name: getattr(result, name) for name in ("test_rows", "predictions")}
    packed = {name: " ".join(map(str, values.tolist())) for name, values in rows.items()}
    cache.save_result(task.name, key, vars(result) | {"penalties": list(result.penalties)} | packed)
    return _score(task, result)


def outer_splits(task: TransferTask, settings: ProbeSettings) -> tuple[list[Fold], RowIndices | None]:
    """Return the outer splits of a task and, for SST2, its dev rows."""
    if "dev" in task.parts:
        return [Fold(task.rows("train"), task.rows("test"))], task.rows("dev")
    nested = "all" in task.parts
    rows = task.rows("all" if nested else "train")
    counts = np.bincount(task.labels[rows], minlength=task.n_classes)
    smallest = int(counts.min())
    needed = settings.n_folds + 2 if nested else settings.n_folds
    if smallest < needed:
        rarest = f" ({task.classes[int(counts.argmin())]})" if task.classes else ""
        raise DataError(
            f"{task.name}: a class{rarest} has {smallest} training examples, "
            f"need {needed} for {settings.n_folds} folds",
            hint="use more data, or the fast protocol with its five folds: --protocol fast",
        )
    if nested:
        folds = stratified_folds(task.labels, settings.n_folds, seed=settings.fit.seed)
    else:
        folds = [Fold(rows, task.rows("test"))]
    fewest = min(len(fold.train) for fold in folds)
    if int(HOLDOUT_SHARE * fewest) == 0:
        raise DataError(
            f"{task.name}: {fewest} training examples, need {round(1 / HOLDOUT_SHARE)} to hold some out",
            hint="use more data, or give dev examples too",
        )
    return folds, None


def _score(task: TransferTask, result: ProbeResult) -> tuple[TaskResult, TaskPredictions]:
    gold = task.labels[result.test_rows]
    left, right = (
        tuple(texts[row] for row in result.test_rows) if texts else () for texts in (task.left, task.right)
    )
    extra: dict[str, Any] = {"dev_accuracy": result.dev_accuracy}
    if task.name == "MRPC":
        extra["f1"] = f1_score(gold, result.predictions)
    if task.classes:
        extra["classes"] = list(task.classes)
    extra["penalties"] = list(result.penalties)
    score = TaskResult(result.accuracy, len(gold), data_sha256=task.digest, extra=extra)
    return score, TaskPredictions(gold, result.predictions, left, right)


def f1_score(gold: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """Return the F1 of class 1: twice the hits over the sum of gold and predicted examples; 0 if there are none."""
    hits = int(((gold == 1) & (predicted == 1)).sum())
    total = int((gold == 1).sum() + (predicted == 1).sum())
    return 2 * hits / total if total else 0.0
