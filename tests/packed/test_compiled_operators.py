"""Layers by compiled kernels: against PyTorch's operators on the same masks, and against the model's own pass."""

import gc
import sys
from unittest.mock import patch

import numpy as np
import pytest
import torch
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

from simcse_cli.machine import buffers
from simcse_cli.machine.buffers import BufferPool, pool_of
from simcse_cli.machine.processor import is_x86
from simcse_cli.models.packed_pooling import packed_vectors
from simcse_cli.models.poolers import pool
from simcse_cli.packed import backbone, kernels
from simcse_cli.packed.backbone import PackedBackbone, packed_backbone
from simcse_cli.packed.compiled_operators import CompiledOperators, can_compile
from simcse_cli.packed.dropout import DropoutMasks
from simcse_cli.packed.layers import Layer, LinearWeights, NormWeights, Residual
from simcse_cli.packed.operators import Operators
from simcse_cli.packed.tokens import pack
from simcse_cli.settings.choices import Pooler

only_where_kernels_pay = pytest.mark.skipif(
    not is_x86(), reason="kernels are chosen on x86 processors alone"
)

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
    config = DistilBertConfig(
        **sizes, max_position_embeddings=64, dropout=0.0, attention_dropout=0.0
    )
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


def both_ways(model, **settings):
    """Return vectors and gradients by kernels, and by PyTorch's operators on the same dropout masks."""
    found = []
    for use_kernels in (True, False):
        torch.manual_seed(3)
        with patch.object(PackedBackbone, "compiles", return_value=use_kernels):
            vectors = packed_vectors(packed_backbone(model), ROWS, **settings)
        found.append((vectors.detach(), backward(model, vectors)))
    return found


def operators_of(kind, dtype, p, activation):
    """Return operators that draw the same masks whatever their kind."""
    torch.manual_seed(3)
    masks = DropoutMasks() if p else None
    if kind is Operators:
        return Operators(dtype, activation, masks)
    return CompiledOperators(dtype, activation, BufferPool(), masks)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("sizes", [(37, 48, 24), (1, 16, 16), (64, 32, 56)])
