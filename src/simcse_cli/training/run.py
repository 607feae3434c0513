"""Carry out ``simcse train``: one run, several seeds, a sweep, or a dry run."""

import gc
import itertools
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from simcse_cli.data.demo import demo_folder
from simcse_cli.data.formats import source_name
from simcse_cli.data.senteval import sts_files
from simcse_cli.errors import INTERRUPTED, ConfigError, ContactError, OutputError, UsageError
from simcse_cli.files.atomic import atomic_text
from simcse_cli.files.code import require_typed
from simcse_cli.files.inputs import STDIO, is_stream
from simcse_cli.machine import processes
from simcse_cli.machine.devices import resolve_device
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.objectives.base import DataKind
from simcse_cli.objectives.registry import find_objective, objective_defaults
from simcse_cli.progress import Progress, SilentProgress
from simcse_cli.results import runs
from simcse_cli.results.report import Outcome
from simcse_cli.settings import recipes
from simcse_cli.settings.choices import DevSuite, ObjectiveName, OutputFormat, Schedule
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.declare import coerce_settings, flag
from simcse_cli.training import launch
from simcse_cli.training.dry_run import effective_settings, forecast
from simcse_cli.training.loop import OnEval, OnStep, Trainer
from simcse_cli.training.options import RunOptions
from simcse_cli.training.record import require_same_files, run_report
from simcse_cli.training.seeds import ManyRuns, parse_seeds, train_seeds
from simcse_cli.training.setup import (
    build_parts,
    check_settings,
    split_weight,
    with_model_defaults,
)
from simcse_cli.training.sweep import Settings, merge_settings, read_plan, train_sweep

MODES = {"unsup": ObjectiveName.SIMCSE_UNSUP, "sup": ObjectiveName.SIMCSE_SUP}


@contextmanager
def in_contact_or_silent() -> Iterator[None]:
    """If another process has ended, report it, unless the launcher of this process does so."""
    try:
        with processes.in_contact():
            yield
    except ContactError:
        if not processes.is_launched():
            raise
        raise launch.Stopped(exit_code=launch.LOST_CONTACT) from None


@dataclass(frozen=True)
class _Request:
    """What a call of ``simcse train`` asks for.

    If ``n_started`` is 1, this process trains; otherwise it starts that many processes to train.
    """

    flags: Settings
    options: RunOptions
    progress: Progress
    n_started: int

    @property
    def is_many(self) -> bool:
        """Whether the call asks for several runs, by seeds or a sweep."""
        options = self.options
        return (options.seeds is not None or options.sweep is not None) and not options.dry_run

    def config(self, swept: Settings) -> TrainConfig:
        """Return the settings of one run; ``swept`` are those that a sweep sets for its trial."""
        resumed = None
        if self.options.resume and not self.is_many:
            resumed = self.options.output
        flags = merge_settings(self.flags, swept)
        config = ready_settings(flags, self.options.config, self.progress, resumed=resumed)
        # Standard input and pipes can be read only once.
        readers = "runs" if self.is_many else "processes"
        has_several = self.is_many or self.n_started > 1 or processes.process_count() > 1
        for source in filter(is_stream, train_files(config)):
            if has_several:
                what = f"{readers} cannot share {source_name(source)}"
                raise UsageError(what, option="--train-file")
        return config

    def run_one(self, config: TrainConfig, run_dir: Path) -> runs.RunRecord | None:
        """Train one run, in this process or in ``n_started`` new ones, and return its record."""
        # The folder of several runs is new or resumed, so each run may continue what is there.
        resume = self.options.resume or self.is_many
        how: dict[str, Any] = {"resume": resume, "force": self.options.force}
        if self.n_started > 1:
            check_settings(config)  # the processes do not know what gave each setting
            with runs.lock_run(run_dir):
                try:
                    return launch.launch_run(config, run_dir, self.n_started, self.progress, **how)
                except launch.Stopped as stop:
                    if stop.exit_code == INTERRUPTED:
                        raise stopped_in(run_dir, self.n_started) from None
                    raise
        try:
            return train_run(config, run_dir, self.progress, **how)
        except OutputError as error:
            # If the system refused to write, such as on a full disk, what was written is kept: tell
            # how to continue from it.
            if error.hint and isinstance(error.__cause__, OSError) and runs.is_run(run_dir):
                folder = runs_folder(self.options) if self.is_many else run_dir
                place = "" if self.options.output else f"-o {shlex.quote(str(folder))} "
                error.hint += f"; to continue here, add {place}--resume"
            raise


