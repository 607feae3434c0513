"""Rows of a large embedding table; the gradient of the table goes into reused memory."""

from typing import Any

from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from simcse_cli.machine.buffers import BufferPool


def look_up(table: nn.Embedding, ids: Tensor, pool: BufferPool) -> Tensor:
    """Return the rows ``(T, H)``; equal to ``table(ids)`` in value and gradient."""
    if table.sparse or table.scale_grad_by_freq or table.max_norm is not None or ids.device.type != "cpu":
        rows: Tensor = table(ids)
    else:
        rows = _LookUp.apply(table.weight, ids, table.padding_idx, pool)  # type: ignore[no-untyped-call]
    return rows


class _LookUp(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding_id: int | None, pool: BufferPool) -> Tensor:
        ctx.shape, ctx.ids, ctx.padding_id, ctx.pool = tuple(weight.shape), ids, padding_id, pool
        return weight.index_select(0, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_rows: Tensor) -> tuple[Tensor | None, ...]:
        d_weight = ctx.pool.tensor(ctx.shape, d_rows.dtype).zero_().index_add_(0, ctx.ids, d_rows)
        if ctx.padding_id is not None:
            d_weight[ctx.padding_id] = 0
        return d_weight, None, None, None
