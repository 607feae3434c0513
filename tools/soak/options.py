"""Gives every option of the command tree odd values, and puts foreign things under every name that a command uses.

The cases follow from the tree of commands: a new option gets its own. No value may end in a
traceback, a hang or a success that is none, and whatever was there before a command is there
unchanged after it.
"""

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from soak import malformed
from soak.commands import OFFLINE, WORKING, leaves, options_of, with_value
from soak.faults import PARTIAL
from soak.workbench import At, Result, Workbench, kill

Cases = Iterator[tuple[str, Callable[[], None]]]
MEMORY = 6 << 30
"""Address space that a command may add to that of the process it is forked from."""
SECONDS = 120.0

NUMBERS = ("0", "-1", "1e9", "1000000000", "1" + "0" * 22, "nan", "inf", "", "x")
MARKUP = "<b>soak</b>&amp;\\soak{}$_|`=1+1: - {{ soak }} [red]soak[/red] %s"
CONTROL = "so\x1b[31mak\x07\u202e\r\x00k"
TEXTS = (
    "",
    " ",
    "x",
    MARKUP,
    CONTROL.replace("\x00", ""),
    "é" * 40_000,
    "a:b:c",
    "=",
    ",",
    "../../x",
)
PATHS = (
    "empty",
    "folder",
    "link",
    "link-to-folder",
    "dangling",
    "fifo",
    "picture",
    "/dev/full",
    "/dev/null",
    "/proc/x/y",
    "missing/deep/x",
    "lines.txt/x",
    "n" * 300,
    "m/" * 3000 + "x",
)
KEPT = re.compile(
    r".*/results|out\.csv\.mining|out/checkpoint|out/(config\.yaml|metrics\.jsonl|run\.json)|out$"
)
"""What ``--resume`` continues."""
ABSENT = ("dangling", "/proc/x/y", "missing/deep/x", "lines.txt/x", "n" * 300, "m/" * 3000 + "x")
CHOICES = ("", "x", "avg", "1e9", CONTROL.replace("\x00", ""))


def cases(bench: Workbench, rng: Random) -> Cases:
    """Every odd value of every option, and foreign things under every name, in turn; then again."""
    while True:
        values = [
            (name, parameter, value)
            for name in leaves()
            for parameter in options_of(name)
            for value in values_of(parameter)
        ]
        rng.shuffle(values)
        foreign = of_foreign(bench, rng)
        for i, (name, parameter, value) in enumerate(values):
            shown = value if len(value) < 60 else f"{value[:20]}... ({len(value):,} characters)"
            yield (
                f"{name} {parameter.name}={shown!r}",
                partial(odd_value, bench, name, parameter, value),
            )
            if i % 4 == 0 and (case := next(foreign, None)) is not None:
                yield case


def values_of(parameter: Any) -> tuple[str, ...]:
    """Return the odd values for a parameter, by its placeholder in ``--help``."""
    kind = parameter.metavar or "FILE"
    if kind in ("N", "X"):
        return NUMBERS
    if kind == kind.lower() and "|" in kind:
        return CHOICES
    return (*PATHS, *TEXTS)


def working_folder(bench: Workbench) -> Path:
    """Return a new folder with the valid files, and with odd things to name."""
    folder = bench.new_folder() / "work"
    shutil.copytree(malformed.build(bench), folder, copy_function=os.link)
    (folder / "empty").touch()
    (folder / "picture").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(2000))
    (folder / "folder").mkdir()
    (folder / "folder" / "notes").write_text("mine")
    (folder / "link").symlink_to("lines.txt")
    (folder / "link-to-folder").symlink_to("folder")
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "fifo")
    return folder


def odd_value(bench: Workbench, name: str, parameter: Any, value: str) -> None:
    folder = working_folder(bench)
    before = state_of(folder)
    writer = feed(folder / "fifo") if value == "fifo" else None
    result = bench.run(
        *with_value(name, parameter, value), cwd=folder, limit_s=SECONDS, max_memory_bytes=MEMORY
    )
    if writer is not None:
        os.kill(writer, 9)
        os.waitpid(writer, 0)
    judge(bench, result, folder, before)
    is_path = parameter.metavar in ("FILE", "FOLDER") and value in ABSENT
    if result.code == 0 and is_path and not os.path.lexists(folder / value):
        bench.report("wrong successes", f"{value[:40]} was neither read nor written")


