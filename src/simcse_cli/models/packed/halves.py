"""A training pass over packed tokens as two passes over half of the sentences each, side by side on the cores.

Two threads with half of the cores each wait less than one with all of them, whose every step ends in waiting: each
half has its own graph, forward and backward, and the gradients of both are added in a fixed order. The sentences are
halved on any number of cores, so masks and sums are the same everywhere.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from simcse_cli.models.cores import map_on_cores
from simcse_cli.models.packed.architectures import BackboneParts, LayerParts
from simcse_cli.models.packed.dropout import DropoutMasks
from simcse_cli.models.packed.layers import run_layers
from simcse_cli.models.packed.operators import LayerOperators, live_operators
from simcse_cli.models.packed.tokens import ROUNDED_TO, Half, PackedTokens

# With fewer tokens, starting threads and adding gradients costs more than it saves.
_WORTH_HALVING = 1024


@dataclass(frozen=True)
class LayerRun:
    """A pass through the layers.

    Attributes:
        parts: the modules.
        dtype: arithmetic of the products.
        wanted: numbers of the layers whose states are returned, ascending; 0 for the embeddings.
        first_only: the last layer gives the states of first tokens only.
    """

    parts: BackboneParts
    dtype: torch.dtype
    wanted: tuple[int, ...]
    first_only: bool

    def run(
        self,
        embedded: Tensor,
        tokens: PackedTokens,
        masks: DropoutMasks | None,
        prepared: Iterable[LayerOperators] | None = None,
    ) -> dict[int, Tensor]:
        """Return the wanted states, on prepared weights where there are some; see ``run_layers``."""
        operators = live_operators(self.parts, self.dtype) if prepared is None else prepared
        return run_layers(
            self.parts, operators, embedded, tokens, masks, wanted=self.wanted, first_only=self.first_only
        )

    def is_of_rows(self, number: int) -> bool:
        """Tell whether the states after a layer are those of first tokens."""
        return self.first_only and number == len(self.parts.layers)


def can_halve(parts: BackboneParts, tokens: PackedTokens) -> bool:
    """Tell whether a pass is worth halving and can be: on a CPU, with all parameters inside the layers."""
    is_on_cpu = tokens.ids.device.type == "cpu"
    return is_on_cpu and len(tokens.ids) >= _WORTH_HALVING and parts.relative_bias is None


def run_halves(
    run: LayerRun, embedded: Tensor, halves: tuple[Half, Half], masks: Sequence[DropoutMasks | None]
) -> dict[int, Tensor]:
    """Return what ``run.run`` returns, computed by halves; gradients flow to embeddings and layers.

    Equal up to rounding, given equal masks. The graph serves one backward pass, not two.

    Args:
        run: the pass.
        embedded: embeddings of all tokens, ``(T, H)``.
        halves: from ``PackedTokens.halves``.
        masks: for each half.
    """
    numbers, weights = [number for number in run.wanted if number > 0], _weights(run.parts)
    # Asked here: inside an autograd function gradients are always off, and its inputs do not tell whether they were.
    has_graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (embedded, *weights))
    outputs = _Halves.apply(run, numbers, halves, masks, has_graph, embedded, *weights)  # type: ignore[no-untyped-call]
    kept = dict(zip(numbers, outputs, strict=True))
    return {0: embedded} | kept if 0 in run.wanted else kept


@dataclass(frozen=True)
class _Graph:
    """One half's pass: from its embeddings to its states, with the graph between them where there is one."""

    embedded: Tensor
    states: list[Tensor]


