"""DiffCSE: which tokens count as replaced, what the detector sees, and where its gradient goes."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import chisquare
from torch import nn
from torch.nn import functional

from helpers import SENTENCES, build_tiny_model, generator_beside
from objectives.cases import batch_of, build
from simcse_cli.errors import CheckpointError, ConfigError, UsageError
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.heads import MlpHead
from simcse_cli.models.padding import CPU, pad
from simcse_cli.objectives.diffcse import Diffcse
from simcse_cli.objectives.registry import build_objective
from simcse_cli.settings.choices import HeadUse, Pooler
from simcse_cli.settings.choices import ObjectiveName as Name

ALMOST_NEVER = 1e-4


class Generator(nn.Module):
    """Scores tokens as a function of the masked ones says, ``(R, L)`` to ``(R, L, V)``."""

    def __init__(self, scores):
        super().__init__()
        self.base_model, self.scores = None, scores

    def get_output_embeddings(self):
        return nn.Identity()

    def forward(self, input_ids, attention_mask):
        return SimpleNamespace(logits=self.scores(input_ids))


def certain_of(objective, change):
    """Return a generator whose likeliest tokens are those of ``change``."""
    n_tokens = len(objective.encoder.tokenizer)
    return Generator(lambda ids: functional.one_hot(change(ids), n_tokens).float())


def gradients(objective):
    parameters = objective.encoder.named_parameters()
    return {name: p.grad.clone() for name, p in parameters if p.grad is not None}


def step(objective, data, batch=None):
    torch.manual_seed(5)
    terms, metrics = objective(batch_of(objective, data) if batch is None else batch)
    torch.stack(list(terms.values())).sum().backward()
    return terms, metrics, gradients(objective)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_with_the_head_of_simcse_the_contrast_is_simcse_bit_for_bit(weight, tiny_model_dir):
    simcse, data = build("simcse-unsup", tiny_model_dir, dropout=0.2)
    expected, _, simcse_gradients = step(simcse, data)
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu", dropout=0.2)
    torch.manual_seed(0)
    encoder.change(head=MlpHead(32), head_use=HeadUse.TRAIN_ONLY, pooler=Pooler.CLS)
    options = {"rtd_weight": weight}
    if weight:
        options["generator"] = str(generator_beside(tiny_model_dir))
    objective = build_objective(Name.DIFFCSE, encoder, {}, options).train()
    assert objective.head is None
    terms, _, found = step(objective, data)
    assert torch.equal(terms["contrastive"], expected["contrastive"])
    if not weight:
        assert terms.keys() == expected.keys()
        assert found.keys() == simcse_gradients.keys()
        assert all(torch.equal(found[name], simcse_gradients[name]) for name in found)


def test_scaling_the_first_layer_of_the_batchnorm_head_changes_nothing(tiny_model_dir):
    objective, data = build("diffcse", tiny_model_dir, rtd_weight=0.0)
    batch = batch_of(objective, data)
    vectors = 10 * torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    before = objective.losses((vectors,), batch)[0]["contrastive"].item()
    objective.head[0].weight.data.mul_(3.0)
    after = objective.losses((vectors,), batch)[0]["contrastive"].item()
    assert after == pytest.approx(before, rel=1e-5)
    assert before > 1


@pytest.mark.parametrize("as_released", [False, True])
def test_equal_logits_lose_ln_2(as_released, tiny_model_dir):
    objective, data = build("diffcse", tiny_model_dir, rtd_weight=0.5, as_released=as_released)
    objective.detector.linear.weight.data.zero_()
    objective.detector.linear.bias.data.zero_()
    terms, _ = objective(batch_of(objective, data))
    assert terms["rtd"].item() == pytest.approx(0.5 * math.log(2), rel=1e-6)


def test_nothing_is_masked_and_a_generator_that_copies_replaces_nothing(tiny_model_dir):
    objective, data = build("diffcse", tiny_model_dir, mask_rate=0.0)
    batch = batch_of(objective, data)
    assert batch.extra["masked"] == batch.rows
    objective.generator = certain_of(objective, lambda ids: ids)
    assert objective(batch)[1]["replaced"] == 0


def test_three_of_ten_tokens_are_masked_and_no_special_one(tiny_model_dir):
    objective, data = build("diffcse", tiny_model_dir)
    batches = [batch_of(objective, data, rows) for rows in (slice(0, 12), slice(12, 24))]
    pairs = [
        (token, masked)
        for batch in batches
        for row, other in zip(batch.rows, batch.extra["masked"], strict=True)
        for token, masked in zip(row, other, strict=True)
    ]
    special = set(objective.encoder.tokenizer.all_special_ids)
    assert all(token == masked for token, masked in pairs if token in special)
    plain = [(token, masked) for token, masked in pairs if token not in special]
    share = sum(token != masked for token, masked in plain) / len(plain)
    assert share == pytest.approx(0.27, abs=0.07)  # a tenth of the chosen stays as it is


@pytest.mark.parametrize("as_released", [False, True])
def test_the_loss_is_that_of_single_rows_by_hand(as_released, tiny_model_dir):
    """Every word becomes the next one of the vocabulary, but for those with an even number."""
    objective, data = build("diffcse", tiny_model_dir, dropout=0.0, as_released=as_released)
    objective.double()
    batch = batch_of(objective, data)
    batch.extra["masked"] = batch.rows
    objective.generator = certain_of(objective, lambda ids: ids + ids % 2)
    vectors = torch.randn(16, 32, generator=torch.Generator().manual_seed(0)).double()
    found, share = objective.detection(vectors, batch)

    ids, mask = pad(batch.rows, 0)
    backbone, total, n_replaced = objective.detector.encoder.backbone, 0.0, 0
    for row, vector in enumerate(vectors):
        tokens = ids[row].tolist()
        edited, labels = tokens[:1], [0]
        for token in tokens[1:]:
            is_real = len(edited) < len(batch.rows[row])
            edited.append(token + token % 2 if is_real else token)
            labels.append(int(edited[-1] != token))
        embedded = backbone.embeddings(torch.tensor([edited]))
        embedded[0, 0] = vector
        seen = torch.zeros(1, 1, 1, len(tokens)).masked_fill(mask[row] == 0, -1e9).double()
        states = backbone.encoder(embedded, attention_mask=seen).last_hidden_state[0]
        log_probabilities = objective.detector.linear(states).log_softmax(dim=1)
        n_read = len(tokens) if as_released else len(batch.rows[row])
        for place in range(n_read):
            total -= log_probabilities[place, labels[place]].item()
        n_replaced += sum(labels)
    n_tokens = sum(map(len, batch.rows))
    assert 0 < n_replaced < n_tokens < ids.numel()
    n_counted = ids.numel() if as_released else n_tokens
    assert found.item() == pytest.approx(total / n_counted, rel=1e-6)
    assert share.item() == pytest.approx(n_replaced / n_tokens, rel=1e-12)


def test_the_first_token_and_padding_are_never_replaced_and_the_separator_may_be(tiny_model_dir):
    objective, data = build("diffcse", tiny_model_dir)
    rows = batch_of(objective, data).rows
    objective.generator = certain_of(objective, lambda ids: ids + 1)
    edited = objective.edited(rows, rows, CPU)
    for row, own in zip(rows, edited.tolist(), strict=True):
        wanted = [row[0], *(token + 1 for token in row[1:])]
        assert own == wanted + [0] * (len(own) - len(row))


def test_without_the_vector_the_gradient_is_that_of_the_contrast_alone(tiny_model_dir):
    contrast, data = build("diffcse", tiny_model_dir, dropout=0.2, rtd_weight=0.0)
    _, _, expected = step(contrast, data)
    detached, _ = build("diffcse", tiny_model_dir, dropout=0.2)
    detection = detached.detection
    detached.detection = lambda vectors, batch: detection(vectors.detach(), batch)
    _, _, found = step(detached, data)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    objective, _ = build("diffcse", tiny_model_dir, dropout=0.2)
    terms, _, whole = step(objective, data)
    assert terms["rtd"] > 0
    name = "backbone.embeddings.word_embeddings.weight"
    assert not torch.equal(whole[name], expected[name])


def test_the_detector_starts_as_the_encoder_with_weights_of_its_own(tiny_model_dir):
    objective, _ = build("diffcse", tiny_model_dir)
    own = dict(objective.detector.encoder.named_parameters())
    for name, parameter in objective.encoder.named_parameters():
        assert torch.equal(own[name], parameter)
        assert own[name] is not parameter
    assert not any(parameter.requires_grad for parameter in objective.generator.parameters())


def test_sampled_tokens_follow_the_softmax(tiny_model_dir):
    objective, _ = build("diffcse", tiny_model_dir, fill="sample")
    scores = torch.full((len(objective.encoder.tokenizer),), -torch.inf)
    scores[10:14] = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    objective.generator = Generator(lambda ids: scores.expand(*ids.shape, -1))
    rows = [[5] * 51] * 100
    torch.manual_seed(0)
    drawn = objective.edited(rows, rows, CPU)[:, 1:]
    counts = torch.bincount(drawn.flatten(), minlength=14)[10:]
    assert counts.sum() == 5000
    assert chisquare(counts, [500, 1000, 1500, 2000]).pvalue > ALMOST_NEVER


def test_the_generator_has_dropout_only_as_released(tiny_model_dir):
    for as_released in (False, True):
        objective, data = build("diffcse", tiny_model_dir, as_released=as_released)
        rows = batch_of(objective, data).rows
        first, second = (objective.edited(rows, rows, CPU) for _ in range(2))
        assert torch.equal(first, second) is not as_released


@pytest.mark.parametrize("texts", [["", ""], ["A man is playing a guitar."]])
def test_empty_texts_and_a_batch_of_one_give_finite_losses(texts, tiny_model_dir):
    objective, _ = build("diffcse", tiny_model_dir)
    batch = objective.collate([(text,) for text in texts], np.random.default_rng(0))
    batch.counts = [len(texts)]
    _, _, found = step(objective, None, batch)
    assert all(gradient.isfinite().all() for gradient in found.values())


def test_two_rows_through_the_batchnorm_head_are_opposite_signs(tiny_model_dir):
    objective, _ = build("diffcse", tiny_model_dir)
    objective.head[3].weight.data.mul_(1e4)  # far above BatchNorm's epsilon
    rows = 1e4 * torch.randn(2, 32, generator=torch.Generator().manual_seed(1))
    out = objective.double().head(rows.double())
    torch.testing.assert_close(out[0], -out[1])
    torch.testing.assert_close(out[0].abs(), torch.ones_like(out[0]), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_a_generator_is_refused_by_name(tiny_model_dir, tmp_path):
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    with pytest.raises(ConfigError, match="masked language model, and none is named"):
        Diffcse(encoder)
    with pytest.raises(CheckpointError, match="has no masked-LM head"):
        build("diffcse", tiny_model_dir, generator=str(tiny_model_dir))
    other = build_tiny_model(tmp_path / "other")
    words = (other / "tokenizer.json").read_text().replace('"guitar"', '"guitars"')
    (other / "tokenizer.json").write_text(words)
    name = str(generator_beside(other))
    with pytest.raises(ConfigError, match=f"--generator {name}: need the vocabulary of"):
        build_objective(Name.DIFFCSE, encoder, {}, {"generator": name})


def test_the_generator_has_a_digest_of_its_weights(tiny_model_dir):
    name = str(generator_beside(tiny_model_dir))

    def digests():
        encoder = load_encoder(tiny_model_dir, pooler="cls_before_pooler", device="cpu")
        return build_objective(Name.DIFFCSE, encoder, {}, {"generator": name}).model_digests

    before = digests()
    assert before.keys() == {name}
    assert digests() == before
    weights = load_file(f"{name}/model.safetensors")
    weights["bert.embeddings.word_embeddings.weight"][0, 0] += 1
    save_file(weights, f"{name}/model.safetensors", {"format": "pt"})
    assert digests() != before


def test_a_vector_of_another_width_than_the_embeddings_is_refused(tiny_model_dir):
    encoder = load_encoder(tiny_model_dir, pooler="avg", device="cpu")
    encoder.change(head=MlpHead(32, out_dim=16), head_use=HeadUse.KEPT, pooler=Pooler.CLS)
    generator = str(generator_beside(tiny_model_dir))
    with pytest.raises(ConfigError, match="width 16 cannot replace an embedding"):
        build_objective(Name.DIFFCSE, encoder, {}, {"generator": generator})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rtd_weight": 0, "mask_rate": 0.2}, "without --set rtd_weight"),
        ({"rtd_weight": 0, "generator": "minilm"}, "without --set rtd_weight"),
        ({"as_released": True, "fill": "sample"}, "with --set as_released"),
    ],
)
def test_options_without_effect_are_refused(options, message, tiny_model_dir):
    with pytest.raises(UsageError, match=message) as raised:
        build("diffcse", tiny_model_dir, **options)
    assert raised.value.hint == "see simcse train --objective diffcse --help"


def test_the_saved_model_is_the_encoder_alone(invoke, tiny_model_dir, tmp_path):
    (tmp_path / "plain.txt").write_text("\n".join(SENTENCES))
    run = tmp_path / "run"
    options = ["--objective", "diffcse", "--generator", generator_beside(tiny_model_dir)]
    more = ["--train-file", tmp_path / "plain.txt", "--max-steps", 2, "--pooler", "cls", "-o", run]
    result = invoke("train", *options, "--model", tiny_model_dir, "--batch-size", 8, *more)
    assert result.exit_code == 0, result.stderr
    start = load_file(tiny_model_dir / "model.safetensors")
    found = load_file(run / "model" / "model.safetensors")
    assert found.keys() <= start.keys()
    name = "encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(found[name], start[name])
    assert load_encoder(run / "model").head is None


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_other_architectures_are_edited_and_read(kind, tmp_path):
    folder = build_tiny_model(tmp_path / kind, model_type=kind)
    objective, data = build("diffcse", folder, dropout=0.0)
    batch = batch_of(objective, data)
    masked_rows = batch.extra["masked"]
    masked, mask = pad(masked_rows, objective.encoder.tokens.pad_id)
    with torch.no_grad():
        plain = objective.generator.eval()(input_ids=masked, attention_mask=mask).logits.argmax(-1)
    for number, ids in enumerate(objective.edited(batch.rows, masked_rows, CPU)):
        length = len(masked_rows[number])
        assert torch.equal(ids[1:length], plain[number, 1:length])
    _, metrics, found = step(objective, data)
    assert metrics["replaced"] > 0
    assert all(gradient.isfinite().all() for gradient in found.values())
