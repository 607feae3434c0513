"""This process among those that work together, as ``torchrun`` and ``accelerate launch`` number them."""

import atexit
import os
import threading
from collections.abc import Iterable

import torch
from torch import distributed, nn

LAUNCHED = "SIMCSE_LAUNCHED"
"""Variable of the environment of processes that ``train --num-processes`` starts."""
_LOST_SIGNS = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")


def process_rank() -> int:
    """Return the 0-based number of this process; 0 does what is done once."""
    return int(os.environ.get("RANK", "0"))


def process_count() -> int:
    """Return how many processes work together, this one included."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_launched() -> bool:
    """Tell whether ``train --num-processes`` has started this process and holds the lock of the run for it."""
    return LAUNCHED in os.environ


def end_with_launcher() -> None:
    """End this process at once when the one that started it is gone, however that ended.

    Its standard input is a pipe that only the launcher can write to, and never does: the pipe ends when the
    launcher does.
    """

    def watch() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, name="launcher", daemon=True).start()


def has_lost_contact(error: RuntimeError) -> bool:
    """Tell whether an exchange between processes failed because another one is gone."""
    if process_count() == 1 or not distributed.is_available():
        return False
    return isinstance(error, distributed.DistError) or any(sign in str(error) for sign in _LOST_SIGNS)


def leave_group_at_exit() -> None:
    """Have this process leave its process group before it ends; threads of the group would abort it."""
    atexit.register(_leave_group)


def _leave_group() -> None:
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def average_gradients(parameters: Iterable[nn.Parameter], n_processes: int) -> None:
    """Average gradients over processes, as DDP does by itself."""
    if n_processes == 1:
        return
    for parameter in parameters:
        if parameter.grad is not None:
            distributed.all_reduce(parameter.grad)
            parameter.grad /= n_processes


def average_numbers(
    *groups: dict[str, float], n_processes: int, device: torch.device
) -> tuple[dict[str, float], ...]:
    """Return numbers averaged over processes, all in one exchange; each process has the same names."""
    if n_processes == 1:
        return groups
    numbers = torch.tensor([n for group in groups for n in group.values()], device=device)
    distributed.all_reduce(numbers)
    means = iter((numbers / n_processes).tolist())
    return tuple({name: next(means) for name in group} for group in groups)
