"""``--checkpoints``: every checkpoint that a run keeps, in one table."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcse_cli.errors import UsageError
from simcse_cli.evaluation.encoders import OpenEncoder, open_model
from simcse_cli.evaluation.options import EncoderOptions
from simcse_cli.evaluation.tables import CheckpointView
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.models.kept_checkpoints import kept_checkpoints, load_state_weights
from simcse_cli.progress import Progress
from simcse_cli.results.report import Column, Outcome, Report
from simcse_cli.results.runs import is_run


def check_checkpoints(options: EncoderOptions, others: Mapping[str, Any]) -> None:
    """Raise UsageError unless the options name a run folder and nothing that excludes ``--checkpoints``.

    ``others`` are values of further options that exclude it, by flag.
    """
    own = ("vectors", "embeddings", "postprocess", "save_postprocess")
    given = {f"--{name.replace('_', '-')}": getattr(options, name) for name in own} | dict(others)
    for flag, value in given.items():
        if value:
            raise UsageError(f"excludes {flag}", option="--checkpoints")
    if not is_run(options.model):
        raise UsageError(
            f"need --model RUN, a run folder of `simcse train`, not {options.model}", option="--checkpoints"
        )


def evaluate_checkpoints(
    options: EncoderOptions,
    score: Callable[[OpenEncoder], dict[str, Any]],
    describe: Callable[[dict[str, Any], str], CheckpointView],
    progress: Progress,
) -> Outcome:
    """Return the results of every checkpoint that a run keeps, in step order.

    ``score`` gives the result object of one checkpoint; ``describe`` says how to show the results, given one
    of them and the run.
    """
    scored = [
        {"step": step, "is_model": is_model, **score(opened)}
        for step, is_model, opened in _open_checkpoints(options, progress)
    ]
    view = describe(scored[0], options.model)
    known = [each for each in scored if each[view.by] is not None]
    best = max(known, key=lambda each: float(each[view.by]), default=None)
    rows = []
    for each in scored:
        marks = [name for name, is_so in (("best", each is best), ("model", each["is_model"])) if is_so]
        rows.append({"step": each["step"], **view.row(each), "mark": ", ".join(marks)})
    columns = [Column("step", kind="count"), *view.columns, Column("mark", "")]
    notes = [*view.notes, "model: what the run kept as its model"]
    payload = {
        "run": options.model,
        "best_by": view.by,
        "best_step": None if best is None else best["step"],
        "model_step": next(each["step"] for each in scored if each["is_model"]),
        "checkpoints": scored,
    }
    return Outcome([Report(view.title, columns, rows, notes)], payload)


def _open_checkpoints(options: EncoderOptions, progress: Progress) -> Iterator[tuple[int, bool, OpenEncoder]]:
    run_dir = Path(options.model)
    kept = kept_checkpoints(run_dir)
    if len(kept) == 1:
        progress.warn(
            f"{run_dir} keeps one checkpoint: train with --keep-checkpoints N, or 0 for all, to have more"
        )
    for checkpoint in kept:
        model = load_for_encoding(options.model, options, progress)
        if not checkpoint.is_model:
            load_state_weights(model.model, checkpoint.path)
        progress.info(f"step {checkpoint.step:,} of {run_dir}")
        opened = open_model(model, options, progress)
        named = replace(opened, name=f"{options.model} step {checkpoint.step}")
        yield checkpoint.step, checkpoint.is_model, named