@in_contact_or_silent()
def train(flags: Settings, options: RunOptions, progress: Progress) -> Outcome | str | None:
    """Do the requested runs and return a result to show, or the text of a dry run for people.

    The result is None if another process shows it.
    """
    if options.seeds is not None and "seed" in flags:
        raise UsageError("has no use with --seeds, which names the seeds", option="--seed")
    if options.dry_run and options.fmt not in (OutputFormat.TABLE, OutputFormat.JSON):
        raise UsageError("a dry run has the formats table and json", option="--format")
    seeds = parse_seeds(options.seeds)
    if len(seeds) == 1 and options.sweep is None:
        raise ConfigError(
            f"--seeds {seeds[0]}: one seed has no deviation", hint="use --seed, or give several"
        )
    n_started = _n_to_start(options)
    _join_processes(n_started, progress)
    settings = flags | settings_of_options(options, flags)
    request = _Request(settings, options, progress, n_started)
    if options.resume and not processes.is_launched():
        _require_resumable(request)
    # A launched process cannot tell where a setting comes from: its launcher wrote its recipe.
    if processes.is_launched():
        return _carry_out(request, seeds)
    # An error about a setting names the recipe or variable that gave it, unless a flag or a sweep
    # gave it.
    of_sweep: Settings = {}  # only the names are needed
    if options.sweep is not None:
        plan = read_plan(options.sweep)
        of_sweep = {**plan.settings, **dict.fromkeys(plan.swept)}
    with recipes.telling_sources(options.config, settings | of_sweep):
        return _carry_out(request, seeds)


def _carry_out(request: _Request, seeds: Sequence[int]) -> Outcome | str | None:
    """Do the requested runs, and return what ``train`` returns."""
    options, progress = request.options, request.progress
    if request.is_many:
        return train_many(request, seeds)

    # What is left is one run, or a dry run, which forecasts the run of the first seed, if any.
    config = request.config({"seed": seeds[0]} if seeds else {})
    run_dir = options.output or _unused_folder(config)
    if options.dry_run:
        trainer = Trainer(config, build_parts(config, progress), run_dir, progress)
        settings = effective_settings(trainer)
        expected = forecast(trainer, n_seeds=max(1, len(seeds)))
        if options.fmt is OutputFormat.JSON:
            found = {"settings": settings.to_dict(), "forecast": expected.to_json()}
            return Outcome([], found)
        return f"settings\n{recipes.dump_config(settings)}\n{expected.text()}"

    # Train; a run that is stopped says how to continue it.
    earlier = None
    if options.resume and runs.is_run(run_dir):
        earlier = runs.read_run_record(run_dir)
    record = request.run_one(config, run_dir)
    if record is None:
        return None  # another process of the run has the record
    if record.status == "interrupted":
        raise stopped_in(run_dir, processes.process_count())

    if processes.is_launched():
        return None  # the launcher shows the result
    kind = "model" if record.best_score is None else "best model"
    place = f"{kind}: {run_dir / 'model'}"
    if record == earlier:
        progress.info(f"{run_dir} is complete already ({place})")
    else:
        progress.info(f"wrote {run_dir} ({place})")
    return Outcome([run_report(record, run_dir)], {"run": str(run_dir), **asdict(record)})


