"""The padded and the packed pass under one table: precision, pooler, head."""

import numpy as np
import pytest
import torch

from simcse_cli.choices import HeadUse
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.export import save_encoder
from simcse_cli.models.heads import MlpHead, TokenCnn
from simcse_cli.models.poolers import POOLERS

HEADS = ("none", "square", "narrow", "cnn", "cnn-head")


@pytest.fixture(scope="module")
def saved_models(_tiny_model_dir, tmp_path_factory):
    """Return a folder for each pooler and head."""
    folder = tmp_path_factory.mktemp("models")

    def saved(pooler, head):
        target = folder / f"{pooler}-{head}"
        if not target.exists():
            torch.manual_seed(1)
            encoder = load_encoder(_tiny_model_dir, pooler=pooler, device="cpu")
            encoder.token_cnn = TokenCnn(32, 8) if "cnn" in head else None
            heads = {"square": MlpHead(32, 0.2), "narrow": MlpHead(32, 0.2, out_dim=12)}
            encoder.head = (heads | {"cnn-head": MlpHead(24, 0.2, out_dim=12)}).get(head)
            encoder.head_use = HeadUse.NONE if encoder.head is None else HeadUse.KEPT
            save_encoder(encoder, target)
        return target

    return saved


def table():
    for pooler, spec in POOLERS.items():
        for head in HEADS:
            lacks_head = head in ("none", "cnn")
            reads_all_layers = "cnn" in head and spec.needs_all_layers
            if not reads_all_layers and not (lacks_head and spec.has_head):
                yield pooler, head


@pytest.mark.parametrize(("pooler", "head"), list(table()))
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_padded_pass_agrees_with_the_packed_one(
    saved_models, sentences, monkeypatch, precision, pooler, head
):
    folder = saved_models(pooler, head)
    packed = load_encoder(folder, device="cpu", precision=precision)
    expected = load_encoder(folder, device="cpu").encode(sentences)
    monkeypatch.setattr(SentenceEncoder, "_packed", lambda self: None)
    padded = load_encoder(folder, device="cpu", precision=precision)
    rounded = next(padded.backbone.parameters()).dtype is torch.bfloat16
    assert rounded is (precision == "bf16")
    vectors = padded.encode(sentences)
    assert vectors.dtype == np.float32
    if precision == "fp32":
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    for other in (expected, packed.encode(sentences)):
        cosines = (vectors * other).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(other, axis=1)
        assert cosines.min() > 0.995
    states = padded.embed_with_states(padded.tokenize(sentences[:2]))
    assert [each.dtype for each in states[:2]] == [torch.float32, torch.float32]


def test_rounded_states_are_averaged_in_float32(tiny_encoder, sentences, monkeypatch):
    monkeypatch.setattr(SentenceEncoder, "_packed", lambda self: None)
    tiny_encoder.compute_in(torch.bfloat16)
    rows = tiny_encoder.tokenize(sentences)
    with torch.inference_mode():
        _, states, mask = tiny_encoder.embed_with_states(rows)
        means = torch.stack(
            [each[: int(n)].double().mean(0) for each, n in zip(states, mask.sum(1), strict=True)]
        )
        np.testing.assert_allclose(tiny_encoder.embed_rows(rows).double(), means, atol=1e-5)
