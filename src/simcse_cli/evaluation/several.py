"""Evaluate several encoders together.

They are the checkpoints that a run keeps, or the seeds of a folder of runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from simcse_cli.errors import UsageError
from simcse_cli.evaluation.eval_encoder import EvalEncoder, open_model
from simcse_cli.evaluation.options import EncoderOptions, MtebOptions, SuiteOptions
from simcse_cli.models.checkpoint import kept_checkpoints, load_for_encoding, load_state_weights
from simcse_cli.progress import Progress
from simcse_cli.results.columns import columns
from simcse_cli.results.report import (
    Outcome,
    Report,
    mean_and_deviation,
    mean_rows,
    with_seed_means,
)
from simcse_cli.results.result import SuiteResult
from simcse_cli.results.runs import is_run, seed_runs

AnySuite = TypeVar("AnySuite", SuiteOptions, MtebOptions)
# Keys whose values have no mean.
_OF_ONE_RUN = (
    "seed",
    "ci",
    "average_ci",
    "pair_scores",
    "pair_scores_sha256",
    "predictions",
    "predictions_sha256",
)
_DIFFERENT = object()  # the mean of values that differ and are not numbers


def evaluate_each_seed(
    evaluate: Callable[[EncoderOptions, AnySuite], Outcome | None],
    encoder: EncoderOptions,
    options: AnySuite,
    progress: Progress,
) -> Outcome | None:
    """Evaluate a model, or every seed in a folder of runs, with the mean and deviation over seeds.

    With several seeds, the JSON object holds means, the sample deviations of the same numbers under
    ``deviation``, and the object of each seed under ``runs``. The file of ``--save-scores`` is
    written for each seed, with the seed before the ending of its name.
    """
    # A source that is not a folder of seeds is evaluated alone.
    runs: dict[int, Path] = {}
    if not (encoder.vectors or encoder.embeddings):
        runs = seed_runs(encoder.model)
    if not runs:
        return evaluate(encoder, options)
    folders = list(runs.values())

    # These options work on a single run.
    one_run = f"is for one run, such as --model {folders[0]}"
    if options.checkpoints:
        raise UsageError(one_run, option="--checkpoints")
    if encoder.save_postprocess:
        raise UsageError(one_run, option="--save-postprocess")

    # Evaluate each seed as if it had been given alone.
    payloads: list[dict[str, Any]] = []
    reports: list[Sequence[Report]] = []
    for seed, run in runs.items():
        progress.info(f"seed {seed} of {encoder.model}")
        seed_options = options
        if not isinstance(options, MtebOptions) and (path := options.save_scores) is not None:
            name = f"{path.stem}.seed-{seed}{path.suffix}"
            seed_options = replace(options, save_scores=path.with_name(name))
        outcome = evaluate(replace(encoder, model=str(run)), seed_options)
        if outcome is None:
            return None  # only sentences were written, whatever the seed
        payloads.append({"seed": seed, **outcome.payload})
        reports.append(outcome.reports)

    # All seeds together.
    mean, deviation = _mean_and_deviation(payloads)
    names = {"model": encoder.model, "seeds": list(runs)}
    payload = {**mean, **names, "deviation": deviation, "runs": payloads}
    tables = [
        _joined(same_table, encoder.model, folders) for same_table in zip(*reports, strict=True)
    ]
    return Outcome(tables, payload)


def _mean_and_deviation(values: Sequence[Any]) -> tuple[Any, Any]:
    """Return the mean and the sample deviation of JSON values of the same structure.

    Objects are averaged key by key. If all values are equal, the mean is that value; if they differ
    and are not all numbers, it is ``_DIFFERENT``, or None if a value is None. Only floats, and
    objects that contain floats, have a deviation.
    """
    first = values[0]
    if _are_all(values, Mapping):
        return _means_by_key(values)
    mean: Any = _DIFFERENT
    deviation = None
    if _are_all(values, int | float) and not _are_all(values, bool):
        mean, deviation = mean_and_deviation(values)
    # Whole numbers, such as counts, have a mean but no deviation.
    if not _are_all(values, float):
        deviation = None
    # Equal values stay as they are, also whole numbers and values that are not numbers.
    if all(value == first for value in values):
        mean = first
    elif None in values:
        mean = None
    return mean, deviation


def _are_all(values: Sequence[Any], kind: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _means_by_key(values: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the means and the deviations of objects, for the keys that all of them have."""
    means = {}
    deviations = {}
    for key in values[0]:
        if key in _OF_ONE_RUN or not all(key in value for value in values):
            continue
        mean, deviation = _mean_and_deviation([value[key] for value in values])
        if mean is not _DIFFERENT:
            means[key] = mean
        if deviation not in (None, {}):
            deviations[key] = deviation
    return means, deviations


