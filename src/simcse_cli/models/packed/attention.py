"""Attention within sentences of packed tokens, one batch of matrix products for each sentence length."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.models.packed.dropout import DropoutMasks
from simcse_cli.models.packed.tokens import Group, PackedTokens

# From this length on the fused kernel, which never holds all scores, beats plain batched products.
FUSED_FROM_LENGTH = 192
# PyTorch's CPU softmax is vectorised only for rows of at least one AVX-512 register.
_VECTOR_ROW = 16


def attend(
    qkv: Tensor,
    tokens: PackedTokens,
    n_heads: int,
    *,
    dropout: float = 0.0,
    masks: DropoutMasks | None = None,
    relative_bias: Callable[[int], Tensor] | None = None,
) -> Tensor:
    """Return the heads' mixed values, ``(T, 3D)`` to ``(T, D)``.

    Args:
        qkv: queries, keys and values side by side, each with its heads side by side.
        tokens: which tokens form a sentence; tokens of no sentence get zeros.
        n_heads: divides D.
        dropout: probability on attention weights.
        masks: where the masks come from; None for no dropout.
        relative_bias: length to ``(n_heads, L, L)``, added to the scaled scores.
    """
    width = qkv.shape[1] // 3
    mixed = []
    for group, block in zip(tokens.groups, tokens.rows(qkv), strict=True):
        bias = None if relative_bias is None else relative_bias(group.length)
        mixed.append(_attend_group(block, group, n_heads, bias, dropout, masks))
    rest = len(qkv) - tokens.groups[-1].end
    if rest:
        mixed.append(qkv.new_zeros(rest, width))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _attend_group(
    block: Tensor, group: Group, n_heads: int, bias: Tensor | None, dropout: float, masks: DropoutMasks | None
) -> Tensor:
    """Attend within ``(n_rows, L, 3D)``; return ``(n_rows * L, D)``."""
    n_rows, length = group.n_rows, group.length
    head_width = block.shape[-1] // (3 * n_heads)
    split = block.view(n_rows, length, 3, n_heads, head_width).permute(2, 0, 3, 1, 4).contiguous()
    if bias is not None:
        bias = bias.to(block.dtype).expand(n_rows, -1, -1, -1)
    drops = masks is not None and dropout > 0
    if length >= FUSED_FROM_LENGTH and not drops:
        mixed = functional.scaled_dot_product_attention(split[0], split[1], split[2], attn_mask=bias)
    else:
        query, key, value = split.view(3, n_rows * n_heads, length, head_width)
        if bias is None:
            base, weight = query.new_zeros(1, 1, 1), 0
        else:
            base, weight = bias.reshape(-1, length, length), 1
        scores = torch.baddbmm(base, query, key.transpose(1, 2), beta=weight, alpha=1 / math.sqrt(head_width))
        mixed = _mix(_softmax(scores), value, dropout, masks if drops else None)
    return mixed.view(n_rows, n_heads, length, head_width).transpose(1, 2).reshape(n_rows * length, -1)


def _softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last axis, computed in float32."""
    if scores.shape[-1] >= _VECTOR_ROW:
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    wide = scores.float()
    weights = (wide - wide.amax(-1, keepdim=True).detach()).exp_()
    return (weights / weights.sum(-1, keepdim=True)).to(scores.dtype)


def _mix(weights: Tensor, value: Tensor, dropout: float, masks: DropoutMasks | None) -> Tensor:
    """Return ``dropout(weights) @ value``, batched."""
    if masks is None:
        return torch.bmm(weights, value)
    mask, scale = masks.keep(weights, dropout)
    return torch.baddbmm(value.new_zeros(1, 1, 1), weights * mask, value, beta=0, alpha=scale)
