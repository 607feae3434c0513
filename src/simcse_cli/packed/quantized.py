"""Linear layers as products of 8-bit integers, for inference on x86 processors.

Each token x has its own step and offset ``low``, and each output o with weights W_o its own scale:

    x ~ low + step * q            q in 0 ... 255
    W_o ~ scale_o * w_o           w_o in -127 ... 127
    (x W^T)_o ~ step * scale_o * (q . w_o) + low * scale_o * sum(w_o)

where q . w_o is an exact sum of integers. Two measures keep the error small. Neither would change
an exact product:

- The inputs of ``qkv`` and ``up`` are shifted and scaled by channel, and the weights are scaled the
  other way (SmoothQuant, Xiao et al. 2023, equation 4, with their alpha of 0.5). A channel of large
  values then leaves more levels to the others.
- The inputs of ``down`` are split into four groups of channels of similar size. Each group has its
  own steps and scales.

The size of a channel is measured in a pass over random sub-words. It is rounded to a power of two,
so that the last bits of that pass do not matter. Nothing depends on the user's texts.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.packed.layers import Layer, LinearWeights
from simcse_cli.packed.operators import Operators

MOST_LEVELS = 127
_FEWER_LEVELS = 64
_ALPHA = 0.5
_N_GROUPS = 4
_TINY = 1e-20  # the smallest step or scale, so that its inverse is finite
_SMALL = 1e-5  # the smallest size of a channel


class IntegerProduct(NamedTuple):
    """A product with the weights of a linear layer, which are rounded to integers.

    Attributes:
        weight: the integers, in oneDNN's layout.
        scale: the factors by which the integers of each row are multiplied, ``(D_out,)``.
        zero_point: zeros, which oneDNN wants, ``(D_out,)``.
        sums: the sum of each row, times its scale, ``(D_out,)``.
    """

    weight: Tensor
    scale: Tensor
    zero_point: Tensor
    sums: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> "IntegerProduct":
        """Round a finite weight ``(D_out, D_in)`` to integers; a row of zeros stays zero."""
        scale = (weight.abs().amax(1) / weight_levels()).clamp(min=_TINY)
        rounded = (weight / scale.unsqueeze(1)).round()
        packed = torch.ops.onednn.qlinear_prepack(rounded.to(torch.int8), None)
        zero_point = torch.zeros(len(scale), dtype=torch.int32)
        # The offset of an input row, times these sums, is what it adds to the outputs.
        sums = rounded.sum(1) * scale
        return cls(packed, scale, zero_point, sums)

    def __call__(self, q: Tensor) -> Tensor:
        """Return ``scale * (q . w)``, ``(T, D_out)`` float32, for bytes q ``(T, D_in)``."""
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            q,
            1.0,  # scale of q, which the caller takes into account
            0,  # zero point of q, likewise
            self.weight,
            self.scale,
            self.zero_point,
            None,  # no bias
            1.0,  # scale of the output
            0,  # zero point of the output
            torch.float32,
            "none",  # no operation after the product
            [],
            "",
        )
        return product


class QuantizedLinear(NamedTuple):
    """A linear layer as integer products.

    Attributes:
        products: one for each group of input channels.
        sums: the ``sums`` of each product, then the bias of the layer, with what makes up for
            ``shift``; ``(n_groups + 1, D_out)``.
        factor, shift: the inputs are first changed to ``x * factor + shift``, by channel,
            ``(D_in,)``; None leaves them unchanged.
    """

    products: tuple[IntegerProduct, ...]
    sums: Tensor
    factor: Tensor | None = None
    shift: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs ``(T, D_out)`` of states ``(T, D_in)``, float32.

        In each token, the inputs of a group are rounded to ``low + step * q`` with bytes q. Their
        product with the rounded weights ``scale_o * w_o`` is then
        ``scale_o * (step * (q . w_o) + low * sum(w_o))``. Operations work in place where they can,
        because memory that is in the cache takes half the time.
        """
        # Some layers first shift and scale their inputs by channel, to round them less coarsely.
        if self.factor is not None and self.shift is not None:
            x = torch.addcmul(self.shift, x, self.factor)
        groups = x.tensor_split(len(self.products), 1)
        lows = torch.cat([group.amin(1, keepdim=True) for group in groups], 1)
        highs = torch.cat([group.amax(1, keepdim=True) for group in groups], 1)
        steps = ((highs - lows) / 255).clamp_(min=_TINY)
        inverse = steps.reciprocal()
        # Bytes lose their fraction, so 0.5 is added first: (x - low) / step + 0.5 is
        # x * inverse + offset, where offset = 0.5 - low * inverse.
        offsets = torch.addcmul(inverse.new_full((1, 1), 0.5), lows, inverse, value=-1)

        def group_product(i: int) -> Tensor:
            """Return step * scale_o * (q . w_o) of group i."""
            q = _to_bytes((groups[i] * inverse[:, i, None]).add_(offsets[:, i, None]))
            return self.products[i](q).mul_(steps[:, i, None])

        total = group_product(0)
        for i in range(1, len(groups)):
            total.add_(group_product(i))
        # Add low * scale_o * sum(w_o) of each group, and the bias. It is the last row of ``sums``,
        # so a column of ones stands beside the lows.
        return total.addmm_(functional.pad(lows, (0, 1), value=1.0), self.sums)


