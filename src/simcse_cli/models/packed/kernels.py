"""Compiled kernels for what stands between the matrix products of a transformer layer, forward and backward.

Each does in one pass over memory what PyTorch does in several: bias and activation; bias, dropout, residual and
norm; attention within sentences. Arrays are float32, or int16 that holds bfloat16 bits; arithmetic is float32.
Dropout masks come from an SFC64 stream (``models.packed.dropout``); what they keep stands until the backward pass
in the signs of weights, or where values of that pass will stand. All release Python's lock, use one thread and are
compiled once, on first use, for the processor at hand.

One file, because a compiled kernel is kept on disk for as long as its own file stays as it is.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from simcse_cli.models.packed.architectures import GELU, GELU_TANH
from simcse_cli.models.packed.dropout import DRAWS_A_WORD
from simcse_cli.models.packed.tokens import LANES

Function = TypeVar("Function", bound=Callable[..., Any])


# Sums may be reordered and NaN is not looked for; infinities stay what they are.
_FAST = {"nnan", "nsz", "arcp", "contract", "reassoc"}
_TILE_ROWS = 4
_F = np.float32
_LOWEST = _F(-1e30)


def _compiled(function: Function) -> Function:
    return cast(Function, numba.njit(nogil=True, cache=True, fastmath=_FAST, error_model="numpy")(function))


def _inlined(function: Function) -> Function:
    return cast(Function, numba.njit(inline="always", fastmath=_FAST, error_model="numpy")(function))


def compiled_before(name: str = "attend") -> bool:
    """Tell whether a kernel of this file was compiled before, by this process or another, and kept on disk."""
    folder = Path(cast(Any, skip).stats.cache_path)
    return any(folder.glob(f"{Path(__file__).stem}.{name}-*.nbi"))


# Values: float32, or bfloat16 in the upper half of its bits.


def _store(load: Any, pack: Any, from_16_bits: Any, to_16_bits: Any) -> None:
    """Let compiled code take float32 as it is, and 16 bits by two functions, for ``load`` and ``pack``."""

    def same(value: Any) -> Any:
        return value

    def same_for(value: Any, row: Any) -> Any:
        return value

    @overload(load, inline="always")
    def load_of_type(value: Any) -> Any:
        return same if value == types.float32 else from_16_bits

    @overload(pack, inline="always")
    def pack_for_type(value: Any, row: Any) -> Any:
        return same_for if row.dtype == types.float32 else to_16_bits


def _load(value: Any) -> Any:
    """Return a value as float32; compiled code takes the overload for its type."""


def _pack(value: Any, row: Any) -> Any:
    """Return a float32 as what the array holds, bfloat16 rounded to nearest even; compiled code takes the overload."""


def _from_bfloat16(value: Any) -> Any:
    return np.int32(np.int32(value) << np.int32(16)).view(np.float32)


def _to_bfloat16(value: Any, row: Any) -> Any:
    bits = np.float32(value).view(np.uint32)
    bits = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return np.int16(bits >> np.uint32(16))


_store(_load, _pack, _from_bfloat16, _to_bfloat16)


# Slopes of activations, all between -0.13 and 1.13: float32, or 16 bits that count steps of 2^-14, which is closer
# than bfloat16 where it matters.
_STEPS = _F(2**14)


def _load_slope(value: Any) -> Any:
    """Return a slope as float32; compiled code takes the overload for its type."""


def _pack_slope(value: Any, row: Any) -> Any:
    """Return a slope as what the array holds; compiled code takes the overload."""


def _from_steps(value: Any) -> Any:
    return _F(value) * (_F(1) / _STEPS)


def _to_steps(value: Any, row: Any) -> Any:
    return np.int16(np.int32(np.rint(value * _STEPS)))


_store(_load_slope, _pack_slope, _from_steps, _to_steps)


# The stream of draws.


@_compiled
def _draw(stream: np.ndarray, words: np.ndarray, start: int, end: int) -> None:
    """Fill ``words[start:end]`` with the next words of SFC64, whose four numbers ``stream`` holds."""
    a, b, c, count = stream[0], stream[1], stream[2], stream[3]
    for i in range(start, end):
        word = a + b + count
        count += np.uint64(1)
        a = b ^ (b >> np.uint64(11))
        b = c + (c << np.uint64(3))
        c = ((c << np.uint64(24)) | (c >> np.uint64(40))) + word
        words[i] = word
    stream[0], stream[1], stream[2], stream[3] = a, b, c, count


@_compiled
def skip(stream: np.ndarray, n_words: int) -> None:
    """Advance SFC64 by a number of words."""
    _draw(stream, np.empty(n_words, np.uint64), 0, n_words)


@_inlined
def _keep_from(threshold: Any) -> Any:
    """Return the lowest draw, as int16, that keeps an element, and the scale of what is kept."""
    if threshold < 0:
        return np.int16(-32768), _F(1)
    return np.int16(threshold - 32768), _F(65536 / (65536 - threshold))


# Functions of one value.


@_inlined
def _exp(x: Any) -> Any:
    """Return e^x by a polynomial on [-ln 2 / 2, ln 2 / 2] and a power of two; relative error 2e-7."""
    x = max(min(x, _F(88.0)), _F(-87.0))
    power = np.floor(x * _F(1.44269504) + _F(0.5))
    rest = x - power * _F(0.693359375) - power * _F(-2.12194440e-4)
    p = _F(1.9875691500e-4)
    p = p * rest + _F(1.3981999507e-3)
    p = p * rest + _F(8.3334519073e-3)
    p = p * rest + _F(4.1665795894e-2)
    p = p * rest + _F(1.6666665459e-1)
    p = p * rest + _F(5.0000001201e-1)
    scale = np.int32((np.int32(power) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (p * rest * rest + rest + _F(1)) * scale


@_inlined
def _normal(x: Any) -> Any:
    """Return the standard normal distribution function and density at x, to 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
    z = abs(x) * _F(0.70710678)
    bell = _exp(-z * z)
    t = _F(1) / (_F(1) + _F(0.3275911) * z)
    p = _F(1.061405429) * t - _F(1.453152027)
    p = p * t + _F(1.421413741)
    p = p * t - _F(0.284496736)
    tail = _F(0.5) * (p * t + _F(0.254829592)) * t * bell
    return (_F(1) - tail if x >= 0 else tail), bell * _F(0.3989422804)


