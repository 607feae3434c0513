"""PromptBERT and SNCSE: templates of the views, the bias of a template, negations."""

import pytest
import torch

from helpers import build_tiny_model
from objectives.cases import PAIRS, SINGLES, TEMPLATES, TRIPLETS, batch_of, build
from simcse_cli.data.training_file import TrainingRows
from simcse_cli.errors import ConfigError
from simcse_cli.losses.info_nce import info_nce
from simcse_cli.losses.sncse import soft_negative_margin
from simcse_cli.training.setup import build_augment

SIZE = 8
PLAIN = {"pooler": "cls", "template": ("{}",)}
REPEATED = TrainingRows(
    "negated",
    TRIPLETS.columns,
    [(text, text, f"Not {text}") for (text,) in SINGLES.rows],
    0,
    "",
)


def outcome(objective, batch):
    torch.manual_seed(3)
    terms, _ = objective(batch)
    total = torch.stack(list(terms.values())).sum()
    total.backward()
    return total, [p.grad for p in objective.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("variant", "options", "data"),
    [
        ("promptbert", {"template_bias": "off"}, SINGLES),
        ("sncse", {"soft_weight": 0.0}, REPEATED),
    ],
)
def test_without_template_it_is_simcse_bit_for_bit(variant, options, data, tiny_model_dir):
    plain, _ = build("simcse-unsup", tiny_model_dir, dropout=0.2)
    own, _ = build(variant, tiny_model_dir, dropout=0.2, **PLAIN, **options)
    expected, gradients = outcome(plain, batch_of(plain, SINGLES))
    found, own_gradients = outcome(own, batch_of(own, data))
    assert torch.equal(found, expected)
    assert all(map(torch.equal, own_gradients, gradients))


def test_views_have_their_templates(tiny_model_dir):
    objective, _ = build("promptbert", tiny_model_dir)
    tokens = objective.encoder.tokenizer
    batch = batch_of(objective, SINGLES)
    starts = [tokens.decode(row).split()[1] for row in batch.rows]
    assert starts == ["a"] * SIZE + ["the"] * SIZE
    batch = batch_of(objective, TRIPLETS)
    starts = [tokens.decode(row).split()[1] for row in batch.rows]
    assert starts == ["a"] * 3 * SIZE
    objective, _ = build("sncse", tiny_model_dir)
    batch = batch_of(objective, TRIPLETS)
    starts = [tokens.decode(row).split()[1] for row in batch.rows]
    assert starts == ["a"] * SIZE + ["the"] * 2 * SIZE
    assert objective.encoder.record.template == TEMPLATES[0]


def test_the_vector_is_the_head_of_the_state_less_the_templates(tiny_model_dir):
    objective, _ = build("promptbert", tiny_model_dir, dropout=0.0)
    batch = batch_of(objective, SINGLES)
    encoder = objective.encoder
    (found,) = objective.encode(batch)
    for i, row in enumerate(batch.rows):
        template = objective.first_template if i < SIZE else objective.other_template
        bias = encoder.around_nothing(template, [row])
        expected = encoder.head(encoder.pooled_rows([row]) - bias)
        torch.testing.assert_close(found[[i]], expected, rtol=1e-4, atol=1e-5)


def test_a_constant_in_all_states_of_the_mask_cancels(tiny_model_dir, monkeypatch):
    objective, _ = build("promptbert", tiny_model_dir, dropout=0.0)
    batch = batch_of(objective, SINGLES)
    (before,) = objective.encode(batch)
    plain = objective.encoder.pooled_rows
    monkeypatch.setattr(objective.encoder, "pooled_rows", lambda rows: plain(rows) + 5.0)
    (after,) = objective.encode(batch)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", ["train", "test", "both", "off"])
def test_the_bias_is_subtracted_when_asked(bias, tiny_model_dir):
    objective, _ = build("promptbert", tiny_model_dir, dropout=0.0, template_bias=bias)
    encoder = objective.encoder
    rows = encoder.tokenize(["", "The cat sleeps."])
    encoder.eval()
    assert bool(encoder.embed_rows(rows[:1]).any()) == (bias in ("train", "off"))
    encoder.train()
    batch = batch_of(objective, SINGLES)
    is_plain = torch.allclose(objective.encode(batch)[0], encoder.embed_rows(batch.rows))
    assert is_plain == (bias in ("test", "off"))


def test_rows_that_share_a_length_share_the_dropout_mask_of_the_bias(tiny_model_dir):
    objective, _ = build("promptbert", tiny_model_dir, dropout=0.3)
    rows = objective.encoder.tokenize(["one", "two", "one two"])
    lengths = [objective.first_template.n_of_sentence(row) for row in rows]
    found = objective.encoder.around_nothing(objective.first_template, rows)
    assert torch.equal(found[0], found[1]) == (lengths[0] == lengths[1])
    assert not torch.equal(found[0], found[2])


def test_terms_of_sncse_are_those_of_the_losses(tiny_model_dir):
    objective, data = build("sncse", tiny_model_dir)
    vectors = torch.randn(3 * SIZE, 32, generator=torch.Generator().manual_seed(0))
    anchors, positives, negations = vectors.chunk(3)
    batch = batch_of(objective, data)
    terms, _ = objective.losses((vectors,), batch)
    assert torch.equal(terms["contrastive"], info_nce(anchors, positives, temperature=0.05))
    margin = soft_negative_margin(anchors, positives, negations, low=0.1, high=0.3)
    assert torch.equal(terms["margin"], 0.5 * margin)
    batch.extra["texts"] = torch.tensor([[i, i, i % 2 + 100] for i in range(SIZE)])
    masked, _ = objective.losses((vectors,), batch)  # negations that are equal are no matter
    assert torch.equal(masked["contrastive"], terms["contrastive"])


@pytest.mark.parametrize(
    ("variant", "options", "message"),
    [
        ("promptbert", {"pooler": "cls"}, "templates want --pooler mask"),
        ("promptbert", PLAIN, "there is no template"),
        ("promptbert", {"template": ("{}",)}, "--pooler mask with --template"),
        ("promptbert", {"template": TEMPLATES * 2}, "need one or two"),
        ("promptbert", {"dual_encoder": True}, "knows one encoder"),
        ("promptbert", {"template": ("{.} {mask}", "a b c d e {.} {mask}")}, "has room"),
        ("sncse", {"margin_low": 0.4}, "need at most margin_high, 0.3"),
    ],
)
def test_what_does_not_fit_is_refused(variant, options, message, tiny_model_dir):
    if message == "has room":
        options = options | {"max_length": 62}
    with pytest.raises(ConfigError) as caught:
        build(variant, tiny_model_dir, **options)
    assert message in f"{caught.value.message} {caught.value.hint}"


def test_an_architecture_without_movable_positions_is_refused_at_once(tmp_path):
    folder = build_tiny_model(tmp_path / "deberta", model_type="deberta-v2")
    with pytest.raises(ConfigError, match="positions of its architecture cannot be moved"):
        build("promptbert", folder)
    build("promptbert", folder, template_bias="off")


def test_sncse_needs_negations_and_training_makes_none(tiny_model_dir):
    objective, _ = build("sncse", tiny_model_dir)
    with pytest.raises(Exception, match="needs anchor, positive and hard_negative"):
        batch_of(objective, PAIRS)
    with pytest.raises(ConfigError, match="negate makes negatives"):
        build_augment("negate")
