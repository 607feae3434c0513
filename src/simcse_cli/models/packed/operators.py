"""The operators of a transformer layer in PyTorch: on the parameters for training, on prepacked weights for inference.

``compiled_operators`` has the same operators for training by compiled kernels.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from simcse_cli.machine.buffers import BufferPool
from simcse_cli.machine.devices import is_x86
from simcse_cli.machine.threads import map_on_cores
from simcse_cli.models.packed.architectures import (
    BackboneParts,
    LayerParts,
    LoraLinear,
    activation_function,
)
from simcse_cli.models.packed.attention import RelativeBias, attend, mix_states
from simcse_cli.models.packed.dropout import Masks, add_dropped
from simcse_cli.models.packed.tokens import PackedTokens

# Rows for which oneDNN lays out the weights; any other number of rows works, near ones work as fast.
_EXPECTED_ROWS = 2048
# Activation by configuration name, to what oneDNN calls it.
_FUSED: dict[str | None, tuple[str, str]] = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
}


class Affine(NamedTuple):
    """Weight and bias of a linear layer or a norm, None where it has none.

    Where a linear layer is trained by LoRA, ``(x down^T) up^T`` adds to its product; ``up`` has the scale in it.
    """

    weight: Tensor
    bias: Tensor | None
    down: Tensor | None = None
    up: Tensor | None = None


class LayerWeights(NamedTuple):
    """The parameters of one layer as its operators take them; ``qkv`` gives query, key and value side by side."""

    qkv: Affine
    out_proj: Affine
    attention_norm: Affine
    up: Affine
    down: Affine
    output_norm: Affine


class Operators:
    """What a layer is made of, in PyTorch. Each operator starts with its matrix product.

    Args:
        dtype: arithmetic of the products.
        activation: name in the configuration.
        masks: where dropout masks come from; None for no dropout.
    """

    def __init__(self, dtype: torch.dtype, activation: str, masks: Masks | None = None) -> None:
        self._dtype, self._activation, self._masks = dtype, activation, masks

    def attend(
        self,
        x: Tensor,
        qkv: Affine,
        tokens: PackedTokens,
        n_heads: int,
        *,
        dropout: float,
        relative_bias: RelativeBias | None = None,
    ) -> Tensor:
        """Return the context of attention within sentences, ``(T, D)``, of states ``(T, H)``."""
        product = self._linear(x, qkv)
        return attend(
            product, tokens, n_heads, dropout=dropout, masks=self._masks, relative_bias=relative_bias
        )

    def mix_states(
        self,
        states: Tensor,
        tokens: PackedTokens,
        queries: Tensor,
        offsets: Tensor,
        *,
        dropout: float,
        relative_bias: RelativeBias | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted sums of a sentence's states, see ``attention.mix_states``; it starts with no product."""
        return mix_states(states, tokens, queries, offsets, dropout, self._masks, relative_bias)

    def activate(self, x: Tensor, up: Affine) -> Tensor:
        """Return ``f(up(x))``, ``(T, F)``."""
        return activation_function(self._activation)(self._linear(x, up))

    def dropout_add_norm(
        self, states: Tensor, x: Tensor, linear: Affine, norm: Affine, *, epsilon: float, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """Return ``norm(states + dropout(linear(x)))``, and the same as operand of the next product."""
        total = add_dropped(states, self._linear(x, linear), dropout, self._masks)
        normed = functional.layer_norm(total, total.shape[-1:], norm.weight, norm.bias, epsilon)
        return normed, normed

    def _linear(self, x: Tensor, linear: Affine) -> Tensor:
        x, bias = x.to(self._dtype), None if linear.bias is None else linear.bias.to(self._dtype)
        return add_low_rank(functional.linear(x, linear.weight, bias), x, linear)


class NestedOperators(Operators):
    """The operators with attention over all sentences in one call, by PyTorch's nested tensors: for GPUs."""

    def attend(
        self,
        x: Tensor,
        qkv: Affine,
        tokens: PackedTokens,
        n_heads: int,
        *,
        dropout: float,
        relative_bias: RelativeBias | None = None,
    ) -> Tensor:
        """See ``Operators``."""
        if relative_bias is not None:  # which no kernel for sentences of many lengths takes
            return super().attend(x, qkv, tokens, n_heads, dropout=dropout, relative_bias=relative_bias)
        n_tokens, longest, shortest = tokens.groups[-1].end, tokens.groups[0].length, tokens.groups[-1].length
        by_head = self._linear(x, qkv)[:n_tokens].view(n_tokens, 3, n_heads, -1)
        query, key, value = (
            torch.nested.nested_tensor_from_jagged(
                part.contiguous(), tokens.offsets, min_seqlen=shortest, max_seqlen=longest
            ).transpose(1, 2)
            for part in by_head.unbind(1)
        )
        p = 0.0 if self._masks is None else dropout
        context = functional.scaled_dot_product_attention(query, key, value, dropout_p=p).transpose(1, 2)
        return functional.pad(context.values().flatten(1), (0, 0, 0, len(x) - n_tokens))


class PrepackedOperators(Operators):
    """The operators on weights in oneDNN's own layout, which adds biases and activations to the products."""

    def activate(self, x: Tensor, up: Affine) -> Tensor:
        """See ``Operators``."""
        return self._linear(x, up, self._activation)

    def _linear(self, x: Tensor, linear: Affine, activation: str | None = None) -> Tensor:
        name, algorithm = _FUSED[activation]
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(self._dtype), linear.weight, linear.bias, name, [], algorithm
        )
        return product


