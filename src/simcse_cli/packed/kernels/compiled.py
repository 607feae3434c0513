"""Kernels for what a transformer layer computes between its matrix products, forward and backward.

Arrays are float32, or int16 that holds bfloat16 bits; arithmetic is float32. Dropout masks come
from an SFC64 stream, 16 bits per draw, as in ``packed.dropout``. All kernels release
Python's lock, use one thread, and are compiled for this processor on first use.

The functions that they call are in the same file, because numba replaces a kernel on disk only if
the file of the kernel itself has changed.
"""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.caching import IndexDataCacheFile
from numba.extending import intrinsic, overload

from simcse_cli.packed.kernels import DRAWS_A_WORD, GELU, GELU_TANH, LANES, RELU

# LLVM may reorder sums, and may assume that there is no NaN; infinities stay correct.
_FAST = {"nnan", "nsz", "arcp", "contract", "reassoc"}
_TILE_ROWS = 4
_CHECKSUM_BYTES = 32
_F = np.float32
_LOWEST = _F(-1e30)


class _CheckedFiles(IndexDataCacheFile):
    """The files that keep one compiled kernel on disk; each ends with a checksum.

    Without the checksum, numba would run damaged code, which ends the process. A damaged file
    counts as missing, so its kernel is compiled again.
    """

    def _load_index(self) -> dict[Any, str]:
        try:
            index: dict[Any, str] = super()._load_index()  # type: ignore[no-untyped-call]
        except Exception:  # whatever a damaged pickle raises
            return {}
        return index

    def _load_data(self, name: str) -> Any:
        content = Path(self._cache_path, name).read_bytes()
        if sha256(content[:-_CHECKSUM_BYTES]).digest() != content[-_CHECKSUM_BYTES:]:
            raise OSError(f"{name} is damaged")  # numba then compiles the kernel again
        return super()._load_data(name)  # type: ignore[no-untyped-call]

    def _dump(self, obj: Any) -> bytes:
        # numba's files are pickles, whose reader ignores bytes behind their end. The checksum must
        # be in the file from the start: several processes may compile and write the same file.
        content: bytes = super()._dump(obj)  # type: ignore[no-untyped-call]
        return content + sha256(content).digest()


def _compiled(function: Callable[..., Any]) -> Any:
    """Mark a function to be compiled on its first call and kept on disk."""
    kernel: Any = numba.njit(nogil=True, cache=True, fastmath=_FAST, error_model="numpy")(function)
    files = getattr(kernel._cache, "_cache_file", None)
    # numba has no option for the class of these files, so it is replaced.
    if type(files) is IndexDataCacheFile:
        files.__class__ = _CheckedFiles
    return kernel


def _inlined(function: Callable[..., Any]) -> Any:
    """Mark a function whose code numba copies into each compiled function that calls it."""
    return numba.njit(inline="always", fastmath=_FAST, error_model="numpy")(function)


def _inlined_late(function: Callable[..., Any]) -> Any:
    """Mark a function that LLVM, not numba, copies into each compiled function that calls it.

    Where a function is called with several constants, this halves the time to compile.
    """
    return numba.njit(forceinline=True, fastmath=_FAST, error_model="numpy")(function)


def was_compiled(folder: Path | None = None) -> bool:
    """Tell whether compiled kernels are in ``folder``, by default the folder that numba uses."""
    if folder is None:
        folder = Path(attention_forward.stats.cache_path)
    # This kernel stands for all, because every model needs attention.
    return any(folder.glob(f"{Path(__file__).stem}.attention_forward-*.nbi"))


# Values are float32, or bfloat16: the upper 16 bits of a float32.


def _load(value: Any) -> Any:
    """Return a value as float32.

    Compiled code calls ``_load_float32`` or ``_load_bfloat16`` in place of this function.
    """


def _pack(value: Any, row: Any) -> Any:
    """Return a float32 value in the type of the array ``row``.

    Compiled code calls ``_pack_float32`` or ``_pack_bfloat16`` in place of this function.
    """


@overload(_load, inline="always")
def _load_of_type(value: Any) -> Any:
    return _load_float32 if value == types.float32 else _load_bfloat16


