"""Which library multiplies matrices on this processor."""

import numpy as np
import torch
from torch import Tensor

from simcse_cli.machine.processor import CPU_CONSTANTS, Product, cpu_kind


def product_in(device: torch.device, dtype: torch.dtype) -> Product:
    """Return the way in which inference computes products of states and weights in ``dtype``.

    It is ``"linear"`` (PyTorch's ``linear``), ``"prepacked"`` (oneDNN, with weights in its own
    layout) or ``"numpy"``.
    """
    kind = cpu_kind()
    if device.type != "cpu" or kind == "other":
        return "linear"
    if dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "prepacked"
    if dtype is torch.float32:
        return CPU_CONSTANTS[kind].inference_product
    return "linear"


def multiply(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Return the product ``a b`` in the memory of ``out``, without gradient.

    PyTorch or NumPy multiplies, whichever is faster on this processor.
    """
    if out.dtype is not torch.float32 or CPU_CONSTANTS[cpu_kind()].product != "numpy":
        return torch.mm(a, b, out=out)
    numpy_product(a.detach(), b.detach(), out)
    return out


def numpy_product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write the product ``a b`` into ``out``, without a warning if it overflows, as in PyTorch."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.matmul(a.numpy(), b.numpy(), out=out.numpy())
