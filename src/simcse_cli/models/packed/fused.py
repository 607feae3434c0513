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
from typing import Any

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


@dataclass(frozen=True)
class _Weights:
    """What a layer multiplies and adds, as the kernels take it.

    Attributes:
        qkv, mix, up, down: of the products, ``(D_out, D_in)``, in their arithmetic.
        qkv_bias, mix_bias, up_bias, down_bias: float32.
        attention_norm, output_norm: modules.
        thresholds: of dropout on attention weights, on their mix, on the output.
    """

    qkv: Tensor
    mix: Tensor
    up: Tensor
    down: Tensor
    qkv_bias: np.ndarray
    mix_bias: np.ndarray
    up_bias: np.ndarray
    down_bias: np.ndarray
    attention_norm: nn.LayerNorm
    output_norm: nn.LayerNorm
    thresholds: tuple[int, int, int]


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
        ends = list(itertools.accumulate((_n_rows(share) for share in shares), initial=0))
        self._ranges = [slice(*pair) for pair in itertools.pairwise(ends)]
        self._groups = [np.array(share.tokens.groups, dtype=np.int64) for share in shares]
        drops = any(share.masks is not None for share in shares)
        self._values = memory.tensors(self._shapes(ends[-1]))
        self._weights = [self._weights_of(i, layer, drops=drops) for i, layer in enumerate(self._layers)]
        self._vector_gradients = [
            [_Vectors.zeros(weights) for weights in self._weights] for _ in shares
        ]  # of each share's layers

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
                shapes[i, "weights", number] = ((_n_weights(share, self._parts.n_heads),), wide)
        shapes[len(self._layers), "input"] = shapes[0, "input"]
        return shapes

    def _weights_of(self, index: int, layer: LayerParts, *, drops: bool) -> _Weights:
        """Return a layer's weights, copied to where their gradients will be computed."""

        def copied(name: str, *linears: nn.Linear) -> Tensor:
            target = self._values[index, f"{name} weight"]
            for linear, part in zip(linears, target.chunk(len(linears)), strict=True):
                part.copy_(linear.weight.detach())
            return target

        def threshold(dropout: nn.Dropout | None) -> int:
            p = active_probability(dropout)
            return drop_threshold(p) if drops and p > 0 else NO_DROPOUT

        return _Weights(
            qkv=copied("qkv", layer.query, layer.key, layer.value),
            mix=copied("mix", layer.mix),
            up=copied("up", layer.up),
            down=copied("down", layer.down),
            qkv_bias=np.concatenate([_bias(linear) for linear in (layer.query, layer.key, layer.value)]),
            mix_bias=_bias(layer.mix),
            up_bias=_bias(layer.up),
            down_bias=_bias(layer.down),
            attention_norm=layer.attention_norm,
            output_norm=layer.output_norm,
            thresholds=(
                threshold(layer.attention_dropout),
                threshold(layer.mix_dropout),
                threshold(layer.output_dropout),
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
        share, values = self._shares[number], self._rows_of(number)
        stream = np.zeros(4, np.uint64) if share.masks is None else share.masks.stream()
        states = values("states")
        states[: share.n_tokens] = embedded
        states[share.n_tokens :] = 0
        values(0, "input").copy_(states)
        update = self._memory.tensor((_n_rows(share), states.shape[1]), self._dtype)
        kept = {}
        for i, weights in enumerate(self._weights):
            torch.mm(values(i, "input"), weights.qkv.t(), out=values(i, "qkv"))
            self._attend(number, i, stream, values)
            torch.mm(values(i, "mixed"), weights.mix.t(), out=update)
            self._add_and_norm(number, i, "attention", stream, values, update)
            torch.mm(values(i, "middle"), weights.up.t(), out=values(i, "up slope"))
            self._kernels.activate(
                KINDS[self._parts.activation],
                _array(values(i, "up slope")),
                weights.up_bias,
                _array(values(i, "after")),
            )
            torch.mm(values(i, "after"), weights.down.t(), out=update)
            self._add_and_norm(number, i, "output", stream, values, update)
            if i + 1 in wanted:
                is_last = i + 1 == len(self._weights)
                kept[i + 1] = states[: share.n_tokens] if is_last else states[: share.n_tokens].clone()
        if share.masks is not None:
            share.masks.continue_from(stream)
        return kept

    def _rows_of(self, number: int) -> Callable[..., Tensor]:
        """Return what gives a share's rows of the values by their key."""
        rows = self._ranges[number]

        def values(*key: Any) -> Tensor:
            return self._values[key if len(key) > 1 else key[0]][rows]

        return values

    def _attend(self, number: int, i: int, stream: np.ndarray, values: Callable[..., Tensor]) -> None:
        weights, share = self._weights[i], self._shares[number]
        mixed = _array(values(i, "mixed"))
        self._kernels.attend(
            _array(values(i, "qkv")),
            weights.qkv_bias,
            self._groups[number],
            self._parts.n_heads,
            weights.thresholds[0],
            stream,
            self._values[i, "weights", number].numpy(),
            mixed,
        )
        mixed[share.n_tokens :] = 0

    def _add_and_norm(
        self,
        number: int,
        i: int,
        name: str,
        stream: np.ndarray,
        values: Callable[..., Tensor],
        update: Tensor,
    ) -> None:
        weights = self._weights[i]
        is_output = name == "output"
        norm = weights.output_norm if is_output else weights.attention_norm
        self._kernels.add_and_norm(
            values("states").numpy(),
            _array(update),
            weights.down_bias if is_output else weights.mix_bias,
            weights.thresholds[2 if is_output else 1],
            stream,
            _vector(norm.weight),
            _vector(norm.bias),
            norm.eps,
            _array(values(i + 1, "input") if is_output else values(i, "middle")),
            values(i, f"{name} normed").numpy(),
            values(i, f"{name} inverse").numpy(),
            _array(values(i, "down slope" if is_output else "mix slope")),
        )
        if weights.thresholds[2 if is_output else 1] != NO_DROPOUT:
            n_tokens, n_rows = self._shares[number].n_tokens, len(update)
            rest = -(-n_tokens // ROUNDED_TO) * ROUNDED_TO - n_rows  # rows that autograd's layers would have
            self._kernels.skip(stream, rest * update.shape[1] // DRAWS_A_WORD)

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
        share, values = self._shares[number], self._rows_of(number)
        states = values("states")
        gradient = self._memory.tensor((_n_rows(share), states.shape[1]))
        gradient.zero_()
        product = self._memory.tensor(tuple(gradient.shape), self._dtype).zero_()
        inner = self._memory.tensor((_n_rows(share), len(self._weights[0].up)), self._dtype)
        for i in reversed(range(len(passed))):
            if i + 1 in gradients:
                gradient[: share.n_tokens] += gradients[i + 1]
            weights, vectors = self._weights[i], self._vector_gradients[number][i]
            self._norm_backward(number, i, "output", values, gradient, product)
            torch.mm(values(i, "down slope"), weights.down, out=inner)
            self._kernels.activate_backward(_array(values(i, "up slope")), _array(inner), vectors.up_bias)
            torch.mm(values(i, "up slope"), weights.up, out=product)
            self._norm_backward(number, i, "attention", values, gradient, product)
            torch.mm(values(i, "mix slope"), weights.mix, out=product)
            self._attend_backward(number, i, values, product)
            torch.mm(values(i, "qkv"), weights.qkv, out=product)
            passed[i].set()
        return gradient.add_(product)[: share.n_tokens]

    def _norm_backward(
        self, number: int, i: int, name: str, values: Callable[..., Tensor], gradient: Tensor, product: Tensor
    ) -> None:
        weights, vectors = self._weights[i], self._vector_gradients[number][i]
        is_output = name == "output"
        self._kernels.add_and_norm_backward(
            gradient.numpy(),
            _array(product),
            weights.thresholds[2 if is_output else 1],
            _vector((weights.output_norm if is_output else weights.attention_norm).weight),
            values(i, f"{name} normed").numpy(),
            values(i, f"{name} inverse").numpy(),
            _array(values(i, "down slope" if is_output else "mix slope")),
            vectors.down_bias if is_output else vectors.mix_bias,
            vectors.output_gain if is_output else vectors.attention_gain,
            vectors.output_shift if is_output else vectors.attention_shift,
        )

    def _attend_backward(self, number: int, i: int, values: Callable[..., Tensor], mixed: Tensor) -> None:
        weights = self._weights[i]
        qkv = _array(values(i, "qkv"))
        self._kernels.attend_backward(
            qkv,
            weights.qkv_bias,
            self._groups[number],
            self._parts.n_heads,
            weights.thresholds[0],
            self._values[i, "weights", number].numpy(),
            _array(mixed),
            self._vector_gradients[number][i].qkv_bias,
        )
        qkv[self._shares[number].n_tokens :] = 0

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
    def zeros(cls, weights: _Weights) -> "_Vectors":
        """Return zeros for a layer."""
        hidden = weights.mix.shape[0]
        widths = (len(weights.qkv), hidden, hidden, hidden, len(weights.up), hidden, hidden, hidden)
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


def _array(values: Tensor) -> np.ndarray:
    """Return values as the kernels take them; bfloat16 as int16 with its bits."""
    return (values.view(torch.int16) if values.dtype is torch.bfloat16 else values).numpy()


def _vector(parameter: Tensor) -> np.ndarray:
    return parameter.detach().numpy()


def _bias(linear: nn.Linear) -> np.ndarray:
    """Return the bias, zeros where there is none."""
    if linear.bias is None:
        return np.zeros(linear.out_features, np.float32)
    return _vector(linear.bias)
