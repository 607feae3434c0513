"""Evaluate several encoders together: the checkpoints of a run, or the seeds of a folder."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from simcse_cli.errors import UsageError
from simcse_cli.evaluation.eval_encoder import EvalEncoder, open_model
from simcse_cli.evaluation.options import EncoderOptions, MtebOptions, SuiteOptions
from simcse_cli.models.checkpoint import kept_checkpoints, load_for_encoding, load_state_weights
from simcse_cli.progress import Progress
from simcse_cli.results.columns import columns, label
from simcse_cli.results.report import (
    Outcome,
    Report,
    mean_and_deviation,
    mean_rows,
    with_seed_means,
)
from simcse_cli.results.result import SuiteResult
from simcse_cli.results.runs import is_run, read_run_record, seed_runs

AnySuite = TypeVar("AnySuite", SuiteOptions, MtebOptions)
_AVERAGES = ("average", "average_dev", "categories", "n_scored")
"""Keys of averages in a result: their values depend on which tasks have a score."""
# Keys whose values belong to one seed, and have no mean over seeds.
_OF_ONE_RUN = (
    "seed",
    "ci",
    "average_ci",
    "pair_scores",
    "pair_scores_sha256",
    "predictions",
    "predictions_sha256",
)
_DIFFERENT = object()  # stands for the mean of values that have none


def evaluate_each_seed(
    evaluate: Callable[[EncoderOptions, AnySuite], Outcome | None],
    encoder: EncoderOptions,
    options: AnySuite,
    progress: Progress,
) -> Outcome | None:
    """Evaluate a model, or every seed in a folder of runs, with the mean and deviation over seeds.

    For a folder of seeds, the JSON object holds means, the sample deviations of the same numbers
    under ``deviation``, and the object of each seed under ``runs``. If only some seeds have a score
    of a task, neither this task nor any average has a mean. Each seed has its own file of
    ``--save-scores``: ``scores.jsonl`` becomes ``scores.seed-1.jsonl`` for seed 1.

    Return None if ``evaluate`` does, which then has only written sentences.
    """
    # A source that is not a folder of seeds is evaluated alone.
    runs: dict[int, Path] = {}
    if encoder.has_model:
        runs = seed_runs(encoder.model)
        _warn_of_untrained(encoder.model, list(runs.values()), progress)
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
    outcomes: dict[int, Outcome] = {}
    for seed, run in runs.items():
        progress.info(f"seed {seed} of {encoder.model}")
        seed_options = options
        if not isinstance(options, MtebOptions) and (path := options.save_scores) is not None:
            name = f"{path.stem}.seed-{seed}{path.suffix}"
            seed_options = replace(options, save_scores=path.with_name(name))
        outcome = evaluate(replace(encoder, model=str(run)), seed_options)
        if outcome is None:
            return None  # only sentences were written, whatever the seed
        outcomes[seed] = outcome
    return _all_seeds(encoder.model, folders, outcomes, progress)


def _warn_of_untrained(model: str, seed_folders: Sequence[Path], progress: Progress) -> None:
    """Warn if a run keeps the untrained model, because no later step was better.

    The runs are those in ``seed_folders`` or, if there are none, ``model`` itself.
    """
    folders = seed_folders or [Path(model)]
    n_untrained = 0
    for folder in folders:
        if is_run(folder) and read_run_record(folder).best_step == 0:
            n_untrained += 1
    if not n_untrained:
        return
    who = f"{n_untrained} of {len(seed_folders)} seeds of {model}" if seed_folders else model
    keep = "keeps" if n_untrained == 1 else "keep"
    progress.warn(f"{who} {keep} the untrained model (best at step 0)")


def _all_seeds(
    folder: str, runs: Sequence[Path], outcomes: Mapping[int, Outcome], progress: Progress
) -> Outcome:
    """Return the outcome of a folder of seeds from the outcome of each seed, and warn of gaps.

    ``runs`` are the folders of the seeds. Gaps are scores that only some seeds lack.
    """
    payloads = [{"seed": seed, **outcome.payload} for seed, outcome in outcomes.items()]

    # If a seed lacks a score, its averages are over fewer tasks, so the averages have no mean. They
    # include the categories of mteb, which are columns of its table.
    results = {f"seed {each['seed']}": SuiteResult.from_json(each, folder) for each in payloads}
    seeds_lacking = _lacking_by_task(results)
    without_mean: set[str] = set()
    if seeds_lacking:
        without_mean = {*_AVERAGES, *payloads[0].get("categories", ())}
    notes = _notes_on(seeds_lacking, "neither it nor any average has a mean")
    for note in notes:
        progress.warn(note)

    to_average = [_with_none_at(each, without_mean) for each in payloads]
    mean, deviation = _json_mean_and_deviation(to_average)
    mean["missing"] |= {task: f"in {', '.join(seeds)}" for task, seeds in seeds_lacking.items()}
    names = {"model": folder, "seeds": list(outcomes)}
    payload = {**mean, **names, "deviation": deviation, "runs": payloads}

    tables = []
    for table_of_each_seed in zip(*(outcome.reports for outcome in outcomes.values()), strict=True):
        table = _joined(table_of_each_seed, folder, runs, without_mean)
        tables.append(replace(table, notes=[*table.notes, *notes]))
    return Outcome(tables, payload)


def _lacking_by_task(results: Mapping[str, SuiteResult]) -> dict[str, list[str]]:
    """Return, for each task that only some results score, the names of those without a score.

    ``results`` maps names to results.
    """
    scores = {name: result.scores for name, result in results.items()}
    lacking = {}
    for task in next(iter(scores.values())):  # all results have the same tasks
        without = [name for name, score_of in scores.items() if score_of[task] is None]
        if 0 < len(without) < len(scores):
            lacking[task] = without
    return lacking


def _notes_on(lacking_by_task: Mapping[str, Sequence[str]], consequence: str) -> list[str]:
    notes = []
    for task, names in lacking_by_task.items():
        notes.append(f"no score of {label(task)} in {', '.join(names)}: {consequence}")
    return notes


def _with_none_at(values: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: None if key in keys else value for key, value in values.items()}


def _json_mean_and_deviation(values: Sequence[Any]) -> tuple[Any, Any]:
    """Return the mean and the sample deviation of JSON values of the same structure.

    Only floats, and objects that contain floats, have a deviation. The mean of values is

    - for objects: an object with the mean of each key;
    - otherwise, for equal values of any kind: that value;
    - otherwise, if one of the values is None: None;
    - otherwise, for numbers: their mean;
    - otherwise: ``_DIFFERENT``.
    """
    if _are_all(values, Mapping):
        return _means_by_key(values)
    # Whole numbers, such as counts, have a mean but no deviation.
    deviation = None
    if _are_all(values, float):
        _, deviation = mean_and_deviation(values)
    if all(value == values[0] for value in values):
        mean: Any = values[0]
    elif None in values:
        mean = None
    elif _are_all(values, int | float) and not _are_all(values, bool):
        mean, _ = mean_and_deviation(values)
    else:
        mean = _DIFFERENT
    return mean, deviation


def _are_all(values: Sequence[Any], kind: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _means_by_key(values: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the means and the deviations of objects, by key.

    Left out are keys that some of the objects lack, and keys of ``_OF_ONE_RUN``.
    """
    means = {}
    deviations = {}
    for key in values[0]:
        if key in _OF_ONE_RUN or not all(key in value for value in values):
            continue
        mean, deviation = _json_mean_and_deviation([value[key] for value in values])
        if mean is not _DIFFERENT:
            means[key] = mean
        if deviation not in (None, {}):
            deviations[key] = deviation
    return means, deviations


