"""Copies between the memory of the CPU and that of a device."""

from typing import Any

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU to a device, without waiting for a CUDA GPU."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    if device.type == "mps" and tensor.dtype is torch.float64:
        tensor = tensor.float()  # MPS has no float64
    # Without waiting, MPS may read the memory when it holds other data (PyTorch issue 189690).
    return tensor.to(device)


class HostCopy:
    """A copy of a tensor on the CPU; a CUDA GPU goes on with other work during the copy."""

    def __init__(self, tensor: Tensor) -> None:
        self._arrival: Any = None
        if tensor.device.type == "cuda":
            self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._copy.copy_(tensor, non_blocking=True)
            # By default the event would be recorded on the current GPU, which may be another one.
            self._arrival.record(torch.cuda.current_stream(tensor.device))
        else:
            self._copy = tensor.cpu()

    def arrived(self) -> Tensor:
        """Wait for the copy and return it."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._copy
