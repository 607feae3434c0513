"""Kills every writing command before each of its file operations, then gives the same command again.

What it leaves then has the bytes of a run that nobody killed, and nothing else lies there. Where the kill came after
the last byte, a command without ``--resume`` may also say that its output exists.
"""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from soak.workbench import At, Workbench, kill

DEMO = ("--sentences", 20, "--triplets", 12, "--documents", 3, "--pairs", 8)


@dataclass(frozen=True)
class Job:
    """A command that writes below its working folder, and what is added to continue it."""

    arguments: tuple[object, ...]
    again: tuple[object, ...] = ()


def jobs(bench: Workbench) -> list[Job]:
    text, table = "in.txt", "in.csv"
    model = ("--model", bench.model, "--pooler", "avg")
    endings = ("npy", "npz", "safetensors", "parquet", "jsonl")
    index = ("--index", "v.idx")
    return [
        *(Job(("encode", text, "-o", f"v.{ending}", *model), ("--resume",)) for ending in endings),
        Job(("encode", text, "-o", "v.npy", *index, *model), ("--resume",)),
        Job(("encode", text, "-o", "new/v.npz", "--dtype", "float16", *model), ("--resume",)),
        Job(("encode", text, "-o", "v.npy", "--shard", "2/2", *model), ("--resume",)),
        Job(("encode", text, "-o", "vectors", "--shard", "1/2", *model), ("--resume",)),
        Job(("prepare", "sentences", text, "-o", "s.txt")),
        Job(("prepare", "sentences", text, "-o", "s.txt.gz", "--sample", 5)),
        Job(("prepare", "pairs", table, "-o", "p.csv")),
        Job(("prepare", "neighbours", text, "-o", "n.jsonl")),
        Job(("prepare", "demo", "-o", "demo", *DEMO)),
        Job(("augment", text, "-o", "a.csv", "--method", "crop")),
    ]


def cases(bench: Workbench, rng: Random) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every job before each of its operations, all jobs in turn, over nothing and over an older output."""
    queues = [of_job(bench, job, rng, force=force) for force in (False, True) for job in jobs(bench)]
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
    """Return a new working folder with the inputs of the jobs."""
    folder = bench.new_folder()
    for name in ("in.txt", "in.csv"):
        (folder / name).write_bytes((bench.folder / name).read_bytes())
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, and its other things that have no content."""
    found = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return {str(path.relative_to(folder)): b"" if path.is_symlink() else path.read_bytes() for path in found}


def killed(bench: Workbench, job: Job, number: int, expected: dict[str, bytes], *, force: bool) -> None:
    folder = place(bench)
    words = job.arguments
    if force:
        words += ("--force",)
        for name in expected.keys() - {"in.txt", "in.csv"}:
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
