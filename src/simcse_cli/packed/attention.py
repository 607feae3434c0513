"""Attention within sentences of packed tokens, one batch of matrix products per sentence length.

Poolers that read only the first token of the last layer need attention from first tokens only,
which ``attend_from_first`` computes.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.machine.processor import CPU_CONSTANTS, cpu_kind
from simcse_cli.packed.dropout import Masks
from simcse_cli.packed.layers import Layer, QueryKeyValue
from simcse_cli.packed.tokens import PackedTokens

# PyTorch vectorises its CPU softmax only for rows of at least one AVX-512 register.
_VECTOR_ROW = 16
# Tokens in one bfloat16 product, so that queries, keys and scores fit into the processor's cache.
_CACHED_TOKENS = 1024


def attend(qkv: Tensor, tokens: PackedTokens, layer: Layer, masks: Masks | None = None) -> Tensor:
    """Return the context ``(T, D)`` of attention within sentences.

    Tokens behind the last sentence get zeros. ``qkv``, ``(T, 3D)``, holds queries, keys and values
    side by side, each with its heads side by side. ``layer`` gives the number of heads, the dropout
    and the relative bias, which is added to the scaled scores. Without ``masks``, no attention
    weight is dropped.
    """
    context = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
    end = 0
    for block in tokens.rows(qkv):
        bias = None if layer.relative_bias is None else layer.relative_bias(block.shape[1])
        for part, dtype in _parts_with_dtype(block):
            part_context = _attend_block(part, dtype, layer, bias, masks)
            start = end
            end += part.shape[0] * part.shape[1]  # rows times tokens per row
            context[start:end].view(part_context.shape).copy_(part_context)
    context[end:] = 0
    return context


def attend_from_first(
    states: Tensor, tokens: PackedTokens, linears: QueryKeyValue, layer: Layer, masks: Masks | None
) -> tuple[Tensor, Tensor]:
    """Return the states of first tokens ``(R, H)`` and their context ``(R, D)``.

    Up to rounding, the context is that of ``attend``, but it takes about D / n_heads times fewer
    operations, since only first tokens are multiplied by weight matrices. In one head, let x_j be
    the states of a sentence, q the query of its first token, a_j the attention weights, K and k the
    weight and bias of the key layer, and V and v those of the value layer. Then

        score of x_j:  q . (K x_j + k) = (K^T q) . x_j + q . k
        context:       sum_j a_j (V x_j + v) = V (sum_j a_j x_j) + v sum_j a_j

    ``states``, ``(T, H)``, are the input of the linear layers ``linears``, in the type of their
    weights. ``layer`` gives the number of heads, the dropout and the relative bias.
    """
    n_heads = layer.n_heads
    first = states.index_select(0, tokens.first_tokens())
    query = functional.linear(first, linears.query.weight, linears.query.bias)
    head_width = query.shape[1] // n_heads
    key = linears.key.weight.view(n_heads, head_width, -1)
    value = linears.value.weight.view(n_heads, head_width, -1)

    # Queries are K^T q, ``(R, n_heads, H)``, and offsets are q . k, ``(R, n_heads)``, both scaled.
    # An offset is the same for all tokens of a sentence, so the softmax ignores it. It is added all
    # the same, because distributed training needs the gradient of every parameter.
    scaled = query.view(len(first), n_heads, -1).transpose(0, 1) / math.sqrt(head_width)
    queries = torch.bmm(scaled, key).transpose(0, 1)
    offsets = scaled.new_zeros(len(first), n_heads)
    if linears.key.bias is not None:
        offsets = torch.bmm(scaled, linears.key.bias.view(n_heads, head_width, 1)).squeeze(-1).t()

    # Apply V to the mixed states, sum_j a_j x_j, and v to the sums of the weights, sum_j a_j.
    mixed, sums = _mix_states(states, tokens, queries, offsets, layer, masks)
    context = torch.bmm(mixed.transpose(0, 1), value.transpose(1, 2))
    if linears.value.bias is not None:
        bias = linears.value.bias.view(n_heads, 1, head_width)
        context = torch.addcmul(context, sums.t().unsqueeze(-1), bias)
    return first, context.transpose(0, 1).reshape(len(first), -1)


def _mix_states(
    states: Tensor,
    tokens: PackedTokens,
    queries: Tensor,
    offsets: Tensor,
    layer: Layer,
    masks: Masks | None,
) -> tuple[Tensor, Tensor]:
    """Return weighted sums of the states of each sentence, and the sums of the weights.

    The results are ``(R, n_heads, H)`` and ``(R, n_heads)``. The weights are the softmax of scores:
    products of states ``(T, H)`` and scaled queries ``(R, n_heads, H)``, plus ``offsets``
    ``(R, n_heads)``, plus the relative bias of the first token if there is one.
    """
    blocks = list(tokens.rows(states))
    sizes = [len(block) for block in blocks]
    queries_by_block = torch.split(queries, sizes)
    offsets_by_block = torch.split(offsets.unsqueeze(-1), sizes)
    mixed = []
    sums = []
    for block, query, offset in zip(blocks, queries_by_block, offsets_by_block, strict=True):
        scores = torch.baddbmm(offset, query, block.transpose(1, 2))
        if layer.relative_bias is not None:
            bias = layer.relative_bias(block.shape[1])  # for the scores of all tokens
            scores = scores + bias[:, 0]
        weights = _softmax(scores)
        if masks is not None and layer.dropout > 0:
            mask, scale = masks.keep(weights, layer.dropout)
            weights = weights * mask * scale
        mixed.append(torch.bmm(weights, block))
        sums.append(weights.sum(-1))
    return torch.cat(mixed), torch.cat(sums)


def _parts_with_dtype(block: Tensor) -> Iterator[tuple[Tensor, torch.dtype]]:
    """Cut a block ``(n_rows, L, 3D)`` by rows; yield each part and the type to multiply it in.

    There are three cases:

    - In any type but bfloat16, or on a GPU, the whole block is one part in its own type.
    - In bfloat16 on a CPU, oneDNN multiplies, and it keeps memory for every number of rows that it
      meets. So that this memory does not grow with the input, parts have only two numbers of rows,
      which depend on L alone. The rows left over are one more part, in float32.
    - If it also needs a gradient, cutting it would cost copies, so it is one part, in float32.
    """
    if block.dtype is not torch.bfloat16 or block.device.type != "cpu":
        yield block, block.dtype
        return
    start = 0
    if not block.requires_grad:
        n_cached = _CACHED_TOKENS // block.shape[1]
        # The largest power of two that is at most n_cached, or 1.
        size = 1 << max(n_cached.bit_length() - 1, 0)
        # As many parts of the full size as fit, then parts of a quarter of it, unless that is 0.
        for n_rows in (size, size // 4):
            while 0 < n_rows <= len(block) - start:
                yield block[start : start + n_rows], block.dtype
                start += n_rows
    if start < len(block):
        yield block[start:], torch.float32


def _attend_block(
    block: Tensor, dtype: torch.dtype, layer: Layer, bias: Tensor | None, masks: Masks | None
) -> Tensor:
    """Return the context ``(n_rows, L, n_heads, D / n_heads)`` of a block ``(n_rows, L, 3D)``.

    The products are computed in ``dtype``. ``bias``, ``(n_heads, L, L)``, is added to the scaled
    scores.
    """
    n_rows, length, width = block.shape
    n_heads = layer.n_heads
    head_width = width // (3 * n_heads)
    # From ``(n_rows, L, 3, n_heads, head_width)`` to ``(3, n_rows, n_heads, L, head_width)``.
    by_head = block.view(n_rows, length, 3, n_heads, head_width).permute(2, 0, 3, 1, 4)
    contiguous = by_head.to(dtype, copy=True, memory_format=torch.contiguous_format)
    query, key, value = contiguous.view(3, n_rows * n_heads, length, head_width)
    if bias is not None:
        bias = bias.to(query.dtype).repeat(n_rows, 1, 1)
    if layer.dropout == 0:
        masks = None
    # PyTorch's fused attention is faster for long sentences, but does not take our masks.
    if length >= CPU_CONSTANTS[cpu_kind()].fused_from and masks is None:
        context = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    else:
        # With beta = 0, baddbmm adds nothing, and reads only the type of its first argument.
        nothing = query.new_zeros(1, 1, 1)
        summand = nothing if bias is None else bias
        beta = 0 if bias is None else 1
        alpha = 1 / math.sqrt(head_width)
        scores = torch.baddbmm(summand, query, key.transpose(1, 2), beta=beta, alpha=alpha)
        weights = _softmax(scores)
        if masks is None:
            context = torch.bmm(weights, value)
        else:
            mask, scale = masks.keep(weights, layer.dropout)
            context = torch.baddbmm(nothing, weights * mask, value, beta=0, alpha=scale)
    return context.view(n_rows, n_heads, length, head_width).transpose(1, 2)


def _softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last axis, in the type of the scores.

    It is computed in float32, or in the type of the scores if that is more precise.
    """
    dtype = torch.promote_types(scores.dtype, torch.float32)
    if scores.shape[-1] >= _VECTOR_ROW:
        return torch.softmax(scores, -1, dtype=dtype).to(scores.dtype)
    # For shorter rows, it is faster to compute the steps of a softmax one by one.
    wide = scores.to(dtype)
    weights = (wide - wide.amax(-1, keepdim=True).detach()).exp_()
    return (weights / weights.sum(-1, keepdim=True)).to(scores.dtype)
