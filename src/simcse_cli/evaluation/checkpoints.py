"""``--checkpoints``: evaluate every checkpoint that a run keeps, in one table."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcse_cli.errors import UsageError
from simcse_cli.evaluation.eval_encoder import EvalEncoder, open_model
from simcse_cli.evaluation.options import EncoderOptions
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.models.kept_checkpoints import kept_checkpoints, load_state_weights
from simcse_cli.progress import Progress
from simcse_cli.results.columns import columns
from simcse_cli.results.report import Outcome, Report
from simcse_cli.results.result import SuiteResult
from simcse_cli.results.runs import is_run


def evaluate_checkpoints(
    options: EncoderOptions,
    score: Callable[[EvalEncoder], SuiteResult],
    describe: Callable[[Sequence[SuiteResult], str], Report],
    progress: Progress,
    *,
    by: str = "average",
) -> Outcome:
    """Evaluate every checkpoint that a run keeps, in step order.

    ``describe`` makes a table of the results, one row each. The best checkpoint has the highest number under the
    JSON key ``by``.
    """
    if not is_run(options.model):
        raise UsageError(
            f"need --model RUN, a run folder of `simcse train`, not {options.model}", option="--checkpoints"
        )
    results: list[SuiteResult] = []
    scored: list[dict[str, Any]] = []
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
        opened = replace(open_model(model, options, progress), name=f"{options.model} step {checkpoint.step}")
        results.append(score(opened))
        facts = {"step": checkpoint.step, "is_model": checkpoint.is_model}
        scored.append(facts | results[-1].to_json())
    known = [each for each in scored if each[by] is not None]
    best = max(known, key=lambda each: float(each[by]), default=None)
    table = describe(results, options.model)
    rows = []
    for each, row in zip(scored, table.rows, strict=True):
        marks = [name for name, is_so in (("best", each is best), ("model", each["is_model"])) if is_so]
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
