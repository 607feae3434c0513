"""Reads the result objects of ``eval`` and ``analyze geometry`` under the names that published tables use."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcse_cli.choices import Aggregation, Metric
from simcse_cli.comparison.entries import Entry, EntryKind
from simcse_cli.errors import DataError
from simcse_cli.metrics import AVERAGE, DEV_SUFFIX, MTEB_PREFIX, TIMES, TRANSFER_AVERAGE

SETTING_KEYS = ("metric", "aggregation", "split", "pooler", "regressor", "postprocess", "geometry data")

Result = Mapping[str, Any]
Scores = Iterator[tuple[str, float | None]]


@dataclass(frozen=True)
class StsView:
    """Under which aggregation and metric an STS result is read; None leaves it as it was asked for."""

    aggregation: Aggregation | None = None
    metric: Metric | None = None


AS_ASKED = StsView()


def read_results(content: Any, *, label: str, source: str, view: StsView = AS_ASKED) -> list[Entry]:
    """Return the content of a result file as entries: one, or one a model for a geometry of several.

    Raises:
        DataError: it is no result that this toolkit writes, or lacks a key of its suite.
    """
    if not isinstance(content, Mapping) or not {"suite", "analysis"} & content.keys():
        raise DataError(f"{source}: no result file (no suite, no analysis)", hint=_WRITE_ONE)
    if content.get("analysis") != "geometry":
        return [_read_suite(content, label, source, view)]
    models = [
        {"suite": "geometry", "geometry data": content.get("data"), **row}
        for row in content.get("models", ())
    ]
    if len(models) == 1:
        return [_read_suite(models[0], label, source, view)]
    return [_read_suite(row, f"{label}: {row.get('model')}", source, view) for row in models]


_WRITE_ONE = "write one with `simcse eval sts --model NAME -o result.json`"


def _read_suite(result: Result, label: str, source: str, view: StsView) -> Entry:
    suite = result.get("suite", result.get("analysis"))
    if suite not in _READERS:
        raise DataError(f"{source}: holds {suite}, need one of {', '.join(_READERS)}", hint=_WRITE_ONE)
    try:
        scores = {name: float(value) for name, value in _READERS[suite](result, view) if value is not None}
        intervals = {name: (ends["low"], ends["high"]) for name, ends in _intervals(result) if name in scores}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{source}: not a whole {suite} result ({error!r})") from error
    return Entry(
        label,
        EntryKind.RESULT,
        source,
        scores,
        _settings(result, view),
        intervals=intervals if view == AS_ASKED else {},
        pair_scores=find_saved(result, source, "pair_scores", "pairs") if suite == "sts" else None,
        predictions=find_saved(result, source, "predictions", "predictions") if suite == "transfer" else None,
    )


def find_saved(result: Result, source: str, key: str, ending: str) -> Path | None:
    """Return a result's file of single examples: the one it names, from here or its folder, or the one beside it.

    Args:
        result: content of a result file.
        source: its path.
        key: where the result names the file.
        ending: the one beside ``result.json`` is ``result.ENDING.jsonl``.
    """
    folder = Path(source).parent
    named = result.get(key)
    candidates = [Path(named), folder / named] if named else []
    candidates.append(folder / f"{Path(source).stem}.{ending}.jsonl")
    return next((path for path in candidates if path.is_file()), None)


def _sts_scores(result: Result, view: StsView) -> Scores:
    suffix = _suffix(result)
    scores = {
        name: None if task is None else _sts_score(task, result, view)
        for name, task in result["tasks"].items()
    }
    present = [score for score in scores.values() if score is not None]
    for name, score in scores.items():
        yield name + suffix, score
    yield AVERAGE + suffix, sum(present) / len(present) if present else None
    for name in TIMES:
        yield name, result.get(name)


def _sts_score(task: Result, result: Result, view: StsView) -> float | None:
    if view == AS_ASKED:
        score: float | None = task["score"]
    else:
        score = task[view.metric or result["metric"]][view.aggregation or result["aggregation"]]
    return score


def _transfer_scores(result: Result, view: StsView) -> Scores:
    for key, suffix in (("accuracy", ""), ("dev_accuracy", DEV_SUFFIX)):
        scores = {name: None if task is None else task.get(key) for name, task in result["tasks"].items()}
        present = [score for score in scores.values() if score is not None]
        for name, score in scores.items():
            yield name + suffix, score
        yield TRANSFER_AVERAGE + suffix, sum(present) / len(present) if present else None


def _mteb_scores(result: Result, view: StsView) -> Scores:
    for name, task in result["tasks"].items():
        yield MTEB_PREFIX + name, None if task is None else task["score"]
    for name, category in result["categories"].items():
        yield MTEB_PREFIX + name, category["score"] if category["n_scored"] == category["n_tasks"] else None
    yield MTEB_PREFIX + AVERAGE, result["average"] if result["n_scored"] == result["n_tasks"] else None


def _geometry_scores(result: Result, view: StsView) -> Scores:
    for name in ("alignment", "uniformity"):
        yield name, result[name]


_READERS: dict[Any, Callable[[Result, StsView], Scores]] = {
    "sts": _sts_scores,
    "transfer": _transfer_scores,
    "mteb": _mteb_scores,
    "geometry": _geometry_scores,
}


def _settings(result: Result, view: StsView) -> dict[str, str]:
    """Return how the scores were measured, as text."""
    given = {key: result[key] for key in SETTING_KEYS if result.get(key) not in (None, False, {}, [])}
    if result["suite"] == "transfer":
        given["transfer protocol"] = f"{result.get('protocol')}, probe {result.get('probe', 'senteval')}"
    if result["suite"] == "sts":
        given |= {name: value for name, value in vars(view).items() if value is not None}
    return {key: str(value) for key, value in given.items()}


def _suffix(result: Result) -> str:
    split = result.get("split", "test")
    return "" if split == "test" else f"-{split}"


def _intervals(result: Result) -> Iterator[tuple[str, Mapping[str, float]]]:
    suffix = _suffix(result)
    tasks = result.get("tasks") or {}
    for name, task in tasks.items():
        if isinstance(task, Mapping) and task.get("ci"):
            yield name + suffix, task["ci"]
    if result.get("average_ci"):
        yield AVERAGE + suffix, result["average_ci"]
