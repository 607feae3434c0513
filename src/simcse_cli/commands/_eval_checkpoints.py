"""`simcse eval SUITE --checkpoints`: every checkpoint that a run keeps, in one table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from simcse_cli.choices import OutputFormat
from simcse_cli.commands._encoders import OpenEncoder, load_chosen, open_model
from simcse_cli.console import Console
from simcse_cli.evaluation.options import EncoderOptions
from simcse_cli.report import Column, Report

CheckpointsOption = Annotated[
    bool,
    typer.Option(
        "--checkpoints", help="Score every checkpoint kept in the run folder --model, and mark the best."
    ),
]


@dataclass(frozen=True)
class ScoredCheckpoint:
    """One step of a run and its result object; ``is_model`` marks the step that the run chose."""

    step: int
    is_model: bool
    result: dict[str, Any]


@dataclass(frozen=True)
class CheckpointView:
    """How the results of a suite are shown along a run.

    Attributes:
        by: key of the result whose highest value is the best.
        title: of the table.
        columns: between step and mark.
        row: takes the cells of ``columns`` out of a result.
        notes: under the table.
    """

    by: str
    title: str
    columns: Sequence[Column]
    row: Callable[[dict[str, Any]], dict[str, Any]]
    notes: Sequence[str]


def check_checkpoints(encoder: EncoderOptions, others: Mapping[str, Any]) -> None:
    """Refuse what makes no sense for the checkpoints of a run.

    Args:
        encoder: must name a run folder.
        others: options of the suite that exclude ``--checkpoints``, by flag.

    Raises:
        typer.BadParameter: names the option, or what --model should be.
    """
    own = ("vectors", "embeddings", "postprocess", "save_postprocess")
    given = {f"--{name.replace('_', '-')}": getattr(encoder, name) for name in own} | dict(others)
    for flag, value in given.items():
        if value:
            raise typer.BadParameter(f"excludes {flag}", param_hint="--checkpoints")
    if not (Path(encoder.model) / "run.json").is_file():
        raise typer.BadParameter(
            f"need --model RUN, a run folder of `simcse train`, not {encoder.model}",
            param_hint="--checkpoints",
        )


def show_checkpoints(
    encoder: EncoderOptions,
    score: Callable[[OpenEncoder], dict[str, Any]],
    describe: Callable[[dict[str, Any], str], CheckpointView],
    console: Console,
    fmt: OutputFormat,
    **outputs: Any,
) -> None:
    """Score every checkpoint that the run keeps and show the table, in step order.

    Args:
        encoder: names the run.
        score: returns the result object of one checkpoint.
        describe: says how to show the results, given one of them and the run.
        console: shows progress and the table.
        fmt: of the table.
        **outputs: further options of ``Console.emit``.

    Raises:
        CheckpointError: the run has no model yet, or a state cannot be read.
    """
    scored = [
        ScoredCheckpoint(step, is_model, score(opened))
        for step, is_model, opened in _open_checkpoints(encoder, console)
    ]
    view = describe(scored[0].result, encoder.model)
    payload = checkpoints_payload(scored, encoder.model, view.by)
    console.emit(checkpoints_report(scored, view), payload, fmt, **outputs)


def _open_checkpoints(encoder: EncoderOptions, console: Console) -> Iterator[tuple[int, bool, OpenEncoder]]:
    from simcse_cli.models.kept_checkpoints import kept_checkpoints, load_state_weights

    run_dir = Path(encoder.model)
    kept = kept_checkpoints(run_dir)
    if len(kept) == 1:
        console.warn(
            f"{run_dir} keeps one checkpoint: train with --keep-checkpoints N, or 0 for all, to have more"
        )
    for checkpoint in kept:
        model = load_chosen(encoder, console)
        if not checkpoint.is_model:
            load_state_weights(model, checkpoint.path)
        console.info(f"step {checkpoint.step:,} of {run_dir}")
        opened = open_model(model, encoder, console)
        named = replace(opened, name=f"{encoder.model} step {checkpoint.step}")
        yield checkpoint.step, checkpoint.is_model, named


def best_checkpoint(scored: Sequence[ScoredCheckpoint], by: str) -> ScoredCheckpoint | None:
    """Return the checkpoint with the highest ``by`` in its result, the first of equals; None without any."""
    known = [each for each in scored if each.result[by] is not None]
    return max(known, key=lambda each: float(each.result[by]), default=None)


def checkpoints_payload(scored: Sequence[ScoredCheckpoint], run: str, by: str) -> dict[str, Any]:
    """Return the JSON object: the result objects of all checkpoints, and which is the best."""
    best = best_checkpoint(scored, by)
    return {
        "run": run,
        "best_by": by,
        "best_step": None if best is None else best.step,
        "model_step": next(each.step for each in scored if each.is_model),
        "checkpoints": [{"step": each.step, "is_model": each.is_model, **each.result} for each in scored],
    }


def checkpoints_report(scored: Sequence[ScoredCheckpoint], view: CheckpointView) -> Report:
    """Return one row a checkpoint."""
    best = best_checkpoint(scored, view.by)
    rows = []
    for each in scored:
        marks = [name for name, is_so in (("best", each is best), ("model", each.is_model)) if is_so]
        rows.append({"step": each.step, **view.row(each.result), "mark": ", ".join(marks)})
    columns = [Column("step", kind="count"), *view.columns, Column("mark", "")]
    return Report(view.title, columns, rows, [*view.notes, "model: what the run kept as its model"])
