"""Attention within sentences of packed tokens, one batch of matrix products for each sentence length."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.models.packed.dropout import DropoutMasks
from simcse_cli.models.packed.tokens import PackedTokens

# From this length on the fused kernel, which never holds all scores, beats plain batched products.
FUSED_FROM_LENGTH = 192
# PyTorch's CPU softmax is vectorised only for rows of at least one AVX-512 register.
_VECTOR_ROW = 16


def attend(
    qkv: Tensor,
    tokens: PackedTokens,
    n_heads: int,
    *,
    first_only: bool = False,
    dropout: float = 0.0,
    masks: DropoutMasks | None = None,
    relative_bias: Callable[[int], Tensor] | None = None,
) -> Tensor:
    """Return the heads' mixed values, ``(T, 3D)`` to ``(T, D)``, or to ``(R, D)`` with ``first_only``.

    Args:
        qkv: queries, keys and values side by side, each with its heads side by side.
        tokens: which tokens form a sentence; tokens of no sentence get zeros.
        n_heads: divides D.
        first_only: only for the first token of each sentence.
        dropout: probability on attention weights.
        masks: where the masks come from; None for no dropout.
        relative_bias: length to ``(n_heads, L, L)``, added to the scaled scores.
    """
    mixed = []
    for block in tokens.rows(qkv):
        bias = None if relative_bias is None else relative_bias(block.shape[1])
        mixed.append(_attend_block(block, n_heads, first_only, bias, dropout, masks))
    rest = len(qkv) - tokens.groups[-1].end
    if rest and not first_only:
        mixed.append(qkv.new_zeros(rest, qkv.shape[1] // 3))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _attend_block(
    block: Tensor,
    n_heads: int,
    first_only: bool,
    bias: Tensor | None,
    dropout: float,
    masks: DropoutMasks | None,
) -> Tensor:
    """Attend within ``(n_rows, L, 3D)``; return ``(n_rows * n_queries, D)``.

    On a CPU the products are float32 ones whatever the arithmetic: oneDNN, which multiplies bfloat16, keeps
    memory for every new number of rows, so that memory would grow with the input.
    """
    if block.dtype is torch.bfloat16 and block.device.type == "cpu":
        wide = _attend_block(block.float(), n_heads, first_only, bias, dropout, masks)
        return wide.to(block.dtype)
    n_rows, length, width = block.shape
    head_width = width // (3 * n_heads)
    split = block.view(n_rows, length, 3, n_heads, head_width).permute(2, 0, 3, 1, 4).contiguous()
    query, key, value = split.view(3, n_rows * n_heads, length, head_width)
    if first_only:
        query = query[:, :1]
        bias = None if bias is None else bias[:, :1]
    drops = masks is not None and dropout > 0
    if bias is None:
        base, weight = query.new_zeros(1, 1, 1), 0
    else:
        base, weight = bias.to(query.dtype).repeat(n_rows, 1, 1), 1
    if length >= FUSED_FROM_LENGTH and not drops:
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=base if weight else None)
    else:
        scores = torch.baddbmm(base, query, key.transpose(1, 2), beta=weight, alpha=1 / math.sqrt(head_width))
        mixed = _mix(_softmax(scores), value, dropout, masks if drops else None)
    n_queries = query.shape[1]
    return mixed.view(n_rows, n_heads, n_queries, head_width).transpose(1, 2).reshape(n_rows * n_queries, -1)


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
