"""Transformer layers, and rows of an embedding table, in the form that the operators take."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from simcse_cli.machine.buffers import BufferPool
from simcse_cli.machine.threads import map_on_cores
from simcse_cli.packed.architectures import BackboneParts, LoraLinear, RelativeBias
from simcse_cli.packed.dropout import active_probability


class LowRank(NamedTuple):
    """LoRA's factors for a linear layer; they add ``(x down^T) up^T`` to its output.

    LoRA's scale is included in ``up``.
    """

    down: Tensor
    up: Tensor


class LinearWeights(NamedTuple):
    """Weight and bias of a linear layer, and the factors of its LoRA, unless that is merged."""

    weight: Tensor
    bias: Tensor | None
    lora: LowRank | None = None


class NormWeights(NamedTuple):
    """Weight and bias of a layer norm."""

    weight: Tensor
    bias: Tensor | None


class Residual(NamedTuple):
    """The end of half a layer: a linear layer, dropout, the sum with the states, and a norm."""

    linear: LinearWeights
    norm: NormWeights
    epsilon: float
    dropout: float


class Layer(NamedTuple):
    """One layer in one pass: its parameters and settings.

    Attributes:
        qkv: linear layer that gives query, key and value side by side.
        after_attention: end of the first half.
        up: linear layer before the activation.
        after_activation: end of the second half.
        n_heads: attention heads.
        dropout: probability to drop an attention weight.
        relative_bias: maps a length L to a bias on the scores, ``(n_heads, L, L)``; or None.
    """

    qkv: LinearWeights
    after_attention: Residual
    up: LinearWeights
    after_activation: Residual
    n_heads: int
    dropout: float
    relative_bias: RelativeBias | None = None


class QueryKeyValue(NamedTuple):
    """The three linear layers before attention."""

    query: LinearWeights
    key: LinearWeights
    value: LinearWeights


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Return a tree of tuples and lists with ``function(tensor)`` in place of every tensor."""
    if isinstance(tree, Tensor):
        return function(tree)
    if not isinstance(tree, tuple | list):
        return tree
    branches = [map_tensors(function, branch) for branch in tree]
    # A named tuple keeps its type; other branches become lists.
    return type(tree)(*branches) if hasattr(tree, "_fields") else branches


def query_key_value(parts: BackboneParts) -> QueryKeyValue:
    """Return the last layer's query, key and value layers, with LoRA merged into the weights."""
    last = parts.layers[-1]
    linears = (last.query, last.key, last.value)
    return QueryKeyValue(*(LinearWeights(linear.weight, linear.bias) for linear in linears))


def read_layers(
    parts: BackboneParts,
    dtype: torch.dtype,
    pool: BufferPool | None = None,
    *,
    merged: bool = False,
) -> list[Layer]:
    """Return the layers of a model; gradients flow through them to its parameters.

    The weights of matrix products are in ``dtype``. On a CPU, ``pool`` lends memory for copies of
    weights and for their gradients. With ``merged``, LoRA is merged into the weights; otherwise its
    factors are kept.
    """
    # The linear layers of each product. A layer has four products: query, key and value are one.
    products: list[list[LinearWeights]] = []
    for layer in parts.layers:
        attention = (layer.query, layer.key, layer.value)
        for modules in (attention, (layer.out_proj,), (layer.up,), (layer.down,)):
            products.append([_parameters(module, dtype, merged=merged) for module in modules])
    weights = [[linear.weight for linear in linears] for linears in products]
    joined = map(_side_by_side, products, _stacked(weights, dtype, pool))

    layers = []
    for layer in parts.layers:
        qkv, out, up, down = itertools.islice(joined, 4)  # the next four
        layers.append(
            Layer(
                qkv=qkv,
                after_attention=_residual(out, layer.attention_norm, layer.out_dropout),
                up=up,
                after_activation=_residual(down, layer.output_norm, layer.output_dropout),
                n_heads=parts.n_heads,
                dropout=active_probability(layer.attention_dropout),
                relative_bias=parts.relative_bias,
            )
        )
    return layers


def _residual(linear: LinearWeights, norm: nn.LayerNorm, dropout: nn.Dropout | None) -> Residual:
    weights = NormWeights(norm.weight, norm.bias)
    return Residual(linear, weights, norm.eps, active_probability(dropout))


def _parameters(
    linear: nn.Linear | LoraLinear, dtype: torch.dtype, *, merged: bool
) -> LinearWeights:
    """Return the weight and the bias of a linear layer, in their own type.

    LoRA is merged into the weight if ``merged``; otherwise its factors are returned, in ``dtype``.
    """
    if merged or isinstance(linear, nn.Linear):
        return LinearWeights(linear.weight, linear.bias)  # a LoraLinear's ``weight`` is merged
    lora = LowRank(linear.down.to(dtype), (linear.scale * linear.up).to(dtype))
    return LinearWeights(linear.base.weight, linear.bias, lora)


