"""From the dev settings to what scores the model, read and checked before training starts."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.choices import STS_TASKS, TRANSFER_TASKS, DevSuite
from simcse_cli.config import DATA_VARIABLE, TrainConfig
from simcse_cli.data.senteval import (
    Split,
    StsSubset,
    StsTask,
    has_split,
    read_sts_task,
    resolve_senteval_dir,
    sts_files,
)
from simcse_cli.data.transfer_files import read_transfer_task, transfer_files
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.evaluation.probe import PROBE_SETTINGS
from simcse_cli.evaluation.transfer import outer_splits, require_transfer_files
from simcse_cli.files import sha256_file
from simcse_cli.metrics import DEV_SUFFIX, find_tasks
from simcse_cli.progress import Progress
from simcse_cli.training.dev import (
    TRANSFER_PROTOCOL,
    DevPairs,
    DevSet,
    DevSts,
    DevTransfer,
    measure_of,
    read_dev_set,
)

Facts = dict[str, Any]
"""What the record of a run says of its dev data: names and digests."""


def build_dev_set(config: TrainConfig, progress: Progress) -> tuple[DevSet | None, Facts]:
    """Return what scores the model, None without dev settings, and what identifies its data.

    Raises:
        ConfigError: the suite has no data folder, or an unknown task.
        DataError: a file is missing or malformed, or has too few examples for the folds.
    """
    pairs = read_dev_set(config.dev_file) if config.dev_file else None
    facts = (
        {"dev_file": config.dev_file, "dev_sha256": sha256_file(config.dev_file)} if config.dev_file else {}
    )
    if config.dev_suite is DevSuite.FILE:
        return None if pairs is None else DevPairs(pairs, config.dev_metric), facts
    if config.data_dir is None:
        raise ConfigError(
            f"--dev-suite {config.dev_suite}: no data",
            hint=f"give the SentEval folder with --data-dir DIR, or {DATA_VARIABLE}",
        )
    build = _build_sts if config.dev_suite is DevSuite.STS else _build_transfer
    dev_set, suite_facts = build(config, config.data_dir, pairs, progress)
    return dev_set, facts | {"dev_suite": config.dev_suite.value} | suite_facts


def _build_sts(
    config: TrainConfig, data_dir: str, pairs: StsSubset | None, progress: Progress
) -> tuple[DevSet, Facts]:
    default = tuple(name for name in STS_TASKS if has_split(name, "dev"))
    names = default if config.dev_tasks is None else _tasks(config.dev_tasks, STS_TASKS)
    splits: dict[str, Split] = {name: "dev" if has_split(name, "dev") else "test" for name in names}
    on_test = [name for name, split in splits.items() if split == "test"]
    if on_test:
        progress.warn(
            f"--dev-tasks: no dev data for {', '.join(on_test)}, so the model is chosen on test data; "
            "scores on these tasks, and averages with them, are not to be reported"
        )
    try:
        tasks = [read_sts_task(data_dir, name, split=split) for name, split in splits.items()]
    except DataError as error:
        raise DataError(f"--dev-suite sts: {error.message}", hint=_other_tasks(data_dir, splits)) from error
    paths = [path for name, split in splits.items() for path in sts_files(data_dir, name, split=split)]
    chosen = pairs or geometry_pairs(tasks)
    facts = {"dev_tasks": [measure_of(task) for task in tasks], "dev_files": _digests(data_dir, paths)}
    return DevSts(tasks, config.dev_metric, chosen), facts


def _build_transfer(
    config: TrainConfig, data_dir: str, pairs: StsSubset | None, progress: Progress
) -> tuple[DevSet, Facts]:
    names = TRANSFER_TASKS if config.dev_tasks is None else _tasks(config.dev_tasks, TRANSFER_TASKS)
    try:
        require_transfer_files(data_dir, names)
    except DataError as error:
        hint = None if error.hint is None else error.hint.replace("--tasks", "--dev-tasks")
        raise DataError(f"--dev-suite transfer: {error.message}", hint=hint) from error
    tasks = [read_transfer_task(data_dir, name) for name in names]
    for task in tasks:
        outer_splits(task, PROBE_SETTINGS[TRANSFER_PROTOCOL])  # refuses too few examples for the folds
        for remark in task.size_remarks():
            progress.warn(remark)
    paths = [path for name in names for path in transfer_files(data_dir, name).values()]
    facts = {"dev_tasks": [name + DEV_SUFFIX for name in names], "dev_files": _digests(data_dir, paths)}
    return DevTransfer(tasks, pairs, progress), facts


def geometry_pairs(tasks: Sequence[StsTask]) -> StsSubset:
    """Return the pairs for alignment and uniformity: those of STS-B where it is among the tasks, else all."""
    chosen = [task for task in tasks if task.name == "STSBenchmark"] or tasks
    subsets = [subset for task in chosen for subset in task.subsets.values()]
    return StsSubset(
        [text for subset in subsets for text in subset.left],
        [text for subset in subsets for text in subset.right],
        np.concatenate([subset.gold for subset in subsets]),
    )


def _tasks(text: str, known: Sequence[str]) -> tuple[str, ...]:
    try:
        return find_tasks(text, known)
    except ValueError as error:
        raise ConfigError(f"--dev-tasks: {error}") from None


def _other_tasks(data_dir: str, splits: dict[str, Split]) -> str:
    there = [
        name
        for name, split in splits.items()
        if all(path.is_file() for path in sts_files(data_dir, name, split=split))
    ]
    check = "check the folder with `simcse prepare senteval --data-dir DIR`"
    return f"{check}, or use --dev-tasks {','.join(there)}" if 0 < len(there) < len(splits) else check


def _digests(data_dir: str, paths: Iterable[Path]) -> dict[str, str]:
    root = resolve_senteval_dir(data_dir)
    return {path.relative_to(root).as_posix(): sha256_file(path) for path in paths}
