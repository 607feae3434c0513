"""`simcse train --seeds` and `--sweep`: many runs under one folder, a table of them, and a plot."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from simcse_cli.choices import OutputFormat
from simcse_cli.config import TrainConfig
from simcse_cli.console import Console
from simcse_cli.errors import ConfigError, OutputError
from simcse_cli.report import Column, Report

if TYPE_CHECKING:
    from simcse_cli.runs import RunRecord
    from simcse_cli.training.sweep import RunOne, Settings, Trial

Train = Callable[..., "RunRecord | None"]


def parse_seeds(text: str | None) -> list[int]:
    """Return the seeds of ``1,2,3``; none for None.

    Raises:
        typer.BadParameter: not whole numbers, or one of them twice.
    """
    if text is None:
        return []
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}; need whole numbers, such as 1,2,3", param_hint="--seeds"
        ) from None
    if len(set(seeds)) < len(seeds):
        raise typer.BadParameter(f"{text!r}; each seed once", param_hint="--seeds")
    return seeds


def open_folder(folder: Path, *, resume: bool, force: bool) -> None:
    """Make the folder of the runs ready.

    Raises:
        OutputError: it holds runs already, and neither ``--resume`` nor ``--force`` was given.
    """
    import shutil

    if folder.is_dir() and any(folder.iterdir()) and not resume:
        if not force:
            raise OutputError(
                f"{folder} is not empty",
                hint="go on with its runs with --resume, start over with --force, or choose another -o",
            )
        for entry in folder.iterdir():
            is_ours = (
                entry.name in ("sweep.json", "sweep.png", "seeds.json") or (entry / "run.json").is_file()
            )
            if not is_ours and not list(entry.glob("seed-*/run.json")):
                raise OutputError(f"{entry} is no run of this toolkit", hint="choose another folder with -o")
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    folder.mkdir(parents=True, exist_ok=True)


def run_one_with(train: Train, console: Console) -> "RunOne":
    """Return what trains one run of many: resumed where its folder holds a state."""

    def run_one(config: "TrainConfig", run_dir: Path) -> "RunRecord | None":
        console.info(f"run {run_dir}")
        return train(config, run_dir, console, resume=True)

    return run_one


def train_seeds(
    settings: "TrainConfig",
    seeds: Sequence[int],
    folder: Path,
    train: Train,
    console: Console,
    *,
    resume: bool,
    force: bool,
    fmt: OutputFormat,
) -> None:
    """Train one run per seed and show each, with mean and deviation of the dev score.

    Raises:
        Interrupted: a run was stopped.
    """
    from simcse_cli.files import write_json
    from simcse_cli.training.sweep import deviation_of, mean_of, run_seeds

    if len(seeds) < 2:
        raise ConfigError(
            f"--seeds {seeds[0]}: one seed has no deviation", hint="use --seed, or give several"
        )
    open_folder(folder, resume=resume, force=force)
    records = [
        record for record in run_seeds(settings, seeds, folder, run_one_with(train, console)) if record
    ]
    if len(records) < len(seeds):
        return
    starts, bests = [record.start_score for record in records], [record.best_score for record in records]
    columns = [
        Column("seed"),
        Column("start", "dev before", "score"),
        Column("best", "dev best", "score"),
        Column("best_step", "at step", "count"),
    ]
    rows: list[dict[str, Any]] = [
        {"seed": r.seed, "start": r.start_score, "best": r.best_score, "best_step": r.best_step}
        for r in records
    ]
    summary = {
        "mean": {"start": mean_of(starts), "best": mean_of(bests)},
        "deviation": {"start": deviation_of(starts), "best": deviation_of(bests)},
    }
    rows += [{"seed": name, **values} for name, values in summary.items()]
    payload = {"runs": str(folder), "seeds": rows[: len(seeds)], **summary}
    write_json(folder / "seeds.json", {"format": 1} | payload)
    console.emit(Report(f"{settings.objective}, {len(seeds)} seeds", columns, rows), payload, fmt)


@dataclass(frozen=True)
class SweepRun:
    """A sweep as asked for: its file or name, how settings become a configuration, seeds of each trial."""

    name: str
    make_config: "Callable[[Settings], TrainConfig]"
    seeds: Sequence[int]


def train_sweep(
    sweep: SweepRun,
    folder: Path,
    train: Train,
    console: Console,
    *,
    resume: bool,
    force: bool,
    fmt: OutputFormat,
) -> None:
    """Run the trials of a sweep file and show them, best first; the plot is ``sweep.png``.

    Raises:
        Interrupted: a run was stopped.
    """
    from simcse_cli.analysis.plots import house_style, save_figure
    from simcse_cli.analysis.sweep_figure import SweepPoint, draw_sweep
    from simcse_cli.training.sweep import deviation_of, nest_options, proposer_of, read_plan, run_sweep

    plan = read_plan(sweep.name)

    def trial_config(swept: "Settings") -> "TrainConfig":
        config = sweep.make_config(nest_options(plan.settings | swept, place=sweep.name))
        if not config.has_dev_score:
            raise ConfigError(
                f"--sweep {sweep.name}: nothing to choose by",
                hint="add --dev-file, an STS-B file, or --dev-suite",
            )
        return config

    base = trial_config({})
    open_folder(folder, resume=resume, force=force)
    trials = run_sweep(
        proposer_of(plan, base.seed),
        trial_config,
        folder,
        run_one_with(train, console),
        seeds=sweep.seeds,
        progress=console,
    )
    points = [
        SweepPoint(trial.settings, trial.score, deviation_of(trial.scores))
        for trial in trials
        if trial.score is not None
    ]
    if not points:
        return
    with house_style():
        save_figure(draw_sweep(points, plan.swept), folder / "sweep.png", force=True)
    payload = {"sweep": sweep.name, "runs": str(folder), "trials": [trial.to_json() for trial in trials]}
    console.emit(sweep_report(sweep.name, trials, plan.swept, folder), payload, fmt)


def sweep_report(name: str, trials: "Sequence[Trial]", swept: Sequence[str], folder: Path) -> Report:
    """Return the trials of a sweep, best first."""
    from simcse_cli.training.sweep import deviation_of

    columns = [
        *(Column(setting) for setting in swept),
        Column("score", "dev best", "score"),
        Column("deviation", "deviation", "score"),
    ]
    ranked = sorted(trials, key=lambda trial: -math.inf if trial.score is None else trial.score, reverse=True)
    rows = [
        {**trial.settings, "score": trial.score, "deviation": deviation_of(trial.scores)} for trial in ranked
    ]
    notes = [f"best: {folder / ranked[0].name}"]
    return Report(f"{Path(name).stem}, {len(trials)} trials", columns, rows, notes)


def merge_settings(flags: dict[str, Any], swept: "Settings") -> dict[str, Any]:
    """Return flags and the settings of a trial in one mapping.

    Raises:
        ConfigError: a flag fixes what the sweep varies.
    """
    from simcse_cli.settings import flag

    both = sorted((flags.keys() & swept.keys()) - {"options"})
    options = flags.get("options", {}) | swept.get("options", {})
    if both:
        raise ConfigError(
            f"{flag(TrainConfig, both[0])} is given, and the sweep sets it too", hint="leave the flag out"
        )
    return flags | swept | ({"options": options} if options else {})
