"""The architectures that have a packed form, one entry of ``ARCHITECTURES`` each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.packed.kernels import GELU, GELU_TANH, RELU

RelativeBias = Callable[[int], Tensor]


class Activation(NamedTuple):
    """An activation in every form that the operators need.

    Attributes:
        function: returns a new tensor.
        in_place: changes its argument.
        kind: the number by which compiled kernels know the activation.
        fused: name and algorithm of the activation in oneDNN, which applies it in a matrix product.
    """

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
"""The activations by their names in configurations."""


@dataclass(frozen=True)
class LoraLinear:
    """A linear layer with a low-rank adapter: ``x W^T + bias + scale (x A^T) B^T``.

    Source: Hu et al. 2022, section 4.1.

    Attributes:
        base: the layer with W, ``(D_out, D_in)``, and its bias.
        down: A, ``(r, D_in)``.
        up: B, ``(D_out, r)``.
        scale: alpha / r.
    """

    base: nn.Linear
    down: Tensor
    up: Tensor
    scale: float

    @property
    def weight(self) -> Tensor:
        """``W + scale B A``; gradients flow to A and B."""
        return torch.addmm(self.base.weight, self.up, self.down, alpha=self.scale)

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias


class LayerParts(NamedTuple):
    """The parts of one post-norm transformer layer, as modules or as their dotted names.

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
        layers: the parts of each layer, from the first to the last.
        n_heads: attention heads.
        activation: name in the configuration, see ``ACTIVATIONS``.
        pad_id: id of tokens that are not counted in positions; None if all tokens are counted.
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


@dataclass(frozen=True)
class Architecture:
    """What the packed form needs to know of an architecture besides its configuration.

    Attributes:
        layer: names of the parts of a layer, relative to the name of the layer.
        prefix: begins the names of the encoder's tensors in files that hold a head, too; None if
            only transformers can open the architecture.
        layers: name of the list of layers.
        activation: entry of the configuration that names the activation.
        numbers_real_tokens: whether positions count real tokens only, from the padding id + 1;
            otherwise they count all tokens, from 0.
        has_relative_bias: whether attention scores depend on distances too, as in T5.
    """

    layer: LayerParts
    prefix: str | None = None
    layers: str = "encoder.layer"
    activation: str = "hidden_act"
    numbers_real_tokens: bool = False
    has_relative_bias: bool = False

    def layer_names(self, index: int) -> LayerParts:
        """Return the full dotted names of the parts of layer ``index``."""
        prefix = f"{self.layers}.{index}."
        return LayerParts(*(None if name is None else prefix + name for name in self.layer))


_ROBERTA = Architecture(_BERT, prefix="roberta.", numbers_real_tokens=True)
ARCHITECTURES = {
    "bert": Architecture(_BERT, prefix="bert."),
    "electra": Architecture(_BERT),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "data2vec-text": replace(_ROBERTA, prefix="data2vec_text."),
    "mpnet": Architecture(_MPNET, numbers_real_tokens=True, has_relative_bias=True),
    "distilbert": Architecture(_DISTILBERT, layers="transformer.layer", activation="activation"),
}
"""The architectures by ``model_type``. An architecture with BERT's layers needs only an entry here.

A new entry with a prefix changes the digest of the models of its architecture, because the digest
then covers other entries of their configuration (``models.forward_config``).
"""
_EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
EMBEDDING_NORM = "embeddings.LayerNorm"
EMBEDDING_DROPOUT = "embeddings.dropout"


def plain_prefix(model_type: Any) -> str | None:
    """Return the prefix of an architecture that can be opened without transformers, else None."""
    if isinstance(model_type, str) and model_type in ARCHITECTURES:
        return ARCHITECTURES[model_type].prefix
    return None


def read_parts(backbone: nn.Module) -> BackboneParts | None:
    """Return the parts of a model, or None if it has no packed form.

    An encoder of ``ARCHITECTURES`` has one if its parts are the plain modules of PyTorch. PEFT's
    plain LoRA may be around a ``Linear``; any other adapter leaves the model without a packed form.
    """
    config: Any = getattr(backbone, "config", None)
    architecture = ARCHITECTURES.get(getattr(config, "model_type", ""))
    if architecture is None or getattr(config, "is_decoder", False):
        return None
    if getattr(config, architecture.activation) not in ACTIVATIONS:
        return None
    # BERT can also be configured with relative positions, which have no packed form.
    if getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        return None
    try:
        return _backbone_parts(backbone, config, architecture)
    except (AttributeError, TypeError, ValueError):  # not the parts of the plain architecture
        return None


