"""The transformer layers over packed tokens, one after the other."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import Tensor, nn

from simcse_cli.models.packed.architectures import BackboneParts, LayerParts
from simcse_cli.models.packed.attention import RelativeBias, attend, attend_from_first
from simcse_cli.models.packed.dropout import DropoutMasks, add_dropped
from simcse_cli.models.packed.operators import LayerOperators, live_operators
from simcse_cli.models.packed.tokens import PackedTokens


@dataclass(frozen=True)
class LayerRun:
    """A pass through layers.

    Attributes:
        parts: the modules.
        dtype: arithmetic of the products.
        wanted: numbers of the layers whose states are returned, ascending; 0 for the embeddings.
        first_only: the last layer gives the states of first tokens only.
    """

    parts: BackboneParts
    dtype: torch.dtype
    wanted: tuple[int, ...]
    first_only: bool = False

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

    def without_last(self) -> tuple["LayerRun", "LayerRun"]:
        """Return the run in two: to the states before the last layer, and from these to its own."""
        *lower, last = self.parts.layers
        return (
            LayerRun(replace(self.parts, layers=tuple(lower)), self.dtype, (len(lower),)),
            LayerRun(replace(self.parts, layers=(last,)), self.dtype, (1,), self.first_only),
        )


def run_layers(
    parts: BackboneParts,
    operators: Iterable[LayerOperators],
    states: Tensor,
    tokens: PackedTokens,
    masks: DropoutMasks | None,
    *,
    wanted: Collection[int],
    first_only: bool = False,
) -> dict[int, Tensor]:
    """Return the states after the wanted layers, ``(T, H)`` each.

    Args:
        parts: the modules of the layers.
        operators: their products, layer by layer.
        states: embeddings, ``(T, H)``.
        tokens: which tokens form a sentence.
        masks: where dropout masks come from; None for no dropout.
        wanted: numbers of layers, 0 for the embeddings.
        first_only: the last layer gives the states of first tokens only, ``(R, H)``.
    """
    kept = {0: states} if 0 in wanted else {}
    for number, (modules, products) in enumerate(zip(parts.layers, operators, strict=True), 1):
        layer = _Layer(parts, modules, products)
        states = layer(states, tokens, masks, first_only=first_only and number == len(parts.layers))
        if number in wanted:
            kept[number] = states
    return kept


class _Mixing(TypedDict):
    """What both ways to attend are told alike."""

    dropout: float
    masks: DropoutMasks | None
    relative_bias: RelativeBias | None


@dataclass(frozen=True)
class _Layer:
    """One post-norm transformer layer with the operators that compute its products."""

    parts: BackboneParts
    modules: LayerParts
    operators: LayerOperators

    def __call__(
        self, states: Tensor, tokens: PackedTokens, masks: DropoutMasks | None, *, first_only: bool
    ) -> Tensor:
        """Map ``(T, H)`` to ``(T, H)``, or to ``(R, H)`` for the first tokens of sentences only."""
        modules = self.modules
        mix = _Mixing(
            dropout=active_probability(modules.attention_dropout),
            masks=masks,
            relative_bias=self.parts.relative_bias,
        )
        n_heads = self.parts.n_heads
        if first_only:
            states, mixed = attend_from_first(states, tokens, modules, n_heads, **mix)
        else:
            mixed = attend(self.operators.qkv(states), tokens, n_heads, **mix)
        update = self.operators.mix(mixed)
        states = modules.attention_norm(
            add_dropped(states, update, active_probability(modules.mix_dropout), masks)
        )
        update = self.operators.down(self.operators.up(states))
        normed: Tensor = modules.output_norm(
            add_dropped(states, update, active_probability(modules.output_dropout), masks)
        )
        return normed


def active_probability(dropout: nn.Dropout | None) -> float:
    """Return the probability with which a dropout module drops in its present mode."""
    return dropout.p if dropout is not None and dropout.training else 0.0