def add_low_rank(product: Tensor, x: Tensor, linear: Affine) -> Tensor:
    """Return the product of ``x`` with a linear layer and what LoRA adds to it."""
    if linear.down is None or linear.up is None:
        return product
    return torch.addmm(product, functional.linear(x, linear.down), linear.up.t())


def layer_weights(
    layers: Sequence[LayerParts], dtype: torch.dtype, pool: BufferPool | None = None, *, merged: bool = False
) -> list[LayerWeights]:
    """Return the parameters of each layer, those of products in ``dtype``; gradients flow to the parameters.

    Args:
        layers: the modules.
        dtype: of the products.
        pool: where copies of weights and the gradients that come of them stand, on a CPU; None for new memory.
        merged: LoRA is merged into the weight that it adapts; else it stands beside it.
    """
    products = [
        [_parameters(linear, dtype, merged=merged) for linear in linears]
        for layer in layers
        for linears in ((layer.query, layer.key, layer.value), (layer.out_proj,), (layer.up,), (layer.down,))
    ]
    copied = _copied([[part.weight for part in parts] for parts in products], dtype, pool)
    joined = iter([_side_by_side(parts, weight) for parts, weight in zip(products, copied, strict=True)])
    return [
        LayerWeights(
            qkv=next(joined),
            out_proj=next(joined),
            attention_norm=affine(layer.attention_norm),
            up=next(joined),
            down=next(joined),
            output_norm=affine(layer.output_norm),
        )
        for layer in layers
    ]


def affine(module: nn.Linear | LoraLinear | nn.LayerNorm) -> Affine:
    """Return the parameters of a module, with LoRA merged into the weight."""
    return Affine(module.weight, module.bias)


def _parameters(linear: nn.Linear | LoraLinear, dtype: torch.dtype, *, merged: bool) -> Affine:
    """Return the parameters of a linear layer, those of LoRA in ``dtype``."""
    if merged or isinstance(linear, nn.Linear):
        return affine(linear)
    return Affine(
        linear.base.weight, linear.bias, linear.down.to(dtype), (linear.scale * linear.up).to(dtype)
    )


