"""Collectives that keep gradients; every function is the identity on one process.

Convention: each process computes its share of one global loss, and the training loop averages
parameter gradients over processes (DDP). Backward passes here *sum* the gradients that all
processes contribute to a tensor, so the averaged gradient is the true gradient of the mean of the
processes' losses. A loss that every process computes in full on gathered rows therefore has exactly
the gradient of one process with the global batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional
from torch.torch_version import TorchVersion


def n_processes() -> int:
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
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        received = [torch.empty_like(padded) for _ in counts]
        distributed.all_gather(received, padded)
        ctx.counts = counts
        return torch.cat([part[:count] for part, count in zip(received, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0]
        # Sums of many values lose bits in a half.
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        own = _sum_own_rows(torch.split(gradient.to(dtype), ctx.counts))
        return own.to(gradient.dtype), None


def _sum_own_rows(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of the parts for this process; every process gives one to each."""
    if _scatters():
        # All parts must have one size.
        most = max(map(len, parts))
        padded = []
        for part in parts:
            sizes = (0, 0) * (part.ndim - 1) + (0, most - len(part))
            padded.append(functional.pad(part, sizes))
        total = torch.empty_like(padded[0])
        distributed.reduce_scatter(total, padded)
        return total[: len(parts[distributed.get_rank()])]
    everything = torch.cat(list(parts))
    distributed.all_reduce(everything)
    return torch.split(everything, list(map(len, parts)))[distributed.get_rank()]


def _scatters() -> bool:
    """Tell whether the group supports reduce-scatter; gloo does since PyTorch 2.8."""
    return distributed.get_backend() != "gloo" or TorchVersion(torch.__version__) >= "2.8"


def sum_over_processes(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor of one shape over all processes, differentiable on each."""
    if n_processes() == 1:
        return tensor
    total: Tensor = _SumOverProcesses.apply(tensor)  # type: ignore[no-untyped-call]
    return total


def share_of_mean(total: Tensor, count: float | Tensor) -> Tensor:
    """Return this process's share of a mean: ``n_processes * total / sum of counts``.

    ``total`` is the sum of this process's ``count`` values. The mean of the shares over processes
    is the global mean, even if local batches differ in size; 0 if no process has a value.
    """
    if isinstance(count, Tensor):
        own = count.to(total.dtype)
    else:
        own = torch.full_like(total, count)
    return n_processes() * total / sum_over_processes(own).clamp_min(1.0)


def mean_over_processes(row_values: Tensor) -> Tensor:
    """Return this process's share of the mean of rows; on one process, ``row_values.mean()``."""
    return share_of_mean(row_values.sum(), row_values.numel())


def row_counts(rows: Tensor) -> list[int]:
    if n_processes() == 1:
        return [len(rows)]
    local = torch.tensor([len(rows)], device=rows.device)
    received = [torch.empty_like(local) for _ in range(n_processes())]
    distributed.all_gather(received, local)
    return [int(count) for count in received]


def gather_views(
    views: Sequence[Tensor], counts: Sequence[int] = (), *, original_scaling: bool = False
) -> list[Tensor]:
    """Return ``gather_with_grad`` of each of several views, ``(B, D)``, all in one exchange."""
    if n_processes() == 1:
        return list(views)
    rows = torch.stack(list(views), dim=1)  # (B, V, D)
    return list(gather_with_grad(rows, counts, original_scaling=original_scaling).unbind(1))


def gather_with_grad(
    rows: Tensor, counts: Sequence[int] = (), *, original_scaling: bool = False
) -> Tensor:
    """Return the rows of all processes in rank order, ``(B, ...)`` to ``(N, ...)``, with gradients.

    Numbers of rows may differ between processes; ``counts`` are exchanged if not given.
    ``original_scaling`` reproduces the original SimCSE code: rows of other processes are constants,
    so DDP's average leaves 1 / n_processes of the true gradient of the global loss (the pattern
    that DeCLUTR's authors multiply back).
    """
    if n_processes() == 1:
        return rows
    counts = list(counts) or row_counts(rows)
    if not original_scaling:
        return _GatherRows.apply(rows, counts)  # type: ignore[no-any-return, no-untyped-call]
    joined = _GatherRows.apply(rows.detach(), counts)  # type: ignore[no-untyped-call]
    parts = list(joined.split(counts))
    parts[distributed.get_rank()] = rows
    return torch.cat(parts)
