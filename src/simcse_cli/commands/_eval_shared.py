"""What the suites of `simcse eval` share: task lists, statistics options, rows of confidence intervals."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcse_cli.console import Report
from simcse_cli.measures import find_tasks

if TYPE_CHECKING:
    from simcse_cli.evaluation.bootstrap import SuiteIntervals

SHORT_NAMES = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R", "SST2": "SST-2"}

TasksOption = Annotated[
    str | None, typer.Option("--tasks", help="Comma-separated task names, for example STS12,STSBenchmark.")
]
CiOption = Annotated[bool, typer.Option("--ci", help="Add 95% bootstrap confidence intervals.")]
SaveScoresOption = Annotated[
    Path | None,
    typer.Option("--save-scores", help="Write the prediction of every example here, as JSON lines."),
]


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
