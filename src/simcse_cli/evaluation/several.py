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
_OF_ONE_RUN = (
    "seed",
    "ci",
    "average_ci",
    "pair_scores",
    "predictions",
)  # these have no meaningful mean
_DIFFERENT = object()


def evaluate_each_seed(
    evaluate: Callable[[EncoderOptions, AnySuite], Outcome | None],
    encoder: EncoderOptions,
    options: AnySuite,
    progress: Progress,
) -> Outcome | None:
    """Evaluate a model, or each seed of a folder of several with mean and deviation.

    The JSON object then holds means, under ``deviation`` the sample deviations of the same numbers,
    and under ``runs`` the object of each seed. A file of ``--save-scores`` gets the seed before its
    ending.
    """
    # Anything but a folder of seeds is evaluated as it is.
    runs = {} if encoder.vectors or encoder.embeddings else seed_runs(encoder.model)
    if not runs:
        return evaluate(encoder, options)

    # What these options do belongs to a single run.
    for flag, value in (
        ("--checkpoints", options.checkpoints),
        ("--save-postprocess", encoder.save_postprocess),
    ):
        if value:
            raise UsageError(
                f"is for one run, such as --model {next(iter(runs.values()))}", option=flag
            )

    # Each seed, as if it had been given alone.
    found: dict[int, Outcome] = {}
    for seed, run in runs.items():
        progress.info(f"seed {seed} of {encoder.model}")
        own = options
        if not isinstance(options, MtebOptions) and (path := options.save_scores) is not None:
            own = replace(
                options, save_scores=path.with_name(f"{path.stem}.seed-{seed}{path.suffix}")
            )
        one = evaluate(replace(encoder, model=str(run)), own)
        if one is None:
            return None  # only sentences were written, whatever the seed
        found[seed] = one

    # All seeds together.
    payloads = [{"seed": seed, **one.payload} for seed, one in found.items()]
    mean, deviation = _mean_and_deviation(payloads)
    names = {"model": encoder.model, "seeds": list(runs)}
    payload = {**mean, **names, "deviation": deviation, "runs": payloads}
    tables = zip(*(one.reports for one in found.values()), strict=True)
    return Outcome([_joined(each, encoder.model, list(runs.values())) for each in tables], payload)


def _mean_and_deviation(values: Sequence[Any]) -> tuple[Any, Any]:
    """Return mean and sample deviation of equally built values, number by number.

    A value that all share is its own mean; values that differ and are not numbers are left out.
    Only fractions, and objects that hold some, have a deviation.
    """
    first = values[0]
    if all(isinstance(value, Mapping) for value in values):
        shared = [
            key for key in first if key not in _OF_ONE_RUN and all(key in value for value in values)
        ]
        found = {key: _mean_and_deviation([value[key] for value in values]) for key in shared}
        means = {key: mean for key, (mean, _) in found.items() if mean is not _DIFFERENT}
        return means, {
            key: spread for key, (_, spread) in found.items() if spread not in (None, {})
        }
    numbers = [value for value in values if isinstance(value, int | float)]
    mean, deviation = (
        mean_and_deviation(numbers) if len(numbers) == len(values) else (_DIFFERENT, None)
    )
    if all(value == first for value in values):
        mean = first
    elif None in values:
        mean = None
    return mean, deviation if all(isinstance(value, float) for value in values) else None


def _joined(reports: Sequence[Report], folder: str, runs: Sequence[Path]) -> Report:
    """Return one table of all seeds, with mean and deviation.

    A table that is not about models becomes its mean.
    """
    first = reports[0]
    head, name = first.columns[0].key, str(runs[0])
    if head != "model":
        columns = [
            replace(column, label=column.heading.replace(name, folder)) for column in first.columns
        ]
        rows = [
            mean_rows(rows, columns, "")[0] | {head: rows[0][head]}
            for rows in zip(*(report.rows for report in reports), strict=True)
        ]
        return Report(f"{first.title}, mean of {len(runs)} seeds", columns, rows, first.notes)
    rows = [row for report in reports for row in report.rows]
    groups = {
        row[head]: row[head].replace(str(run), folder)
        for report, run in zip(reports, runs, strict=True)
        for row in report.rows
        if str(run) in row[head]
    }
    return with_seed_means(Report(first.title, first.columns, rows, first.notes), groups)


def evaluate_checkpoints(
    options: EncoderOptions,
    score: Callable[[EvalEncoder], SuiteResult],
    describe: Callable[[Sequence[SuiteResult], str], Report],
    progress: Progress,
    *,
    by: str = "average",
) -> Outcome:
    """Evaluate every checkpoint that a run keeps, in step order.

    ``describe`` makes a table of the results, one row each. The best checkpoint has the highest
    number under the JSON key ``by``.
    """
    if not is_run(options.model):
        what = f"need --model RUN, a run folder of `simcse train`, not {options.model}"
        raise UsageError(what, option="--checkpoints")
    results: list[SuiteResult] = []
    scored: list[dict[str, Any]] = []
    run_dir = Path(options.model)

    # One checkpoint is allowed, but the user has likely expected more.
    kept = kept_checkpoints(run_dir)
    if len(kept) == 1:
        progress.warn(
            f"{run_dir} keeps one checkpoint: train with --keep-checkpoints N, or 0 for all, "
            "to have more"
        )

    # Each starts from the run's model, with the weights of a kept state put in.
    for checkpoint in kept:
        model = load_for_encoding(options.model, options, progress)
        if not checkpoint.is_model:
            load_state_weights(model.model, checkpoint.path)
        progress.info(f"step {checkpoint.step:,} of {run_dir}")
        opened = replace(
            open_model(model, options, progress), name=f"{options.model} step {checkpoint.step}"
        )
        results.append(score(opened))
        facts = {"step": checkpoint.step, "is_model": checkpoint.is_model}
        scored.append(facts | results[-1].to_json())

    # A checkpoint without a score cannot be the best.
    known = [each for each in scored if each[by] is not None]
    best = max(known, key=lambda each: float(each[by]), default=None)
    table = describe(results, options.model)

    # The table marks the best checkpoint and the one that the run has kept.
    rows = []
    for each, row in zip(scored, table.rows, strict=True):
        marks = [
            name for name, is_so in (("best", each is best), ("model", each["is_model"])) if is_so
        ]
        rows.append({"step": each["step"], **row, "mark": ", ".join(marks)})
    shown = [*columns("step"), *table.columns, *columns("mark")]
    payload = {
        "run": options.model,
        "best_by": by,
        "best_step": None if best is None else best["step"],
        "model_step": next(each["step"] for each in scored if each["is_model"]),
        "checkpoints": scored,
    }
    notes = [*table.notes, "model: the checkpoint that the run kept as its model"]
    return Outcome([Report(table.title, shown, rows, notes)], payload)
