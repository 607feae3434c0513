"""The operators of a transformer layer in PyTorch, for training and for inference.

``compiled_operators`` has the same operators as compiled kernels, for training.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.packed.architectures import ACTIVATIONS, BackboneParts
from simcse_cli.packed.attention import attend, attend_from_first
from simcse_cli.packed.dropout import Masks, add_dropped
from simcse_cli.packed.layers import (
    Layer,
    LinearWeights,
    QueryKeyValue,
    Residual,
    read_layers,
)
from simcse_cli.packed.products import numpy_product, product_in
from simcse_cli.packed.tokens import PackedTokens

# oneDNN chooses the layout that suits this number of rows. Products of other numbers of rows work,
# too, and are as fast if the number is similar.
_EXPECTED_ROWS = 2048


@dataclass(eq=False)
class Operators:
    """The operators of a layer in PyTorch; each starts with a matrix product, in ``dtype``."""

    dtype: torch.dtype
    activation: str
    masks: Masks | None = None

    def attend(self, x: Tensor, tokens: PackedTokens, layer: Layer) -> Tensor:
        """Return the context ``(T, D)`` of attention within sentences, from states x ``(T, H)``."""
        return attend(self._linear(x, layer.qkv), tokens, layer, self.masks)

    def attend_from_first(
        self, x: Tensor, tokens: PackedTokens, linears: QueryKeyValue, layer: Layer
    ) -> tuple[Tensor, Tensor]:
        """Return the states of first tokens, ``(R, H)``, and their attention context, ``(R, D)``.

        ``linears`` give query, key and value in place of ``layer.qkv``.
        """
        return attend_from_first(x, tokens, linears, layer, self.masks)

    def activate(self, x: Tensor, up: LinearWeights) -> Tensor:
        """Return ``f(up(x))``, ``(T, F)``, with the activation f."""
        product = self._linear(x, up)
        activation = ACTIVATIONS[self.activation]
        if product.requires_grad:  # the backward pass needs the product itself
            return activation.function(product)
        return activation.in_place(product)

    def dropout_add_norm(self, states: Tensor, x: Tensor, end: Residual) -> tuple[Tensor, Tensor]:
        """Return ``norm(states + dropout(linear(x)))``, for the next sum and for the next product.

        ``end`` holds the linear layer, the norm and the probability of dropout. Compiled kernels
        return the two in different types; these operators return the same tensor twice.
        """
        total = add_dropped(states, self._linear(x, end.linear), end.dropout, self.masks)
        normed = functional.layer_norm(total, total.shape[-1:], *end.norm, end.epsilon)
        return normed, normed

    def arrange(self, weight: Tensor) -> Tensor:
        """Return a weight ``(D_out, D_in)`` in the layout in which these operators take it."""
        return weight

    def _linear(self, x: Tensor, linear: LinearWeights) -> Tensor:
        """Return the output of a linear layer, with what LoRA adds."""
        x = x.to(self.dtype)
        bias = None if linear.bias is None else linear.bias.to(self.dtype)
        return add_low_rank(functional.linear(x, linear.weight, bias), x, linear)


class NestedOperators(Operators):
    """The operators for GPUs; attention over all sentences is one call, on nested tensors."""

    def attend(self, x: Tensor, tokens: PackedTokens, layer: Layer) -> Tensor:
        if layer.relative_bias is not None:  # kernels for sentences of many lengths take no bias
            return super().attend(x, tokens, layer)
        # The groups are sorted by length, the longest first. Tokens that belong to no sentence may
        # follow them.
        longest_group = tokens.groups[0]
        shortest_group = tokens.groups[-1]
        end = shortest_group.end

        def nested(part: Tensor) -> Tensor:
            """Return ``(R, n_heads, L, head_width)``, where L differs from sentence to sentence."""
            jagged = torch.nested.nested_tensor_from_jagged(
                part.contiguous(),
                tokens.offsets,
                min_seqlen=shortest_group.length,
                max_seqlen=longest_group.length,
            )
            return jagged.transpose(1, 2)

        # ``(T, 3, n_heads, head_width)`` for the T tokens of sentences.
        by_head = self._linear(x, layer.qkv)[:end].view(end, 3, layer.n_heads, -1)
        query, key, value = map(nested, by_head.unbind(1))
        p = 0.0 if self.masks is None else layer.dropout
        attended = functional.scaled_dot_product_attention(query, key, value, dropout_p=p)
        context = attended.transpose(1, 2)
        # Tokens behind the last sentence get zeros.
        return functional.pad(context.values().flatten(1), (0, 0, 0, len(x) - end))


class PrepackedOperators(Operators):
    """The operators on weights in oneDNN's layout; its products include biases and activations."""

    def activate(self, x: Tensor, up: LinearWeights) -> Tensor:
        return self._linear(x, up, ACTIVATIONS[self.activation].fused)

    def arrange(self, weight: Tensor) -> Tensor:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(
            weight.contiguous(), _EXPECTED_ROWS
        )
        return packed

    def _linear(
        self, x: Tensor, linear: LinearWeights, activation: tuple[str, str] = ("none", "")
    ) -> Tensor:
        name, algorithm = activation
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(self.dtype), linear.weight, linear.bias, name, [], algorithm
        )
        return product


class NumpyOperators(Operators):
    """The operators on transposed float32 weights; the BLAS of NumPy computes the products."""

    def arrange(self, weight: Tensor) -> Tensor:
        return weight.t().contiguous()

    def _linear(self, x: Tensor, linear: LinearWeights) -> Tensor:
        product = x.new_empty(len(x), linear.weight.shape[1])
        numpy_product(x, linear.weight, product)
        if linear.bias is not None:
            product.add_(linear.bias)
        return product


def add_low_rank(product: Tensor, x: Tensor, linear: LinearWeights) -> Tensor:
    """Return ``product``, the output of a linear layer for x, plus what its LoRA factors add."""
    if linear.lora is None:
        return product
    return torch.addmm(product, functional.linear(x, linear.lora.down), linear.lora.up.t())


@torch.no_grad()
def inference_operators(parts: BackboneParts, dtype: torch.dtype) -> tuple[Operators, list[Layer]]:
    """Return operators without gradient or dropout, and the layers in the form that these take.

    Products are in ``dtype``.
    """
    kinds = {"prepacked": PrepackedOperators, "linear": Operators, "numpy": NumpyOperators}
    make_operators = kinds[product_in(parts.words.weight.device, dtype)]
    operators = make_operators(dtype, parts.activation)

    def arranged(tree: Any) -> Any:
        """Return a layer, or a part of one, with all weights in the layout of the operators."""
        if isinstance(tree, LinearWeights):
            bias = None if tree.bias is None else tree.bias.to(dtype)
            return LinearWeights(operators.arrange(tree.weight), bias)
        if isinstance(tree, Layer | Residual):
            return type(tree)(*map(arranged, tree))
        return tree

    return operators, [arranged(layer) for layer in read_layers(parts, dtype, merged=True)]
