"""The packed transformer against the model's own padded forward pass, in value and gradient."""

import copy
import math

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
)

from simcse_cli.models.packed_pooling import packed_vectors
from simcse_cli.models.padding import pad
from simcse_cli.models.poolers import pool
from simcse_cli.packed.architectures import read_parts
from simcse_cli.packed.attention import _parts_with_dtype, attend
from simcse_cli.packed.backbone import packed_backbone
from simcse_cli.packed.dropout import DeviceMasks, DropoutMasks, add_dropped
from simcse_cli.packed.layers import (
    Layer,
    LinearWeights,
    NormWeights,
    Residual,
    query_key_value,
    read_layers,
)
from simcse_cli.packed.operators import NestedOperators, Operators
from simcse_cli.packed.tokens import pack
from simcse_cli.settings.choices import Pooler

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
DISTIL_SIZES = {
    "vocab_size": 60,
    "dim": 32,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ARCHITECTURES = {
    "bert": lambda **s: BertModel(BertConfig(**SIZES, **s), add_pooling_layer=False),
    "bert-tanh-gelu": lambda **s: BertModel(
        BertConfig(**SIZES, hidden_act="gelu_new", **s), add_pooling_layer=False
    ),
    "bert-relu": lambda **s: BertModel(
        BertConfig(**SIZES, hidden_act="relu", **s), add_pooling_layer=False
    ),
    "roberta": lambda **s: RobertaModel(
        RobertaConfig(**SIZES, type_vocab_size=1, pad_token_id=1, **s), add_pooling_layer=False
    ),
    "electra": lambda **s: ElectraModel(ElectraConfig(**SIZES, embedding_size=16, **s)),
    "mpnet": lambda **s: MPNetModel(
        MPNetConfig(**SIZES, pad_token_id=1, **s), add_pooling_layer=False
    ),
    "distilbert": lambda **s: DistilBertModel(
        DistilBertConfig(**DISTIL_SIZES, dropout=0.0, attention_dropout=0.0)
        if s
        else DistilBertConfig(**DISTIL_SIZES)
    ),
}
# Lengths on both sides of 16, where the softmax changes; two rows share one.
ROWS = [[2, 7, 9, 3], [5] * 20, [2, 3], [8, 9, 10, 11], [40], list(range(10, 40))]

# Nested tensors multiply by an older kind of themselves on a CPU, which warns; on a GPU by flash
# attention.
NESTED_ON_CPU = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
BOTH_ATTENTIONS = pytest.mark.parametrize(
    "nested", [False, pytest.param(True, marks=NESTED_ON_CPU)]
)
BOTH_MASKS = pytest.mark.parametrize("make_masks", [DropoutMasks, DeviceMasks])


def build(name: str, **settings: float) -> nn.Module:
    torch.manual_seed(0)
    return ARCHITECTURES[name](**settings)


def padded(
    model: nn.Module, rows: list[list[int]]
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Return all hidden states of the model's own forward pass, and the mask."""
    length = max(map(len, rows))
    pad_id = model.config.pad_token_id or 0
    ids = torch.tensor([row + [pad_id] * (length - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    return model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states, mask


def relative_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp_min(1e-12))


def test_pack_sorts_by_length_and_groups_equal_lengths() -> None:
    tokens = pack([[1], [2, 3], [4], [5, 6, 7]], multiple=8)
    assert tokens.ids.tolist() == [5, 6, 7, 2, 3, 1, 4, 0]
    assert tokens.positions.tolist() == [0, 1, 2, 0, 1, 0, 0, 0]
    assert [tuple(group) for group in tokens.groups] == [(0, 1, 3), (3, 1, 2), (5, 2, 1)]
    assert tokens.order.tolist() == [3, 1, 0, 2]


def test_pack_counts_positions_of_real_tokens_only_where_the_architecture_does() -> None:
    tokens = pack([[7, 1, 8]], pad_id=1)
    assert tokens.positions.tolist() == [2, 1, 3]


def test_pack_refuses_an_empty_row() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        pack([[1], []])


@BOTH_ATTENTIONS
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_hidden_states_equal_the_padded_forward_pass(name: str, nested: bool) -> None:
    model = build(name).eval()
    packed = packed_backbone(model, nested=nested)
    assert packed is not None
    tokens = packed.pack(ROWS, multiple=16)
    with torch.no_grad():
        expected, _ = padded(model, ROWS)
        found = packed.hidden_states(tokens, layers=range(4))
    for layer, states in enumerate(found):
        rows = torch.cat([block.reshape(-1, 32) for block in tokens.rows(states)])
        wanted = torch.cat([expected[layer][i, : len(ROWS[i])] for i in tokens.order])
        torch.testing.assert_close(rows, wanted, rtol=1e-5, atol=2e-5)


@BOTH_ATTENTIONS
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gradients_equal_those_of_the_padded_forward_pass(name: str, nested: bool) -> None:
    model = build(name, **NO_DROPOUT).train()
    reference = copy.deepcopy(model)
    weights = torch.linspace(-1, 1, len(ROWS) * 32).view(len(ROWS), 32)
    packed = packed_backbone(model, nested=nested)
    assert packed is not None
    (packed_vectors(packed, ROWS, Pooler.AVG_FIRST_LAST) * weights).sum().backward()
    states, mask = padded(reference, ROWS)
    (pool(Pooler.AVG_FIRST_LAST, states, mask) * weights).sum().backward()
    for (parameter_name, found), expected in zip(
        model.named_parameters(), reference.parameters(), strict=True
    ):
        assert (found.grad is None) == (expected.grad is None), parameter_name
        if (
            expected.grad is not None and expected.grad.norm() > 1e-4
        ):  # the key bias has gradient 0 in theory
            assert relative_difference(found.grad, expected.grad) < 1e-5, parameter_name


@BOTH_ATTENTIONS
@pytest.mark.parametrize("pooler", Pooler)
def test_packed_vectors_equal_the_pooled_padded_states(pooler: Pooler, nested: bool) -> None:
    model = build("bert").eval()
    packed = packed_backbone(model, nested=nested)
    assert packed is not None
    with torch.no_grad():
        torch.testing.assert_close(
            packed_vectors(packed, ROWS, pooler, mask_id=ROWS[0][-1]),
            pool(pooler, *padded(model, ROWS), is_mask=pad(ROWS, 0)[0] == ROWS[0][-1]),
            rtol=1e-5,
            atol=2e-5,
        )


def test_packed_vectors_do_not_depend_on_the_order_or_company_of_the_rows() -> None:
    packed = packed_backbone(build("bert").eval())
    assert packed is not None
    with torch.no_grad():
        together = packed_vectors(packed, ROWS, Pooler.AVG)
        reversed_ = packed_vectors(packed, ROWS[::-1], Pooler.AVG).flip(0)
        alone = torch.cat([packed_vectors(packed, [row], Pooler.AVG) for row in ROWS])
    torch.testing.assert_close(reversed_, together, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-5)


def test_embeddings_with_a_table_that_packing_does_not_read_are_padded() -> None:
    model = build("bert")
    assert read_parts(model) is not None
    model.embeddings.task_type_embeddings = torch.nn.Embedding(3, 32)  # as in ERNIE
    assert read_parts(model) is None


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("architecture", ["bert", "mpnet"])
def test_attention_from_first_tokens_equals_attention_of_all_tokens(
    architecture: str, dropout: float
) -> None:
    model = build(architecture).double()
    parts = read_parts(model)
    assert parts is not None
    layer, tokens = parts.layers[-1], pack([[5] * length for length in (7, 7, 3, 18)])
    torch.manual_seed(0)
    start = torch.randn(len(tokens.ids), 32, dtype=torch.float64)
    weights = torch.randn(4, 32, dtype=torch.float64)
    found = []
    for from_first in (True, False):
        model.zero_grad()
        torch.manual_seed(1)
        masks = _MaskOfFirst(n_heads=4, only=from_first)
        last = read_layers(parts, torch.float64)[-1]._replace(dropout=dropout)
        states = start.clone().requires_grad_()
        if from_first:
            own = Operators(torch.float64, "gelu", masks)
            linears = query_key_value(parts)
            first, context = own.attend_from_first(states, tokens, linears, last)
        else:
            qkv = torch.cat(
                [linear(states) for linear in (layer.query, layer.key, layer.value)], dim=1
            )
            first, context = (
                x[[0, 18, 25, 32]] for x in (states, attend(qkv, tokens, last, masks))
            )
        (context * weights).sum().backward()
        gradients = [
            states.grad,
            layer.query.weight.grad,
            layer.key.weight.grad,
            layer.value.weight.grad,
        ]
        found.append([first, context, layer.key.bias.grad, layer.value.bias.grad, *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def plain_layer(n_heads: int) -> Layer:
    """Return a layer without dropout and relative bias, of which only attention is computed."""
    linear = LinearWeights(torch.empty(0), None)
    end = Residual(linear, NormWeights(torch.empty(0), None), 1e-6, 0.0)
    return Layer(linear, end, linear, end, n_heads=n_heads, dropout=0.0)


class _MaskOfFirst:
    """Masks that are equal for the weights of first tokens, whether or not those of others are asked for."""

    def __init__(self, n_heads: int, *, only: bool) -> None:
        self._draws = torch.Generator().manual_seed(3)
        self._n_heads, self._only = n_heads, only

    def keep(self, like: torch.Tensor, p: float) -> tuple[torch.Tensor, float]:
        length = like.shape[-1]
        of_first = torch.rand(
            like.numel() // length if self._only else len(like), length, generator=self._draws
        )
        mask = (of_first >= p).to(like.dtype)
        if self._only:
            return mask.view(like.shape), 1 / (1 - p)
        return mask.unsqueeze(1).expand(-1, length, -1), 1 / (1 - p)


@pytest.mark.parametrize(("n_rows", "length"), [(90, 14), (41, 25), (11, 60), (3, 190), (1, 1)])
def test_bf16_attention_agrees_with_fp32_and_uses_few_shapes(n_rows: int, length: int) -> None:
    tokens = pack([[5] * length] * n_rows)
    qkv = torch.randn(n_rows * length, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    parts = list(_parts_with_dtype(qkv.view(n_rows, length, 96)))
    assert torch.equal(torch.cat([part for part, _ in parts]), qkv.view(n_rows, length, 96))
    assert len({len(part) for part, dtype in parts if dtype is torch.bfloat16}) <= 2
    assert all(
        1024 // (2 * length) < 4 * len(part) for part, dtype in parts if dtype is torch.bfloat16
    )
    layer = plain_layer(n_heads=4)
    expected = attend(qkv.float(), tokens, layer)
    error = (attend(qkv, tokens, layer).float() - expected).norm() / expected.norm()
    assert error < 0.01  # a bfloat16 keeps 8 bits
    (with_gradient,) = _parts_with_dtype(qkv.view(n_rows, length, 96).requires_grad_())
    assert with_gradient[1] is torch.float32


def test_bf16_vectors_stay_close_to_fp32() -> None:
    packed = packed_backbone(build("bert").eval())
    assert packed is not None
    with torch.no_grad():
        wide = packed_vectors(packed, ROWS, Pooler.AVG)
        narrow = packed_vectors(packed, ROWS, Pooler.AVG, dtype=torch.bfloat16)
    assert narrow.dtype is torch.float32
    assert torch.cosine_similarity(wide, narrow).min() > 0.999


def test_bf16_gradients_stay_close_to_fp32() -> None:
    wide = build("bert", **NO_DROPOUT).train()
    narrow = copy.deepcopy(wide)
    weights = torch.linspace(-1, 1, len(ROWS) * 32).view(len(ROWS), 32)
    for model, dtype in ((wide, torch.float32), (narrow, torch.bfloat16)):
        packed = packed_backbone(model)
        assert packed is not None
        (packed_vectors(packed, ROWS, Pooler.AVG, dtype=dtype) * weights).sum().backward()
    for name in (
        "embeddings.word_embeddings.weight",
        "encoder.layer.0.attention.self.value.weight",
    ):
        assert (
            relative_difference(narrow.get_parameter(name).grad, wide.get_parameter(name).grad)
            < 0.05
        )


def test_autocast_selects_the_arithmetic_and_gradients_stay_fp32() -> None:
    model = build("bert", **NO_DROPOUT).train()
    packed = packed_backbone(model)
    assert packed is not None
    tokens = packed.pack(ROWS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = packed.hidden_states(tokens)[0]
    assert torch.equal(states, packed.hidden_states(tokens, dtype=torch.bfloat16)[0])
    assert not torch.equal(states, packed.hidden_states(tokens)[0])
    states.square().sum().backward()
    assert model.encoder.layer[0].intermediate.dense.weight.grad.dtype is torch.float32


@pytest.mark.parametrize("fused", [True, False])
def test_prepared_weights_follow_an_optimizer_step(fused: bool) -> None:
    model = build("bert").eval()
    packed = packed_backbone(model)
    assert packed is not None
    with torch.no_grad():
        before = packed_vectors(packed, ROWS, Pooler.AVG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=fused)
    packed_vectors(packed, ROWS, Pooler.AVG).square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        after = packed_vectors(packed, ROWS, Pooler.AVG)
        assert not torch.allclose(before, after)
        torch.testing.assert_close(
            after, pool(Pooler.AVG, *padded(model, ROWS)), rtol=1e-5, atol=2e-5
        )


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: nn.Linear(2, 2), id="no transformer"),
        pytest.param(lambda: BertModel(BertConfig(**SIZES, is_decoder=True)), id="decoder"),
        pytest.param(
            lambda: BertModel(BertConfig(**SIZES, hidden_act="silu")), id="other activation"
        ),
        pytest.param(
            lambda: ModernBertModel(ModernBertConfig(**SIZES, pad_token_id=0)),
            id="other architecture",
        ),
    ],
)
def test_packed_backbone_is_none_for_what_it_does_not_compute(model: object) -> None:
    assert packed_backbone(model()) is None


def test_packed_backbone_is_none_with_an_adapter_in_a_layer() -> None:
    class Adapter(nn.Linear):
        pass

    model = build("bert")
    model.encoder.layer[1].attention.self.query = Adapter(32, 32)
    assert packed_backbone(model) is None


def test_attend_gives_the_mean_value_for_equal_scores() -> None:
    tokens = pack([[1, 1, 1], [1]], multiple=8)
    qkv = torch.zeros(8, 6)
    qkv[:, 4:] = torch.arange(16.0).view(8, 2)
    context = attend(qkv, tokens, plain_layer(n_heads=1))
    assert context.tolist() == [[2, 3]] * 3 + [[6, 7]] + [[0, 0]] * 4


@NESTED_ON_CPU
def test_nested_attention_drops_weights_and_keeps_their_expectation() -> None:
    """With equal scores and values of 1, the context is the number of kept weights over L (1 - p)."""
    tokens = pack([[5] * 10] * 40 + [[5] * 4], multiple=64)
    width, p = 32, 0.5
    torch.manual_seed(0)
    weight = torch.cat([torch.zeros(2 * width, width), torch.eye(width)])
    end = Residual(LinearWeights(weight, None), NormWeights(weight[0], None), 1e-6, 0.0)
    layer = Layer(LinearWeights(weight, None), end, end.linear, end, n_heads=8, dropout=p)
    operators = NestedOperators(torch.float32, "gelu", DeviceMasks())
    context = operators.attend(torch.ones(len(tokens.ids), width), tokens, layer)
    assert not context[tokens.groups[-1].end :].any()
    kept = context[:400] * 10 * (1 - p)
    torch.testing.assert_close(kept, kept.round())
    by_head = context[:400].view(-1, 4)[:, 0]  # the values of a head share their weights
    assert abs(float(by_head.mean()) - 1) < 4 * math.sqrt(p / (1 - p) / 10 / len(by_head))


@BOTH_MASKS
def test_dropout_masks_repeat_from_the_state_of_the_generator(make_masks) -> None:
    states = torch.ones(1000)
    torch.manual_seed(3)
    saved = torch.get_rng_state()
    first = [make_masks().keep(states, 0.1)[0] for _ in range(2)]
    torch.set_rng_state(saved)
    again = [make_masks().keep(states, 0.1)[0] for _ in range(2)]
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])


@BOTH_MASKS
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_masks_keep_the_right_share_and_expectation(p: float, make_masks) -> None:
    torch.manual_seed(0)
    n = 400_000
    mask, scale = make_masks().keep(torch.ones(n), p)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    standard_error = math.sqrt(p * (1 - p) / n)
    assert abs(float(mask.mean()) - (1 - p)) < 4 * standard_error
    assert scale == pytest.approx(1 / (1 - p), rel=1e-4)
    neighbours = float((mask[1:] * mask[:-1]).mean())
    assert abs(neighbours - (1 - p) ** 2) < 6 * standard_error


def test_add_dropped_scales_what_it_keeps_and_stops_the_rest() -> None:
    torch.manual_seed(0)
    update = torch.full((1000,), 0.9, requires_grad=True)
    total = add_dropped(torch.ones(1000), update, 0.1, DropoutMasks())
    kept = total != 1
    torch.testing.assert_close(total[kept], torch.full_like(total[kept], 2.0), rtol=1e-4, atol=0)
    total.sum().backward()
    assert update.grad is not None
    assert torch.equal(update.grad != 0, kept)


def test_training_dropout_is_seeded_by_torch_and_off_in_evaluation() -> None:
    model = build("bert")
    packed = packed_backbone(model)
    assert packed is not None

    def vectors() -> torch.Tensor:
        with torch.no_grad():
            return packed_vectors(packed, ROWS, Pooler.AVG)

    model.train()
    torch.manual_seed(1)
    first, second = vectors(), vectors()
    torch.manual_seed(1)
    assert torch.equal(vectors(), first)
    assert not torch.equal(second, first)
    model.eval()
    assert torch.equal(vectors(), vectors())


@pytest.mark.parametrize("name", ["bert", "distilbert", "mpnet"])
def test_training_dropout_has_the_distribution_of_the_padded_forward_pass(name: str) -> None:
    model = build(name).train()
    packed = packed_backbone(model)
    assert packed is not None
    rows = [[2, 7, 9, 3, 11, 12, 13, 14]] * 4000
    with torch.no_grad():
        found = packed_vectors(packed, rows, Pooler.AVG)
        expected = pool(Pooler.AVG, *padded(model, rows))
    standard_error = ((found.var(0) + expected.var(0)) / len(rows)).sqrt()
    assert ((found.mean(0) - expected.mean(0)).abs() < 4.5 * standard_error).all()
    torch.testing.assert_close(found.std(0), expected.std(0), rtol=0.1, atol=0)
