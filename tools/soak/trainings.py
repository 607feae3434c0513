"""Kills trainings, of one process before each file operation, of two processes at any time, and continues them.

In the end the run has the bytes of an undisturbed training, except for times, and there are no
other files. Any of two processes and the command that started them may be killed: soon none is
left, nothing holds the run, and the command tells which process it was.
"""

import errno
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from soak.workbench import LIMIT_S, Action, At, Running, Workbench, fail, kill

PROCESSES = ("--num-processes", 2)
LATEST_S = 12.0  # of a kill after the start: the imports take most of it
TIMES = ("_seconds", "_per_second", "_s", "hours")
Cases = Iterator[tuple[str, Callable[[], None]]]
Content = dict[str, object]


def command(bench: Workbench, *more: object) -> tuple[object, ...]:
    dev = bench.folder / "dev.csv"
    if not dev.exists():
        dev.write_text(
            "".join(f"main\tf\t2017\t{i}\t{i % 6}.0\trow {i}\trow {i * i % 7}\n" for i in range(12))
        )
    flags = (
        "--batch-size",
        8,
        "--max-steps",
        4,
        "--eval-every",
        1,
        "--log-every",
        1,
        "--lr",
        "1e-3",
    )
    data = ("--train-file", bench.folder / "in.txt", "--dev-file", dev)
    return ("train", "--model", bench.model, *data, *flags, "--device", "cpu", "-o", "run", *more)


def cases(bench: Workbench, rng: Random) -> Cases:
    """Three cases of one process to one of two, which takes as long as a dozen of them."""
    single, several = one_process(bench, rng), two_processes(bench, rng)
    while True:
        found = [
            case
            for queue in (single, single, single, several)
            if (case := next(queue, None)) is not None
        ]
        if not found:
            return
        yield from found


def one_process(bench: Workbench, rng: Random) -> Cases:
    folder = bench.new_folder()
    result = bench.run(*command(bench), cwd=folder, at=At(0, folder, kill))
    if result.code or not result.operations:
        raise RuntimeError(f"training: {result.error}")
    expected = content(folder / "run")
    actions: dict[str, Action] = {
        "killed": kill,
        "terminated": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "out of space": fail(errno.ENOSPC),
    }
    numbers = range(1, result.operations + 1)
    for number, name in rng.sample(
        [(number, name) for number in numbers for name in actions], len(numbers) * 3
    ):
        yield (
            f"training {name} at operation {number}",
            partial(disturbed, bench, At(number, folder, actions[name]), expected),
        )


def disturbed(bench: Workbench, at: At, expected: Content) -> None:
    folder = bench.new_folder()
    result = bench.run(*command(bench), cwd=folder, at=At(at.number, folder, at.act))
    if result.code not in (0, 1, 130, 128 + signal.SIGTERM, -signal.SIGKILL):
        bench.report("wrong errors", f"exit {result.code}: {result.error}")
    go_on(bench, folder, expected)


def go_on(bench: Workbench, folder: Path, expected: Content, *more: object) -> None:
    """Give the command again, with ``--resume`` where there is something; compare what it leaves."""
    resume = ("--resume",) if (folder / "run").is_dir() else ()
    result = bench.run(*command(bench, *more), *resume, cwd=folder)
    if result.code:
        bench.report("wrong errors", f"exit {result.code} when given again: {result.error}")
        return
    found = content(folder / "run")
    for name in sorted(expected.keys() | found.keys()):
        if name not in expected:
            bench.report("left files", name)
        elif found.get(name) != expected[name]:
            bench.report("different bytes", name)


def two_processes(bench: Workbench, rng: Random) -> Cases:
    folder = bench.new_folder()
    result = bench.run(*command(bench, *PROCESSES), cwd=folder)
    if result.code:
        raise RuntimeError(f"training in two processes: {result.error}")
    expected = content(folder / "run")
    while True:
        victim, seconds = (
            rng.choice(("the command", "process 0", "process 1")),
            rng.uniform(0, LATEST_S),
        )
        yield (
            f"{victim} of two killed after {seconds:.2f} s",
            partial(one_of_two_killed, bench, victim, seconds, expected),
        )


def one_of_two_killed(bench: Workbench, victim: str, seconds: float, expected: Content) -> None:
    folder = bench.new_folder()
    running = bench.start(*command(bench, *PROCESSES), cwd=folder)
    ranks = wait_for_ranks(running, time.monotonic() + seconds)
    pid = (
        running.pid
        if victim == "the command"
        else ranks[int(victim[-1])]
        if len(ranks) == 2
        else None
    )
    if pid == running.pid and is_alive(pid):
        os.kill(pid, signal.SIGSTOP)  # it starts no more
        ranks = ranks_of(running) or ranks
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    result = running.wait()
    deadline = time.monotonic() + LIMIT_S
    while any(map(is_alive, ranks)):
        if time.monotonic() > deadline:
            bench.report("hangs", f"a process outlives {victim} by {LIMIT_S:.0f} s")
            return
        time.sleep(0.01)
    if pid in ranks and result.code not in (0, 1):
        bench.report("wrong errors", f"exit {result.code}: {result.error}")
    if pid in ranks and result.code and "was killed (SIGKILL)" not in result.stderr:
        bench.report("wrong errors", f"{victim} was killed: {result.error}")
    go_on(bench, folder, expected, *PROCESSES)


def wait_for_ranks(running: Running, until: float) -> list[int]:
    """Return the processes that a command has started when the time has come or it has ended."""
    ranks: list[int] = []
    while time.monotonic() < until and is_alive(running.pid):
        ranks = ranks_of(running) or ranks
        time.sleep(0.01)
    return ranks


def ranks_of(running: Running) -> list[int]:
    try:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in children.split()]


def is_alive(pid: int) -> bool:
    """Tell whether a process or one of its threads runs; one that has ended and was not waited for does not."""
    try:
        states = [
            path.read_text().rpartition(")")[2].split()[0]
            for path in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
    except OSError:
        return False
    return any(state != "Z" for state in states)


def content(run: Path) -> Content:
    """Return all files of a run, without what tells how long something took and when."""
    found: Content = {}
    for path in sorted(path for path in run.rglob("*") if not path.is_dir()):
        name = path.relative_to(run).as_posix()
        data = path.read_bytes()
        if name == "metrics.jsonl":
            found[name] = [without_times(json.loads(line)) for line in data.splitlines()]
        elif path.name in ("run.json", "state.json"):
            found[name] = without_times(json.loads(data))
        elif path.name == "README.md":
            found[name] = re.sub(rb"\| duration \|.*", b"", data)
        else:
            found[name] = data
    return found


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: without_times(each)
            for key, each in value.items()
            if not key.endswith(TIMES)
            and key not in ("started", "finished", "seconds", "peak_memory_bytes")
        }
    return value
