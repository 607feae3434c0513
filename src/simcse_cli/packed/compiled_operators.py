"""The operators of a transformer layer as kernels compiled by numba, for training on a CPU."""

from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from simcse_cli.machine.buffers import BufferPool
from simcse_cli.packed import kernels
from simcse_cli.packed.architectures import ACTIVATIONS, BackboneParts, LoraLinear
from simcse_cli.packed.dropout import DropoutMasks, drop_threshold
from simcse_cli.packed.kernels import QueueWeightGradient
from simcse_cli.packed.layers import Layer, LinearWeights, NormWeights, Residual
from simcse_cli.packed.operators import Operators, add_low_rank
from simcse_cli.packed.tokens import PackedTokens


def can_compile(parts: BackboneParts, dtype: torch.dtype) -> bool:
    """Tell whether the compiled kernels can compute these layers, with products in ``dtype``.

    The kernels need float32 parameters, and products in float32 or bfloat16. The width of a head
    must be a multiple of 16, and all heads together must have the width of the states. There must
    be no relative bias, and each norm must have a weight and a bias.
    """
    if dtype not in (torch.float32, torch.bfloat16) or parts.relative_bias is not None:
        return False
    width, states_width = parts.layers[0].query.weight.shape
    if width != states_width or width % (parts.n_heads * kernels.LANES) != 0:
        return False
    return all(_suits_kernels(module) for module in chain.from_iterable(parts.layers))


def _suits_kernels(module: nn.Module | LoraLinear | None) -> bool:
    """Tell whether a part has only float32 parameters; a norm must have a weight and a bias."""
    if module is None:
        return True
    if isinstance(module, LoraLinear):
        module = module.base  # PyTorch, not a kernel, multiplies by LoRA's factors
    if isinstance(module, nn.LayerNorm) and (module.weight is None or module.bias is None):
        return False
    return all(parameter.dtype is torch.float32 for parameter in module.parameters())


class CompiledOperators(Operators):
    """The operators as compiled kernels, forward and backward; ``pool`` lends memory for results.

    Products are in ``dtype``, float32 or bfloat16; everything else is in float32. If
    ``queue_weight_gradient`` is given, the backward pass calls it instead of returning gradients
    of weights.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        activation: str,
        pool: BufferPool,
        masks: DropoutMasks | None = None,
        queue_weight_gradient: QueueWeightGradient | None = None,
    ) -> None:
        self._kernels = kernels.load_operators()
        super().__init__(dtype, activation, masks)
        self._activation_kind = ACTIVATIONS[activation].kind
        self._pool = pool
        self._queue_gradient = queue_weight_gradient
        # Without dropout the kernels draw nothing, but they take a stream all the same.
        self._stream = np.zeros(4, np.uint64) if masks is None else masks.stream

    def attend(self, x: Tensor, tokens: PackedTokens, layer: Layer) -> Tensor:
        product = self._product(x, layer.qkv)
        groups = np.array(tokens.groups, dtype=np.int64)
        last_arguments = self._last_arguments(layer.dropout)
        context: Tensor = self._kernels.BiasAttend.apply(
            product, _bias(layer.qkv), groups, layer.n_heads, *last_arguments
        )
        return context

    def activate(self, x: Tensor, up: LinearWeights) -> Tensor:
        product = self._product(x, up)
        activated: Tensor = self._kernels.BiasActivation.apply(
            product, _bias(up), self._activation_kind, self._pool
        )
        return activated

    def dropout_add_norm(self, states: Tensor, x: Tensor, end: Residual) -> tuple[Tensor, Tensor]:
        # The normed states twice: for the next sum, and in the type of the next product.
        for_sum_and_product: tuple[Tensor, Tensor] = self._kernels.DropoutAddNorm.apply(
            states,
            self._product(x, end.linear),
            _bias(end.linear),
            end.norm.weight,
            _bias(end.norm),
            end.epsilon,
            *self._last_arguments(end.dropout),
        )
        return for_sum_and_product

    def _product(self, x: Tensor, linear: LinearWeights) -> Tensor:
        """Return the output of a linear layer without its bias, which the kernels add."""
        x = x.to(self.dtype)
        product: Tensor = self._kernels.Linear.apply(
            x, linear.weight, self._pool, self._queue_gradient
        )
        return add_low_rank(product, x, linear)

    def _last_arguments(self, dropout: float) -> tuple[int, np.ndarray, BufferPool]:
        """Return the last arguments of an operator: threshold and stream of dropout, and the pool.

        ``dropout`` is the probability to drop. Without masks, nothing is dropped.
        """
        threshold = kernels.NO_DROPOUT
        if self.masks is not None and dropout > 0:
            threshold = drop_threshold(dropout)
        return threshold, self._stream, self._pool


def _bias(module: LinearWeights | NormWeights) -> Tensor:
    """Return the bias of a module, or zeros, because the kernels always add one."""
    if module.bias is not None:
        return module.bias
    return module.weight.new_zeros(len(module.weight), dtype=torch.float32)
