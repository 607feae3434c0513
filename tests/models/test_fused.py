"""Layers by compiled kernels: against autograd on the same masks, against the model's own pass, kernel by kernel."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    RobertaConfig,
    RobertaModel,
)

from simcse_cli.choices import Pooler
from simcse_cli.models.packed import halves, kernels, must_compile, pack, packed_backbone, packed_vectors
from simcse_cli.models.packed.architectures import GELU, GELU_TANH, RELU, read_parts
from simcse_cli.models.packed.dropout import NO_DROPOUT, DropoutMasks, JoinedMasks
from simcse_cli.models.packed.fused import FusedLayers, can_fuse
from simcse_cli.models.packed.graph import GraphLayers
from simcse_cli.models.packed.memory import memory_of
from simcse_cli.models.packed.tokens import Share
from simcse_cli.models.poolers import pool

SIZES = {
    "vocab_size": 50,
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,  # of 48 values each: three vectors
    "intermediate_size": 112,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
}
NO_DROPOUTS = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# Of 1 to 37 tokens, over 1,024 in all.
ROWS = [np.random.default_rng(i).integers(3, 50, 1 + i % 37).tolist() for i in range(80)]
POOLERS = [Pooler.CLS_BEFORE_POOLER, Pooler.AVG, Pooler.AVG_FIRST_LAST]


def shaken(model):
    """Return the model with gains, shifts and biases that are not at their start."""
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def bert(**settings):
    torch.manual_seed(0)
    return shaken(BertModel(BertConfig(**{**SIZES, **settings}), add_pooling_layer=False))


def roberta():
    torch.manual_seed(0)
    config = RobertaConfig(**{**SIZES, **NO_DROPOUTS}, type_vocab_size=1, pad_token_id=1)
    return shaken(RobertaModel(config, add_pooling_layer=False))


def electra():
    torch.manual_seed(0)
    return shaken(ElectraModel(ElectraConfig(**SIZES, **NO_DROPOUTS, embedding_size=32)))


def distilbert():
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "dim": 96, "n_layers": 2, "n_heads": 6, "hidden_dim": 112}
    config = DistilBertConfig(**sizes, max_position_embeddings=64, dropout=0.0, attention_dropout=0.0)
    return shaken(DistilBertModel(config))


def backward(model, vectors):
    """Return the gradients of a fixed function of the vectors."""
    model.zero_grad()
    weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1))
    (vectors.float() * weights).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        # The gradient of a key's bias is zero but for rounding: the softmax ignores it.
        if not any(part in name for part in ("key.bias", "k_lin.bias")):
            assert (found[name] - gradient).norm() <= tolerance * gradient.norm(), name


def both_ways(model, monkeypatch, **settings):
    """Return vectors and gradients by kernels, and by autograd on the same dropout masks."""
    found = []
    for fuses in (True, False):
        if not fuses:
            monkeypatch.setattr(halves, "can_fuse", lambda *_: False)
        torch.manual_seed(3)
        vectors = packed_vectors(packed_backbone(model), ROWS, **settings)
        found.append((vectors.detach(), backward(model, vectors)))
    return found


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_values_and_gradients_equal_those_of_autograd_on_the_same_masks(activation, p, pooler, monkeypatch):
    dropouts = {"hidden_dropout_prob": p, "attention_probs_dropout_prob": p}
    model = bert(hidden_act=activation, **dropouts).train()
    assert can_fuse(read_parts(model), torch.float32)
    (found, found_gradients), (vectors, gradients) = both_ways(model, monkeypatch, pooler=pooler)
    torch.testing.assert_close(found, vectors, rtol=1e-5, atol=1e-5)
    assert_close(found_gradients, gradients, 1e-5)


@pytest.mark.parametrize("pooler", POOLERS[:2])
def test_a_single_layer_equals_that_of_autograd(pooler, monkeypatch):
    model = bert(num_hidden_layers=1).train()
    (found, found_gradients), (vectors, gradients) = both_ways(model, monkeypatch, pooler=pooler)
    torch.testing.assert_close(found, vectors, rtol=1e-5, atol=1e-5)
    assert_close(found_gradients, gradients, 1e-5)


def test_a_last_layer_of_first_tokens_is_the_last_layer_of_all_tokens():
    model = bert(**NO_DROPOUTS).train()
    backbone = packed_backbone(model)
    tokens = backbone.pack(ROWS)
    found = []
    for states in (
        backbone.first_token_states(tokens),
        backbone.hidden_states(tokens)[0][tokens.first_tokens()],
    ):
        found.append((states.detach(), backward(model, states)))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-5)
    assert_close(found[0][1], found[1][1], 2e-5)


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize("p", [0.0, 0.1])
def test_bf16_differs_from_autograd_by_its_rounding(p, pooler, monkeypatch):
    model = bert(hidden_dropout_prob=p, attention_probs_dropout_prob=p).train()
    settings = {"pooler": pooler, "dtype": torch.bfloat16}
    (found, found_gradients), (vectors, gradients) = both_ways(model, monkeypatch, **settings)
    assert (found - vectors).norm() < 0.01 * vectors.norm()
    assert_close(found_gradients, gradients, 0.03)
    assert all(gradient.dtype is torch.float32 for gradient in found_gradients.values())


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize("build", [lambda: bert(**NO_DROPOUTS), roberta, electra, distilbert])
def test_values_and_gradients_equal_those_of_the_padded_pass(build, pooler):
    model = build().train()
    vectors = packed_vectors(packed_backbone(model), ROWS, pooler)
    found = backward(model, vectors)
    length = max(map(len, ROWS))
    pad_id = model.config.pad_token_id or 0
    ids = torch.tensor([row + [pad_id] * (length - len(row)) for row in ROWS])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in ROWS])
    states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    expected = pool(pooler, states, mask)
    torch.testing.assert_close(vectors, expected, rtol=1e-4, atol=2e-5)
    assert_close(found, backward(model, expected), 2e-5)


def test_a_padding_token_in_the_text_gets_no_gradient_as_in_the_padded_pass():
    model = bert(**NO_DROPOUTS, pad_token_id=0).train()
    rows = [[7, 0, 9] * 6] * 60
    found = backward(model, packed_vectors(packed_backbone(model), rows, Pooler.AVG))
    of_words = found["embeddings.word_embeddings.weight"]
    assert of_words[0].abs().sum() == 0
    assert of_words[7].abs().sum() > 0


def test_frozen_parameters_and_layers_above_the_one_read_get_no_gradient():
    model = bert(**NO_DROPOUTS).train()
    model.encoder.layer[0].intermediate.dense.weight.requires_grad_(requires_grad=False)
    packed = packed_backbone(model)
    packed.hidden_states(packed.pack(ROWS), layers=(1,))[0].sum().backward()
    with_gradient = {name for name, p in model.encoder.named_parameters() if p.grad is not None}
    assert "layer.0.intermediate.dense.weight" not in with_gradient
    assert "layer.0.intermediate.dense.bias" in with_gradient
    assert all(name.startswith("layer.0.") for name in with_gradient)


def test_gradients_of_two_passes_add_up():
    model = bert(**NO_DROPOUTS).train()
    once = {name: p.clone() for name, p in backward(model, vectors_of(model)).items()}
    model.zero_grad()
    for _ in range(2):
        weights = torch.randn(len(ROWS), 96, generator=torch.Generator().manual_seed(1))
        (vectors_of(model) * weights).sum().backward()
    twice = {name: p.grad / 2 for name, p in model.named_parameters() if p.grad is not None}
    assert_close(twice, once, 1e-6)


def vectors_of(model):
    return packed_vectors(packed_backbone(model), ROWS, Pooler.CLS_BEFORE_POOLER)


def test_a_step_after_a_step_gives_the_same_as_alone():
    model = bert(**NO_DROPOUTS).train()
    first = {name: gradient.clone() for name, gradient in backward(model, vectors_of(model)).items()}
    packed_vectors(
        packed_backbone(model), ROWS[20:], Pooler.AVG
    ).sum().backward()  # leaves other values in memory
    again = backward(model, vectors_of(model))
    for name, gradient in first.items():
        assert torch.equal(again[name], gradient), name


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({"num_attention_heads": 12}, torch.float32),  # heads of 8 values
        ({}, torch.float64),
        ({}, torch.float16),
    ],
)
def test_what_the_kernels_do_not_compute_is_left_to_autograd(settings, dtype):
    assert not can_fuse(read_parts(bert(**settings)), dtype)


@pytest.mark.parametrize(("n_threads", "expected"), [(1, FusedLayers), (8, FusedLayers), (9, GraphLayers)])
def test_many_threads_are_left_to_autograd(n_threads, expected, monkeypatch):
    made = []
    for kind in (FusedLayers, GraphLayers):
        monkeypatch.setattr(
            halves,
            kind.__name__,
            lambda *arguments, kind=kind, **settings: made.append(kind) or kind(*arguments, **settings),
        )
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    vectors_of(bert())
    torch.set_num_threads(before)
    assert made == [expected]


def test_an_error_in_one_share_ends_the_pass(monkeypatch):
    model = bert(**NO_DROPOUTS).train()
    vectors = vectors_of(model)
    real = FusedLayers._backward

    def fail_in_the_second(self, number, *arguments):
        if number == 1:
            raise MemoryError("no room")
        return real(self, number, *arguments)

    monkeypatch.setattr(FusedLayers, "_backward", fail_in_the_second)
    with pytest.raises(MemoryError, match="no room"):
        vectors.sum().backward()


def test_shares_give_back_their_memory_when_the_pass_is_over():
    model = bert(**NO_DROPOUTS).train()
    parts = read_parts(model)
    tokens = pack(ROWS)
    shares = [Share(half.tokens, None) for half in tokens.halves()]
    memory = memory_of(parts.words)
    layers = FusedLayers(parts, torch.float32, shares, memory)
    taken = layers._values["states"].untyped_storage().data_ptr()
    del layers
    again = FusedLayers(parts, torch.float32, shares, memory)
    assert again._values["states"].untyped_storage().data_ptr() == taken


# Kernels, one by one.


def stream(seed=5):
    return np.random.SFC64(seed).state["state"]["state"].copy()


def bits(values):
    """Return bfloat16 as the kernels take it."""
    return values.view(torch.int16).numpy()


def threshold(p):
    return round(p * 65536)


def mask(seed, shape, p):
    """Return the mask that ``DropoutMasks`` draws from a generator's first words."""
    n = math.prod(shape)
    draws = np.random.SFC64(seed).random_raw(-(-n // 4)).view(np.int16)[:n]
    return torch.from_numpy(draws >= threshold(p) - 32768).view(shape)


def test_the_stream_is_numpys():
    generator = np.random.SFC64(5)
    generator.random_raw(1001)
    own = stream()
    kernels.skip(own, 1001)
    assert own.tolist() == generator.state["state"]["state"].tolist()


def test_gelu_is_within_3e_7_of_the_error_function():
    x = np.linspace(-12, 12, 40_000, dtype=np.float32).reshape(8, -1)
    after, slope = np.empty_like(x), x.copy()
    kernels.activate(GELU, slope, np.zeros(x.shape[1], np.float32), after)
    wide = torch.from_numpy(x).double().requires_grad_()
    expected = functional.gelu(wide)
    expected.sum().backward()
    assert (torch.from_numpy(after) - expected).abs().max() < 1e-6  # 3e-7 of the distribution, times x
    assert (torch.from_numpy(slope) - wide.grad).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (GELU, functional.gelu),
        (GELU_TANH, lambda x: functional.gelu(x, approximate="tanh")),
        (RELU, functional.relu),
    ],
)
def test_activations_in_bf16_are_rounded_like_pytorchs(kind, function):
    torch.manual_seed(0)
    before, bias = torch.randn(40, 24).bfloat16(), torch.randn(24)
    gradient = torch.randn(40, 24).bfloat16()
    after, slope, of_bias = torch.empty_like(before), before.clone(), np.zeros(24, np.float32)
    kernels.activate(kind, bits(slope), bias.numpy(), bits(after))
    kernels.activate_backward(bits(slope), bits(gradient), of_bias)
    wide = (before.float() + bias).requires_grad_()
    expected = function(wide)
    (expected * gradient.float()).sum().backward()
    torch.testing.assert_close(after, expected.bfloat16(), rtol=2**-7, atol=1e-6)
    torch.testing.assert_close(slope, wide.grad.bfloat16(), rtol=2**-7, atol=1e-4)  # half a step of slopes
    torch.testing.assert_close(torch.from_numpy(of_bias), wide.grad.sum(0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("p", [None, 0.25])
def test_add_and_norm_equals_its_formula(p):
    torch.manual_seed(0)
    n, width = 12, 32
    states, update = torch.randn(n, width), torch.randn(n, width)
    bias, gain, shift = torch.randn(width), torch.randn(width), torch.randn(width)
    leaves = [tensor.double().requires_grad_() for tensor in (states, update, bias, gain, shift)]
    kept = torch.ones(n, width) if p is None else mask(5, (n, width), p) / (1 - p)
    total = leaves[0] + (leaves[1] + leaves[2]) * kept
    expected = functional.layer_norm(total, (width,), leaves[3], leaves[4], 1e-12)
    own, operand = states.clone(), torch.empty(n, width, dtype=torch.bfloat16)
    normed, inverse, of_update = torch.empty(n, width), torch.empty(n), torch.empty(n, width)
    level = NO_DROPOUT if p is None else threshold(p)
    numbers = [tensor.numpy() for tensor in (update, bias, gain, shift)]
    kernels.add_and_norm(
        own.numpy(),
        numbers[0],
        numbers[1],
        level,
        stream(),
        numbers[2],
        numbers[3],
        1e-12,
        bits(operand),
        normed.numpy(),
        inverse.numpy(),
        of_update.numpy(),
    )
    torch.testing.assert_close(own, expected.float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(operand, own.bfloat16())  # rounded to nearest even

    outer, product = torch.randn(n, width), torch.randn(n, width)
    (expected * (outer + product)).sum().backward()
    slope = outer.clone()
    sums = [np.zeros(width, np.float32) for _ in range(3)]
    kernels.add_and_norm_backward(
        slope.numpy(),
        product.numpy(),
        level,
        numbers[2],
        normed.numpy(),
        inverse.numpy(),
        of_update.numpy(),
        *sums,
    )
    found = [slope, of_update, *map(torch.from_numpy, sums)]
    for value, leaf in zip(found, leaves, strict=True):
        torch.testing.assert_close(value, leaf.grad.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("p", [None, 0.25])
@pytest.mark.parametrize("length", [1, 3, 16, 21, 40])
@pytest.mark.parametrize(("n_heads", "head"), [(3, 16), (2, 32), (1, 80)])
def test_attention_equals_its_formula(length, n_heads, head, p):
    torch.manual_seed(0)
    n, width = 3, n_heads * head
    qkv, bias = torch.randn(n * length, 3 * width), torch.randn(3 * width)
    leaves = [tensor.double().requires_grad_() for tensor in (qkv, bias)]
    query, key, value = (
        (leaves[0] + leaves[1]).view(n, length, 3, n_heads, head).permute(2, 0, 3, 1, 4).unbind(0)
    )
    weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(head), -1)
    if p is not None:
        weights = weights * mask(5, weights.shape, p) / (1 - p)
    expected = (weights @ value).transpose(1, 2).reshape(n * length, width)
    groups = np.array([(0, n, length)])
    padded = -(-length // 16) * 16
    mixed, kept = torch.empty(n * length, width), np.empty(n * n_heads * length * padded, np.float32)
    level = NO_DROPOUT if p is None else threshold(p)
    kernels.attend(qkv.numpy(), bias.numpy(), groups, n_heads, level, stream(), kept, mixed.numpy())
    torch.testing.assert_close(mixed, expected.float(), rtol=1e-5, atol=1e-5)

    outer = torch.randn(n * length, width)
    (expected * outer).sum().backward()
    slope, of_bias = qkv.clone(), np.zeros(3 * width, np.float32)
    kernels.attend_backward(slope.numpy(), bias.numpy(), groups, n_heads, level, kept, outer.numpy(), of_bias)
    torch.testing.assert_close(slope, leaves[0].grad.float(), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(torch.from_numpy(of_bias), leaves[1].grad.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n_rows", "width"), [(16, 16), (1, 16), (25, 48), (33, 32)])
def test_transposed_in_squares(n_rows, width):
    a = np.random.default_rng(0).standard_normal((48, width)).astype(np.float32)
    b = np.zeros((width, 48), np.float32)
    kernels._transpose(a.ctypes.data, width, b.ctypes.data, 48, n_rows, width)
    np.testing.assert_array_equal(b[:, :n_rows], a[:n_rows].T)


def test_large_scores_overflow_nowhere():
    qkv = torch.full((4, 48), 200.0)
    mixed, kept = torch.empty(4, 16), np.empty(4 * 16, np.float32)
    kernels.attend(
        qkv.numpy(),
        np.zeros(48, np.float32),
        np.array([(0, 1, 4)]),
        1,
        NO_DROPOUT,
        stream(),
        kept,
        mixed.numpy(),
    )
    torch.testing.assert_close(mixed, torch.full((4, 16), 200.0))


# Masks of halves.


def test_joined_masks_are_those_of_the_halves():
    torch.manual_seed(0)
    first, rest, first_again, rest_again = _twins(DropoutMasks(), DropoutMasks())
    joined = JoinedMasks(first, rest, 3, 7)
    blocks = [torch.zeros(2, 4, 5), torch.zeros(3, 4, 3), torch.zeros(2, 4, 1)]
    found = [joined.keep(block, 0.3)[0] for block in blocks] + [joined.keep(torch.zeros(7, 6), 0.3)[0]]
    of_first = [first_again.keep(like, 0.3)[0] for like in (blocks[0], blocks[1][:1], torch.zeros(3, 6))]
    of_rest = [rest_again.keep(like, 0.3)[0] for like in (blocks[1][1:], blocks[2], torch.zeros(4, 6))]
    expected = [
        of_first[0],
        torch.cat([of_first[1], of_rest[0]]),
        of_rest[1],
        torch.cat([of_first[2], of_rest[2]]),
    ]
    for own, other in zip(found, expected, strict=True):
        assert torch.equal(own, other)


def _twins(*masks):
    """Return masks, and others that draw the same."""
    again = []
    for own in masks:
        twin = DropoutMasks()
        twin.continue_from(own.stream())
        again.append(twin)
    return (*masks, *again)


def test_a_warning_comes_before_the_first_compilation_only(monkeypatch):
    tokens = pack(ROWS)
    monkeypatch.setattr(kernels, "compiled_before", lambda: False)
    assert must_compile(bert(), len(tokens.ids))
    assert not must_compile(bert(), 1000)  # too few tokens for kernels
    assert not must_compile(bert(num_attention_heads=12), len(tokens.ids))
    monkeypatch.setattr(kernels, "compiled_before", lambda: True)
    assert not must_compile(bert(), len(tokens.ids))


def test_kernels_are_found_where_numba_keeps_them():
    kernels.skip(stream(), 1)
    assert kernels.compiled_before("skip")
    assert not kernels.compiled_before("no_such_kernel")