def _joined(
    reports: Sequence[Report], folder: str, runs: Sequence[Path], without_mean: Collection[str]
) -> Report:
    """Return the tables of all seeds as one, with the mean and deviation over seeds.

    If the rows of the tables are not models, the result holds only the means. ``without_mean`` are
    the columns without a mean. ``runs`` are the folders of the seeds, below ``folder``.
    """
    if reports[0].columns[0].key != "model":
        return _means_alone(reports, folder, runs)

    # A row of a model is named by the folder of its run, and the mean by the folder of all runs.
    # Other rows, such as the ends of intervals, have no mean.
    rows: list[dict[str, Any]] = []
    mean_names: dict[str, str | None] = {}  # maps the name of a row to that of its mean
    for report, run in zip(reports, runs, strict=True):
        rows += report.rows
        for row in report.rows:
            name = row["model"]
            if str(run) in name:
                mean_names[name] = name.replace(str(run), folder)
    table = with_seed_means(replace(reports[0], rows=rows), mean_names)
    # ``with_seed_means`` has added the means below the rows of the models.
    means = [_with_none_at(row, without_mean) for row in table.rows[len(rows) :]]
    return replace(table, rows=[*rows, *means])


def _means_alone(reports: Sequence[Report], folder: str, runs: Sequence[Path]) -> Report:
    """Return a table of the means over seeds, with the names of rows of the table of one seed."""
    first = reports[0]
    # A heading with the folder of a run gets the folder of all runs instead.
    relabelled = []
    for column in first.columns:
        heading = column.heading.replace(str(runs[0]), folder)
        relabelled.append(replace(column, label=heading))

    # The first two cells say what a row is about. A row that some seeds lack is left out.
    first_key, second_key = (column.key for column in relabelled[:2])
    rows_by_cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for report in reports:
        for row in report.rows:
            rows_by_cells.setdefault((row[first_key], row[second_key]), []).append(row)
    rows = []
    for (name, _), seed_rows in rows_by_cells.items():
        if len(seed_rows) == len(reports):
            mean, _ = mean_rows(seed_rows, relabelled, "")
            # The first cell of ``mean`` says that it is a mean over seeds; the title says so here.
            rows.append(mean | {first_key: name})
    title = first.title
    if len(runs) > 1:
        title += f", mean of {len(runs)} seeds"
    return Report(title, relabelled, rows, first.notes)


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

    # For each checkpoint, open the run's model; the weights of a training state replace its own.
    results: dict[str, SuiteResult] = {}
    scored: list[dict[str, Any]] = []
    model_step = None
    for checkpoint in kept:
        model = load_for_encoding(options.model, options, progress)
        if not checkpoint.is_model:
            load_state_weights(model.model, checkpoint.path)
        name = f"step {checkpoint.step:,}"
        progress.info(f"{name} of {run_dir}")
        opened = open_model(model, options, progress)
        result = score(replace(opened, name=f"{options.model} step {checkpoint.step}"))
        results[name] = result
        facts = {"step": checkpoint.step, "is_model": checkpoint.is_model}
        scored.append(facts | result.to_json())
        if checkpoint.is_model:
            model_step = checkpoint.step

    # To be the best, a checkpoint must have a score of every task that any checkpoint scores.
    steps_lacking = _lacking_by_task(results)
    incomplete = set(chain(*steps_lacking.values()))
    candidates = []
    for name, entry in zip(results, scored, strict=True):
        if name not in incomplete and entry[by] is not None:
            candidates.append(entry)
    best_step = None
    if candidates:
        best_step = max(candidates, key=lambda entry: float(entry[by]))["step"]

    payload = {
        "run": options.model,
        "best_by": by,
        "best_step": best_step,
        "model_step": model_step,
        "checkpoints": scored,
    }
    table = _marked(describe(list(results.values()), options.model), payload)
    table.notes += _notes_on(steps_lacking, "it cannot be the best")
    return Outcome([table], payload)


def _marked(table: Report, payload: Mapping[str, Any]) -> Report:
    """Return a table of checkpoints with two more columns, for their steps and for marks.

    The marks are on the best checkpoint, and on the one that is the model of the run.
    """
    rows = []
    for checkpoint, row in zip(payload["checkpoints"], table.rows, strict=True):
        step = checkpoint["step"]
        marks = [name for name in ("best", "model") if payload[f"{name}_step"] == step]
        rows.append({"step": step, **row, "mark": ", ".join(marks)})
    shown = [*columns("step"), *table.columns, *columns("mark")]
    notes = [*table.notes, "model: the checkpoint that the run kept as its model"]
    return Report(table.title, shown, rows, notes)