def _n_to_start(options: RunOptions) -> int:
    """Return how many processes this one starts to train; 1 if it trains itself."""
    # LOCAL_RANK is set in the processes of any launcher, such as torchrun or this program. They
    # start no others, and neither does a dry run.
    if "LOCAL_RANK" in os.environ or options.dry_run:
        return 1
    return options.num_processes


def _join_processes(n_started: int, progress: Progress) -> None:
    """Join the group of the processes that train, if this one trains and is one of several."""
    # A process that this program has launched ends with its launcher.
    if processes.is_launched():
        processes.end_with_launcher()
    is_first = processes.process_rank() == 0
    launch.check_accelerate(os.environ, progress if is_first else SilentProgress())
    if n_started == 1:
        processes.tell_if_alone(progress)
        processes.join_group()


def _require_resumable(request: _Request) -> None:
    """Raise an error for ``--resume`` if there is no run to continue and none can be started."""
    options = request.options
    target = runs_folder(options) if request.is_many else options.output
    if target is None:
        raise UsageError("name the run to continue with -o", option="--resume")
    # If a kill came before the folder was made, a command that names the data starts the run anew.
    # The file of a sweep may name the data.
    names_data = "train_file" in request.flags or options.config is not None
    if names_data or options.sweep is not None:
        return
    # Several runs need only their folder; a single run needs its record.
    if not (request.is_many and target.is_dir()):
        runs.require_run(target)


def _unused_folder(config: TrainConfig) -> Path:
    """Return the folder that a run without ``--output`` gets, the same on all processes."""
    method = config.objective.rpartition(":")[2]  # the class of FILE.py:CLASS, or the whole name
    stem = f"{method}-{Path(config.model).name}-{config.seed}"
    folder = Path("runs") / stem
    for number in itertools.count(2):
        if not folder.exists():
            break
        folder = Path("runs") / f"{stem}-{number}"
    return processes.exchange(folder)[0]


def stopped_in(run_dir: Path, n_processes: int) -> launch.Stopped:
    """Return the exception for an interrupted run.

    Only the process that speaks to the user gets a message: what is kept, and how to continue.
    """
    if processes.is_launched() or processes.process_rank() > 0:
        return launch.Stopped()
    if runs.may_come_back(run_dir):
        return launch.Stopped(
            f"stopped before a step of {run_dir} was saved; the earlier run is kept"
        )
    states = runs.kept_states(run_dir / "checkpoint")
    if not states:
        return launch.Stopped(
            f"stopped before the first state of {run_dir} was saved; nothing is kept"
        )
    flag_of_processes = f" --num-processes {n_processes}" if n_processes > 1 else ""
    command = f"simcse train -o {shlex.quote(str(run_dir))} --resume{flag_of_processes}"
    kept = f"step {runs.step_of(states[-1])} of {run_dir} is kept"
    return launch.Stopped(f"stopped; {kept}, continue with: {command}")


def runs_folder(options: RunOptions) -> Path:
    stem = "seeds" if options.sweep is None else f"sweep-{Path(options.sweep).stem}"
    return options.output or Path("runs") / stem


def train_many(request: _Request, seeds: Sequence[int]) -> Outcome | None:
    """Train one run per seed, or the trials of a sweep, under one folder."""
    options = request.options
    folder = runs_folder(options)
    many = ManyRuns(folder, request.run_one, seeds, resume=options.resume, force=options.force)
    try:
        with sole_training(folder):
            if options.sweep is None:
                return train_seeds(request.config({}), many)
            return train_sweep(options.sweep, request.config, many, request.progress)
    except launch.Stopped as stop:
        # Only the first process speaks to the user.
        if stop.exit_code == INTERRUPTED and processes.process_rank() == 0:
            place = shlex.quote(str(folder))
            raise launch.Stopped(
                f"stopped; add -o {place} --resume to the same command to continue"
            ) from None
        raise