def _side_by_side(linears: Sequence[LinearWeights], weight: Tensor) -> LinearWeights:
    """Return linear layers as one, which gives their outputs side by side.

    ``weight`` holds their weights, stacked.
    """
    if len(linears) == 1:
        return linears[0]._replace(weight=weight)
    # Either all of them have a bias or none has.
    biases = [linear.bias for linear in linears if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    if all(linear.lora is None for linear in linears):
        return LinearWeights(weight, bias)
    # Down factors are stacked; up factors are blocks on a diagonal, each for its own outputs.
    downs = []
    ups = []
    for linear in linears:
        # Without LoRA, the factors have rank 0: down ``(0, D_in)`` and up ``(D_out, 0)``.
        no_lora = LowRank(weight[:0], weight.new_zeros(len(linear.weight), 0))
        down, up = no_lora if linear.lora is None else linear.lora
        downs.append(down)
        ups.append(up)
    all_ups = torch.block_diag(*ups)  # type: ignore[no-untyped-call]
    return LinearWeights(weight, bias, LowRank(torch.cat(downs), all_ups))


def _stacked(
    groups: Sequence[Sequence[Tensor]], dtype: torch.dtype, pool: BufferPool | None
) -> Sequence[Tensor]:
    """Return one matrix for each group: the matrices of the group, stacked and in ``dtype``.

    A group of one matrix that has this type already is not copied. On a CPU, ``pool``, if given,
    lends memory for the copies and their gradients.
    """
    weights = [group[0] for group in groups]  # copies replace some of them
    to_copy = [i for i, group in enumerate(groups) if len(group) > 1 or group[0].dtype is not dtype]
    if pool is None or weights[0].device.type != "cpu":
        for i in to_copy:
            weights[i] = torch.cat([matrix.to(dtype) for matrix in groups[i]])
    elif to_copy:
        n_matrices = [len(groups[i]) for i in to_copy]
        matrices = itertools.chain.from_iterable(groups[i] for i in to_copy)
        copies = _Cast.apply(dtype, pool, n_matrices, *matrices)  # type: ignore[no-untyped-call]
        for i, copy in zip(to_copy, copies, strict=True):
            weights[i] = copy
    return weights


class _Cast(torch.autograd.Function):
    """Copies in ``dtype``, one for each group of matrices, which it holds stacked; on all cores.

    The groups follow each other in ``matrices``; ``n_matrices`` are their sizes.
    """

    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, pool: BufferPool, n_matrices: Sequence[int], *matrices: Tensor
    ) -> tuple[Tensor, ...]:
        @torch.no_grad()  # map_on_cores enables gradients
        def copy(group: Sequence[Tensor]) -> Tensor:
            n_rows = list(map(len, group))
            out = pool.tensor((sum(n_rows), group[0].shape[1]), dtype)
            for part, matrix in zip(torch.split(out, n_rows), group, strict=True):
                part.copy_(matrix)
            return out

        ctx.pool = pool
        ctx.gradient_dtype = matrices[0].dtype
        remaining = iter(matrices)
        groups = [list(itertools.islice(remaining, n)) for n in n_matrices]
        ctx.n_rows = [list(map(len, group)) for group in groups]
        copies = list(map_on_cores(copy, groups))
        # Without this mark, copies of frozen weights would need a gradient, too.
        frozen = []
        for out, group in zip(copies, groups, strict=True):
            if not any(matrix.requires_grad for matrix in group):
                frozen.append(out)
        ctx.mark_non_differentiable(*frozen)
        ctx.set_materialize_grads(False)
        return tuple(copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_outs: Tensor | None) -> tuple[Tensor | None, ...]:
        @torch.no_grad()  # map_on_cores enables gradients
        def split(group: tuple[Tensor | None, list[int]]) -> list[Tensor | None]:
            """Cut the gradient of a group's stacked copy into the gradients of its matrices."""
            d_out, n_rows = group
            if d_out is None:
                return [None] * len(n_rows)
            gradients: list[Tensor | None] = []
            for part in torch.split(d_out, n_rows):
                gradient = ctx.pool.tensor(tuple(part.shape), ctx.gradient_dtype)
                gradients.append(gradient.copy_(part))
            return gradients

        groups = list(zip(d_outs, ctx.n_rows, strict=True))
        d_matrices = itertools.chain.from_iterable(map_on_cores(split, groups))
        return None, None, None, *d_matrices  # dtype, pool and n_matrices have no gradient


def look_up(table: nn.Embedding, ids: Tensor, pool: BufferPool) -> Tensor:
    """Return ``table(ids)``, ``(T, H)``; on a CPU, ``pool`` lends the memory of the gradient."""
    # The table's special options are left to PyTorch.
    is_plain = not table.sparse and not table.scale_grad_by_freq and table.max_norm is None
    if is_plain and ids.device.type == "cpu":
        rows: Tensor = _LookUp.apply(table.weight, ids, table.padding_idx, pool)  # type: ignore[no-untyped-call]
    else:
        rows = table(ids)
    return rows


class _LookUp(torch.autograd.Function):
    """Rows of an embedding table; a pool lends the memory for the gradient of the whole table."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, ids: Tensor, padding_id: int | None, pool: BufferPool
    ) -> Tensor:
        ctx.shape = tuple(weight.shape)
        ctx.ids = ids
        ctx.padding_id = padding_id
        ctx.pool = pool
        return weight.index_select(0, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_rows: Tensor) -> tuple[Tensor | None, ...]:
        d_weight = ctx.pool.tensor(ctx.shape, d_rows.dtype).zero_().index_add_(0, ctx.ids, d_rows)
        if ctx.padding_id is not None:
            d_weight[ctx.padding_id] = 0
        return d_weight, None, None, None
