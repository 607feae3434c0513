"""Collectives that keep gradients; every function is the identity on one process.

Convention: each process computes its share of one global loss, and the training loop averages parameter
gradients over processes (DDP). Backward passes here *sum* what all processes send to a tensor, so that the
averaged gradient is the true gradient of the mean of the processes' losses. A loss that every process
computes in full on gathered rows therefore has exactly the gradient of one process with the global batch.
"""

from typing import Any

import torch
from torch import Tensor, distributed


def n_processes() -> int:
    """Return the number of processes, 1 without a process group."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


class _SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        received = [torch.empty_like(padded) for _ in counts]
        distributed.all_gather(received, padded)
        rank = distributed.get_rank()
        ctx.start, ctx.stop = sum(counts[:rank]), sum(counts[: rank + 1])
        return torch.cat([part[:count] for part, count in zip(received, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total[ctx.start : ctx.stop], None


def sum_over_processes(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor of one shape over all processes, differentiable on each."""
    return tensor if n_processes() == 1 else _SumOverProcesses.apply(tensor)  # type: ignore[no-untyped-call]


def share_of_mean(total: Tensor, count: float) -> Tensor:
    """Return this process's share of a mean over processes: ``n_processes * total / sum of counts``.

    The mean of the shares over processes is the global mean, also where local batches differ in size.

    Args:
        total: sum of this process's values, a scalar.
        count: how many values that are; if no process has any, the result is 0.
    """
    counts = sum_over_processes(torch.tensor(float(count), device=total.device, dtype=total.dtype))
    return n_processes() * total / counts.clamp_min(1.0)


def mean_over_processes(row_values: Tensor) -> Tensor:
    """Return this process's share of the mean of row values; ``row_values.mean()`` on one process."""
    return share_of_mean(row_values.sum(), row_values.numel())


def row_counts(rows: Tensor) -> list[int]:
    """Return the number of rows on each process, in rank order."""
    if n_processes() == 1:
        return [len(rows)]
    local = torch.tensor([len(rows)], device=rows.device)
    received = [torch.empty_like(local) for _ in range(n_processes())]
    distributed.all_gather(received, local)
    return [int(count) for count in received]


def gather_with_grad(rows: Tensor, *, original_scaling: bool = False) -> Tensor:
    """Return the rows of all processes in rank order, ``(B, ...)`` to ``(N, ...)``, keeping gradients.

    Args:
        rows: this process's rows; their number may differ between processes, the other dimensions may not.
        original_scaling: reproduce the original SimCSE code instead: rows of other processes are constants,
            so DDP's average leaves 1 / n_processes of the true gradient of the global loss (the pattern that
            DeCLUTR's authors multiply back).

    Returns:
        ``(N, ...)``; ``rows`` itself on one process.
    """
    if n_processes() == 1:
        return rows
    counts = row_counts(rows)
    if not original_scaling:
        return _GatherRows.apply(rows, counts)  # type: ignore[no-any-return, no-untyped-call]
    parts = list(_GatherRows.apply(rows.detach(), counts).split(counts))  # type: ignore[no-untyped-call]
    parts[distributed.get_rank()] = rows
    return torch.cat(parts)
