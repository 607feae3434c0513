"""The two kinds of `prepare` that check instead of write: SentEval folders and training files."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simcse_cli.choices import OutputFormat
from simcse_cli.commands._prepare_rows import load_token_counter
from simcse_cli.console import get_console
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.prepare.corpora import training_rows
from simcse_cli.prepare.lint import EXPLANATIONS, Check, Linter
from simcse_cli.prepare.senteval import (
    UNUSED,
    WHERE_TO_FIND,
    FileCheck,
    FileState,
    check_senteval,
    expected_files,
)
from simcse_cli.report import Column, Report

_MAX_NAMED = 8


def check_senteval_folder(
    data_dir: Path,
    *,
    tasks: str | None = None,
    content: bool = True,
    fmt: OutputFormat = OutputFormat.TABLE,
    output: Path | None = None,
    force: bool = False,
) -> list[FileCheck]:
    """Check the folder, show the result, and return the state of each file.

    Raises:
        DataError: a file is not as published; names the files.
        ConfigError: an unknown task.
    """
    console = get_console()
    checks = check_senteval(data_dir, tasks=_task_names(tasks), content=content, progress=console.progress)
    bad = [check for check in checks if check.state is not FileState.OK]
    payload = {"data_dir": str(data_dir), "ok": not bad, "files": [_file_record(check) for check in checks]}
    console.emit(
        _problem_report(bad) if bad else _summary_report(checks), payload, fmt, output=output, force=force
    )
    if bad:
        named = "; ".join(
            f"{check.expected.path}: {check.state}, {check.detail}" for check in bad[:_MAX_NAMED]
        )
        more = f" and {len(bad) - _MAX_NAMED} more" if len(bad) > _MAX_NAMED else ""
        raise DataError(
            f"{data_dir}: {len(bad)} of {len(checks)} files are not as published: {named}{more}",
            hint=WHERE_TO_FIND,
        )
    return checks


def _task_names(tasks: str | None) -> list[str] | None:
    if tasks is None:
        return None
    names = [name.strip() for name in tasks.split(",")]
    known = {file.task for file in expected_files()} - {UNUSED}
    for name in names:
        if name not in known:
            raise ConfigError(f"--tasks: no task {name!r}", hint=f"tasks are {', '.join(sorted(known))}")
    return names


def _file_record(check: FileCheck) -> dict[str, Any]:
    return {
        "path": check.expected.path,
        "task": None if check.expected.task == UNUSED else check.expected.task,
        "state": check.state,
        "lines": check.lines,
        "expected_lines": check.expected.lines,
        "detail": check.detail or None,
    }


def _problem_report(bad: Sequence[FileCheck]) -> Report:
    columns = [
        Column("path", "file"),
        Column("task"),
        Column("state"),
        Column("detail", "found and expected"),
    ]
    return Report("Files that are not as published", columns, [_file_record(check) for check in bad])


def _summary_report(checks: Sequence[FileCheck]) -> Report:
    tasks = list(dict.fromkeys(check.expected.task for check in checks))
    rows = [
        {
            "task": "(not evaluated)" if task == UNUSED else task,
            "files": sum(check.expected.task == task for check in checks),
            "lines": sum(check.expected.lines for check in checks if check.expected.task == task),
        }
        for task in sorted(tasks, key=lambda task: (task == UNUSED, task))
    ]
    columns = [Column("task"), Column("files", kind="count"), Column("lines", kind="count")]
    return Report("All files are as published", columns, rows)


def lint_files(
    inputs: Sequence[str],
    *,
    tokenizer: str | None = None,
    max_length: int = 32,
    strict: bool = False,
    encoding: str = "utf-8",
    fmt: OutputFormat = OutputFormat.TABLE,
    output: Path | None = None,
    force: bool = False,
) -> Linter:
    """Lint training files and show the result; every file is taken as part of one training set.

    Raises:
        DataError: ``strict`` is on and something was found, or there are no rows.
    """
    console = get_console()
    linter = Linter(load_token_counter(tokenizer), max_length)
    with console.task("rows checked") as task:
        for row in training_rows(inputs, encoding=encoding):
            linter.check(row)
            task.advance()
    if not linter.n_rows:
        raise DataError(f"{', '.join(inputs)}: no rows")
    findings = linter.findings()
    payload = {
        "inputs": list(inputs),
        "n_rows": linter.n_rows,
        "findings": [asdict(finding) for finding in findings],
    }
    console.emit(_lint_report(linter, tokenizer), payload, fmt, output=output, force=force)
    if strict and findings:
        names = ", ".join(f"{finding.check} {finding.n_rows:,}" for finding in findings)
        raise DataError(f"lint found {names}", hint="mend the input, or leave out --strict")
    return linter


def _lint_report(linter: Linter, tokenizer: str | None) -> Report:
    found = {finding.check: asdict(finding) for finding in linter.findings()}
    checks = [check for check in Check if tokenizer is not None or check is not Check.TRUNCATED]
    clean = {"n_rows": 0, "share": 0.0, "first_row": None, "example": None}
    rows = [
        {**found.get(check, clean), "check": check.replace("_", " "), "meaning": EXPLANATIONS[check]}
        for check in checks
    ]
    columns = [
        Column("check"),
        Column("n_rows", "rows", kind="count"),
        Column("share", "%", kind="score"),
        Column("first_row", "first", kind="count"),
        Column("example"),
        Column("meaning"),
    ]
    return Report(f"Lint of {linter.n_rows:,} rows", columns, rows)
