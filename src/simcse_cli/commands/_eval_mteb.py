"""`simcse eval mteb`: tasks of the Massive Text Embedding Benchmark, run by its own package."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcse_cli.choices import OutputFormat
from simcse_cli.commands import options as opt
from simcse_cli.commands._encoders import OpenEncoder, open_encoder
from simcse_cli.commands._eval_checkpoints import (
    CheckpointsOption,
    CheckpointView,
    check_checkpoints,
    show_checkpoints,
)
from simcse_cli.commands._postprocess import plan_postprocess, with_postprocess
from simcse_cli.console import get_console
from simcse_cli.evaluation.options import EncoderOptions
from simcse_cli.files import check_output
from simcse_cli.report import Column, Report

if TYPE_CHECKING:
    from simcse_cli.evaluation.mteb_results import MtebResult

_SHORT_CATEGORIES = {
    "Classification": "Class.",
    "Clustering": "Clust.",
    "PairClassification": "PairClass.",
    "Reranking": "Rerank.",
    "Retrieval": "Retr.",
    "Summarization": "Summ.",
}


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


@opt.takes("encoder", EncoderOptions)
def mteb_command(
    encoder: EncoderOptions,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated mteb tasks, for example STS12,SICK-R; default: all of --benchmark."
        ),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(help='Benchmark of mteb; default: "MTEB(eng, v1)", the 56 datasets of the papers.'),
    ] = None,
    category: Annotated[
        str | None,
        typer.Option(help="Only these categories, comma-separated, for example STS,Classification."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="SIMCSE_DATA",
            help="Look here first: folders of datasets as downloaded from the Hub, or a SentEval folder.",
        ),
    ] = None,
    results_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of mteb results; finished tasks are taken from it. Default: in the user's cache."
        ),
    ] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="Run finished tasks again.")] = False,
    checkpoints: CheckpointsOption = False,
    fmt: opt.FormatOption = OutputFormat.TABLE,
    output: opt.OutputOption = None,
    force: opt.ForceOption = False,
) -> None:
    """MTEB: tasks by name, benchmark or category, with the averages of the papers (needs the extra mteb)."""
    from simcse_cli.evaluation.embedding_cache import default_cache_dir
    from simcse_cli.evaluation.mteb_adapter import DEFAULT_BENCHMARK, MtebModel, run_mteb, select_tasks

    console = get_console()
    if output is not None:
        check_output(output, force=force)
    benchmark = benchmark or DEFAULT_BENCHMARK
    chosen = select_tasks(benchmark=benchmark, tasks=_split(tasks), categories=_split(category))
    folder = results_dir or default_cache_dir() / "mteb"

    def run(opened: OpenEncoder) -> "MtebResult":
        return run_mteb(
            MtebModel(opened.name, f"{opened.digest}-{opened.precision}", opened.dim, opened.encode),
            chosen,
            results_dir=folder,
            data_dir=data_dir,
            rerun=rerun,
            progress=console,
        )

    if checkpoints:
        check_checkpoints(encoder, {})

        def score(opened: OpenEncoder) -> dict[str, Any]:
            return run(opened).to_json(**opened.facts(), benchmark=benchmark, results_dir=str(folder))

        show_checkpoints(encoder, score, mteb_view, console, fmt, output=output, force=force)
        return
    plan = plan_postprocess(encoder, force=force)
    opened = with_postprocess(
        open_encoder(encoder, console), plan, encoder, data_dir or Path(), console, force=force
    )
    result = run(opened)
    console.detail(f"mteb results are in {folder}")
    payload = result.to_json(**opened.facts(), benchmark=benchmark, results_dir=str(folder))
    reports = [task_report(result, opened.name), category_report(result, opened.name)]
    console.emit(reports, payload, fmt, output=output, force=force)


def mteb_view(result: dict[str, Any], run: str) -> CheckpointView:
    """Return how checkpoints are shown: the means of categories and over all datasets, which marks the best."""
    categories = list(result["categories"])
    columns = [Column(name, _SHORT_CATEGORIES.get(name, name), "score") for name in categories]

    def row(result: dict[str, Any]) -> dict[str, Any]:
        means = {name: result["categories"][name]["score"] for name in categories}
        return means | {"average": result["average"]}

    return CheckpointView(
        "average",
        f"MTEB along {run}, mteb {result['mteb_version']}: averages over datasets x100",
        [*columns, Column("average", "Avg.", "score")],
        row,
        [
            f"best: highest mean over the {result['n_scored']} datasets with a score of {result['n_tasks']}",
            "these are test sets for the most part: look, but choose a checkpoint by dev data",
        ],
    )


def task_report(result: "MtebResult", name: str) -> Report:
    """Return one row a task."""
    rows = [
        {
            "task": task,
            "category": result.categories[task],
            "metric": None if outcome is None else outcome.metric,
            "score": result.score(task),
            "data": None if outcome is None else outcome.data,
        }
        for task, outcome in result.tasks.items()
    ]
    columns = [
        Column("task"),
        Column("category"),
        Column("metric"),
        Column("score", name, "score"),
        Column("data"),
    ]
    notes = [f"{task} missing: {reason}" for task, reason in result.missing.items()]
    return Report(f"MTEB tasks, mteb {result.mteb_version}, main scores x100", columns, rows, notes)


def category_report(result: "MtebResult", name: str) -> Report:
    """Return the row of the papers: the mean of each category and the mean over all datasets."""
    categories = result.category_tasks()
    columns = [Column("model"), *(Column(c, _SHORT_CATEGORIES.get(c, c), "score") for c in categories)]
    row = {"model": name, "average": result.average} | {
        c: result.mean(tasks) for c, tasks in categories.items()
    }
    counts = ", ".join(
        f"{category} {sum(result.score(task) is not None for task in tasks)}/{len(tasks)}"
        for category, tasks in categories.items()
    )
    return Report(
        "MTEB averages over datasets",
        [*columns, Column("average", "Avg.", "score")],
        [row],
        [f"datasets scored: {counts}; Avg. is the mean over these {result.n_scored}, not over categories"],
    )
