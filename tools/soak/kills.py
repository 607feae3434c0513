"""Kills every writing command before each of its file operations, then gives the same command again.

The files then have the bytes of an undisturbed run, and there are no others. Where the kill came
after the last byte, a command without ``--resume`` may also report that its output exists.
"""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from soak import malformed
from soak.commands import OFFLINE, WORKING, leaves
from soak.trainings import without_times
from soak.workbench import At, Workbench, kill

INPUTS = ("lines.txt", "rows.csv", "rows.jsonl", "nli.jsonl")
ELSEWHERE = ("train", "prepare senteval", *OFFLINE)
"""Commands with a part of their own, or that end in an error here."""


@dataclass(frozen=True)
class Job:
    """A command that writes below its working folder, and what is added to continue it."""

    arguments: tuple[str, ...]
    again: tuple[str, ...] = ()

    @property
    def output(self) -> str:
        return self.arguments[self.arguments.index("-o") + 1]


def jobs() -> list[Job]:
    """Return every command that writes, and further ways of ``encode``."""
    model = "--model bert --pooler avg"
    ways = [
        f"encode lines.txt -o v.{ending} {model}"
        for ending in ("npz", "safetensors", "parquet", "jsonl")
    ]
    ways += [
        f"encode lines.txt -o v.npy --index v.idx {model}",
        f"encode lines.txt -o new/v.npz --dtype float16 {model}",
        f"encode lines.txt -o v.npy --shard 2/2 {model}",
        f"encode lines.txt -o vectors --shard 1/2 {model}",
        "prepare sentences lines.txt -o s.txt.gz --sample 5",
        *(f"{name} {words}" for name, words in WORKING.items() if name not in ELSEWHERE),
    ]
    resumable = {
        name
        for name, leaf in leaves().items()
        if any(each.name == "resume" for each in leaf.params)
    }
    return [
        Job(tuple(way.split()), ("--resume",) if _can_resume(way, resumable) else ())
        for way in ways
    ]


def _can_resume(way: str, resumable: set[str]) -> bool:
    return way.startswith(tuple(resumable)) and not way.startswith(
        "prepare pairs"
    )  # there for mined ones


def cases(bench: Workbench, rng: Random) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every job before each of its operations, all jobs in turn, over nothing and over an older output."""
    over = [job for job in jobs() if "." in job.output]
    queues = [of_job(bench, job, rng, force=False) for job in jobs()]
    queues += [of_job(bench, job, rng, force=True) for job in over]
    rng.shuffle(queues)
    while queues:
        for queue in list(queues):
            case = next(queue, None)
            if case is None:
                queues.remove(queue)
            else:
                yield case


def of_job(
    bench: Workbench, job: Job, rng: Random, *, force: bool
) -> Iterator[tuple[str, Callable[[], None]]]:
    expected, n_operations = reference(bench, job)
    name = " ".join(map(str, job.arguments)) + " --force" * force
    for number in rng.sample(range(1, n_operations + 1), n_operations):
        yield (
            f"{name} killed before operation {number}",
            partial(killed, bench, job, number, expected, force=force),
        )


def reference(bench: Workbench, job: Job) -> tuple[dict[str, bytes], int]:
    """Return the files that a job leaves when nobody disturbs it, and how many file operations it takes."""
    folder = place(bench)
    result = bench.run(*job.arguments, cwd=folder, at=At(0, folder, kill))
    if result.code or not result.operations:
        raise RuntimeError(f"{job.arguments}: {result.error}")
    return files(folder), result.operations


def place(bench: Workbench) -> Path:
    """Return a new working folder with the valid inputs."""
    folder = bench.new_folder() / "work"
    shutil.copytree(malformed.build(bench), folder, copy_function=os.link)
    for name in INPUTS:  # which may be changed in place
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).write_bytes(content)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder without what tells how long something took, and its other things."""

    def content(path: Path) -> bytes:
        if path.is_symlink():
            return b""
        data = path.read_bytes()
        if path.suffix == ".json":
            try:
                return json.dumps(without_times(json.loads(data))).encode()
            except ValueError:
                return data
        return data

    found = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return {str(path.relative_to(folder)): content(path) for path in found}


def killed(
    bench: Workbench, job: Job, number: int, expected: dict[str, bytes], *, force: bool
) -> None:
    folder = place(bench)
    words = job.arguments
    if force:
        words += ("--force",)
        for name in expected.keys() - files(folder).keys():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"older")
    result = bench.run(*words, cwd=folder, at=At(number, folder, kill))
    if result.code not in (0, -signal.SIGKILL):
        bench.report("wrong errors", f"exit {result.code}: {result.error}")
    result = bench.run(*words, *job.again, cwd=folder)
    compare(bench, files(folder), expected)
    is_there = not job.again and "exists already" in result.stderr
    if result.code and not is_there:
        bench.report("wrong errors", f"exit {result.code} when given again: {result.error}")


def compare(bench: Workbench, found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """Report files that differ from those of an undisturbed run, are missing, or have no business there."""
    for name, content in expected.items():
        if name not in found:
            bench.report("different bytes", f"{name} is missing")
        elif found[name] != content:
            bench.report("different bytes", f"{name} differs")
    left = sorted(found.keys() - expected.keys())
    if left:
        bench.report("left files", ", ".join(left))
