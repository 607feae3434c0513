"""What the suites of `simcse eval` share: task lists, statistics options, rows of confidence intervals."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcse_cli.console import Console
from simcse_cli.metrics import find_tasks
from simcse_cli.report import Report

if TYPE_CHECKING:
    from simcse_cli.commands._encoders import OpenEncoder
    from simcse_cli.evaluation.bootstrap import SuiteIntervals
    from simcse_cli.evaluation.embedding_cache import EvaluationCache

SHORT_NAMES = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R", "SST2": "SST-2"}

TasksOption = Annotated[
    str | None, typer.Option("--tasks", help="Comma-separated task names, for example STS12,STSBenchmark.")
]
CiOption = Annotated[bool, typer.Option("--ci", help="Add 95% bootstrap confidence intervals.")]
SaveScoresOption = Annotated[
    Path | None,
    typer.Option("--save-scores", help="Write the prediction of every example here, as JSON lines."),
]

CacheDirOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        envvar="SIMCSE_CACHE",
        help="Where vectors and finished tasks are kept; default: simcse in the user's cache folder.",
    ),
]
CacheOption = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Keep and reuse vectors and finished tasks.")
]


def cache_folder(cache_dir: Path | None, is_on: bool, console: Console) -> Path | None:
    """Return where vectors and finished tasks are kept; None keeps nothing."""
    from simcse_cli.evaluation.embedding_cache import default_cache_dir

    folder = (cache_dir or default_cache_dir()) if is_on else None
    if folder is not None:
        console.detail(f"vectors and finished tasks are kept below {folder}")
    return folder


def open_cache(folder: Path | None, opened: "OpenEncoder", *, keep_vectors: bool = True) -> "EvaluationCache":
    """Return the part of the cache that belongs to an encoder."""
    from simcse_cli.evaluation.embedding_cache import EvaluationCache

    return EvaluationCache(folder, f"{opened.digest}/{opened.precision}", keep_vectors=keep_vectors)


def parse_tasks(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tasks of a comma-separated list, case and the short names STS-B, SICK-R, SST-2 accepted.

    Raises:
        typer.BadParameter: a name is unknown; the nearest one is suggested.
    """
    if text is None:
        return known
    try:
        return find_tasks(text, known)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--tasks") from None


def add_intervals(report: Report, payload: dict[str, Any], intervals: "SuiteIntervals") -> None:
    """Put the intervals under the last row of the table and into the result object."""
    for bound in ("low", "high"):
        row = {name: getattr(found, bound) for name, found in intervals.tasks.items()}
        report.rows.append(
            {report.columns[0].key: f"95% {bound}", **row, "average": getattr(intervals.average, bound)}
        )
    intervals.add_to(payload)
