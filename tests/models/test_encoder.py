import numpy as np
import pytest
import torch

from helpers import build_tiny_model, plain_vectors
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder, encode
from simcse_cli.models.heads import MlpHead
from simcse_cli.models.padding import pad
from simcse_cli.settings.choices import HeadUse, Pooler


@pytest.mark.parametrize("pooler", [pooler for pooler in Pooler if pooler is not Pooler.MASK])
def test_encode_agrees_with_one_sentence_at_a_time(tiny_model_dir, sentences, pooler):
    encoder = load_encoder(tiny_model_dir, pooler=pooler, device="cpu")
    expected = plain_vectors(tiny_model_dir, pooler.value, sentences)
    np.testing.assert_allclose(encode(encoder, sentences), expected, atol=1e-5)


@pytest.mark.parametrize(
    "model_type", ["bert", "roberta", "distilbert", "mpnet", "electra", "deberta-v2", "modernbert"]
)
def test_encode_works_for_every_architecture(tmp_path, sentences, model_type):
    folder = build_tiny_model(tmp_path / model_type, model_type=model_type)
    encoder = load_encoder(folder, pooler="avg_first_last", device="cpu")
    expected = plain_vectors(folder, "avg_first_last", sentences)
    np.testing.assert_allclose(encode(encoder, sentences), expected, atol=1e-5)


def test_encode_does_not_depend_on_order_or_batch(tiny_encoder, sentences):
    whole = encode(tiny_encoder, sentences)
    turned = encode(tiny_encoder, sentences[::-1], batch_tokens=16)[::-1]
    np.testing.assert_allclose(whole, turned, atol=1e-6)


def test_encode_gives_equal_sentences_one_vector(tiny_encoder):
    first, other, again = encode(
        tiny_encoder, ["The cat sleeps.", "He reads a book.", "The cat sleeps."]
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_encode_of_nothing_has_the_right_width(tiny_encoder):
    assert encode(tiny_encoder, []).shape == (0, 32)


def test_encode_leaves_the_mode_alone(tiny_encoder):
    tiny_encoder.train()
    encode(tiny_encoder, ["The cat sleeps."])
    assert tiny_encoder.training


def test_normalize_gives_unit_vectors(tiny_encoder, sentences):
    vectors = encode(tiny_encoder, sentences, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


def test_embed_rows_equals_encode_in_evaluation_mode(tiny_encoder, sentences):
    rows = tiny_encoder.tokenize(sentences)
    with torch.no_grad():
        embedded = tiny_encoder.eval().embed_rows(rows).numpy()
    np.testing.assert_allclose(embedded, encode(tiny_encoder, sentences), atol=1e-6)


def test_tokenize_cuts_at_max_length(tiny_encoder):
    assert len(tiny_encoder.tokenize(["a b c d e f g h i j k l"], max_length=6)[0]) == 6


def test_digest_changes_with_weights_and_pooler(tiny_model_dir):
    def load(pooler):
        return ReadyEncoder(load_encoder(tiny_model_dir, pooler=pooler, device="cpu"))

    encoder = load("avg")
    before = encoder.digest
    assert load("avg").digest == before
    assert load("cls_before_pooler").digest != before
    with torch.no_grad():
        next(encoder.model.parameters())[0, 0] += 1
    assert encoder.digest != before


def test_digest_changes_with_the_function_behind_the_head(tiny_encoder, sentences):
    tiny_encoder.change(head=MlpHead(tiny_encoder.hidden_size), head_use=HeadUse.KEPT)
    before = ReadyEncoder(tiny_encoder).digest
    vectors = encode(tiny_encoder, sentences)
    tiny_encoder.head.tanh = False
    assert not np.array_equal(encode(tiny_encoder, sentences), vectors)
    assert ReadyEncoder(tiny_encoder).digest != before


@pytest.mark.parametrize("by", ["training mode", "load_state_dict"])
def test_vectors_follow_weights_that_change(by, tiny_encoder, sentences):
    before = encode(tiny_encoder, sentences)
    changed = {name: weight * 1.5 for name, weight in tiny_encoder.state_dict().items()}
    if by == "training mode":
        tiny_encoder.train()
        with torch.no_grad():
            for name, weight in tiny_encoder.named_parameters():
                weight.copy_(changed[name])
        tiny_encoder.eval()
    else:
        tiny_encoder.load_state_dict(changed)
    after = encode(tiny_encoder, sentences)
    assert not np.allclose(before, after)
    rows = tiny_encoder.tokenize(sentences)
    with torch.no_grad():  # the padded pass computes on the weights themselves
        expected = tiny_encoder(*pad(rows, tiny_encoder.tokens.pad_id))
    np.testing.assert_allclose(after, expected, atol=1e-5)
