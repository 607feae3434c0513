"""Fails file operations (full disk, file system read-only), cuts and changes files, closes streams, starts two at once.

A command that reports success has written the right bytes; one that fails names the reason, leaves nothing of its own
but what ``--resume`` continues, and does, once the cause is gone, what it should have done.
"""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from soak.kills import Job, compare, files, jobs, place, reference
from soak.workbench import At, Result, Workbench, fail, kill

PARTIAL = re.compile(r".*\.part(\.txt|\.json)?")


def cases(bench: Workbench, rng: Random) -> Iterator[tuple[str, Callable[[], None]]]:
    """Endless: a random job with a random fault."""
    known: dict[Job, tuple[dict[str, bytes], int]] = {}
    while True:
        for fault in (full_disk, file_limit, two_writers, changed_input, damaged_partial, streams, odd_names):
            job = rng.choice(jobs(bench))
            if fault in (changed_input, damaged_partial) and job.arguments[1] == "demo":
                continue
            if job not in known:
                known[job] = reference(bench, job)
            expected, n_operations = known[job]
            seed = rng.random()
            name = f"{fault.__name__} ({seed}): {' '.join(map(str, job.arguments))}"
            yield name, partial(fault, bench, job, expected, n_operations, Random(seed))


def again(bench: Workbench, job: Job, folder: Path, expected: dict[str, bytes], *words: object) -> None:
    """Give the command of a case again without the fault, and look at what there is then."""
    result = bench.run(*job.arguments, *job.again, *words, cwd=folder)
    if result.code and not (not job.again and "exists already" in result.stderr):
        bench.report("wrong errors", f"exit {result.code} without the fault: {result.error}")
    compare(bench, files(folder), expected)


def check_failure(
    bench: Workbench, result: Result, folder: Path, expected: dict[str, bytes], *reasons: str
) -> None:
    """Report a success with wrong files, an error without reason, and what a failure leaves."""
    found = files(folder)
    if result.code == 0:
        if found != expected:
            bench.report(
                "wrong successes",
                f"differing: {[n for n in found | expected if found.get(n) != expected.get(n)]}",
            )
        return
    if result.code != 1 or not any(reason in result.stderr for reason in reasons):
        bench.report("wrong errors", f"exit {result.code}: {result.error}")
    left = [name for name in found.keys() - expected.keys() if not PARTIAL.fullmatch(name)]
    if left:
        bench.report("left files", ", ".join(left))


def full_disk(bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random) -> None:
    folder, code = place(bench), rng.choice((errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT))
    at = At(rng.randint(1, n_operations), folder, fail(code), lasting=True)
    result = bench.run(*job.arguments, cwd=folder, at=at)
    check_failure(bench, result, folder, expected, os.strerror(code))
    again(bench, job, folder, expected)


def file_limit(
    bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random
) -> None:
    largest = max(len(content) for name, content in expected.items() if not name.startswith("in."))
    folder = place(bench)
    result = bench.run(*job.arguments, cwd=folder, max_file_bytes=rng.randint(1, largest))
    check_failure(bench, result, folder, expected, os.strerror(errno.EFBIG))
    again(bench, job, folder, expected)


def two_writers(
    bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random
) -> None:
    """Start a job while another one of the same output waits in one of its operations."""
    folder, signals = place(bench), bench.new_folder()
    ready, go = signals / "ready", signals / "go"

    def wait() -> None:
        ready.touch()
        while not go.exists():
            time.sleep(0.005)

    first = bench.start(
        *job.arguments, "--force", cwd=folder, at=At(rng.randint(1, n_operations), folder, wait)
    )
    while not ready.exists() and os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.005)
    second = bench.run(*job.arguments, "--force", cwd=folder)
    go.touch()
    one = first.wait()
    codes = {one.code, second.code}
    if codes == {1}:
        bench.report("wrong errors", f"both failed: {one.error}; {second.error}")
    if second.code and "is being written by" not in second.stderr:
        bench.report("wrong errors", second.error)
    compare(bench, files(folder), expected)


