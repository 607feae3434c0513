"""Finds what the user named: a run folder, a folder of runs, a result file, or standard input."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcse_cli.comparison.entries import Entry, EntryKind, add_missing
from simcse_cli.comparison.results import AS_ASKED, StsView, is_result, read_results
from simcse_cli.data.senteval_files import expected_files
from simcse_cli.errors import DataError
from simcse_cli.files.schema import parse_json
from simcse_cli.files.streams import STDIO, iter_lines, read_json
from simcse_cli.results.columns import AVERAGE, DEV_SUFFIX, STSB_DEV, STSB_DEV_DATA, TRANSFER_AVERAGE
from simcse_cli.results.runs import (
    DONE,
    RESULTS,
    RUN_FILE,
    SEED_PREFIX,
    Measured,
    RunRecord,
    is_run,
    read_metrics,
    read_run_record,
)
from simcse_cli.settings.choices import Aggregation, DevSuite

_STSB_DEV_FILE = "STS/STSBenchmark/sts-dev.csv"


def load_entries(item: str, *, view: StsView = AS_ASKED) -> list[Entry]:
    """Return the entries of one argument: ``PATH`` or ``LABEL=PATH``.

    A folder without a record stands for the runs in it (the seeds of one setting). Result files kept in a run
    folder are read with the run, those kept in a folder of several seeds with the run of their seed.
    """
    label, path = _split_label(item)
    if path == STDIO:
        return read_results(_read_stdin(), label=label or "standard input", source=path, view=view)
    folder = Path(path)
    if not folder.is_dir():
        return read_results(read_json(path), label=label or folder.stem, source=path, view=view)
    name = folder.resolve().name
    if is_run(folder):
        return _read_run(folder, label or name, view)
    runs = sorted(record.parent for depth in ("*", "*/*") for record in folder.glob(f"{depth}/{RUN_FILE}"))
    if not runs:
        raise DataError(
            f"{folder} holds no {RUN_FILE}, nor does a folder in it",
            hint="give a run folder of `simcse train`, or a result file of `simcse eval`",
        )
    entries = []
    for run in runs:
        entry, *variants = _read_run(run, label or f"{name}/{run.relative_to(folder)}", view)
        is_seed = run.name.startswith(SEED_PREFIX)
        entries += [_with_results(entry, run.parent, view) if is_seed else entry, *variants]
    return entries


def _split_label(item: str) -> tuple[str | None, str]:
    label, sign, path = item.partition("=")
    return (label, path) if sign and not Path(item).exists() else (None, item)


def _read_stdin() -> Any:
    hint = "pipe a result in: `simcse eval sts --model NAME --format json | simcse compare -`"
    return parse_json("\n".join(iter_lines(STDIO)), "standard input", hint=hint)


def _read_run(folder: Path, label: str, view: StsView) -> list[Entry]:
    """Return a run with the results in its folder, and those of other settings as entries of their own."""
    run = _with_results(_from_record(read_run_record(folder), folder, label), folder, view)
    variants = []
    for path, result in _kept_results(folder, label, view):
        whole = add_missing(run, result)
        if whole is None:
            variants.append(replace(result, label=f"{label} [{path.stem}]"))
        else:
            run = replace(whole, source=str(folder))
    return [run, *variants]


def _kept_results(folder: Path, label: str, view: StsView) -> Iterator[tuple[Path, Entry]]:
    """Yield what ``eval`` has kept in a run, results with the most tasks first; those of another model warn."""
    files = sorted((folder / RESULTS).glob("*.json"))
    contents = {path: content for path in files if is_result(content := read_json(path))}
    digest, pooler = (getattr(read_run_record(folder), name) for name in ("model_digest", "pooler"))
    for path, content in sorted(contents.items(), key=lambda item: -len(item[1].get("tasks", ()))):
        is_own = content.get("postprocess") is None and content.get("pooler") == pooler
        outdated = f"{path} is of an earlier model of the run; evaluate it again"
        is_outdated = is_own and digest is not None and content.get("model_digest") != digest
        for result in read_results(content, label=label, source=str(path), view=view):
            yield path, replace(result, remarks=(outdated,)) if is_outdated else result


def _with_results(run: Entry, folder: Path, view: StsView) -> Entry:
    """Return a run joined with the results in a folder that are its own, or those of its seed."""
    joined: Entry | None = run
    for path in sorted(folder.glob("*.json")):
        if path.name == RUN_FILE or not is_result(content := read_json(path)):
            continue
        for found in read_results(content, label=run.label, source=str(path), view=view):
            if joined is not None and found.seed in (None, run.seed):
                joined = add_missing(joined, found)
        if joined is None:
            raise DataError(
                f"{path} and another result in {folder} hold the same scores",
                hint="keep one of them in the run folder, and name the other as an argument of its own",
            )
    return replace(joined or run, source=run.source)


def _from_record(record: RunRecord, folder: Path, label: str) -> Entry:
    facts = {"data": record.data, "processes": record.n_processes, "versions": record.versions}
    settings = {} if record.pooler is None else {"pooler": record.pooler}
    scores: dict[str, float] = {}
    if record.best_score is not None:
        line = _metrics_at(folder / "metrics.jsonl", record.best_step)
        scores = _dev_scores(record, record.best_score, line)
        settings |= _dev_settings(record, scores)
        geometry = {"alignment": line.alignment, "uniformity": line.uniformity}
        scores |= {name: value for name, value in geometry.items() if value is not None}
    return Entry(
        label,
        EntryKind.RUN,
        str(folder),
        scores,
        settings,
        config=dict(_flatten({**record.config, **facts})),
        seed=record.seed,
        cost=_cost(record),
        remarks=tuple(_remarks(record, label)),
    )


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _remarks(record: RunRecord, label: str) -> Iterator[str]:
    if record.status not in DONE:
        yield f"{label} is {record.status}, step {record.step} of {record.total_steps}"
    if record.best_score is not None and record.chosen_on_test:
        yield f"{label} was chosen on test data: {', '.join(record.chosen_on_test)}"


def _cost(record: RunRecord) -> dict[str, Any]:
    """Return what a run was computed on and took, under the names of its record."""
    names = ("device", "precision", "hardware", "n_processes", "peak_memory_bytes", "started", "finished")
    return {
        **{name: getattr(record, name) for name in names},
        "train_s": record.timings.get("train_s"),
        "hours": record.timings.get("hours"),
        "sentences_per_second": record.timings.get("sentences_per_second"),
    }


def _metrics_at(metrics: Path, step: int | None) -> Measured:
    """Return the dev evaluation at the step whose model was kept, empty where it was not logged."""
    lines = read_metrics(metrics) if metrics.is_file() else []
    scored = (line for line in lines if line.step == step and line.dev_score is not None)
    return next(scored, Measured(step or 0))


def _dev_scores(record: RunRecord, best: float, line: Measured) -> dict[str, float]:
    """Return the scores of the kept step; an average of dev and test sets together has no name and is left out."""
    if "dev_suite" not in record.data:
        return {_dev_measure(record.data): best}
    tasks = {name: score for name, score in line.dev_tasks.items() if score is not None}
    average = TRANSFER_AVERAGE if record.data["dev_suite"] == DevSuite.TRANSFER else AVERAGE
    suffixes = {DEV_SUFFIX if name.endswith(DEV_SUFFIX) else "" for name in record.data["dev_tasks"]}
    return tasks | ({average + suffixes.pop(): best} if len(suffixes) == 1 else {})


def _dev_settings(record: RunRecord, scores: Mapping[str, float]) -> dict[str, str]:
    settings = {"chosen by": record.chosen_by}
    if record.data.get("dev_suite") == DevSuite.TRANSFER:
        settings["transfer protocol"] = "fast, probe senteval"
    else:
        settings["metric"] = str(record.config.get("dev_metric", "spearman"))
    if record.data.get("dev_suite") == DevSuite.STS:
        settings["aggregation"] = Aggregation.ALL.value
    if STSB_DEV in scores or "dev_suite" not in record.data:
        settings["dev data"] = _dev_data(record.data)
    return settings


def _dev_measure(data: Mapping[str, Any]) -> str:
    """Return the name of the score on a dev file: that of STS-B, or after a file of one's own."""
    name = Path(str(data.get("dev_file")))
    if name.name == Path(_STSB_DEV_FILE).name or _dev_data(data) == STSB_DEV_DATA:
        return STSB_DEV
    return name.stem.removesuffix("-dev") + DEV_SUFFIX


def _dev_data(data: Mapping[str, Any]) -> str:
    """Return the name of the dev data: the published STS-B file is known by its digest, any other by its path."""
    path, digest = _STSB_DEV_FILE, data.get("dev_files", {}).get(_STSB_DEV_FILE)
    if digest is None:
        path, digest = str(data.get("dev_file")), str(data.get("dev_sha256"))
    published = next(file.sha256 for file in expected_files() if file.path.endswith("sts-dev.csv"))
    return STSB_DEV_DATA if digest == published else f"{path} ({digest[:8]})"
