"""Fails file operations (full disk, file system read-only), cuts and changes files, closes streams, starts two at once.

A command that reports success has written the right bytes; one that fails names the reason, leaves
nothing of its own but what ``--resume`` continues, and does, once the cause is gone, what it should
have done.
"""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from soak.commands import OFFLINE, WORKING, options_of
from soak.kills import INPUTS, Job, compare, files, jobs, place, reference
from soak.workbench import At, Result, Workbench, fail, kill

SHORT_BYTES = 2000
"""What a command may print while its files are limited."""
PARTIAL = re.compile(r".*\.part(\.txt|\.json)?")


def cases(bench: Workbench, rng: Random) -> Iterator[tuple[str, Callable[[], None]]]:
    """Endless: the faults in turn, each with all jobs in a random order."""
    known: dict[Job, tuple[dict[str, bytes], int]] = {}
    orders: list[list[Job]] = [[] for _ in FAULTS]
    while True:
        for fault, order in zip(FAULTS, orders, strict=True):
            if not order:
                fitting = [job for job in jobs() if fits(fault, job)]
                order += rng.sample(fitting, len(fitting))
            job = order.pop()
            if job not in known:
                known[job] = reference(bench, job)
            expected, n_operations = known[job]
            seed = rng.random()
            name = f"{fault.__name__} ({seed}): {' '.join(map(str, job.arguments))}"
            yield name, partial(fault, bench, job, expected, n_operations, Random(seed))


def fits(fault: Callable[..., None], job: Job) -> bool:
    """Tell whether a job has the files that a fault damages."""
    if fault is damaged_partial:
        return job.arguments[0] == "encode"
    return fault not in (changed_input, odd_names) or not {*INPUTS}.isdisjoint(job.arguments)


def again(
    bench: Workbench, job: Job, folder: Path, expected: dict[str, bytes], *words: object
) -> None:
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
    left = [
        name
        for name in found.keys() - expected.keys()
        if not PARTIAL.fullmatch(name) and ".mining" not in name
    ]
    if left:
        bench.report("left files", ", ".join(left))


def full_disk(
    bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random
) -> None:
    folder, code = place(bench), rng.choice((errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT))
    at = At(rng.randint(1, n_operations), folder, fail(code), lasting=True)
    result = bench.run(*job.arguments, cwd=folder, at=at)
    check_failure(bench, result, folder, expected, os.strerror(code))
    again(bench, job, folder, expected)


def file_limit(
    bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random
) -> None:
    folder = place(bench)
    largest = max(len(expected[name]) for name in expected.keys() - files(folder).keys())
    if largest < SHORT_BYTES:
        return
    result = bench.run(*job.arguments, cwd=folder, max_file_bytes=rng.randint(SHORT_BYTES, largest))
    check_failure(bench, result, folder, expected, os.strerror(errno.EFBIG))
    again(bench, job, folder, expected)


def interrupted(
    bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random
) -> None:
    """Press Ctrl-C before a file operation, often the last one."""
    folder = place(bench)
    number = rng.choice((rng.randint(1, n_operations), n_operations))
    act = partial(signal.raise_signal, signal.SIGINT)
    result = bench.run(*job.arguments, cwd=folder, at=At(number, folder, act))
    if result.code not in (0, 130):
        bench.report("wrong errors", f"exit {result.code} after Ctrl-C: {result.error}")
    again(bench, job, folder, expected)


def interrupted_start(
    bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random
) -> None:
    """Press Ctrl-C while a program of its own starts, most of which is imports."""
    folder, seconds = place(bench), rng.uniform(0, 2.5)
    command = [sys.executable, "-m", "simcse_cli", *job.arguments]
    running = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(seconds)
    running.send_signal(signal.SIGINT)
    error = running.communicate(timeout=120)[1]
    is_ours = (
        ", in start" in error.rpartition("Traceback")[2]
    )  # before that it is Python that starts
    if running.returncode not in (0, 130, -signal.SIGINT, 1) or ("Traceback" in error and is_ours):
        bench.report(
            "tracebacks", f"Ctrl-C after {seconds:.2f} s: exit {running.returncode}: {error[-300:]}"
        )
    if (
        running.returncode == 0
    ):  # it was faster, and cuts files into larger windows than programs of the bench
        return
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
    while (
        not ready.exists()
        and os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    ):
        time.sleep(0.005)
    is_held = any(path.read_bytes().startswith(b'{"pid": ') for path in folder.rglob(".*lock"))
    second = bench.run(*job.arguments, "--force", cwd=folder)
    go.touch()
    one = first.wait()
    codes = {one.code, second.code}
    if codes == {1}:
        bench.report("wrong errors", f"both failed: {one.error}; {second.error}")
    if is_held and second.code == 0:
        bench.report("wrong successes", "both wrote at once")
    for each in (one, second):
        if each.code and "is being written by" not in each.stderr:
            bench.report("wrong errors", each.error)
    compare(bench, files(folder), expected)