def _joined(reports: Sequence[Report], folder: str, runs: Sequence[Path]) -> Report:
    """Return the tables of all seeds as one, with the mean and deviation over seeds.

    If the rows of the tables are not models, the result holds only the means.
    """
    if reports[0].columns[0].key != "model":
        return _means_alone(reports, folder, runs)

    # The rows of a run are named by its folder, and those of their mean by the folder of the runs.
    rows: list[dict[str, Any]] = []
    mean_names: dict[str, str | None] = {}  # maps the name of a row to that of its mean
    for report, run in zip(reports, runs, strict=True):
        rows += report.rows
        for row in report.rows:
            name = row["model"]
            if str(run) in name:
                mean_names[name] = name.replace(str(run), folder)
    first = reports[0]
    return with_seed_means(Report(first.title, first.columns, rows, first.notes), mean_names)


def _means_alone(reports: Sequence[Report], folder: str, runs: Sequence[Path]) -> Report:
    """Return a table of the means over seeds, whose rows are named as in the table of one seed."""
    first = reports[0]
    # A heading with the folder of a run gets the folder of all runs instead.
    relabelled = []
    for column in first.columns:
        label = column.heading.replace(str(runs[0]), folder)
        relabelled.append(replace(column, label=label))
    first_key = relabelled[0].key
    rows = []
    for same_row in zip(*(report.rows for report in reports), strict=True):
        # The name "" in the first cell of the mean is replaced.
        mean, _ = mean_rows(same_row, relabelled, "")
        rows.append(mean | {first_key: same_row[0][first_key]})
    return Report(f"{first.title}, mean of {len(runs)} seeds", relabelled, rows, first.notes)


def evaluate_checkpoints(
    options: EncoderOptions,
    score: Callable[[EvalEncoder], SuiteResult],
    describe: Callable[[Sequence[SuiteResult], str], Report],
    progress: Progress,
    *,
    by: str = "average",
) -> Outcome:
    """Evaluate every checkpoint that a run keeps, in step order.

    ``score`` evaluates one checkpoint. ``describe`` makes a table from all results and the name of
    the run, with one row for each result. The best checkpoint has the highest number under the JSON
    key ``by``.
    """
    if not is_run(options.model):
        what = f"need --model RUN, a run folder of `simcse train`, not {options.model}"
        raise UsageError(what, option="--checkpoints")
    run_dir = Path(options.model)

    # A single checkpoint is allowed, but the user probably expected more.
    kept = kept_checkpoints(run_dir)
    if len(kept) == 1:
        progress.warn(
            f"{run_dir} keeps one checkpoint: train with --keep-checkpoints N, or 0 for all, "
            "to have more"
        )

    # Open the run's model for each checkpoint, and load the weights of the kept state into it.
    results: list[SuiteResult] = []
    scored: list[dict[str, Any]] = []
    model_step = None
    for checkpoint in kept:
        model = load_for_encoding(options.model, options, progress)
        if not checkpoint.is_model:
            load_state_weights(model.model, checkpoint.path)
        progress.info(f"step {checkpoint.step:,} of {run_dir}")
        opened = open_model(model, options, progress)
        result = score(replace(opened, name=f"{options.model} step {checkpoint.step}"))
        results.append(result)
        facts = {"step": checkpoint.step, "is_model": checkpoint.is_model}
        scored.append(facts | result.to_json())
        if checkpoint.is_model:
            model_step = checkpoint.step

    # A checkpoint without a score cannot be the best.
    known = [entry for entry in scored if entry[by] is not None]
    best_step = None
    if known:
        best_step = max(known, key=lambda entry: float(entry[by]))["step"]

    payload = {
        "run": options.model,
        "best_by": by,
        "best_step": best_step,
        "model_step": model_step,
        "checkpoints": scored,
    }
    return Outcome([_marked(describe(results, options.model), payload)], payload)


def _marked(table: Report, payload: Mapping[str, Any]) -> Report:
    """Return a table of checkpoints in which the best one and the model of the run are marked."""
    rows = []
    for checkpoint, row in zip(payload["checkpoints"], table.rows, strict=True):
        step = checkpoint["step"]
        marks = [name for name in ("best", "model") if payload[f"{name}_step"] == step]
        rows.append({"step": step, **row, "mark": ", ".join(marks)})
    shown = [*columns("step"), *table.columns, *columns("mark")]
    notes = [*table.notes, "model: the checkpoint that the run kept as its model"]
    return Report(table.title, shown, rows, notes)
