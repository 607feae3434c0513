"""Exchange tensors between processes, with gradients.

Each process computes its share of one global loss, and the training loop averages the gradients of
the parameters over the processes (DDP). Backward passes here *sum* the gradients that all processes
contribute to a tensor. So the averaged gradient is the true gradient of the mean loss over
processes. If every process computes the full loss on gathered rows, one process with the global
batch has exactly this gradient.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional
from torch.torch_version import TorchVersion

from simcse_cli.machine.precision import wide


def n_processes() -> int:
    """Return how many processes the group has; 1 if there is no group."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def sum_detached(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, without gradients."""
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total)
    return total


class _SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return sum_detached(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return sum_detached(gradients[0])


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        # All-gather needs tensors of one size, so pad the rows.
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        received = [torch.empty_like(padded) for _ in counts]
        distributed.all_gather(received, padded)
        ctx.counts = counts
        return torch.cat([part[:count] for part, count in zip(received, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0]
        # A sum of many values in 16 bits would lose precision.
        own_gradient = _sum_own_rows(torch.split(wide(gradient), ctx.counts))
        return own_gradient.to(gradient.dtype), None


def _sum_own_rows(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum, over all processes, of their parts for this process.

    All processes call this. In the ``parts`` of each, part i is for process i.
    """
    if _scatters(parts[0].device):
        # Reduce-scatter needs parts of one size, so zero rows are added at the end of each. ``pad``
        # takes a pair of sizes for each dimension in reverse order, so that of the rows comes last.
        most = max(map(len, parts))
        padded = []
        for part in parts:
            sizes = (0, 0) * (part.ndim - 1) + (0, most - len(part))
            padded.append(functional.pad(part, sizes))
        total = torch.empty_like(padded[0])
        distributed.reduce_scatter(total, padded)
        return total[: len(parts[distributed.get_rank()])]
    # Without reduce-scatter, sum the parts for all processes and keep the part for this one.
    everything = torch.cat(list(parts))
    distributed.all_reduce(everything)
    return torch.split(everything, list(map(len, parts)))[distributed.get_rank()]


def _scatters(device: torch.device) -> bool:
    """Tell whether the process group has reduce-scatter on a device (gloo: from PyTorch 2.8 on).

    On a machine with GPUs, the group is of gloo for the CPU and of NCCL for the GPUs.
    """
    is_gloo = device.type == "cpu" or distributed.get_backend() == "gloo"
    return not is_gloo or TorchVersion(torch.__version__) >= "2.8"


def sum_over_processes(tensor: Tensor) -> Tensor:
    """Return the sum over processes, with gradients; all tensors must have the same shape."""
    if n_processes() == 1:
        return tensor
    total: Tensor = _SumOverProcesses.apply(tensor)  # type: ignore[no-untyped-call]
    return total


def share_of_mean(total: Tensor, count: float | Tensor) -> Tensor:
    """Return this process's share of a global mean: ``n_processes * total / sum of counts``.

    ``total`` is the sum of the ``count`` values of this process. The global mean is the mean of the
    shares, even if the processes have different counts. If no process has a value, the share is 0.
    """
    if isinstance(count, Tensor):
        local_count = count.to(total.dtype)
    else:
        local_count = torch.full_like(total, count)
    return n_processes() * total / sum_over_processes(local_count).clamp_min(1.0)


def mean_over_processes(row_values: Tensor) -> Tensor:
    """Return this process's share of the mean of rows; on one process, ``row_values.mean()``."""
    return share_of_mean(row_values.sum(), row_values.numel())


def row_counts(rows: Tensor) -> list[int]:
    """Return the number of rows that each process has, in rank order."""
    if n_processes() == 1:
        return [len(rows)]
    local = torch.tensor([len(rows)], device=rows.device)
    received = [torch.empty_like(local) for _ in range(n_processes())]
    distributed.all_gather(received, local)
    return [int(count) for count in received]


def gather_views(
    views: Sequence[Tensor], counts: Sequence[int], *, original_scaling: bool = False
) -> list[Tensor]:
    """Return each view ``(B, D)`` with the rows of all processes, ``(N, D)``, in one exchange.

    The other parameters are those of ``gather_with_grad``.
    """
    if n_processes() == 1:
        return list(views)
    rows = torch.stack(list(views), dim=1)  # (B, V, D)
    return list(gather_with_grad(rows, counts, original_scaling=original_scaling).unbind(1))


def gather_with_grad(
    rows: Tensor, counts: Sequence[int] = (), *, original_scaling: bool = False
) -> Tensor:
    """Return the rows ``(B, ...)`` of all processes as ``(N, ...)`` in rank order, with gradients.

    ``counts`` has the number of rows of each process, which may differ; if it is empty, the
    processes tell each other their counts. With ``original_scaling``, the rows of other processes
    are constants, as in the original SimCSE code. DDP's average is then 1 / n_processes of the true
    gradient of the global loss. DeCLUTR's authors make up for it: they multiply their loss by
    n_processes.
    """
    if n_processes() == 1:
        return rows
    counts = list(counts) or row_counts(rows)
    if not original_scaling:
        return _GatherRows.apply(rows, counts)  # type: ignore[no-any-return, no-untyped-call]
    joined = _GatherRows.apply(rows.detach(), counts)  # type: ignore[no-untyped-call]
    # Only the rows of this process carry a gradient.
    parts = list(joined.split(counts))
    parts[distributed.get_rank()] = rows
    return torch.cat(parts)
