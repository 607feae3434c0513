"""A training pass by halves against the same pass in one piece, in value and gradient."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel, MPNetConfig, MPNetModel

from simcse_cli.choices import Pooler
from simcse_cli.models.packed import layers, pack, packed_backbone, packed_vectors
from simcse_cli.models.packed.architectures import read_parts
from simcse_cli.models.packed.halves import can_halve, run_halves
from simcse_cli.models.packed.layers import LayerRun, run_layers

WIDTH = 16
SIZES = {
    "vocab_size": 50,
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
ROWS = [np.random.default_rng(i).integers(3, 50, 4 + i % 37).tolist() for i in range(80)]


def bert(**settings):
    torch.manual_seed(0)
    return BertModel(BertConfig(**SIZES, **settings), add_pooling_layer=False)


def distilbert():
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "dim": WIDTH, "n_layers": 2, "n_heads": 4, "hidden_dim": 24}
    return DistilBertModel(DistilBertConfig(**sizes, max_position_embeddings=64, initializer_range=0.3))


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_halves_hold_every_sentence_once_and_are_nearly_equal():
    tokens = pack(ROWS, multiple=64)
    first, second = tokens.halves()
    assert first.tokens.order.tolist() + second.tokens.order.tolist() == tokens.order.tolist()
    n_tokens = sum(map(len, ROWS))
    assert (first.token_range.start, first.token_range.stop) == (0, second.token_range.start)
    assert second.token_range.stop == n_tokens
    assert abs(len(first.tokens.ids) - len(second.tokens.ids)) <= max(map(len, ROWS))
    for half in (first, second):
        assert half.tokens.groups[0].start == 0
        assert half.tokens.groups[-1].end == len(half.tokens.ids)
        torch.testing.assert_close(half.tokens.ids, tokens.ids[half.token_range])
        assert half.tokens.order.tolist() == tokens.order[half.row_range].tolist()


def test_a_single_sentence_has_no_halves():
    assert pack([[5] * 30]).halves() is None


def test_two_sentences_are_one_each():
    first, second = pack([[5] * 3, [5] * 30]).halves()
    assert (len(first.tokens.ids), len(second.tokens.ids)) == (30, 3)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("build", [bert, distilbert])
def test_states_and_gradients_equal_those_of_one_pass(build, last_only, n_threads):
    model = build().double().eval()
    parts = read_parts(model)
    tokens = pack(ROWS, multiple=64)
    n_layers = len(parts.layers)
    wanted = (n_layers,) if last_only else (0, 1, n_layers)
    run = LayerRun(parts, torch.float64, wanted)
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(len(tokens.ids), WIDTH, dtype=torch.float64, generator=generator)
    n_tokens = sum(map(len, ROWS))
    weights = torch.randn(n_tokens, WIDTH, dtype=torch.float64, generator=generator)
    found = []
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    for by_halves in (True, False):
        model.zero_grad()
        embedded = start.clone().requires_grad_()
        if by_halves:
            kept = run_halves(run, embedded, tokens, tokens.halves(), [None, None])
        else:
            kept = run.run(embedded, tokens, None)
        states = [kept[number][:n_tokens] for number in wanted]
        sum((s * weights[: len(s)] * (i + 1)).sum() for i, s in enumerate(states)).backward()
        found.append((states, embedded.grad, gradients(model)))
    torch.set_num_threads(before)
    torch.testing.assert_close(*(one[0] for one in found), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-9, atol=1e-11)
    assert found[0][2].keys() == found[1][2].keys()
    torch.testing.assert_close(found[0][2], found[1][2], rtol=1e-9, atol=1e-11)


def test_what_does_not_matter_to_the_loss_and_what_is_frozen_gets_no_gradient():
    model = bert().eval()
    for parameter in model.encoder.layer[1].parameters():
        parameter.requires_grad_(requires_grad=False)
    tokens = pack(ROWS, multiple=64)
    run = LayerRun(read_parts(model), torch.float32, (2, 3))
    start = torch.randn(len(tokens.ids), WIDTH)
    run_halves(run, start, tokens, tokens.halves(), [None, None])[2].square().sum().backward()
    with_gradient = {name.split(".")[2] for name in gradients(model)}
    assert with_gradient == {"0"}  # not 1, which is frozen, nor 2, whose states the loss does not read


def vectors(model, *, pooler=Pooler.CLS_BEFORE_POOLER, grad=True, dtype=None):
    torch.manual_seed(7)
    with torch.set_grad_enabled(grad):
        return packed_vectors(packed_backbone(model), ROWS, pooler, dtype=dtype)


@pytest.mark.parametrize("pooler", [Pooler.CLS_BEFORE_POOLER, Pooler.AVG, Pooler.AVG_FIRST_LAST])
def test_dropout_depends_on_the_seed_alone(pooler):
    model = bert().train()
    assert can_halve(read_parts(model), pack(ROWS))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = vectors(model, pooler=pooler)
    torch.set_num_threads(3)
    torch.testing.assert_close(vectors(model, pooler=pooler), alone, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(vectors(model, pooler=pooler, grad=False), alone, rtol=1e-6, atol=1e-6)
    torch.set_num_threads(before)
    torch.manual_seed(8)
    assert not torch.allclose(packed_vectors(packed_backbone(model), ROWS, pooler), alone)


@pytest.mark.parametrize("grad", [True, False])
def test_a_pass_without_gradient_keeps_no_graph(grad, monkeypatch):
    seen = []

    def recorded(*arguments, **settings):
        seen.append(torch.is_grad_enabled())
        return run_layers(*arguments, **settings)

    monkeypatch.setattr(layers, "run_layers", recorded)
    assert vectors(bert().train(), grad=grad).requires_grad is grad
    assert seen == [grad] * 3  # both halves of the lower layers, and the last layer


def test_the_halves_drop_independently_at_the_same_rate():
    model = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.3).train()
    same = [[7] * 20] * 60
    states = packed_vectors(packed_backbone(model), same, Pooler.CLS_BEFORE_POOLER)
    first, second = states[:30].detach(), states[30:].detach()
    assert not torch.allclose(first, second)
    spread = [half.var(0).mean() for half in (first, second)]
    assert 0.5 < spread[0] / spread[1] < 2


def test_bf16_gradients_stay_close_to_those_in_fp32():
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
        vectors(model, pooler=Pooler.AVG, dtype=dtype).square().sum().backward()
        found.append(gradients(model))
    for name, gradient in found[0].items():
        assert found[1][name].dtype is torch.float32
        if "key.bias" not in name:  # zero but for rounding: the softmax ignores it
            assert (found[1][name] - gradient).norm() < 0.05 * gradient.norm(), name


def test_a_bias_between_positions_keeps_the_pass_in_one_piece():
    torch.manual_seed(0)
    model = MPNetModel(MPNetConfig(**SIZES, pad_token_id=1), add_pooling_layer=False).train()
    assert not can_halve(read_parts(model), pack(ROWS))
    packed_vectors(packed_backbone(model), ROWS, Pooler.AVG).square().sum().backward()
    assert model.encoder.relative_attention_bias.weight.grad.abs().sum() > 0


def test_the_model_keeps_its_own_parameters():
    model = bert().train()
    before = dict(model.named_parameters())
    vectors(model, dtype=torch.bfloat16).sum().backward()
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert {parameter.dtype for parameter in after.values()} == {torch.float32}
    parts = read_parts(model)
    assert replace(parts) == parts
