"""Weights prepared for inference, kept until the model is trained or gets other weights."""

import weakref
from collections.abc import Callable

import torch
from torch import nn

from simcse_cli.models.packed.architectures import BackboneParts
from simcse_cli.models.packed.layers import Layer, read_layers
from simcse_cli.models.packed.operators import Operators, inference_operators
from simcse_cli.models.packed.quantized import QuantizedOperators, RecordingOperators, quantized

Prepared = tuple[Operators, list[Layer]]
# They live as long as the model they were made from and never enter its state or its copies.
_PREPARED: weakref.WeakKeyDictionary[nn.Module, dict[torch.dtype, Prepared]] = weakref.WeakKeyDictionary()


def prepared(
    backbone: nn.Module,
    parts: BackboneParts,
    dtype: torch.dtype,
    run_sample: Callable[[Operators, list[Layer]], None],
) -> Prepared:
    """Return operators and layers for inference in this arithmetic, made on the first call.

    For int8, ``run_sample`` is called to run layers over a sample of tokens.
    """
    made = _PREPARED.setdefault(backbone, {})
    if dtype is torch.int8 and dtype not in made:
        layers = read_layers(parts, torch.float32, merged=True)
        recording = RecordingOperators(parts.activation)
        run_sample(recording, layers)
        made[dtype] = QuantizedOperators(parts.activation), quantized(layers, recording.seen)
    elif dtype not in made:
        made[dtype] = inference_operators(parts, dtype)
    return made[dtype]


def forget_prepared(backbone: nn.Module) -> None:
    """Free the prepared weights of a model whose weights are about to change."""
    _PREPARED.pop(backbone, None)