class _Halves(torch.autograd.Function):
    """Both halves' passes as one step of the outer graph, from embeddings and weights to the wanted states."""

    @staticmethod
    def forward(
        ctx: Any,
        run: LayerRun,
        numbers: Sequence[int],
        halves: tuple[Half, Half],
        masks: Sequence[DropoutMasks | None],
        has_graph: bool,
        embedded: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the states after the numbered layers."""
        leaves = [
            nn.Parameter(weight.detach().to(dtype), weight.requires_grad and has_graph)
            for weight, dtype in zip(weights, _arithmetic(run), strict=True)
        ]
        own = replace(run, parts=_with_weights(run.parts, leaves))

        def forward_half(half_masks: tuple[Half, DropoutMasks | None]) -> _Graph:
            half, mask = half_masks
            tokens = half.tokens
            with torch.set_grad_enabled(has_graph):
                start = embedded[half.token_range].detach().requires_grad_(has_graph)
                kept = own.run(_rounded_up(start), tokens, mask)
                n_tokens = len(tokens.ids)
                states = [kept[n] if run.is_of_rows(n) else kept[n][:n_tokens] for n in numbers]
            return _Graph(start, states)

        graphs = list(map_on_cores(forward_half, list(zip(halves, masks, strict=True))))
        if has_graph:
            ctx.run, ctx.numbers, ctx.halves, ctx.graphs, ctx.leaves = run, numbers, halves, graphs, leaves
            ctx.n_rest = len(embedded) - sum(len(graph.embedded) for graph in graphs)
            ctx.set_materialize_grads(False)
        return tuple(torch.cat(pair).detach() for pair in zip(*(g.states for g in graphs), strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of embeddings and weights."""
        halves, graphs, leaves, ctx.graphs = ctx.halves, ctx.graphs, ctx.leaves, None
        learning = [leaf for leaf in leaves if leaf.requires_grad]

        def backward_half(index: int) -> tuple[Tensor | None, ...]:
            half = halves[index]
            pairs = [
                (states, gradient[half.row_range if ctx.run.is_of_rows(number) else half.token_range])
                for number, states, gradient in zip(ctx.numbers, graphs[index].states, gradients, strict=True)
                if gradient is not None
            ]
            return torch.autograd.grad(
                [states for states, _ in pairs],
                [graphs[index].embedded, *learning],
                [gradient for _, gradient in pairs],
                allow_unused=True,
            )

        by_half = list(map_on_cores(backward_half, range(len(halves))))
        starts = [
            torch.zeros_like(graph.embedded) if own[0] is None else own[0]
            for graph, own in zip(graphs, by_half, strict=True)
        ]
        of_rest = starts[0].new_zeros(ctx.n_rest, starts[0].shape[1])
        sums = iter([_sum(one, other) for one, other in zip(*(own[1:] for own in by_half), strict=True)])
        of_weights = [next(sums) if leaf.requires_grad else None for leaf in leaves]
        return None, None, None, None, None, torch.cat([*starts, of_rest]), *of_weights


def _rounded_up(states: Tensor) -> Tensor:
    """Return states with zeros after them, so that kernels serve many sizes."""
    return nn.functional.pad(states, (0, 0, 0, -len(states) % ROUNDED_TO))


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the sum in float32 at least."""
    if one is None or other is None:
        return one if other is None else other
    return one.to(torch.promote_types(one.dtype, torch.float32)) + other


def _modules(layer: LayerParts) -> Iterator[tuple[str, nn.Module]]:
    """Yield the fields of a layer that hold parameters."""
    for name, module in vars(layer).items():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            yield name, module


def _weights(parts: BackboneParts) -> list[Tensor]:
    """Return all parameters of the layers, in a fixed order."""
    return [p for layer in parts.layers for _, module in _modules(layer) for p in module.parameters()]


def _arithmetic(run: LayerRun) -> Iterator[torch.dtype]:
    """Yield the type in which each of ``_weights`` is used: linear layers in that of the products."""
    for number, layer in enumerate(run.parts.layers, 1):
        for name, module in _modules(layer):
            of_states = run.is_of_rows(number) and name in ("query", "key", "value")
            is_cast = isinstance(module, nn.Linear) and not of_states
            for parameter in module.parameters():
                yield run.dtype if is_cast else parameter.dtype


def _with_weights(parts: BackboneParts, weights: Sequence[nn.Parameter]) -> BackboneParts:
    """Return the parts with other parameters in place of the layers' own; the model keeps these."""
    values = iter(weights)
    layers = []
    for layer in parts.layers:
        twins: dict[str, Any] = {name: _twin(module, values) for name, module in _modules(layer)}
        layers.append(replace(layer, **twins))
    return replace(parts, layers=tuple(layers))


def _twin(module: nn.Module, values: Iterator[nn.Parameter]) -> nn.Module:
    """Return a shallow copy of a module that holds the next parameters."""
    twin = copy.copy(module)
    twin._parameters = {
        name: None if parameter is None else next(values) for name, parameter in module._parameters.items()
    }
    return twin
