"""`simcse eval mteb`: open the encoder, score it on tasks of MTEB, and show the result."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from simcse_cli.errors import kept_on_interrupt
from simcse_cli.evaluation.checkpoints import evaluate_checkpoints
from simcse_cli.evaluation.eval_encoder import EvalEncoder, keep_in_run
from simcse_cli.evaluation.fit_postprocess import open_with_postprocess
from simcse_cli.evaluation.mteb import DEFAULT_BENCHMARK, run_mteb, select_tasks
from simcse_cli.evaluation.options import EncoderOptions, MtebOptions
from simcse_cli.files.streams import default_cache_dir
from simcse_cli.progress import Progress
from simcse_cli.results.columns import AVERAGE, columns, listed
from simcse_cli.results.report import Column, Outcome, Report
from simcse_cli.results.result import SuiteResult

_SHORT_CATEGORIES = {
    "Classification": "Class.",
    "Clustering": "Clust.",
    "PairClassification": "PairClass.",
    "Reranking": "Rerank.",
    "Retrieval": "Retr.",
    "Summarization": "Summ.",
}


def eval_mteb(
    encoder: EncoderOptions, options: MtebOptions, progress: Progress, *, force: bool = False
) -> Outcome:
    """Score tasks of MTEB; ``force`` overwrites a saved post-processor."""
    benchmark = options.benchmark or DEFAULT_BENCHMARK
    tasks = select_tasks(
        benchmark=benchmark, tasks=listed(options.tasks), categories=listed(options.category)
    )
    folder = options.results_dir or default_cache_dir() / "mteb"
    again = "the same command without --rerun" if options.rerun else "the same command"

    @kept_on_interrupt(lambda: f"finished tasks are kept in {folder}; {again} continues")
    def run(opened: EvalEncoder) -> SuiteResult:
        result = run_mteb(
            opened,
            tasks,
            results_dir=folder,
            data_dir=options.data_dir,
            rerun=options.rerun,
            progress=progress,
        )
        return result.with_settings(**opened.facts(), benchmark=benchmark, results_dir=str(folder))

    if options.checkpoints:
        return evaluate_checkpoints(encoder, run, mteb_checkpoints, progress)
    opened = open_with_postprocess(encoder, options.data_dir or Path(), progress, force=force)
    result = run(opened)
    progress.detail(f"mteb results are in {folder}")
    payload = result.to_json()
    keep_in_run(encoder, payload, progress)
    categories = {task.metadata.name: task.metadata.type for task in tasks}
    return Outcome([mteb_task_report(result, categories), mteb_category_report(result)], payload)


def mteb_task_report(result: SuiteResult, categories: Mapping[str, str]) -> Report:
    """Return one row per task; ``categories`` are those of all tasks, missing ones too."""
    rows = [
        {"task": name, "category": categories[name]} | ({"score": task.score, **task.extra} if task else {})
        for name, task in result.tasks.items()
    ]
    shown = columns("task", "category", "metric", "score", "data", score=str(result.settings["model"]))
    title = f"MTEB tasks, mteb {result.settings['mteb_version']}, main scores x100"
    return Report(title, shown, rows, result.notes())


def mteb_category_report(result: SuiteResult) -> Report:
    """Return the row of the papers: the mean of each category and the mean over all datasets."""
    categories = result.figures["categories"]
    counts = ", ".join(f"{name} {each['n_scored']}/{each['n_tasks']}" for name, each in categories.items())
    n_scored = result.figures["n_scored"]
    return Report(
        "MTEB averages over datasets",
        [*columns("model"), *_category_columns(result)],
        [{"model": result.settings["model"], **_category_row(result)}],
        [f"datasets scored: {counts}; Avg. is the mean over these {n_scored}, not over categories"],
    )


def mteb_checkpoints(results: Sequence[SuiteResult], run: str) -> Report:
    """Return one row per checkpoint: the means of categories and over all datasets."""
    first = results[0]
    n_scored, n_tasks = first.figures["n_scored"], first.figures["n_tasks"]
    return Report(
        f"MTEB along {run}, mteb {first.settings['mteb_version']}: averages over datasets x100",
        _category_columns(first),
        [_category_row(result) for result in results],
        [
            f"best: highest mean over the {n_scored} datasets with a score of {n_tasks}",
            "these are test sets for the most part: look, but choose a checkpoint by dev data",
        ],
    )


def _category_columns(result: SuiteResult) -> list[Column]:
    return columns(*result.figures["categories"], AVERAGE, kind="score", **_SHORT_CATEGORIES)


def _category_row(result: SuiteResult) -> dict[str, float | None]:
    means = {name: each["score"] for name, each in result.figures["categories"].items()}
    return means | {AVERAGE: result.average}
