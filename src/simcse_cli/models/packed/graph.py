"""Layers computed by autograd, a graph for each share of the sentences."""

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from simcse_cli.models.cores import map_on_cores
from simcse_cli.models.packed.architectures import BackboneParts, layer_parameters
from simcse_cli.models.packed.layers import LayerRun
from simcse_cli.models.packed.tokens import ROUNDED_TO, Share


class _Graph(NamedTuple):
    """A share's pass: from its embeddings to its states, with the graph between them where there is one."""

    start: Tensor
    states: dict[int, Tensor]


class GraphLayers:
    """One pass through the layers of a model, with the methods of ``FusedLayers``.

    Args:
        run: the pass.
        shares: of the sentences.
        has_graph: whether ``backward`` will be called.
    """

    def __init__(self, run: LayerRun, shares: Sequence[Share], *, has_graph: bool) -> None:
        self._shares, self._has_graph = shares, has_graph
        self._leaves = [
            nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad and has_graph)
            for parameter, dtype in _arithmetic(run)
        ]
        self._run = replace(run, parts=_with_parameters(run.parts, self._leaves))
        self._graphs: list[_Graph] = []

    def forward(self, embedded: Sequence[Tensor], wanted: Collection[int]) -> list[dict[int, Tensor]]:
        """Return each share's states after the wanted layers, ``(tokens, H)``; see ``FusedLayers.forward``."""

        def forward(number: int) -> _Graph:
            return self._forward(self._shares[number], embedded[number], wanted)

        self._graphs = list(map_on_cores(forward, range(len(self._shares))))
        return [{n: layer.detach() for n, layer in graph.states.items()} for graph in self._graphs]

    def _forward(self, share: Share, embedded: Tensor, wanted: Collection[int]) -> _Graph:
        with torch.set_grad_enabled(self._has_graph):
            start = embedded.detach().requires_grad_(self._has_graph)
            rounded = nn.functional.pad(start, (0, 0, 0, -len(start) % ROUNDED_TO))
            found = replace(self._run, wanted=tuple(wanted)).run(rounded, share.tokens, share.masks)
            states = {n: layer[: share.n_tokens] for n, layer in found.items()}
        return _Graph(start, states)

    def backward(self, gradients: Sequence[Mapping[int, Tensor]]) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the gradients of embeddings and parameters; see ``FusedLayers.backward``."""
        graphs, self._graphs = self._graphs, []
        learning = [leaf for leaf in self._leaves if leaf.requires_grad]

        def backward(number: int) -> tuple[Tensor | None, ...]:
            start, states = graphs[number]
            return torch.autograd.grad(
                [states[n] for n in gradients[number]],
                [start, *learning],
                list(gradients[number].values()),
                allow_unused=True,
            )

        by_share = list(map_on_cores(backward, range(len(graphs))))
        starts = [
            torch.zeros_like(graph.start) if own[0] is None else own[0]
            for graph, own in zip(graphs, by_share, strict=True)
        ]
        sums = iter([_sum(found) for found in zip(*(own[1:] for own in by_share), strict=True)])
        return starts, [next(sums) if leaf.requires_grad else None for leaf in self._leaves]


def _sum(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """Return the sum of those that are there, in float32 at least."""
    total: Tensor | None = None
    for gradient in gradients:
        if gradient is None or total is None:
            total = gradient if total is None else total
        else:
            total = total.to(torch.promote_types(total.dtype, torch.float32)) + gradient
    return total


def _arithmetic(run: LayerRun) -> Iterator[tuple[nn.Parameter, torch.dtype]]:
    """Yield the layers' parameters, each with the type in which it is used: of linear layers that of the products."""
    for layer in run.parts.layers:
        for name, parameter in layer_parameters(layer):
            module = getattr(layer, name.partition(".")[0])
            yield parameter, run.dtype if isinstance(module, nn.Linear) else parameter.dtype


def _with_parameters(parts: BackboneParts, parameters: Sequence[nn.Parameter]) -> BackboneParts:
    """Return the parts with other parameters in place of the layers' own; the model keeps these."""
    values = iter(parameters)
    layers = []
    for layer in parts.layers:
        twins: dict[str, Any] = {
            name: _twin(module, values)
            for name, module in vars(layer).items()
            if isinstance(module, nn.Linear | nn.LayerNorm)
        }
        layers.append(replace(layer, **twins))
    return replace(parts, layers=tuple(layers))


def _twin(module: nn.Module, values: Iterator[nn.Parameter]) -> nn.Module:
    """Return a shallow copy of a module that holds the next parameters."""
    twin = copy.copy(module)
    twin._parameters = {
        name: None if parameter is None else next(values) for name, parameter in module._parameters.items()
    }
    return twin
