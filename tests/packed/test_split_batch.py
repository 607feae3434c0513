"""A training pass in two shares of the sentences: against the padded pass, and what it owes its callers."""

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    MPNetConfig,
    MPNetModel,
)

from simcse_cli.machine.buffers import BufferPool
from simcse_cli.models.packed_pooling import packed_vectors
from simcse_cli.packed.backbone import packed_backbone
from simcse_cli.packed.kernels.operators import Linear
from simcse_cli.packed.split_batch import run_shares
from simcse_cli.packed.tokens import pack
from simcse_cli.settings.choices import Pooler

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
    return DistilBertModel(
        DistilBertConfig(**sizes, max_position_embeddings=64, initializer_range=0.3)
    )


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_halves_hold_every_sentence_once_and_are_nearly_equal():
    tokens = pack(ROWS, multiple=64)
    first, second = tokens.halves()
    n_tokens = sum(map(len, ROWS))
    assert torch.equal(torch.cat([first.order, second.order]), tokens.order)
    assert torch.equal(torch.cat([first.ids, second.ids]), tokens.ids[:n_tokens])
    assert torch.equal(torch.cat([first.positions, second.positions]), tokens.positions[:n_tokens])
    assert abs(len(first.ids) - len(second.ids)) <= max(map(len, ROWS))
    for half in (first, second):
        assert half.groups[0].start == 0
        assert half.groups[-1].end == len(half.ids)


def test_a_single_sentence_has_no_halves():
    assert pack([[5] * 30]).halves() is None


def test_two_sentences_are_one_each():
    first, second = pack([[5] * 3, [5] * 30]).halves()
    assert (len(first.ids), len(second.ids)) == (30, 3)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("build", [bert, distilbert])
def test_states_and_gradients_equal_those_of_the_padded_pass(build, first_only, n_threads):
    model = build().double().eval()
    packed = packed_backbone(model)
    tokens = packed.pack(ROWS, multiple=64)
    assert packed.choose_path(tokens, torch.float64).halves is not None
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    layers = (packed.n_layers,) if first_only else (0, 1, packed.n_layers)
    if first_only:
        states = [packed.first_token_states(tokens)]
    else:
        states = [
            state[: sum(map(len, ROWS))] for state in packed.hidden_states(tokens, layers=layers)
        ]
    found = states, gradients_of(model, states)
    torch.set_num_threads(before)

    rows = [ROWS[i] for i in tokens.order]
    mask = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    ids = mask.clone()
    for i, row in enumerate(rows):
        mask[i, : len(row)], ids[i, : len(row)] = 1, torch.tensor(row)
    padded = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    states = [padded[layer][:, 0] if first_only else padded[layer][mask.bool()] for layer in layers]
    torch.testing.assert_close(found, (states, gradients_of(model, states)), rtol=1e-9, atol=1e-11)


def gradients_of(model, states):
    """Return the gradients of a fixed function of the states."""
    model.zero_grad()
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(state.shape, dtype=state.dtype, generator=generator) for state in states]
    sum((state * weight).sum() for state, weight in zip(states, weights, strict=True)).backward()
    return {name: gradient.clone() for name, gradient in gradients(model).items()}


def test_what_does_not_matter_to_the_loss_and_what_is_frozen_gets_no_gradient():
    model = bert().eval()
    for parameter in model.encoder.layer[1].parameters():
        parameter.requires_grad_(requires_grad=False)
    packed = packed_backbone(model)
    states = packed.hidden_states(packed.pack(ROWS, multiple=64), layers=(2, 3))
    states[0].square().sum().backward()
    with_gradient = {name.split(".")[2] for name in gradients(model) if name.startswith("encoder")}
    assert with_gradient == {
        "0"
    }  # not 1, which is frozen, nor 2, whose states the loss does not read


def cubes(share, start, parameters, queue_weight_gradient=None):
    """A pass of two results over a share of the rows; the second parameter is unused."""
    weight, bias = parameters[:2]
    return [(start @ weight) ** 3 + bias, start.sum(1)]


