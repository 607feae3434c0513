"""Groups of processes, with numbers as ``torchrun`` and ``accelerate launch`` give them."""

import atexit
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.rendezvous import rendezvous

from simcse_cli.arrays import Floats32
from simcse_cli.errors import ConfigError, ContactError, OutputError, reason_of
from simcse_cli.files.locks import lock_text
from simcse_cli.machine.gather import sum_detached
from simcse_cli.progress import Progress

_T = TypeVar("_T")
START_TIMEOUT = "SIMCSE_START_TIMEOUT"
"""Environment variable: how many seconds processes wait for the others to start."""
LONGEST_WAIT = timedelta(days=30)
"""How long to wait for another process, which may be scoring a model or assembling an output.

A dead process is noticed earlier, by its closed connections or by its launcher.
"""
LONGEST_DELAY_S = 60.0
"""How long to wait until another machine sees a new file; NFS takes up to 30 seconds."""
BUCKET_BYTES = 25 << 20
"""Size of the gradients averaged in one exchange, as in DDP."""
LAUNCHED = "SIMCSE_LAUNCHED"
"""Environment variable set for processes that ``train --num-processes`` starts."""
_HOW_TO_START = (
    "start the processes with torchrun or `accelerate launch`, which set it, or unset WORLD_SIZE"
)
# Parts of the error messages that follow the end of another process.
_LOST_SIGNS = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")


def process_rank() -> int:
    """Return the 0-based number of this process; process 0 does the work that is done once."""
    return _number_in("RANK", 0)


def process_count() -> int:
    """Return how many processes were started together, whether or not they form a group yet."""
    return max(1, _number_in("WORLD_SIZE", 1))


def _number_in(variable: str, default: int, hint: str = _HOW_TO_START) -> int:
    """Return the number in an environment variable; raise ConfigError if it holds no number."""
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise ConfigError(f"{variable} is {text[:40]!r}, need a whole number", hint=hint)
    return int(text)


def is_launched() -> bool:
    """Tell whether ``train --num-processes`` has started this process and holds the run's lock."""
    return LAUNCHED in os.environ


def end_with_launcher() -> None:
    """End this process when its launcher has ended.

    The launcher holds the other end of standard input, which closes with it.
    """

    def watch() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, name="launcher", daemon=True).start()


@contextmanager
def in_contact() -> Iterator[None]:
    """Raise ContactError when a collective fails because another process has ended."""
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        is_lost = distributed.is_available() and isinstance(error, distributed.DistError)
        is_lost |= any(sign in message for sign in _LOST_SIGNS)
        if process_count() == 1 or not is_lost:
            raise
        what = "another process of the group has ended"
        # A message such as "Connection reset by peer" says no more, so it is left out.
        if " by peer" not in message:
            what += f" ({reason_of(error)})"
        raise ContactError(
            what, hint="look at its messages, then continue with --resume"
        ) from error


def join_group() -> None:
    """Form a group with the processes that were started together, if it does not exist already.

    The process leaves the group at exit, since the threads of the group would abort it.
    """
    if process_count() == 1 or distributed.is_initialized():
        return

    # Check the environment first: a wrong one would fail late, with an unclear message.
    rank = process_rank()
    n_processes = process_count()
    for variable in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if variable not in os.environ:
            raise ConfigError(
                f"WORLD_SIZE is {n_processes}, but {variable} is not set", hint=_HOW_TO_START
            )
    if rank >= n_processes:
        raise ConfigError(
            f"RANK is {rank}, need a number below {n_processes} (WORLD_SIZE)", hint=_HOW_TO_START
        )
    _number_in("MASTER_PORT", 0)  # raises ConfigError if it holds no number

    backend = "gloo"
    if torch.cuda.is_available() and distributed.is_nccl_available():
        backend = "cpu:gloo,cuda:nccl"
    # Only the first meeting has a short limit; later waits may take days.
    hint = "it is the most seconds to wait for the other processes"
    limit_s = _number_in(START_TIMEOUT, 1800, hint=hint)
    try:
        store, *_ = next(rendezvous("env://", timeout=timedelta(seconds=limit_s)))
        distributed.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=n_processes,
            timeout=LONGEST_WAIT,
        )
    except distributed.DistError as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ContactError(
            f"not all of the {n_processes} processes have met at {place} within {limit_s:,} s: "
            f"{reason_of(error)}",
            hint=f"look at the machines that have not come; {START_TIMEOUT}=SECONDS waits longer",
        ) from error
    atexit.register(_leave_group)


