"""The forward pass of a BERT-family encoder over packed tokens, on the parameters of the model itself."""

import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.models.packed.architectures import BackboneParts, read_parts
from simcse_cli.models.packed.attention import attend
from simcse_cli.models.packed.dropout import DropoutMasks, add_dropped
from simcse_cli.models.packed.operators import LayerOperators, live_operators, prepared_operators
from simcse_cli.models.packed.tokens import PackedTokens, pack

_Fingerprint = tuple[tuple[int, int], ...]


class _PreparedWeights:
    """Operators for inference, one set for each arithmetic, made again when the parameters have changed."""

    def __init__(self) -> None:
        self._operators: dict[torch.dtype, tuple[_Fingerprint, list[LayerOperators]]] = {}

    def get(self, parts: BackboneParts, dtype: torch.dtype) -> list[LayerOperators]:
        """Return operators that hold the present weights."""
        fingerprint = _fingerprint(parts)
        made = self._operators.get(dtype)
        if made is None or made[0] != fingerprint:
            made = (fingerprint, prepared_operators(parts, dtype))
            self._operators[dtype] = made
        return made[1]


# Prepared weights live as long as the model they were made from and never enter its state or its copies.
_PREPARED: weakref.WeakKeyDictionary[nn.Module, _PreparedWeights] = weakref.WeakKeyDictionary()


def _fingerprint(parts: BackboneParts) -> _Fingerprint:
    """Return address and version of each parameter: another value after any optimizer step or load."""
    modules = [
        module for layer in parts.layers for module in vars(layer).values() if isinstance(module, nn.Module)
    ]
    tensors = [tensor for module in modules for tensor in module.parameters()]
    return tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)


class PackedBackbone:
    """A model seen as a function of packed tokens; holds no parameters of its own.

    Args:
        backbone: the Hugging Face model.
        parts: its modules.
    """

    def __init__(self, backbone: nn.Module, parts: BackboneParts) -> None:
        self._backbone = backbone
        self._parts = parts

    @property
    def n_layers(self) -> int:
        """Number of transformer layers."""
        return len(self._parts.layers)

    @property
    def max_tokens(self) -> int:
        """Most tokens a sentence may have: positions that the model knows."""
        return self._parts.position_table.num_embeddings - self._parts.first_position

    def pack(self, rows: Sequence[Sequence[int]], *, multiple: int = 1) -> PackedTokens:
        """Return token-id rows laid end to end with the positions of this architecture; see ``pack``."""
        parts = self._parts
        return pack(rows, first_position=parts.first_position, pad_id=parts.pad_id, multiple=multiple)

    def hidden_states(
        self, tokens: PackedTokens, *, layers: Sequence[int] = (-1,), dtype: torch.dtype | None = None
    ) -> list[Tensor]:
        """Return states ``(T, H)`` after the embeddings (0) and after each layer (1 to ``n_layers``).

        In training mode dropout applies with the probabilities of the model's own modules. Equal to the
        model's padded forward pass up to rounding.

        Args:
            tokens: from ``pack``.
            layers: which states to return, negative numbers from the end.
            dtype: arithmetic of the products; default is autocast's where that is on, else the parameters'.

        Returns:
            One tensor for each of ``layers``.
        """
        wanted = [index % (self.n_layers + 1) for index in layers]
        dtype = dtype or self._default_dtype()
        kept: dict[int, Tensor] = {}
        with torch.autocast(tokens.ids.device.type, enabled=False):
            masks = DropoutMasks() if self._drops() else None
            states = self._embed(tokens, masks).to(dtype)
            kept[0] = states
            for index, operators in enumerate(self._operators(dtype), 1):
                states = self._run_layer(index - 1, operators, states, tokens, masks)
                if index in wanted:
                    kept[index] = states
        return [kept[index] for index in wanted]

    def _default_dtype(self) -> torch.dtype:
        weight = self._parts.words.weight
        if torch.is_autocast_enabled(weight.device.type):
            return torch.get_autocast_dtype(weight.device.type)
        return weight.dtype

    def _drops(self) -> bool:
        """Tell whether any dropout is active."""
        parts = self._parts
        layer_drops = (
            d
            for layer in parts.layers
            for d in (layer.attention_dropout, layer.mix_dropout, layer.output_dropout)
        )
        return any(_probability(dropout) > 0 for dropout in (parts.embedding_dropout, *layer_drops))

    def _operators(self, dtype: torch.dtype) -> Iterable[LayerOperators]:
        if torch.is_grad_enabled() or self._backbone.training:
            return live_operators(self._parts, dtype)
        return _PREPARED.setdefault(self._backbone, _PreparedWeights()).get(self._parts, dtype)

    def _embed(self, tokens: PackedTokens, masks: DropoutMasks | None) -> Tensor:
        parts = self._parts
        states: Tensor = parts.words(tokens.ids) + parts.position_table(tokens.positions)
        if parts.segment_table is not None:
            states = states + parts.segment_table.weight[0]
        states = parts.embedding_norm(states)
        if masks is not None and (p := _probability(parts.embedding_dropout)) > 0:
            mask, scale = masks.keep(states, p)
            states = states * mask * scale
        if parts.projection is not None:
            states = functional.linear(states, parts.projection.weight, parts.projection.bias)
        return states

    def _run_layer(
        self,
        index: int,
        operators: LayerOperators,
        states: Tensor,
        tokens: PackedTokens,
        masks: DropoutMasks | None,
    ) -> Tensor:
        layer = self._parts.layers[index]
        mixed = attend(
            operators.qkv(states),
            tokens,
            self._parts.n_heads,
            dropout=_probability(layer.attention_dropout),
            masks=masks,
            relative_bias=self._parts.relative_bias,
        )
        update = operators.mix(mixed)
        states = operators.attention_norm(add_dropped(states, update, _probability(layer.mix_dropout), masks))
        update = operators.down(operators.up(states))
        return operators.output_norm(add_dropped(states, update, _probability(layer.output_dropout), masks))


def _probability(dropout: nn.Dropout | None) -> float:
    """Return the probability with which a dropout module drops in its present mode."""
    return dropout.p if dropout is not None and dropout.training else 0.0


def packed_backbone(backbone: nn.Module) -> PackedBackbone | None:
    """Return the packed form of a model, or None for an architecture or a setting that has none.

    Cheap enough to ask for at every forward pass: nothing is copied, and weights prepared for inference are
    kept between calls until they change.
    """
    parts = read_parts(backbone)
    return None if parts is None else PackedBackbone(backbone, parts)
