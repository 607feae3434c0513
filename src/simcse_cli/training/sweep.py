"""Many runs instead of one: several seeds, a grid, or a search; each in its own folder, all resumable."""

import itertools
import math
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from simcse_cli.config import TrainConfig
from simcse_cli.errors import ConfigError, MissingExtraError, OutputError
from simcse_cli.files import write_json
from simcse_cli.progress import Progress
from simcse_cli.recipes import read_recipe
from simcse_cli.runs import RunRecord, read_run_record
from simcse_cli.settings import check_keys, coerce_settings

Settings = dict[str, Any]
RunOne = Callable[[TrainConfig, Path], RunRecord | None]
"""Trains into a folder, going on where an earlier call stopped; None on every process but the main one."""

DONE = ("finished", "stopped-early")
_OPTION = "options."


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep file says.

    Attributes:
        settings: of every trial, as in a recipe.
        grid: the values of each swept setting; every combination is a trial, the last setting varies fastest.
        search: for each searched setting ``low`` and ``high`` (and ``log``), or ``choices``.
        n_trials: of a search.
    """

    settings: Settings = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    search: dict[str, dict[str, Any]] = field(default_factory=dict)
    n_trials: int = 20

    @property
    def swept(self) -> list[str]:
        """Names of the settings that differ between trials."""
        return [*self.grid, *self.search]


@dataclass
class Trial:
    """One combination of settings: its folder, the dev score of each seed, their mean and deviation."""

    name: str
    settings: Settings
    scores: list[float | None] = field(default_factory=list)

    @property
    def score(self) -> float | None:
        """Mean dev score over seeds; None while one is missing."""
        return mean_of(self.scores)

    def to_json(self) -> dict[str, Any]:
        """Return the trial as plain values."""
        return asdict(self) | {"score": self.score, "deviation": deviation_of(self.scores)}


def mean_of(scores: Sequence[float | None]) -> float | None:
    """Return the mean, or None if there is no score or one is missing."""
    known = [score for score in scores if score is not None]
    return statistics.fmean(known) if known and len(known) == len(scores) else None


def deviation_of(scores: Sequence[float | None]) -> float | None:
    """Return the sample standard deviation (divided by n - 1), None for fewer than two scores."""
    known = [score for score in scores if score is not None]
    return statistics.stdev(known) if len(known) > 1 and len(known) == len(scores) else None


def read_plan(name: str) -> SweepPlan:
    """Return the plan of a sweep file, or of a shipped sweep called by its bare name.

    Raises:
        ConfigError: unknown keys, neither or both of grid and search, or a range that is none.
    """
    values = check_keys(read_recipe(name, "sweeps"), ("settings", "grid", "search", "n_trials"), place=name)
    plan = SweepPlan(**{key: value for key, value in values.items() if value is not None})
    if bool(plan.grid) == bool(plan.search):
        raise ConfigError(f"{name}: need either `grid` (values of each setting) or `search` (ranges)")
    for setting, choices in plan.grid.items():
        if not isinstance(choices, list) or not choices:
            raise ConfigError(f"{name}: grid.{setting} is {choices!r}, need a list such as [1.0e-5, 3.0e-5]")
    for setting, span in plan.search.items():
        given = set(span) if isinstance(span, dict) else set()
        if given != {"choices"} and not {"low", "high"} <= given <= {"low", "high", "log"}:
            raise ConfigError(
                f"{name}: search.{setting} is {span!r}, need low and high (and log), or choices"
            )
    if not isinstance(plan.n_trials, int) or plan.n_trials < 1:
        raise ConfigError(f"{name}: n_trials {plan.n_trials!r}, need a number of at least 1")
    nest_options(plan.settings, place=name)
    plain = {setting: None for setting in plan.swept if not setting.startswith(_OPTION)}
    check_keys(plain, list(TrainConfig.__dataclass_fields__), place=name)
    return plan


def nest_options(settings: Mapping[str, Any], *, place: str) -> Settings:
    """Return settings with ``options.NAME`` gathered under ``options``, checked as a recipe is.

    Raises:
        ConfigError: an unknown setting or a value of the wrong type.
    """
    plain = {name: value for name, value in settings.items() if not name.startswith(_OPTION)}
    checked = coerce_settings(TrainConfig, plain, place=place)
    options = {name.removeprefix(_OPTION): value for name, value in settings.items() if name not in plain}
    return checked | {"options": checked.get("options", {}) | options} if options else checked


class Proposer(Protocol):
    """Decides what to try next."""

    def proposals(self) -> Iterator[Settings]:
        """Yield the settings of one trial after the other."""

    def tell(self, score: float | None) -> None:
        """Learn the score of the settings yielded last."""


class Grid:
    """Every combination of the listed values."""

    def __init__(self, values: Mapping[str, Sequence[Any]]) -> None:
        self._values = values

    def proposals(self) -> Iterator[Settings]:
        """Yield the combinations in file order, the last setting varying fastest."""
        for combination in itertools.product(*self._values.values()):
            yield dict(zip(self._values, combination, strict=True))

    def tell(self, score: float | None) -> None:
        """Ignore: the grid is fixed."""


class Search:
    """Tree-structured Parzen search by Optuna; what it proposes depends on seed and earlier scores alone.

    Args:
        ranges: of each searched setting.
        n_trials: how many to propose.
        seed: of the search.

    Raises:
        MissingExtraError: Optuna is not installed.
    """

    def __init__(self, ranges: Mapping[str, Mapping[str, Any]], n_trials: int, seed: int) -> None:
        try:
            import optuna
        except ImportError as error:
            raise MissingExtraError("optuna", "search", "a sweep with `search`") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._ranges, self._n_trials, self._seed = ranges, n_trials, seed
        self._optuna: Any = optuna
        self._study: Any = optuna.create_study(direction="maximize")
        self._trial: Any = None

    def proposals(self) -> Iterator[Settings]:
        """Yield what the sampler suggests; its seed follows the trial, so a resumed search repeats itself."""
        for number in range(self._n_trials):
            self._study.sampler = self._optuna.samplers.TPESampler(seed=self._seed + number)
            self._trial = self._study.ask()
            yield {name: self._suggest(name, span) for name, span in self._ranges.items()}

    def _suggest(self, name: str, span: Mapping[str, Any]) -> Any:
        if "choices" in span:
            return self._trial.suggest_categorical(name, list(span["choices"]))
        low, high = span["low"], span["high"]
        is_whole = isinstance(low, int) and isinstance(high, int)
        suggest = self._trial.suggest_int if is_whole else self._trial.suggest_float
        return suggest(name, low, high, log=bool(span.get("log", False)))

    def tell(self, score: float | None) -> None:
        """Give the sampler the score of its last suggestion; a missing one counts as failed."""
        failed = self._optuna.trial.TrialState.FAIL
        self._study.tell(self._trial, score) if score is not None else self._study.tell(
            self._trial, state=failed
        )


def proposer_of(plan: SweepPlan, seed: int) -> Proposer:
    """Return what decides on the trials of a plan."""
    return Grid(plan.grid) if plan.grid else Search(plan.search, plan.n_trials, seed)


def trial_name(settings: Settings) -> str:
    """Return a folder name that says what is special about a trial."""
    parts = (f"{name.removeprefix(_OPTION)}={_short(value)}" for name, value in settings.items())
    return ",".join(parts).replace("/", "_")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Interrupted(Exception):  # noqa: N818 - a request to stop, not an error
    """A run was asked to stop; what is finished is kept."""


def run_or_reuse(config: TrainConfig, run_dir: Path, run_one: RunOne) -> RunRecord | None:
    """Return the record of a run, from its folder if it is finished there.

    The resume state of a finished run is removed, unless more than the newest was asked for.

    Raises:
        OutputError: the folder holds a run with other settings.
        Interrupted: the run was stopped.
    """
    if (run_dir / "run.json").is_file():
        record = read_run_record(run_dir)
        if record.config != config.to_dict():
            changed = sorted(k for k, v in config.to_dict().items() if record.config.get(k) != v)
            raise OutputError(
                f"{run_dir} holds a run with other settings ({', '.join(changed)})",
                hint="choose another folder with -o, or start over with --force",
            )
        if record.status in DONE:
            return record
    found = run_one(config, run_dir)
    if found is not None:
        if found.status == "interrupted":
            raise Interrupted
        if config.keep_checkpoints == 1:
            shutil.rmtree(run_dir / "checkpoint", ignore_errors=True)
    return found


def run_seeds(
    config: TrainConfig, seeds: Sequence[int], folder: Path, run_one: RunOne
) -> list[RunRecord | None]:
    """Return the records of one run per seed, in ``folder/seed-S``; a single seed trains in ``folder``.

    Raises:
        OutputError, Interrupted: as ``run_or_reuse``.
    """
    if len(seeds) == 1:
        return [run_or_reuse(replace(config, seed=seeds[0]), folder, run_one)]
    return [run_or_reuse(replace(config, seed=seed), folder / f"seed-{seed}", run_one) for seed in seeds]


def run_sweep(
    proposer: Proposer,
    make_config: Callable[[Settings], TrainConfig],
    folder: Path,
    run_one: RunOne,
    *,
    seeds: Sequence[int] = (),
    progress: Progress,
) -> list[Trial]:
    """Run trial after trial and return all of them; ``folder/sweep.json`` grows with each.

    Args:
        proposer: decides on the trials.
        make_config: swept settings to the settings of a run.
        folder: each trial gets a subfolder named after its settings.
        run_one: trains.
        seeds: of each trial; empty for the one of the settings.
        progress: told about each trial.

    Raises:
        OutputError, Interrupted: as ``run_or_reuse``.
    """
    trials: list[Trial] = []
    for settings in proposer.proposals():
        config = make_config(settings)
        trial = Trial(trial_name(settings), settings)
        progress.info(f"trial {len(trials) + 1}: {trial.name}")
        records = run_seeds(config, seeds or (config.seed,), folder / trial.name, run_one)
        trial.scores = [None if record is None else record.best_score for record in records]
        proposer.tell(trial.score)
        trials.append(trial)
        if None not in records:
            best = best_trial(trials)
            facts = {"format": 1, "best": best.name if best else None}
            write_json(folder / "sweep.json", facts | {"trials": [done.to_json() for done in trials]})
    return trials


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial with the highest score, the earlier one of equals; None if none has a score."""
    scored = [trial for trial in trials if trial.score is not None]
    return max(scored, key=lambda trial: trial.score if trial.score is not None else -math.inf, default=None)
