"""`simcse eval transfer`: open the encoder, score it on the transfer tasks, and show the result."""

from collections.abc import Sequence

from simcse_cli.errors import UsageError, kept_on_interrupt, require_extra
from simcse_cli.evaluation.bootstrap import resample_accuracy, with_intervals
from simcse_cli.evaluation.embedding_cache import EvaluationCache, cache_folder
from simcse_cli.evaluation.eval_encoder import EvalEncoder, keep_in_run
from simcse_cli.evaluation.fit_postprocess import open_with_postprocess
from simcse_cli.evaluation.options import EncoderOptions, TransferOptions
from simcse_cli.evaluation.several import evaluate_checkpoints
from simcse_cli.evaluation.transfer import (
    evaluate_transfer,
    missing_tasks,
    read_file_tasks,
)
from simcse_cli.files.output import require_writable
from simcse_cli.progress import Progress
from simcse_cli.results.columns import AVERAGE, columns, parse_tasks
from simcse_cli.results.examples import write_predictions
from simcse_cli.results.report import Outcome, Report
from simcse_cli.results.result import SuiteResult
from simcse_cli.settings.choices import TRANSFER_TASKS, Probe


def eval_transfer(
    encoder: EncoderOptions, options: TransferOptions, progress: Progress, *, force: bool = False
) -> Outcome:
    """Score transfer tasks; ``force`` overwrites the files that options name."""
    # Check everything that needs no model.
    if options.probe is Probe.SKLEARN:
        require_extra("sklearn", "--probe sklearn")
    if options.save_scores is not None:
        require_writable(options.save_scores, force=force)
    file_tasks = read_file_tasks(options.task_file or (), options.columns, options.protocol)
    named = () if options.tasks is None and file_tasks else parse_tasks(options.tasks, TRANSFER_TASKS)
    data_dir, tasks = options.data_dir if named else None, (*named, *file_tasks)
    if data_dir is None and named:
        raise UsageError("need a SentEval folder (or SIMCSE_DATA), or --task-file FILE", option="--data-dir")
    missing_tasks(data_dir, tasks, file_tasks)
    folder = cache_folder(options.cache_dir, options.cache, progress)

    @kept_on_interrupt(
        lambda: "finished tasks are kept; the same command continues" if folder else "nothing is kept"
    )
    def run(opened: EvalEncoder) -> SuiteResult:
        result = evaluate_transfer(
            opened.encode,
            data_dir,
            tasks=tasks,
            protocol=options.protocol,
            probe=options.probe,
            file_tasks=file_tasks,
            cache=EvaluationCache(
                folder, opened.cache_key, keep_vectors=not options.checkpoints, progress=progress
            ),
            progress=progress,
        )
        return result.with_settings(**opened.facts())

    # Score each checkpoint of a run, or one encoder.
    if options.checkpoints:
        return evaluate_checkpoints(encoder, run, transfer_checkpoints, progress, by="average_dev")
    result = run(open_with_postprocess(encoder, options.data_dir, progress, force=force))
    if options.ci:
        resampled = {name: resample_accuracy(name, each.correct) for name, each in result.examples.items()}
        result = with_intervals(result, resampled)
    payload = result.to_json()
    if options.save_scores is not None:
        write_predictions(options.save_scores, result.examples, force=force)
        payload["predictions"] = str(options.save_scores)
    keep_in_run(encoder, payload, progress)
    return Outcome([transfer_report(result)], payload)


def transfer_report(result: SuiteResult) -> Report:
    """Return the table of the papers: test accuracies and their average, with the dev accuracies above."""
    own, mrpc = result.settings, result.tasks.get("MRPC")
    dev = {name: task and task.extra["dev_accuracy"] for name, task in result.tasks.items()}
    notes = [f"MRPC F1 {100 * mrpc.extra['f1']:.2f}"] if mrpc and "f1" in mrpc.extra else []
    return Report(
        f"Transfer: accuracy x100, {own['protocol']} protocol, {own['probe']} probe, pooler {own['pooler']}",
        [*columns("model"), *columns(*result.tasks, AVERAGE, kind="score")],
        [
            {"model": f"{own['model']} (dev)", **dev, AVERAGE: result.figures["average_dev"]},
            {"model": own["model"], **result.scores, AVERAGE: result.average},
            *result.interval_rows(),
        ],
        notes + result.notes(),
    )


def transfer_checkpoints(results: Sequence[SuiteResult], run: str) -> Report:
    """Return one row per checkpoint: test accuracies, and the mean dev accuracy that marks the best."""
    first, own = results[0], results[0].settings
    return Report(
        f"Transfer along {run}: accuracy x100, {own['protocol']} protocol, {own['probe']} probe",
        columns(*first.tasks, AVERAGE, "average_dev", kind="score"),
        [
            {**result.scores, AVERAGE: result.average, "average_dev": result.figures["average_dev"]}
            for result in results
        ],
        [
            *(f"{task} missing: {reason}" for task, reason in first.missing.items()),
            "best: highest mean dev accuracy",
        ],
    )
