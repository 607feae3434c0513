"""A training step asks a device for no value: on ``meta``, which has none, every such question is an error."""

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from helpers import build_tiny_model
from objectives.cases import VARIANTS, batch_of, build
from simcse_cli.machine.optimizers import UncorrectedAdamW
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encoder import SentenceEncoder, unread_mask
from simcse_cli.models.padding import pad
from simcse_cli.models.poolers import pool
from simcse_cli.objectives.base import Batch
from simcse_cli.settings.choices import Attention
from simcse_cli.training.cached_gradients import cached_backward
from simcse_cli.training.optim import clip_gradients

META = torch.device("meta")


class CallCounter(TorchDispatchMode):
    """Counts the operations that PyTorch is asked for, by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def _meta_autocast(monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # knows no such device


@pytest.mark.usefixtures("_meta_autocast")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_reads_nothing_from_the_device(variant, tiny_model_dir):
    objective, data = build(variant, tiny_model_dir)
    batch = batch_of(objective, data)
    objective.to(META)
    batch = batch.prepacked(objective.encoder).to(META)
    losses, metrics = objective(batch)
    sum(losses.values()).backward()
    parameters = list(objective.parameters())
    norm = clip_gradients(parameters, 1.0)
    UncorrectedAdamW(parameters, lr=1e-3, eps=1e-8).step()
    torch.stack([*losses.values(), *metrics.values(), norm])
    cached_backward(
        batch.chunks(len(batch.rows) // 2 + 1),
        objective.encode,
        lambda parts: sum(objective.losses(parts, batch)[0].values()),
        device=META,
    )


@pytest.mark.usefixtures("_meta_autocast")
@pytest.mark.parametrize("kind", ["roberta", "distilbert", "electra", "mpnet"])
def test_no_architecture_is_asked_whether_a_batch_is_padded(kind, tmp_path):
    encoder = load_encoder(build_tiny_model(tmp_path, model_type=kind), pooler="avg", device="cpu")
    rows = encoder.tokenize(["A man.", "The cat sleeps in the kitchen."])
    expected = encoder.embed_rows(rows).shape
    batch = Batch(rows, 2).prepacked(encoder.to(META)).to(META)
    assert encoder.embed_rows(batch.rows).shape == expected


@pytest.mark.usefixtures("_meta_autocast")
def test_a_packed_step_asks_nothing_and_is_as_many_calls_for_any_lengths(tiny_encoder):
    """Calls are what the CPU gives a GPU to do; attention is one of them a layer."""
    tiny_encoder.attend_by(Attention.PACKED)
    tiny_encoder.compute_in(torch.bfloat16)
    tiny_encoder.to(META).train()
    counts = []
    for rows in ([[5]], [[5] * 9] * 4, [[5] * length for length in range(3, 30)]):
        # Only while operations are counted does PyTorch take the kernels of a GPU on this device.
        with FlopCounterMode(display=False), CallCounter() as calls:
            vectors = tiny_encoder.embed_rows(rows)
            vectors.sum().backward()
        assert vectors.shape == (len(rows), tiny_encoder.dim)
        counts.append(calls.counts)
        tiny_encoder.zero_grad()
    assert counts[1] == counts[2]  # the first one also makes what PyTorch keeps
    assert counts[0]["aten._flash_attention_forward"] == tiny_encoder.config.num_hidden_layers


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_mask_of_every_head_gives_the_same_vectors(attention, tiny_encoder, sentences):
    tiny_encoder.attend_by(Attention(attention))
    ids, mask = pad(tiny_encoder.tokenize(sentences), tiny_encoder.tokens.pad_id)
    expected = tiny_encoder(ids, mask)

    class ElsewhereMask(torch.Tensor):
        device = META

    whole = unread_mask(tiny_encoder.backbone, mask.as_subclass(ElsewhereMask))
    whole = whole.as_subclass(torch.Tensor)
    assert whole.shape == (len(ids), 1, ids.shape[1], ids.shape[1])
    with torch.no_grad():
        states = tiny_encoder.backbone(input_ids=ids, attention_mask=whole).last_hidden_state
    found = pool(tiny_encoder.pooler, [states], mask)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", ["simcse-sup dual mlm", "is-bert", "declutr", "mlm"])
def test_rows_padded_ahead_give_the_same_loss(variant, tiny_model_dir, monkeypatch):
    monkeypatch.setattr(SentenceEncoder, "_packed", lambda self: None)
    objective, data = build(variant, tiny_model_dir, dropout=0.0)
    batch = batch_of(objective, data)
    ahead = batch.prepacked(objective.encoder)
    assert (ahead.n_tokens, ahead.n_sentences) == (batch.n_tokens, batch.n_sentences)
    for name, value in objective(batch)[0].items():
        assert torch.equal(objective(ahead)[0][name], value)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("variant", "attention"), [(v, None) for v in VARIANTS] + [("simcse-sup", Attention.PACKED)]
)
def test_a_step_does_not_wait_for_a_gpu(variant, attention, tiny_model_dir):
    objective, data = build(variant, tiny_model_dir)
    if attention is not None:
        objective.encoder.attend_by(attention)
    objective.to("cuda")
    parameters = list(objective.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    for mode in ("default", "error"):  # the first step loads kernels
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode(mode)
        try:
            made = batch_of(objective, data).prepacked(objective.encoder)
            losses, _ = objective(made.to(torch.device("cuda")))
            sum(losses.values()).backward()
            clip_gradients(parameters, 1.0)
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
