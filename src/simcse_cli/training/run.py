"""``simcse train`` from its options to a result: one run, several seeds, a sweep, or a dry run."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simcse_cli.choices import DevSuite, ObjectiveName
from simcse_cli.config import TrainConfig
from simcse_cli.data.senteval import sts_files
from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.files import STDIO, atomic_text
from simcse_cli.objectives.base import DataKind
from simcse_cli.objectives.registry import OBJECTIVES, objective_defaults
from simcse_cli.prepare.demo import demo_folder
from simcse_cli.processes import leave_group_at_exit, process_count, process_rank
from simcse_cli.progress import Progress, SilentProgress
from simcse_cli.recipes import dump_config, environment_settings, parse_pairs, read_recipe, resolve_config
from simcse_cli.runs import DONE, RunRecord, open_run_dir, read_run_record
from simcse_cli.settings import coerce_settings, flag
from simcse_cli.training.dry_run import forecast
from simcse_cli.training.launch import INTERRUPTED, Stopped, launch, launch_run, stop_on_signal
from simcse_cli.training.loop import Trainer
from simcse_cli.training.options import RunOptions
from simcse_cli.training.record import require_same_processes, run_report
from simcse_cli.training.seeds import Shown, parse_seeds, train_seeds
from simcse_cli.training.setup import build_parts
from simcse_cli.training.sweep import Settings, merge_settings, train_sweep

MODES = {"unsup": ObjectiveName.SIMCSE_UNSUP, "sup": ObjectiveName.SIMCSE_SUP}


def train(
    flags: Settings, options: RunOptions, arguments: Sequence[str], progress: Progress
) -> Shown | str | None:
    """Do the runs that were asked for and return what to show: a result, or the text of a dry run.

    Args:
        flags: settings given on the command line.
        options: which runs, and where.
        arguments: of the whole command, for the processes it starts.
        progress: shows the runs.

    Returns:
        None where another process shows the result.

    Raises:
        SimcseError: whatever is wrong with settings, files or the model, before anything is written.
        Stopped: a run was interrupted, or the processes that were started have failed.
    """
    is_many = (options.seeds is not None or options.sweep is not None) and not options.dry_run
    starts_processes = options.num_processes > 1 and "LOCAL_RANK" not in os.environ
    if starts_processes and STDIO in flags.get("train_file", ()):
        raise UsageError("processes cannot share standard input", option="--train-file")
    if starts_processes and not is_many:
        launch(options.num_processes, arguments, progress)
        return None
    flags = flags | settings_of_options(options, flags)
    if is_many:
        n_processes = options.num_processes if starts_processes else 1
        return train_many(flags, options, n_processes, progress)
    resumed = options.output if options.resume else None
    config = with_demo_files(resolve_settings(flags, options.config, resumed), progress)
    run_dir = options.output or default_run_dir(config)
    if options.dry_run:
        trainer = Trainer(config, build_parts(config, progress), run_dir, progress)
        return f"settings\n{dump_config(config)}\n{forecast(trainer)}"
    record = train_run(config, run_dir, progress, resume=options.resume, force=options.force)
    if record is None:
        return None
    if record.status == "interrupted":
        raise Stopped(f"stopped after step {record.step}; go on with: simcse train -o {run_dir} --resume")
    progress.info(f"wrote {run_dir} (best model: {run_dir / 'model'})")
    return run_report(record, run_dir), {"run": str(run_dir), **vars(record)}


def train_many(flags: Settings, options: RunOptions, n_processes: int, progress: Progress) -> Shown | None:
    """Train for several seeds or the trials of a sweep, under one folder."""
    seeds = parse_seeds(options.seeds)

    def make_config(swept: Settings) -> TrainConfig:
        return with_demo_files(resolve_settings(merge_settings(flags, swept), options.config), progress)

    def run_one(config: TrainConfig, run_dir: Path) -> RunRecord | None:
        progress.info(f"run {run_dir}")
        if n_processes > 1:
            return launch_run(config, run_dir, n_processes, progress)
        return train_run(config, run_dir, progress, resume=True)

    stem = "seeds" if options.sweep is None else f"sweep-{Path(options.sweep).stem}"
    folder = options.output or Path("runs") / stem
    resume, force = options.resume, options.force
    try:
        if options.sweep is None:
            return train_seeds(make_config({}), seeds, folder, run_one, resume=resume, force=force)
        return train_sweep(
            options.sweep,
            make_config,
            seeds,
            folder,
            run_one,
            resume=resume,
            force=force,
            progress=progress,
        )
    except Stopped as stop:
        if stop.exit_code == INTERRUPTED:
            raise Stopped(f"stopped; the same command with -o {folder} --resume goes on") from None
        raise


def train_run(
    config: TrainConfig, run_dir: Path, progress: Progress, *, resume: bool = False, force: bool = False
) -> RunRecord | None:
    """Train into a run folder and return the record; None on every process but the first.

    With ``resume`` a run that is complete stays as it is.
    """
    is_first = process_rank() == 0
    if resume:
        require_same_processes(run_dir, process_count())
        if (run_dir / "run.json").is_file() and (record := read_run_record(run_dir)).status in DONE:
            return record if is_first else None
    leave_group_at_exit()
    parts = build_parts(config, progress)
    if is_first and not (resume and (run_dir / "config.yaml").exists()):
        open_run_dir(run_dir, force=force)
        with atomic_text(run_dir / "config.yaml") as stream:
            stream.write(dump_config(config))
    shown = progress if is_first else SilentProgress()
    with stop_on_signal() as stopped:
        record = Trainer(config, parts, run_dir, shown, should_stop=lambda: bool(stopped)).run()
    return record if is_first else None


def settings_of_options(options: RunOptions, flags: Settings) -> Settings:
    """Return the settings that --mode, --mlm-weight, --dual-encoder and --set stand for.

    Raises:
        UsageError: --mode is unknown or contradicts --objective, or --set is not KEY=VALUE.
    """
    found: Settings = {}
    if options.mode is not None:
        if options.mode not in MODES:
            raise UsageError(f"{options.mode!r}; need unsup or sup (others: --objective)", option="--mode")
        found["objective"] = MODES[options.mode]
        if flags.get("objective", found["objective"]) is not found["objective"]:
            raise UsageError(f"--mode {options.mode} contradicts --objective {flags['objective']}")
    own: Settings = {} if options.mlm_weight is None else {"mlm_weight": options.mlm_weight}
    if options.dual_encoder:
        own["dual_encoder"] = True
    own |= parse_pairs(options.set_ or (), option="--set")
    return found | ({"options": own} if own else {})


def resolve_settings(flags: Settings, recipe: str | None, resumed: Path | None = None) -> TrainConfig:
    """Return the settings; a resumed run keeps its own.

    Raises:
        ConfigError: a setting is wrong, or a flag or variable differs from the resumed run.
    """
    if resumed is None or not (resumed / "config.yaml").exists():
        return resolve_config(recipe=recipe, flags=flags, objective_defaults=objective_defaults())
    recorded = str(resumed / "config.yaml")
    config = TrainConfig(**coerce_settings(TrainConfig, read_recipe(recorded), place=recorded))
    given = environment_settings() | coerce_settings(TrainConfig, flags, place="command line")
    for name, value in given.items():
        if getattr(config, name) != value:
            raise ConfigError(
                f"{flag(TrainConfig, name)} {value} differs from the run in {resumed}, "
                f"which has {getattr(config, name)}",
                hint="leave the flag out to go on with the run, or start another with a new -o",
            )
    return config


def with_demo_files(config: TrainConfig, progress: Progress) -> TrainConfig:
    """Return the settings; without a training file, with the files of the generated corpus filled in."""
    if config.train_file is not None:
        return config
    folder = demo_folder(progress)
    by_kind = {
        DataKind.LABELLED: "nli.tsv",
        DataKind.DOCUMENTS: "documents.txt",
        DataKind.ROWS: "sentences.txt",
    }
    is_sup = config.objective is ObjectiveName.SIMCSE_SUP
    train_file = folder / ("triplets.csv" if is_sup else by_kind[OBJECTIVES[config.objective].reads])
    progress.warn(f"no --train-file: training on the generated demo corpus ({train_file})")
    dev: Settings = {}
    if config.dev_suite is DevSuite.FILE:
        dev["dev_file"] = config.dev_file or str(sts_files(folder, "STSBenchmark", split="dev")[0])
    elif config.dev_suite is DevSuite.STS:
        dev["data_dir"] = config.data_dir or str(folder)
    return replace(config, train_file=[str(train_file)], **dev)


def default_run_dir(config: TrainConfig) -> Path:
    """Return ``runs/OBJECTIVE-MODEL-SEED``, with a number behind it where that exists."""
    stem = f"{config.objective}-{Path(config.model).name}-{config.seed}"
    candidates = (Path("runs") / (stem if i == 1 else f"{stem}-{i}") for i in itertools.count(1))
    return next(path for path in candidates if not path.exists())
