"""Runs commands of the toolkit in forked processes, with kills and faults at chosen file operations.

A fork of a process that has imported everything starts in milliseconds, so that ten minutes hold
thousands of runs. The process that forks computes nothing itself: models and data are made in forks
too.
"""

import atexit
import io
import os
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

FAILURES = (
    "tracebacks",
    "hangs",
    "wrong successes",
    "different bytes",
    "left files",
    "executions",
    "wrong errors",
    "foreign files",
)
CANARY = "executed"
"""Payloads of hostile files create a file of this name, whose path is in the variable ``SOAK_CANARY``."""
LIMIT_S = 600.0  # far beyond any run, on a machine under any load

Action = Callable[[], object]
_EVENTS = {
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "os.chmod",
    "os.link",
    "os.symlink",
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATCHED = ("fsync", "write", "ftruncate")
_MAKING = {"open", "os.mkdir", *_PATCHED}


@dataclass(frozen=True)
class At:
    """Does something before the ``number``-th file operation (from 1) that changes something below ``folder``.

    With ``lasting`` before each from then on that makes something, and before no other, as on a
    full disk. ``noted`` is a file that gets the path of each operation. With ``reading``, files
    that are opened to be read count too.
    """

    number: int
    folder: Path
    act: Action
    lasting: bool = False
    noted: Path | None = None
    reading: bool = False


@dataclass(frozen=True)
class Result:
    """What a command left behind; ``code`` is minus the signal that killed it, ``operations`` is None for a kill."""

    code: int
    stdout: str
    stderr: str
    operations: int | None

    @property
    def error(self) -> str:
        return self.stderr.strip()[-500:]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(code: int) -> Action:
    def act() -> None:
        raise OSError(code, os.strerror(code))

    return act


class Running:
    """A command that runs."""

    def __init__(self, bench: "Workbench", pid: int, place: Path, name: str) -> None:
        self.pid = pid
        self._bench, self._place, self._name = bench, place, name

    def wait(self, limit_s: float = LIMIT_S) -> Result:
        deadline = time.monotonic() + limit_s
        while True:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                break
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                _, status = os.waitpid(self.pid, 0)
                self._bench.report("hangs", f"{self._name} after {limit_s:.0f} s")
                break
            time.sleep(0.002)
        files = [self._place / name for name in ("stdout", "stderr")]
        texts = [
            "" if path.is_symlink() else path.read_bytes().decode(errors="replace")
            for path in files
        ]
        count = self._place / "operations"
        result = Result(
            os.waitstatus_to_exitcode(status),
            *texts,
            int(count.read_text()) if count.exists() else None,
        )
        self._bench.check(self._name, result)
        return result


@dataclass
class Workbench:
    """A scratch folder with a tiny model and tiny data, and what was found so far."""

    folder: Path
    good: Path | None = None  # the folder of valid files, once ``malformed.build`` has made it
    findings: list[tuple[str, str]] = field(default_factory=list)
    n_runs: int = 0
    n_cases: Counter[str] = field(default_factory=Counter)
    n_by_command: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        from simcse_cli.commands.app import build

        build()
        for package in ("augment", "encoding", "evaluation", "prepare", "training"):
            folder = Path(str(import_module(f"simcse_cli.{package}").__file__)).parent
            for path in sorted(folder.glob("[!_]*.py")):  # forks find them imported
                with suppress(ImportError):  # an optional extra
                    import_module(f"simcse_cli.{package}.{path.stem}")
        from simcse_cli.encoding import parts

        parts.WINDOW = 8  # a small file has several

        self.folder = self.folder.resolve()
        self.canary = self.folder / CANARY
        self.model = self.folder / "model"
        self._cases = self.folder / "cases"
        self.end_case()
        self.call(self._make_data)

    def _make_data(self) -> None:
        from helpers import SENTENCES, build_tiny_model

        build_tiny_model(self.model)
        (self.folder / "in.txt").write_text("".join(f"{s}\n" for s in SENTENCES))
        rows = [
            f"{a},{b},{c}\n"
            for a, b, c in zip(SENTENCES, SENTENCES[1:], SENTENCES[2:], strict=False)
        ]
        (self.folder / "in.csv").write_text("anchor,positive,hard_negative\n" + "".join(rows))

    def report(self, failure: str, message: str) -> None:
        """Count a failure, one of ``FAILURES``."""
        assert failure in FAILURES
        self.findings.append((failure, message))

    def count(self, failure: str) -> int:
        return sum(found == failure for found, _ in self.findings)

    def new_folder(self) -> Path:
        """Return an empty folder that stays until the case is over."""
        return Path(tempfile.mkdtemp(dir=self._cases))

    def end_case(self) -> None:
        """Remove what the case left."""
        for folder in (self._cases, self.folder / "streams"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()

    def run(
        self,
        *arguments: object,
        cwd: Path,
        stdin: bytes | None = b"",
        env: Mapping[str, str] | None = None,
        at: At | None = None,
        max_file_bytes: int | None = None,
        max_memory_bytes: int | None = None,
        stdout: Path | str | None = "",
        limit_s: float = LIMIT_S,
    ) -> Result:
        """Run ``simcse ARGUMENTS`` to its end; report tracebacks, hangs and executions."""
        running = self.start(
            *arguments,
            cwd=cwd,
            stdin=stdin,
            env=env,
            at=at,
            max_file_bytes=max_file_bytes,
            max_memory_bytes=max_memory_bytes,
            stdout=stdout,
        )
        return running.wait(limit_s)

    def start(
        self,
        *arguments: object,
        cwd: Path,
        stdin: bytes | None = b"",
        env: Mapping[str, str] | None = None,
        at: At | None = None,
        max_file_bytes: int | None = None,
        max_memory_bytes: int | None = None,
        stdout: Path | str | None = "",
    ) -> Running:
        """Start ``simcse ARGUMENTS``; ``stdin`` or ``stdout`` None is a closed one, ``stdout`` may be a device."""
        words = [os.fspath(each) if isinstance(each, Path) else str(each) for each in arguments]
        place = self.folder / "streams" / str(self.n_runs)
        place.mkdir(parents=True)

        def main() -> None:
            from simcse_cli.commands.app import main as run_command

            os.environ.update(env or {}, SOAK_CANARY=str(self.canary))
            os.chdir(cwd)
            sys.argv = ["simcse", *words]
            if max_file_bytes is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
            if max_memory_bytes is not None:
                n_pages = int(Path("/proc/self/statm").read_text().split()[0])
                limit = n_pages * resource.getpagesize() + max_memory_bytes
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            _count_operations(at or At(0, cwd, lambda: None), place / "operations")
            run_command(words)

        if stdout:
            (place / "stdout").symlink_to(stdout)
        self.n_by_command[command_of(words)] += 1
        name = " ".join(
            word if len(word) < 60 else f"{word[:20]}...({len(word):,})" for word in words
        )
        return self._fork(main, place, name, stdin, is_open=stdout is not None)

    def call(self, function: Action) -> None:
        """Call a function in a fork, so that this process starts no threads."""
        place = self.folder / "streams" / f"call-{self.n_runs}"
        place.mkdir(parents=True)
        result = self._fork(function, place, "a call", b"").wait()
        if result.code:
            raise RuntimeError(result.stderr)

    def _fork(
        self, main: Action, place: Path, name: str, stdin: bytes | None, *, is_open: bool = True
    ) -> Running:
        self.n_runs += 1
        (place / "stdin").write_bytes(stdin or b"")
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be_a_command(
                main, place, closed=({0} if stdin is None else set()) | (set() if is_open else {1})
            )
        return Running(self, pid, place, name)

    def check(self, name: str, result: Result) -> None:
        """Report what no command may ever do."""
        signs = (
            "Traceback (most recent",
            "Fatal Python error",
            "Exception ignored in",
            "Segmentation fault",
        )
        if any(sign in result.stderr for sign in signs) or result.code in (
            120,
            -signal.SIGSEGV,
            -signal.SIGBUS,
        ):
            self.report("tracebacks", f"{name}: exit {result.code}: {result.error}")
        if self.canary.exists():
            self.canary.unlink()
            self.report("executions", name)


def command_of(words: list[str]) -> str:
    """Return the full name of the command that some arguments call."""
    from soak.commands import WORKING

    return next((name for name in WORKING if words[: len(name.split())] == name.split()), "others")


def _be_a_command(main: Action, place: Path, *, closed: set[int]) -> None:
    """Turn this fork into a process as a shell starts it, and never return."""
    code: object = 70
    try:
        atexit._clear()  # of the process that forked: it removes the scratch folder
        os.setsid()
        for number, stream, flags in (
            (0, "stdin", os.O_RDONLY),
            (1, "stdout", os.O_WRONLY | os.O_CREAT),
            (2, "stderr", os.O_WRONLY | os.O_CREAT),
        ):
            opened = os.open(place / stream, flags, 0o666)
            os.dup2(opened, number)
            os.close(opened)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8"
        )
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", write_through=True
        )  # type: ignore[arg-type]
        for number in closed:
            setattr(sys, ("stdin", "stdout")[number], None)
            os.close(number)
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        atexit._run_exitfuncs()
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            code = 120
    finally:
        os._exit(code if isinstance(code, int) else 1)


