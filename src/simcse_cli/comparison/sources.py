"""Finds what the user named: a run folder, a folder of runs, a result file, or standard input."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcse_cli.comparison.entries import Entry, EntryKind
from simcse_cli.comparison.replicates import merge_parts
from simcse_cli.comparison.results import AS_ASKED, StsView, read_results
from simcse_cli.data.senteval_check import expected_files
from simcse_cli.errors import DataError
from simcse_cli.files import STDIO, iter_lines, read_json
from simcse_cli.measures import STSB_DEV, STSB_DEV_DATA
from simcse_cli.runs import RunRecord, read_run_record

RECORD_FILE = "run.json"


def load_entries(item: str, *, view: StsView = AS_ASKED) -> list[Entry]:
    """Return the entries of one argument: ``PATH`` or ``LABEL=PATH``.

    A folder without a record stands for the runs in it (the seeds of one setting). Result files kept in a run
    folder are read with the run.

    Raises:
        DataError: nothing is there, or it is neither a run nor a result.
    """
    label, path = _split_label(item)
    if path == STDIO:
        return read_results(_read_stdin(), label=label or "standard input", source=path, view=view)
    folder = Path(path)
    if not folder.is_dir():
        return read_results(read_json(path), label=label or folder.stem, source=path, view=view)
    if (folder / RECORD_FILE).is_file():
        return [_read_run(folder, label or folder.resolve().name, view)]
    runs = sorted(record.parent for depth in ("*", "*/*") for record in folder.glob(f"{depth}/{RECORD_FILE}"))
    if not runs:
        raise DataError(
            f"{folder} holds no {RECORD_FILE}, nor does a folder in it",
            hint="give a run folder of `simcse train`, or a result file of `simcse eval`",
        )
    name = folder.resolve().name
    return [_read_run(run, label or f"{name}/{run.relative_to(folder)}", view) for run in runs]


def run_facts(record: RunRecord) -> dict[str, Any]:
    """Return what makes a run what it is, by dotted key: settings, data, processes, versions."""
    config = {**record.config, "data": record.data, "processes": record.n_processes}
    return dict(_flatten({**config, "versions": record.versions}))


def _split_label(item: str) -> tuple[str | None, str]:
    label, sign, path = item.partition("=")
    return (label, path) if sign and not Path(item).exists() else (None, item)


def _read_stdin() -> Any:
    text = "\n".join(iter_lines(STDIO))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"standard input, line {error.lineno}: not valid JSON ({error.msg})",
            hint="pipe a result in: `simcse eval sts --model NAME --format json | simcse compare -`",
        ) from error


def _read_run(folder: Path, label: str, view: StsView) -> Entry:
    record = read_run_record(folder)
    parts = [_from_record(record, folder, label)]
    for path in sorted(folder.glob("*.json")):
        content = None if path.name == RECORD_FILE else read_json(path)
        if isinstance(content, Mapping) and {"suite", "analysis"} & content.keys():
            parts += read_results(content, label=label, source=str(path), view=view)
    run, *others = merge_parts(parts)
    if others:
        raise DataError(
            f"{others[0].source} and another result in {folder} hold the same scores",
            hint="keep one of them in the run folder, and name the other as an argument of its own",
        )
    return replace(run, source=str(folder))


def _from_record(record: RunRecord, folder: Path, label: str) -> Entry:
    scores = {} if record.best_score is None else {STSB_DEV: record.best_score}
    settings = {"metric": str(record.config.get("dev_metric", "spearman"))}
    if record.pooler:
        settings["pooler"] = record.pooler
    if scores:
        settings["dev data"] = _dev_data(record.data)
        scores |= _geometry_at(folder / "metrics.jsonl", record.best_step)
    done = record.status in ("finished", "stopped-early")
    return Entry(
        label,
        EntryKind.RUN,
        str(folder),
        scores,
        settings,
        config=run_facts(record),
        seed=record.seed,
        remarks=() if done else (f"{label} is {record.status}, step {record.step} of {record.total_steps}",),
    )


def _dev_data(data: Mapping[str, Any]) -> str:
    """Return the name of the dev data: the published file is known by its digest, any other by its path."""
    digest = str(data.get("dev_sha256"))
    published = next(file.sha256 for file in expected_files() if file.path.endswith("sts-dev.csv"))
    return STSB_DEV_DATA if digest == published else f"{data.get('dev_file')} ({digest[:8]})"


def _geometry_at(metrics: Path, step: int | None) -> dict[str, float]:
    """Return alignment and uniformity on the dev pairs at the step whose model was kept."""
    if not metrics.is_file():
        return {}
    for line in iter_lines(metrics):
        values = json.loads(line)
        if values.get("step") == step and values.get("dev_score") is not None:
            return {
                name: values[name] for name in ("alignment", "uniformity") if values.get(name) is not None
            }
    return {}


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
