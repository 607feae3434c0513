"""`simcse train`: recipe, environment and flags to settings, settings to a run folder."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from simcse_cli.choices import DevSuite, ObjectiveName, OutputFormat
from simcse_cli.commands._train_many import (
    SweepRun,
    Train,
    merge_settings,
    parse_seeds,
    train_seeds,
    train_sweep,
)
from simcse_cli.commands._train_processes import launch, stop_on_signal, trains_on
from simcse_cli.commands.options import FormatOption, takes
from simcse_cli.config import TrainConfig, dump_config, environment_settings, resolve_config
from simcse_cli.console import Console, get_console
from simcse_cli.errors import ConfigError
from simcse_cli.files import STDIO
from simcse_cli.prepare.demo import demo_folder
from simcse_cli.recipes import read_recipe
from simcse_cli.report import Column, Report
from simcse_cli.settings import coerce_settings, flag

if TYPE_CHECKING:
    from simcse_cli.runs import RunRecord
    from simcse_cli.training.dry_run import Forecast

MODES = {"unsup": ObjectiveName.SIMCSE_UNSUP, "sup": ObjectiveName.SIMCSE_SUP}
STANDARD_STSB_DEV = "downstream/STS/STSBenchmark/sts-dev.csv"
_METHOD, _RUN = "Method", "Run"


def register(app: typer.Typer) -> None:
    """Add `train` to the application."""
    app.command("train")(train_command)


@takes("flags", TrainConfig, given_only=True)
def train_command(
    flags: dict[str, Any],
    mode: Annotated[
        str | None, typer.Option(help="unsup or sup: the two of the paper.", rich_help_panel=_METHOD)
    ] = None,
    mlm_weight: Annotated[
        float | None,
        typer.Option(help="Weight of the auxiliary masked-LM term [0].", rich_help_panel=_METHOD),
    ] = None,
    dual_encoder: Annotated[
        bool,
        typer.Option("--dual-encoder", help="A second encoder for the positives.", rich_help_panel=_METHOD),
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Option of the objective, KEY=VALUE. Repeatable.", rich_help_panel=_METHOD
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Run folder; default: runs/OBJECTIVE-MODEL-SEED.", rich_help_panel=_RUN
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="YAML file or name of a shipped recipe.", rich_help_panel=_RUN)
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Train once for each, such as 1,2,3; mean and deviation.", rich_help_panel=_RUN),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(help="Grid or search over settings: YAML file or shipped name.", rich_help_panel=_RUN),
    ] = None,
    num_processes: Annotated[
        int, typer.Option(min=1, help="Processes on this machine.", rich_help_panel=_RUN)
    ] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in -o.", rich_help_panel=_RUN)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show settings, a batch and a forecast.", rich_help_panel=_RUN)
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the run in -o.", rich_help_panel=_RUN)
    ] = False,
    fmt: FormatOption = OutputFormat.TABLE,
) -> None:
    """Train a sentence encoder; the run folder holds its record, metrics and best model.

    `simcse train --mode unsup` and `--mode sup` are SimCSE; recipes of the paper: `--config simcse-unsup-bert-base`.
    """
    console = get_console()
    is_many = (seeds is not None or sweep is not None) and not dry_run
    is_parent = num_processes > 1 and "LOCAL_RANK" not in os.environ
    if is_parent and flags.get("train_file") == STDIO:
        raise typer.BadParameter("processes cannot share standard input", param_hint="--train-file")
    if is_parent and not is_many:
        raise typer.Exit(launch(num_processes, sys.argv[1:]))
    flags |= _method_flags(flags, mode, mlm_weight, dual_encoder=dual_encoder, options=set_ or ())
    if is_many:
        chosen = parse_seeds(seeds)
        train_one = trains_on(num_processes) if is_parent else train
        train_many(
            flags, config, sweep, chosen, output, console, train_one, resume=resume, force=force, fmt=fmt
        )
        return
    settings = resolve_settings(flags, config, output if resume else None)
    if settings.train_file is None:
        settings = with_demo_files(settings, console)
    run_dir = output or default_run_dir(settings)
    if dry_run:
        show_forecast(settings, run_dir, console)
        return
    record = train(settings, run_dir, console, resume=resume, force=force)
    if record is None:
        return
    if record.status == "interrupted":
        console.info(f"stopped after step {record.step}; go on with: simcse train -o {run_dir} --resume")
        raise typer.Exit(130)
    console.info(f"wrote {run_dir} (best model: {run_dir / 'model'})")
    console.emit(run_report(record, run_dir), {"run": str(run_dir), **vars(record)}, fmt)


def train_many(
    flags: dict[str, Any],
    recipe: str | None,
    sweep: str | None,
    seeds: list[int],
    output: Path | None,
    console: Console,
    train_one: Train,
    *,
    resume: bool,
    force: bool,
    fmt: OutputFormat,
) -> None:
    """Train for several seeds or the trials of a sweep, under one folder, each with ``train_one``."""
    from simcse_cli.training.sweep import Interrupted

    def make_config(swept: dict[str, Any]) -> TrainConfig:
        settings = resolve_settings(merge_settings(flags, swept), recipe, None)
        return settings if settings.train_file else with_demo_files(settings, console)

    many = f"sweep-{Path(sweep).stem}" if sweep else "seeds"
    folder = output or Path("runs") / many
    try:
        if sweep is not None:
            plan = SweepRun(sweep, make_config, seeds)
            train_sweep(plan, folder, train_one, console, resume=resume, force=force, fmt=fmt)
        else:
            train_seeds(
                make_config({}), seeds, folder, train_one, console, resume=resume, force=force, fmt=fmt
            )
    except Interrupted:
        console.info(f"stopped; the same command with -o {folder} --resume goes on")
        raise typer.Exit(130) from None


def _method_flags(
    flags: dict[str, Any],
    mode: str | None,
    mlm_weight: float | None,
    *,
    dual_encoder: bool,
    options: Sequence[str],
) -> dict[str, Any]:
    """Return the settings that flags other than their own stand for: --mode, --mlm-weight, --dual-encoder, --set.

    Raises:
        typer.BadParameter: --mode is unknown or contradicts --objective, or --set is not KEY=VALUE.
    """
    found: dict[str, Any] = {}
    if mode is not None:
        if mode not in MODES:
            raise typer.BadParameter(
                f"{mode!r}; need unsup or sup (others: --objective)", param_hint="--mode"
            )
        if flags.get("objective", MODES[mode]) is not MODES[mode]:
            raise typer.BadParameter(f"--mode {mode} contradicts --objective {flags['objective']}")
        found["objective"] = MODES[mode]
    values: dict[str, Any] = {} if mlm_weight is None else {"mlm_weight": mlm_weight}
    if dual_encoder:
        values["dual_encoder"] = True
    for item in options:
        key, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"{item!r}; need KEY=VALUE", param_hint="--set")
        values[key.strip().replace("-", "_")] = yaml.safe_load(value)
    return found | ({"options": values} if values else {})


def resolve_settings(flags: dict[str, Any], recipe: str | None, resumed: Path | None) -> TrainConfig:
    """Return the settings; a resumed run keeps its own and refuses flags and variables that contradict them."""
    from simcse_cli.objectives.registry import objective_defaults

    if resumed is None or not (resumed / "config.yaml").exists():
        return resolve_config(recipe=recipe, flags=flags, objective_defaults=objective_defaults())
    recorded = str(resumed / "config.yaml")
    settings = TrainConfig(**coerce_settings(TrainConfig, read_recipe(recorded), place=recorded))
    given = environment_settings() | coerce_settings(TrainConfig, flags, place="command line")
    for name, value in given.items():
        if getattr(settings, name) != value:
            raise ConfigError(
                f"{flag(TrainConfig, name)} {value} differs from the run in {resumed}, "
                f"which has {getattr(settings, name)}",
                hint="leave the flag out to go on with the run, or start another with a new -o",
            )
    return settings


def with_demo_files(settings: TrainConfig, console: Console) -> TrainConfig:
    """Return the settings with the files of the generated corpus filled in."""
    import dataclasses

    from simcse_cli.objectives.base import DataKind
    from simcse_cli.objectives.registry import OBJECTIVES

    folder = demo_folder(console)
    by_kind = {
        DataKind.LABELLED: "nli.tsv",
        DataKind.DOCUMENTS: "documents.txt",
        DataKind.ROWS: "sentences.txt",
    }
    name = by_kind[OBJECTIVES[settings.objective].reads]
    if settings.objective is ObjectiveName.SIMCSE_SUP:
        name = "triplets.csv"
    console.warn(f"no --train-file: training on the generated demo corpus ({folder / name})")
    dev: dict[str, Any] = {}
    if settings.dev_suite is DevSuite.FILE:
        dev["dev_file"] = settings.dev_file or str(folder / STANDARD_STSB_DEV)
    elif settings.dev_suite is DevSuite.STS:
        dev["data_dir"] = settings.data_dir or str(folder)
    return dataclasses.replace(settings, train_file=str(folder / name), **dev)


def default_run_dir(settings: TrainConfig) -> Path:
    """Return ``runs/OBJECTIVE-MODEL-SEED``, with a number behind it where that exists."""
    stem = f"{settings.objective}-{Path(settings.model).name}-{settings.seed}"
    candidates = (Path("runs") / (stem if i == 1 else f"{stem}-{i}") for i in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def train(
    settings: TrainConfig, run_dir: Path, console: Console, *, resume: bool = False, force: bool = False
) -> "RunRecord | None":
    """Train into a run folder and return the record; None on every process but the main one.

    Raises:
        SimcseError: whatever is wrong with settings, files or the model, before anything is written.
    """
    from simcse_cli.files import atomic_text
    from simcse_cli.processes import leave_group_at_exit
    from simcse_cli.runs import open_run_dir
    from simcse_cli.training.loop import Trainer
    from simcse_cli.training.setup import build_parts

    if resume:
        check_n_processes(run_dir)
    leave_group_at_exit()
    parts = build_parts(settings, console)
    main = int(os.environ.get("RANK", "0")) == 0
    if main and not (resume and (run_dir / "config.yaml").exists()):
        open_run_dir(run_dir, force=force)
        with atomic_text(run_dir / "config.yaml") as stream:
            stream.write(dump_config(settings))
    quiet = console if main else Console(quiet=True)
    with stop_on_signal() as stopped:
        trainer = Trainer(settings, parts, run_dir, quiet, should_stop=lambda: bool(stopped))
        record = trainer.run()
    return record if main else None


def check_n_processes(run_dir: Path) -> None:
    """Do nothing if the run in the folder, if any, has as many processes as this one: its batches depend on it.

    Raises:
        ConfigError: it has another number.
    """
    from simcse_cli.runs import read_run_record

    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    if not (run_dir / "run.json").is_file():
        return
    before = read_run_record(run_dir).n_processes
    if before != n_processes:
        raise ConfigError(
            f"the run in {run_dir} has {before} processes, this is {n_processes}",
            hint=f"go on with --num-processes {before}, or start another run with a new -o",
        )


def run_report(record: "RunRecord", run_dir: Path) -> Report:
    """Return the outcome of a run as one row."""
    columns = [
        Column("run"),
        Column("objective"),
        Column("steps", kind="count"),
        Column("start", "dev before", "score"),
        Column("best", "dev best", "score"),
        Column("best_step", "at step", "count"),
        Column("rate", "sentences/s", "number"),
        Column("train_s", "train s", "seconds"),
    ]
    row = {
        "run": str(run_dir),
        "objective": record.objective,
        "steps": record.step,
        "start": record.start_score,
        "best": record.best_score,
        "best_step": record.best_step,
        "rate": record.timings.get("sentences_per_second"),
        "train_s": record.timings.get("train_s"),
    }
    return Report("", columns, [row])


def show_forecast(settings: TrainConfig, run_dir: Path, console: Console) -> None:
    """Print settings, first batch and forecast to stdout; write nothing."""
    from simcse_cli.training.dry_run import forecast
    from simcse_cli.training.loop import Trainer
    from simcse_cli.training.setup import build_parts

    outlook = forecast(Trainer(settings, build_parts(settings, console), run_dir, console))
    console.print_data(f"settings\n{dump_config(settings)}\n{forecast_text(outlook)}")


def forecast_text(outlook: "Forecast", n_shown: int = 4) -> str:
    """Return the first batch and the forecast as people read them."""
    lines = [
        f"first batch: {len(outlook.texts)} examples, {outlook.n_rows} rows, {outlook.n_tokens:,} tokens"
    ]
    lines += [f"  {' | '.join(views)}" for views in outlook.texts[:n_shown]]
    lines += [
        f"  ... longest row {outlook.longest_row} tokens, loss {outlook.loss:.4f}",
        "forecast",
        f"  step      {outlook.step_s:.2f} s",
        f"  steps     {outlook.total_steps:,}, dev evaluations {outlook.n_evaluations} of {outlook.eval_s:.1f} s",
        f"  run       {outlook.total_s / 60:.1f} min",
        f"  memory    {outlook.peak_memory_bytes / 2**30:.2f} GiB at its peak",
        f"  disk      {outlook.disk_bytes / 2**30:.2f} GiB in the run folder",
    ]
    return "\n".join(lines) + "\n"
