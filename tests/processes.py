"""Processes of this machine that start with all imports done: commands, and functions on a group of several."""

import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch import distributed

from simcse_cli.machine.processes import join_group
from simcse_cli.training import launch

# They are forked from a process that has imported what runs need, and in which nothing else has
# happened.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "simcse_cli.commands.app",
        "simcse_cli.commands.train",
        "simcse_cli.encoding.encode_file",
        "simcse_cli.training.run",
        "sentence_transformers",
        "transformers.models.bert.modeling_bert",
        "transformers.models.bert.tokenization_bert",
    ]
)


def run_command(arguments: list[str], environment: Mapping[str, str]) -> None:
    """Run the console command with these variables, as a process of its own does."""
    from simcse_cli.commands.app import main

    os.environ |= environment
    torch.set_num_threads(1)
    sys.argv[1:] = arguments
    main()


def start_command(
    *arguments: object, stderr: Path | None = None, prepare: Callable[[], None] | None = None
) -> Any:
    """Start the console command, after a call of ``prepare``; the processes that it launches are forks too."""
    words = [str(argument) for argument in arguments]
    process = FORKS.Process(target=_start, args=(words, dict(os.environ), stderr, prepare))
    process.start()
    return process


def _start(
    arguments: list[str],
    environment: Mapping[str, str],
    stderr: Path | None,
    prepare: Callable[[], None] | None,
) -> None:
    if stderr is not None:
        os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    launch.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": _fork})  # type: ignore[attr-defined]
    if prepare is not None:
        prepare()
    run_command(arguments, environment)


def _fork(
    command: list[str], *, env: Mapping[str, str], pass_fds: tuple[int, ...], **streams: Any
) -> "subprocess.Popen[bytes]":
    """Start ``python -P -m simcse_cli ...`` as a fork that does not execute Python anew."""

    def run_instead() -> NoReturn:
        code: object = 1
        try:
            for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
                if descriptor not in (0, 1, 2, *pass_fds):
                    with suppress(OSError):
                        os.close(descriptor)
            run_command(command[4:], env)
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(int(str(code)))

    return subprocess.Popen(command, env=env, pass_fds=pass_fds, preexec_fn=run_instead, **streams)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def run_on_processes(
    worker: Callable[..., Any], folder: Path, *args: Any, n_processes: int = 2
) -> list[Any]:
    """Return ``worker(rank, *args)`` of each rank of a group; the worker must be importable by name."""
    port = str(launch.free_port())
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(n_processes)}
    torch.multiprocessing.start_processes(
        _enter, (worker, str(folder), address, args), nprocs=n_processes, start_method="forkserver"
    )
    return [torch.load(folder / f"result-{rank}.pt") for rank in range(n_processes)]


def _enter(
    rank: int,
    worker: Callable[..., Any],
    folder: str,
    address: dict[str, str],
    args: tuple[Any, ...],
) -> None:
    os.environ |= address | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "ACCELERATE_USE_CPU": "true",
    }
    torch.set_num_threads(1)
    join_group()
    try:
        torch.save(worker(rank, *args), Path(folder) / f"result-{rank}.pt")
    finally:
        distributed.destroy_process_group()
