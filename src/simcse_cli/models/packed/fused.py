"""Layers computed forward and backward by hand: matrix products, and compiled kernels for all between them.

What autograd would do for the same layers, with fewer passes over memory, in memory that is used again at every
step. Sentences come in shares, one a core; weights are multiplied share by share, and their gradients once for
all shares together.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from simcse_cli.models.cores import map_on_cores
from simcse_cli.models.packed.architectures import KINDS, BackboneParts, LayerParts, layer_parameters
from simcse_cli.models.packed.dropout import DRAWS_A_WORD, NO_DROPOUT, drop_threshold
from simcse_cli.models.packed.first import FirstAttention
from simcse_cli.models.packed.layers import active_probability
from simcse_cli.models.packed.memory import Memory, Shape
from simcse_cli.models.packed.stages import AfterAttention, Residual, Values, bias_of
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


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one share reads and writes in one layer with attention of all tokens.

    Attributes:
        qkv_weight: of query, key and value, ``(3D, H)``, in the arithmetic of the products.
        qkv_bias: parameter, float32.
        of_qkv_bias: its gradient, added to.
        threshold: of dropout on attention weights.
        input: states before the layer, as operand.
        qkv: queries, keys and values, then their gradient.
        attention_weights: with a minus where dropout takes one.
        rest: what follows attention.
    """

    qkv_weight: Tensor
    qkv_bias: np.ndarray
    of_qkv_bias: np.ndarray
    threshold: int
    input: Values
    qkv: Values
    attention_weights: np.ndarray
    rest: AfterAttention


@dataclass(frozen=True, slots=True)
class _LastLayer:
    """What one share reads and writes in a last layer of first tokens."""

    attention: FirstAttention
    rest: AfterAttention