def train_run(
    config: TrainConfig,
    run_dir: Path,
    progress: Progress,
    *,
    resume: bool = False,
    force: bool = False,
    on_step: OnStep | None = None,
    on_eval: OnEval | None = None,
) -> runs.RunRecord | None:
    """Train into a run folder and return the record; None on every process but the first.

    With ``resume``, a complete run is left unchanged, unless ``config`` changes its length. It is
    refused if a file that was read for it has changed since. ``on_step`` and ``on_eval`` are called
    on the first process only.
    """
    # Only the first process speaks to the user.
    is_first = processes.process_rank() == 0
    if not is_first:
        progress = SilentProgress()
        on_step = None
        on_eval = None

    processes.require_own_gpus(resolve_device(config.device))
    with sole_training(run_dir):
        processes.require_shared(run_dir)

        # Look at the run in the folder, which is locked by now.
        earlier = None
        if resume and runs.is_run(run_dir):
            earlier = runs.read_run_record(run_dir)
        if earlier is not None and _is_complete(earlier, config, run_dir):
            require_same_files(run_dir, earlier)
            return earlier if is_first else None
        # Only a run with a saved state goes on with the same batches. Without one it starts again,
        # and may have others.
        with_state = None
        if earlier is not None and runs.kept_states(run_dir / "checkpoint"):
            with_state = earlier

        # Before anything is loaded, refuse a folder that holds another run. A run is known by its
        # settings, because one that was killed early may have no record yet.
        keeps_folder = resume and (run_dir / "config.yaml").exists()
        if is_first and not force and not keeps_folder:
            runs.require_empty(run_dir)

        # Free the model of an earlier run in this process: if accelerate has wrapped its forward
        # pass, only ``gc`` can free it.
        gc.collect()

        # Build the parts, and train until the end or a stop.
        parts = build_parts(config, progress, with_state)
        if processes.process_count() > 1:
            model = {"model_digest": ReadyEncoder(parts.objective.eval_encoder()).digest}
            processes.require_alike(runs.versions() | config.to_dict() | model | parts.digests)
        stopped: list[bool] = []  # until ``stop_on_signal`` below puts its own list here
        try:
            trainer = Trainer(
                config,
                parts,
                run_dir,
                progress,
                should_stop=lambda: bool(stopped),
                on_step=on_step,
                on_eval=on_eval,
            )
            if resume:
                _require_steps_left(trainer)
            if is_first:
                _open_folder(config, run_dir, keep=keeps_folder, force=force)
            processes.exchange(None)  # wait, so that the others do not see what --force removes
            # A signal ends the teachers at once: they save their vectors part by part, so they need
            # no ``stop_on_signal``.
            if (teachers := parts.batches.teachers) is not None:
                teachers.prepare(run_dir, progress)
            notice = "stopping after this step; Ctrl-C again stops at once"
            with launch.stop_on_signal(lambda _: progress.info(notice)) as stopped:
                record = trainer.run()
        except KeyboardInterrupt:
            raise stopped_in(run_dir, processes.process_count()) from None
    return record if is_first else None


def _is_complete(earlier: runs.RunRecord, config: TrainConfig, run_dir: Path) -> bool:
    """Tell whether a run to resume is done; raise ConfigError if it cannot go on."""
    n_processes = processes.process_count()
    if earlier.n_processes != n_processes:
        raise ConfigError(
            f"the run in {run_dir} has {earlier.n_processes} processes, this is {n_processes}",
            hint=f"resume with --num-processes {earlier.n_processes}, or start another run "
            "with a new -o",
        )
    if earlier.status not in runs.DONE:
        return False
    if all(earlier.config.get(name) == getattr(config, name) for name in ("max_steps", "epochs")):
        return True
    if not runs.kept_states(run_dir / "checkpoint"):
        raise ConfigError(
            f"{run_dir} is complete and keeps no state to go further from",
            hint="start another run with a new -o",
        )
    return False


