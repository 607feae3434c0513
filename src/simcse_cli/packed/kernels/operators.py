"""The compiled kernels, and the products between them, as autograd functions.

Tensors are on the CPU. Products and their inputs are float32 or bfloat16; states, biases and norms
are float32. An argument means the same as a kernel's argument of that name. ``threshold`` may be
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
    """``x weight^T`` without a bias, ``(T, D_out)``, for x ``(T, D_in)``.

    If ``queue_weight_gradient`` is given, the backward pass calls it with the factors of the
    weight's gradient, which are multiplied later, and returns None as that gradient.
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
    """``f(x + bias)`` with the activation f of number ``kind``; ``x`` is ``(T, F)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, kind: int, pool: BufferPool) -> Tensor:
        ctx.save_for_backward(x, bias)
        ctx.kind = kind
        ctx.pool = pool
        out = _like(x, pool)
        forward_kernel, _ = compiled.ACTIVATION_KERNELS[kind]
        forward_kernel(*_arrays(x, bias, out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Gradients:
        x, bias = ctx.saved_tensors
        d_x = _like(x, ctx.pool)
        d_bias = torch.zeros_like(bias)
        _, backward_kernel = compiled.ACTIVATION_KERNELS[ctx.kind]
        backward_kernel(*_arrays(x, bias, d_out, d_x, d_bias))
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
    """The context of attention within sentences, ``(T, D)``.

    Tokens behind the last sentence get zeros. Each row of ``groups`` describes sentences of equal
    length, which follow each other: the index of their first token, their number and their length.
    """

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
        probs: list[Tensor] = []
        for _, n_sentences, length in groups.tolist():
            padded_length = -(-length // LANES) * LANES  # rounded up
            probs.append(pool.tensor((n_sentences * n_heads * length, padded_length)))
        context = pool.tensor((len(qkv), qkv.shape[1] // 3), qkv.dtype)
        # The pool's memory is not cleared, and the kernels write only the rows of sentences.
        context[_n_sentence_tokens(groups) :] = 0
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
        # Tokens that belong to no sentence take no part in attention, so they get no gradient.
        d_qkv[_n_sentence_tokens(ctx.groups) :] = 0
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
    """Return memory from the pool for a tensor of the same shape and type."""
    return pool.tensor(tuple(tensor.shape), tensor.dtype)


def _n_sentence_tokens(groups: np.ndarray) -> int:
    """Return the number of tokens that belong to a sentence; they precede all others."""
    _, n_sentences, lengths = groups.T
    return int(n_sentences @ lengths)


def _by_group(groups: np.ndarray, probs: list[Tensor]) -> Iterator[tuple[slice, int, Tensor]]:
    """Yield for each group a slice of its tokens, the length of a sentence, and its ``probs``."""
    for (start, n_sentences, length), group_probs in zip(groups.tolist(), probs, strict=True):
        yield slice(start, start + n_sentences * length), length, group_probs


def _arrays(*tensors: Tensor) -> Any:
    """Return tensors as arrays for the kernels; bfloat16 becomes int16 with the same bits."""
    arrays = []
    for tensor in tensors:
        detached = tensor.detach().contiguous()
        if detached.dtype is torch.bfloat16:
            detached = detached.view(torch.int16)
        arrays.append(detached.numpy())
    return arrays