class FusedLayers:
    """One pass through the layers of a model.

    Shares run side by side on the cores.

    Args:
        parts: the model; see ``can_fuse``.
        dtype: arithmetic of the products; everything else is computed in float32.
        shares: of the sentences.
        memory: where values between the layers stand.
        first_only: the last layer gives the states of first tokens only, ``(R, H)``.
    """

    def __init__(
        self,
        parts: BackboneParts,
        dtype: torch.dtype,
        shares: Sequence[Share],
        memory: Memory,
        *,
        first_only: bool = False,
    ) -> None:
        # Imported here: the compiler behind the kernels takes most of a second to load.
        from simcse_cli.models.packed import kernels

        self._kernels = kernels
        self._parts, self._shares, self._memory, self._dtype = parts, shares, memory, dtype
        self._layers = parts.layers
        self._n_whole = len(self._layers) - first_only  # layers of all tokens
        self._token_rows = _ranges(_n_rows(share) for share in shares)
        self._first_rows = _ranges(len(share.tokens.order) for share in shares)
        self._groups = [np.array(share.tokens.groups, dtype=np.int64) for share in shares]
        self._values = memory.tensors(self._shapes())
        self._vector_gradients = [
            [_Vectors.zeros(layer) for layer in self._layers] for _ in shares
        ]  # of each share's layers
        self._copy_weights()
        numbers = range(len(shares))
        self._whole = [[self._layer(number, i) for i in range(self._n_whole)] for number in numbers]
        self._last = [self._last_layer(number) for number in numbers] if first_only else []
        self._weight_gradients: dict[int, dict[str, Tensor]] = {}  # of the last layers' attention, by share

    def _shapes(self) -> dict[Any, Shape]:
        """Return what is kept between forward and backward pass."""
        dtype, wide = self._dtype, torch.float32
        n_tokens, n_first = self._token_rows[-1].stop, self._first_rows[-1].stop
        hidden = self._layers[0].query.in_features
        shapes: dict[Any, Shape] = {"states": ((n_tokens, hidden), wide)}
        for i, layer in enumerate(self._layers):
            width, inner = layer.query.out_features, layer.up.out_features
            n_rows = n_tokens if i < self._n_whole else n_first
            shapes |= {
                (i, "input"): ((n_tokens, hidden), dtype),
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
                (i, "mix weight"): ((hidden, width), dtype),
                (i, "up weight"): ((inner, hidden), dtype),
                (i, "down weight"): ((hidden, inner), dtype),
            }
            if i < self._n_whole:
                shapes[i, "qkv"] = ((n_rows, 3 * width), dtype)
                shapes[i, "qkv weight"] = ((3 * width, hidden), dtype)
                for number, share in enumerate(self._shares):
                    n_weights = _n_weights(share, self._parts.n_heads)
                    shapes[i, "attention weights", number] = ((n_weights,), wide)
        n_last = n_tokens if self._n_whole == len(self._layers) else n_first
        shapes[len(self._layers), "input"] = ((n_last, hidden), dtype)
        return shapes

    def _copy_weights(self) -> None:
        """Copy the layers' weights to where their gradients will be computed."""
        for i, layer in enumerate(self._layers):
            for name, (_, _, fields) in _FACTORS.items():
                target = self._values.get((i, f"{name} weight"))
                if target is not None:
                    for field, part in zip(fields, target.chunk(len(fields)), strict=True):
                        part.copy_(getattr(layer, field).weight.detach())

    def _threshold(self, number: int, dropout: nn.Dropout | None) -> int:
        p = active_probability(dropout)
        drops = self._shares[number].masks is not None and p > 0
        return drop_threshold(p) if drops else NO_DROPOUT

    def _layer(self, number: int, i: int) -> _Layer:
        layer, rows = self._layers[i], self._token_rows[number]
        return _Layer(
            qkv_weight=self._values[i, "qkv weight"],
            qkv_bias=np.concatenate([bias_of(linear) for linear in (layer.query, layer.key, layer.value)]),
            of_qkv_bias=self._vector_gradients[number][i].qkv_bias,
            threshold=self._threshold(number, layer.attention_dropout),
            input=Values.of(self._values[i, "input"][rows]),
            qkv=Values.of(self._values[i, "qkv"][rows]),
            attention_weights=self._values[i, "attention weights", number].numpy(),
            rest=self._rest(number, i, rows),
        )

    def _last_layer(self, number: int) -> _LastLayer:
        i = self._n_whole
        layer, rows = self._layers[i], self._first_rows[number]
        attention = FirstAttention(
            self._kernels,
            layer,
            self._parts.n_heads,
            self._shares[number].tokens,
            self._threshold(number, layer.attention_dropout),
            self._memory,
            self._values[i, "mixed"][rows],
            self._vector_gradients[number][i].qkv_bias,
        )
        return _LastLayer(attention, self._rest(number, i, rows))

    def _rest(self, number: int, i: int, rows: slice) -> AfterAttention:
        """Return what follows a layer's attention, on a share's rows of the values."""
        layer, vectors = self._layers[i], self._vector_gradients[number][i]

        def values(index: int, name: str) -> Values:
            return Values.of(self._values[index, name][rows])

        def residual(name: str, product: str, dropout: nn.Dropout | None, operand: Values) -> Residual:
            norm: nn.LayerNorm = getattr(layer, f"{name}_norm")
            return Residual(
                bias=bias_of(getattr(layer, product)),
                gain=_vector(norm.weight),
                shift=_vector(norm.bias),
                of_bias=getattr(vectors, f"{product}_bias"),
                of_gain=getattr(vectors, f"{name}_gain"),
                of_shift=getattr(vectors, f"{name}_shift"),
                threshold=self._threshold(number, dropout),
                n_skipped=self._n_skipped(number, i, dropout),
                epsilon=norm.eps,
                operand=operand,
                slope=values(i, f"{product} slope"),
                normed=values(i, f"{name} normed").array,
                inverse=values(i, f"{name} inverse").array,
            )

        return AfterAttention(
            mix=self._values[i, "mix weight"],
            up=self._values[i, "up weight"],
            down=self._values[i, "down weight"],
            activation=KINDS[self._parts.activation],
            up_bias=bias_of(layer.up),
            of_up_bias=vectors.up_bias,
            mixed=values(i, "mixed"),
            up_slope=values(i, "up slope"),
            after=values(i, "after"),
            attention=residual("attention", "mix", layer.mix_dropout, values(i, "middle")),
            output=residual("output", "down", layer.output_dropout, values(i + 1, "input")),
        )

    def _n_skipped(self, number: int, i: int, dropout: nn.Dropout | None) -> int:
        """Return the words drawn for rows that only autograd's layers of all tokens have."""
        if i >= self._n_whole or self._threshold(number, dropout) == NO_DROPOUT:
            return 0
        share = self._shares[number]
        n_rows = -(-share.n_tokens // ROUNDED_TO) * ROUNDED_TO - _n_rows(share)
        return n_rows * self._layers[i].query.in_features // DRAWS_A_WORD

    def forward(self, embedded: Sequence[Tensor], wanted: Collection[int]) -> list[dict[int, Tensor]]:
        """Return each share's states after the wanted layers in float32, ``(tokens, H)`` or of first tokens ``(R, H)``.

        Args:
            embedded: each share's embeddings, ``(tokens, H)``.
            wanted: numbers of layers, from 1.
        """

        def forward(number: int) -> dict[int, Tensor]:
            return self._forward(number, embedded[number], wanted)

        return list(map_on_cores(forward, range(len(self._shares))))

    @torch.no_grad()
    def _forward(self, number: int, embedded: Tensor, wanted: Collection[int]) -> dict[int, Tensor]:
        kernels, share, layers = self._kernels, self._shares[number], self._whole[number]
        groups, n_heads, n_tokens = self._groups[number], self._parts.n_heads, share.n_tokens
        stream = np.zeros(4, np.uint64) if share.masks is None else share.masks.stream()
        states = Values.of(self._values["states"][self._token_rows[number]])
        update = Values.of(self._memory.tensor(tuple(states.tensor.shape), self._dtype))
        states.tensor[:n_tokens] = embedded
        states.tensor[n_tokens:] = 0
        if layers:
            layers[0].input.tensor.copy_(states.tensor)
        kept = {}
        for i, layer in enumerate(layers):
            torch.mm(layer.input.tensor, layer.qkv_weight.t(), out=layer.qkv.tensor)
            kernels.attend(
                layer.qkv.array,
                layer.qkv_bias,
                groups,
                n_heads,
                layer.threshold,
                stream,
                layer.attention_weights,
                layer.rest.mixed.array,
            )
            layer.rest.mixed.array[n_tokens:] = 0
            layer.rest.forward(kernels, stream, states, update)
            if i + 1 in wanted:
                own = states.tensor[:n_tokens]
                kept[i + 1] = own if i + 1 == len(self._layers) else own.clone()
        if self._last:
            last = self._last[number]
            first = Values.of(last.attention.forward(states.tensor[:n_tokens], stream))
            update = Values.of(torch.empty_like(first.tensor, dtype=self._dtype))
            last.rest.forward(kernels, stream, first, update)
            kept[len(self._layers)] = first.tensor
        if share.masks is not None:
            share.masks.continue_from(stream)
        return kept

    def backward(self, gradients: Sequence[Mapping[int, Tensor]]) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the gradients of each share's embeddings, ``(tokens, H)``, and of all parameters.

        Those of weights are products over the sentences of all shares, computed where the copies of the
        weights stood, after all shares have passed the layer. The smallest come last, so that no core is
        left alone for long.

        Args:
            gradients: for each share, with respect to what ``forward`` returned, by the number of the layer; at
                least one, and of the same layers for all shares.

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
        products = [(i, name) for name in _FACTORS for i in reversed(range(top))]
        jobs += [partial(multiply, *key) for key in products if key[0] < self._n_whole or key[1] != "qkv"]
        for _ in map_on_cores(lambda job: job(), jobs, at_once=len(numbers)):
            pass
        for i in range(top):
            vectors = _Vectors.summed([share[i] for share in self._vector_gradients])
            for name, vector in vectors.by_parameter(self._layers[i]):
                if (i, name) in found:
                    found[i, name].copy_(torch.from_numpy(vector))
        for i in range(self._n_whole, top):
            for field in ("query", "key", "value"):
                if (i, f"{field}.weight") in found:
                    own = [self._weight_gradients[number][field] for number in numbers]
                    found[i, f"{field}.weight"].copy_(sum(own[1:], own[0]))
        names = [(i, name) for i, layer in enumerate(self._layers) for name, _ in layer_parameters(layer)]
        return [starts[number] for number in numbers], [found.get(name) for name in names]

    @torch.no_grad()
    def _backward(self, number: int, gradients: Mapping[int, Tensor], passed: Sequence[Event]) -> Tensor:
        """Return the gradient of a share's embeddings; set the event of each layer that it has passed."""
        kernels, groups, n_heads = self._kernels, self._groups[number], self._parts.n_heads
        n_tokens, hidden = self._shares[number].n_tokens, self._layers[0].query.in_features
        shape = (_n_rows(self._shares[number]), hidden)
        gradient = Values.of(self._memory.tensor(shape))
        product = Values.of(self._memory.tensor(shape, self._dtype))
        inner = Values.of(self._memory.tensor((shape[0], len(self._layers[0].up.weight)), self._dtype))
        product.tensor.zero_()
        n_whole = len(passed)
        if self._last and n_whole == len(self._layers):
            n_whole -= 1
            self._last_backward(number, gradients[n_whole + 1], gradient.tensor[:n_tokens])
            gradient.tensor[n_tokens:] = 0
            passed[n_whole].set()
        else:
            gradient.tensor.zero_()
        for i in reversed(range(n_whole)):
            layer = self._whole[number][i]
            if i + 1 in gradients:
                gradient.tensor[:n_tokens] += gradients[i + 1]
            layer.rest.backward(kernels, gradient, product, inner)
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
            torch.mm(layer.qkv.tensor, layer.qkv_weight, out=product.tensor)
            passed[i].set()
        return gradient.tensor.add_(product.tensor)[:n_tokens]

    def _last_backward(self, number: int, gradient: Tensor, of_states: Tensor) -> None:
        """Write the gradient of the states before the last layer, ``(tokens, H)``, given that of first tokens."""
        last = self._last[number]
        own = Values.of(gradient.clone(memory_format=torch.contiguous_format))
        product = Values.of(torch.zeros_like(own.tensor, dtype=self._dtype))
        inner = Values.of(torch.empty_like(last.rest.after.tensor))
        last.rest.backward(self._kernels, own, product, inner)
        self._weight_gradients[number] = last.attention.backward(product.tensor, own.tensor, of_states)

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


def _ranges(sizes: Iterable[int]) -> list[slice]:
    """Return ranges of these sizes, one after the other."""
    return [slice(*pair) for pair in itertools.pairwise(itertools.accumulate(sizes, initial=0))]


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
