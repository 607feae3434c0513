"""Attention of first tokens, forward and backward by hand."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from simcse_cli.models.packed.architectures import LayerParts
from simcse_cli.models.packed.memory import Memory
from simcse_cli.models.packed.stages import Kernels, bias_of
from simcse_cli.models.packed.tokens import LANES, PackedTokens


@dataclass
class _Kept:
    """What the backward pass needs of the forward pass.

    Attributes:
        states: ``(T, H)``.
        first: of first tokens, ``(R, H)``.
        by_head: queries, scaled, ``(n_heads, R, D / n_heads)``.
        folded: ``K^T q``, ``(R, n_heads, H)``.
        mixed: states mixed by the weights after dropout, ``(R, n_heads, H)``.
        sums: of these weights, ``(R, n_heads)``.
        weights: of each group of sentences; see ``kernels.attend_from_first``.
    """

    states: Tensor
    first: Tensor
    by_head: Tensor
    folded: Tensor
    mixed: Tensor
    sums: Tensor
    weights: list[np.ndarray]


class FirstAttention:
    """Attention of the first tokens of one share, as in ``attention.attend_from_first``; products are float32.

    Args:
        kernels: the module.
        layer: its query, key and value are used.
        n_heads: divides their width D.
        tokens: the sentences.
        threshold: of dropout on attention weights.
        memory: where large values stand.
        values: ``(R, D)``; the heads' mixed values are written here.
        of_bias: ``(3D,)``; the gradients of query's, key's and value's bias are written here.
    """

    def __init__(
        self,
        kernels: Kernels,
        layer: LayerParts,
        n_heads: int,
        tokens: PackedTokens,
        threshold: int,
        memory: Memory,
        values: Tensor,
        of_bias: np.ndarray,
    ) -> None:
        self._kernels, self._tokens, self._threshold, self._memory = kernels, tokens, threshold, memory
        self._rows = tokens.first_tokens()
        self._values = values
        self._of_bias = torch.from_numpy(of_bias).chunk(3)
        self._head = layer.query.out_features // n_heads
        self._n_heads = n_heads
        linears = (layer.query, layer.key, layer.value)
        self._query, key, value = (linear.weight.detach() for linear in linears)
        self._key, self._value = (weight.view(n_heads, self._head, -1) for weight in (key, value))
        self._query_bias, key_bias, value_bias = (torch.from_numpy(bias_of(linear)) for linear in linears)
        self._key_bias, self._value_bias = (
            bias.view(n_heads, 1, self._head) for bias in (key_bias, value_bias)
        )
        self._kept: _Kept | None = None

    def forward(self, states: Tensor, stream: np.ndarray) -> Tensor:
        """Write the heads' mixed values and return the states of first tokens, ``(R, H)``.

        Args:
            states: ``(T, H)``, float32; kept as they are until the backward pass.
            stream: four numbers of SFC64; advanced.
        """
        first = states.index_select(0, self._rows)
        query = torch.addmm(self._query_bias, first, self._query.t()).mul_(1 / math.sqrt(self._head))
        by_head = query.view(len(first), self._n_heads, self._head).transpose(0, 1)
        folded = self._by_row(torch.bmm(by_head, self._key))
        offsets = (by_head * self._key_bias).sum(-1).t().contiguous()
        mixed, sums = self._memory.tensor(tuple(folded.shape)), torch.empty_like(offsets)
        weights, row = [], 0
        padded = -(-self._n_heads // LANES) * LANES
        for group in self._tokens.groups:
            rows = slice(row, row + group.n_rows)
            weights.append(np.empty((group.n_rows, group.length, padded), np.float32))
            self._kernels.attend_from_first(
                states[group.start : group.end].numpy(),
                folded[rows].numpy(),
                offsets[rows].numpy(),
                group.length,
                self._threshold,
                stream,
                weights[-1],
                mixed[rows].numpy(),
                sums[rows].numpy(),
            )
            row = rows.stop
        values = torch.bmm(mixed.transpose(0, 1), self._value.transpose(1, 2))
        values.addcmul_(sums.t().unsqueeze(-1), self._value_bias)
        self._values.view(len(first), self._n_heads, self._head).copy_(values.transpose(0, 1))
        self._kept = _Kept(states, first, by_head, folded, mixed, sums, weights)
        return first.clone()  # the caller adds to it in place

    def backward(self, of_values: Tensor, of_first: Tensor, of_states: Tensor) -> dict[str, Tensor]:
        """Write the gradient of the states; return those of the three weights by name, ``(D, H)``.

        Args:
            of_values: gradient of the heads' mixed values, ``(R, D)``.
            of_first: of the states of first tokens, from elsewhere, ``(R, H)``.
            of_states: ``(T, H)``, output.
        """
        assert self._kept is not None
        kept, self._kept = self._kept, None
        n_rows = len(of_first)
        of_heads = of_values.float().view(n_rows, self._n_heads, self._head).transpose(0, 1).contiguous()
        of_mixed = self._by_row(torch.bmm(of_heads, self._value))
        of_sums = (of_heads * self._value_bias).sum(-1).t().contiguous()
        of_folded, of_offsets = self._memory.tensor(tuple(of_mixed.shape)), torch.empty_like(of_sums)
        row = 0
        for group, weights in zip(self._tokens.groups, kept.weights, strict=True):
            rows, tokens = slice(row, row + group.n_rows), slice(group.start, group.end)
            self._kernels.attend_from_first_backward(
                kept.states[tokens].numpy(),
                kept.folded[rows].numpy(),
                group.length,
                self._threshold,
                weights,
                of_mixed[rows].numpy(),
                of_sums[rows].numpy(),
                of_states[tokens].numpy(),
                of_folded[rows].numpy(),
                of_offsets[rows].numpy(),
            )
            row = rows.stop
        of_folded_by_head, of_offset = of_folded.transpose(0, 1), of_offsets.t().unsqueeze(-1)
        of_by_head = torch.bmm(of_folded_by_head, self._key.transpose(1, 2))
        of_by_head.addcmul_(of_offset, self._key_bias)
        of_query = of_by_head.transpose(0, 1).reshape(n_rows, -1).mul_(1 / math.sqrt(self._head))
        of_states.index_add_(0, self._rows, torch.addmm(of_first, of_query, self._query))
        of_biases = (
            of_query.sum(0),
            (kept.by_head * of_offset).sum(1).view(-1),
            (of_heads * kept.sums.t().unsqueeze(-1)).sum(1).view(-1),
        )
        for target, found in zip(self._of_bias, of_biases, strict=True):
            target.copy_(found)
        shape = self._query.shape
        return {
            "query": torch.mm(of_query.t(), kept.first),
            "key": torch.bmm(kept.by_head.transpose(1, 2), of_folded_by_head).view(shape),
            "value": torch.bmm(of_heads.transpose(1, 2), kept.mixed.transpose(0, 1)).view(shape),
        }

    def _by_row(self, by_head: Tensor) -> Tensor:
        """Return ``(n_heads, R, H)`` as ``(R, n_heads, H)``, side by side in memory."""
        n_heads, n_rows, width = by_head.shape
        return self._memory.tensor((n_rows, n_heads, width)).copy_(by_head.transpose(0, 1))
