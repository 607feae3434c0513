"""Layers computed by autograd, a graph for each share of the sentences."""

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from simcse_cli.models.packed.architectures import BackboneParts, layer_parameters
from simcse_cli.models.packed.layers import LayerRun
from simcse_cli.models.packed.tokens import ROUNDED_TO, Share


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
        self._graphs: dict[int, tuple[Tensor, dict[int, Tensor]]] = {}
        self._gradients: dict[int, Sequence[Tensor | None]] = {}

    def forward(self, number: int, embedded: Tensor, wanted: Collection[int]) -> dict[int, Tensor]:
        """Return a share's states after the wanted layers, ``(tokens, H)``; see ``FusedLayers.forward``."""
        share = self._shares[number]
        with torch.set_grad_enabled(self._has_graph):
            start = embedded.detach().requires_grad_(self._has_graph)
            rounded = nn.functional.pad(start, (0, 0, 0, -len(start) % ROUNDED_TO))
            found = replace(self._run, wanted=tuple(wanted)).run(rounded, share.tokens, share.masks)
            states = {n: layer[: share.n_tokens] for n, layer in found.items()}
        self._graphs[number] = (start, states)
        return {n: layer.detach() for n, layer in states.items()}

    def backward(self, number: int, gradients: Mapping[int, Tensor]) -> Tensor:
        """Return the gradient of a share's embeddings, ``(tokens, H)``; see ``FusedLayers.backward``."""
        start, states = self._graphs.pop(number)
        learning = [leaf for leaf in self._leaves if leaf.requires_grad]
        of_start, *self._gradients[number] = torch.autograd.grad(
            [states[n] for n in gradients], [start, *learning], list(gradients.values()), allow_unused=True
        )
        return torch.zeros_like(start) if of_start is None else of_start

    def gradients(self) -> list[Tensor | None]:
        """Return the gradients of all parameters of the layers; see ``FusedLayers.gradients``."""
        by_share = [self._gradients[number] for number in sorted(self._gradients)]
        sums = iter([_sum(gradients) for gradients in zip(*by_share, strict=True)])
        return [next(sums, None) if leaf.requires_grad else None for leaf in self._leaves]


def _sum(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """Return the sum of those that are there, in float32 at least."""
    first, *others = [gradient for gradient in gradients if gradient is not None] or [None]
    if first is None or not others:
        return first
    total = first.to(torch.promote_types(first.dtype, torch.float32))
    for gradient in others:
        total = total + gradient
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
