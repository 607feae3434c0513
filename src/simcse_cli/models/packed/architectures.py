"""The supported architectures: where each keeps the parts of its layers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.models.packed.kernels import GELU, GELU_TANH, RELU

RelativeBias = Callable[[int], Tensor]


class Activation(NamedTuple):
    """An activation as a function, in place, as a number for the kernels, by its name and algorithm in oneDNN."""

    function: Callable[[Tensor], Tensor]
    in_place: Callable[[Tensor], Tensor]
    kind: int
    fused: tuple[str, str]


_gelu_ = torch.ops.aten.gelu_
_GELU_TANH = Activation(
    partial(functional.gelu, approximate="tanh"),
    partial(_gelu_, approximate="tanh"),
    GELU_TANH,
    ("gelu", "tanh"),
)
ACTIVATIONS = {
    "gelu": Activation(functional.gelu, _gelu_, GELU, ("gelu", "none")),
    "gelu_new": _GELU_TANH,
    "gelu_pytorch_tanh": _GELU_TANH,
    "relu": Activation(functional.relu, torch.relu_, RELU, ("relu", "")),
}
"""By their names in configurations."""


@dataclass(frozen=True)
class LoraLinear:
    """A linear layer with a low-rank adapter: ``x W^T + bias + scale (x A^T) B^T``.

    Source: Hu et al. 2022, section 4.1; the scale is alpha / r.

    Attributes:
        base: W and bias, ``(D_out, D_in)``.
        down: A, ``(r, D_in)``.
        up: B, ``(D_out, r)``.
        scale: of the adapter.
    """

    base: nn.Linear
    down: Tensor
    up: Tensor
    scale: float

    @property
    def weight(self) -> Tensor:
        """``W + scale B A``, with gradient to A and B."""
        return torch.addmm(self.base.weight, self.up, self.down, alpha=self.scale)

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias


class LayerParts(NamedTuple):
    """The parts of one post-norm transformer layer: its modules, or their dotted names in an architecture.

    A linear layer is a ``Linear`` or a ``LoraLinear``; a dropout is None where the architecture has
    none.
    """

    query: Any
    key: Any
    value: Any
    out_proj: Any
    attention_norm: Any
    up: Any
    down: Any
    output_norm: Any
    attention_dropout: Any
    out_dropout: Any
    output_dropout: Any


@dataclass(frozen=True)
class BackboneParts:
    """The parts and settings of a model that the packed forward pass uses.

    Attributes:
        words, position_table: embedding tables.
        segment_table: token types (every token has type 0), or None.
        embedding_norm, embedding_dropout: applied to the sum of the embeddings.
        projection: linear layer from embedding to hidden width, or None.
        layers: from the first to the last.
        n_heads: attention heads.
        activation: name in the configuration, see ``ACTIVATIONS``.
        first_position: position of a sentence's first token.
        pad_id: id that gets no position of its own, or None.
        relative_bias: maps a length L to a bias on the scores, ``(n_heads, L, L)``; or None.
    """

    words: nn.Embedding
    position_table: nn.Embedding
    segment_table: nn.Embedding | None
    embedding_norm: nn.LayerNorm
    embedding_dropout: nn.Dropout
    projection: nn.Linear | None
    layers: tuple[LayerParts, ...]
    n_heads: int
    activation: str
    first_position: int
    pad_id: int | None
    relative_bias: RelativeBias | None


_BERT = LayerParts(
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    out_proj="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    output_norm="output.LayerNorm",
    attention_dropout="attention.self.dropout",
    out_dropout="attention.output.dropout",
    output_dropout="output.dropout",
)
_MPNET = _BERT._replace(
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    out_proj="attention.attn.o",
    attention_norm="attention.LayerNorm",
    attention_dropout="attention.attn.dropout",
    out_dropout="attention.dropout",
)
_DISTILBERT = LayerParts(
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    out_proj="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    output_norm="output_layer_norm",
    attention_dropout="attention.dropout",
    out_dropout=None,
    output_dropout="ffn.dropout",
)
_NAMES = dict.fromkeys(("bert", "electra", "roberta", "xlm-roberta", "camembert"), _BERT)
_NAMES |= {"mpnet": _MPNET, "distilbert": _DISTILBERT}
_LISTS_OF_LAYERS = dict.fromkeys(_NAMES, "encoder.layer") | {"distilbert": "transformer.layer"}
_COUNTS_REAL_TOKENS = ("roberta", "xlm-roberta", "camembert", "mpnet")


def layer_names(model_type: str, index: int) -> LayerParts:
    """Return the full dotted names of the parts of layer ``index`` in a supported architecture."""
    start = f"{_LISTS_OF_LAYERS[model_type]}.{index}."
    return LayerParts(*(None if name is None else start + name for name in _NAMES[model_type]))


def read_parts(backbone: nn.Module) -> BackboneParts | None:
    """Return the parts of a model, or None if its packed form would compute something else.

    Supported are BERT (including MiniLM), ELECTRA, RoBERTa, XLM-R, CamemBERT, MPNet and DistilBERT
    as encoders, with plain ``Linear`` and ``LayerNorm`` modules or PEFT's plain LoRA around a
    ``Linear``. A model with another adapter has no packed form.
    """
    config: Any = getattr(backbone, "config", None)
    model_type = getattr(config, "model_type", "")
    if model_type not in _NAMES or getattr(config, "is_decoder", False):
        return None
    activation = config.activation if model_type == "distilbert" else config.hidden_act
    has_absolute = getattr(config, "position_embedding_type", "absolute") in (None, "absolute")
    if activation not in ACTIVATIONS or not has_absolute:
        return None
    try:
        children = backbone.get_submodule(_LISTS_OF_LAYERS[model_type]).children()
        layers = tuple(_layer_parts(layer, _NAMES[model_type]) for layer in children)
        return _backbone_parts(backbone, config, activation, layers)
    except (
        AttributeError,
        TypeError,
        ValueError,
    ):  # a part is missing or not that of the plain architecture
        return None


def _plain(module: nn.Module, kind: type[Any]) -> Any:
    """Return the module if its type is exactly this one, not a subclass."""
    if type(module) is not kind:
        raise TypeError(f"{type(module).__name__} in place of a plain {kind.__name__}")
    return module


def _linear(module: Any) -> Any:
    """Return a plain linear layer, or a ``LoraLinear`` for PEFT's plain LoRA; PEFT need not be installed."""
    if type(module) is nn.Linear or not hasattr(module, "lora_A"):
        return _plain(module, nn.Linear)
    (name,) = module.active_adapters
    is_plain = not (
        module.merged or module.disable_adapters or module.lora_variant or module.lora_bias[name]
    ) and isinstance(module.lora_dropout[name], nn.Identity)
    if not is_plain or len(module.lora_A) > 1:
        raise TypeError("more than plain LoRA")
    return LoraLinear(
        _plain(module.base_layer, nn.Linear),
        _plain(module.lora_A[name], nn.Linear).weight,
        _plain(module.lora_B[name], nn.Linear).weight,
        float(module.scaling[name]),
    )