def changed_input(
    bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random
) -> None:
    folder = place(bench)
    source = folder / str(next(word for word in job.arguments if str(word).startswith("in.")))
    lines = source.read_text().splitlines(keepends=True)
    change = rng.choice(("grow", "shrink", "replace", "shuffle"))
    changed = {
        "grow": [*lines, *lines[1:4]],
        "shrink": lines[: len(lines) // 2],
        "replace": [lines[0], *lines[2:], lines[1]],
        "shuffle": [lines[0], *reversed(lines[1:])],
    }[change]

    def act() -> None:
        other = folder / "other"
        target = other if change == "replace" else source
        with target.open("w") as stream:
            stream.writelines(changed)
        if target is other:
            other.replace(source)

    result = bench.run(*job.arguments, cwd=folder, at=At(rng.randint(1, n_operations), folder, act))
    other = place(bench)
    (other / source.name).write_text("".join(changed))
    bench.run(*job.arguments, cwd=other)
    expected_now = files(other)
    if result.code == 0:
        found = {**files(folder), source.name: b""}
        if found not in ({**expected, source.name: b""}, {**expected_now, source.name: b""}):
            bench.report("wrong successes", f"{change} of the input gave rows of neither")
        return
    if "has changed while it was read" not in result.stderr:
        bench.report("wrong errors", f"exit {result.code}: {result.error}")
    again(bench, job, folder, expected_now)


def damaged_partial(
    bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random
) -> None:
    """Kill ``encode``, damage what it left, and continue it."""
    folder = place(bench)
    bench.run(*job.arguments, cwd=folder, at=At(rng.randint(1, n_operations), folder, kill))
    left = [path for path in folder.rglob("*") if PARTIAL.fullmatch(path.name)]
    if not left:
        again(bench, job, folder, expected)
        return
    path = rng.choice(left)
    content = bytearray(path.read_bytes())
    match rng.choice(("cut", "flip", "add", "remove", "garbage", "folder")):
        case "cut":
            del content[rng.randrange(len(content) + 1) :]
            path.write_bytes(content)
        case "flip" if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content)
        case "add":
            path.write_bytes(content + rng.randbytes(rng.randint(1, 3000)))
        case "remove":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()
        case _:
            path.write_bytes(rng.randbytes(rng.randint(0, 3000)))
    result = bench.run(*job.arguments, *job.again, cwd=folder)
    if result.code == 0:
        found = files(folder)
        if found != expected:
            bench.report("wrong successes", f"{path.name} damaged: {sorted(found)}")
        return
    if path.is_dir():
        path.rmdir()
    elif "--force" not in result.stderr:
        bench.report("wrong errors", f"no fix: {result.error}")
    again(bench, Job(job.arguments), folder, expected, "--force")


def streams(bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random) -> None:
    """Close or fill standard output, close standard input."""
    folder = place(bench)
    model = ("--model", bench.model, "--pooler", "avg")
    printing = rng.choice(
        (
            ("encode", "in.txt", "-o", "-", *model),
            ("prepare", "pairs", "in.csv", "-o", "-"),
            ("augment", "in.txt", "-o", "-", "--method", "delete"),
            ("augment", "in.txt", "--preview", 3, "--method", "delete"),
            ("analyze", "overlap", "in.csv"),
            ("compare", "--list", "--format", "json"),
        )
    )
    stdout = rng.choice((None, Path("/dev/full")))
    result = bench.run(*printing, cwd=folder, stdout=stdout)
    if result.code != 1 or "standard output" not in result.stderr:
        bench.report(
            "wrong errors", f"{printing[0]} with stdout {stdout}: exit {result.code}: {result.error}"
        )
    reading = rng.choice(
        (("encode", "-", "-o", "v.npy", *model), ("prepare", "sentences", "-", "-o", "s.txt"))
    )
    result = bench.run(*reading, cwd=folder, stdin=None)
    if result.code != 1 or "standard input is closed" not in result.stderr:
        bench.report("wrong errors", f"{reading[0]} with closed stdin: exit {result.code}: {result.error}")
    if set(files(folder)) != {"in.txt", "in.csv"}:
        bench.report("left files", ", ".join(files(folder)))


def odd_names(bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random) -> None:
    """Give names that are too long, and folders where files are meant."""
    folder = place(bench)
    (folder / "folder.npy").mkdir()
    words = [str(word) for word in job.arguments]
    at = words.index("-o") + 1
    suffix = Path(words[at]).suffix
    wrong = rng.choice((f"{'n' * rng.randint(216, 300)}{suffix}", "folder.npy", "in.txt/v.npy", "/dev/null"))
    if words[1] == "demo" and wrong == "folder.npy":
        return
    result = bench.run(*words[:at], wrong, *words[at + 1 :], cwd=folder, timeout=60)
    if result.code not in (1, 2):
        bench.report("wrong successes", f"-o {wrong[:60]}: exit {result.code}: {result.error}")
    if words[1] != "demo":
        source = rng.choice(("n" * 300, "folder.npy", "missing.txt", "in.txt/in.txt"))
        words = [source if word.startswith("in.") else word for word in words]
        result = bench.run(*words, cwd=folder, timeout=60)
        if result.code not in (1, 2):
            bench.report("wrong successes", f"input {source[:60]}: exit {result.code}")
    if set(files(folder)) != {"in.txt", "in.csv"}:
        bench.report("left files", ", ".join(sorted(files(folder)))[:300])
