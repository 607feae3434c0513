"""Weights prepared for inference, kept until the model is trained or gets other weights."""

import weakref

import torch
from torch import nn

from simcse_cli.models.packed.architectures import BackboneParts
from simcse_cli.models.packed.layers import Layer
from simcse_cli.models.packed.operators import Operators, inference_operators

Prepared = tuple[Operators, list[Layer]]
# They live as long as the model they were made from and never enter its state or its copies.
_PREPARED: weakref.WeakKeyDictionary[nn.Module, dict[torch.dtype, Prepared]] = weakref.WeakKeyDictionary()


def prepared(backbone: nn.Module, parts: BackboneParts, dtype: torch.dtype) -> Prepared:
    """Return operators and layers for inference in this arithmetic, made on the first call."""
    made = _PREPARED.setdefault(backbone, {})
    if dtype not in made:
        made[dtype] = inference_operators(parts, dtype)
    return made[dtype]


def forget_prepared(backbone: nn.Module) -> None:
    """Free the prepared weights of a model whose weights are about to change."""
    _PREPARED.pop(backbone, None)