def _layer_parts(layer: nn.Module, names: LayerParts) -> LayerParts:
    def module(part: str, name: str | None) -> Any:
        if name is None:
            return None
        found = layer.get_submodule(name)
        if part.endswith("norm"):
            return _plain(found, nn.LayerNorm)
        return _plain(found, nn.Dropout) if part.endswith("dropout") else _linear(found)

    parts = LayerParts(*(module(part, name) for part, name in names._asdict().items()))
    if len({linear.bias is None for linear in (parts.query, parts.key, parts.value)}) > 1:
        raise TypeError("query, key and value differ in having a bias")
    return parts


def _backbone_parts(
    backbone: nn.Module, config: Any, activation: str, layers: tuple[LayerParts, ...]
) -> BackboneParts:
    embeddings: Any = backbone.embeddings
    pad_id = int(embeddings.padding_idx) if config.model_type in _COUNTS_REAL_TOKENS else None
    segments = getattr(embeddings, "token_type_embeddings", None)
    projection = getattr(backbone, "embeddings_project", None)
    return BackboneParts(
        words=_plain(embeddings.word_embeddings, nn.Embedding),
        position_table=_plain(embeddings.position_embeddings, nn.Embedding),
        segment_table=None if segments is None else _plain(segments, nn.Embedding),
        embedding_norm=_plain(embeddings.LayerNorm, nn.LayerNorm),
        embedding_dropout=_plain(embeddings.dropout, nn.Dropout),
        projection=None if projection is None else _plain(projection, nn.Linear),
        layers=layers,
        n_heads=int(config.num_attention_heads),
        activation=activation,
        first_position=0 if pad_id is None else pad_id + 1,
        pad_id=pad_id,
        relative_bias=_relative_bias(backbone) if config.model_type == "mpnet" else None,
    )


def _relative_bias(backbone: Any) -> RelativeBias:
    def bias(length: int) -> Tensor:
        device = backbone.encoder.relative_attention_bias.weight.device
        values: Tensor = backbone.encoder.compute_position_bias(
            torch.empty(1, length, device=device)
        )
        return values[0]

    return bias
