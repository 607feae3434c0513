"""Run a grid or a search over settings.

Each trial has its own folder, one or several seeds, and can be resumed.
"""

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simcse_cli.errors import (
    INTERRUPTED,
    ConfigError,
    MissingExtraError,
    TrainingError,
    is_out_of_memory,
    reason_of,
    require_extra,
)
from simcse_cli.files.atomic import write_json
from simcse_cli.files.code import names_code, require_typed
from simcse_cli.files.inputs import read_json
from simcse_cli.files.schema import checked
from simcse_cli.machine.processes import exchange, process_count, process_rank
from simcse_cli.progress import Progress
from simcse_cli.results.columns import columns
from simcse_cli.results.plots import house_style, save_figure
from simcse_cli.results.report import Column, Outcome, Report, mean_and_deviation
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.convert import convert
from simcse_cli.settings.declare import check_keys, coerce_settings, flag
from simcse_cli.settings.recipes import merged_settings, read_recipe
from simcse_cli.training.launch import Stopped
from simcse_cli.training.record import percent
from simcse_cli.training.seeds import ManyRuns, earlier_record
from simcse_cli.training.setup import check_settings
from simcse_cli.training.sweep_figure import SweepPoint, draw_sweep

Settings = dict[str, Any]
_OPTION = "options."


@dataclass(frozen=True)
class SweepPlan:
    """The content of a sweep file: the settings that all trials share, and the swept settings.

    There is either a grid or a search. ``grid`` has a list of values for each swept setting; every
    combination is a trial. ``search`` has a range (``low``, ``high`` and perhaps ``log``) or
    ``choices`` for each swept setting; ``n_trials`` trials are drawn.
    """

    settings: Settings = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    search: dict[str, dict[str, Any]] = field(default_factory=dict)
    n_trials: int = 20

    @property
    def swept(self) -> list[str]:
        return [*self.grid, *self.search]


@dataclass
class Trial:
    """One combination of settings, and the best dev score of each seed.

    ``measure`` says in words what the scores are (``spearman of dev.tsv``); it is None before there
    are scores. ``name`` is also the name of the trial's folder. ``best_steps`` are the steps that
    reached the scores; 0 means the model before training. ``failure`` says why there are no scores.
    """

    name: str
    settings: Settings
    scores: list[float | None] = field(default_factory=list)
    best_steps: list[int | None] = field(default_factory=list)
    measure: str | None = None
    failure: str | None = None

    @property
    def score(self) -> float | None:
        """Mean dev score over seeds; None while one is missing."""
        return mean_and_deviation(self.scores)[0]

    @property
    def deviation(self) -> float | None:
        """Sample deviation of the scores (n - 1); None for a single seed."""
        return mean_and_deviation(self.scores)[1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"score": self.score, "deviation": self.deviation}


def read_plan(name: str) -> SweepPlan:
    """Return the plan in a sweep file; raise ConfigError if it is not valid."""
    values = check_keys(
        read_recipe(name, "sweeps"), ("settings", "grid", "search", "n_trials"), place=name
    )
    for key in ("settings", "grid", "search"):
        value = values.get(key)
        is_named = isinstance(value, dict) and all(isinstance(setting, str) for setting in value)
        if value is not None and not is_named:
            raise ConfigError(
                f"{name}: {key} is {value!r}, need names of settings and their values"
            )
    plan = SweepPlan(**{key: value for key, value in values.items() if value is not None})
    if bool(plan.grid) == bool(plan.search):
        raise ConfigError(
            f"{name}: need either `grid` (values of each setting) or `search` (ranges)"
        )
    for setting, choices in plan.grid.items():
        if not isinstance(choices, list) or not choices:
            raise ConfigError(
                f"{name}: grid.{setting} is {choices!r}, need a list such as [1.0e-5, 3.0e-5]"
            )
    for setting, span in plan.search.items():
        for end in ("low", "high"):
            if isinstance(span, dict) and isinstance(span.get(end), str):  # YAML reads 1e-5 as text
                span[end] = convert(span[end], float, f"{name}: search.{setting}.{end}")
        if not _is_span(span):
            raise ConfigError(
                f"{name}: search.{setting} is {span!r}, need numbers low and high (and log, for "
                "numbers above 0), or a list of choices"
            )
    if type(plan.n_trials) is not int or plan.n_trials < 1:  # True is an int as well
        raise ConfigError(f"{name}: n_trials {plan.n_trials!r}, need a number of at least 1")
    # Check the common settings and the names of the swept ones. A name ``options.NAME`` is no field
    # of TrainConfig, so it is not checked here.
    nest_options(plan.settings, place=name)
    plain = {setting: None for setting in plan.swept if not setting.startswith(_OPTION)}
    check_keys(plain, list(TrainConfig.__dataclass_fields__), place=name)
    return plan