@_inlined
def _logistic_of_tanh(x: Any) -> Any:
    """Return (1 + tanh u) / 2 for u = sqrt(2 / pi) (x + 0.044715 x^3), and its derivative by x."""
    twice = _F(1.5957691216) * (x + _F(0.044715) * x * x * x)
    share = _F(1) / (_F(1) + _exp(-twice))
    return share, share * (_F(1) - share) * _F(1.5957691216) * (_F(1) + _F(0.134145) * x * x)


# Bias and activation.


@_compiled
def activate(kind: int, before: np.ndarray, bias: np.ndarray, after: np.ndarray) -> None:
    """Write ``f(before + bias)``, and replace ``before`` by the slope ``f'(before + bias)``.

    Args:
        kind: ``GELU``, ``GELU_TANH`` or ``RELU`` of ``architectures``.
        before: ``(T, F)``; input: the product without its bias; output: the slope, in 16 bits in steps of 2^-14.
        bias: ``(F,)``, float32.
        after: ``(T, F)``, of the type of ``before``.
    """
    n_rows, width = before.shape
    if kind == GELU:
        for i in range(n_rows):
            row, result = before[i], after[i]
            for j in range(width):
                x = _load(row[j]) + bias[j]
                share, density = _normal(x)
                result[j] = _pack(x * share, result)
                row[j] = _pack_slope(share + x * density, row)
    elif kind == GELU_TANH:
        for i in range(n_rows):
            row, result = before[i], after[i]
            for j in range(width):
                x = _load(row[j]) + bias[j]
                share, density = _logistic_of_tanh(x)
                result[j] = _pack(x * share, result)
                row[j] = _pack_slope(share + x * density, row)
    else:
        for i in range(n_rows):
            row, result = before[i], after[i]
            for j in range(width):
                x = _load(row[j]) + bias[j]
                result[j] = _pack(max(x, _F(0)), result)
                row[j] = _pack_slope(_F(1) if x > 0 else _F(0), row)


@_compiled
def activate_backward(slopes: np.ndarray, gradient: np.ndarray, bias_gradient: np.ndarray) -> None:
    """Replace ``slopes`` by the gradient with respect to ``before``, given that of the activations.

    Args:
        slopes: ``(T, F)``, from ``activate``; input, then output.
        gradient: ``(T, F)``, with respect to ``f(before + bias)``.
        bias_gradient: ``(F,)``; the gradient with respect to the bias is added here.
    """
    n_rows, width = slopes.shape
    for i in range(n_rows):
        row, outer = slopes[i], gradient[i]
        for j in range(width):
            slope = _load(outer[j]) * _load_slope(row[j])
            bias_gradient[j] += slope
            row[j] = _pack(slope, row)


# Bias, dropout, residual and norm.


