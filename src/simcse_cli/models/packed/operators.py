"""The four matrix products of a layer: on live parameters for training, prepacked for inference."""

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.models.packed.architectures import BackboneParts, activation_function

Operator = Callable[[Tensor], Tensor]
# Rows for which oneDNN lays out the weights; any other number of rows works, near ones work as fast.
_EXPECTED_ROWS = 2048
# Activation by configuration name, to what oneDNN calls it.
_FUSED: dict[str | None, tuple[str, str]] = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
}


@dataclass(frozen=True)
class LayerOperators:
    """The products that one layer applies to packed states, all ``(T, D_in)`` to ``(T, D_out)``.

    ``qkv`` gives queries, keys and values side by side; ``up`` includes the activation. Input of any type is
    cast to the type of the arithmetic, which is also the type of the result.
    """

    qkv: Operator
    mix: Operator
    up: Operator
    down: Operator


def live_operators(parts: BackboneParts, dtype: torch.dtype) -> Iterator[LayerOperators]:
    """Yield the layers' operators on the parameters themselves, through which gradients flow.

    Args:
        parts: the model.
        dtype: arithmetic of the products; parameters of another type are cast where they are used, and their
            gradients arrive in the parameters' own type.
    """
    return _operators(parts, dtype, _live_linear)


def prepared_operators(parts: BackboneParts, dtype: torch.dtype) -> list[LayerOperators]:
    """Return the layers' operators on copies in ``dtype``, laid out for the processor, without gradient."""
    with torch.no_grad():
        return list(_operators(parts, dtype, _prepared_linear))


def _operators(
    parts: BackboneParts, dtype: torch.dtype, linear: Callable[..., Operator]
) -> Iterator[LayerOperators]:
    for layer in parts.layers:
        yield LayerOperators(
            qkv=linear((layer.query, layer.key, layer.value), dtype),
            mix=linear((layer.mix,), dtype),
            up=linear((layer.up,), dtype, parts.activation),
            down=linear((layer.down,), dtype),
        )


def _live_linear(linears: Sequence[nn.Linear], dtype: torch.dtype, activation: str | None = None) -> Operator:
    """Return the linear layers, side by side, as one operator, with an activation after it."""

    def product(states: Tensor) -> Tensor:
        return functional.linear(states.to(dtype), *_side_by_side(linears, dtype))

    if activation is None:
        return product
    activate = activation_function(activation)
    return lambda states: activate(product(states))


def _prepared_linear(
    linears: Sequence[nn.Linear], dtype: torch.dtype, activation: str | None = None
) -> Operator:
    """Return the same operator on weights in oneDNN's own layout, where that pays."""
    if not _can_prepack(linears[0].weight.device, dtype):
        return _live_linear(linears, dtype, activation)
    weight, bias = _side_by_side(linears, dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _EXPECTED_ROWS)
    name, algorithm = _FUSED[activation]
    return lambda states: torch.ops.mkldnn._linear_pointwise(
        states.to(dtype), packed, bias, name, [], algorithm
    )


def _side_by_side(linears: Sequence[nn.Linear], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of linear layers as of one layer with all their outputs."""
    if len(linears) == 1:
        weight, bias = linears[0].weight, linears[0].bias
        return weight.to(dtype), None if bias is None else bias.to(dtype)
    weights = torch.cat([linear.weight.to(dtype) for linear in linears])
    biases = [linear.bias.to(dtype) for linear in linears if linear.bias is not None]
    return weights, torch.cat(biases) if biases else None


def _can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether oneDNN's weight layout is there and pays: x86, float32 or native bfloat16."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32