def _is_span(span: Any) -> bool:
    """Tell whether a search can draw from a span: a list of choices, or a range of numbers."""
    given = set(span) if isinstance(span, dict) else set()
    if given == {"choices"}:
        return isinstance(span["choices"], list) and bool(span["choices"])
    if not {"low", "high"} <= given <= {"low", "high", "log"}:
        return False
    low, high = span["low"], span["high"]
    if {type(low), type(high)} - {int, float}:  # ``isinstance`` would let True pass
        return False
    return low <= high and (low > 0 or not span.get("log"))


def nest_options(settings: Mapping[str, Any], *, place: str) -> Settings:
    """Return the settings, checked, with each ``options.NAME`` put into the mapping ``options``."""
    plain: Settings = {}
    options: Settings = {}
    for name, value in settings.items():
        if name.startswith(_OPTION):
            options[name.removeprefix(_OPTION)] = value
        else:
            plain[name] = value
    nested = coerce_settings(TrainConfig, plain, place=place)
    if options:
        nested["options"] = nested.get("options", {}) | options
    return nested


def grid_trials(values: Mapping[str, Sequence[Any]]) -> Iterator[Trial]:
    for combination in itertools.product(*values.values()):
        settings = dict(zip(values, combination, strict=True))
        yield Trial(trial_name(settings), settings)