def _side_by_side(linears: Sequence[Affine], weight: Tensor) -> Affine:
    """Return the linear layer whose outputs are those of all, one after the other, given the weight of all."""
    if len(linears) == 1:
        return linears[0]._replace(weight=weight)
    biases = [linear.bias for linear in linears if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    if all(linear.down is None for linear in linears):
        return Affine(weight, bias)
    downs = [weight[:0] if linear.down is None else linear.down for linear in linears]
    ups = [weight.new_zeros(len(linear.weight), 0) if linear.up is None else linear.up for linear in linears]
    return Affine(weight, bias, torch.cat(downs), torch.block_diag(*ups))  # type: ignore[no-untyped-call]


def _copied(
    groups: Sequence[Sequence[Tensor]], dtype: torch.dtype, pool: BufferPool | None
) -> Sequence[Tensor]:
    """Return the matrices of each group one below the other in ``dtype``; one alone that has it is no copy."""
    weights = [group[0] for group in groups]
    needed = [i for i, group in enumerate(groups) if len(group) > 1 or group[0].dtype is not dtype]
    if pool is None or weights[0].device.type != "cpu":
        copies = [torch.cat([matrix.to(dtype) for matrix in groups[i]]) for i in needed]
    else:
        n_matrices = [len(groups[i]) for i in needed]
        flat = [matrix for i in needed for matrix in groups[i]]
        copies = _Cast.apply(dtype, pool, n_matrices, *flat) if flat else []  # type: ignore[no-untyped-call]
    for i, copy in zip(needed, copies, strict=True):
        weights[i] = copy
    return weights


class _Cast(torch.autograd.Function):
    """Groups of matrices in another type, those of a group one below the other, copied on all cores."""

    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, pool: BufferPool, n_matrices: Sequence[int], *matrices: Tensor
    ) -> tuple[Tensor, ...]:
        @torch.no_grad()
        def copy(group: Sequence[Tensor]) -> Tensor:
            n_rows = [len(matrix) for matrix in group]
            out = pool.tensor((sum(n_rows), group[0].shape[1]), dtype)
            for part, matrix in zip(torch.split(out, n_rows), group, strict=True):
                part.copy_(matrix)
            return out

        ctx.pool, ctx.dtype = pool, matrices[0].dtype
        rest = iter(matrices)
        groups = [list(itertools.islice(rest, n)) for n in n_matrices]
        ctx.n_rows = [[len(matrix) for matrix in group] for group in groups]
        copies = list(map_on_cores(copy, groups))
        ctx.mark_non_differentiable(
            *(
                out
                for out, group in zip(copies, groups, strict=True)
                if not any(m.requires_grad for m in group)
            )
        )
        ctx.set_materialize_grads(False)
        return tuple(copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_outs: Tensor | None) -> tuple[Tensor | None, ...]:
        @torch.no_grad()
        def copy(group: tuple[Tensor | None, list[int]]) -> list[Tensor | None]:
            d_out, n_rows = group
            if d_out is None:
                return [None] * len(n_rows)
            return [
                ctx.pool.tensor(tuple(part.shape), ctx.dtype).copy_(part)
                for part in torch.split(d_out, n_rows)
            ]

        groups = list(zip(d_outs, ctx.n_rows, strict=True))
        return None, None, None, *itertools.chain.from_iterable(map_on_cores(copy, groups))


@torch.no_grad()
def inference_operators(parts: BackboneParts, dtype: torch.dtype) -> tuple[Operators, list[LayerWeights]]:
    """Return operators without gradient or dropout, and the weights that they take: copies in ``dtype``."""
    weights = layer_weights(parts.layers, dtype, merged=True)
    if not _can_prepack(parts.words.weight.device, dtype):
        return Operators(dtype, parts.activation), weights
    packed = [LayerWeights(*_prepacked(layer, dtype)) for layer in weights]
    return PrepackedOperators(dtype, parts.activation), packed


def _prepacked(layer: LayerWeights, dtype: torch.dtype) -> Iterator[Affine]:
    for name, (weight, bias, *_) in layer._asdict().items():
        if name.endswith("norm"):
            yield Affine(weight, bias)
        else:
            laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _EXPECTED_ROWS)
            yield Affine(laid_out, None if bias is None else bias.to(dtype))


def _can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether oneDNN's weight layout is there and pays: x86, float32 or native bfloat16."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not is_x86():
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32