@overload(_pack, inline="always")
def _pack_for_type(value: Any, row: Any) -> Any:
    return _pack_float32 if row.dtype == types.float32 else _pack_bfloat16


def _load_float32(value: Any) -> Any:
    return value


def _pack_float32(value: Any, row: Any) -> Any:
    return value


def _load_bfloat16(value: Any) -> Any:
    return np.int32(np.int32(value) << np.int32(16)).view(np.float32)


def _pack_bfloat16(value: Any, row: Any) -> Any:
    """Return the bits of a float32 rounded to bfloat16, to nearest even."""
    bits = np.float32(value).view(np.uint32)
    bits = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return np.int16(bits >> np.uint32(16))


# The stream of draws.


@_compiled
def _draw(stream: np.ndarray, words: np.ndarray) -> None:
    """Fill ``words`` from the generator SFC64, whose four numbers ``stream`` holds."""
    a, b, c, count = stream[0], stream[1], stream[2], stream[3]
    for i in range(len(words)):
        word = a + b + count
        count += np.uint64(1)
        a = b ^ (b >> np.uint64(11))
        b = c + (c << np.uint64(3))
        c = ((c << np.uint64(24)) | (c >> np.uint64(40))) + word
        words[i] = word
    stream[0], stream[1], stream[2], stream[3] = a, b, c, count


@_inlined
def _lowest_kept_and_scale(threshold: Any) -> Any:
    """Return the lowest draw, an int16, that keeps an element, and the scale of kept elements.

    ``threshold`` is the probability to drop, in units of 2^-16; if it is negative, all are kept.
    """
    if threshold < 0:
        return np.int16(-32768), _F(1)
    return np.int16(threshold - 32768), _F(65536 / (65536 - threshold))


# Functions of one value.


