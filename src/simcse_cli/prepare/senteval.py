"""``prepare senteval``: compare a SentEval folder with the published one, file by file.

The published folder is the one that the SimCSE repository downloads. The digests ignore white space
at the ends of lines, so a file with other line ends passes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from simcse_cli.data.senteval import ExpectedFile, expected_files, resolve_senteval_dir
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.progress import Progress
from simcse_cli.results.columns import columns
from simcse_cli.results.report import Outcome, Report

_WHERE_TO_FIND = (
    "get the folder with SentEval/data/downstream/download_dataset.sh of the SimCSE repository "
    "(princeton-nlp/SimCSE), or data/downstream/get_transfer_data.bash of facebookresearch/SentEval"
)
_UNUSED = "-"  # the task of files that no evaluation reads
_MAX_NAMED = 8


class FileState(StrEnum):
    OK = "ok"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    WRONG_LENGTH = "wrong length"
    MALFORMED = "malformed"
    ALTERED = "altered"


@dataclass(frozen=True)
class FileCheck:
    """The state of one file; ``detail`` says what was found and what was expected."""

    expected: ExpectedFile
    state: FileState
    lines: int | None = None
    detail: str = ""


def check_senteval(
    data_dir: Path | str,
    *,
    tasks: Sequence[str] | None = None,
    content: bool = True,
    progress: Progress,
) -> list[FileCheck]:
    """Return the state of every expected file, or only of the files of the given tasks.

    If ``content`` is true, the digests of the files are compared too.
    """
    root = resolve_senteval_dir(data_dir)
    expected = [file for file in expected_files() if tasks is None or file.task in tasks]
    with progress.task("checking files", total=len(expected)) as task:
        checks = []
        for file in expected:
            checks.append(_check_file(root / file.path, file, content))
            task.advance()
    return checks


def _check_file(path: Path, expected: ExpectedFile, content: bool) -> FileCheck:
    """Return the state of one file; the first check that fails decides."""
    if not path.exists():
        detail = f"expected {expected.lines:,} lines"
        return FileCheck(expected, FileState.MISSING, detail=detail)
    digest = hashlib.sha256()
    n_lines = 0
    malformed = ""
    try:
        with path.open("rb") as stream:
            for n_lines, line in enumerate(map(bytes.rstrip, stream), start=1):
                digest.update(line + b"\n")
                n_columns = line.count(b"\t") + 1
                if n_columns < expected.columns and not malformed:
                    wanted = f"expected at least {expected.columns}"
                    malformed = f"line {n_lines}: {n_columns} columns, {wanted}"
    except OSError as error:
        return FileCheck(expected, FileState.UNREADABLE, detail=error.strerror or str(error))
    if n_lines != expected.lines:
        detail = f"{n_lines:,} lines, expected {expected.lines:,}"
        return FileCheck(expected, FileState.WRONG_LENGTH, n_lines, detail)
    if malformed:
        return FileCheck(expected, FileState.MALFORMED, n_lines, malformed)
    if content and digest.hexdigest() != expected.sha256:
        detail = f"content digest {digest.hexdigest()[:12]}…, expected {expected.sha256[:12]}…"
        return FileCheck(expected, FileState.ALTERED, n_lines, detail)
    return FileCheck(expected, FileState.OK, n_lines)


def check_task_names(tasks: str) -> list[str]:
    names = [name.strip() for name in tasks.split(",")]
    known = {file.task for file in expected_files()} - {_UNUSED}
    for name in names:
        if name not in known:
            hint = f"tasks are {', '.join(sorted(known))}"
            raise ConfigError(f"--tasks: no task {name!r}", hint=hint)
    return names


def require_published(data_dir: Path, checks: Sequence[FileCheck]) -> None:
    """Raise DataError, with the names of the files, if any file is not as published."""
    bad = _not_as_published(checks)
    if bad:
        named = [f"{file.expected.path}: {file.state}, {file.detail}" for file in bad[:_MAX_NAMED]]
        what = f"{data_dir}: {len(bad)} of {len(checks)} files are not as published: "
        what += "; ".join(named)
        if len(bad) > _MAX_NAMED:
            what += f" and {len(bad) - _MAX_NAMED} more"
        raise DataError(what, hint=_WHERE_TO_FIND)


def _not_as_published(checks: Sequence[FileCheck]) -> list[FileCheck]:
    return [check for check in checks if check.state is not FileState.OK]


def senteval_outcome(data_dir: Path, checks: Sequence[FileCheck]) -> Outcome:
    """Return all states as JSON, with a table of the files that are not as published.

    If all files are as published, the table shows the tasks instead.
    """
    bad = _not_as_published(checks)
    payload = {"data_dir": str(data_dir), "ok": not bad, "files": list(map(_file_record, checks))}
    if bad:
        shown = columns("path", "task", "state", "detail", path="file", detail="found and expected")
        table = Report("Files that are not as published", shown, list(map(_file_record, bad)))
        return Outcome([table], payload)
    lines_by_task: dict[str, list[int]] = {}  # the number of lines of each file
    for check in checks:
        lines_by_task.setdefault(check.expected.task, []).append(check.expected.lines)
    unused = lines_by_task.pop(_UNUSED, None)
    tasks = sorted(lines_by_task.items())
    if unused is not None:
        tasks.append(("(not evaluated)", unused))
    rows = [{"task": task, "files": len(lines), "lines": sum(lines)} for task, lines in tasks]
    shown = [*columns("task"), *columns("files", "lines", kind="count")]
    return Outcome([Report("All files are as published", shown, rows)], payload)


def _file_record(check: FileCheck) -> dict[str, Any]:
    return {
        "path": check.expected.path,
        "task": None if check.expected.task == _UNUSED else check.expected.task,
        "state": check.state,
        "lines": check.lines,
        "expected_lines": check.expected.lines,
        "detail": check.detail or None,
    }
