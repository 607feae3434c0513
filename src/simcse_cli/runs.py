"""The run folder and its record: what was trained, on which data, with which versions and result.

A run folder holds ``config.yaml`` (resolved settings), ``run.json`` (this record), ``metrics.jsonl`` (one
object per logged step), ``model/`` (the best model), ``checkpoint/`` (what ``--resume`` needs) and
``README.md`` (model card); ``results/`` is what ``eval`` found for its model.
"""

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from simcse_cli import __version__
from simcse_cli.choices import STS_TASKS, TRANSFER_TASKS, DevSuite
from simcse_cli.errors import OutputError
from simcse_cli.files import atomic_text, output_error, read_json, write_json
from simcse_cli.metrics import DEV_SUFFIX, label
from simcse_cli.progress import Progress
from simcse_cli.schema import checked

RUN_FILE = "run.json"
STATE_PREFIX = "step-"
"""Of the folders in ``checkpoint/``, one for each state."""
DONE = ("finished", "stopped-early")
"""Status of a run that has nothing left to do."""
SEED_PREFIX = "seed-"
"""Of the runs under one folder, one for each seed."""
RESULTS = "results"
"""The folder of what ``eval`` found for the run's model."""
STATE_FILE, WEIGHTS_FILE = "state.json", "state.safetensors"
_PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Return the versions of the toolkit, Python and the packages that can move a number."""
    found = {"simcse-cli": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass
class RunRecord:
    """The record of a training run; scores are fractions, durations seconds, null where nothing was measured."""

    status: str  # running, interrupted, stopped-early, finished
    objective: str
    model: str
    seed: int
    config: dict[str, Any]
    data: dict[str, Any]
    total_steps: int
    step: int = 0
    n_processes: int = 1
    pooler: str | None = None
    start_score: float | None = None
    best_score: float | None = None
    best_step: int | None = None
    scores: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float | None] = field(default_factory=dict)
    model_digest: str | None = None
    started: str | None = None
    finished: str | None = None
    versions: dict[str, str] = field(default_factory=versions)

    @property
    def chosen_by(self) -> str:
        """What the dev score is taken on."""
        suite, tasks = self.data.get("dev_suite"), self.data.get("dev_tasks", ())
        if suite is None:
            return "the dev file"
        what = "mean dev accuracy" if suite == DevSuite.TRANSFER else "mean correlation"
        return f"{what} of {', '.join(label(task).removesuffix(' dev') for task in tasks)}"

    @property
    def chosen_on_test(self) -> list[str]:
        """Tasks of the dev score that have test data only."""
        return [label(task) for task in self.data.get("dev_tasks", ()) if not task.endswith(DEV_SUFFIX)]

    def write(self, run_dir: Path) -> None:
        write_json(run_dir / RUN_FILE, {"format": 1} | asdict(self))


def read_run_record(run_dir: Path | str) -> RunRecord:
    """Return the record of a run folder; DataError where there is none or it is unreadable."""
    path = Path(run_dir) / RUN_FILE
    hint = "give a run folder of `simcse train`"
    values = checked(read_json(path, hint=hint), dict[str, Any], f"{path} is no run record", hint=hint)
    values.pop("format", None)
    record: RunRecord = checked(values, RunRecord, f"{path} is no run record", hint=hint)
    for name, kind in (("dev_tasks", list[str]), ("dev_files", dict[str, str]), ("dev_suite", str)):
        if name in record.data:
            checked(record.data[name], kind, f"{path}: data.{name}", hint=hint)
    return record


def seed_runs(folder: Path | str) -> dict[int, Path]:
    """Return the runs of a folder that `simcse train --seeds` made, by seed; none for anything else."""
    folder = Path(folder)
    if (folder / "run.json").is_file():
        return {}
    found = {path.name.removeprefix(SEED_PREFIX): path for path in folder.glob(f"{SEED_PREFIX}*")}
    runs = {
        int(seed): path for seed, path in found.items() if (path / "run.json").is_file() and seed.isdigit()
    }
    return dict(sorted(runs.items()))


def kept_states(folder: Path) -> list[Path]:
    """Return the states in a ``checkpoint/`` folder, in step order."""
    return sorted(folder.glob(f"{STATE_PREFIX}*")) if folder.is_dir() else []


def step_of(state: Path) -> int:
    return int(state.name.removeprefix(STATE_PREFIX))


def open_run_dir(path: Path, *, force: bool) -> None:
    """Make an empty run folder; with ``force`` the files of an earlier run in it are removed.

    Raises:
        OutputError: the folder is in use without ``force``, holds other things, or cannot be written.
    """
    own = {"config.yaml", "run.json", "metrics.jsonl", "model", "checkpoint", RESULTS, "README.md"}
    try:
        if path.exists() and not path.is_dir():
            raise OutputError(f"{path} is a file, need a folder", hint="choose another place with -o")
        path.mkdir(parents=True, exist_ok=True)
        inside = {entry.name for entry in path.iterdir()}
        if inside & own and not force:
            raise OutputError(
                f"{path} holds a run already",
                hint=f"go on with `simcse train -o {path} --resume`, choose another folder, or replace it with --force",
            )
        if inside - own and not force:
            raise OutputError(f"{path} is not empty", hint="choose a new folder with -o")
        for name in inside & own:
            entry = path / name
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    except OSError as error:
        raise output_error(path, error) from error
    if not os.access(path, os.W_OK):
        raise OutputError(f"{path} is not writable", hint="choose another place with -o")


def keep_result(model: str, result: Mapping[str, Any], progress: Progress) -> None:
    """Write a result of ``eval`` into the run folder that it judges, over an earlier one of the same settings.

    A model that is no run keeps nothing; a folder that cannot be written is warned about.
    """
    run_dir = Path(model)
    if not (run_dir / "run.json").is_file():
        return
    path = run_dir / RESULTS / f"{result_name(result, read_run_record(run_dir).pooler)}.json"
    try:
        write_json(path, result)
    except OutputError as error:
        progress.warn(f"the result is not kept in the run: {error.message}")
    else:
        progress.info(f"kept {path} for `simcse compare {model}`")


def result_name(result: Mapping[str, Any], pooler: str | None) -> str:
    """Return a file name for a result: its suite and settings, and what is unlike the run (``sts-test-spearman-all``).

    Results of the same name have the same settings; the data is not one of them.
    """
    tasks = list(result["tasks"])
    keys = ("suite", "benchmark", "split", "metric", "aggregation")
    parts = [str(result[key]) for key in keys if result.get(key) is not None]
    if result["suite"] == "transfer":
        parts += [result["protocol"], *(["sklearn"] if result["probe"] == "sklearn" else [])]
    parts += ["regressor"] if result.get("regressor") else []
    parts += [result["pooler"]] if pooler is not None and result["pooler"] != pooler else []
    parts += [result["precision"]] if result["precision"] != "fp32" else []
    if result["postprocess"] is not None:
        parts += [str(result["postprocess"].get("name", "postprocess")), _short_digest(result["postprocess"])]
    if not any(set(suite) == set(tasks) for suite in (STS_TASKS, TRANSFER_TASKS)):
        parts.append("+".join(tasks) if len(tasks) < 4 else _short_digest(tasks))
    return re.sub(r"[^\w.+-]+", "-", "-".join(parts))


def _short_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]


class MetricsLog:
    """``metrics.jsonl``: one object per logged step, cut back to the resumed step first."""

    def __init__(self, path: Path, *, last_step: int | None = None) -> None:
        self.path = path
        lines: list[str] = []
        if last_step is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    kept = json.loads(line)["step"] <= last_step
                except (json.JSONDecodeError, KeyError):
                    kept = False  # the line that a kill cut short
                if kept:
                    lines.append(line)
        with atomic_text(path, force=True) as stream:
            stream.writelines(f"{line}\n" for line in lines)

    def append(self, values: dict[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(values, allow_nan=False) + "\n")
        except OSError as error:
            raise output_error(self.path, error) from error
