"""The forward pass of a BERT-family encoder over packed tokens, on the parameters of the model itself."""

import weakref
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.models.packed.architectures import BackboneParts, read_parts
from simcse_cli.models.packed.dropout import DropoutMasks
from simcse_cli.models.packed.embeddings import can_embed, embed
from simcse_cli.models.packed.fused import can_fuse
from simcse_cli.models.packed.halves import can_halve, run_halves
from simcse_cli.models.packed.layers import LayerRun, active_probability
from simcse_cli.models.packed.operators import LayerOperators, prepared_operators
from simcse_cli.models.packed.tokens import LARGE, PackedTokens, pack

_Fingerprint = tuple[tuple[int, int, float], ...]
_SAMPLES = 64  # values of each weight that are looked at to notice a change


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


def _prepared(backbone: nn.Module, parts: BackboneParts, dtype: torch.dtype) -> list[LayerOperators]:
    return _PREPARED.setdefault(backbone, _PreparedWeights()).get(parts, dtype)


def forget_prepared(backbone: nn.Module) -> None:
    """Free the prepared weights of a model, for instance of one about to be trained."""
    _PREPARED.pop(backbone, None)


def _fingerprint(parts: BackboneParts) -> _Fingerprint:
    """Return what changes with the weights: address, version and a sample of the values of each.

    The sample is needed because fused optimizers leave the version as it was; their steps move every weight.
    """
    modules = (module for layer in parts.layers for module in vars(layer).values())
    weights = [module.weight for module in modules if isinstance(module, nn.Linear)]
    return tuple(
        (weight.data_ptr(), 0 if weight.is_inference() else weight._version, _sample_sum(weight))
        for weight in weights
    )


def _sample_sum(weight: Tensor) -> float:
    values = weight.detach().view(-1)
    return float(values[:: max(1, len(values) // _SAMPLES)].sum())


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

    def prepare(self, dtype: torch.dtype | None = None) -> None:
        """Prepare the weights for inference, before several threads ask for them."""
        _prepared(self._backbone, self._parts, dtype or self._default_dtype())

    def hidden_states(
        self, tokens: PackedTokens, *, layers: Sequence[int] = (-1,), dtype: torch.dtype | None = None
    ) -> list[Tensor]:
        """Return states ``(T, H)`` after the embeddings (0) and after each layer (1 to ``n_layers``).

        In training mode dropout applies with the probabilities of the model's own modules. Equal to the
        model's padded forward pass up to rounding.

        Args:
            tokens: from ``pack``.
            layers: which states to return, negative numbers from the end.
            dtype: arithmetic of the matrix products; default is autocast's where that is on, else the
                parameters'. States between the products keep the type of the parameters.

        Returns:
            One tensor for each of ``layers``.
        """
        wanted = [index % (self.n_layers + 1) for index in layers]
        kept = self._run(tokens, dtype, wanted=wanted)
        return [kept[index] for index in wanted]

    def first_token_states(self, tokens: PackedTokens, *, dtype: torch.dtype | None = None) -> Tensor:
        """Return the last layer's state of each sentence's first token, ``(R, H)`` in packed order.

        The last layer multiplies nothing but first tokens by its weights (``attend_from_first``), which saves
        nearly all of that layer.
        """
        return self._run(tokens, dtype, wanted=(self.n_layers,), first_only=True)[self.n_layers]

    def _run(
        self,
        tokens: PackedTokens,
        dtype: torch.dtype | None,
        *,
        wanted: Collection[int],
        first_only: bool = False,
    ) -> dict[int, Tensor]:
        """Return the states after the wanted layers, the last of first tokens if asked."""
        dtype, drops = dtype or self._default_dtype(), self._drops()
        masks = DropoutMasks() if drops else None
        run = LayerRun(self._parts, dtype, tuple(sorted(set(wanted))), first_only=first_only)
        with torch.autocast(tokens.ids.device.type, enabled=False):
            embedded = self._embed(tokens, masks)
            if not self._is_live():
                return run.run(embedded, tokens, masks, _prepared(self._backbone, self._parts, dtype))
            halves = tokens.halves() if can_halve(self._parts, tokens) else None
            if halves is None:
                return run.run(embedded, tokens, masks)
            pair = (DropoutMasks(), DropoutMasks()) if drops else (None, None)
            return run_halves(run, embedded, tokens, halves, pair)

    def _default_dtype(self) -> torch.dtype:
        weight = self._parts.words.weight
        if torch.is_autocast_enabled(weight.device.type):
            return torch.get_autocast_dtype(weight.device.type)
        return weight.dtype

    def _drops(self) -> bool:
        """Tell whether any dropout is active."""
        dropouts: list[nn.Dropout | None] = [self._parts.embedding_dropout]
        for layer in self._parts.layers:
            dropouts += (layer.attention_dropout, layer.mix_dropout, layer.output_dropout)
        return any(active_probability(dropout) > 0 for dropout in dropouts)

    def _is_live(self) -> bool:
        """Tell whether to compute on the parameters themselves."""
        return torch.is_grad_enabled() or self._backbone.training

    def _embed(self, tokens: PackedTokens, masks: DropoutMasks | None) -> Tensor:
        parts, p = self._parts, active_probability(self._parts.embedding_dropout)
        if self._is_live() and tokens.is_large and can_embed(parts):
            states = embed(parts, tokens, p, masks)
        else:
            states = parts.words(tokens.ids) + parts.position_table(tokens.positions)
            if parts.segment_table is not None:
                states = states + parts.segment_table.weight[0]
            states = parts.embedding_norm(states)
            if masks is not None and p > 0:
                mask, scale = masks.keep(states, p)
                states = states * mask * scale
        if parts.projection is not None:
            states = functional.linear(states, parts.projection.weight, parts.projection.bias)
        return states


def packed_backbone(backbone: nn.Module) -> PackedBackbone | None:
    """Return the packed form of a model, or None for an architecture or a setting that has none.

    Cheap enough to ask for at every forward pass: nothing is copied, and weights prepared for inference are
    kept between calls until they change.
    """
    parts = read_parts(backbone)
    return None if parts is None else PackedBackbone(backbone, parts)


def must_compile(backbone: nn.Module, n_tokens: int) -> bool:
    """Tell whether a training pass over so many tokens compiles kernels first, which takes some 20 seconds.

    Args:
        backbone: a model on the CPU.
        n_tokens: of the pass, as ``PackedTokens.is_large`` counts them.
    """
    parts = read_parts(backbone)
    if parts is None or n_tokens < LARGE or not can_fuse(parts, parts.words.weight.dtype):
        return False
    from simcse_cli.models.packed import kernels

    return not kernels.compiled_before()