def _require_steps_left(trainer: Trainer) -> None:
    """Raise ConfigError if a resumed run has done more steps than are asked for."""
    done = max(map(runs.step_of, runs.kept_states(trainer.states.folder)), default=0)
    if done > trainer.total_steps:
        raise ConfigError(
            f"{trainer.total_steps:,} steps: the run in {trainer.run_dir} has done {done:,} "
            "already",
            hint="ask for more with --max-steps or --epochs",
        )


def _open_folder(config: TrainConfig, run_dir: Path, *, keep: bool, force: bool) -> None:
    """Create or empty the run folder, unless ``keep``, and write the settings into it."""
    if not keep:
        runs.open_run_dir(run_dir, force=force)
    with atomic_text(run_dir / "config.yaml", force=True) as stream:
        stream.write(recipes.dump_config(config))


def sole_training(folder: Path) -> AbstractContextManager[None]:
    """Return a context that holds the lock of a run folder.

    In a process whose launcher or first process holds the lock, the context does nothing.
    """
    if processes.is_launched() or processes.process_rank() > 0:
        return nullcontext()
    return runs.lock_run(folder)


def settings_of_options(options: RunOptions, flags: Settings) -> Settings:
    """Return the settings from ``--mode``, ``--mlm-weight``, ``--dual-encoder`` and ``--set``."""
    settings: Settings = {}
    if options.mode is not None:
        if options.mode not in MODES:
            raise UsageError(
                f"{options.mode!r}; need unsup or sup (others: --objective)", option="--mode"
            )
        objective = MODES[options.mode]
        if flags.get("objective", objective) != objective:
            raise UsageError(f"--mode {options.mode} contradicts --objective {flags['objective']}")
        settings["objective"] = objective
    objective_options: Settings = {}
    if options.mlm_weight is not None:
        objective_options["mlm_weight"] = options.mlm_weight
    if options.dual_encoder:
        objective_options["dual_encoder"] = True
    objective_options |= recipes.parse_pairs(options.set_ or ())
    if objective_options:
        settings["options"] = objective_options
    return settings


def resolve_settings(flags: Settings, recipe: str | None, resumed: Path | None) -> TrainConfig:
    """Return the settings of a run from the flags and the recipe.

    A run that is resumed, in the folder ``resumed``, keeps its recorded settings; only its length
    may be changed. Raise ConfigError for other changes.
    """
    # A new run, or a process started by a launcher, takes its settings from recipe and flags.
    if resumed is None or processes.is_launched():
        return recipes.resolve_config(
            recipe=recipe, flags=flags, objective_defaults=objective_defaults
        )

    # A resumed run takes the recorded settings; code that they name must be typed again.
    recorded = str(resumed / "config.yaml")
    config = TrainConfig(
        **coerce_settings(TrainConfig, recipes.read_recipe(recorded), place=recorded)
    )
    typed = coerce_settings(TrainConfig, flags, place="command line")
    require_typed(vars(config), typed, recorded)

    # What is given now must agree with the record. The length may change if no learning rate
    # depends on it.
    given = recipes.environment_settings() | typed
    changed = {name: value for name, value in given.items() if getattr(config, name) != value}
    lengths = {name: value for name, value in changed.items() if name in ("max_steps", "epochs")}
    others = [name for name in changed if name not in lengths]
    if others:
        as_given = ", ".join(_as_given(name, changed[name], typed) for name in others)
        differ = "differs" if len(others) == 1 else "differ"
        values = ", ".join(str(getattr(config, name)) for name in others)
        raise ConfigError(
            f"{as_given} {differ} from the run in {resumed}, which has {values}",
            hint=_how_to_continue(others, typed),
        )
    for name, value in lengths.items():
        as_given = _as_given(name, value, typed)
        if config.schedule not in (Schedule.CONSTANT, Schedule.TENSION) or config.warmup:
            hint = _how_to_continue([name], typed)
            raise ConfigError(
                f"{as_given}: the learning rates of the run in {resumed} depend on its length "
                f"(--schedule {config.schedule}, --warmup {config.warmup:g})",
                hint=f"{hint}; a run with --schedule constant and no --warmup can go further",
            )
        if name == "epochs" and config.max_steps is not None:
            raise ConfigError(
                f"{as_given}: has no effect, the run in {resumed} counts steps",
                hint="use --max-steps",
            )
    return replace(config, **lengths)