def require_own_gpus(device: torch.device) -> None:
    """Raise ConfigError if several processes would share a GPU, or do not know which one to take.

    NCCL, by which they exchange tensors, would fail with a message about a lost process.
    """
    if device.type != "cuda" or process_count() == 1:
        return
    if "LOCAL_RANK" not in os.environ:
        raise ConfigError(
            f"WORLD_SIZE is {process_count()}, but LOCAL_RANK, by which a process takes its GPU, "
            "is not set",
            hint=_HOW_TO_START,
        )
    # Without LOCAL_WORLD_SIZE, only the processes up to this LOCAL_RANK are known.
    n_here = max(_number_in("LOCAL_WORLD_SIZE", 1), _number_in("LOCAL_RANK", 0) + 1)
    n_gpus = torch.cuda.device_count()
    if n_here > n_gpus:
        counted = "1 GPU" if n_gpus == 1 else f"{n_gpus} GPUs"
        raise ConfigError(
            f"{n_here} processes on a machine with {counted}: each needs a GPU of its own",
            hint="start no more processes than GPUs, or use --device cpu",
        )


def _leave_group() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def tell_if_alone(progress: Progress) -> None:
    """Tell the user if ``accelerate launch`` has started one process only.

    It does so on a machine without GPUs.
    """
    if process_count() > 1 or torch.cuda.is_available():
        return
    # accelerate always sets the precision, and the port only to start several processes.
    if "ACCELERATE_MIXED_PRECISION" in os.environ:
        asked_for_several = "MASTER_PORT" in os.environ
        tell = progress.warn if asked_for_several else progress.info
        tell(
            "this is one process: without GPUs `accelerate launch` starts no more; "
            "`torchrun --standalone --nproc_per_node N -m simcse_cli ...` starts N"
        )


def exchange(value: _T) -> list[_T]:
    """Return the values of all processes of the group, in rank order; all must call this."""
    if process_count() == 1:
        return [value]
    values: list[Any] = [None] * process_count()
    distributed.all_gather_object(values, value)
    return values


def add_up(rows: Floats32) -> None:
    """Replace rows by their sum over the processes of the group; all must call this."""
    if process_count() > 1:
        distributed.all_reduce(torch.from_numpy(rows))


def require_shared(output: Path) -> None:
    """Raise OutputError unless all processes see the output's lock, which the first one holds."""
    # A new file takes a while to appear on other machines, so try again until the deadline.
    first_text = exchange(lock_text(output))[0]
    deadline = time.monotonic() + LONGEST_DELAY_S
    while lock_text(output) != first_text and time.monotonic() < deadline:
        time.sleep(0.1)
    sees_lock = lock_text(output) == first_text
    (first_name, _), *others = exchange((_name_of_process(), sees_lock))
    for name, other_sees_lock in others:
        if not other_sees_lock:
            raise OutputError(
                f"{output}: {name} does not see what {first_name} writes there",
                hint="name a folder that all processes share, with -o; "
                "a full path means the same to all of them",
            )


def require_alike(facts: Mapping[str, Any]) -> None:
    """Raise ConfigError unless all processes have the same versions, settings and data."""
    (first_name, first_facts), *others = exchange((_name_of_process(), dict(facts)))
    for name, other_facts in others:
        for fact, value in first_facts.items():
            if other_facts.get(fact) != value:
                raise ConfigError(
                    f"{name} has {fact} {other_facts.get(fact)}, {first_name} has {value}",
                    hint="start all processes by the same command, "
                    "with the same versions, variables and files",
                )


def _name_of_process() -> str:
    return f"process {process_rank()} (on {socket.gethostname()})"


def average_gradients(parameters: Iterable[nn.Parameter], n_processes: int) -> None:
    """Average gradients over processes as DDP does: in order, and many in one exchange."""
    if n_processes == 1:
        return
    # A bucket is exchanged when the next gradient does not fit into it or has another dtype.
    bucket: list[Tensor] = []
    n_bytes = 0
    for gradient in [parameter.grad for parameter in parameters if parameter.grad is not None]:
        n_bytes += gradient.nbytes
        if bucket and (n_bytes > BUCKET_BYTES or gradient.dtype != bucket[0].dtype):
            _average(bucket, n_processes)
            bucket = []
            n_bytes = gradient.nbytes
        bucket.append(gradient)
    if bucket:
        _average(bucket, n_processes)


def _average(gradients: list[Tensor], n_processes: int) -> None:
    """Average gradients of one dtype over processes, in place, as one flat tensor."""
    parts = [gradient.flatten() for gradient in gradients]
    flat = torch.cat(parts) if len(parts) > 1 else parts[0]
    distributed.all_reduce(flat)
    flat /= n_processes
    averages = torch.split(flat, [part.numel() for part in parts])
    for gradient, average in zip(gradients, averages, strict=True):
        gradient.copy_(average.view_as(gradient))


def average_tensor(tensor: Tensor, n_processes: int) -> Tensor:
    if n_processes == 1:
        return tensor
    return sum_detached(tensor) / n_processes
