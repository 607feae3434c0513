"""Start several training processes on one machine, watch them, and stop them by a signal."""

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from simcse_cli.errors import INTERRUPTED, ConfigError, TrainingError
from simcse_cli.files.code import names_code
from simcse_cli.files.locks import held_locks
from simcse_cli.files.system import apart, ask_to_stop, stop_signals, usable_cores
from simcse_cli.machine.processes import LAUNCHED
from simcse_cli.progress import Progress
from simcse_cli.results.runs import RunRecord, read_run_record
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.recipes import dump_config, without_settings

POLL_S = 0.1
GRACE_S = 10.0
"""Seconds that a process gets to report an error by itself, after another one has ended.

If wrong flags have ended the other one, process 0 gets this time, because only its messages are
shown. If the other one has lost contact with a process that failed, that process gets this time.
"""
USAGE_ERROR = 2  # exit code of wrong flags, which all processes report alike
LOST_CONTACT = 75  # exit code of a launched process that ends because another one has ended


# Features of accelerate that split a model over processes, by the variables that switch them on.
SPLITTING = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config",
}


class Stopped(Exception):  # noqa: N818 - mostly a request, not an error
    """Training ended early, on request or because its processes failed (and reported why)."""

    def __init__(self, message: str | None = None, *, exit_code: int = INTERRUPTED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def check_accelerate(environment: Mapping[str, str], progress: Progress) -> None:
    """Raise ConfigError if accelerate is set to split a model; warn if it sets a precision."""
    for variable, name in SPLITTING.items():
        if environment.get(variable, "").lower() == "true":
            raise ConfigError(
                f"accelerate is configured to use {name}, which splits a model over processes; "
                "here each process has all of it (DDP)",
                hint="choose distributed_type MULTI_GPU (`accelerate config`, or `accelerate "
                "launch --multi_gpu`); what saves memory here is --micro-batch-size",
            )
    mixed = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if mixed != "no":
        progress.warn(f"--mixed_precision {mixed} of accelerate has no effect: use --precision")


def launch(
    n_processes: int,
    arguments: Sequence[str],
    progress: Progress,
    *,
    environment: Mapping[str, str],
) -> None:
    """Run the command line ``arguments`` in several processes until all are done or one fails.

    If one of the processes fails or this one ends, all of them end. The first process shows its
    messages as they come. The messages of the others are shown only if one of them fails and the
    first does not report this. The processes share the locks of this one until the last has ended.

    After a stop on request, and after an error that a process has reported, raise ``Stopped``. If a
    process was killed, or if all say only that they lost contact, raise TrainingError.
    """
    with tempfile.TemporaryFile() as other_messages:
        workers = _start(n_processes, arguments, environment, other_messages)

        def forward(signum: int) -> None:
            for worker in workers:
                ask_to_stop(worker, signum)

        failed = None
        try:
            with stop_on_signal(forward) as asked:
                failed = first_failure(workers)
                if failed is not None and failed.returncode == USAGE_ERROR:
                    # Every process reports wrong flags, but only the report of the first is shown:
                    # let it finish.
                    with suppress(subprocess.TimeoutExpired):
                        workers[0].wait(GRACE_S)
        except KeyboardInterrupt:
            raise Stopped from None
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
        if failed is None:
            return

        # The failure was a stop on request, a kill, or an error that a process has reported.
        if asked:
            raise Stopped
        if failed.returncode < 0:
            raise TrainingError(
                f"process {workers.index(failed)} of {n_processes} was killed "
                f"({signal.Signals(-failed.returncode).name}), so the others were stopped",
                hint="continue from the last state with --resume",
            )
        first_has_reported = failed is workers[0] or workers[0].returncode == USAGE_ERROR
        if not first_has_reported:
            other_messages.seek(0)
            progress.relay(other_messages.read().decode(errors="replace"))
        if failed.returncode == LOST_CONTACT:
            raise TrainingError(
                f"the {n_processes} processes have lost contact, and none has said why",
                hint=f"`torchrun --standalone --nproc_per_node {n_processes} -m simcse_cli train "
                "...` shows the error of each; continue from the last state with --resume",
            )
        raise Stopped(exit_code=failed.returncode)


def _start(
    n_processes: int, arguments: Sequence[str], environment: Mapping[str, str], others: IO[bytes]
) -> "list[subprocess.Popen[bytes]]":
    """Start the processes; the messages of all but the first go to the file ``others``."""
    # ``environment`` may replace the number of threads, but no variable that is listed after it.
    shared = {
        "OMP_NUM_THREADS": str(max(1, usable_cores() // n_processes)),
        **environment,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(n_processes),
        "LOCAL_WORLD_SIZE": str(n_processes),
        LAUNCHED: "1",
    }
    # -P, so that no file in the current folder takes the place of a module.
    command = [sys.executable, "-P", "-m", "simcse_cli", *arguments]
    workers: list[subprocess.Popen[bytes]] = []
    for rank in range(n_processes):
        worker = subprocess.Popen(
            command,
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,  # ends with this process: see ``end_with_launcher``
            stdout=subprocess.DEVNULL,  # this process shows the result
            stderr=others if rank else None,
            # The workers share the locks of this process; Ctrl-C reaches them through it alone.
            **apart(held_locks()),
        )
        workers.append(worker)
    return workers


def launch_run(
    config: TrainConfig,
    run_dir: Path,
    n_processes: int,
    progress: Progress,
    *,
    resume: bool,
    force: bool,
) -> RunRecord:
    """Train one run in several processes, and return its record."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "settings.yaml"
        recipe.write_text(dump_config(config), encoding="utf-8")
        arguments = ["train", "--config", str(recipe), "--output", str(run_dir)]
        # Recipes may not name code, so pass it on the command line.
        for name in ("objective", "augment"):
            if names_code(value := getattr(config, name)):
                arguments += [f"--{name}", value]
        # A console says how loud it is; any other progress has the usual loudness.
        for loudness in ("quiet", "verbose"):
            if getattr(progress, loudness, False):
                arguments.append(f"--{loudness}")
        if resume:
            arguments.append("--resume")
        elif force:
            arguments.append("--force")
        launch(n_processes, arguments, progress, environment=without_settings(os.environ))
    return read_run_record(run_dir)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def first_failure(workers: "Sequence[subprocess.Popen[bytes]]") -> "subprocess.Popen[bytes] | None":
    """Wait until all processes are done or one has failed; return the first failed one, or None.

    A process that has failed because it lost contact with another one counts only after ``GRACE_S``
    seconds: the other one has this time to report its own failure.
    """
    deadline = math.inf
    while True:
        codes = [worker.poll() for worker in workers]
        are_done = None not in codes
        failed = [worker for worker, code in zip(workers, codes, strict=True) if code]
        causes = [worker for worker in failed if worker.returncode != LOST_CONTACT]
        if causes or are_done or time.monotonic() > deadline:
            return next(iter(causes or failed), None)
        if failed:
            deadline = min(deadline, time.monotonic() + GRACE_S)
        time.sleep(POLL_S)


@contextmanager
def stop_on_signal(forward: Callable[[int], None]) -> Iterator[list[bool]]:
    """Yield a list that becomes non-empty at the first stop signal (Ctrl-C or SIGTERM).

    ``forward`` is called with the first signal. A second one raises KeyboardInterrupt at once.
    Outside the main thread, signals are not handled, and the list stays empty.
    """
    stopped: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def handle(signum: int, frame: Any) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(True)
        forward(signum)

    previous = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield stopped
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
