"""Train one run per seed under one folder, and report the mean and deviation of the dev scores.

Each run can be resumed.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simcse_cli.errors import OutputError, UsageError
from simcse_cli.files.atomic import write_json
from simcse_cli.machine.processes import exchange, process_rank
from simcse_cli.results.columns import columns
from simcse_cli.results.report import Outcome, Report, mean_and_deviation
from simcse_cli.results.runs import (
    DONE,
    SEED_PREFIX,
    RunRecord,
    is_run,
    read_run_record,
    set_aside,
    settle_earlier,
    several_entries,
)
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.declare import SEED_RANGE
from simcse_cli.training.launch import Stopped
from simcse_cli.training.record import require_same_files

RunOne = Callable[[TrainConfig, Path], RunRecord | None]
"""A function that trains into a folder, or resumes the run there, and returns the record.

On all processes but the first it returns None.
"""


def parse_seeds(text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        seeds = [int(part) for part in text.split(",")]
        if min(seeds) < SEED_RANGE["min"] or max(seeds) > SEED_RANGE["max"]:
            raise ValueError
    except ValueError:
        raise UsageError(
            f"{text!r}; need whole numbers from 0 to 2^63 - 1, such as 1,2,3", option="--seeds"
        ) from None
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"{text!r}; give each seed once", option="--seeds")
    return seeds


@dataclass(frozen=True)
class ManyRuns:
    """Several runs under one folder, trained by ``run_one``, one for each of the ``seeds``.

    Without ``seeds``, each run has the seed of its settings.
    """

    folder: Path
    run_one: RunOne
    seeds: Sequence[int] = ()
    resume: bool = False
    force: bool = False

    def open(self) -> None:
        """Create the folder; with ``force``, set earlier runs in it aside.

        The first process does this, while the others of its group wait.
        """
        if process_rank() == 0:
            self._open()
        exchange(None)

    def _open(self) -> None:
        folder = self.folder
        if is_run(folder):
            raise OutputError(
                f"{folder} is a run, need a folder for several",
                hint="choose another folder with -o",
            )
        if folder.is_dir() and not self.resume:
            settle_earlier(folder)
            if not self.force and any(entry.name != ".lock" for entry in folder.iterdir()):
                raise OutputError(
                    f"{folder} is not empty",
                    hint="continue its runs with --resume, start over with --force, or choose "
                    "another -o",
                )
            set_aside(folder, several_entries(folder, strict=True))
        folder.mkdir(parents=True, exist_ok=True)

    def runs_of(self, config: TrainConfig, below: str = "") -> Iterator[tuple[TrainConfig, Path]]:
        """Yield, for each seed, the settings of its run and the folder of its run.

        Several runs go into folders ``seed-S`` of the folder ``below``; a single run uses ``below``
        itself.
        """
        seeds = self.seeds or (config.seed,)
        for seed in seeds:
            folder = self.folder / below
            if len(seeds) > 1:
                folder /= f"{SEED_PREFIX}{seed}"
            yield replace(config, seed=seed), folder

    def train(self, config: TrainConfig, below: str = "") -> list[RunRecord | None]:
        """Train one run per seed; return for each what ``run_or_reuse`` returns."""
        return [run_or_reuse(*run, self.run_one) for run in self.runs_of(config, below)]


def run_or_reuse(config: TrainConfig, run_dir: Path, run_one: RunOne) -> RunRecord | None:
    """Train a run and return its record; if the folder has the finished run, return that record.

    A finished run is refused if a file that was read for it has changed since. If the run is
    trained now, only the first process returns the record, and the others return None. An
    interrupted run raises ``Stopped``, on all processes. If one resume state is to be kept, the
    default, it is removed once the run is finished.
    """
    record = earlier_record(config, run_dir)
    if record is not None and record.status in DONE:
        require_same_files(run_dir, record)
    else:
        record = run_one(config, run_dir)
        # Only the first process has the record.
        status = exchange(None if record is None else record.status)[0]
        if status == "interrupted":
            raise Stopped
    if record is not None and config.keep_checkpoints == 1:
        shutil.rmtree(run_dir / "checkpoint", ignore_errors=True)
    return record


def earlier_record(config: TrainConfig, run_dir: Path) -> RunRecord | None:
    """Return the record of the run in a folder, or None if there is no run.

    Raise OutputError if the run has other settings than ``config``.
    """
    if not is_run(run_dir):
        return None
    record = read_run_record(run_dir)
    settings = config.to_dict()
    if record.config != settings:
        changed = sorted(key for key in settings if record.config.get(key) != settings[key])
        raise OutputError(
            f"{run_dir} holds a run with other settings ({', '.join(changed)})",
            hint="choose another folder with -o, or start over with --force",
        )
    return record


def train_seeds(config: TrainConfig, runs: ManyRuns) -> Outcome | None:
    """Train one run per seed; return dev scores, mean and deviation, saved as ``seeds.json``.

    The result is None on all processes but the first.
    """
    runs.open()
    records = [record for record in runs.train(config) if record]
    if process_rank() > 0:
        return None

    # The table has a row for each seed, then the mean and the deviation.
    rows: list[dict[str, Any]] = [
        {"seed": r.seed, "start": r.start_score, "best": r.best_score, "best_step": r.best_step}
        for r in records
    ]
    start_mean, start_deviation = mean_and_deviation([r.start_score for r in records])
    best_mean, best_deviation = mean_and_deviation([r.best_score for r in records])
    summary = {
        "mean": {"start": start_mean, "best": best_mean},
        "deviation": {"start": start_deviation, "best": best_deviation},
    }
    payload = {"runs": str(runs.folder), "seeds": rows, **summary}
    write_json(runs.folder / "seeds.json", {"format": 1} | payload)
    summary_rows = [{"seed": name, **values} for name, values in summary.items()]
    shown = columns("seed", "start", "best", "best_step")
    title = f"{config.objective}, {len(runs.seeds)} seeds"
    return Outcome([Report(title, shown, rows + summary_rows)], payload)
