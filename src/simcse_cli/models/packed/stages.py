"""What one share of the sentences reads and writes in a layer, made before the pass, and the stages that use it.

Between the products of a pass the caches are full of their operands: there every step of Python takes ten times as
long, so the stages look nothing up.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

# The module ``kernels``, handed on by those who import it late: the compiler behind it takes most of a second to load.
Kernels = Any


class Values(NamedTuple):
    """The same memory for PyTorch's products and for the kernels."""

    tensor: Tensor
    array: np.ndarray

    @classmethod
    def of(cls, tensor: Tensor) -> "Values":
        """Return a tensor with itself as the kernels take it; bfloat16 as int16 with its bits."""
        return cls(tensor, (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy())


def bias_of(linear: nn.Linear) -> np.ndarray:
    """Return the bias, zeros where there is none."""
    bias = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
    array: np.ndarray = bias.detach().numpy()
    return array


@dataclass(frozen=True, slots=True)
class Residual:
    """A residual sum and its norm; see ``kernels.add_and_norm``.

    Attributes:
        bias, gain, shift: parameters, float32.
        of_bias, of_gain, of_shift: their gradients, added to.
        threshold: of dropout.
        n_skipped: words of the stream that belong to rows which only autograd's layers have.
        epsilon: of the norm.
        operand: the result for the next product.
        slope: gradient of the update; until then, what dropout kept.
        normed, inverse: kept for the backward pass.
    """

    bias: np.ndarray
    gain: np.ndarray
    shift: np.ndarray
    of_bias: np.ndarray
    of_gain: np.ndarray
    of_shift: np.ndarray
    threshold: int
    n_skipped: int
    epsilon: float
    operand: Values
    slope: Values
    normed: np.ndarray
    inverse: np.ndarray

    def forward(self, kernels: Kernels, stream: np.ndarray, states: Values, update: Values) -> None:
        """Replace the states by the norm of their sum with the update, after dropout."""
        kernels.add_and_norm(
            states.array,
            update.array,
            self.bias,
            self.threshold,
            stream,
            self.gain,
            self.shift,
            self.epsilon,
            self.operand.array,
            self.normed,
            self.inverse,
            self.slope.array,
        )
        if self.n_skipped:
            kernels.skip(stream, self.n_skipped)

    def backward(self, kernels: Kernels, gradient: Values, product: Values) -> None:
        """Replace the gradient of the result by that of the states, and write ``slope``.

        Args:
            kernels: the module.
            gradient: with respect to the result, without what comes from products of it.
            product: what comes from these.
        """
        kernels.add_and_norm_backward(
            gradient.array,
            product.array,
            self.threshold,
            self.gain,
            self.normed,
            self.inverse,
            self.slope.array,
            self.of_bias,
            self.of_gain,
            self.of_shift,
        )


@dataclass(frozen=True, slots=True)
class AfterAttention:
    """What follows attention in a layer: the mixing product, the feed-forward network, both residual sums.

    Attributes:
        mix, up, down: weights ``(D_out, D_in)``, in the arithmetic of the products.
        activation: ``GELU``, ``GELU_TANH`` or ``RELU`` of ``architectures``.
        up_bias: parameter, float32.
        of_up_bias: its gradient, added to.
        mixed: the heads' mixed values, written by attention.
        up_slope: result of ``up``, then slope of the activation, then gradient of the result.
        after: activations.
        attention, output: residual sums; the operand of the first is that of ``up``.
    """

    mix: Tensor
    up: Tensor
    down: Tensor
    activation: int
    up_bias: np.ndarray
    of_up_bias: np.ndarray
    mixed: Values
    up_slope: Values
    after: Values
    attention: Residual
    output: Residual

    def forward(self, kernels: Kernels, stream: np.ndarray, states: Values, update: Values) -> None:
        """Replace the states before the layer by those after it; ``update`` is scratch of their shape."""
        torch.mm(self.mixed.tensor, self.mix.t(), out=update.tensor)
        self.attention.forward(kernels, stream, states, update)
        torch.mm(self.attention.operand.tensor, self.up.t(), out=self.up_slope.tensor)
        kernels.activate(self.activation, self.up_slope.array, self.up_bias, self.after.array)
        torch.mm(self.after.tensor, self.down.t(), out=update.tensor)
        self.output.forward(kernels, stream, states, update)

    def backward(self, kernels: Kernels, gradient: Values, product: Values, inner: Values) -> None:
        """Replace the gradient of the result by that of the states that went past attention.

        Args:
            kernels: the module.
            gradient: with respect to the states after the layer.
            product: more of it, from products of these states; becomes the gradient of ``mixed``.
            inner: scratch of the shape of ``after``.
        """
        self.output.backward(kernels, gradient, product)
        torch.mm(self.output.slope.tensor, self.down, out=inner.tensor)
        kernels.activate_backward(self.up_slope.array, inner.array, self.of_up_bias)
        torch.mm(self.up_slope.tensor, self.up, out=product.tensor)
        self.attention.backward(kernels, gradient, product)
        torch.mm(self.attention.slope.tensor, self.mix, out=product.tensor)