@_inlined_late
def _exp(x: Any) -> Any:
    """Return e^x with a relative error of 2e-7, for x cut to [-87, 88].

    x is split into ``power * ln 2 + rest``, with a whole number ``power`` and a ``rest`` in
    [-ln 2 / 2, ln 2 / 2]. Then e^x is 2^power e^rest. A polynomial p gives
    e^rest = 1 + rest + p rest^2, and 2^power is written as the exponent bits of a float.
    """
    x = max(min(x, _F(88.0)), _F(-87.0))
    power = np.floor(x * _F(1.44269504) + _F(0.5))  # x / ln 2, rounded
    # ln 2 is split in two: the first part has few bits, so its product with the power is exact.
    rest = x - power * _F(0.693359375) - power * _F(-2.12194440e-4)
    p = _F(1.9875691500e-4)
    p = p * rest + _F(1.3981999507e-3)
    p = p * rest + _F(8.3334519073e-3)
    p = p * rest + _F(4.1665795894e-2)
    p = p * rest + _F(1.6666665459e-1)
    p = p * rest + _F(5.0000001201e-1)
    # In a float, the bits of the exponent start at bit 23 and hold the power + 127.
    scale = np.int32((np.int32(power) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (p * rest * rest + rest + _F(1)) * scale


@_inlined_late
def _normal(x: Any) -> Any:
    """Return the distribution function and the density of the standard normal at x.

    They are accurate to 1.5e-7. Source: Abramowitz and Stegun 7.1.26. With z = |x| / sqrt(2) and
    t = 1 / (1 + 0.3275911 z), the probability beyond |x| is p(t) t exp(-z^2) / 2, with a
    polynomial p. The density is exp(-z^2) / sqrt(2 pi).
    """
    z = abs(x) * _F(0.70710678)
    exponential = _exp(-z * z)
    t = _F(1) / (_F(1) + _F(0.3275911) * z)
    p = _F(1.061405429) * t - _F(1.453152027)
    p = p * t + _F(1.421413741)
    p = p * t - _F(0.284496736)
    upper_tail = _F(0.5) * (p * t + _F(0.254829592)) * t * exponential
    cdf = _F(1) - upper_tail if x >= 0 else upper_tail
    return cdf, exponential * _F(0.3989422804)


@_inlined_late
def _normal_by_tanh(x: Any) -> Any:
    """Return (1 + tanh u) / 2 for u = sqrt(2 / pi) (x + 0.044715 x^3), and its derivative by x."""
    # (1 + tanh u) / 2 = 1 / (1 + e^(-2u)), and 1.5957691216 = 2 sqrt(2 / pi).
    twice_u = _F(1.5957691216) * (x + _F(0.044715) * x * x * x)
    cdf = _F(1) / (_F(1) + _exp(-twice_u))
    # The derivative is cdf (1 - cdf) times that of 2u, and 0.134145 = 3 x 0.044715.
    return cdf, cdf * (_F(1) - cdf) * _F(1.5957691216) * (_F(1) + _F(0.134145) * x * x)


# Bias and activation.


@_inlined_late
def _activation(kind: Any, x: Any) -> Any:
    """Return f(x) and f'(x) of the activation f with the number ``kind``."""
    if kind == GELU:
        cdf, pdf = _normal(x)
        return x * cdf, cdf + x * pdf
    if kind == GELU_TANH:
        cdf, pdf = _normal_by_tanh(x)
        return x * cdf, cdf + x * pdf
    return max(x, _F(0)), _F(1) if x > 0 else _F(0)


def _activation_kernels(kind: int) -> tuple[Any, Any]:
    """Return the forward and the backward kernel of the activation with this number.

    Each is compiled when a model first needs it.
    """

    @_compiled
    def forward(x: np.ndarray, bias: np.ndarray, out: np.ndarray) -> None:
        for i in range(x.shape[0]):
            row, result = x[i], out[i]
            for j in range(x.shape[1]):
                value, _ = _activation(kind, _load(row[j]) + bias[j])
                result[j] = _pack(value, result)

    @_compiled
    def backward(
        x: np.ndarray, bias: np.ndarray, d_out: np.ndarray, d_x: np.ndarray, d_bias: np.ndarray
    ) -> None:
        for i in range(x.shape[0]):
            row, d_result, d_row = x[i], d_out[i], d_x[i]
            for j in range(x.shape[1]):
                _, derivative = _activation(kind, _load(row[j]) + bias[j])
                d = _load(d_result[j]) * derivative
                d_bias[j] += d
                d_row[j] = _pack(d, d_row)

    return forward, backward


ACTIVATION_KERNELS = {kind: _activation_kernels(kind) for kind in (GELU, GELU_TANH, RELU)}
"""Two kernels for each activation f.

The first takes x ``(T, F)``, bias ``(F,)`` and out ``(T, F)``, and writes

    out = f(x + bias)

The second takes x, bias, d_out, d_x and d_bias, writes

    d_x = d_out * f'(x + bias)

and adds the sum of d_x over its rows to d_bias.
"""


# Bias, dropout, residual and norm.


@_compiled
def dropout_add_norm_forward(
    states: np.ndarray,
    update: np.ndarray,
    update_bias: np.ndarray,
    threshold: int,
    stream: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    epsilon: float,
    out: np.ndarray,
    operand: np.ndarray,
    normed: np.ndarray,
    rstd: np.ndarray,
    keep: np.ndarray,
) -> None:
    """Write the layer norm of ``states + dropout(update + update_bias)``.

    ``normed`` is the sum, centred and scaled: ``out = weight * normed + bias``.

    Args:
        states: ``(T, H)``, float32.
        update: ``(T, H)``, a product without its bias.
        update_bias: ``(H,)``, float32.
        threshold: probability to drop, in units of 2^-16; negative for no dropout and no draw.
        stream: the four numbers of SFC64, which draws advance.
        weight: ``(H,)``, float32, of the norm.
        bias: ``(H,)``, float32, of the norm.
        epsilon: added to the variance.
        out: ``(T, H)``, float32, output.
        operand: ``(T, H)``, output: ``out`` in the type of the products, for the next product.
        normed: ``(T, H)``, float32, output.
        rstd: ``(T,)``, float32, output: the inverse of the standard deviation.
        keep: ``(T, H)``, uint8, output: 1 where dropout kept the update, else 0.
    """
    n_rows, width = states.shape
    words = np.zeros(width // DRAWS_A_WORD, np.uint64)
    draws = words.view(np.int16)
    lowest, scale = _lowest_kept_and_scale(threshold)
    row = np.empty(width, np.float32)
    for i in range(n_rows):
        if threshold >= 0:  # else the draws stay 0, and ``lowest`` keeps them all
            _draw(stream, words)
        state, change, result = states[i], update[i], out[i]
        packed_result, normed_row, kept = operand[i], normed[i], keep[i]
        # The sum of states and update, and its mean.
        total = _F(0)
        for j in range(width):
            is_kept = draws[j] >= lowest
            kept[j] = 1 if is_kept else 0
            x = state[j]
            # Dropout adds the scaled update, or 0.
            x += scale * (_load(change[j]) + update_bias[j]) if is_kept else _F(0)
            row[j] = x
            total += x
        mean = total / _F(width)
        # The inverse of the standard deviation.
        squares = _F(0)
        for j in range(width):
            squares += (row[j] - mean) * (row[j] - mean)
        inverse_std = _F(1) / np.sqrt(squares / _F(width) + _F(epsilon))
        rstd[i] = inverse_std
        # The norm.
        for j in range(width):
            x = (row[j] - mean) * inverse_std
            normed_row[j] = x
            x = x * weight[j] + bias[j]
            result[j] = x
            packed_result[j] = _pack(x, packed_result)


@_compiled
def dropout_add_norm_backward(
    d_out: np.ndarray,
    d_operand: np.ndarray,
    threshold: int,
    weight: np.ndarray,
    normed: np.ndarray,
    rstd: np.ndarray,
    keep: np.ndarray,
    d_states: np.ndarray,
    d_update: np.ndarray,
    d_update_bias: np.ndarray,
    d_weight: np.ndarray,
    d_bias: np.ndarray,
) -> None:
    """Write the gradients of the inputs of ``dropout_add_norm_forward``.

    ``d_x`` stands for the gradient of that function's argument ``x``; the other arguments are the
    same as there. The gradient of the result is ``d_out + d_operand``, ``(T, H)`` each.
    ``d_states`` and ``d_update``, ``(T, H)``, are overwritten; ``d_update_bias``, ``d_weight`` and
    ``d_bias``, ``(H,)``, are added to. ``d_operand`` and ``d_update`` have the type of the
    products, and all others are float32.
    """
    n_rows, width = normed.shape
    _, scale = _lowest_kept_and_scale(threshold)
    row = np.empty(width, np.float32)
    for i in range(n_rows):
        d_out_row, d_operand_row, normed_row, keep_row = d_out[i], d_operand[i], normed[i], keep[i]
        d_states_row, d_update_row = d_states[i], d_update[i]
        # Gradients of weight and bias. The gradient of states needs two means: that of the gradient
        # of normed, and that of this gradient times normed.
        mean_d, mean_d_normed = _F(0), _F(0)
        for j in range(width):
            d = d_out_row[j] + _load(d_operand_row[j])  # of the result
            x = normed_row[j]
            d_bias[j] += d
            d_weight[j] += d * x
            d *= weight[j]  # of normed
            row[j] = d
            mean_d += d
            mean_d_normed += d * x
        mean_d /= _F(width)
        mean_d_normed /= _F(width)
        # Gradients of states and update.
        inverse_std = rstd[i]
        for j in range(width):
            d = inverse_std * (row[j] - mean_d - normed_row[j] * mean_d_normed)  # of states
            d_states_row[j] = d
            d = scale * d if keep_row[j] != 0 else _F(0)  # of update and its bias
            d_update_bias[j] += d
            d_update_row[j] = _pack(d, d_update_row)


# Small products inside attention. Their innermost loop is built instruction by instruction. Plain
# loops give the same bits, but are slower: a training step of MiniLM reaches only 90% of the rate
# in bf16 and 96% in fp32 (64 sentences, two cores with AVX-512, processor time, medians of 7
# alternating runs). With plain loops, a product of 27 x 32 x 32 takes 1.7 us instead of 0.4: sums
# go through memory at every step, and LLVM checks before each inner loop that its rows do not
# overlap. Plain loops that take four steps at once need 1.5 us.


def _tile_product(n_vectors: int) -> Any:
    """Return an intrinsic that computes a tile of C = A B with sums in registers.

    The tile has ``_TILE_ROWS`` rows and ``n_vectors`` vectors of ``LANES`` columns. The intrinsic
    takes the addresses a, b and c of the first values that it needs of A, B and C. The strides
    a_row, a_column, b_row and c_row are the steps in memory to the next row or column, in floats.
    ``depth`` >= 1 is the number of rows of B. Offsets in its code are in bytes, four per float.
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
            """Return a pointer to a value of type ``kind``, ``offset`` bytes behind ``base``."""
            return builder.inttoptr(builder.add(base, offset), kind.as_pointer())

        def spread(value: Any) -> Any:
            """Return a vector that holds ``value`` in every lane."""
            undefined = ir.Constant(vector, ir.Undefined)
            first = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
            zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            return builder.shuffle_vector(first, undefined, zeros)

        # The loop, one step for each row of B and column of A. First the addresses of A's rows.
        rows = [builder.add(a, builder.mul(a_row, number(4 * i))) for i in range(_TILE_ROWS)]
        a_step, b_step = builder.mul(a_column, number(4)), builder.mul(b_row, number(4))
        before = builder.block
        body = builder.append_basic_block("tile.body")
        after = builder.append_basic_block("tile.after")
        builder.branch(body)

        # The sums and counters of the loop; a phi takes its value from the step before.
        builder.position_at_end(body)
        k, a_offset, b_offset = builder.phi(word), builder.phi(word), builder.phi(word)
        sums = [[builder.phi(vector) for _ in range(n_vectors)] for _ in range(_TILE_ROWS)]
        # Load the vectors of a row of B, and add to each sum a value of A times its vector.
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
        # The first value of each phi, its value in the next step, and whether there is such a step.
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

        # Store the sums in C.
        builder.position_at_end(after)
        for i, row_added in enumerate(added):
            start = builder.mul(c_row, number(4 * i))
            for v, value in enumerate(row_added):
                place = address(c, builder.add(start, number(4 * LANES * v)), vector)
                builder.store(value, place).align = 4
        return context.get_dummy_value()  # for a function that returns nothing

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
        # Numba emits the code of a call by ``generate``. The call returns nothing; its arguments,
        # all but the context, are eight integers.
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
    """Write C = A B for float32 matrices.

    A is ``(n_rows, depth)``, B is ``(depth, width)``, and C is ``(n_rows, width)``. a, b and c are
    their addresses. a_row, a_column, b_row and c_row are the steps in memory to the next row or
    column, in floats. The number of rows is rounded up to whole tiles, and that of columns to whole
    vectors, so the arrays of callers need room for these, with finite values.
    """
    for i in range(0, n_rows, _TILE_ROWS):
        a_start, c_start = a + 4 * i * a_row, c + 4 * i * c_row  # a float has four bytes
        j = 0
        # A wide tile takes two vectors of columns, a narrow one the single vector that may be left.
        while j + LANES < width:
            _wide_tile(a_start, a_row, a_column, b + 4 * j, b_row, c_start + 4 * j, c_row, depth)
            j += 2 * LANES
        if j < width:
            _narrow_tile(a_start, a_row, a_column, b + 4 * j, b_row, c_start + 4 * j, c_row, depth)


@_inlined
def _transpose(a: Any, b: Any) -> None:
    """Write the transpose of ``a``, ``(n, m)``, into the first n columns of ``b``."""
    for i in range(a.shape[0]):
        row = a[i]
        for j in range(a.shape[1]):
            b[j, i] = row[j]


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
    """Put the draws of one attention head into ``words``.

    A word holds ``DRAWS_A_WORD`` draws. The last word of a head may also hold the first draws of
    the next head, so that no draw is lost.

    Args:
        stream: the four numbers of SFC64, which draws advance.
        words: must still hold the words of the head before.
        n_before: the number of heads before this one.
        n_draws: how many draws each head takes.
        last: index of the last word of the head before.

    Returns:
        The place of this head's first draw, counted in draws, and the index of its last word.
    """
    start = (n_before * n_draws) % DRAWS_A_WORD
    end = start + n_draws
    n_words = (end + DRAWS_A_WORD - 1) // DRAWS_A_WORD
    if start:
        words[0] = words[last]  # the head before has used only its first ``start`` draws
        _draw(stream, words[1:n_words])
    else:
        _draw(stream, words[:n_words])
    return start, n_words - 1


# Attention. With the query q, key k and value v of a head, and d its width:
#     probs = softmax(q k^T / sqrt(d))
#     context = dropout(probs) v


@_compiled
def attention_forward(
    qkv: np.ndarray,
    bias: np.ndarray,
    length: int,
    n_heads: int,
    threshold: int,
    stream: np.ndarray,
    probs: np.ndarray,
    context: np.ndarray,
) -> None:
    """Write the context of attention within each of R sentences of one length.

    Args:
        qkv: ``(R * L, 3D)``, the products without their biases.
        bias: ``(3D,)``, float32.
        length: L.
        n_heads: divides D into heads of a multiple of ``LANES``.
        threshold: as in ``dropout_add_norm_forward``; draws follow the order of an array
            ``(R, n_heads, L, L)``.
        stream: as in ``dropout_add_norm_forward``.
        probs: ``(R * n_heads * L, L rounded up to LANES)``, float32, output: the softmax before
            dropout. Its sign holds the dropout mask: a dropped weight is negative.
        context: ``(R * L, D)``, of the type of ``qkv``; output.
    """
    n_sentences, width = qkv.shape[0] // length, qkv.shape[1] // 3
    head = width // n_heads  # the width of one head
    factor = _F(1 / np.sqrt(head))
    padded, rows = _rounded_up(length, LANES), _rounded_up(length, _TILE_ROWS)
    lowest, scale = _lowest_kept_and_scale(threshold)
    # A few more draws than those of one head: a head may start inside a word, and a row also reads
    # draws for its padding.
    words = np.zeros(length * length // DRAWS_A_WORD + LANES, np.uint64)
    draws = words.view(np.int16)
    # The index of a head's first draw in ``draws``, and that of its last word in ``words``. The
    # latter is np.int64, because _draw_head would be compiled once more for a constant.
    start, last = 0, np.int64(0)
    states = np.zeros((padded, 3 * width), np.float32)
    keys = np.zeros((head, padded), np.float32)
    scores = np.zeros((rows, padded), np.float32)
    flat = scores.reshape(-1)
    mixed = np.zeros((rows, width), np.float32)
    for s in range(n_sentences):
        for i in range(length):
            state, token = states[i], qkv[s * length + i]
            for j in range(3 * width):
                state[j] = _load(token[j]) + bias[j]
        for h in range(n_heads):
            # The draws of dropout. Without dropout they stay 0, and ``lowest`` keeps them all.
            if threshold >= 0:
                start, last = _draw_head(stream, words, s * n_heads + h, length * length, last)
            # Addresses are in bytes: the values lie 2 * width floats, 8 * width bytes, behind q.
            q = _address(states) + 4 * h * head
            v = q + 8 * width
            k_t, score_at = _address(keys), _address(scores)
            mixed_at = _address(mixed) + 4 * h * head
            # The products of queries ``(length, head)`` and keys ``(head, padded)``.
            _transpose(states[:length, width + h * head : width + (h + 1) * head], keys)
            _product(q, 3 * width, 1, k_t, padded, score_at, padded, length, padded, head)
            # Subtract the largest score of each row, so that no exponential overflows, and scale.
            for i in range(length):
                score = scores[i]
                for j in range(length, padded):
                    score[j] = _LOWEST  # so that padding is never the highest
                highest = _LOWEST
                for j in range(padded):
                    highest = max(highest, score[j])
                for j in range(padded):
                    score[j] = (score[j] - highest) * factor
            # ``probs`` gets the softmax, with the dropout mask in its sign; ``scores`` gets the
            # weights after dropout.
            for j in range(length * padded):
                flat[j] = _exp(flat[j])
            for i in range(length):
                total = _F(0)
                score, prob = scores[i], probs[(s * n_heads + h) * length + i]
                draw = draws[start + i * length :]
                for j in range(length, padded):
                    score[j] = _F(0)  # padding has no weight
                for j in range(padded):
                    total += score[j]
                inverse = _F(1) / total  # a product is faster than a division
                for j in range(padded):
                    p = score[j] * inverse
                    is_kept = draw[j] >= lowest
                    prob[j] = p if is_kept else -p
                    score[j] = scale * p if is_kept else _F(0)
            # The columns of this head in ``mixed``: the weights times the values.
            _product(score_at, padded, 1, v, 3 * width, mixed_at, width, length, head, length)
        # The context in the type of the products.
        for i in range(length):
            row, result = mixed[i], context[s * length + i]
            for j in range(width):
                result[j] = _pack(row[j], result)


@_compiled
def attention_backward(
    qkv: np.ndarray,
    bias: np.ndarray,
    length: int,
    n_heads: int,
    threshold: int,
    probs: np.ndarray,
    d_context: np.ndarray,
    d_qkv: np.ndarray,
    d_bias: np.ndarray,
) -> None:
    """Write the gradient of ``qkv``, and add its sum over tokens to ``d_bias``.

    With w = dropout(probs), where d_x is the gradient of x and d the width of a head:

        d_w = d_context v^T
        d_probs = dropout(d_w)
        d_scores = probs * (d_probs - sum_j(probs_j d_probs_j)) / sqrt(d)
        d_q = d_scores k
        d_k = d_scores^T q
        d_v = w^T d_context

    The first five arguments, and ``probs``, are those of ``attention_forward``. ``d_context`` is
    ``(R * L, D)``, the output ``d_qkv`` is ``(R * L, 3D)``, and ``d_bias`` is ``(3D,)``, float32.
    """
    n_sentences, width = qkv.shape[0] // length, qkv.shape[1] // 3
    head = width // n_heads  # the width of one head
    factor = _F(1 / np.sqrt(head))
    padded, rows = _rounded_up(length, LANES), _rounded_up(length, _TILE_ROWS)
    _, scale = _lowest_kept_and_scale(threshold)
    states = np.zeros((padded, 3 * width), np.float32)
    d_states = np.zeros((rows, 3 * width), np.float32)
    d_mixed = np.zeros((rows, width), np.float32)
    values = np.zeros((head, padded), np.float32)
    d_scores = np.zeros((rows, padded), np.float32)
    weights = np.zeros((rows, padded), np.float32)
    for s in range(n_sentences):
        for i in range(length):
            state, token = states[i], qkv[s * length + i]
            for j in range(3 * width):
                state[j] = _load(token[j]) + bias[j]
            d_mixed_row, d_token = d_mixed[i], d_context[s * length + i]
            for j in range(width):
                d_mixed_row[j] = _load(d_token[j])
        for h in range(n_heads):
            # Addresses are in bytes: keys lie 4 * width behind queries, values 8 * width.
            q, d_q = _address(states) + 4 * h * head, _address(d_states) + 4 * h * head
            k, d_k, d_v = q + 4 * width, d_q + 4 * width, d_q + 8 * width
            v_t, d_mixed_at = _address(values), _address(d_mixed) + 4 * h * head
            d_score_at, weight_at = _address(d_scores), _address(weights)
            _transpose(states[:length, 2 * width + h * head : 2 * width + (h + 1) * head], values)
            _product(d_mixed_at, width, 1, v_t, padded, d_score_at, padded, length, padded, head)
            # The product has put d_w into ``d_scores``; here, the gradients of the scores replace
            # it. Dropout scales the weights w and d_probs alike, so sum_j(probs_j d_probs_j) is
            # computed as sum_j(w_j d_w_j).
            for i in range(length):
                prob, row, weight = probs[(s * n_heads + h) * length + i], d_scores[i], weights[i]
                weighted_sum = _F(0)
                for j in range(padded):
                    w = max(prob[j], _F(0)) * scale  # a negative weight was dropped
                    weight[j] = w
                    weighted_sum += row[j] * w
                for j in range(padded):
                    d_prob = scale * row[j] if prob[j] > 0 else _F(0)
                    row[j] = factor * abs(prob[j]) * (d_prob - weighted_sum)
            # Gradients of query, key and value.
            _product(d_score_at, padded, 1, k, 3 * width, d_q, 3 * width, length, head, length)
            _product(d_score_at, 1, padded, q, 3 * width, d_k, 3 * width, length, head, length)
            _product(weight_at, 1, padded, d_mixed_at, width, d_v, 3 * width, length, head, length)
        # Gradients of the bias and of qkv in the type of the products.
        for i in range(length):
            d_state, result = d_states[i], d_qkv[s * length + i]
            for j in range(3 * width):
                d_bias[j] += d_state[j]
                result[j] = _pack(d_state[j], result)