def _to_bytes(x: Tensor) -> Tensor:
    """Return values from 0 to 255 as bytes, without their fractions.

    NumPy takes a third of PyTorch's time for this.
    """
    # Values that are not finite become any byte; the step of their token makes the product NaN.
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(x.numpy().astype(np.uint8))


class Channels(NamedTuple):
    """The range of each channel in the inputs of a linear layer, ``(D_in,)`` each.

    Attributes:
        middle: the mean, rounded to a multiple of 1/8.
        reach: the largest distance from ``middle``.
        largest: the largest absolute value.
    """

    middle: Tensor
    reach: Tensor
    largest: Tensor

    @classmethod
    def of(cls, x: Tensor) -> "Channels":
        """Measure the channels of inputs ``(T, D_in)``."""
        middle = (8 * x.mean(0)).round() / 8
        return cls(middle, (x - middle).abs().amax(0), x.abs().amax(0))


class RecordingOperators(Operators):
    """The plain operators in float32; ``seen`` lists the channels of each product's inputs."""

    def __init__(self, activation: str) -> None:
        super().__init__(torch.float32, activation)
        self.seen: list[Channels] = []

    def _linear(self, x: Tensor, linear: LinearWeights) -> Tensor:
        self.seen.append(Channels.of(x))
        return super()._linear(x, linear)


class QuantizedOperators(Operators):
    """The operators with integer products; attention, norms and sums stay float32."""

    def _linear(self, x: Tensor, linear: Any) -> Tensor:
        return linear(x)  # type: ignore[no-any-return]


@functools.cache
def weight_levels() -> int:
    """Return the largest integer weight whose products are exact on this processor.

    It is 127, or 64 without VNNI. A processor without VNNI cuts the sum of two products at
    2^15 - 1 = 32,767. 2 x 255 x 127 is more than that, and 2 x 255 x 64 is less. A product of the
    largest values shows which kind of processor this is.
    """
    weight = torch.full((64, 64), MOST_LEVELS, dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    zero_point = torch.zeros(64, dtype=torch.int32)
    product = IntegerProduct(packed, torch.ones(64), zero_point, torch.zeros(64))
    largest = product(torch.full((64, 64), 255, dtype=torch.uint8))
    if (largest == 64 * 255 * MOST_LEVELS).all():
        return MOST_LEVELS
    return _FEWER_LEVELS


@torch.no_grad()
def quantized(layers: Sequence[Layer], seen: Sequence[Channels]) -> list[Any]:
    """Return float32 layers in the form that ``QuantizedOperators`` take.

    ``seen`` lists what ``RecordingOperators`` recorded in a pass of these layers.
    """
    # Each layer has four records: of the inputs of qkv, out, up and down. Out needs none.
    before_qkv, before_up, before_down = seen[::4], seen[2::4], seen[3::4]
    return list(map(_quantized, layers, before_qkv, before_up, before_down))


def _quantized(
    layer: Layer, before_qkv: Channels, before_up: Channels, before_down: Channels
) -> Any:
    """Return a layer with integer products in place of its linear layers.

    The other arguments describe the inputs of the layer's ``qkv``, ``up`` and ``down``.
    """
    # The outputs of ``up`` are sorted by size, so that each group of the input channels of ``down``
    # has similar sizes. Sizes are rounded to powers of two, so that rounding errors in the pass
    # that measured them do not change the order.
    by_size = before_down.largest.log2().round().argsort(descending=True, stable=True)
    bias = None if layer.up.bias is None else layer.up.bias[by_size]
    up = LinearWeights(layer.up.weight[by_size], bias)
    down = layer.after_activation.linear
    out: Any = _grouped(layer.after_attention.linear, n_groups=1)
    sorted_down = down._replace(weight=down.weight[:, by_size])
    grouped_down: Any = _grouped(sorted_down, _N_GROUPS)
    return layer._replace(
        qkv=_smoothed(layer.qkv, before_qkv),
        after_attention=layer.after_attention._replace(linear=out),
        up=_smoothed(up, before_up),
        after_activation=layer.after_activation._replace(linear=grouped_down),
    )


def _smoothed(linear: LinearWeights, channels: Channels) -> Any:
    """Return an integer layer that first changes its inputs x to ``(x - middle) / spread``.

    The spread of a channel is ``reach^alpha / w^(1 - alpha)``, rounded to a power of two, where w
    is the largest weight of the channel. The weights and the bias make up for spread and middle.
    """
    reach = channels.reach.clamp(min=_SMALL)
    largest = linear.weight.abs().amax(0).clamp(min=_SMALL)
    spread = (_ALPHA * reach.log2() - (1 - _ALPHA) * largest.log2()).round().exp2()
    layer = _grouped(linear._replace(weight=linear.weight * spread), n_groups=1)
    # The last row of the sums is the bias.
    layer.sums[-1] += linear.weight @ channels.middle
    return layer._replace(factor=1 / spread, shift=-channels.middle / spread)


def _grouped(linear: LinearWeights, n_groups: int) -> QuantizedLinear:
    """Return a linear layer as integer products, one for each group of input channels."""
    products = tuple(map(IntegerProduct.of, linear.weight.tensor_split(n_groups, 1)))
    sums = [product.sums for product in products]
    no_bias = linear.weight.new_zeros(len(linear.weight))
    sums.append(no_bias if linear.bias is None else linear.bias)
    return QuantizedLinear(products, torch.stack(sums))
