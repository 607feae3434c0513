"""Reads the result objects of ``eval`` and ``analyze geometry`` under the names that published tables use."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcse_cli.comparison.entries import Entry, EntryKind
from simcse_cli.errors import DataError
from simcse_cli.measures import AVERAGE, DEV_SUFFIX, MTEB_PREFIX, TRANSFER_AVERAGE
from simcse_cli.names import Aggregation, Metric

SETTING_KEYS = ("metric", "aggregation", "split", "pooler", "protocol", "regressor", "postprocess")

Result = Mapping[str, Any]
Scores = Iterator[tuple[str, float | None]]


@dataclass(frozen=True)
class StsView:
    """Under which aggregation and metric an STS result is read; None leaves it as it was asked for."""

    aggregation: Aggregation | None = None
    metric: Metric | None = None


def read_result(result: Result, *, label: str, source: str, view: StsView = StsView()) -> Entry:
    """Return one result object as an entry; scores that are null are left out.

    Raises:
        DataError: the object has no suite that this toolkit writes, or lacks a key of that suite.
    """
    suite = result.get("suite")
    if suite not in _READERS:
        raise DataError(
            f"{source}: no result of {', '.join(_READERS)}" + (f", its suite is {suite!r}" if suite else ""),
            hint="write one with `simcse eval sts --model NAME --format json > result.json`",
        )
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
        intervals=intervals if view == StsView() else {},
        pair_scores=find_pair_scores(result, source),
    )


def find_pair_scores(result: Result, source: str) -> Path | None:
    """Return the per-pair file of a result: the one it names, from here or its folder, or the one beside it.

    The one beside ``result.json`` is ``result.pairs.jsonl``.
    """
    folder = Path(source).parent
    named = result.get("pair_scores")
    candidates = [Path(named), folder / named] if named else []
    candidates.append(folder / f"{Path(source).stem}.pairs.jsonl")
    return next((path for path in candidates if path.is_file()), None)


def _sts_scores(result: Result, view: StsView) -> Scores:
    suffix = DEV_SUFFIX if result["split"] == "dev" else ""
    scores = {
        name: None if task is None else _sts_score(task, result, view)
        for name, task in result["tasks"].items()
    }
    present = [score for score in scores.values() if score is not None]
    for name, score in scores.items():
        yield name + suffix, score
    yield AVERAGE + suffix, sum(present) / len(present) if present else None


def _sts_score(task: Result, result: Result, view: StsView) -> float | None:
    if view == StsView():
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
    for name, score in result.get("categories", {}).items():
        yield MTEB_PREFIX + name, score
    yield MTEB_PREFIX + AVERAGE, result["average"]


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
    if result["suite"] == "sts":
        given |= {name: value for name, value in vars(view).items() if value is not None}
    return {key: str(value) for key, value in given.items()}


def _intervals(result: Result) -> Iterator[tuple[str, Mapping[str, float]]]:
    suffix = DEV_SUFFIX if result.get("split") == "dev" else ""
    tasks = result.get("tasks") or {}
    for name, task in tasks.items():
        if isinstance(task, Mapping) and task.get("ci"):
            yield name + suffix, task["ci"]
    if result.get("average_ci"):
        yield AVERAGE + suffix, result["average_ci"]