@pytest.mark.parametrize("sizes", [[3, 2], [1, 2, 2]])
def test_results_and_gradients_of_shares_are_those_of_all_rows(sizes):
    torch.manual_seed(0)
    shapes = ((6, 3), (3, 2), (2,), (1,))
    leaves = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    unused = leaves[3]
    found = []
    for outputs in (
        run_shares(cubes, leaves[0], sizes, [*leaves[1:], None], BufferPool()),
        cubes(0, leaves[0][:5], leaves[1:]),
    ):
        d_inputs, *rest = torch.autograd.grad(
            [outputs[0].sin().sum() + outputs[1].square().sum()], leaves, allow_unused=True
        )
        assert rest.pop() is None
        found.append([*outputs, d_inputs, *rest])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
    (_, sums) = run_shares(cubes, leaves[0], sizes, [*leaves[1:], None], BufferPool())
    sums.sum().backward()
    assert leaves[0].grad.tolist() == [[1.0] * 3] * 5 + [[0.0] * 3]
    assert leaves[1].grad is None
    assert unused.grad is None


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("sizes", [[3, 3], [1, 2, 3]])
def test_gradients_of_weights_whose_factors_were_put_are_summed_over_shares(sizes, n_threads):
    torch.manual_seed(0)
    x, weight = torch.randn(6, 4).requires_grad_(), torch.randn(3, 4).requires_grad_()
    pool = BufferPool()

    def run(share, start, parameters, queue_weight_gradient):
        return [Linear.apply(start, parameters[0], pool, queue_weight_gradient)]

    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        (out,) = run_shares(run, x, sizes, [weight], pool)
        found = torch.autograd.grad(out.sin().sum(), (x, weight))
    finally:
        torch.set_num_threads(before)
    expected = torch.autograd.grad((x @ weight.t()).sin().sum(), (x, weight))
    torch.testing.assert_close(found, expected)


def test_a_graph_serves_one_backward_pass():
    inputs = torch.ones(4, 2, requires_grad=True)
    (out,) = run_shares(lambda share, start, *_: [start**3], inputs, [2, 2], [], BufferPool())
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_an_error_in_one_share_ends_the_pass(fails):
    def run(share, start, parameters, queue_weight_gradient):
        if share == 1 and fails == "forward":
            raise MemoryError("no room")
        out = start * 2
        if share == 1:
            out.register_hook(no_room)
        return [out]

    def no_room(gradient):
        raise MemoryError("no room")

    inputs = torch.ones(4, 2, requires_grad=True)
    with pytest.raises(MemoryError, match="no room"):
        run_shares(run, inputs, [2, 2], [], BufferPool())[0].sum().backward()


@pytest.mark.parametrize("grad", [True, False])
def test_a_pass_without_gradient_keeps_no_graph(grad):
    seen = []

    def run(share, start, parameters, queue_weight_gradient):
        seen.append(torch.is_grad_enabled())
        return [start * 2]

    with torch.set_grad_enabled(grad):
        (out,) = run_shares(run, torch.ones(4, 2, requires_grad=True), [2, 2], [], BufferPool())
    assert out.requires_grad is grad
    assert seen == [grad] * 2


def vectors(model, *, pooler=Pooler.CLS_BEFORE_POOLER, grad=True, dtype=None):
    torch.manual_seed(7)
    with torch.set_grad_enabled(grad):
        return packed_vectors(packed_backbone(model), ROWS, pooler, dtype=dtype)


@pytest.mark.parametrize("pooler", [Pooler.CLS_BEFORE_POOLER, Pooler.AVG, Pooler.AVG_FIRST_LAST])
def test_dropout_depends_on_the_seed_alone(pooler):
    model = bert().train()
    assert packed_backbone(model).choose_path(pack(ROWS), torch.float32).halves is not None
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = vectors(model, pooler=pooler)
    torch.set_num_threads(3)
    torch.testing.assert_close(vectors(model, pooler=pooler), alone, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        vectors(model, pooler=pooler, grad=False), alone, rtol=1e-6, atol=1e-6
    )
    torch.set_num_threads(before)
    torch.manual_seed(8)
    assert not torch.allclose(packed_vectors(packed_backbone(model), ROWS, pooler), alone)


def test_vectors_have_a_graph_only_where_gradients_are_on():
    model = bert().train()
    assert [vectors(model, grad=grad).requires_grad for grad in (True, False)] == [True, False]


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
    assert packed_backbone(model).choose_path(pack(ROWS), torch.float32).halves is None
    packed_vectors(packed_backbone(model), ROWS, Pooler.AVG).square().sum().backward()
    assert model.encoder.relative_attention_bias.weight.grad.abs().sum() > 0


def test_the_model_keeps_its_own_parameters():
    model = bert().train()
    before = dict(model.named_parameters())
    vectors(model, dtype=torch.bfloat16).sum().backward()
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert {parameter.dtype for parameter in after.values()} == {torch.float32}