def search_trials(
    ranges: Mapping[str, Mapping[str, Any]], n_trials: int, seed: int
) -> Iterator[Trial]:
    """Yield the trials that Optuna's tree-structured Parzen search proposes.

    A trial depends on the seed and the scores of earlier trials alone. So the caller must give a
    trial its scores before it asks for the next one. A trial without a score counts as failed.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    for number in range(n_trials):
        # The seed depends on the trial, so that a resumed search proposes the same trials.
        study.sampler = optuna.samplers.TPESampler(seed=seed + number)
        proposal = study.ask()
        settings = {}
        for name, span in ranges.items():
            if "choices" in span:
                settings[name] = proposal.suggest_categorical(name, list(span["choices"]))
                continue
            low = span["low"]
            high = span["high"]
            is_whole = isinstance(low, int) and isinstance(high, int)
            suggest = proposal.suggest_int if is_whole else proposal.suggest_float
            value = suggest(name, low, high, log=bool(span.get("log", False)))
            if not is_whole:
                # Six digits are enough, and make a short name; rounding must not leave the range.
                value = min(max(float(f"{value:g}"), low), high)
            settings[name] = value
        trial = Trial(trial_name(settings), settings)
        yield trial
        if trial.score is None:
            study.tell(proposal, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(proposal, trial.score)


def trial_name(settings: Settings) -> str:
    """Return ``name=value`` pairs joined by commas, without characters that folders cannot have.

    Numbers are exact, so no two trials of a sweep have the same name: 1e-05, but 0.99993.
    """
    parts = []
    for name, value in settings.items():
        shown = str(value)
        if isinstance(value, float) and float(f"{value:g}") == value:
            shown = f"{value:g}"
        parts.append(f"{name.removeprefix(_OPTION)}={shown}")
    return re.sub(r'[/\\:*?"<>|]', "_", ",".join(parts))


def run_sweep(
    proposed: Iterable[Trial],
    make_config: Callable[[Settings], TrainConfig],
    runs: ManyRuns,
    progress: Progress,
) -> list[Trial]:
    """Run the proposed trials one by one; return them, and save them as ``sweep.json``.

    Each trial gets a subfolder named after its settings. A trial that diverges or runs out of
    memory counts as failed, and the sweep goes on; but in a group of processes, a trial that runs
    out of memory ends the sweep. ``--resume`` skips a failed trial as long as its folder exists.
    """
    trials: list[Trial] = []
    # All processes use what the first one has read, because the first one rewrites the file.
    failed = exchange(earlier_failures(runs.folder))[0]
    unreached = dict(failed)  # failed trials that are not proposed yet; they stay in the file
    for trial in proposed:
        config = make_config(trial.settings)
        progress.info(f"trial {len(trials) + 1}: {trial.name}")
        if trial.name in failed:
            for run in runs.runs_of(config, trial.name):
                earlier_record(*run)  # raises an error if the trial failed with other settings
            trial.failure = str(failed[trial.name]["failure"])
            progress.warn(
                f"{trial.name} has failed before ({trial.failure}); to try it again, remove "
                "its folder"
            )
        else:
            run_trial(trial, config, runs, progress)
            if trial.failure is not None:  # a search may propose the trial again
                failed[trial.name] = trial.to_json()
        trials.append(trial)
        unreached.pop(trial.name, None)

        # Save the results so far, in case of an interruption.
        if process_rank() == 0:
            best = ranked(trials)[0]
            facts = {
                "format": 1,
                "suite": "sweep",
                "best": None if best.score is None else best.name,
                "dev_suite": config.dev_suite,
                "dev_file": config.dev_file,
                "quantiles": score_quantiles(trials),
                "trials": [*(done.to_json() for done in trials), *unreached.values()],
            }
            write_json(runs.folder / "sweep.json", facts)
    return trials


def run_trial(trial: Trial, config: TrainConfig, runs: ManyRuns, progress: Progress) -> None:
    """Train the runs of a trial; store its scores, or the reason why it has none."""
    try:
        records = runs.train(config, trial.name)
    except (TrainingError, Stopped, MemoryError, RuntimeError, OSError) as error:
        # The sweep goes on after a failure that the settings of this trial may have caused. But if
        # one process of a group lacks memory, the sweep ends: the others would wait for ever.
        is_interrupted = isinstance(error, Stopped) and error.exit_code == INTERRUPTED
        lone_process_lacks_memory = is_out_of_memory(error) and process_count() == 1
        may_go_on = isinstance(error, TrainingError | Stopped) or lone_process_lacks_memory
        if is_interrupted or not may_go_on:
            raise
        trial.failure = "its processes failed" if isinstance(error, Stopped) else reason_of(error)
        progress.warn(f"{trial.name} failed: {trial.failure}; the sweep goes on")
        return
    # Only the first process has all records. It sends the scores to the others, because every
    # process runs the search.
    known = [record for record in records if record is not None]
    if known:
        trial.measure = known[0].chosen_by
    results = [record.best_score for record in known], [record.best_step for record in known]
    trial.scores, trial.best_steps = exchange(results)[0]


def earlier_failures(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the failed trials of an earlier call, by their names, if their folders still exist."""
    path = folder / "sweep.json"
    failed: dict[str, dict[str, Any]] = {}
    if not path.is_file():
        return failed
    facts = read_json(path, dict[str, Any])
    for trial in checked(facts.get("trials", []), list[dict[str, Any]], f"{path}: trials"):
        name = str(trial.get("name"))
        if isinstance(trial.get("failure"), str) and (folder / name).is_dir():
            failed[name] = trial
    return failed


