"""Several training processes on one machine, and signals that let them save their state."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from simcse_cli.console import Console

if TYPE_CHECKING:
    from simcse_cli.commands._train_many import Train
    from simcse_cli.config import TrainConfig
    from simcse_cli.runs import RunRecord

POLL_S = 0.1
GRACE_S = 10.0  # for the first process to report by itself what another has failed with
USAGE_ERROR = 2  # exit code of what is wrong with the flags, which all processes see alike
INTERRUPTED = 130  # exit code of a run that saved its state and stopped


def launch(
    n_processes: int,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] = os.environ,
    shows_result: bool = True,
) -> int:
    """Run the same command in several processes and return the exit code of the first that fails, or 0.

    The first process shows what it does; what the others say is shown if only they fail.

    Args:
        n_processes: how many.
        arguments: of the command, ``--num-processes`` among them or not.
        environment: variables of the processes.
        shows_result: let the first process write to stdout.
    """
    shared = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // n_processes)),
        **environment,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(n_processes),
        "LOCAL_WORLD_SIZE": str(n_processes),
    }
    command = [sys.executable, "-m", "simcse_cli", *without_flag(arguments)]
    with tempfile.TemporaryFile() as others:
        workers = [
            subprocess.Popen(
                command,
                env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=None if shows_result else subprocess.DEVNULL,
                stderr=others if rank else None,
                start_new_session=True,  # Ctrl-C reaches them once, from here
            )
            for rank in range(n_processes)
        ]

        def forward(signum: int) -> None:
            for worker in workers:
                worker.send_signal(signum)

        try:
            with stop_on_signal(forward):
                failed = first_failure(workers)
                if failed is not None and failed.returncode == USAGE_ERROR:
                    wait(workers[0], GRACE_S)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        if failed is None:
            return 0
        if failed is not workers[0] and workers[0].returncode != USAGE_ERROR:
            show(others)
        return failed.returncode if failed.returncode > 0 else 128 - failed.returncode


def trains_on(n_processes: int) -> "Train":
    """Return what trains one run in several processes, from settings, and returns its record."""
    from simcse_cli.config import dump_config, without_settings
    from simcse_cli.files import atomic_text
    from simcse_cli.runs import read_run_record

    def train(
        settings: "TrainConfig", run_dir: Path, console: Console, *, resume: bool = False, force: bool = False
    ) -> "RunRecord":
        """Train into a run folder; an interrupted run has a record that says so."""
        switches = [name for name, is_on in (("--resume", resume), ("--force", force)) if is_on]
        with tempfile.TemporaryDirectory() as folder:
            recipe = Path(folder) / "settings.yaml"
            with atomic_text(recipe) as stream:
                stream.write(dump_config(settings))
            arguments = ["train", "--config", str(recipe), "--output", str(run_dir), *switches]
            environment = without_settings(os.environ)  # the settings have taken them up
            code = launch(n_processes, arguments, environment=environment, shows_result=False)
        if code not in (0, INTERRUPTED):
            raise typer.Exit(code)
        return read_run_record(run_dir)

    return train


def without_flag(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without ``--num-processes N``."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip or argument.startswith("--num-processes="):
            skip = False
        elif argument == "--num-processes":
            skip = True
        else:
            kept.append(argument)
    return kept


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def first_failure(workers: "Sequence[subprocess.Popen[bytes]]") -> "subprocess.Popen[bytes] | None":
    """Wait until all are done or one has failed, and return that one; of several, the first of the list."""
    while True:
        codes = [worker.poll() for worker in workers]
        failed = next((worker for worker, code in zip(workers, codes, strict=True) if code), None)
        if failed is not None or None not in codes:
            return failed
        time.sleep(POLL_S)


def wait(worker: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Wait until a process has ended, but no longer than this."""
    with suppress(subprocess.TimeoutExpired):
        worker.wait(seconds)


def show(messages: IO[bytes]) -> None:
    """Write what the other processes said to stderr."""
    messages.seek(0)
    sys.stderr.write(messages.read().decode(errors="replace"))


@contextmanager
def stop_on_signal(forward: Callable[[int], None] | None = None) -> Iterator[list[bool]]:
    """Yield a list that becomes non-empty on Ctrl-C or SIGTERM; a second Ctrl-C interrupts at once.

    ``forward`` is given the first signal.
    """
    stopped: list[bool] = []

    def handle(signum: int, frame: Any) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(True)
        if forward is not None:
            forward(signum)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
