"""The operators of a transformer layer as compiled kernels.

They are for training on a CPU, and they need numba.
"""

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
    """Tell whether the compiled kernels can compute these layers.

    They need float32 parameters, products in float32 or bfloat16, heads of a multiple of 16 values
    that together have the width of the states, no bias on the scores, and norms with a weight and a
    bias.
    """
    width, n_inputs = parts.layers[0].query.weight.shape
    every = [module for layer in parts.layers for module in layer if module is not None]
    modules: list[nn.Module] = [m.base if isinstance(m, LoraLinear) else m for m in every]
    return (
        dtype in (torch.float32, torch.bfloat16)
        and parts.relative_bias is None
        and width % (parts.n_heads * kernels.LANES) == 0
        and n_inputs == width
        and all(
            m.weight is not None and m.bias is not None
            for m in modules
            if isinstance(m, nn.LayerNorm)
        )
        and all(p.dtype is torch.float32 for m in modules for p in m.parameters())
    )


class CompiledOperators(Operators):
    """The operators as compiled kernels, forward and backward.

    Their results are in the memory of ``pool``.

    Products are in float32 or bfloat16, everything else is in float32. ``queue_weight_gradient`` is
    for ``kernels.operators.Linear``.
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
        self._kind, self._pool = ACTIVATIONS[activation].kind, pool
        self._queue_gradient = queue_weight_gradient
        self._stream = np.zeros(4, np.uint64) if masks is None else masks.stream

    def attend(self, x: Tensor, tokens: PackedTokens, layer: Layer) -> Tensor:
        groups, drawing = np.array(tokens.groups, dtype=np.int64), self._drawing(layer.dropout)
        product, bias = self._product(x, layer.qkv), _bias(layer.qkv)
        context: Tensor = self._kernels.BiasAttend.apply(
            product, bias, groups, layer.n_heads, *drawing
        )
        return context

    def activate(self, x: Tensor, up: LinearWeights) -> Tensor:
        product = self._product(x, up)
        activated: Tensor = self._kernels.BiasActivation.apply(
            product, _bias(up), self._kind, self._pool
        )
        return activated

    def dropout_add_norm(self, states: Tensor, x: Tensor, end: Residual) -> tuple[Tensor, Tensor]:
        update, norm = (
            (self._product(x, end.linear), _bias(end.linear)),
            (end.norm.weight, _bias(end.norm)),
        )
        normed: tuple[Tensor, Tensor] = self._kernels.DropoutAddNorm.apply(
            states, *update, *norm, end.epsilon, *self._drawing(end.dropout)
        )
        return normed

    def _product(self, x: Tensor, linear: LinearWeights) -> Tensor:
        x = x.to(self._dtype)
        product: Tensor = self._kernels.Linear.apply(
            x, linear.weight, self._pool, self._queue_gradient
        )
        return add_low_rank(product, x, linear)

    def _drawing(self, dropout: float) -> tuple[int, np.ndarray, BufferPool]:
        """Return the last arguments of a kernel.

        They are its dropout masks and the memory for its results.
        """
        drops = self._masks is not None and dropout > 0
        threshold = drop_threshold(dropout) if drops else kernels.NO_DROPOUT
        return threshold, self._stream, self._pool


def _bias(module: LinearWeights | NormWeights) -> Tensor:
    """Return the bias, or zeros."""
    if module.bias is not None:
        return module.bias
    return module.weight.new_zeros(len(module.weight), dtype=torch.float32)