def _count_operations(at: At, counted: Path) -> None:
    """Count the file operations below a folder, act before one of them, and write their number at exit."""
    inside, count, is_acting = os.fspath(at.folder), 0, False
    noted: list[str] = []

    def note(path: object, event: str) -> None:
        nonlocal count, is_acting
        if is_acting or not isinstance(path, str | bytes | os.PathLike):
            return
        if not os.path.abspath(os.fsdecode(path)).startswith(inside):  # noqa: PTH100 - links are not followed
            return
        count += 1
        if at.noted is not None and event in {"open", "os.mkdir", "os.rename"}:
            noted.append(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100
        is_due = 0 < at.number <= count and event in _MAKING if at.lasting else count == at.number
        if is_due:
            is_acting = True
            try:
                at.act()
            finally:
                is_acting = False

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and (at.reading or flags & _WRITING):
                note(path, event)
        elif event in _EVENTS:
            note(arguments[0], event)
            if event == "os.rename":
                noted.append(os.path.abspath(os.fsdecode(arguments[1])))  # type: ignore[arg-type] # noqa: PTH100

    def patched(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(descriptor: int, *rest: object) -> object:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                note(Path(f"/proc/self/fd/{descriptor}").readlink(), name)
            return function(descriptor, *rest)

        return call

    if Path("/proc/self/fd").is_dir():
        for name in _PATCHED:
            setattr(os, name, patched(name, getattr(os, name)))
    sys.addaudithook(hook)
    atexit.register(lambda: counted.write_text(str(count)))
    if at.noted is not None:
        atexit.register(lambda: at.noted and at.noted.write_text("\n".join(noted)))