def changed_input(
    bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random
) -> None:
    folder = place(bench)
    source = folder / next(word for word in job.arguments if word in INPUTS)
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

    at = rng.choice(
        (
            At(rng.randint(1, n_operations), folder, act),
            At(rng.randint(1, 4), source, act, reading=True),
        )
    )
    result = bench.run(*job.arguments, cwd=folder, at=at)
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
    again(bench, Job(job.arguments), folder, expected_now, "--force")


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


def streams(
    bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random
) -> None:
    """Close or fill standard output, close standard input."""
    folder = place(bench)
    before = files(folder)
    name = rng.choice([name for name in WORKING if name not in OFFLINE])
    words = WORKING[name].split()
    if rng.random() < 0.5:
        at = words.index("-o")
        given = {each.name for each in options_of(name)}
        words[at : at + 2] = (
            ["--format", "json"] if "fmt" in given and name != "train" else ["-o", "-"]
        )
    stdout = rng.choice((None, Path("/dev/full")))
    result = bench.run(*name.split(), *words, cwd=folder, stdout=stdout)
    if result.code not in (0, 1, 2) or (
        result.code == 0 and words[-2:] in (["--format", "json"], ["-o", "-"])
    ):
        bench.report(
            "wrong errors", f"{name} with stdout {stdout}: exit {result.code}: {result.error}"
        )
    folder = place(bench)
    reading = rng.choice(
        (
            ("encode", "-", "-o", "v.npy", "--model", "bert"),
            ("prepare", "sentences", "-", "-o", "s.txt"),
        )
    )
    result = bench.run(*reading, cwd=folder, stdin=None)
    if result.code != 1 or "standard input is closed" not in result.stderr:
        bench.report(
            "wrong errors", f"{reading[0]} with closed stdin: exit {result.code}: {result.error}"
        )
    if files(folder).keys() != before.keys():
        bench.report("left files", ", ".join(files(folder).keys() - before.keys()))


def odd_names(
    bench: Workbench, job: Job, expected: dict[str, bytes], n_operations: int, rng: Random
) -> None:
    """Give names that are too long, and folders where files are meant."""
    folder = place(bench)
    before = files(folder)
    (folder / "folder.npy").mkdir()
    words = [*job.arguments]
    at = words.index("-o") + 1
    suffix = Path(words[at]).suffix
    wrong = rng.choice(
        (f"{'n' * rng.randint(216, 300)}{suffix}", "folder.npy", "lines.txt/v.npy", "/dev/null")
    )
    if ("." not in job.output or words[0] == "encode") and wrong in ("folder.npy", "/dev/null"):
        return  # a folder is what it writes
    result = bench.run(*words[:at], wrong, *words[at + 1 :], cwd=folder)
    if result.code not in (1, 2):
        bench.report("wrong successes", f"-o {wrong[:60]}: exit {result.code}: {result.error}")
    if {*words} & {*INPUTS}:
        source = rng.choice(("n" * 300, "folder.npy", "missing.txt", "lines.txt/x.txt"))
        words = [source if word in INPUTS else word for word in words]
        result = bench.run(*words, cwd=folder)
        if result.code not in (1, 2):
            bench.report("wrong successes", f"input {source[:60]}: exit {result.code}")
    left = files(folder).keys() - before.keys()
    if left:
        bench.report("left files", ", ".join(sorted(left))[:300])


FAULTS = (
    full_disk,
    file_limit,
    interrupted,
    interrupted_start,
    two_writers,
    changed_input,
    damaged_partial,
    streams,
    odd_names,
)
