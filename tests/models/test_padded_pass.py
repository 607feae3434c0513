"""The padded and the packed pass under one table: precision, pooler, head."""

import numpy as np
import pytest
import torch

from simcse_cli.machine.precision import DTYPES
from simcse_cli.machine.transfer import HostCopy
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.export import save_encoder
from simcse_cli.models.heads import MlpHead, TokenCnn
from simcse_cli.models.padding import pad
from simcse_cli.models.poolers import POOLERS, pool
from simcse_cli.settings.choices import Attention, HeadUse, Pooler

HEADS = ("none", "square", "narrow", "cnn", "cnn-head")


@pytest.fixture(scope="module")
def saved_models(_tiny_model_dir, tmp_path_factory):
    """Return a folder for each pooler and head."""
    folder = tmp_path_factory.mktemp("models")

    def saved(pooler, head):
        target = folder / f"{pooler}-{head}"
        if not target.exists():
            torch.manual_seed(1)
            template = "{} is {mask}" if pooler is Pooler.MASK else None
            encoder = load_encoder(_tiny_model_dir, pooler=pooler, template=template, device="cpu")
            encoder.token_cnn = TokenCnn(32, 8) if "cnn" in head else None
            heads = {"square": MlpHead(32, 0.2), "narrow": MlpHead(32, 0.2, out_dim=12)}
            heads |= {"cnn-head": MlpHead(24, 0.2, out_dim=12)}
            encoder.change(head=heads.get(head), head_use=HeadUse.KEPT)
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


def passes(*cpu, cuda):
    """Return devices and precisions; those of a GPU run where there is one."""
    return [("cpu", each) for each in cpu] + [
        pytest.param("cuda", each, marks=pytest.mark.gpu) for each in cuda
    ]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("pooler", "head"), list(table()))
@pytest.mark.parametrize(
    ("device", "precision"), passes("fp32", "bf16", cuda=("fp32", "tf32", "bf16", "fp16"))
)
def test_padded_pass_agrees_with_the_packed_one(
    saved_models, sentences, monkeypatch, device, precision, pooler, head
):
    folder = saved_models(pooler, head)
    expected = encode(load_encoder(folder, device="cpu"), sentences)
    others = [expected]
    if device == "cpu":
        others.append(encode(load_encoder(folder, device="cpu", precision=precision), sentences))
    if "cnn" not in head:
        packed = load_encoder(
            folder, device=device, precision="tf32" if precision == "tf32" else "fp32"
        )
        packed.attend_by(Attention.PACKED)
        packed.compute_in(DTYPES[precision])
        others.append(encode(packed, sentences))
    monkeypatch.setattr(SentenceEncoder, "_packed", lambda self: None)
    padded = load_encoder(folder, device=device, precision=precision)
    assert next(padded.backbone.parameters()).dtype is DTYPES[precision]
    vectors = encode(padded, sentences)
    assert vectors.dtype == np.float32
    if precision == "fp32":
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    for other in others:
        cosines = (
            (vectors * other).sum(1)
            / np.linalg.norm(vectors, axis=1)
            / np.linalg.norm(other, axis=1)
        )
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


@pytest.mark.parametrize(("pooler", "head"), list(table()))
@pytest.mark.parametrize(("device", "precision"), passes("bf16", cuda=("bf16", "fp16")))
def test_autocast_rounds_the_transformer_alone(
    saved_models, sentences, monkeypatch, device, precision, pooler, head
):
    """Pooling, convolutions and head are in float32 in training too; gradients point where those of float32 do."""
    monkeypatch.setattr(SentenceEncoder, "_packed", lambda self: None)
    encoder = load_encoder(saved_models(pooler, head), device=device)
    rows = encoder.tokenize(sentences)
    outputs, gradients = [], []
    encoder.backbone.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    for is_on in (False, True):
        encoder.zero_grad()
        with torch.autocast(device, dtype=DTYPES[precision], enabled=is_on):
            vectors, states, mask = encoder.embed_with_states(rows)
        assert vectors.dtype is states.dtype is torch.float32
        vectors.square().mean().backward()
        gradients.append(
            torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None])
        )
    layers = outputs[-1].hidden_states or (outputs[-1].last_hidden_state,)
    with torch.no_grad():
        layers = [layer.float() for layer in (*layers[:-1], outputs[-1].last_hidden_state)]
        if encoder.token_cnn is not None:
            layers = [encoder.token_cnn(layers[-1], mask)]
        ids, _ = pad(rows, encoder.tokens.pad_id)
        is_mask = (ids == encoder.tokenizer.mask_token_id).to(mask.device)
        pooled = pool(encoder.pooler, layers, mask, is_mask=is_mask)
        assert torch.equal(encoder.apply_head(pooled), vectors)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.98


def test_a_batch_is_read_when_the_next_one_is_on_its_way(tiny_encoder, sentences, monkeypatch):
    events = []

    class Copy(HostCopy):
        def arrived(self):
            events.append("read")
            return super().arrived()

    embed = SentenceEncoder.embed_rows

    def embed_rows(self, rows, **options):
        events.append("start")
        return embed(self, rows, **options)

    monkeypatch.setattr(SentenceEncoder, "_packed", lambda self: None)
    expected = encode(tiny_encoder, sentences)
    monkeypatch.setattr("simcse_cli.models.encode.HostCopy", Copy)
    monkeypatch.setattr(SentenceEncoder, "embed_rows", embed_rows)
    np.testing.assert_allclose(
        encode(tiny_encoder, sentences, batch_tokens=128), expected, atol=1e-6
    )
    assert events == ["start", "start", "read", "start", "read", "read"]