def feed(fifo: Path) -> int:
    """Start a process that writes a line into a pipe once somebody reads it; return its number."""
    pid = os.fork()
    if pid == 0:
        try:
            fifo.write_text("a line\n")
        finally:
            os._exit(0)
    return pid


def state_of(folder: Path) -> dict[str, tuple[int, ...] | str]:
    """Return facts of everything below a folder that change with its content."""
    found: dict[str, tuple[int, ...] | str] = {}
    for path in folder.rglob("*"):
        facts = path.lstat()
        is_file = stat.S_ISREG(facts.st_mode)
        own = (facts.st_mode, facts.st_size * is_file, facts.st_mtime_ns * is_file)
        found[str(path.relative_to(folder))] = str(path.readlink()) if path.is_symlink() else own
    return found


def judge(
    bench: Workbench,
    result: Result,
    folder: Path,
    before: dict[str, tuple[int, ...] | str],
    *,
    is_data: bool = False,
) -> None:
    """Report what is wrong with the end of a command, and with what it left."""
    if result.code not in (0, 1, 2, 3):
        bench.report("wrong errors", f"exit {result.code}: {result.error}")
    if result.code and not result.stderr.strip() and not result.stdout.strip():
        bench.report("wrong errors", f"exit {result.code} without a word")
    shown = result.stderr + ("" if is_data else result.stdout)  # CSV holds texts as they are
    if any(sign in shown for sign in ("\x1b", "\x07", "\u202e")):
        bench.report("wrong errors", f"a terminal would obey {result.error!r}")
    after = state_of(folder)
    touched = [path for path, facts in before.items() if after.get(path) != facts]
    if touched:
        bench.report(
            "foreign files", f"{', '.join(touched[:5])} changed, exit {result.code}: {result.error}"
        )
    made = after.keys() - before.keys()
    left = [path for path in made if not PARTIAL.fullmatch(path) and not KEPT.match(path)]
    if result.code in (1, 2) and left and "files are not as published" not in result.stderr:
        bench.report(
            "left files", f"{', '.join(sorted(left)[:5])}, exit {result.code}: {result.error}"
        )


def of_foreign(bench: Workbench, rng: Random) -> Cases:
    """A foreign file, folder or link under each name that a command makes."""
    names = [name for name in WORKING if name not in OFFLINE]
    rng.shuffle(names)
    for name in names:
        folder = working_folder(bench)
        before = state_of(folder)
        made = folder / "made"
        result = bench.run(
            *name.split(), *WORKING[name].split(), cwd=folder, at=At(0, folder, kill, noted=made)
        )
        if result.code:
            bench.report(
                "wrong errors", f"{name} as it should be: exit {result.code}: {result.error}"
            )
            continue
        paths = [Path(line) for line in made.read_text().splitlines()]
        tops = {
            str(path.relative_to(folder)) for path in paths if path.is_relative_to(folder)
        } - before.keys()
        # Names with a random part cannot be taken beforehand.
        for path in sorted(
            each for each in tops if each not in (".", "made") and "tmp" not in each
        ):
            for kind in ("file", "folder", "link", "link to a folder"):
                yield (
                    f"{name} with a foreign {kind} at {path}",
                    partial(foreign, bench, name, path, kind),
                )


def foreign(bench: Workbench, name: str, path: str, kind: str) -> None:
    folder = working_folder(bench)
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "file":
            target.write_text("mine")
        case "folder":
            target.mkdir()
            (target / "notes").write_text("mine")
        case "link":
            target.symlink_to(folder / "lines.txt")
        case _:
            target.symlink_to(folder / "folder")
    before = state_of(folder)
    result = bench.run(*name.split(), *WORKING[name].split(), cwd=folder, limit_s=SECONDS)
    judge(bench, result, folder, before)
