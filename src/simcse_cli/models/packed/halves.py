"""A training pass over packed tokens as two passes over half of the sentences each, side by side on the cores.

Two threads with half of the cores each wait less than one with all of them, whose every step ends in waiting: each
half goes forward and backward by itself, and gradients are added in a fixed order. The sentences are halved on any
number of cores, so masks and sums are the same everywhere.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from simcse_cli.models.packed.architectures import BackboneParts, layer_parameters
from simcse_cli.models.packed.dropout import DropoutMasks, JoinedMasks
from simcse_cli.models.packed.fused import FusedLayers, can_fuse
from simcse_cli.models.packed.graph import GraphLayers
from simcse_cli.models.packed.layers import LayerRun
from simcse_cli.models.packed.memory import memory_of
from simcse_cli.models.packed.tokens import Half, PackedTokens, Share

# Compiled kernels use one thread a share. With more than this, PyTorch's many small steps on all threads are
# faster: an estimate, from 54 ms of kernels in steps of 500 ms on two threads.
_MOST_THREADS = 4


class _Layers(Protocol):
    """A pass through layers in shares; documented at ``FusedLayers``."""

    def forward(self, embedded: Sequence[Tensor], wanted: Collection[int]) -> list[dict[int, Tensor]]: ...

    def backward(
        self, gradients: Sequence[Mapping[int, Tensor]]
    ) -> tuple[list[Tensor], list[Tensor | None]]: ...


def can_halve(parts: BackboneParts, tokens: PackedTokens) -> bool:
    """Tell whether a pass is worth halving and can be: on a CPU, with all parameters inside the layers."""
    return tokens.is_large and parts.relative_bias is None


def run_halves(
    run: LayerRun,
    embedded: Tensor,
    tokens: PackedTokens,
    halves: tuple[Half, Half],
    masks: Sequence[DropoutMasks | None],
) -> dict[int, Tensor]:
    """Return what ``run.run`` returns, computed by halves; gradients flow to embeddings and layers.

    Equal up to rounding, given equal masks. The graph serves one backward pass, not two.

    Args:
        run: the pass.
        embedded: embeddings of all tokens, ``(T, H)``.
        tokens: all sentences.
        halves: of them, from ``PackedTokens.halves``.
        masks: for each half.

    Returns:
        States of the halves' tokens, ``(tokens, H)``, or of all first tokens, ``(R, H)``; those of layer 0 are
        ``embedded``.
    """
    fuses = can_fuse(run.parts, run.dtype) and torch.get_num_threads() <= _MOST_THREADS * len(halves)
    if run.first_only and not fuses:
        # By autograd, the last layer of first tokens multiplies too little to be worth halving.
        lower, last = run.without_last()
        if lower.parts.layers:
            states = run_halves(lower, embedded, tokens, halves, masks)[len(lower.parts.layers)]
        else:
            states = embedded
        first, rest = masks
        n_first = len(halves[0].tokens.order)
        joined = JoinedMasks(first, rest, n_first, len(tokens.order)) if first and rest else None
        return {len(run.parts.layers): last.run(states, tokens, joined)[1]}
    numbers = [number for number in run.wanted if number > 0]
    weights = [parameter for layer in run.parts.layers for _, parameter in layer_parameters(layer)]
    # Asked here: inside an autograd function gradients are always off, and its inputs do not tell whether they were.
    has_graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (embedded, *weights))
    shares = [Share(half.tokens, mask) for half, mask in zip(halves, masks, strict=True)]
    outputs = _Halves.apply(run, numbers, shares, has_graph, fuses, embedded, *weights)  # type: ignore[no-untyped-call]
    kept = dict(zip(numbers, outputs, strict=True))
    return {0: embedded} | kept if 0 in run.wanted else kept


class _Halves(torch.autograd.Function):
    """Both halves' passes as one step of the outer graph, from embeddings and weights to the wanted states."""

    @staticmethod
    def forward(
        ctx: Any,
        run: LayerRun,
        numbers: Sequence[int],
        shares: Sequence[Share],
        has_graph: bool,
        fuses: bool,
        embedded: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the states after the numbered layers."""
        layers: _Layers
        memory = memory_of(run.parts.words)
        if fuses:
            layers = FusedLayers(run.parts, run.dtype, shares, memory, first_only=run.first_only)
        else:
            layers = GraphLayers(run, shares, has_graph=has_graph)
        sizes = [share.n_tokens for share in shares]
        starts = torch.split(embedded.detach()[: sum(sizes)], sizes)
        states = layers.forward(starts, numbers)
        if has_graph:
            ctx.layers, ctx.memory, ctx.numbers = layers, memory, numbers
            ctx.sizes = {number: [len(own[number]) for own in states] for number in numbers}
            ctx.n_rest = len(embedded) - sum(sizes)
            ctx.set_materialize_grads(False)
        return tuple(memory.joined([own[number] for own in states]) for number in numbers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of embeddings and weights."""
        layers, ctx.layers = ctx.layers, None
        pairs = zip(ctx.numbers, gradients, strict=True)
        given = {number: torch.split(own, ctx.sizes[number]) for number, own in pairs if own is not None}
        n_shares = len(ctx.sizes[ctx.numbers[0]])
        by_share = [{n: parts[i] for n, parts in given.items()} for i in range(n_shares)]
        starts, of_weights = layers.backward(by_share)
        of_rest = starts[0].new_zeros(ctx.n_rest, starts[0].shape[1])
        return None, None, None, None, None, ctx.memory.joined([*starts, of_rest]), *of_weights
