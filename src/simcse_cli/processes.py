"""This process among those that work together, as ``torchrun`` and ``accelerate launch`` number them."""

import atexit
import os

from torch import distributed


def process_rank() -> int:
    """Return the 0-based number of this process; 0 does what is done once."""
    return int(os.environ.get("RANK", "0"))


def process_count() -> int:
    """Return how many processes work together, this one included."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def leave_group_at_exit() -> None:
    """Have this process leave its process group before it ends; threads of the group would abort it."""
    atexit.register(_leave_group)


def _leave_group() -> None:
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
