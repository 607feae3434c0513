"""The operators of a transformer layer by compiled kernels, for training on a CPU; needs numba."""

import numpy as np
import torch
from torch import Tensor, nn

from simcse_cli.machine.buffers import BufferPool
from simcse_cli.models.packed import kernels
from simcse_cli.models.packed.architectures import KINDS, BackboneParts, LoraLinear
from simcse_cli.models.packed.attention import RelativeBias
from simcse_cli.models.packed.dropout import DropoutMasks, drop_threshold
from simcse_cli.models.packed.kernels import PutFactors
from simcse_cli.models.packed.operators import Affine, Operators, add_low_rank
from simcse_cli.models.packed.tokens import PackedTokens


def can_compile(parts: BackboneParts, dtype: torch.dtype) -> bool:
    """Tell whether the compiled kernels compute these layers: float32 parameters, products in float32 or bfloat16.

    Heads have a multiple of 16 values and together the width of the states, scores have no bias, norms have a
    weight and a bias.
    """
    width, n_inputs = parts.layers[0].query.weight.shape
    every = [m for layer in parts.layers for m in vars(layer).values() if m is not None]
    modules: list[nn.Module] = [m.base if isinstance(m, LoraLinear) else m for m in every]
    return (
        dtype in (torch.float32, torch.bfloat16)
        and parts.relative_bias is None
        and parts.activation in KINDS
        and width % (parts.n_heads * kernels.LANES) == 0
        and n_inputs == width
        and all(m.weight is not None and m.bias is not None for m in modules if isinstance(m, nn.LayerNorm))
        and all(p.dtype is torch.float32 for m in modules for p in m.parameters())
    )


class CompiledOperators(Operators):
    """The operators by compiled kernels; each result also carries its gradient.

    Args:
        dtype: arithmetic of the products, float32 or bfloat16; everything else is computed in float32.
        activation: name in the configuration.
        masks: where dropout masks come from; None for no dropout.
        pool: where results stand.
        put_factors: see ``kernels.operators.linear``.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        activation: str,
        masks: DropoutMasks | None,
        pool: BufferPool,
        put_factors: PutFactors | None = None,
    ) -> None:
        self._kernels = kernels.load()
        super().__init__(dtype, activation, masks)
        self._kind, self._pool, self._put_factors = KINDS[activation], pool, put_factors
        self._stream = np.zeros(4, np.uint64) if masks is None else masks.stream

    def attend(
        self,
        x: Tensor,
        qkv: Affine,
        tokens: PackedTokens,
        n_heads: int,
        *,
        dropout: float,
        relative_bias: RelativeBias | None = None,
    ) -> Tensor:
        """See ``Operators``; without a bias between positions."""
        assert relative_bias is None
        groups = np.array(tokens.groups, dtype=np.int64)
        context: Tensor = self._kernels.bias_attend(
            self._product(x, qkv),
            _bias(qkv),
            groups,
            n_heads,
            threshold=self._threshold(dropout),
            stream=self._stream,
            pool=self._pool,
        )
        return context

    def mix_states(
        self,
        states: Tensor,
        tokens: PackedTokens,
        queries: Tensor,
        offsets: Tensor,
        *,
        dropout: float,
        relative_bias: RelativeBias | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See ``Operators``."""
        assert relative_bias is None
        mixed: tuple[Tensor, Tensor] = self._kernels.mix_packed_states(
            states,
            queries,
            offsets,
            np.array(tokens.groups, dtype=np.int64),
            threshold=self._threshold(dropout),
            stream=self._stream,
            pool=self._pool,
        )
        return mixed

    def activate(self, x: Tensor, up: Affine) -> Tensor:
        """See ``Operators``."""
        activated: Tensor = self._kernels.bias_activation(
            self._product(x, up), _bias(up), self._kind, self._pool
        )
        return activated

    def dropout_add_norm(
        self, states: Tensor, x: Tensor, linear: Affine, norm: Affine, *, epsilon: float, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """See ``Operators``."""
        normed: tuple[Tensor, Tensor] = self._kernels.dropout_add_norm(
            states,
            self._product(x, linear),
            _bias(linear),
            norm.weight,
            _bias(norm),
            epsilon=epsilon,
            threshold=self._threshold(dropout),
            stream=self._stream,
            pool=self._pool,
        )
        return normed

    def _product(self, x: Tensor, linear: Affine) -> Tensor:
        x = x.to(self._dtype)
        product: Tensor = self._kernels.linear(x, linear.weight, self._pool, self._put_factors)
        return add_low_rank(product, x, linear)

    def _threshold(self, dropout: float) -> int:
        return drop_threshold(dropout) if self._masks is not None and dropout > 0 else kernels.NO_DROPOUT


def _bias(module: Affine) -> Tensor:
    """Return the bias, zeros where there is none."""
    return (
        module.weight.new_zeros(len(module.weight), dtype=torch.float32)
        if module.bias is None
        else module.bias
    )
