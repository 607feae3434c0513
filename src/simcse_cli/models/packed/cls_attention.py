"""Attention from first tokens only, for poolers that read no other token of the last layer."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.models.packed.layers import Layer, QueryKeyValue
from simcse_cli.models.packed.tokens import PackedTokens

MixStates = Callable[..., tuple[Tensor, Tensor]]


def attend_from_first(
    states: Tensor,
    tokens: PackedTokens,
    linears: QueryKeyValue,
    layer: Layer,
    mix: MixStates,
) -> tuple[Tensor, Tensor]:
    """Return the states of first tokens ``(R, H)`` and their context ``(R, D)``.

    Only the first token is multiplied by weight matrices. With x_j the states of a sentence and q the
    query of its first token, the scores q . (K x_j + k) are (K^T q) . x_j + q . k; the context is
    sum_j a_j (V x_j + v) = V (sum_j a_j x_j) + v sum_j a_j. Equal to ``attend`` on the projected states up
    to rounding, at about D / n_heads times fewer operations. The states ``(T, H)``, before the linear layers, have the
    type of the products; ``mix`` is ``Operators.mix_states``.
    """
    n_heads, first = layer.n_heads, states.index_select(0, tokens.first_tokens())
    query = functional.linear(first, linears.query.weight, linears.query.bias)
    head_width = query.shape[1] // n_heads
    key, value = (linear.weight.view(n_heads, head_width, -1) for linear in linears[1:])
    by_head = query.view(len(first), n_heads, -1).transpose(0, 1) / math.sqrt(head_width)
    folded = torch.bmm(by_head, key).transpose(0, 1)
    offset = by_head.new_zeros(len(first), n_heads)
    if linears.key.bias is not None:  # the softmax ignores it, but distributed training needs every gradient
        offset = torch.bmm(by_head, linears.key.bias.view(n_heads, head_width, 1)).squeeze(-1).t()
    mixed, sums = mix(states, tokens, folded, offset, layer)
    context = torch.bmm(mixed.transpose(0, 1), value.transpose(1, 2))
    if linears.value.bias is not None:
        bias = linears.value.bias.view(n_heads, 1, head_width)
        context = torch.addcmul(context, sums.t().unsqueeze(-1), bias)
    return first, context.transpose(0, 1).reshape(len(first), -1)
