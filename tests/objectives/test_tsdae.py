"""TSDAE: what is deleted, what the decoder sees, and the value of its loss."""

import math

import pytest
import torch
from scipy.stats import chisquare
from torch.nn import functional

from helpers import build_tiny_model
from objectives.cases import batch_of, build
from simcse_cli.errors import CheckpointError, ConfigError
from simcse_cli.models.adapters import add_lora
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.objectives.tsdae import Tsdae, damage

ALMOST_NEVER = 1e-4


def test_words_are_deleted_with_their_probability_and_one_stays():
    words = ["a", "b", "c", "d"]
    left = [damage(" ".join(words), 0.6, key).split() for key in range(6000)]
    counts = [sum(len(each) == n for each in left) for n in range(1, 5)]
    exact = [math.comb(4, n) * 0.4**n * 0.6 ** (4 - n) for n in range(5)]
    expected = [6000 * share for share in (exact[0] + exact[1], *exact[2:])]
    assert chisquare(counts, expected).pvalue > ALMOST_NEVER
    assert all(each == [word for word in words if word in each] for each in left)
    alone = [each[0] for each in left if len(each) == 1]
    assert chisquare([alone.count(word) for word in words]).pvalue > ALMOST_NEVER


@pytest.mark.parametrize("text", ["", "one"])
def test_a_text_of_one_word_is_never_damaged(text):
    assert all(damage(text, 0.99, key) == text for key in range(20))


def test_equal_scores_lose_ln_v_and_padding_changes_nothing(tiny_model_dir):
    objective, data = build("tsdae", tiny_model_dir, dropout=0.0)
    batch = batch_of(objective, data)
    vectors = objective.embed(batch)
    together = objective.row_losses(vectors, batch.extra["whole"])
    alone = [
        objective.row_losses(vectors[[row]], [whole])
        for row, whole in enumerate(batch.extra["whole"])
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)
    head = objective.decoder.get_output_embeddings()
    head.weight.data.zero_()
    head.bias.data.zero_()
    value = objective(batch)[0]["reconstruction"].item()
    assert value == pytest.approx(math.log(len(objective.encoder.tokenizer)), rel=1e-6)


def test_loss_is_the_mean_over_tokens_after_the_first(tiny_model_dir):
    objective, data = build("tsdae", tiny_model_dir, dropout=0.0)
    batch = batch_of(objective, data)
    vectors, total, count = objective.embed(batch), 0.0, 0
    for vector, whole in zip(vectors, batch.extra["whole"], strict=True):
        ids = torch.tensor([whole])
        scores = objective.decoder(
            input_ids=ids[:, :-1], encoder_hidden_states=vector[None, None], use_cache=False
        ).logits[0]
        for place, token in enumerate(whole[1:]):
            total -= functional.log_softmax(scores[place], dim=0)[token].item()
            count += 1
    assert objective(batch)[0]["reconstruction"].item() == pytest.approx(total / count, rel=1e-5)


def test_one_key_gives_query_and_key_no_gradient_and_the_vector_one(tiny_model_dir):
    objective, data = build("tsdae", tiny_model_dir, dropout=0.0)
    frozen = {n: p for n, p in objective.decoder.named_parameters() if not p.requires_grad}
    assert {name.split(".")[-2] for name in frozen} == {"query", "key"}
    for parameter in frozen.values():
        parameter.requires_grad_(True)
    batch = batch_of(objective, data)
    vectors = objective.embed(batch).detach().requires_grad_()
    objective.row_losses(vectors, batch.extra["whole"]).sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() < 1e-5 for p in frozen.values())
    assert vectors.grad.abs().max() > 1e-2


def test_decoder_shares_all_weights_but_the_cross_attention_and_the_head(tiny_model_dir):
    objective, _ = build("tsdae", tiny_model_dir)
    untied, _ = build("tsdae untied", tiny_model_dir)
    shared = {id(p) for p in objective.encoder.backbone.parameters()}
    own = [n for n, p in objective.decoder.named_parameters() if id(p) not in shared]
    assert own
    assert all("crossattention" in name or name.startswith("cls.") for name in own)
    shared = {id(p) for p in untied.encoder.backbone.parameters()}
    assert not any(id(p) in shared for p in untied.decoder.parameters())


def test_decoder_shares_the_layers_of_lora(tiny_model_dir):
    pytest.importorskip("peft")
    encoder = load_encoder(tiny_model_dir, pooler="cls", device="cpu")
    encoder.change(head=None)
    add_lora(encoder.backbone, 2, 4.0, base="x")
    objective = Tsdae(encoder)
    shared = {id(p) for p in encoder.parameters()}
    own = [n for n, p in objective.decoder.named_parameters() if id(p) not in shared]
    assert all("crossattention" in name or name.startswith("cls.") for name in own)
    assert any("lora_A" in name for name, _ in objective.decoder.named_parameters())


@pytest.mark.parametrize("variant", ["tsdae", "tsdae untied"])
def test_the_output_matrix_is_the_word_embedding_that_the_decoder_reads(variant, tiny_model_dir):
    objective, _ = build(variant, tiny_model_dir)
    decoder = objective.decoder
    read = decoder.get_input_embeddings().weight
    assert decoder.get_output_embeddings().weight is read
    assert (objective.encoder.backbone.get_input_embeddings().weight is read) == (
        variant == "tsdae"
    )


def test_heads_and_encoders_without_a_decoder_are_refused(tmp_path, tiny_model_dir):
    objective, _ = build("simcse-unsup", tiny_model_dir)
    with pytest.raises(ConfigError, match="trains without a head"):
        Tsdae(objective.encoder)
    folder = build_tiny_model(tmp_path / "distil", model_type="distilbert")
    with pytest.raises(CheckpointError, match="distilbert"):
        Tsdae(load_encoder(folder, pooler="avg", device="cpu"))
