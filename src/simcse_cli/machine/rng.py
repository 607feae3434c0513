"""The state of the random generators of PyTorch and of Python."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


def has_rng_state(device: torch.device) -> bool:
    """Tell whether ``RngState`` can save the generator that draws dropout masks on a device."""
    return device.type in ("cpu", "cuda")


@dataclass(frozen=True)
class RngState:
    """The state of PyTorch's random generators for the CPU and perhaps one GPU.

    Once it is restored, the same dropout masks are drawn again.
    """

    cpu: Tensor
    cuda: Tensor | None

    @classmethod
    def of(cls, device: torch.device) -> "RngState":
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), cuda)

    def restore(self, device: torch.device) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)


@contextmanager
def kept_rng_state(device: torch.device) -> Iterator[None]:
    """Restore the generators of Python, of the CPU and of one GPU when the block ends."""
    state = RngState.of(device)
    python_state = random.getstate()
    try:
        yield
    finally:
        random.setstate(python_state)
        state.restore(device)
