"""Shell completion of shipped names and run folders; for other values the shell offers files."""

from collections.abc import Iterable
from pathlib import Path

from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS, ObjectiveName

RUN_FILES = ("*/run.json", "*/*/run.json")


def recipe(incomplete: str) -> list[str]:
    from simcse_cli.settings.recipes import shipped_recipes

    return _starting(incomplete, shipped_recipes())


def objective(incomplete: str) -> list[str]:
    return _starting(incomplete, ObjectiveName)


def sweep(incomplete: str) -> list[str]:
    from simcse_cli.settings.recipes import shipped_recipes

    return _starting(incomplete, shipped_recipes("sweeps"))


def model(incomplete: str) -> list[str]:
    from simcse_cli.models.resolve import ALIASES

    return _starting(incomplete, ALIASES) + run(incomplete)


def table(incomplete: str) -> list[str]:
    from simcse_cli.comparison.published import table_ids

    return _starting(incomplete, table_ids())


def tasks(incomplete: str) -> list[str]:
    """Return, for each task that may come next, the list typed so far with this task at its end."""
    complete, comma, _ = incomplete.rpartition(",")
    next_tasks = [task for task in (*STS_TASKS, *TRANSFER_TASKS) if task not in complete.split(",")]
    return _starting(incomplete, (f"{complete}{comma}{task}" for task in next_tasks))


def run(incomplete: str) -> list[str]:
    """Return the run folders up to two levels below the folder typed so far."""
    typed = Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    folders = sorted(str(record.parent) for pattern in RUN_FILES for record in folder.glob(pattern))
    return _starting(incomplete, folders)


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return the names that start with the text typed so far."""
    return [name for name in names if name.startswith(incomplete)]