def test_operators_equal_pytorchs_in_value_and_gradient(
    sizes, activation, dtype, tolerance, p, biased
):
    """Attention, activation and both sums in turn, so that each passes values and gradients on to the others."""
    n_tokens, hidden, inner = sizes
    tokens = pack(
        [[5] * length for length in (n_tokens // 2, n_tokens // 3) if length] or [[5]],
        multiple=n_tokens,
    )
    shapes = [
        (3 * hidden, hidden),
        (hidden, hidden),
        (hidden,),
        (inner, hidden),
        (hidden, inner),
        (hidden,),
    ]
    found = []
    for kind in (CompiledOperators, Operators):
        generator = torch.Generator().manual_seed(1)

        def leaf(*shape, generator=generator):
            return (0.3 * torch.randn(shape, generator=generator)).requires_grad_()

        leaves = [leaf(n_tokens, hidden)]
        modules = []
        for shape in shapes:
            is_norm = len(shape) == 1
            pair = [leaf(*shape), leaf(shape[0]) if biased or is_norm else None]
            leaves += [tensor for tensor in pair if tensor is not None]
            modules.append(
                NormWeights(*pair) if is_norm else LinearWeights(pair[0].to(dtype), pair[1])
            )
        qkv, out_proj, norm, up, down, output_norm = modules
        own = operators_of(kind, dtype, p, activation)
        after_attention, after_activation = (
            Residual(out_proj, norm, 1e-6, p),
            Residual(down, output_norm, 1e-6, p),
        )
        layer = Layer(qkv, after_attention, up, after_activation, n_heads=hidden // 16, dropout=p)
        context = own.attend(leaves[0], tokens, layer)
        states, x = own.dropout_add_norm(leaves[0], context, after_attention)
        out, _ = own.dropout_add_norm(states, own.activate(x, up), after_activation)
        out.backward(torch.randn(out.shape, generator=generator))
        found.append(([context, states, out], [tensor.grad for tensor in leaves]))
    for one, other in zip(*(values for values, _ in found), strict=True):
        assert (one - other).norm() <= tolerance * other.norm()
    if activation == "relu" and dtype is torch.bfloat16:
        tolerance = 0.1  # rounding moves values over the kink
    largest = max(gradient.norm() for gradient in found[1][1])
    for one, other in zip(*(gradients for _, gradients in found), strict=True):
        assert (one - other).norm() <= tolerance * (other.norm() + 0.03 * largest)


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_values_and_gradients_equal_those_of_pytorchs_operators_on_the_same_masks(
    activation, p, pooler
):
    dropouts = {"hidden_dropout_prob": p, "attention_probs_dropout_prob": p}
    model = bert(hidden_act=activation, **dropouts).train()
    assert can_compile(packed_backbone(model).parts, torch.float32)
    (found, found_gradients), (vectors, gradients) = both_ways(model, pooler=pooler)
    torch.testing.assert_close(found, vectors, rtol=1e-5, atol=1e-5)
    assert_close(found_gradients, gradients, 1e-5)


@pytest.mark.parametrize("pooler", POOLERS[:2])
def test_a_single_layer_equals_that_of_pytorchs_operators(pooler):
    model = bert(num_hidden_layers=1).train()
    (found, found_gradients), (vectors, gradients) = both_ways(model, pooler=pooler)
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
def test_bf16_differs_from_pytorchs_operators_by_its_rounding(p, pooler):
    model = bert(hidden_dropout_prob=p, attention_probs_dropout_prob=p).train()
    settings = {"pooler": pooler, "dtype": torch.bfloat16}
    (found, found_gradients), (vectors, gradients) = both_ways(model, **settings)
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
    first = {
        name: gradient.clone() for name, gradient in backward(model, vectors_of(model)).items()
    }
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
def test_what_the_kernels_do_not_compute_is_left_to_pytorch(settings, dtype):
    assert not can_compile(packed_backbone(bert(**settings)).parts, dtype)


@only_where_kernels_pay
@pytest.mark.parametrize(("n_threads", "expected"), [(1, True), (8, True), (9, False)])
def test_many_threads_are_left_to_pytorch(n_threads, expected):
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    found = packed_backbone(bert()).compiles(torch.float32)
    torch.set_num_threads(before)
    assert found is expected


def test_a_pass_gives_back_its_memory(monkeypatch):
    made = []  # the sizes of all buffers that the pool had to allocate
    aligned = buffers._aligned

    def counted(size):
        made.append(size)
        return aligned(size)

    monkeypatch.setattr(buffers, "_aligned", counted)
    model = bert(**NO_DROPOUTS).train()
    for _ in range(4):
        backward(model, vectors_of(model))
        model.zero_grad()
        gc.collect()
        free = [len(buffer) for home in pool_of(model)._free.values() for buffer in home]
        assert sorted(free) == sorted(made) != []


@only_where_kernels_pay
def test_a_note_before_training_tells_of_missing_kernels_and_of_compilation(monkeypatch):
    large, few = len(pack(ROWS).ids), 1000
    monkeypatch.setattr(kernels, "is_compiled", lambda: False)
    assert packed_backbone(bert()).training_note(large) == backbone.KERNELS_COMPILE
    assert packed_backbone(bert()).training_note(few) is None
    assert packed_backbone(bert(num_attention_heads=12)).training_note(large) is None
    with monkeypatch.context() as many_cores:
        many_cores.setattr(torch, "get_num_threads", lambda: 9)
        assert packed_backbone(bert()).training_note(large) is None
    monkeypatch.setattr(kernels, "is_compiled", lambda: True)
    assert packed_backbone(bert()).training_note(large) is None
    monkeypatch.setattr(kernels, "is_installed", lambda: False)
    assert "simcse-cli[cpu-kernels]" in packed_backbone(bert()).training_note(large)


@only_where_kernels_pay
def test_without_a_folder_for_compiled_kernels_pytorch_trains(monkeypatch):
    caching = pytest.importorskip("numba.core.caching")
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    for name in ("compiled", "operators"):
        monkeypatch.delitem(sys.modules, f"simcse_cli.packed.kernels.{name}", raising=False)
        monkeypatch.delattr(kernels, name, raising=False)
    kernels.why_not_loaded.cache_clear()
    try:
        packed = packed_backbone(bert())
        assert kernels.NO_FOLDER in packed.training_note(len(pack(ROWS).ids))
        assert not packed.compiles(torch.float32)
    finally:
        kernels.why_not_loaded.cache_clear()


@only_where_kernels_pay
def test_pytorch_trains_where_numba_cannot_be_imported(monkeypatch):
    def broken():
        raise ImportError("Numba needs NumPy 2.3 or less. Got NumPy 2.5.")

    monkeypatch.setattr(kernels, "load_operators", broken)
    kernels.why_not_loaded.cache_clear()
    try:
        packed = packed_backbone(bert())
        note = packed.training_note(len(pack(ROWS).ids))
        assert note.endswith(
            "numba cannot be imported: Numba needs NumPy 2.3 or less. Got NumPy 2.5."
        )
        assert not packed.compiles(torch.float32)
    finally:
        kernels.why_not_loaded.cache_clear()