@_compiled
def add_and_norm(
    states: np.ndarray,
    update: np.ndarray,
    bias: np.ndarray,
    threshold: int,
    stream: np.ndarray,
    gain: np.ndarray,
    shift: np.ndarray,
    epsilon: float,
    operand: np.ndarray,
    normed: np.ndarray,
    inverse: np.ndarray,
    kept: np.ndarray,
) -> None:
    """Replace ``states`` by ``gain * normed + shift``, normed the layer norm of states + dropout(update + bias).

    Args:
        states: ``(T, H)``, float32; input, then output.
        update: ``(T, H)``, the product without its bias.
        bias: ``(H,)``, float32, of the update.
        gain: ``(H,)``, float32.
        shift: ``(H,)``, float32.
        threshold: of the probability to drop, in 2^-16; negative for no dropout and no draw.
        stream: four numbers of SFC64; advanced.
        epsilon: added to the variance.
        operand: ``(T, H)``, the result once more in the type of the products.
        normed: ``(T, H)``, float32, kept for the backward pass.
        inverse: ``(T,)``, float32, one by the standard deviation.
        kept: ``(T, H)``, of the type of ``update``, output: 1 where dropout kept the update, else 0.
    """
    n_rows, width = states.shape
    words = np.zeros(width // DRAWS_A_WORD, np.uint64)
    draws = words.view(np.int16)
    lowest, scale = _keep_from(threshold)
    row = np.empty(width, np.float32)
    for i in range(n_rows):
        if threshold >= 0:
            _draw(stream, words, 0, len(words))
        state, change, copy, unscaled, keep = states[i], update[i], operand[i], normed[i], kept[i]
        total = _F(0)
        for j in range(width):
            is_kept = draws[j] >= lowest
            keep[j] = 1 if is_kept else 0
            x = state[j]
            x += scale * (_load(change[j]) + bias[j]) if is_kept else _F(0)
            row[j] = x
            total += x
        mean = total / _F(width)
        squares = _F(0)
        for j in range(width):
            squares += (row[j] - mean) * (row[j] - mean)
        deviation = _F(1) / np.sqrt(squares / _F(width) + _F(epsilon))
        inverse[i] = deviation
        for j in range(width):
            x = (row[j] - mean) * deviation
            unscaled[j] = x
            x = x * gain[j] + shift[j]
            state[j] = x
            copy[j] = _pack(x, copy)


@_compiled
def add_and_norm_backward(
    gradient: np.ndarray,
    operand_gradient: np.ndarray,
    threshold: int,
    gain: np.ndarray,
    normed: np.ndarray,
    inverse: np.ndarray,
    update_gradient: np.ndarray,
    bias_gradient: np.ndarray,
    gain_gradient: np.ndarray,
    shift_gradient: np.ndarray,
) -> None:
    """Replace the gradient of the result by that of the residual states, and write that of the update.

    Args:
        gradient: ``(T, H)``, float32; input, then output.
        operand_gradient: ``(T, H)``, what comes from products of the result; added to ``gradient`` first.
        threshold: as in ``add_and_norm``.
        gain: as in ``add_and_norm``.
        normed: from ``add_and_norm``.
        inverse: from ``add_and_norm``.
        update_gradient: ``(T, H)``; input: ``kept`` of ``add_and_norm``, then output.
        bias_gradient: ``(H,)``, float32; added to.
        gain_gradient: ``(H,)``, float32; added to.
        shift_gradient: ``(H,)``, float32; added to.
    """
    n_rows, width = gradient.shape
    _, scale = _keep_from(threshold)
    row = np.empty(width, np.float32)
    for i in range(n_rows):
        outer, product, change, unscaled = gradient[i], operand_gradient[i], update_gradient[i], normed[i]
        total, along = _F(0), _F(0)
        for j in range(width):
            slope = outer[j] + _load(product[j])
            x = unscaled[j]
            shift_gradient[j] += slope
            gain_gradient[j] += slope * x
            slope *= gain[j]
            row[j] = slope
            total += slope
            along += slope * x
        total /= _F(width)
        along /= _F(width)
        deviation = inverse[i]
        for j in range(width):
            slope = deviation * (row[j] - total - unscaled[j] * along)
            outer[j] = slope
            slope = scale * slope if change[j] != 0 else _F(0)
            bias_gradient[j] += slope
            change[j] = _pack(slope, change)


# Small products inside attention.


def _tile_product(n_vectors: int) -> Any:
    """Return an intrinsic: a tile of ``_TILE_ROWS`` rows and ``n_vectors`` vectors of C = A B, sums in registers.

    Arguments are addresses and strides in floats: a, a_row, a_column, b, b_row, c, c_row, depth; depth >= 1.
    """
    lane_type = ir.FloatType()
    vector = ir.VectorType(lane_type, LANES)
    word = ir.IntType(64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, a_row, a_column, b, b_row, c, c_row, depth = arguments
        fma_type = ir.FunctionType(vector, [vector] * 3)
        declare: Any = cgutils.get_or_insert_function
        fma = declare(builder.module, fma_type, f"llvm.fma.v{LANES}f32")

        def number(value: int) -> Any:
            return ir.Constant(word, value)

        def address(base: Any, offset: Any, kind: Any) -> Any:
            return builder.inttoptr(builder.add(base, offset), kind.as_pointer())

        def spread(value: Any) -> Any:
            undefined = ir.Constant(vector, ir.Undefined)
            first = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
            zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            return builder.shuffle_vector(first, undefined, zeros)

        rows = [builder.add(a, builder.mul(a_row, number(4 * i))) for i in range(_TILE_ROWS)]
        a_step, b_step = builder.mul(a_column, number(4)), builder.mul(b_row, number(4))
        before = builder.block
        body, after = builder.append_basic_block("tile.body"), builder.append_basic_block("tile.after")
        builder.branch(body)

        builder.position_at_end(body)
        k, a_offset, b_offset = builder.phi(word), builder.phi(word), builder.phi(word)
        sums = [[builder.phi(vector) for _ in range(n_vectors)] for _ in range(_TILE_ROWS)]
        loaded = []
        for v in range(n_vectors):
            load = builder.load(address(b, builder.add(b_offset, number(4 * LANES * v)), vector))
            load.align = 4
            loaded.append(load)
        added = []
        for row, row_sums in zip(rows, sums, strict=True):
            value = spread(builder.load(address(row, a_offset, lane_type)))
            pairs = zip(loaded, row_sums, strict=True)
            added.append([builder.call(fma, [value, load, total]) for load, total in pairs])
        steps = ((k, number(1)), (a_offset, a_step), (b_offset, b_step))
        for phi, step in steps:
            phi.add_incoming(number(0), before)
            phi.add_incoming(builder.add(phi, step), body)
        for row_sums, row_added in zip(sums, added, strict=True):
            for phi, value in zip(row_sums, row_added, strict=True):
                phi.add_incoming(ir.Constant(vector, [0.0] * LANES), before)
                phi.add_incoming(value, body)
        is_more = builder.icmp_signed("<", builder.add(k, number(1)), depth)
        builder.cbranch(is_more, body, after)

        builder.position_at_end(after)
        for i, row_added in enumerate(added):
            start = builder.mul(c_row, number(4 * i))
            for v, value in enumerate(row_added):
                place = address(c, builder.add(start, number(4 * LANES * v)), vector)
                builder.store(value, place).align = 4
        return context.get_dummy_value()

    @intrinsic
    def tile(
        context: Any,
        a: Any,
        a_row: Any,
        a_column: Any,
        b: Any,
        b_row: Any,
        c: Any,
        c_row: Any,
        depth: Any,
    ) -> Any:
        return types.void(*[types.int64] * 8), generate

    return tile


_wide_tile, _narrow_tile = _tile_product(2), _tile_product(1)


@_compiled
def _product(
    a: int,
    a_row: int,
    a_column: int,
    b: int,
    b_row: int,
    c: int,
    c_row: int,
    n_rows: int,
    width: int,
    depth: int,
) -> None:
    """Write C = A B for float32 matrices at addresses; rows rounded up to a tile, columns to a vector.

    The callers' arrays have the room that the rounding needs, and finite values there.
    """
    for i in range(0, n_rows, _TILE_ROWS):
        a_start, c_start = a + 4 * i * a_row, c + 4 * i * c_row
        j = 0
        while j + LANES < width:
            _wide_tile(a_start, a_row, a_column, b + 4 * j, b_row, c_start + 4 * j, c_row, depth)
            j += 2 * LANES
        if j < width:
            _narrow_tile(a_start, a_row, a_column, b + 4 * j, b_row, c_start + 4 * j, c_row, depth)


def _transposition() -> Any:
    """Return an intrinsic: the transpose of a square of ``LANES`` rows at an address, written to another.

    Arguments are a, a_row, b, b_row; rows are so many floats apart. Interleaving the rows of both halves moves the
    highest bit of the row number into the column number and the other way round; after log2(LANES) times, all bits
    have moved.
    """
    vector, word = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)
    places = [[half + i // 2 + LANES * (i % 2) for i in range(LANES)] for half in (0, LANES // 2)]
    masks = [ir.Constant(ir.VectorType(ir.IntType(32), LANES), place) for place in places]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def rows_at(start: Any, row: Any) -> list[Any]:
            offsets = [builder.mul(row, ir.Constant(word, 4 * i)) for i in range(LANES)]
            return [builder.inttoptr(builder.add(start, offset), vector.as_pointer()) for offset in offsets]

        source, source_row, target, target_row = arguments
        rows = [builder.load(place, align=4) for place in rows_at(source, source_row)]
        for _ in range(LANES.bit_length() - 1):
            pairs = zip(rows[: LANES // 2], rows[LANES // 2 :], strict=True)
            rows = [builder.shuffle_vector(*pair, mask) for pair in pairs for mask in masks]
        for row, place in zip(rows, rows_at(target, target_row), strict=True):
            builder.store(row, place, align=4)
        return context.get_dummy_value()

    @intrinsic
    def square(context: Any, a: Any, a_row: Any, b: Any, b_row: Any) -> Any:
        return types.void(*[types.int64] * 4), generate

    return square


_transpose_square = _transposition()


@_compiled
def _transpose(a: int, a_row: int, b: int, b_row: int, n_rows: int, width: int) -> None:
    """Write B = A^T for float32 matrices at addresses; rows and columns rounded up to a vector.

    The callers' arrays have the room that the rounding needs.
    """
    for i in range(0, n_rows, LANES):
        for j in range(0, width, LANES):
            _transpose_square(a + 4 * (i * a_row + j), a_row, b + 4 * (j * b_row + i), b_row)


@_inlined
def _address(array: Any) -> Any:
    return np.int64(array.ctypes.data)


@_inlined
def _rounded_up(number: Any, multiple: Any) -> Any:
    return (number + multiple - 1) // multiple * multiple


@_compiled
def _draw_head(
    stream: np.ndarray, words: np.ndarray, n_before: int, n_draws: int, last: int
) -> tuple[int, int]:
    """Draw for one head; return where in ``words`` its draws start, and the word that holds its last one.

    Heads share words where their number of draws is no multiple of ``DRAWS_A_WORD``.

    Args:
        stream: see ``_draw``.
        words: output.
        n_before: heads before this one.
        n_draws: of a head.
        last: what was returned for the head before.
    """
    first = n_before * n_draws
    start, end = first % DRAWS_A_WORD, first % DRAWS_A_WORD + n_draws
    n_words = (end + DRAWS_A_WORD - 1) // DRAWS_A_WORD
    if start:
        words[0] = words[last]
        _draw(stream, words, 1, n_words)
    else:
        _draw(stream, words, 0, n_words)
    return start, n_words - 1


@_inlined
def _weights_from(start: Any, weights: Any, n_rows: Any, length: Any) -> Any:
    """Return the attention weights that begin at a place, as rows that are padded for vectors."""
    padded = _rounded_up(length, LANES)
    return weights[start : start + n_rows * padded].reshape((n_rows, padded))


# Attention.


@_compiled
def attend(
    qkv: np.ndarray,
    bias: np.ndarray,
    groups: np.ndarray,
    n_heads: int,
    threshold: int,
    stream: np.ndarray,
    weights: np.ndarray,
    mixed: np.ndarray,
) -> None:
    """Write the heads' mixed values.

    Args:
        qkv: ``(T, 3D)``, the products without their biases.
        bias: ``(3D,)``, float32.
        groups: ``(n, 3)``: first token, number of sentences R and their length L, for sentences of one length.
        n_heads: divides D into heads of a multiple of ``LANES``.
        threshold: as in ``add_and_norm``; draws are in the order of ``(R, n_heads, L, L)``, group by group.
        stream: as in ``add_and_norm``.
        weights: float32, output: softmax before dropout, with a minus where dropout takes a weight, ``(R * n_heads
            * L, L rounded up to LANES)`` of each group, one after the other.
        mixed: ``(T, D)``, of the type of ``qkv``; output, left as it is for tokens of no sentence.
    """
    done = 0
    for g in range(len(groups)):
        start, n_rows, length = groups[g]
        end = start + n_rows * length
        kept = _weights_from(done, weights, n_rows * n_heads * length, length)
        _attend_group(qkv[start:end], bias, length, n_heads, threshold, stream, kept, mixed[start:end])
        done += kept.size


@_compiled
def _attend_group(
    qkv: np.ndarray,
    bias: np.ndarray,
    length: int,
    n_heads: int,
    threshold: int,
    stream: np.ndarray,
    weights: np.ndarray,
    mixed: np.ndarray,
) -> None:
    """Do what ``attend`` does for sentences of one length, with ``weights`` in two dimensions."""
    n_sentences, width = qkv.shape[0] // length, qkv.shape[1] // 3
    head = width // n_heads
    factor = _F(1 / np.sqrt(head))
    padded, rows = _rounded_up(length, LANES), _rounded_up(length, _TILE_ROWS)
    lowest, scale = _keep_from(threshold)
    words = np.zeros(length * length // DRAWS_A_WORD + LANES, np.uint64)
    draws = words.view(np.int16)
    start, last = 0, 0
    states = np.zeros((padded, 3 * width), np.float32)
    keys = np.zeros((head, padded), np.float32)
    scores = np.zeros((rows, padded), np.float32)
    flat = scores.reshape(-1)
    values = np.zeros((rows, width), np.float32)
    for s in range(n_sentences):
        for i in range(length):
            state, token = states[i], qkv[s * length + i]
            for j in range(3 * width):
                state[j] = _load(token[j]) + bias[j]
        for h in range(n_heads):
            column = h * head
            if threshold >= 0:
                start, last = _draw_head(stream, words, s * n_heads + h, length * length, last)
            of_states, of_scores = _address(states) + 4 * column, _address(scores)
            _transpose(of_states + 4 * width, 3 * width, _address(keys), padded, length, head)
            _product(of_states, 3 * width, 1, _address(keys), padded, of_scores, padded, length, padded, head)
            for i in range(length):
                score = scores[i]
                for j in range(length, padded):
                    score[j] = _LOWEST
                highest = _LOWEST
                for j in range(padded):
                    highest = max(highest, score[j])
                for j in range(padded):
                    score[j] = (score[j] - highest) * factor
            for j in range(length * padded):
                flat[j] = _exp(flat[j])
            for i in range(length):
                total = _F(0)
                score, kept = scores[i], weights[(s * n_heads + h) * length + i]
                draw = draws[start + i * length :]
                for j in range(length, padded):
                    score[j] = _F(0)
                for j in range(padded):
                    total += score[j]
                total = _F(1) / total
                for j in range(padded):
                    weight = score[j] * total
                    is_kept = draw[j] >= lowest
                    kept[j] = weight if is_kept else -weight
                    score[j] = scale * weight if is_kept else _F(0)
            of_values, of_mixed = of_states + 8 * width, _address(values) + 4 * column
            _product(of_scores, padded, 1, of_values, 3 * width, of_mixed, width, length, head, length)
        for i in range(length):
            value, result = values[i], mixed[s * length + i]
            for j in range(width):
                result[j] = _pack(value[j], result)


@_compiled
def attend_backward(
    qkv: np.ndarray,
    bias: np.ndarray,
    groups: np.ndarray,
    n_heads: int,
    threshold: int,
    weights: np.ndarray,
    gradient: np.ndarray,
    bias_gradient: np.ndarray,
) -> None:
    """Replace ``qkv`` by the gradient with respect to it, given that of the mixed values.

    Args:
        qkv: ``(T, 3D)``; input, then output, left as it is for tokens of no sentence.
        bias: as in ``attend``.
        groups: as in ``attend``.
        n_heads: as in ``attend``.
        threshold: as in ``attend``.
        weights: from ``attend``.
        gradient: ``(T, D)``, with respect to the mixed values.
        bias_gradient: ``(3D,)``, float32; added to.
    """
    done = 0
    for g in range(len(groups)):
        start, n_rows, length = groups[g]
        end = start + n_rows * length
        kept = _weights_from(done, weights, n_rows * n_heads * length, length)
        _attend_group_backward(
            qkv[start:end], bias, length, n_heads, threshold, kept, gradient[start:end], bias_gradient
        )
        done += kept.size


@_compiled
def _attend_group_backward(
    qkv: np.ndarray,
    bias: np.ndarray,
    length: int,
    n_heads: int,
    threshold: int,
    weights: np.ndarray,
    gradient: np.ndarray,
    bias_gradient: np.ndarray,
) -> None:
    """Do what ``attend_backward`` does for sentences of one length."""
    n_sentences, width = qkv.shape[0] // length, qkv.shape[1] // 3
    head = width // n_heads
    factor = _F(1 / np.sqrt(head))
    padded, rows = _rounded_up(length, LANES), _rounded_up(length, _TILE_ROWS)
    _, scale = _keep_from(threshold)
    states = np.zeros((padded, 3 * width), np.float32)
    slopes = np.zeros((rows, 3 * width), np.float32)
    outer = np.zeros((rows, width), np.float32)
    values = np.zeros((head, padded), np.float32)
    scores = np.zeros((rows, padded), np.float32)
    dropped = np.zeros((rows, padded), np.float32)
    for s in range(n_sentences):
        for i in range(length):
            state, token = states[i], qkv[s * length + i]
            for j in range(3 * width):
                state[j] = _load(token[j]) + bias[j]
            slope_of, token = outer[i], gradient[s * length + i]
            for j in range(width):
                slope_of[j] = _load(token[j])
        for h in range(n_heads):
            column = h * head
            of_outer = _address(outer) + 4 * column
            of_states, of_slopes = _address(states) + 4 * column, _address(slopes) + 4 * column
            _transpose(of_states + 8 * width, 3 * width, _address(values), padded, length, head)
            of_scores, of_dropped = _address(scores), _address(dropped)
            _product(of_outer, width, 1, _address(values), padded, of_scores, padded, length, padded, head)
            for i in range(length):
                kept, score, drop = weights[(s * n_heads + h) * length + i], scores[i], dropped[i]
                along = _F(0)
                for j in range(padded):
                    weight = max(kept[j], _F(0)) * scale
                    drop[j] = weight
                    along += score[j] * weight
                for j in range(padded):
                    slope = scale * score[j] if kept[j] > 0 else _F(0)
                    score[j] = factor * abs(kept[j]) * (slope - along)
            of_keys, of_value_slopes = of_states + 4 * width, of_slopes + 8 * width
            _product(of_scores, padded, 1, of_keys, 3 * width, of_slopes, 3 * width, length, head, length)
            _product(
                of_scores,
                1,
                padded,
                of_states,
                3 * width,
                of_slopes + 4 * width,
                3 * width,
                length,
                head,
                length,
            )
            _product(of_dropped, 1, padded, of_outer, width, of_value_slopes, 3 * width, length, head, length)
        for i in range(length):
            row, token = slopes[i], qkv[s * length + i]
            for j in range(3 * width):
                slope = row[j]
                bias_gradient[j] += slope
                token[j] = _pack(slope, token)


# Embeddings.


@_compiled
def embed(
    ids: np.ndarray,
    positions: np.ndarray,
    words: np.ndarray,
    position_table: np.ndarray,
    segment: np.ndarray,
    gain: np.ndarray,
    shift: np.ndarray,
    epsilon: float,
    threshold: int,
    stream: np.ndarray,
    states: np.ndarray,
    normed: np.ndarray,
    inverse: np.ndarray,
) -> None:
    """Write dropout(norm(word + position + segment)).

    Args:
        ids: ``(T,)``, rows of ``words``.
        positions: ``(T,)``, rows of ``position_table``.
        words: ``(V, H)``, float32.
        position_table: ``(P, H)``, float32.
        segment: ``(H,)``, added to every token.
        gain: ``(H,)``, of the norm.
        shift: ``(H,)``, of the norm.
        epsilon: of the norm.
        threshold: as in ``add_and_norm``.
        stream: as in ``add_and_norm``.
        states: ``(T, H)``, output.
        normed: ``(T, H)``, output: before gain and shift.
        inverse: ``(T,)``, output: one by the standard deviation.
    """
    width = words.shape[1]
    drawn = np.zeros(width // DRAWS_A_WORD, np.uint64)
    draws = drawn.view(np.int16)
    lowest, scale = _keep_from(threshold)
    row = np.empty(width, np.float32)
    for i in range(len(ids)):
        if threshold >= 0:
            _draw(stream, drawn, 0, len(drawn))
        word, position, state, unscaled = words[ids[i]], position_table[positions[i]], states[i], normed[i]
        total = _F(0)
        for j in range(width):
            x = word[j] + position[j] + segment[j]
            row[j] = x
            total += x
        mean = total / _F(width)
        squares = _F(0)
        for j in range(width):
            squares += (row[j] - mean) * (row[j] - mean)
        deviation = _F(1) / np.sqrt(squares / _F(width) + _F(epsilon))
        inverse[i] = deviation
        for j in range(width):
            x = (row[j] - mean) * deviation
            unscaled[j] = x
            state[j] = scale * (x * gain[j] + shift[j]) if draws[j] >= lowest else _F(0)


@_compiled
def embed_backward(
    ids: np.ndarray,
    positions: np.ndarray,
    padding_id: int,
    padding_position: int,
    gain: np.ndarray,
    threshold: int,
    stream: np.ndarray,
    normed: np.ndarray,
    inverse: np.ndarray,
    gradient: np.ndarray,
    words_gradient: np.ndarray,
    positions_gradient: np.ndarray,
    segment_gradient: np.ndarray,
    gain_gradient: np.ndarray,
    shift_gradient: np.ndarray,
) -> None:
    """Add the gradients of the tables and of the norm, given that of the states.

    Args:
        ids: as in ``embed``.
        positions: as in ``embed``.
        padding_id: row of the word table without gradient; negative for none.
        padding_position: row of the position table without gradient; negative for none.
        gain: as in ``embed``.
        threshold: as in ``embed``.
        stream: as it was before the forward pass; advanced.
        normed: from ``embed``.
        inverse: from ``embed``.
        gradient: ``(T, H)``, float32, with respect to the states.
        words_gradient: ``(V, H)``, float32; added to.
        positions_gradient: ``(P, H)``; added to.
        segment_gradient: ``(H,)``; added to.
        gain_gradient: ``(H,)``; added to.
        shift_gradient: ``(H,)``; added to.
    """
    width = gradient.shape[1]
    drawn = np.zeros(width // DRAWS_A_WORD, np.uint64)
    draws = drawn.view(np.int16)
    lowest, scale = _keep_from(threshold)
    row = np.empty(width, np.float32)
    for i in range(len(ids)):
        if threshold >= 0:
            _draw(stream, drawn, 0, len(drawn))
        outer, unscaled = gradient[i], normed[i]
        total, along = _F(0), _F(0)
        for j in range(width):
            slope = scale * outer[j] if draws[j] >= lowest else _F(0)
            x = unscaled[j]
            shift_gradient[j] += slope
            gain_gradient[j] += slope * x
            slope *= gain[j]
            row[j] = slope
            total += slope
            along += slope * x
        total /= _F(width)
        along /= _F(width)
        for j in range(width):
            slope = inverse[i] * (row[j] - total - unscaled[j] * along)
            row[j] = slope
            segment_gradient[j] += slope
        if ids[i] != padding_id:
            word = words_gradient[ids[i]]
            for j in range(width):
                word[j] += row[j]
        if positions[i] != padding_position:
            position = positions_gradient[positions[i]]
            for j in range(width):
                position[j] += row[j]


# Attention of first tokens.


@_compiled
def attend_from_first(
    states: np.ndarray,
    queries: np.ndarray,
    offsets: np.ndarray,
    length: int,
    threshold: int,
    stream: np.ndarray,
    weights: np.ndarray,
    mixed: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Write the states of sentences of one length, mixed for their first tokens.

    With query q and offset o of a head, weights are softmax(q . x_j + o) over the states x_j of the sentence.

    Args:
        states: ``(R * L, H)``, float32.
        queries: ``(R, n_heads, H)``, of first tokens, scaled.
        offsets: ``(R, n_heads)``.
        length: L.
        threshold: as in ``add_and_norm``; draws are in the order of ``(R, n_heads, L)``.
        stream: as in ``add_and_norm``.
        weights: ``(R, L, n_heads rounded up to LANES)``, output: before dropout, with a minus where it takes one.
        mixed: ``(R, n_heads, H)``, output: sum of states by weights after dropout.
        sums: ``(R, n_heads)``, output: of the weights after dropout.
    """
    n_sentences, n_heads, width = queries.shape
    padded, rows = weights.shape[2], _rounded_up(length, _TILE_ROWS)
    lowest, scale = _keep_from(threshold)
    drawn = np.zeros((n_sentences * n_heads * length + DRAWS_A_WORD - 1) // DRAWS_A_WORD, np.uint64)
    draws = drawn.view(np.int16)
    if threshold >= 0:
        _draw(stream, drawn, 0, len(drawn))
    own = np.zeros((rows, width), np.float32)
    query = np.zeros((padded, width), np.float32)
    turned = np.zeros((width, padded), np.float32)
    scores = np.zeros((rows, padded), np.float32)
    mix = np.zeros((_rounded_up(n_heads, _TILE_ROWS), width), np.float32)
    for s in range(n_sentences):
        own[:length] = states[s * length : (s + 1) * length]
        query[:n_heads] = queries[s]
        _transpose(_address(query), width, _address(turned), padded, n_heads, width)
        _product(
            _address(own), width, 1, _address(turned), padded, _address(scores), padded, length, padded, width
        )
        for h in range(n_heads):
            highest = _LOWEST
            for j in range(length):
                scores[j, h] += offsets[s, h]
                highest = max(highest, scores[j, h])
            total = _F(0)
            for j in range(length):
                weight = _exp(scores[j, h] - highest)
                scores[j, h] = weight
                total += weight
            kept = _F(0)
            for j in range(length):
                weight = scores[j, h] / total
                is_kept = draws[(s * n_heads + h) * length + j] >= lowest
                weights[s, j, h] = weight if is_kept else -weight
                weight = scale * weight if is_kept else _F(0)
                scores[j, h] = weight
                kept += weight
            sums[s, h] = kept
        _product(
            _address(scores), 1, padded, _address(own), width, _address(mix), width, n_heads, width, length
        )
        mixed[s] = mix[:n_heads]


@_compiled
def attend_from_first_backward(
    states: np.ndarray,
    queries: np.ndarray,
    length: int,
    threshold: int,
    weights: np.ndarray,
    mixed_gradient: np.ndarray,
    sums_gradient: np.ndarray,
    states_gradient: np.ndarray,
    queries_gradient: np.ndarray,
    offsets_gradient: np.ndarray,
) -> None:
    """Write the gradients of states, queries and offsets.

    Args:
        states: as in ``attend_from_first``.
        queries: as in ``attend_from_first``.
        length: as in ``attend_from_first``.
        threshold: as in ``attend_from_first``.
        weights: from ``attend_from_first``.
        mixed_gradient: ``(R, n_heads, H)``.
        sums_gradient: ``(R, n_heads)``.
        states_gradient: ``(R * L, H)``, output.
        queries_gradient: ``(R, n_heads, H)``, output.
        offsets_gradient: ``(R, n_heads)``, output.
    """
    n_sentences, n_heads, width = queries.shape
    _, scale = _keep_from(threshold)
    padded, rows = weights.shape[2], _rounded_up(length, _TILE_ROWS)
    own = np.zeros((rows, width), np.float32)
    own_slopes = np.zeros((rows, width), np.float32)
    of_mixed = np.zeros((padded, width), np.float32)
    turned = np.zeros((width, padded), np.float32)
    outer = np.zeros((rows, padded), np.float32)
    # Side by side: slopes of scores, weights after dropout; under each other: queries, slopes of mixed states.
    factors = np.zeros((rows, 2 * padded), np.float32)
    stacked = np.zeros((2 * n_heads, width), np.float32)
    of_queries = np.zeros((_rounded_up(n_heads, _TILE_ROWS), width), np.float32)
    for s in range(n_sentences):
        own[:length] = states[s * length : (s + 1) * length]
        of_mixed[:n_heads] = mixed_gradient[s]
        _transpose(_address(of_mixed), width, _address(turned), padded, n_heads, width)
        _product(
            _address(own), width, 1, _address(turned), padded, _address(outer), padded, length, padded, width
        )
        for h in range(n_heads):
            along = _F(0)
            for j in range(length):
                weight = scale * max(weights[s, j, h], _F(0))
                slope = outer[j, h] + sums_gradient[s, h]
                outer[j, h] = scale * slope if weight > 0 else _F(0)
                along += slope * weight
                factors[j, n_heads + h] = weight
            total = _F(0)
            for j in range(length):
                slope = abs(weights[s, j, h]) * (outer[j, h] - along)
                factors[j, h] = slope
                total += slope
            offsets_gradient[s, h] = total
        stacked[:n_heads] = queries[s]
        stacked[n_heads:] = mixed_gradient[s]
        of_factors, stride = _address(factors), 2 * padded
        _product(
            of_factors, 1, stride, _address(own), width, _address(of_queries), width, n_heads, width, length
        )
        queries_gradient[s] = of_queries[:n_heads]
        _product(
            of_factors,
            stride,
            1,
            _address(stacked),
            width,
            _address(own_slopes),
            width,
            length,
            width,
            2 * n_heads,
        )
        states_gradient[s * length : (s + 1) * length] = own_slopes[:length]