def score_quantiles(trials: Sequence[Trial]) -> dict[str, float]:
    """Return the best score, the upper quartile and the median over trials, by name.

    Quantiles between two scores are interpolated. Without scores, the result is empty. Source:
    Farina and Pappadopulo 2023, Table 1.
    """
    scores = [trial.score for trial in trials if trial.score is not None]
    if not scores:
        return {}
    quartiles = [scores[0]] * 3  # a single score is every quartile
    if len(scores) > 1:
        quartiles = statistics.quantiles(scores, n=4, method="inclusive")
    return {"max": max(scores), "q75": quartiles[2], "q50": quartiles[1]}


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials by falling score, then those without a score; ties keep their order."""
    return sorted(trials, key=lambda t: -math.inf if t.score is None else t.score, reverse=True)


def train_sweep(
    name: str, make_config: Callable[[Settings], TrainConfig], runs: ManyRuns, progress: Progress
) -> Outcome | None:
    """Run the trials of a sweep file and return them, best first; their plot is ``sweep.png``.

    The result is None on all processes but the first.
    """
    # Read the plan. A trial has the settings of the command, and those of the plan.
    plan = read_plan(name)

    def trial_config(swept: Settings) -> TrainConfig:
        config = make_config(nest_options(plan.settings | swept, place=name))
        if not config.has_dev_score:
            raise ConfigError(
                f"--sweep {name}: nothing to choose by",
                hint="add --dev-file, an STS-B file, or --dev-suite",
            )
        return config

    # Check the settings first, because to open the folder may empty it. With a search, the grid is
    # empty: its only trial has the common settings alone.
    if plan.search:
        require_extra("optuna", "a sweep with `search`")
    base = trial_config({})
    for trial in grid_trials(plan.grid):
        check_settings(trial_config(trial.settings))

    # Run the trials.
    runs.open()
    proposed = grid_trials(plan.grid)
    if plan.search:
        proposed = search_trials(plan.search, plan.n_trials, base.seed)
    trials = run_sweep(proposed, trial_config, runs, progress)

    # The first process draws the trials that have a score, and reports all.
    if process_rank() > 0:
        return None
    points = []
    for trial in trials:
        if trial.score is not None:
            points.append(SweepPoint(trial.settings, trial.score, trial.deviation))
    if not points:
        raise TrainingError(
            f"--sweep {name}: {len(trials)} of {len(trials)} trials have failed "
            f"(first: {trials[0].failure or 'its dev score is undefined'})",
            hint="lower the learning rates or the batch sizes of the sweep",
        )
    _save_plot(points, plan.swept, runs.folder / "sweep.png", progress)
    payload = {
        "sweep": name,
        "runs": str(runs.folder),
        "quantiles": score_quantiles(trials),
        "trials": [trial.to_json() for trial in trials],
    }
    return Outcome([sweep_report(name, trials, plan.swept, runs.folder)], payload)


def _save_plot(
    points: Sequence[SweepPoint], swept: Sequence[str], path: Path, progress: Progress
) -> None:
    """Save the plot of a sweep; warn if the package that draws is missing."""
    try:
        with house_style():
            save_figure(draw_sweep(points, swept), path, force=True, progress=progress)
    except MissingExtraError as missing:
        progress.warn(f"no {path}: {missing}")


def sweep_report(name: str, trials: Sequence[Trial], swept: Sequence[str], folder: Path) -> Report:
    # The trials, best first, and their quantiles.
    by_score = ranked(trials)
    rows: list[dict[str, Any]] = []
    for trial in by_score:
        steps = ", ".join(map(str, trial.best_steps))
        results = {
            "score": trial.score,
            "deviation": trial.deviation,
            "best_steps": "failed" if trial.failure else steps,
        }
        rows.append(trial.settings | results)
    for quantile, score in score_quantiles(trials).items():
        rows.append({swept[0]: quantile, "score": score})

    # What the table does not say.
    best = by_score[0]
    if set(best.best_steps) == {0}:
        notes = [f"no run beat the untrained model, whose dev score is {percent(best.score)}"]
    else:
        notes = [f"best: {folder / best.name}"]
    for trial in trials:
        if trial.failure is not None:
            notes.append(f"failed: {trial.name} ({trial.failure})")
    notes.append(f"dev best: {best.measure}")
    notes.append("max, q75, q50: best, upper quartile and median of the trials")
    scores = columns("score", "deviation", "best_steps", score="dev best", best_steps="at step")
    title = f"{Path(name).stem}, {len(trials)} trials"
    return Report(title, [*map(Column, swept), *scores], rows, notes)


def merge_settings(flags: Settings, swept: Settings) -> Settings:
    """Return the settings of flags and sweep; raise ConfigError if both give the same setting.

    Options of the objective may come from both; if both give the same option, the sweep counts.
    """
    # Code is run only if the command line names it, so the flags must repeat the code of a sweep.
    require_typed(swept, flags, "the sweep")
    for name in sorted((flags.keys() & swept.keys()) - {"options"}):
        if not names_code(swept[name]):
            raise ConfigError(
                f"{flag(TrainConfig, name)} is given, and the sweep sets it too",
                hint="leave the flag out",
            )
    return merged_settings(flags, swept)
