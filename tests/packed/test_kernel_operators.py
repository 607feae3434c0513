"""Every compiled operator against its formula in float64, in value and gradient, and the parts that it is made of."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from simcse_cli.machine.buffers import BufferPool
from simcse_cli.packed.kernels import GELU, GELU_TANH, NO_DROPOUT, RELU, compiled, operators

ACTIVATIONS = {
    GELU: functional.gelu,
    GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
    RELU: functional.relu,
}
SEED = 5


def stream():
    return np.random.SFC64(SEED).state["state"]["state"].copy()


def threshold(p):
    return NO_DROPOUT if p is None else round(p * 65536)


def keep(shape, p):
    """Return the scaled mask that a generator's first words give; ones without dropout."""
    if p is None:
        return torch.ones(shape)
    n = math.prod(shape)
    draws = np.random.SFC64(SEED).random_raw(-(-n // 4)).view(np.int16)[:n]
    return torch.from_numpy(draws >= threshold(p) - 32768).view(shape) / (1 - p)


def leaves(*tensors):
    """Return the tensors as leaves, and the same in float64."""
    return [t.clone().requires_grad_() for t in tensors], [
        t.double().requires_grad_() for t in tensors
    ]


def assert_same_gradients(found, expected, *, rtol=1e-4, atol=1e-5):
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own.grad.double(), other.grad, rtol=rtol, atol=atol)


def rounding(dtype):
    return {"rtol": 1e-4, "atol": 2e-5} if dtype is torch.float32 else {"rtol": 0.03, "atol": 0.03}


def test_draws_are_those_of_numpy():
    words, own = np.empty(1001, np.uint64), stream()
    compiled._draw(own, words)
    generator = np.random.SFC64(SEED)
    assert words.tolist() == generator.random_raw(1001).tolist()
    assert own.tolist() == generator.state["state"]["state"].tolist()


def test_gelu_is_within_3e_7_of_the_error_function():
    x = torch.linspace(-12, 12, 40_000).view(8, -1)
    (own, bias), (wide, _) = leaves(x, torch.zeros(x.shape[1]))
    found, expected = (
        operators.BiasActivation.apply(own, bias, GELU, BufferPool()),
        functional.gelu(wide),
    )
    found.sum().backward()
    expected.sum().backward()
    assert (found - expected).abs().max() < 1e-6  # 3e-7 of the distribution, times x
    assert (own.grad - wide.grad).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(40, 24), (1, 16), (7, 33)])
@pytest.mark.parametrize("kind", list(ACTIVATIONS))
def test_bias_activation_equals_its_formula(kind, shape, dtype):
    torch.manual_seed(0)
    x, d_out = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    (own, bias), expected = leaves(x, torch.randn(shape[1]))
    found = operators.BiasActivation.apply(own, bias, kind, BufferPool())
    wide = ACTIVATIONS[kind](
        expected[0] + bias.detach().double().requires_grad_(requires_grad=False)
    )
    expected[1] = (wide_bias := bias.detach().double().requires_grad_())
    wide = ACTIVATIONS[kind](expected[0] + wide_bias)
    found.backward(d_out)
    wide.backward(d_out.double())
    step = 1e-5 if dtype is torch.float32 else 2**-7
    torch.testing.assert_close(found.double(), wide, rtol=step, atol=1e-6)
    torch.testing.assert_close(own.grad.double(), expected[0].grad, rtol=step, atol=1e-6)
    torch.testing.assert_close(bias.grad.double(), wide_bias.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [None, 0.25])
@pytest.mark.parametrize("shape", [(12, 32), (1, 16), (5, 96)])
def test_dropout_add_norm_equals_its_formula(shape, p, dtype):
    torch.manual_seed(0)
    vectors = [torch.randn(shape[1]) for _ in range(3)]
    own, wide = leaves(torch.randn(shape), torch.randn(shape).to(dtype), *vectors)
    total = wide[0] + (wide[1] + wide[2]) * keep(shape, p)
    expected = functional.layer_norm(total, shape[1:], wide[3], wide[4], 1e-12)
    found, operand = operators.DropoutAddNorm.apply(
        *own, 1e-12, threshold(p), stream(), BufferPool()
    )
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(operand, found.to(dtype))  # rounded to nearest even

    d_out, d_operand = torch.randn(shape), torch.randn(shape).to(dtype)
    torch.autograd.backward([found, operand], [d_out, d_operand])
    expected.backward((d_out + d_operand).double())
    assert_same_gradients(own, wide, **rounding(dtype))


