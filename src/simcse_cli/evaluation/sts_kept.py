"""Finished STS results in the evaluation cache, so that the checkpoints of a run are scored once."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simcse_cli.data.senteval import Split, has_split, sts_files
from simcse_cli.evaluation.embedding_cache import EvaluationCache
from simcse_cli.evaluation.protocols import StsSetting
from simcse_cli.evaluation.sts import StsResult
from simcse_cli.files import sha256_file

# Raise when a change of the evaluation moves its numbers: kept results are then not reused.
_RESULT_VERSION = 1


def sts_key(data_dir: Path | str, tasks: Sequence[str], split: Split, setting: StsSetting) -> dict[str, Any]:
    """Return what a result depends on besides the encoder: tasks, setting, and digests of all files read."""
    files = {
        path
        for task in tasks
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
    }


def evaluate_once(
    evaluate: Callable[[], StsResult], cache: EvaluationCache, key: dict[str, Any]
) -> dict[str, Any]:
    """Return the result object without facts of the encoder, from the cache where it is finished."""
    kept = cache.load_result("sts", key)
    if kept is None:
        kept = evaluate().to_json()
        cache.save_result("sts", key, kept)
    return kept
