"""The compiled kernels, and the products between them, as autograd functions with results in pooled memory.

Tensors are on the CPU; products and what they read are float32 or bfloat16, states, biases and norms float32.
A mask is drawn from ``stream``, the four numbers of SFC64, which advance; see ``models.packed.dropout``. ``threshold``
is the probability to drop in units of 2^-16, or ``NO_DROPOUT``.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from simcse_cli.machine.buffers import BufferPool
from simcse_cli.models.packed.kernels import LANES, QueueWeightGradient, compiled

Gradients = tuple[Tensor | None, ...]


def linear(
    x: Tensor, weight: Tensor, pool: BufferPool, queue_weight_gradient: QueueWeightGradient | None = None
) -> Tensor:
    """Return ``x weight^T`` without a bias, ``(T, D_in)`` to ``(T, D_out)``.

    With ``queue_weight_gradient``, the backward pass hands it the factors of the weight's gradient and returns None
    in its place.
    """
    product: Tensor = _Linear.apply(x, weight, pool, queue_weight_gradient)  # type: ignore[no-untyped-call]
    return product


def bias_activation(x: Tensor, bias: Tensor, kind: int, pool: BufferPool) -> Tensor:
    """Return ``f(x + bias)``, f one of ``GELU``, ``GELU_TANH`` and ``RELU``; ``x`` is ``(T, F)``."""
    activated: Tensor = _BiasActivation.apply(x, bias, kind, pool)  # type: ignore[no-untyped-call]
    return activated


def dropout_add_norm(
    states: Tensor,
    update: Tensor,
    update_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    epsilon: float,
    threshold: int,
    stream: np.ndarray,
    pool: BufferPool,
) -> tuple[Tensor, Tensor]:
    """Return the layer norm of ``states + dropout(update + update_bias)``, in float32 and in the type of ``update``.

    Args:
        states: ``(T, H)``, float32.
        update: ``(T, H)``, a product without its bias.
        update_bias: ``(H,)``.
        weight: ``(H,)``, of the norm.
        bias: ``(H,)``, of the norm.
        epsilon: added to the variance.
        threshold: see the module.
        stream: see the module.
        pool: see the module.
    """
    out: tuple[Tensor, Tensor] = _DropoutAddNorm.apply(  # type: ignore[no-untyped-call]
        states, update, update_bias, weight, bias, epsilon, threshold, stream, pool
    )
    return out


def bias_attend(
    qkv: Tensor,
    bias: Tensor,
    groups: np.ndarray,
    n_heads: int,
    *,
    threshold: int,
    stream: np.ndarray,
    pool: BufferPool,
) -> Tensor:
    """Return the context of attention within sentences, ``(T, D)``; tokens of no sentence get zeros.

    Args:
        qkv: ``(T, 3D)``, queries, keys and values side by side, without their biases.
        bias: ``(3D,)``.
        groups: see ``compiled.attention_forward``.
        n_heads: divides D into heads of a multiple of ``LANES``.
        threshold: see the module.
        stream: see the module.
        pool: see the module.
    """
    context: Tensor = _BiasAttend.apply(qkv, bias, groups, n_heads, threshold, stream, pool)  # type: ignore[no-untyped-call]
    return context


def mix_packed_states(
    states: Tensor,
    queries: Tensor,
    offsets: Tensor,
    groups: np.ndarray,
    *,
    threshold: int,
    stream: np.ndarray,
    pool: BufferPool,
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums of the states of each sentence, ``(R, n_heads, H)``, and the sums of the weights.

    Args:
        states: ``(T, H)``, float32.
        queries: ``(R, n_heads, H)``; weights are the softmax of ``q . x_j + offset`` after dropout.
        offsets: ``(R, n_heads)``.
        groups: as in ``bias_attend``.
        threshold: see the module.
        stream: see the module.
        pool: see the module.
    """
    mixed: tuple[Tensor, Tensor] = _MixStates.apply(  # type: ignore[no-untyped-call]
        states, queries, offsets, groups, threshold, stream, pool
    )
    return mixed


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        pool: BufferPool,
        queue_weight_gradient: QueueWeightGradient | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.pool, ctx.queue_weight_gradient = pool, queue_weight_gradient
        return torch.mm(x, weight.t(), out=pool.tensor((len(x), len(weight)), x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Gradients:
        (x, weight), pool = ctx.saved_tensors, ctx.pool
        d_x = d_weight = None
        if ctx.needs_input_grad[0]:
            d_x = torch.mm(d_out, weight, out=pool.tensor(tuple(x.shape), x.dtype))
        if ctx.needs_input_grad[1]:
            if ctx.queue_weight_gradient is None:
                d_weight = torch.mm(d_out.t(), x, out=pool.tensor(tuple(weight.shape), x.dtype))
            else:
                ctx.queue_weight_gradient(weight, d_out, x)
        return d_x, d_weight, None, None


class _BiasActivation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, kind: int, pool: BufferPool) -> Tensor:
        ctx.save_for_backward(x, bias)
        ctx.kind, ctx.pool = kind, pool
        out = pool.tensor(tuple(x.shape), x.dtype)
        compiled.activation_forward(kind, *_arrays(x, bias, out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Gradients:
        x, bias = ctx.saved_tensors
        d_x, d_bias = ctx.pool.tensor(tuple(x.shape), x.dtype), torch.zeros_like(bias)
        compiled.activation_backward(ctx.kind, *_arrays(x, bias, d_out, d_x, d_bias))
        return d_x, d_bias, None, None


class _DropoutAddNorm(torch.autograd.Function):
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
        shape, dtype = tuple(states.shape), update.dtype
        out, normed, rstd = pool.tensor(shape), pool.tensor(shape), pool.tensor(shape[:1])
        operand, keep = pool.tensor(shape, dtype), pool.tensor(shape, torch.uint8)
        compiled.dropout_add_norm_forward(
            *_arrays(states, update, update_bias),
            threshold,
            stream,
            *_arrays(weight, bias),
            epsilon,
            *_arrays(out, operand, normed, rstd, keep),
        )
        ctx.save_for_backward(weight, normed, rstd, keep)
        ctx.threshold, ctx.dtype, ctx.pool = threshold, dtype, pool
        ctx.set_materialize_grads(False)
        return out, operand

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_operand: Tensor | None) -> Gradients:
        weight, normed, rstd, keep = ctx.saved_tensors
        shape, pool = tuple(normed.shape), ctx.pool
        d_out = pool.tensor(shape).zero_() if d_out is None else d_out
        d_operand = pool.tensor(shape, ctx.dtype).zero_() if d_operand is None else d_operand
        d_states, d_update = pool.tensor(shape), pool.tensor(shape, ctx.dtype)
        d_vectors = torch.zeros(3, shape[1])  # of update_bias, weight, bias
        compiled.dropout_add_norm_backward(
            *_arrays(d_out, d_operand),
            ctx.threshold,
            *_arrays(weight, normed, rstd, keep, d_states, d_update, *d_vectors),
        )
        return d_states, d_update, *d_vectors, None, None, None, None


class _BiasAttend(torch.autograd.Function):
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
        _, n_rows, lengths = groups.T
        probs = pool.tensor((int((n_rows * n_heads * lengths * -(-lengths // LANES) * LANES).sum()),))
        context = pool.tensor((len(qkv), qkv.shape[1] // 3), qkv.dtype)
        context[int(n_rows @ lengths) :] = 0
        compiled.attention_forward(
            *_arrays(qkv, bias), groups, n_heads, threshold, stream, *_arrays(probs, context)
        )
        ctx.save_for_backward(qkv, bias, probs)
        ctx.groups, ctx.n_heads, ctx.threshold, ctx.pool = groups, n_heads, threshold, pool
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_context: Tensor) -> Gradients:
        qkv, bias, probs = ctx.saved_tensors
        d_qkv, d_bias = ctx.pool.tensor(tuple(qkv.shape), qkv.dtype), torch.zeros_like(bias)
        _, n_rows, lengths = ctx.groups.T
        d_qkv[int(n_rows @ lengths) :] = 0
        compiled.attention_backward(
            *_arrays(qkv, bias),
            ctx.groups,
            ctx.n_heads,
            ctx.threshold,
            *_arrays(probs, d_context, d_qkv, d_bias),
        )
        return d_qkv, d_bias, None, None, None, None, None


class _MixStates(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        queries: Tensor,
        offsets: Tensor,
        groups: np.ndarray,
        threshold: int,
        stream: np.ndarray,
        pool: BufferPool,
    ) -> tuple[Tensor, Tensor]:
        queries, offsets = queries.contiguous(), offsets.contiguous()
        mixed, sums = pool.tensor(tuple(queries.shape)), torch.empty_like(offsets)
        padded = -(-queries.shape[1] // LANES) * LANES
        weights = [torch.empty(n_rows, length, padded) for _, n_rows, length in groups.tolist()]
        for rows, tokens, own in _by_group(groups, weights):
            compiled.mix_states_forward(
                *_arrays(states[tokens], queries[rows], offsets[rows]),
                own.shape[1],
                threshold,
                stream,
                *_arrays(own, mixed[rows], sums[rows]),
            )
        ctx.save_for_backward(states, queries, *weights)
        ctx.groups, ctx.threshold, ctx.pool = groups, threshold, pool
        return mixed, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mixed: Tensor, d_sums: Tensor) -> Gradients:
        states, queries, *weights = ctx.saved_tensors
        d_states, d_queries = ctx.pool.tensor(tuple(states.shape)), ctx.pool.tensor(tuple(queries.shape))
        d_offsets = queries.new_empty(queries.shape[:2])
        _, n_rows, lengths = ctx.groups.T
        d_states[int(n_rows @ lengths) :] = 0
        for rows, tokens, own in _by_group(ctx.groups, weights):
            compiled.mix_states_backward(
                *_arrays(states[tokens], queries[rows]),
                own.shape[1],
                ctx.threshold,
                *_arrays(own, d_mixed[rows], d_sums[rows]),
                *_arrays(d_states[tokens], d_queries[rows], d_offsets[rows]),
            )
        return d_states, d_queries, d_offsets, None, None, None, None


def _by_group(groups: np.ndarray, weights: list[Tensor]) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the rows and the tokens of each group of sentences, and their weights."""
    row = 0
    for (start, n_rows, length), own in zip(groups.tolist(), weights, strict=True):
        yield slice(row, row + n_rows), slice(start, start + n_rows * length), own
        row += n_rows


def _arrays(*tensors: Tensor) -> Any:
    """Return the memory of tensors as arrays for the kernels; bfloat16 becomes int16 with the same bits."""
    rows = [tensor.detach().contiguous() for tensor in tensors]
    return [(row.view(torch.int16) if row.dtype is torch.bfloat16 else row).numpy() for row in rows]
