"""The result of an evaluation of any suite: scores of tasks, their data, notes and JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from simcse_cli.errors import DataError
from simcse_cli.files.resources import resource_rows
from simcse_cli.files.schema import checked
from simcse_cli.results.columns import AVERAGE, label
from simcse_cli.results.report import mean_and_deviation
from simcse_cli.settings.choices import Metric

PUBLISHED = "the published set"
DEMO = "the generated demo corpus"
CHOSE_MODEL = "dev, chose this model"
"""The words for a score whose examples were used to choose the scored model."""
NO_TEST = "the dev data chose this model, so there is no test on them"
HOW_TO_WRITE = "write one with `simcse eval sts --model NAME -o result.json`"


@dataclass(frozen=True)
class TaskResult:
    """The score of one task over ``n`` examples: a fraction, or None if it is undefined.

    ``parts`` holds the JSON object of each subset. ``extra`` holds all other facts of the task
    under their keys in result files.
    """

    score: float | None
    n: int | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    data_sha256: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SuiteResult:
    """The scores of the tasks of a suite.

    A task without a result is None; ``missing`` holds the reason. ``settings`` say which encoder
    was scored and how, under their keys in result files. ``figures`` hold all other facts, such as
    times and the interval of the average. ``examples`` are the scored examples of each task, as
    ``results.examples`` saves them; the JSON leaves them out.
    """

    suite: str
    settings: Mapping[str, Any]
    tasks: Mapping[str, TaskResult | None]
    missing: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    examples: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def scores(self) -> dict[str, float | None]:
        return {name: None if task is None else task.score for name, task in self.tasks.items()}

    @property
    def average(self) -> float | None:
        known_scores = [score for score in self.scores.values() if score is not None]
        average, _ = mean_and_deviation(known_scores)
        return average

    @property
    def row(self) -> dict[str, float | None]:
        """The scores of the tasks and their average, by measure, for a table."""
        return {**self.scores, AVERAGE: self.average}

    @property
    def split(self) -> str:
        return str(self.settings.get("split", "test"))

    def sets(self) -> dict[str, str]:
        """Return which data each task was scored on, in words, for tasks with a published set."""
        descriptions = {}
        for name, task in self.tasks.items():
            if task and task.n is not None:
                description = describe_set(name, self.split, task.n, task.data_sha256)
                if description is not None:
                    descriptions[name] = description
        return descriptions

    @property
    def chosen_on(self) -> tuple[str, ...]:
        """The tasks whose examples chose the model, so that their scores do not test the model."""
        return tuple(self.settings.get("chosen_on", ()))

    def notes(self) -> list[str]:
        """Return notes on missing tasks, unpublished data and tasks whose data chose the model."""
        # Tasks that have the same unpublished data are named together.
        tasks_by_data: dict[str, list[str]] = {}
        for name, data in self.sets().items():
            if data != PUBLISHED:
                tasks_by_data.setdefault(data, []).append(label(name))
        sets = "; ".join(f"{', '.join(names)}: {data}" for data, names in tasks_by_data.items())
        notes = self.missing_notes()
        if sets:
            notes.append(f"compares with no published number: {sets}")
        if self.chosen_on:
            notes.append(f"{', '.join(map(label, self.chosen_on))}: {NO_TEST}")
        return notes

    def missing_notes(self) -> list[str]:
        return [f"{task} missing: {reason}" for task, reason in self.missing.items()]

    def intervals(self) -> dict[str, Mapping[str, float]]:
        """Return the ends ``low`` and ``high`` of each interval, by task or ``average``."""
        by_measure = {}
        for name, task in self.tasks.items():
            if task and "ci" in task.extra:
                by_measure[name] = task.extra["ci"]
        if "average_ci" in self.figures:
            by_measure[AVERAGE] = self.figures["average_ci"]
        return by_measure

    def interval_rows(self) -> list[dict[str, Any]]:
        """Return two rows for a table, the low and the high ends; none without intervals."""
        rows: list[dict[str, Any]] = []
        for end in ("low", "high"):
            bounds = {name: ends[end] for name, ends in self.intervals().items()}
            if bounds:
                rows.append({"model": f"95% {end}", **bounds})
        return rows

    def with_settings(self, **settings: Any) -> "SuiteResult":
        """Return the result with further settings, which come first in its JSON."""
        return replace(self, settings={**settings, **self.settings})

    def under(self, metric: str | None, aggregation: str | None) -> "SuiteResult":
        """Return an STS result with the scores for another metric and aggregation.

        None keeps the metric or the aggregation of the result. Raise DataError if the result lacks
        such scores.
        """
        if metric is None and aggregation is None:
            return self
        settings = dict(self.settings)
        settings["metric"] = metric or settings.get("metric")
        settings["aggregation"] = aggregation or settings.get("aggregation")

        # Every task needs a score under the new settings. The intervals are removed, since they are
        # of the former scores.
        tasks = dict(self.tasks)
        for name, task in self.tasks.items():
            if task is None:
                continue
            score_by_aggregation = task.extra.get(str(settings["metric"]), {})
            if settings["aggregation"] not in score_by_aggregation:
                raise DataError(
                    f"{name} has no {settings['metric']} for aggregation {settings['aggregation']}"
                )
            score = score_by_aggregation[settings["aggregation"]]
            extra = dict(task.extra)
            extra.pop("ci", None)
            tasks[name] = replace(task, score=score, extra=extra)
        figures = dict(self.figures)
        figures.pop("average_ci", None)
        return replace(self, settings=settings, tasks=tasks, figures=figures)

    def to_json(self) -> dict[str, Any]:
        keys = _KEYS[self.suite]
        digests = {}
        tasks: dict[str, dict[str, Any] | None] = {}
        for name, task in self.tasks.items():
            if task is None:
                tasks[name] = None
                continue
            values: dict[str, Any] = {}
            if keys.n is not None:
                values[keys.n] = task.n
                digests[name] = task.data_sha256
            values |= {keys.score: task.score, **task.extra}
            if keys.parts is not None:
                values[keys.parts] = task.parts
            tasks[name] = values

        # The file has the keys in this order.
        content = {"suite": self.suite, **self.settings, "tasks": tasks}
        content["missing"] = dict(self.missing)
        # Digests belong to the suites whose examples are counted (not to MTEB).
        if keys.n is not None:
            content["data_sha256"] = digests
        return {**content, "average": self.average, **self.figures}

    @classmethod
    def from_json(cls, content: Any, place: str) -> "SuiteResult":
        """Return the result that ``to_json`` of this or an earlier version wrote as ``content``.

        ``place`` names the source in errors.
        """
        values = dict(checked(content, dict[str, Any], place, hint=HOW_TO_WRITE))
        suite = values.pop("suite", None)
        if suite not in list(_KEYS):  # a list, since the suite in a file may be unhashable
            raise DataError(
                f"{place}: holds {suite}, need one of {', '.join(_KEYS)}", hint=HOW_TO_WRITE
            )
        prefix = f"{place}: not a whole {suite} result"

        def take(key: str, kind: Any, default: Any = None) -> Any:
            return checked(values.pop(key, default), kind, f"{prefix}: {key}", hint=HOW_TO_WRITE)

        # The digests of the tasks' data are in an object beside the tasks.
        digests = take("data_sha256", dict[str, str | None], {})
        tasks = {}
        for name, task in take("tasks", dict[str, dict[str, Any] | None]).items():
            tasks[name] = _task_from_json(task, suite, digests.get(name), f"{prefix}: {name}")
        missing = take("missing", dict[str, str], {})
        if "chosen_on" in values:
            values["chosen_on"] = take("chosen_on", list[str])

        # Of the values left, some are figures, and the others are settings. The average is computed
        # from the tasks again.
        values.pop("average", None)
        figures = {}
        for key, kind in _FIGURES.items():
            if key in values:
                figures[key] = take(key, kind)
        return cls(suite, settings=values, tasks=tasks, missing=missing, figures=figures)


@dataclass(frozen=True)
class _Keys:
    """The JSON keys of a task: for its score, its number of examples and its subsets, if any."""

    score: str
    n: str | None = None
    parts: str | None = None


_KEYS = {
    "sts": _Keys("score", n="n_pairs", parts="subsets"),
    "transfer": _Keys("accuracy", n="n_test"),
    "mteb": _Keys("score"),
}
# Keys of a result file that are figures of the whole result, with their types.
_FIGURES: dict[str, Any] = {
    "average_dev": float | None,
    "n_sentences": int,
    "seconds": float | None,
    "sentences_per_second": float | None,
    "average_ci": dict[str, float],
    "categories": dict[str, dict[str, int | float | None]],
    "n_tasks": int,
    "n_scored": int,
    "pair_scores": str,
    "pair_scores_sha256": str,
    "predictions": str,
    "predictions_sha256": str,
}
# Further keys of a task whose types are checked.
_EXTRA: dict[str, Any] = {
    "dev_accuracy": float | None,
    "f1": float | None,
    "ci": dict[str, float],
    **{metric.value: dict[str, float | None] for metric in Metric},
}


def _task_from_json(
    task: Mapping[str, Any] | None, suite: str, digest: str | None, place: str
) -> TaskResult | None:
    """Return the result of a task from its JSON object; None if the task has no result.

    ``digest`` is of the data of the task; ``place`` names the task in errors.
    """
    if task is None:
        return None
    keys = _KEYS[suite]
    extra = dict(task)
    if keys.score not in extra:
        raise DataError(f"{place} has no {keys.score}", hint=HOW_TO_WRITE)

    def take(key: str | None, kind: Any, default: Any = None) -> Any:
        if key not in extra:
            return default
        return checked(extra.pop(key), kind, f"{place}.{key}", hint=HOW_TO_WRITE)

    score = take(keys.score, float | None)
    n = take(keys.n, int | None)
    parts = take(keys.parts, dict[str, Any], {})
    for key, kind in _EXTRA.items():
        if key in extra:
            extra[key] = take(key, kind)
    return TaskResult(score, n, parts, digest, extra)


@cache
def known_sets() -> dict[tuple[str, str], dict[str, tuple[int, str]]]:
    """Return the known sets of each task and split: the published one and perhaps the demo's.

    The keys of the inner mapping are ``PUBLISHED`` and ``DEMO``, its values size and SHA-256. The
    size counts the scored pairs of an STS task or the test examples of a transfer task; the SHA-256
    is ``StsTask.digest`` or ``TransferTask.digest``.
    """
    sets: dict[tuple[str, str], dict[str, tuple[int, str]]] = {}
    for row in resource_rows("evaluation_sets.tsv"):
        kind = DEMO if row["set"] == "demo" else PUBLISHED
        sets.setdefault((row["task"], row["split"]), {})[kind] = int(row["n"]), row["sha256"]
    return sets


def describe_set(task: str, split: str, n_examples: int, sha256: str | None) -> str | None:
    """Return in words which data a score is of; None if the task and split have no published set.

    The known sets are recognised by ``sha256``. Results of earlier versions have no digest, so the
    number of examples decides.
    """
    sets = known_sets().get((task, split))
    if sets is None:
        return None
    for what, (n, digest) in sets.items():
        if sha256 == digest or (not sha256 and n_examples == n):
            return what
    n_published = sets[PUBLISHED][0]
    if n_examples == n_published:
        return f"{n_examples:,} examples that are not those published"
    return f"{n_examples:,} examples instead of the published {n_published:,}"
