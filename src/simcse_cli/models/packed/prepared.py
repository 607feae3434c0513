"""Weights prepared for inference, kept between calls until the model changes."""

import weakref

import torch
from torch import Tensor, nn

from simcse_cli.models.packed.architectures import BackboneParts, LoraLinear
from simcse_cli.models.packed.operators import LayerWeights, Operators, inference_operators

_Fingerprint = tuple[tuple[int, int, float], ...]
_Prepared = tuple[Operators, list[LayerWeights]]
_SAMPLES = 64  # values of each weight that are looked at to notice a change


class _PreparedWeights:
    """Weights for inference, one set for each arithmetic, made again when the parameters have changed."""

    def __init__(self) -> None:
        self._made: dict[torch.dtype, tuple[_Fingerprint, _Prepared]] = {}

    def get(self, parts: BackboneParts, dtype: torch.dtype) -> _Prepared:
        """Return operators and the weights that they take, from the present parameters."""
        fingerprint = _fingerprint(parts)
        made = self._made.get(dtype)
        if made is None or made[0] != fingerprint:
            made = (fingerprint, inference_operators(parts, dtype))
            self._made[dtype] = made
        return made[1]


# Prepared weights live as long as the model they were made from and never enter its state or its copies.
_PREPARED: weakref.WeakKeyDictionary[nn.Module, _PreparedWeights] = weakref.WeakKeyDictionary()


def prepared(backbone: nn.Module, parts: BackboneParts, dtype: torch.dtype) -> _Prepared:
    """Return operators and weights for inference, made again when the parameters have changed."""
    return _PREPARED.setdefault(backbone, _PreparedWeights()).get(parts, dtype)


def forget_prepared(backbone: nn.Module) -> None:
    """Free the prepared weights of a model, for instance of one about to be trained."""
    _PREPARED.pop(backbone, None)


def _fingerprint(parts: BackboneParts) -> _Fingerprint:
    """Return what changes with the weights: address, version and a sample of the values of each.

    The sample is needed because fused optimizers leave the version as it was; their steps move every weight.
    """
    weights: list[Tensor] = []
    for module in (module for layer in parts.layers for module in vars(layer).values()):
        if isinstance(module, LoraLinear):
            weights += (module.base.weight, module.down, module.up)
        elif isinstance(module, nn.Linear):
            weights.append(module.weight)
    return tuple(
        (weight.data_ptr(), 0 if weight.is_inference() else weight._version, _sample_sum(weight))
        for weight in weights
    )


def _sample_sum(weight: Tensor) -> float:
    values = weight.detach().view(-1)
    return float(values[:: max(1, len(values) // _SAMPLES)].sum())
