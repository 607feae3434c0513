"""The compiled kernels, and the products between them, as autograd functions.

Tensors are on the CPU. Products and their inputs are float32 or bfloat16; states, biases and norms
are float32. The arguments are those of the kernels of the same names. ``threshold`` may be
``NO_DROPOUT``. The memory of results is lent by ``pool``.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from simcse_cli.machine.buffers import BufferPool
from simcse_cli.packed.kernels import LANES, QueueWeightGradient, compiled
from simcse_cli.packed.products import multiply

Gradients = tuple[Tensor | None, ...]


class Linear(torch.autograd.Function):
    """``x weight^T`` without a bias, ``(T, D_in)`` to ``(T, D_out)``.

    With ``queue_weight_gradient``, the backward pass calls it with the factors of the weight's
    gradient, and returns None as that gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        pool: BufferPool,
        queue_weight_gradient: QueueWeightGradient | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.pool = pool
        ctx.queue_weight_gradient = queue_weight_gradient
        return multiply(x, weight.t(), out=pool.tensor((len(x), len(weight)), x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Gradients:
        x, weight = ctx.saved_tensors
        pool = ctx.pool
        d_x = None
        d_weight = None
        if ctx.needs_input_grad[0]:
            d_x = multiply(d_out, weight, out=_like(x, pool))
        if ctx.needs_input_grad[1]:
            if ctx.queue_weight_gradient is None:
                d_weight = multiply(d_out.t(), x, out=pool.tensor(tuple(weight.shape), x.dtype))
            else:
                ctx.queue_weight_gradient(weight, d_out, x)
        return d_x, d_weight, None, None


class BiasActivation(torch.autograd.Function):
    """``f(x + bias)``; ``x`` is ``(T, F)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, kind: int, pool: BufferPool) -> Tensor:
        ctx.save_for_backward(x, bias)
        ctx.kind = kind
        ctx.pool = pool
        out = _like(x, pool)
        compiled.ACTIVATION_KERNELS[kind][0](*_arrays(x, bias, out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Gradients:
        x, bias = ctx.saved_tensors
        d_x = _like(x, ctx.pool)
        d_bias = torch.zeros_like(bias)
        compiled.ACTIVATION_KERNELS[ctx.kind][1](*_arrays(x, bias, d_out, d_x, d_bias))
        return d_x, d_bias, None, None


class DropoutAddNorm(torch.autograd.Function):
    """The layer norm of ``states + dropout(update + update_bias)``, in two types.

    The first result is float32, for the next sum; the second has the type of ``update``, for the
    next product.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        update: Tensor,
        update_bias: Tensor,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        threshold: int,
        stream: np.ndarray,
        pool: BufferPool,
    ) -> tuple[Tensor, Tensor]:
        shape = tuple(states.shape)
        dtype = update.dtype
        out = pool.tensor(shape)
        normed = pool.tensor(shape)
        rstd = pool.tensor(shape[:1])
        operand = pool.tensor(shape, dtype)
        keep = pool.tensor(shape, torch.uint8)
        compiled.dropout_add_norm_forward(
            *_arrays(states, update, update_bias),
            threshold,
            stream,
            *_arrays(weight, bias),
            epsilon,
            *_arrays(out, operand, normed, rstd, keep),
        )
        ctx.save_for_backward(weight, normed, rstd, keep)
        ctx.threshold = threshold
        ctx.dtype = dtype
        ctx.pool = pool
        ctx.set_materialize_grads(False)
        return out, operand

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_operand: Tensor | None) -> Gradients:
        weight, normed, rstd, keep = ctx.saved_tensors
        shape = tuple(normed.shape)
        pool = ctx.pool
        if d_out is None:
            d_out = pool.tensor(shape).zero_()
        if d_operand is None:
            d_operand = pool.tensor(shape, ctx.dtype).zero_()
        d_states = pool.tensor(shape)
        d_update = pool.tensor(shape, ctx.dtype)
        d_vectors = torch.zeros(3, shape[1])  # of update_bias, weight, bias
        compiled.dropout_add_norm_backward(
            *_arrays(d_out, d_operand),
            ctx.threshold,
            *_arrays(weight, normed, rstd, keep, d_states, d_update, *d_vectors),
        )
        return d_states, d_update, *d_vectors, None, None, None, None


class BiasAttend(torch.autograd.Function):
    """The context of attention within sentences, ``(T, D)``; tokens of no sentence get zeros."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        bias: Tensor,
        groups: np.ndarray,
        n_heads: int,
        threshold: int,
        stream: np.ndarray,
        pool: BufferPool,
    ) -> Tensor:
        # A row of ``groups`` holds start, number of sentences and their length.
        padded_lengths = [-(-length // LANES) * LANES for length in groups[:, 2].tolist()]
        n_rows = (groups[:, 1] * groups[:, 2] * n_heads).tolist()
        probs = [pool.tensor(shape) for shape in zip(n_rows, padded_lengths, strict=True)]
        context = pool.tensor((len(qkv), qkv.shape[1] // 3), qkv.dtype)
        context[_end(groups) :] = 0
        for tokens, length, group_probs in _by_group(groups, probs):
            compiled.attention_forward(
                *_arrays(qkv[tokens], bias),
                length,
                n_heads,
                threshold,
                stream,
                *_arrays(group_probs, context[tokens]),
            )
        ctx.save_for_backward(qkv, bias, *probs)
        ctx.groups = groups
        ctx.n_heads = n_heads
        ctx.threshold = threshold
        ctx.pool = pool
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_context: Tensor) -> Gradients:
        qkv, bias, *probs = ctx.saved_tensors
        d_qkv = _like(qkv, ctx.pool)
        d_bias = torch.zeros_like(bias)
        # Rows of no sentence take no part in attention.
        d_qkv[_end(ctx.groups) :] = 0
        for tokens, length, group_probs in _by_group(ctx.groups, probs):
            compiled.attention_backward(
                *_arrays(qkv[tokens], bias),
                length,
                ctx.n_heads,
                ctx.threshold,
                *_arrays(group_probs, d_context[tokens], d_qkv[tokens], d_bias),
            )
        return d_qkv, d_bias, None, None, None, None, None


def _like(tensor: Tensor, pool: BufferPool) -> Tensor:
    return pool.tensor(tuple(tensor.shape), tensor.dtype)


def _end(groups: np.ndarray) -> int:
    """Return the number of tokens that belong to a sentence; they come first."""
    return int(groups[:, 1] @ groups[:, 2])


def _by_group(groups: np.ndarray, probs: list[Tensor]) -> Iterator[tuple[slice, int, Tensor]]:
    """Yield the tokens of each group of sentences, the sentences' length, and their ``probs``."""
    for (start, n_rows, length), group_probs in zip(groups.tolist(), probs, strict=True):
        yield slice(start, start + n_rows * length), length, group_probs


def _arrays(*tensors: Tensor) -> Any:
    """Return tensors as arrays for the kernels; bfloat16 becomes int16 with the same bits."""
    arrays = []
    for tensor in tensors:
        detached = tensor.detach().contiguous()
        if detached.dtype is torch.bfloat16:
            detached = detached.view(torch.int16)
        arrays.append(detached.numpy())
    return arrays
