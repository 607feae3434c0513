"""The run folder and its record: settings, data, versions and scores of a training run.

A run folder holds ``config.yaml`` (resolved settings), ``run.json`` (this record),
``metrics.jsonl`` (one object per logged step), ``model/`` (the best model), ``checkpoint/`` (what
``--resume`` needs) and ``README.md`` (model card). ``results/`` holds what ``eval`` found for the
model, and ``tracking/`` what a tracker wrote.
"""

import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from simcse_cli.errors import DataError, OutputError
from simcse_cli.files.atomic import (
    output_error,
    remove_leftovers,
    require_local,
    temporary_beside,
    write_json,
)
from simcse_cli.files.digests import OLDER_DIGEST, digest, is_older_digest
from simcse_cli.files.inputs import read_json
from simcse_cli.files.locks import is_locked, sole_writer
from simcse_cli.files.schema import checked, parse_json
from simcse_cli.results.columns import DEV_SUFFIX, MLM_MEASURE, label
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS, Batches, DevSuite, Metric
from simcse_cli.version import __version__

RUN_FILE = "run.json"
_CONFIG_FILE = "config.yaml"
"""The file of the settings; a folder without this file is no run that can be resumed."""
STATE_PREFIX = "step-"
"""Prefix of the folders in ``checkpoint/``, one for each state."""
DONE = ("finished", "stopped-early")
"""The statuses of a complete run."""
SEED_PREFIX = "seed-"
"""Prefix of the runs under one folder, one for each seed."""
RESULTS = "results"
"""The folder of the results of ``eval`` for the run's model."""
STATE_FILE = "state.json"
WEIGHTS_FILE = "state.safetensors"
TRACKING = "tracking"
"""The folder that a tracker writes to."""
TEACHERS = "teachers"
"""The folder with the vectors that teachers give to the training texts, one file per teacher."""
OWN_NAMES = (
    _CONFIG_FILE,
    RUN_FILE,
    "metrics.jsonl",
    "model",
    "checkpoint",
    "README.md",
    RESULTS,
    TRACKING,
    TEACHERS,
)
"""Files and folders of a run."""
EARLIER = ".earlier"
"""The folder of the run that a new one replaces, see ``may_come_back``."""
MOVED = ".moved"
"""The folder of a run while its files move to or from ``EARLIER``; see ``_put_back``."""
ASIDE = frozenset((EARLIER, MOVED))
"""The folders of a run, or of several, that are being replaced."""
DEV_PAIRS = "dev_pairs"
"""The key in ``RunRecord.data`` for the pairs that chose the model: their digests by data set."""
DEV_DATA = "dev_data"
"""The key for the digests of the same pairs with their order and gold scores, as in results."""
_PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Return the versions of the toolkit, of Python and of packages that can change a result."""
    from importlib import metadata  # imported here: it takes 8 ms, too long for --help

    by_package = {"simcse-cli": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            by_package[package] = metadata.version(package)
    return by_package


@dataclass(frozen=True)
class Gain:
    """The gain of a run on the dev data that chose its model, as a fraction.

    ``low`` and ``high`` are the ends of the 95% interval of the gain. ``unit`` says what the
    bootstrap draws: pairs or queries.
    """

    difference: float
    low: float
    high: float
    p_value: float
    n_examples: int
    unit: str

    def __str__(self) -> str:
        """Return the gain and its interval x100: ``+1.20 (+0.40 to +2.00)``."""
        difference, low, high = 100 * self.difference, 100 * self.low, 100 * self.high
        return f"{difference:+.2f} ({low:+.2f} to {high:+.2f})"

    @property
    def meaning(self) -> str:
        return f"95% interval over {self.n_examples:,} {self.unit}, which chose the model"


@dataclass
class RunRecord:
    """The record of a training run.

    Scores are fractions, durations are in seconds, and a value that was not measured is None.
    ``trained_score`` is the best dev score after step 0, and ``gain`` compares the best model with
    the model at the start. ``device``, ``precision``, ``hardware`` and ``peak_memory_bytes`` say
    what the first process used. ``base`` holds what is known of the model that training started
    from: ``name`` on the Hub, ``commit``, ``license``, ``language``.
    """

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
    trained_score: float | None = None
    best_score: float | None = None
    best_step: int | None = None
    gain: Gain | None = None
    scores: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float | None] = field(default_factory=dict)
    model_digest: str | None = None
    base: dict[str, Any] = field(default_factory=dict)
    started: str | None = None
    finished: str | None = None
    device: str | None = None
    precision: str | None = None
    hardware: dict[str, Any] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    versions: dict[str, str] = field(default_factory=versions)

    @property
    def chosen_by(self) -> str:
        """The dev measure that chose the model and the data it was taken on, in words."""
        suite = self.data.get("dev_suite")
        share = self.data.get("dev_split")
        if suite is None:
            metric = self.config.get("dev_metric", Metric.SPEARMAN)
            return f"{metric} of {Path(str(self.data.get('dev_file', 'the dev file'))).name}"
        if suite == DevSuite.RETRIEVAL and share:
            return f"nDCG@10 of {share:.0%} held-out pairs"
        if suite == DevSuite.RETRIEVAL:
            return f"nDCG@10 of {Path(self.data.get('queries', 'the queries')).name}"
        if suite == MLM_MEASURE:  # ``--objective mlm`` records its measure as the suite
            percent = f"{share:.0%} " if share else ""
            return f"{suite} on {percent}held-out texts"
        tasks = [label(task).removesuffix(" dev") for task in self.data.get("dev_tasks", ())]
        measure = "mean dev accuracy" if suite == DevSuite.TRANSFER else "mean correlation"
        return f"{measure} of {', '.join(tasks)}"

    @property
    def chosen_on_test(self) -> list[str]:
        """Headings of the tasks without dev data, whose test data chose the model."""
        return [
            label(task) for task in self.data.get("dev_tasks", ()) if not task.endswith(DEV_SUFFIX)
        ]

    def unfinished(self, label: str) -> str | None:
        """Return a remark if the run, which has this label, is not complete; None if it is."""
        if self.status in DONE:
            return None
        return f"{label} is {self.status}, step {self.step} of {self.total_steps}"

    @property
    def batches(self) -> Batches:
        """How batches treat rows that share a text."""
        # simcse 1.0.0 kept such rows apart, and did not record this.
        return Batches(self.data.get("batches", Batches.NO_DUPLICATES))

    @property
    def least_rows(self) -> int:
        """How many rows the last batch of an epoch needs on each process."""
        # simcse 1.0.0 left out a single row whatever the objective, and did not record this.
        return int(self.data.get("least_rows", 2))

    def write(self, run_dir: Path) -> None:
        write_json(run_dir / RUN_FILE, {"format": 1} | asdict(self))


@dataclass(frozen=True)
class Measured:
    """One line of ``metrics.jsonl``; what was not measured at this step is None."""

    step: int
    loss: float | None = None
    dev_score: float | None = None
    alignment: float | None = None
    uniformity: float | None = None
    dev_tasks: dict[str, float | None] = field(default_factory=dict)


def is_run(folder: Path | str) -> bool:
    return (Path(folder) / RUN_FILE).is_file()


def read_run_record(run_dir: Path | str) -> RunRecord:
    """Return the record of a run folder; raise DataError if it is missing or damaged."""
    path = Path(run_dir) / RUN_FILE
    hint = "give a run folder of `simcse train`"
    values = read_json(path, dict[str, Any], place=f"{path} is no run record", hint=hint)
    values.pop("format", None)
    record: RunRecord = checked(values, RunRecord, f"{path} is no run record", hint=hint)

    # In ``data``, only the entries that other modules read have a fixed type.
    type_by_entry = {
        "batches": Batches,
        "least_rows": int,
        "dev_tasks": list[str],
        "dev_files": dict[str, str],
        "dev_suite": str,
        "dev_split": float | None,
        "queries": str,
        DEV_PAIRS: dict[str, str],
        DEV_DATA: dict[str, str],
    }
    for name, entry_type in type_by_entry.items():
        if name in record.data:
            checked(record.data[name], entry_type, f"{path}: data.{name}", hint=hint)
    return record


def pairs_that_chose(model: Path | str) -> frozenset[str]:
    """Return the digests of the pairs that were used to choose the model of a run.

    ``model`` is a run folder, or the model folder inside it; any other model gives no digests. They
    are those of ``data.senteval.digest_of_pairs``.
    """
    folder = Path(model).resolve()
    run = folder if is_run(folder) else folder.parent
    if not is_run(run):
        return frozenset()
    record = read_run_record(run)
    return frozenset(record.data.get(DEV_PAIRS, {}).values())


def seed_runs(folder: Path | str) -> dict[int, Path]:
    """Return the runs by seed in a folder of `simcse train --seeds`; none in any other folder."""
    folder = Path(folder)
    if is_run(folder):
        return {}
    runs = {}
    for path in folder.glob(f"{SEED_PREFIX}*"):
        seed = path.name.removeprefix(SEED_PREFIX)
        if seed.isdecimal() and is_run(path):
            runs[int(seed)] = path
    return dict(sorted(runs.items()))


def group_folder(run_dir: Path) -> Path | None:
    """Return the locked folder in which several runs, among them this one, are being trained.

    Return None if this run is trained alone.
    """
    # Such a folder lies one or two levels above the run; if both are locked, the outer one counts.
    for folder in reversed(run_dir.parents[:2]):
        if is_locked(folder):
            return folder
    return None


def duration(hours: float | None) -> str | None:
    """Return a duration as a text such as ``2.5 hours``, ``30 minutes`` or ``9 s``, if known."""
    if hours is None:
        return None
    if hours >= 2:
        return f"{hours:.1f} hours"
    minutes = 60 * hours
    if minutes >= 2:
        return f"{minutes:.0f} minutes"
    return f"{60 * minutes:.0f} s"


def read_metrics(path: Path) -> list[Measured]:
    """Return the lines of a ``metrics.jsonl``; a last line without a newline is left out."""
    try:
        # The part after the last newline is empty, or a line that a killed process began.
        *lines, _ = path.read_bytes().decode(errors="replace").split("\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    measured: list[Measured] = []
    for number, line in enumerate(lines, start=1):
        place = f"{path}, line {number}"
        values = checked(parse_json(line, str(path), line=number), dict[str, Any], place)
        measurements = {}
        for attribute in fields(Measured):
            if attribute.name in values:
                measurements[attribute.name] = values[attribute.name]
        measured.append(checked(measurements, Measured, place))
    return measured


def flat(values: Mapping[str, Any], separator: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each leaf of nested mappings.

    A name starts with ``prefix`` and joins all keys on the way with the separator, for example to
    ``options.window``.
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, separator, f"{prefix}{name}{separator}")
        else:
            yield prefix + name, value


def kept_states(folder: Path) -> list[Path]:
    paths = folder.glob(f"{STATE_PREFIX}*")
    return sorted(path for path in paths if path.name.removeprefix(STATE_PREFIX).isdecimal())


def step_of(state: Path) -> int:
    return int(state.name.removeprefix(STATE_PREFIX))


def require_run(path: Path) -> None:
    if (path / _CONFIG_FILE).is_file():
        return
    problem = "holds no run to resume" if path.is_dir() else "does not exist"
    raise DataError(
        f"{path} {problem}",
        hint="check the name after -o, or give the whole command (with --train-file) to start "
        "a run there",
    )


@contextmanager
def lock_run(path: Path) -> Iterator[None]:
    """Lock a run folder while a training writes into it.

    At the start of the block, the folder is created, and files that a killed training has left half
    written are removed. At the end, an earlier run that was to be replaced comes back if the new
    run has saved no step, and the folder is removed if it is empty.
    """
    hint = "choose another place with -o"
    try:
        str(path).encode()
    except UnicodeEncodeError as error:  # the tokenizer's library would fail after the training
        raise OutputError(f"{path} is not UTF-8, as paths of models must be", hint=hint) from error
    require_local(path)
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path} is a file, need a folder", hint=hint)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(path, error) from error

    try:
        with sole_writer(path):
            # Under the lock, nobody can still be writing a file that looks left over.
            for folder in (path / "checkpoint", path / "model", path / RESULTS):
                if folder.is_dir():
                    remove_leftovers(folder)
            remove_leftovers(path, EARLIER)
            _put_back(path)
            try:
                yield
            finally:
                settle_earlier(path)
    finally:
        with suppress(OSError):  # a folder that is not empty stays
            path.rmdir()


def require_empty(path: Path) -> None:
    """Raise OutputError if a run folder holds more than a lock and an earlier run set aside."""
    inside = {entry.name for entry in path.iterdir() if entry.name not in (".lock", EARLIER)}
    if not inside:
        return
    if inside.isdisjoint(OWN_NAMES):
        raise OutputError(f"{path} is not empty", hint="choose a new folder with -o")
    hint = "choose another folder, or replace it with --force"
    if _CONFIG_FILE in inside:
        hint = f"resume it with `simcse train -o {path} --resume`, {hint}"
    raise OutputError(f"{path} holds a run already", hint=hint)


def open_run_dir(path: Path, *, force: bool) -> None:
    """Make a locked run folder ready for a new run.

    With ``force``, set an earlier run aside in its folder ``EARLIER``; otherwise raise OutputError
    if the run folder is not empty.
    """
    settle_earlier(path)  # a killed training may have left an earlier run aside
    if not force:
        require_empty(path)
    set_aside(path, _own_entries(path))


def set_aside(path: Path, entries: Sequence[Path]) -> None:
    """Move the entries of an earlier run, or of several, into the folder ``EARLIER``."""
    if not entries:
        return
    try:
        (path / MOVED).mkdir()
        for entry in entries:
            os.replace(entry, path / MOVED / entry.name)
        os.replace(path / MOVED, path / EARLIER)
    except OSError as error:
        raise output_error(path, error) from error


def may_come_back(path: Path) -> bool:
    """Tell whether a folder keeps an earlier run, or several, which nothing has replaced yet.

    They are replaced once a new run has saved a state after a step, or is complete.
    """
    earlier = path / EARLIER
    if not earlier.is_dir():
        return False
    new_runs = [path] if _own_entries(earlier) else _runs_below(path)
    return not any(map(_has_begun, new_runs))


def _has_begun(run: Path) -> bool:
    if any(step_of(state) > 0 for state in kept_states(run / "checkpoint")):
        return True
    return is_run(run) and read_run_record(run).status in DONE


def _runs_below(path: Path) -> list[Path]:
    """Return the folders in which the runs of several seeds, or of a sweep, may lie."""
    trials = [entry for entry in path.iterdir() if entry.is_dir() and entry.name not in ASIDE]
    return [*trials, *(run for trial in trials for run in trial.glob(f"{SEED_PREFIX}*"))]


def settle_earlier(path: Path) -> None:
    """Remove what ``EARLIER`` of a locked folder keeps, or put it back if nothing replaces it."""
    _put_back(path)
    earlier = path / EARLIER
    if not earlier.is_dir():
        return
    try:
        if may_come_back(path):
            is_single = bool(_own_entries(earlier))
            for entry in _own_entries(path) if is_single else several_entries(path):
                remove(entry)
            os.replace(earlier, path / MOVED)
            _put_back(path)
        else:
            # The removal may be killed, and half of a run must never be put back. So the folder
            # gets another name first.
            left_over = temporary_beside(earlier)
            os.replace(earlier, left_over)
            remove(left_over)
    except OSError as error:
        raise output_error(path, error) from error


def _put_back(path: Path) -> None:
    """Move the files in the folder ``MOVED``, if there is one, back into the run folder.

    If a move ends halfway, these two folders together still hold the whole run.
    """
    moved = path / MOVED
    if not moved.is_dir():
        return
    try:
        for entry in moved.iterdir():
            os.replace(entry, path / entry.name)
        moved.rmdir()
    except OSError as error:
        raise output_error(path, error) from error


def _own_entries(path: Path) -> list[Path]:
    """Return the files and folders of a run in its folder, and nothing else that lies there."""
    inside = {entry.name for entry in path.iterdir()}
    return [path / name for name in OWN_NAMES if name in inside]


def several_entries(path: Path, *, strict: bool = False) -> list[Path]:
    """Return the results, runs and trials in a folder of several runs.

    With ``strict``, raise OutputError for anything else there.
    """
    entries = []
    for entry in path.iterdir():
        if entry.name in (".lock", *ASIDE):
            continue
        if _is_of_several(entry):
            entries.append(entry)
        elif strict:
            raise OutputError(
                f"{entry} is no run of this toolkit", hint="choose another folder with -o"
            )
    return entries


def _is_of_several(entry: Path) -> bool:
    """Tell whether an entry of a folder of several runs is a result, a run, or a trial.

    A run or a trial may have been killed early.
    """
    if not entry.is_dir():
        return entry.name in ("sweep.json", "sweep.png", "seeds.json")
    if any(map(is_run, [entry, *entry.glob(f"{SEED_PREFIX}*")])):
        return True
    # Before its first record, a run has at most its lock, its settings and vectors of teachers.
    files = (path.relative_to(entry) for path in entry.rglob("*") if not path.is_dir())
    return all(file.name in (".lock", _CONFIG_FILE) or TEACHERS in file.parts for file in files)


def remove(entry: Path) -> None:
    """Remove a file, or a folder with all that is in it."""
    if entry.is_dir():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def incomparable_digests(
    run_dir: Path, run_digest: object, path: Path, result_digest: object
) -> str | None:
    """Return a remark if the model digests of a run and of a result cannot be compared, else None.

    They cannot be compared if simcse 1.0.0 made one of them, and a later version the other.
    ``path`` is the file of the result.
    """
    if is_older_digest(run_digest, str(result_digest)):
        return (
            f"{run_dir} {OLDER_DIGEST}, so whether {path} is of its model is not known; "
            "train it again"
        )
    if is_older_digest(result_digest, str(run_digest)):
        return f"{path} {OLDER_DIGEST}; evaluate it again"
    return None


def result_name(result: Mapping[str, Any], pooler: str | None) -> str:
    """Return a file name for a result from its suite and settings: ``sts-test-spearman-all``.

    ``pooler`` is the usual pooler of the model, or None if there is none. The pooler, the precision
    and the tasks of the result are in its name only if they are not the usual ones. Results with
    the same name have the same settings, but perhaps other data.
    """
    keys = ("suite", "benchmark", "split", "metric", "aggregation")
    parts = [str(result[key]) for key in keys if result.get(key) is not None]
    if result["suite"] == "transfer":
        parts.append(result["protocol"])
        if result["probe"] == "sklearn":
            parts.append("sklearn")
    if result.get("regressor"):
        parts.append("regressor")

    # How the sentences were encoded, if not in the usual way.
    if pooler is not None and result["pooler"] != pooler:
        parts.append(result["pooler"])
    if result["precision"] != "fp32":
        parts.append(result["precision"])
    if "truncate_dim" in result:
        parts.append(f"dim{result['truncate_dim']}")
    if "long" in result:
        parts.append(f"long-{result['long']}")
    for key in ("prompt", "template"):
        if key in result:
            parts.append(f"{key}-{_short_digest(result[key])}")
    if result["postprocess"] is not None:
        parts.append(str(result["postprocess"].get("name", "postprocess")))
        parts.append(_short_digest(result["postprocess"]))

    # The tasks, if they are not a whole benchmark; many of them would make the name too long.
    tasks = list(result["tasks"])
    if set(tasks) not in (set(STS_TASKS), set(TRANSFER_TASKS)):
        parts.append("+".join(tasks) if len(tasks) < 4 else _short_digest(tasks))
    return re.sub(r"[^\w.+-]+", "-", "-".join(parts))


def _short_digest(value: Any) -> str:
    return digest(json.dumps(value, sort_keys=True, default=str))[:8]


def short_names(sources: Sequence[str]) -> list[str]:
    """Return for each path the shortest end that no other path shares.

    ``runs/repeat/seed-1`` and ``runs/base/seed-1`` give ``repeat/seed-1`` and ``base/seed-1``.
    """
    all_parts = [Path(source).parts for source in sources]
    names = []
    for source, parts in zip(sources, all_parts, strict=True):
        others = [other for other in all_parts if other != parts]
        name = source
        # Shorten the end until another path has the same end.
        for n_parts in range(len(parts), 0, -1):
            end = parts[-n_parts:]
            if any(other[-n_parts:] == end for other in others):
                break
            name = Path(*end).as_posix()
        names.append(name)
    return names
