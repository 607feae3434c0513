"""Layers computed forward and backward by hand: matrix products, and compiled kernels for all between them.

What autograd would do for the same layers, with fewer passes over memory, in memory that is used again at every
step. Sentences come in shares, one a core; weights are multiplied share by share, and their gradients once for
all shares together.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from simcse_cli.models.cores import map_on_cores
from simcse_cli.models.packed.architectures import KINDS, BackboneParts, LayerParts, layer_parameters
from simcse_cli.models.packed.dropout import DRAWS_A_WORD, NO_DROPOUT, drop_threshold
from simcse_cli.models.packed.layers import active_probability
from simcse_cli.models.packed.memory import Memory, Shape
from simcse_cli.models.packed.tokens import LANES, ROUNDED_TO, Share

# Rows of products are rounded up to this: few sizes need few kernels, which take 2 ms each to make.
_ROWS_ROUNDED_TO = 16


def can_fuse(parts: BackboneParts, dtype: torch.dtype) -> bool:
    """Tell whether the kernels compute these layers: float32 parameters, products in float32 or bfloat16.

    Heads have a multiple of 16 values and together the width of the states, scores have no bias, norms have gain
    and shift.
    """
    width = parts.layers[0].query.out_features
    norms = [norm for layer in parts.layers for norm in (layer.attention_norm, layer.output_norm)]
    return (
        dtype in (torch.float32, torch.bfloat16)
        and parts.relative_bias is None
        and parts.activation in KINDS
        and width % (parts.n_heads * LANES) == 0
        and parts.layers[0].query.in_features == width
        and all(norm.weight is not None and norm.bias is not None for norm in norms)
        and all(p.dtype is torch.float32 for layer in parts.layers for _, p in layer_parameters(layer))
    )


class _Values(NamedTuple):
    """The same memory for PyTorch's products and for the kernels."""

    tensor: Tensor
    array: np.ndarray

    @classmethod
    def of(cls, tensor: Tensor) -> "_Values":
        """Return a tensor with itself as the kernels take it; bfloat16 as int16 with its bits."""
        return cls(tensor, (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy())


@dataclass(frozen=True, slots=True)
class _Weights:
    """What a layer multiplies, ``(D_out, D_in)`` in the arithmetic of the products."""

    qkv: Tensor
    mix: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class _Residual:
    """What one share's residual sum and norm read and write; see ``kernels.add_and_norm``.

    Attributes:
        bias, gain, shift: parameters.
        of_bias, of_gain, of_shift: their gradients.
        threshold: of dropout.
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
    epsilon: float
    operand: _Values
    slope: _Values
    normed: np.ndarray
    inverse: np.ndarray


@dataclass(frozen=True, slots=True)
class _ShareLayer:
    """What one share reads and writes in one layer, all made before the pass.

    Between the products the caches are full of their operands: there every step of Python takes ten times as long.

    Attributes:
        weights: of the products.
        input, qkv, mixed, middle, up_slope, after: operands and results of the products.
        threshold: of dropout on attention weights.
        qkv_bias, up_bias: parameters.
        of_qkv_bias, of_up_bias: their gradients.
        attention_weights: with a minus where dropout takes one.
        attention, output: residual sums.
    """

    weights: _Weights
    input: _Values
    qkv: _Values
    mixed: _Values
    middle: _Values
    up_slope: _Values
    after: _Values
    threshold: int
    qkv_bias: np.ndarray
    up_bias: np.ndarray
    of_qkv_bias: np.ndarray
    of_up_bias: np.ndarray
    attention_weights: np.ndarray
    attention: _Residual
    output: _Residual


class FusedLayers:
    """One pass through the layers of a model.

    Shares run side by side on the cores.

    Args:
        parts: the model; see ``can_fuse``.
        dtype: arithmetic of the products; everything else is computed in float32.
        shares: of the sentences.
        memory: where values between the layers stand.
    """

    def __init__(
        self,
        parts: BackboneParts,
        dtype: torch.dtype,
        shares: Sequence[Share],
        memory: Memory,
    ) -> None:
        # Imported here: the compiler behind the kernels takes most of a second to load.
        from simcse_cli.models.packed import kernels

        self._kernels = kernels
        self._parts, self._shares, self._memory, self._dtype = parts, shares, memory, dtype
        self._layers = parts.layers
        self._activation = KINDS[parts.activation]
        ends = list(itertools.accumulate((_n_rows(share) for share in shares), initial=0))
        self._ranges = [slice(*pair) for pair in itertools.pairwise(ends)]
        self._groups = [np.array(share.tokens.groups, dtype=np.int64) for share in shares]
        self._values = memory.tensors(self._shapes(ends[-1]))
        self._vector_gradients = [
            [_Vectors.zeros(layer) for layer in self._layers] for _ in shares
        ]  # of each share's layers
        weights = [self._weights_of(i, layer) for i, layer in enumerate(self._layers)]
        self._share_layers = [
            [self._share_layer(number, i, weights[i]) for i in range(len(self._layers))]
            for number in range(len(shares))
        ]

    def _shapes(self, n_rows: int) -> dict[Any, Shape]:
        """Return what is kept between forward and backward pass."""
        dtype, wide = self._dtype, torch.float32
        shapes: dict[Any, Shape] = {"states": ((n_rows, self._layers[0].query.in_features), wide)}
        for i, layer in enumerate(self._layers):
            hidden, width, inner = layer.query.in_features, layer.query.out_features, layer.up.out_features
            shapes |= {
                (i, "input"): ((n_rows, hidden), dtype),
                (i, "qkv"): ((n_rows, 3 * width), dtype),
                (i, "mixed"): ((n_rows, width), dtype),
                (i, "mix slope"): ((n_rows, hidden), dtype),
                (i, "attention normed"): ((n_rows, hidden), wide),
                (i, "attention inverse"): ((n_rows,), wide),
                (i, "middle"): ((n_rows, hidden), dtype),
                (i, "up slope"): ((n_rows, inner), dtype),
                (i, "after"): ((n_rows, inner), dtype),
                (i, "down slope"): ((n_rows, hidden), dtype),
                (i, "output normed"): ((n_rows, hidden), wide),
                (i, "output inverse"): ((n_rows,), wide),
                (i, "qkv weight"): ((3 * width, hidden), dtype),
                (i, "mix weight"): ((hidden, width), dtype),
                (i, "up weight"): ((inner, hidden), dtype),
                (i, "down weight"): ((hidden, inner), dtype),
            }
            for number, share in enumerate(self._shares):
                shapes[i, "attention weights", number] = ((_n_weights(share, self._parts.n_heads),), wide)
        shapes[len(self._layers), "input"] = shapes[0, "input"]
        return shapes

    def _weights_of(self, index: int, layer: LayerParts) -> _Weights:
        """Return a layer's weights, copied to where their gradients will be computed."""

        def copied(name: str, *linears: nn.Linear) -> Tensor:
            target = self._values[index, f"{name} weight"]
            for linear, part in zip(linears, target.chunk(len(linears)), strict=True):
                part.copy_(linear.weight.detach())
            return target

        return _Weights(
            qkv=copied("qkv", layer.query, layer.key, layer.value),
            mix=copied("mix", layer.mix),
            up=copied("up", layer.up),
            down=copied("down", layer.down),
        )

    def _share_layer(self, number: int, i: int, weights: _Weights) -> _ShareLayer:
        layer, vectors = self._layers[i], self._vector_gradients[number][i]
        drops = self._shares[number].masks is not None

        def values(*key: Any) -> _Values:
            return _Values.of(self._values[key][self._ranges[number]])

        def threshold(dropout: nn.Dropout | None) -> int:
            p = active_probability(dropout)
            return drop_threshold(p) if drops and p > 0 else NO_DROPOUT

        return _ShareLayer(
            weights=weights,
            input=values(i, "input"),
            qkv=values(i, "qkv"),
            mixed=values(i, "mixed"),
            middle=values(i, "middle"),
            up_slope=values(i, "up slope"),
            after=values(i, "after"),
            threshold=threshold(layer.attention_dropout),
            qkv_bias=np.concatenate([_bias(linear) for linear in (layer.query, layer.key, layer.value)]),
            up_bias=_bias(layer.up),
            of_qkv_bias=vectors.qkv_bias,
            of_up_bias=vectors.up_bias,
            attention_weights=self._values[i, "attention weights", number].numpy(),
            attention=_Residual(
                bias=_bias(layer.mix),
                gain=_vector(layer.attention_norm.weight),
                shift=_vector(layer.attention_norm.bias),
                of_bias=vectors.mix_bias,
                of_gain=vectors.attention_gain,
                of_shift=vectors.attention_shift,
                threshold=threshold(layer.mix_dropout),
                epsilon=layer.attention_norm.eps,
                operand=values(i, "middle"),
                slope=values(i, "mix slope"),
                normed=values(i, "attention normed").array,
                inverse=values(i, "attention inverse").array,
            ),
            output=_Residual(
                bias=_bias(layer.down),
                gain=_vector(layer.output_norm.weight),
                shift=_vector(layer.output_norm.bias),
                of_bias=vectors.down_bias,
                of_gain=vectors.output_gain,
                of_shift=vectors.output_shift,
                threshold=threshold(layer.output_dropout),
                epsilon=layer.output_norm.eps,
                operand=values(i + 1, "input"),
                slope=values(i, "down slope"),
                normed=values(i, "output normed").array,
                inverse=values(i, "output inverse").array,
            ),
        )

    def forward(self, embedded: Sequence[Tensor], wanted: Collection[int]) -> list[dict[int, Tensor]]:
        """Return each share's states after the wanted layers, ``(tokens, H)`` in float32.

        Args:
            embedded: each share's embeddings, ``(tokens, H)``.
            wanted: numbers of layers, from 1.
        """

        def forward(number: int) -> dict[int, Tensor]:
            return self._forward(number, embedded[number], wanted)

        return list(map_on_cores(forward, range(len(self._shares))))

    @torch.no_grad()
    def _forward(self, number: int, embedded: Tensor, wanted: Collection[int]) -> dict[int, Tensor]:
        kernels, share, layers = self._kernels, self._shares[number], self._share_layers[number]
        groups, n_heads, n_tokens = self._groups[number], self._parts.n_heads, share.n_tokens
        stream = np.zeros(4, np.uint64) if share.masks is None else share.masks.stream()
        states = _Values.of(self._values["states"][self._ranges[number]])
        update = _Values.of(self._memory.tensor(tuple(states.tensor.shape), self._dtype))
        states.tensor[:n_tokens] = embedded
        states.tensor[n_tokens:] = 0
        layers[0].input.tensor.copy_(states.tensor)
        kept = {}
        for i, layer in enumerate(layers):
            torch.mm(layer.input.tensor, layer.weights.qkv.t(), out=layer.qkv.tensor)
            kernels.attend(
                layer.qkv.array,
                layer.qkv_bias,
                groups,
                n_heads,
                layer.threshold,
                stream,
                layer.attention_weights,
                layer.mixed.array,
            )
            layer.mixed.array[n_tokens:] = 0
            torch.mm(layer.mixed.tensor, layer.weights.mix.t(), out=update.tensor)
            self._add_and_norm(layer.attention, stream, states, update, n_tokens)
            torch.mm(layer.middle.tensor, layer.weights.up.t(), out=layer.up_slope.tensor)
            kernels.activate(self._activation, layer.up_slope.array, layer.up_bias, layer.after.array)
            torch.mm(layer.after.tensor, layer.weights.down.t(), out=update.tensor)
            self._add_and_norm(layer.output, stream, states, update, n_tokens)
            if i + 1 in wanted:
                own = states.tensor[:n_tokens]
                kept[i + 1] = own if i + 1 == len(layers) else own.clone()
        if share.masks is not None:
            share.masks.continue_from(stream)
        return kept

    def _add_and_norm(
        self, residual: _Residual, stream: np.ndarray, states: _Values, update: _Values, n_tokens: int
    ) -> None:
        self._kernels.add_and_norm(
            states.array,
            update.array,
            residual.bias,
            residual.threshold,
            stream,
            residual.gain,
            residual.shift,
            residual.epsilon,
            residual.operand.array,
            residual.normed,
            residual.inverse,
            residual.slope.array,
        )
        if residual.threshold != NO_DROPOUT:
            n_rows, width = update.array.shape
            rest = -(-n_tokens // ROUNDED_TO) * ROUNDED_TO - n_rows  # rows that autograd's layers would have
            self._kernels.skip(stream, rest * width // DRAWS_A_WORD)

    def backward(self, gradients: Sequence[Mapping[int, Tensor]]) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the gradients of each share's embeddings, ``(tokens, H)``, and of all parameters.

        Those of weights are products over the sentences of all shares, computed where the copies of the
        weights stood, after all shares have passed the layer. The smallest come last, so that no core is
        left alone for long.

        Args:
            gradients: for each share, with respect to the states after layers, by their number, ``(tokens, H)``
                each; at least one, and of the same layers for all shares.

        Returns:
            The gradients of embeddings, and those of the parameters in the order of ``layer_parameters``:
            None where they are frozen, or of layers that no gradient reached.
        """
        top = max(gradients[0])
        numbers = range(len(self._shares))
        passed = [[Event() for _ in range(top)] for _ in numbers]
        shapes = {
            (i, name): (tuple(p.shape), torch.float32)
            for i, layer in enumerate(self._layers[:top])
            for name, p in layer_parameters(layer)
            if p.requires_grad
        }
        found = self._memory.tensors(shapes)
        starts: dict[int, Tensor] = {}

        def pass_share(number: int) -> None:
            try:
                starts[number] = self._backward(number, gradients[number], passed[number])
            finally:
                for event in passed[number]:
                    event.set()

        def multiply(i: int, name: str) -> None:
            for share in passed:
                share[i].wait()
            self._multiply(i, name, found)

        jobs: list[Callable[[], None]] = [partial(pass_share, number) for number in numbers]
        jobs += [partial(multiply, i, name) for name in _FACTORS for i in reversed(range(top))]
        for _ in map_on_cores(lambda job: job(), jobs, at_once=len(numbers)):
            pass
        for i in range(top):
            vectors = _Vectors.summed([share[i] for share in self._vector_gradients])
            for name, vector in vectors.by_parameter(self._layers[i]):
                if (i, name) in found:
                    found[i, name].copy_(torch.from_numpy(vector))
        names = [(i, name) for i, layer in enumerate(self._layers) for name, _ in layer_parameters(layer)]
        return [starts[number] for number in numbers], [found.get(name) for name in names]

    @torch.no_grad()
    def _backward(self, number: int, gradients: Mapping[int, Tensor], passed: Sequence[Event]) -> Tensor:
        """Return the gradient of a share's embeddings; set the event of each layer that it has passed."""
        kernels, layers = self._kernels, self._share_layers[number]
        groups, n_heads, n_tokens = self._groups[number], self._parts.n_heads, self._shares[number].n_tokens
        shape = tuple(self._values["states"][self._ranges[number]].shape)
        gradient = _Values.of(self._memory.tensor(shape))
        product = _Values.of(self._memory.tensor(shape, self._dtype))
        inner = _Values.of(self._memory.tensor((shape[0], len(self._layers[0].up.weight)), self._dtype))
        gradient.tensor.zero_()
        product.tensor.zero_()
        for i in reversed(range(len(passed))):
            layer = layers[i]
            if i + 1 in gradients:
                gradient.tensor[:n_tokens] += gradients[i + 1]
            self._norm_backward(layer.output, gradient, product)
            torch.mm(layer.output.slope.tensor, layer.weights.down, out=inner.tensor)
            kernels.activate_backward(layer.up_slope.array, inner.array, layer.of_up_bias)
            torch.mm(layer.up_slope.tensor, layer.weights.up, out=product.tensor)
            self._norm_backward(layer.attention, gradient, product)
            torch.mm(layer.attention.slope.tensor, layer.weights.mix, out=product.tensor)
            kernels.attend_backward(
                layer.qkv.array,
                layer.qkv_bias,
                groups,
                n_heads,
                layer.threshold,
                layer.attention_weights,
                product.array,
                layer.of_qkv_bias,
            )
            layer.qkv.array[n_tokens:] = 0
            torch.mm(layer.qkv.tensor, layer.weights.qkv, out=product.tensor)
            passed[i].set()
        return gradient.tensor.add_(product.tensor)[:n_tokens]

    def _norm_backward(self, residual: _Residual, gradient: _Values, product: _Values) -> None:
        self._kernels.add_and_norm_backward(
            gradient.array,
            product.array,
            residual.threshold,
            residual.gain,
            residual.normed,
            residual.inverse,
            residual.slope.array,
            residual.of_bias,
            residual.of_gain,
            residual.of_shift,
        )

    @torch.no_grad()
    def _multiply(self, i: int, name: str, found: Mapping[tuple[int, str], Tensor]) -> None:
        """Write the gradient of one product's weights, of query, key and value side by side."""
        outer, inner, fields = _FACTORS[name]
        targets = [found.get((i, f"{field}.weight")) for field in fields]
        if not any(target is not None for target in targets):
            return
        product = self._values[i, f"{name} weight"]
        torch.mm(self._values[i, outer].t(), self._values[i, inner], out=product)
        for target, part in zip(targets, product.chunk(len(fields)), strict=True):
            if target is not None:
                target.copy_(part)


# Of each product: gradient of its result, its operand, and the linear layers it stands for; the largest first.
_FACTORS = {
    "up": ("up slope", "middle", ("up",)),
    "down": ("down slope", "after", ("down",)),
    "qkv": ("qkv", "input", ("query", "key", "value")),
    "mix": ("mix slope", "mixed", ("mix",)),
}


@dataclass(frozen=True)
class _Vectors:
    """Gradients of a layer's biases, gains and shifts, float32."""

    qkv_bias: np.ndarray
    mix_bias: np.ndarray
    attention_gain: np.ndarray
    attention_shift: np.ndarray
    up_bias: np.ndarray
    down_bias: np.ndarray
    output_gain: np.ndarray
    output_shift: np.ndarray

    @classmethod
    def zeros(cls, layer: LayerParts) -> "_Vectors":
        """Return zeros for a layer."""
        hidden, width, inner = layer.query.in_features, layer.query.out_features, layer.up.out_features
        widths = (3 * width, hidden, hidden, hidden, inner, hidden, hidden, hidden)
        return cls(*(np.zeros(width, np.float32) for width in widths))

    @classmethod
    def summed(cls, shares: Sequence["_Vectors"]) -> "_Vectors":
        """Return the sum over shares, in their order."""
        return cls(
            *(sum(arrays[1:], arrays[0]) for arrays in zip(*(vars(s).values() for s in shares), strict=True))
        )

    def by_parameter(self, layer: LayerParts) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the gradients by names as in ``layer_parameters``."""
        query, key, value = np.split(self.qkv_bias, 3)
        yield from (("query.bias", query), ("key.bias", key), ("value.bias", value))
        yield from (("mix.bias", self.mix_bias), ("up.bias", self.up_bias), ("down.bias", self.down_bias))
        yield from (
            ("attention_norm.weight", self.attention_gain),
            ("attention_norm.bias", self.attention_shift),
        )
        yield from (("output_norm.weight", self.output_gain), ("output_norm.bias", self.output_shift))


def _n_rows(share: Share) -> int:
    """Return how many rows are computed, so that products have few different sizes."""
    return -(-share.n_tokens // _ROWS_ROUNDED_TO) * _ROWS_ROUNDED_TO


def _n_weights(share: Share, n_heads: int) -> int:
    """Return the number of attention weights of a layer, with the padding of their rows."""
    return sum(group.n_rows * n_heads * group.length * _padded(group.length) for group in share.tokens.groups)


def _padded(length: int) -> int:
    """Return how many places a row of attention weights takes."""
    return -(-length // LANES) * LANES


def _vector(parameter: Tensor) -> np.ndarray:
    return parameter.detach().numpy()


def _bias(linear: nn.Linear) -> np.ndarray:
    """Return the bias, zeros where there is none."""
    if linear.bias is None:
        return np.zeros(linear.out_features, np.float32)
    return _vector(linear.bias)
