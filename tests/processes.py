"""Processes of this machine that start with all imports done: commands, also in shell scripts, and groups."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
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
        "prepared_process",
    ]
)


def prepare_forks() -> None:
    """Start the process that is forked, in the background."""
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("PYTHONPATH", str(Path(__file__).parent))  # of `prepared_process`
        forkserver.ensure_running()


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


_CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(call).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(call)
    sys.exit(server.recv(1)[0])
"""
_STREAMS = ("stdin", "stdout", "stderr")


@contextmanager
def command_on_path() -> Iterator[str]:
    """Yield a PATH on which `simcse` is a fork of the prepared process, with its caller's streams and variables."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        address = f"{folder}/socket"  # short: its length is limited
        program = Path(folder, "simcse")
        program.write_text(_CLIENT.format(python=sys.executable, address=address))
        program.chmod(0o700)
        server.bind(address)
        server.listen()
        Thread(target=_answer_calls, args=(server,), daemon=True).start()
        yield f"{folder}{os.pathsep}{os.environ['PATH']}"
        server.shutdown(socket.SHUT_RDWR)


def _answer_calls(server: socket.socket) -> None:
    with suppress(OSError):  # the server has been shut down
        while True:
            Thread(target=_answer, args=(server.accept()[0],), daemon=True).start()


def _answer(caller: socket.socket) -> None:
    """Run the command that a client sends, and tell it the exit code."""
    with caller:
        size, streams, _, _ = socket.recv_fds(caller, 4, 3)
        call = caller.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
        process = FORKS.Process(
            target=_run_call, args=(*json.loads(call), [DupFd(stream) for stream in streams])
        )
        process.start()
        for stream in streams:
            os.close(stream)
        process.join()
        caller.send(bytes([process.exitcode or 0]))


def _run_call(
    arguments: list[str], folder: str, environment: Mapping[str, str], streams: list[Any]
) -> None:
    for number, (name, stream) in enumerate(zip(_STREAMS, streams, strict=True)):
        os.dup2(stream.detach(), number)
        mode = "w" if number else "r"
        setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    os.chdir(folder)
    os.environ.clear()
    run_command(arguments, environment)


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