def _as_given(name: str, value: object, typed: Settings) -> str:
    """Return a setting for a message: its flag if it was ``typed``, else its variable."""
    if name in typed:
        return f"{flag(TrainConfig, name)} {value}"
    return f"{recipes.given_variables()[name]}={value}"


def _how_to_continue(names: Sequence[str], typed: Settings) -> str:
    """Return a hint on how to resume a run that has other values of these settings."""
    given = recipes.given_variables()
    variables = [given[name] for name in names if name not in typed]
    n_flags = len(names) - len(variables)
    ways = []
    if n_flags:
        ways.append("leave the flag out" if n_flags == 1 else "leave the flags out")
    if variables:
        ways.append(f"unset {' '.join(variables)}")
    return f"{' and '.join(ways)} to continue the run, or start another with a new -o"


def train_files(config: TrainConfig) -> list[str]:
    """Return the training files without their weights."""
    return [source for source, _ in map(split_weight, config.train_file or ())]


def require_same_place(config: TrainConfig, resumed: Path) -> None:
    """Raise ConfigError if a relative path that a run names is not in the current folder."""
    files = train_files(config)
    if config.dev_file is not None:
        files.append(config.dev_file)
    paths = [text for text in files if text != STDIO and "://" not in text]
    # The name of a model on the Hub has at most one slash and starts with no dot.
    if config.model.count("/") > 1 or config.model.startswith("."):
        paths.append(config.model)
    for text in paths:
        if not (Path(text).is_absolute() or Path(text).exists()):
            raise ConfigError(
                f"{text}, which the run in {resumed} names, is not in {Path.cwd()}",
                hint="repeat the command in the folder where the run was started",
            )


def ready_settings(
    flags: Settings, recipe: str | None, progress: Progress, *, resumed: Path | None = None
) -> TrainConfig:
    """Return the settings with the model's defaults, and the demo corpus if no file is given.

    ``resumed`` is the folder of a run to resume; it may have no run yet.
    """
    if resumed is not None and not (resumed / "config.yaml").exists():
        resumed = None
    settings = resolve_settings(flags, recipe, resumed)
    if resumed is not None:
        require_same_place(settings, resumed)
    config = with_model_defaults(settings, progress)
    if config.train_file is not None:
        return config

    # Choose the file of the demo corpus that the objective can read.
    folder = demo_folder(progress)
    by_kind = {
        DataKind.LABELLED: "nli.tsv",
        DataKind.DOCUMENTS: "documents.txt",
        DataKind.ROWS: "sentences.txt",
        DataKind.SCORED: "downstream/STS/STSBenchmark/sts-train.csv",
    }
    objective = find_objective(config.objective)
    file_name = by_kind[objective.reads]
    if objective.reads is DataKind.ROWS and objective.n_columns[0] > 1:
        file_name = "triplets.csv"
    train_file = folder / file_name
    progress.warn(f"no --train-file: training on the generated demo corpus ({train_file})")
    # Take dev data from the demo corpus as well, unless the user has chosen other data.
    dev: Settings = {}
    if config.dev_suite is DevSuite.FILE and config.dev_split is None:
        dev["dev_file"] = config.dev_file or str(sts_files(folder, "STSBenchmark", split="dev")[0])
    elif config.dev_suite is DevSuite.STS:
        dev["data_dir"] = config.data_dir or str(folder)
    return replace(config, train_file=[str(train_file)], **dev)
