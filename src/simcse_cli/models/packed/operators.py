"""The matrix products and norms of each layer: from live parameters for training, prepacked for inference."""

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.models.packed.architectures import BackboneParts, LayerParts, activation_function

Operator = Callable[[Tensor], Tensor]
# Rows for which oneDNN lays out the weights; any other number of rows works, near ones work as fast.
_EXPECTED_ROWS = 2048


@dataclass(frozen=True)
class LayerOperators:
    """What one layer applies to packed states, in order: all ``(T, D_in)`` to ``(T, D_out)``.

    ``qkv`` gives queries, keys and values side by side; ``up`` includes the activation.
    """

    qkv: Operator
    mix: Operator
    attention_norm: Operator
    up: Operator
    down: Operator
    output_norm: Operator


def live_operators(parts: BackboneParts, dtype: torch.dtype) -> Iterator[LayerOperators]:
    """Yield the layers' operators on the parameters themselves, through which gradients flow.

    Args:
        parts: the model.
        dtype: arithmetic of the matrix products; parameters of another type are cast here, once a pass, and
            their gradients arrive in the parameters' own type.
    """
    activation = activation_function(parts.activation)
    for layer in parts.layers:
        up = _live_linear(layer.up, dtype=dtype)
        yield LayerOperators(
            qkv=_live_linear(layer.query, layer.key, layer.value, dtype=dtype),
            mix=_live_linear(layer.mix, dtype=dtype),
            attention_norm=layer.attention_norm,
            up=lambda states, up=up: activation(up(states)),  # type: ignore[misc]
            down=_live_linear(layer.down, dtype=dtype),
            output_norm=layer.output_norm,
        )


def prepared_operators(parts: BackboneParts, dtype: torch.dtype) -> list[LayerOperators]:
    """Return the layers' operators on copies in ``dtype``, laid out for the processor, without gradient."""
    with torch.no_grad():
        return [_prepare_layer(layer, parts.activation, dtype) for layer in parts.layers]


def _prepare_layer(layer: LayerParts, activation: str, dtype: torch.dtype) -> LayerOperators:
    return LayerOperators(
        qkv=_prepared_linear((layer.query, layer.key, layer.value), dtype),
        mix=_prepared_linear((layer.mix,), dtype),
        attention_norm=_prepared_norm(layer.attention_norm, dtype),
        up=_prepared_linear((layer.up,), dtype, activation),
        down=_prepared_linear((layer.down,), dtype),
        output_norm=_prepared_norm(layer.output_norm, dtype),
    )


def _live_linear(*linears: nn.Linear, dtype: torch.dtype) -> Operator:
    weight, bias = _side_by_side(linears, dtype)
    return lambda states: functional.linear(states, weight, bias)


def _side_by_side(linears: Sequence[nn.Linear], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of linear layers as of one layer with all their outputs."""
    if len(linears) == 1:
        weight, bias = linears[0].weight, linears[0].bias
        return weight.to(dtype), None if bias is None else bias.to(dtype)
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if biases and len(biases) < len(linears):
        raise TypeError("query, key and value differ in having a bias")
    weight = torch.cat([linear.weight.to(dtype) for linear in linears])
    return weight, torch.cat([bias.to(dtype) for bias in biases]) if biases else None


def _prepared_linear(
    linears: Sequence[nn.Linear], dtype: torch.dtype, activation: str | None = None
) -> Operator:
    weight, bias = _side_by_side(linears, dtype)
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    if not _can_prepack(weight):
        linear: Operator = lambda states: functional.linear(states, weight, bias)  # noqa: E731
        return linear if activation is None else _then(linear, activation_function(activation))
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _EXPECTED_ROWS)
    name, algorithm = _FUSED[activation]
    return lambda states: torch.ops.mkldnn._linear_pointwise(states, packed, bias, name, [], algorithm)


# Activation by configuration name to what oneDNN calls it; None is no activation.
_FUSED: dict[str | None, tuple[str, str]] = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
}


def _then(first: Operator, second: Operator) -> Operator:
    return lambda states: second(first(states))


def _can_prepack(weight: Tensor) -> bool:
    """Tell whether oneDNN's weight layout is there and pays: x86, float32 or native bfloat16."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32


def _prepared_norm(norm: nn.LayerNorm, dtype: torch.dtype) -> Operator:
    weight = None if norm.weight is None else norm.weight.to(dtype)
    bias = None if norm.bias is None else norm.bias.to(dtype)
    shape = list(norm.normalized_shape)
    return lambda states: functional.layer_norm(states, shape, weight, bias, norm.eps)
