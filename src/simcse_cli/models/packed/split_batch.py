"""A training pass in two shares of the sentences, side by side on the cores, each with a graph of its own.

Two threads with half of the cores each wait less than one with all of them, whose every step ends in waiting. The
sentences are split on any number of cores, so masks and sums are the same everywhere.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from simcse_cli.kernels.buffer_pool import BufferPool
from simcse_cli.models.thread_pool import map_on_cores

ShareRun = Callable[[int, Tensor, Sequence[Tensor | None]], Sequence[Tensor]]
"""Computes one share, from its number, its rows of the input and the parameters."""


def run_shares(
    run: ShareRun,
    inputs: Tensor,
    sizes: Sequence[int],
    parameters: Sequence[Tensor | None],
    pool: BufferPool,
) -> tuple[Tensor, ...]:
    """Return what ``run`` returns for each share, one after the other; gradients flow to inputs and parameters.

    Args:
        run: called on several threads at once; uses no other tensor that needs a gradient.
        inputs: rows of all shares, then rows that belong to none.
        sizes: rows of each share.
        parameters: what the shares have in common.
        pool: where results and gradients stand.
    """
    # Asked here: inside an autograd function gradients are always off.
    needs_graph = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (inputs, *parameters)
    )
    outputs: tuple[Tensor, ...] = _Shares.apply(run, sizes, pool, needs_graph, inputs, *parameters)  # type: ignore[no-untyped-call]
    return outputs


class _Shares(torch.autograd.Function):
    """The graphs of all shares as one node of the outer graph."""

    @staticmethod
    def forward(
        ctx: Any,
        run: ShareRun,
        sizes: Sequence[int],
        pool: BufferPool,
        needs_graph: bool,
        inputs: Tensor,
        *parameters: Tensor | None,
    ) -> tuple[Tensor, ...]:
        def leaf(tensor: Tensor) -> Tensor:
            return tensor.detach().requires_grad_(needs_graph and tensor.requires_grad)

        leaves = [None if tensor is None else leaf(tensor) for tensor in parameters]
        starts = [
            start.detach().requires_grad_(needs_graph)
            for start in torch.split(inputs[: sum(sizes)], list(sizes))
        ]

        def forward(share: int) -> Sequence[Tensor]:
            with torch.set_grad_enabled(needs_graph):
                return run(share, starts[share], leaves)

        outputs = list(map_on_cores(forward, range(len(sizes))))
        if needs_graph:
            ctx.outputs, ctx.starts, ctx.leaves, ctx.pool = outputs, starts, leaves, pool
            ctx.n_rest = len(inputs) - sum(sizes)
            ctx.set_materialize_grads(False)
        return tuple(
            pool.concatenated([part.detach() for part in parts]) for parts in zip(*outputs, strict=True)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        learning = [leaf for leaf in ctx.leaves if leaf is not None and leaf.requires_grad]
        d_outputs = [
            None if d is None else torch.split(d, [len(part) for part in parts])
            for d, parts in zip(gradients, zip(*ctx.outputs, strict=True), strict=True)
        ]

        def backward(share: int) -> tuple[Tensor | None, ...]:
            pairs = [
                (out, d[share]) for out, d in zip(ctx.outputs[share], d_outputs, strict=True) if d is not None
            ]
            outputs, given = zip(*pairs, strict=True)
            return torch.autograd.grad(outputs, [ctx.starts[share], *learning], given, allow_unused=True)

        by_share = list(map_on_cores(backward, range(len(ctx.starts))))
        d_starts = [
            torch.zeros_like(start) if own[0] is None else own[0]
            for start, own in zip(ctx.starts, by_share, strict=True)
        ]
        d_rest = d_starts[0].new_zeros(ctx.n_rest, d_starts[0].shape[1])
        sums = iter([_sum(parts, ctx.pool) for parts in zip(*(own[1:] for own in by_share), strict=True)])
        d_parameters = [
            next(sums) if leaf is not None and leaf.requires_grad else None for leaf in ctx.leaves
        ]
        return None, None, None, None, ctx.pool.concatenated([*d_starts, d_rest]), *d_parameters


def _sum(gradients: Sequence[Tensor | None], pool: BufferPool) -> Tensor | None:
    """Return the sum of those that are there."""
    there = [gradient for gradient in gradients if gradient is not None]
    if len(there) < 2:
        return there[0] if there else None
    total = torch.add(there[0], there[1], out=pool.tensor(tuple(there[0].shape), there[0].dtype))
    for gradient in there[2:]:
        total += gradient
    return total
