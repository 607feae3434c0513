"""Reads the result objects of ``eval`` and ``analyze geometry`` under the names that published tables use."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simcse_cli.comparison.entries import Entry, EntryKind
from simcse_cli.errors import DataError
from simcse_cli.files.schema import checked
from simcse_cli.results.columns import AVERAGE, DEV_SUFFIX, MTEB_PREFIX, STSB_DEV, TIMES, TRANSFER_AVERAGE
from simcse_cli.results.evaluation_sets import PUBLISHED, describe_set
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS, Aggregation, DevSuite, Metric

_SETTINGS = ("metric", "aggregation", "split", "pooler", "regressor", "postprocess", "geometry data")
_WRITE_ONE = "write one with `simcse eval sts --model NAME -o result.json`"

Result = Mapping[str, Any]
Scores = Iterator[tuple[str, float | None]]


@dataclass(frozen=True)
class StsView:
    """Under which aggregation and metric an STS result is read; None leaves it as it was asked for."""

    aggregation: Aggregation | None = None
    metric: Metric | None = None


AS_ASKED = StsView()


def is_result(content: Any) -> bool:
    return isinstance(content, Mapping) and bool({"suite", "analysis"} & content.keys())


def read_results(content: Any, *, label: str, source: str, view: StsView = AS_ASKED) -> list[Entry]:
    """Return the content of a result file as entries: one, or one a seed, model or quantile of a sweep."""
    if not is_result(content):
        raise DataError(f"{source}: no result file (no suite, no analysis)", hint=_WRITE_ONE)
    if "suite" in content and "runs" in content:
        runs = checked(content["runs"], list[dict[str, Any]], f"{source}: runs", hint=_WRITE_ONE)
        return [replace(_read_suite(run, label, source, view), seed=run.get("seed")) for run in runs]
    if content.get("suite") == "sweep":
        found = checked(content.get("quantiles"), dict[str, float], f"{source}: quantiles", hint=_WRITE_ONE)
        measure = STSB_DEV if content.get("dev_suite") == DevSuite.FILE else AVERAGE + DEV_SUFFIX
        return [
            Entry(f"{label}, {name}", EntryKind.RESULT, source, {measure: score})
            for name, score in found.items()
        ]
    if content.get("analysis") != "geometry":
        return [_read_suite(content, label, source, view)]
    shared = {"suite": "geometry", "geometry data": content.get("data")}
    rows = checked(content.get("models"), list[dict[str, Any]], f"{source}: models", hint=_WRITE_ONE)
    models = [shared | row for row in rows]
    names = [row.get("group") or row.get("model") for row in models]
    labels = [label] if len(models) == 1 else [f"{label}: {name}" for name in names]
    return [_read_suite(row, name, source, view) for row, name in zip(models, labels, strict=True)]


def _read_suite(result: Result, label: str, source: str, view: StsView) -> Entry:
    suite = result.get("suite", result.get("analysis"))
    if suite not in list(_READERS):
        raise DataError(f"{source}: holds {suite}, need one of {', '.join(_READERS)}", hint=_WRITE_ONE)
    try:
        if suite == "sts" and view != AS_ASKED:
            result = _viewed(result, view)
        scores = {
            name: checked(value, float, f"{source}: {name}")
            for name, value in _READERS[suite](result)
            if value is not None
        }
        intervals = {
            name: checked([ends["low"], ends["high"]], tuple[float, ...], f"{source}: {name}")
            for name, ends in _intervals(result)
            if name in scores
        }
        return Entry(
            label,
            EntryKind.RESULT,
            source,
            scores,
            _settings(result),
            intervals=intervals if view == AS_ASKED else {},
            data={name: what for name, what in _data(result).items() if name in scores},
            pair_scores=_find_saved(result, source, "pair_scores", "pairs") if suite == "sts" else None,
            predictions=_find_saved(result, source, "predictions", "predictions")
            if suite == "transfer"
            else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise DataError(f"{source}: not a whole {suite} result ({error!r})", hint=_WRITE_ONE) from error


def _viewed(result: Result, view: StsView) -> Result:
    """Return an STS result as if it had been asked for under this aggregation and metric."""
    aggregation, metric = view.aggregation or result["aggregation"], view.metric or result["metric"]
    tasks = {
        name: task and {**task, "score": task[metric][aggregation]} for name, task in result["tasks"].items()
    }
    return {**result, "aggregation": aggregation, "metric": metric, "tasks": tasks}


def _find_saved(result: Result, source: str, key: str, ending: str) -> Path | None:
    """Return the file of examples that a result names, or ``NAME.ENDING.jsonl`` beside ``NAME.json``."""
    folder, named = Path(source).parent, result.get(key)
    candidates = [Path(named), folder / named] if named else []
    candidates.append(folder / f"{Path(source).stem}.{ending}.jsonl")
    return next((path for path in candidates if path.is_file()), None)


def _data(result: Result) -> dict[str, str]:
    """Return what each measure was scored on: the published set, the demo corpus, or other examples."""
    suite, split = result["suite"], str(result.get("split", "test"))
    if suite not in ("sts", "transfer"):
        return {}
    suffix, average = _split_suffix(result), AVERAGE if suite == "sts" else TRANSFER_AVERAGE
    found: dict[str, str] = {}
    for name, task in result["tasks"].items():
        n_examples = None if task is None else task.get("n_pairs" if suite == "sts" else "n_test")
        if n_examples is not None:
            what = describe_set(name, split, n_examples, result.get("data_sha256", {}).get(name))
            found |= {} if what is None else {name + suffix: what}
    if found:
        others = [what for what in found.values() if what != PUBLISHED]
        found[average + suffix] = others[0] if others else PUBLISHED
    return found


def _sts_scores(result: Result) -> Scores:
    scores = {name: task and task["score"] for name, task in result["tasks"].items()}
    yield from _with_average(scores, AVERAGE, _split_suffix(result))
    for name in TIMES:
        yield name, result.get(name)


def _transfer_scores(result: Result) -> Scores:
    for key, suffix in (("accuracy", ""), ("dev_accuracy", DEV_SUFFIX)):
        scores = {name: task and task.get(key) for name, task in result["tasks"].items()}
        yield from _with_average(scores, TRANSFER_AVERAGE, suffix)


def _with_average(scores: Mapping[str, float | None], average: str, suffix: str) -> Scores:
    for name, score in scores.items():
        yield name + suffix, score
    tasks = STS_TASKS if average == AVERAGE else TRANSFER_TASKS  # files of one's own enter no average
    present = [score for name, score in scores.items() if score is not None and name in tasks]
    yield average + suffix, sum(present) / len(present) if present else None


def _mteb_scores(result: Result) -> Scores:
    for name, task in result["tasks"].items():
        yield MTEB_PREFIX + name, task and task["score"]
    for name, category in result["categories"].items():
        yield MTEB_PREFIX + name, category["score"] if category["n_scored"] == category["n_tasks"] else None
    yield MTEB_PREFIX + AVERAGE, result["average"] if result["n_scored"] == result["n_tasks"] else None


_READERS: dict[Any, Callable[[Result], Scores]] = {
    "sts": _sts_scores,
    "transfer": _transfer_scores,
    "mteb": _mteb_scores,
    "geometry": lambda result: ((name, result[name]) for name in ("alignment", "uniformity")),
}


def _settings(result: Result) -> dict[str, str]:
    """Return how the scores were measured, as text."""
    given = {key: result[key] for key in _SETTINGS if result.get(key) not in (None, False, {}, [])}
    if result["suite"] == "transfer":
        given["transfer protocol"] = f"{result.get('protocol')}, probe {result.get('probe', 'senteval')}"
    return {key: str(value) for key, value in given.items()}


def _split_suffix(result: Result) -> str:
    split = result.get("split", "test")
    return "" if split == "test" else f"-{split}"


def _intervals(result: Result) -> Iterator[tuple[str, Mapping[str, float]]]:
    suffix = _split_suffix(result)
    for name, task in (result.get("tasks") or {}).items():
        if isinstance(task, Mapping) and task.get("ci"):
            yield name + suffix, task["ci"]
    if result.get("average_ci"):
        yield AVERAGE + suffix, result["average_ci"]
