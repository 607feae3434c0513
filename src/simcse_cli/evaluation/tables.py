"""The tables of `simcse eval`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simcse_cli.evaluation.bootstrap import SuiteIntervals
from simcse_cli.evaluation.mteb_results import MtebResult
from simcse_cli.evaluation.sts import StsResult
from simcse_cli.evaluation.transfer import TransferResult
from simcse_cli.results.columns import label
from simcse_cli.results.evaluation_sets import PUBLISHED, describe_set
from simcse_cli.results.report import Column, Report
from simcse_cli.settings.choices import Metric

_AVERAGE = Column("average", "Avg.", "score")
_SHORT_CATEGORIES = {
    "Classification": "Class.",
    "Clustering": "Clust.",
    "PairClassification": "PairClass.",
    "Reranking": "Rerank.",
    "Retrieval": "Retr.",
    "Summarization": "Summ.",
}


@dataclass(frozen=True)
class CheckpointView:
    """How the results of a suite are shown along a run.

    ``by`` is the key of the result whose highest value is the best; ``row`` takes the cells of ``columns``,
    which stand between step and mark, out of a result.
    """

    by: str
    title: str
    columns: Sequence[Column]
    row: Callable[[dict[str, Any]], dict[str, Any]]
    notes: Sequence[str]


def _score_columns(tasks: Iterable[str]) -> list[Column]:
    return [Column(task, label(task), "score") for task in tasks]


def _category_columns(categories: Iterable[str]) -> list[Column]:
    return [Column(name, _SHORT_CATEGORIES.get(name, name), "score") for name in categories]


def _missing_notes(missing: Mapping[str, str]) -> list[str]:
    return [f"{task} missing: {reason}" for task, reason in missing.items()]


def _data_notes(tasks: Mapping[str, Any], split: str, n_examples: Callable[[Any], int]) -> list[str]:
    """Return one note for the tasks that were not scored on their published sets."""
    found = {
        name: describe_set(name, split, n_examples(task), task.data_sha256)
        for name, task in tasks.items()
        if task
    }
    unlike: dict[str, list[str]] = {}
    for name, what in found.items():
        if what not in (None, PUBLISHED):
            unlike.setdefault(str(what), []).append(label(name))
    sets = "; ".join(f"{', '.join(names)}: {what}" for what, names in unlike.items())
    return [f"compares with no published number: {sets}"] if sets else []


def sts_report(result: StsResult, name: str, pooler: str) -> Report:
    """Return the one-row table of the papers: seven tasks and their average."""
    return Report(
        f"STS, {result.split} sets: {result.metric} x100, aggregation {result.aggregation}, pooler {pooler}",
        [Column("model"), *_score_columns(result.tasks), _AVERAGE],
        [{"model": name, **result.scores(), "average": result.average}],
        _missing_notes(result.missing) + _data_notes(result.tasks, result.split, lambda task: task.n_pairs),
    )


def subset_report(result: StsResult) -> Report:
    """Return one row a subset, for ``--verbose``."""
    rows: list[dict[str, Any]] = []
    for name, task in result.tasks.items():
        for subset, score in (task.subsets if task else {}).items():
            row = {"task": label(name), "subset": subset, "pairs": len(score.gold)}
            rows.append(row | {m.value: score.correlation(m) for m in Metric})
    columns = [Column("task"), Column("subset"), Column("pairs", kind="count")]
    return Report("Subsets", [*columns, *(Column(m.value, kind="score") for m in Metric)], rows)


def sts_view(result: dict[str, Any], run: str) -> CheckpointView:
    """Return how checkpoints are shown: the tasks and their average, which marks the best."""
    notes = [*_missing_notes(result["missing"]), "best: highest average"]
    if result["split"] == "test":
        notes.append("these are test sets: look, but choose a checkpoint by --split dev")

    def row(result: dict[str, Any]) -> dict[str, Any]:
        scores = {name: None if task is None else task["score"] for name, task in result["tasks"].items()}
        return scores | {"average": result["average"]}

    return CheckpointView(
        "average",
        f"STS along {run}, {result['split']} sets: {result['metric']} x100, aggregation {result['aggregation']}",
        [*_score_columns(result["tasks"]), _AVERAGE],
        row,
        notes,
    )


def transfer_report(result: TransferResult, name: str, pooler: str) -> Report:
    """Return the table of the papers: test accuracies of the tasks, their average, and the dev accuracies."""
    test = {task: score.accuracy for task, score in result.tasks.items()}
    dev = {task: score.dev_accuracy for task, score in result.tasks.items()}
    mrpc = result.tasks.get("MRPC")
    return Report(
        f"Transfer: accuracy x100, {result.protocol} protocol, {result.probe} probe, pooler {pooler}",
        [Column("model"), *_score_columns(result.tasks), _AVERAGE],
        [
            {"model": f"{name} (dev)", **dev, "average": result.average_dev},
            {"model": name, **test, "average": result.average},
        ],
        ([] if mrpc is None or mrpc.f1 is None else [f"MRPC F1 {100 * mrpc.f1:.2f}"])
        + _data_notes(result.tasks, "test", lambda task: len(task.gold)),
    )


def transfer_view(result: dict[str, Any], run: str) -> CheckpointView:
    """Return how checkpoints are shown: test accuracies, and the mean dev accuracy that marks the best."""

    def row(result: dict[str, Any]) -> dict[str, Any]:
        accuracies = {task: score["accuracy"] for task, score in result["tasks"].items()}
        return accuracies | {key: result[key] for key in ("average", "average_dev")}

    return CheckpointView(
        "average_dev",
        f"Transfer along {run}: accuracy x100, {result['protocol']} protocol, {result['probe']} probe",
        [*_score_columns(result["tasks"]), _AVERAGE, Column("average_dev", "Avg. dev", "score")],
        row,
        ["best: highest mean dev accuracy"],
    )


def mteb_task_report(result: MtebResult, name: str) -> Report:
    rows = [
        {
            "task": task,
            "category": result.categories[task],
            "metric": None if outcome is None else outcome.metric,
            "score": result.score(task),
            "data": None if outcome is None else outcome.data,
        }
        for task, outcome in result.tasks.items()
    ]
    columns = [
        Column("task"),
        Column("category"),
        Column("metric"),
        Column("score", name, "score"),
        Column("data"),
    ]
    title = f"MTEB tasks, mteb {result.mteb_version}, main scores x100"
    return Report(title, columns, rows, _missing_notes(result.missing))


def mteb_category_report(result: MtebResult, name: str) -> Report:
    """Return the row of the papers: the mean of each category and the mean over all datasets."""
    categories = result.category_tasks()
    means = {category: result.mean(tasks) for category, tasks in categories.items()}
    counts = ", ".join(
        f"{category} {len(result.scores(tasks))}/{len(tasks)}" for category, tasks in categories.items()
    )
    return Report(
        "MTEB averages over datasets",
        [Column("model"), *_category_columns(categories), _AVERAGE],
        [{"model": name, **means, "average": result.average}],
        [f"datasets scored: {counts}; Avg. is the mean over these {result.n_scored}, not over categories"],
    )


def mteb_view(result: dict[str, Any], run: str) -> CheckpointView:
    """Return how checkpoints are shown: the means of categories and over all datasets, which marks the best."""
    categories = list(result["categories"])

    def row(result: dict[str, Any]) -> dict[str, Any]:
        means = {name: result["categories"][name]["score"] for name in categories}
        return means | {"average": result["average"]}

    return CheckpointView(
        "average",
        f"MTEB along {run}, mteb {result['mteb_version']}: averages over datasets x100",
        [*_category_columns(categories), _AVERAGE],
        row,
        [
            f"best: highest mean over the {result['n_scored']} datasets with a score of {result['n_tasks']}",
            "these are test sets for the most part: look, but choose a checkpoint by dev data",
        ],
    )


def add_intervals(report: Report, payload: dict[str, Any], intervals: SuiteIntervals) -> None:
    """Put the intervals under the last row of the table and into the result object."""
    for bound in ("low", "high"):
        row = {name: getattr(found, bound) for name, found in intervals.tasks.items()}
        report.rows.append(
            {report.columns[0].key: f"95% {bound}", **row, "average": getattr(intervals.average, bound)}
        )
    intervals.add_to(payload)