@pytest.mark.parametrize("read", [0, 1])
def test_dropout_add_norm_has_a_gradient_when_one_result_is_read(read):
    torch.manual_seed(0)
    own, wide = leaves(*torch.randn(2, 4, 16), *torch.randn(3, 16))
    found = operators.DropoutAddNorm.apply(*own, 1e-12, NO_DROPOUT, stream(), BufferPool())
    expected = functional.layer_norm(wide[0] + wide[1] + wide[2], (16,), wide[3], wide[4], 1e-12)
    found[read].square().sum().backward()
    expected.square().sum().backward()
    assert_same_gradients(own, wide, atol=1e-4)


@pytest.mark.parametrize("p", [None, 0.25])
@pytest.mark.parametrize("length", [1, 3, 16, 21, 40])
@pytest.mark.parametrize(("n_heads", "head"), [(3, 16), (2, 32), (1, 80)])
def test_bias_attend_equals_its_formula(length, n_heads, head, p):
    torch.manual_seed(0)
    n, width = 3, n_heads * head
    own, wide = leaves(torch.randn(n * length, 3 * width), torch.randn(3 * width))
    query, key, value = (
        (wide[0] + wide[1]).view(n, length, 3, n_heads, head).permute(2, 0, 3, 1, 4).unbind(0)
    )
    weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(head), -1)
    weights = weights * keep(weights.shape, p)
    expected = (weights @ value).transpose(1, 2).reshape(n * length, width)
    groups, settings = np.array([(0, n, length)]), (threshold(p), stream(), BufferPool())
    found = operators.BiasAttend.apply(*own, groups, n_heads, *settings)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
    d_context = torch.randn(n * length, width)
    found.backward(d_context)
    expected.backward(d_context.double())
    assert_same_gradients(own, wide, atol=1e-4)


def test_tokens_of_no_sentence_attend_to_nothing():
    torch.manual_seed(0)
    qkv, bias = torch.randn(9, 48, requires_grad=True), torch.randn(48, requires_grad=True)
    groups = np.array([(0, 1, 3), (3, 2, 2)])
    found = operators.BiasAttend.apply(qkv, bias, groups, 1, NO_DROPOUT, stream(), BufferPool())
    found.sum().backward()
    assert (found[7:] == 0).all()
    assert (qkv.grad[7:] == 0).all()
    assert (found[:7] != 0).all()


def test_large_scores_overflow_nowhere():
    found = operators.BiasAttend.apply(
        torch.full((4, 48), 200.0),
        torch.zeros(48),
        np.array([(0, 1, 4)]),
        1,
        NO_DROPOUT,
        stream(),
        BufferPool(),
    )
    torch.testing.assert_close(found, torch.full((4, 16), 200.0))


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_linear_is_a_product_whose_gradients_are_computed_where_needed(needs):
    torch.manual_seed(0)
    x, weight = torch.randn(5, 3), torch.randn(4, 3)
    x.requires_grad_(needs[0])
    weight.requires_grad_(needs[1])
    found = operators.Linear.apply(x, weight, BufferPool(), None)
    torch.testing.assert_close(found, x @ weight.t())
    d_out = torch.randn(5, 4)
    found.backward(d_out)
    assert [x.grad is not None, weight.grad is not None] == list(needs)
    if needs[0]:
        torch.testing.assert_close(x.grad, d_out @ weight)
    if needs[1]:
        torch.testing.assert_close(weight.grad, d_out.t() @ x)


def test_kernels_are_found_where_numba_keeps_them(tmp_path):
    test_large_scores_overflow_nowhere()
    assert compiled.was_compiled()
    assert not compiled.was_compiled(tmp_path)
