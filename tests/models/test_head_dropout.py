"""Dropout of whole attention heads, against the same change of the weights."""

import pytest
import torch

from simcse_cli.errors import ConfigError
from simcse_cli.models.head_dropout import HeadDropout, drop_heads

N_HEADS = 4


def hook_on_ones(rate, n_rows):
    module = torch.nn.Linear(8, 8)
    (changed,) = HeadDropout(rate, N_HEADS)(module, (torch.ones(n_rows, 5, 8),))
    return changed


def test_kept_heads_are_scaled_by_heads_over_kept():
    torch.manual_seed(0)
    changed = hook_on_ones(0.4, 4000)
    factors = changed[:, 0, ::2]  # the first of the two entries of each head
    assert torch.equal(changed, factors.repeat_interleave(2, dim=1)[:, None].expand(-1, 5, -1))
    n_kept = (factors > 0).sum(dim=1)
    expected = torch.where(factors > 0, N_HEADS / n_kept.clamp(min=1)[:, None], 0.0)
    torch.testing.assert_close(factors, expected)
    assert set(n_kept.tolist()) == {0, 1, 2, 3, 4}  # with no head the attention is 0
    # The standard error of the share is 0.004.
    assert abs((factors > 0).float().mean() - 0.6) < 0.016


def test_nothing_is_dropped_outside_training():
    module = torch.nn.Linear(8, 8).eval()
    assert HeadDropout(0.4, N_HEADS)(module, (torch.ones(1, 1, 8),)) is None


def test_a_row_equals_a_model_whose_weights_hold_the_factors(tiny_encoder, sentences):
    rows = tiny_encoder.tokenize(sentences[:1])
    plain = tiny_encoder.copied().eval()
    tiny_encoder.drop_heads(0.5)
    tiny_encoder.train()
    for module in tiny_encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.manual_seed(3)
    found = tiny_encoder.embed_rows(rows)

    # The draws are the only ones of the pass, a row of heads for each layer.
    torch.manual_seed(3)
    n_heads = plain.config.num_attention_heads
    for layer in plain.backbone.encoder.layer:
        is_kept = torch.empty(n_heads).bernoulli_(0.5)
        factors = is_kept * n_heads / max(1, is_kept.sum())
        weight = layer.attention.output.dense.weight
        weight.data *= factors.repeat_interleave(weight.shape[1] // n_heads)
    torch.testing.assert_close(found, plain.embed_rows(rows), rtol=1e-5, atol=1e-6)


def test_evaluation_stays_packed_and_equal(tiny_encoder, sentences):
    rows = tiny_encoder.tokenize(sentences)
    expected = tiny_encoder.eval().embed_rows(rows)
    tiny_encoder.drop_heads(0.5)
    assert tiny_encoder.prepare()
    assert torch.equal(tiny_encoder.embed_rows(rows), expected)


def test_an_architecture_without_known_heads_is_refused():
    class Strange(torch.nn.Module):
        config = type("Config", (), {"model_type": "strange"})

    with pytest.raises(ConfigError, match=r"heads of m are not known \(strange\)"):
        drop_heads(Strange(), 0.2, name="m")
