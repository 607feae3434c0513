"""What the suites of `simcse eval` share: task lists, statistics options, rows of confidence intervals."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcse_cli.console import Report

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
    from difflib import get_close_matches

    def squeeze(name: str) -> str:
        return name.lower().replace("-", "").replace("_", "")

    by_name = {squeeze(name): name for name in known} | {
        squeeze(short): name for name, short in SHORT_NAMES.items() if name in known
    }
    chosen = []
    for name in (part.strip() for part in text.split(",") if part.strip()):
        if squeeze(name) not in by_name:
            near = get_close_matches(squeeze(name), by_name, n=1, cutoff=0.4)
            hint = f"; did you mean {by_name[near[0]]}?" if near else f"; known: {', '.join(known)}"
            raise typer.BadParameter(f"unknown task {name!r}{hint}", param_hint="--tasks")
        chosen.append(by_name[squeeze(name)])
    return tuple(dict.fromkeys(chosen))


def add_intervals(report: Report, payload: dict[str, Any], intervals: "SuiteIntervals") -> None:
    """Put the intervals under the last row of the table and into the result object."""
    for bound in ("low", "high"):
        row = {name: getattr(found, bound) for name, found in intervals.tasks.items()}
        report.rows.append(
            {report.columns[0].key: f"95% {bound}", **row, "average": getattr(intervals.average, bound)}
        )
    intervals.add_to(payload)