def _plain(module: nn.Module, kind: type[Any]) -> Any:
    """Return the module if its type is exactly ``kind``; raise TypeError otherwise."""
    if type(module) is not kind:
        raise TypeError(f"{type(module).__name__} in place of a plain {kind.__name__}")
    return module


def _plain_or_none(owner: nn.Module, name: str, kind: type[Any]) -> Any:
    """Return the module ``name`` of ``owner``, of exactly this type, or None if there is none."""
    module = getattr(owner, name, None)
    return None if module is None else _plain(module, kind)


def _linear(module: Any) -> Any:
    """Return a plain ``Linear`` unchanged, and PEFT's plain LoRA as a ``LoraLinear``.

    Other modules raise TypeError. PEFT is not imported: its layers are known by their attributes.
    """
    if type(module) is nn.Linear or not hasattr(module, "lora_A"):
        return _plain(module, nn.Linear)
    (name,) = module.active_adapters  # several adapters raise ValueError
    is_off = module.merged or module.disable_adapters
    is_extended = module.lora_variant or module.lora_bias[name] or len(module.lora_A) > 1
    if is_off or is_extended or not isinstance(module.lora_dropout[name], nn.Identity):
        raise TypeError("more than plain LoRA")
    return LoraLinear(
        base=_plain(module.base_layer, nn.Linear),
        down=_plain(module.lora_A[name], nn.Linear).weight,
        up=_plain(module.lora_B[name], nn.Linear).weight,
        scale=float(module.scaling[name]),
    )


def _layer_parts(layer: nn.Module, names: LayerParts) -> LayerParts:
    """Return the modules of a layer that have the dotted names in ``names``.

    Raise TypeError if a module is not a plain linear layer, norm or dropout, as its part demands,
    or if only some of query, key and value have a bias.
    """
    parts: dict[str, Any] = {}
    for part, name in names._asdict().items():
        if name is None:
            parts[part] = None
        elif part.endswith("norm"):
            parts[part] = _plain(layer.get_submodule(name), nn.LayerNorm)
        elif part.endswith("dropout"):
            parts[part] = _plain(layer.get_submodule(name), nn.Dropout)
        else:
            parts[part] = _linear(layer.get_submodule(name))
    if len({parts[name].bias is None for name in ("query", "key", "value")}) > 1:
        raise TypeError("query, key and value differ in having a bias")
    return LayerParts(**parts)


def _backbone_parts(backbone: Any, config: Any, architecture: Architecture) -> BackboneParts:
    """Return the parts of a model of this architecture; raise an error if one is not plain."""
    layers = backbone.get_submodule(architecture.layers).children()
    parts = tuple(_layer_parts(layer, architecture.layer) for layer in layers)

    embeddings = backbone.embeddings
    for name, module in embeddings.named_children():
        # Parts without parameters, such as dropout, add nothing to the embeddings.
        if name not in _EMBEDDINGS and next(module.parameters(), None) is not None:
            raise TypeError(f"embeddings with {name}, such as ERNIE's of tasks")
    pad_id = None
    if architecture.numbers_real_tokens:
        pad_id = int(embeddings.padding_idx)
    return BackboneParts(
        words=_plain(embeddings.word_embeddings, nn.Embedding),
        position_table=_plain(embeddings.position_embeddings, nn.Embedding),
        segment_table=_plain_or_none(embeddings, "token_type_embeddings", nn.Embedding),
        embedding_norm=_plain(backbone.get_submodule(EMBEDDING_NORM), nn.LayerNorm),
        embedding_dropout=_plain(backbone.get_submodule(EMBEDDING_DROPOUT), nn.Dropout),
        projection=_plain_or_none(backbone, "embeddings_project", nn.Linear),
        layers=parts,
        n_heads=int(config.num_attention_heads),
        activation=getattr(config, architecture.activation),
        pad_id=pad_id,
        relative_bias=_relative_bias(backbone) if architecture.has_relative_bias else None,
    )


def _relative_bias(backbone: Any) -> RelativeBias:
    """Return a function from a length L to the bias ``(n_heads, L, L)`` that the model computes."""

    def bias(length: int) -> Tensor:
        device = backbone.encoder.relative_attention_bias.weight.device
        # ``compute_position_bias`` reads only the length and the device of the states.
        states = torch.empty(1, length, device=device)
        values: Tensor = backbone.encoder.compute_position_bias(states)
        return values[0]

    return bias
