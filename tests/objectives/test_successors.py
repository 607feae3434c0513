"""What the successors added to unsupervised SimCSE: what a step sees, what is refused."""

import pytest
import torch

from objectives.cases import PAIRS, batch_of, build
from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.losses.dclr import ascended
from simcse_cli.losses.info_nce import info_nce
from simcse_cli.losses.mixcse import mixcse
from simcse_cli.losses.nt_xent import nt_xent
from simcse_cli.losses.simcse_plus_plus import dimension_contrast, off_dropout

SIZE = 8


def encoded(objective, batch, seed):
    torch.manual_seed(seed)
    vectors = objective.encode(batch)[0]
    return vectors, torch.get_rng_state()


@pytest.mark.parametrize("pads", [False, True])
def test_the_pass_without_dropout_comes_after_the_views_and_draws_nothing(pads, tiny_model_dir):
    plain, data = build("simcse-unsup", tiny_model_dir, dropout=0.3)
    objective, _ = build("simcse-unsup no-dropout", tiny_model_dir, dropout=0.3)
    if pads:
        plain.encoder.checkpoint_layers()
        objective.encoder.checkpoint_layers()
    batch, more = batch_of(plain, data), batch_of(objective, data)
    assert more.rows[: 2 * SIZE] == batch.rows
    assert more.rows[2 * SIZE :] == batch.rows[:SIZE]
    expected, state = encoded(plain, batch, 1)
    found, own_state = encoded(objective, more, 1)
    assert torch.equal(found[: 2 * SIZE], expected)
    assert torch.equal(state, own_state)
    again, _ = encoded(objective, more, 2)
    assert torch.equal(again[2 * SIZE :], found[2 * SIZE :])
    assert not torch.equal(again[: 2 * SIZE], found[: 2 * SIZE])
    assert all(module.training for module in objective.modules())
    objective.encoder.backbone.eval()  # the head stays in training mode
    without, _ = encoded(plain.train(), batch, 1)
    plain.encoder.backbone.eval()
    without = plain.encoder.embed_rows(batch.rows[:SIZE])
    torch.testing.assert_close(found[2 * SIZE :], without, rtol=1e-5, atol=1e-6)


def test_the_terms_are_those_of_the_losses(tiny_model_dir):
    vectors = torch.randn(3 * SIZE, 32, generator=torch.Generator().manual_seed(0))
    anchors, positives, plain = vectors.chunk(3)
    noise = torch.randn(12, 32, generator=torch.Generator().manual_seed(1))
    own = {"temperature": 0.05}
    expected = {
        "no-dropout": off_dropout(anchors, positives, plain, **own),
        "all-views": nt_xent(anchors, positives, **own),
        "mix": mixcse(anchors, positives, mix=0.2, **own),
        "noise": info_nce(
            anchors,
            positives,
            extra_negatives=ascended(noise, anchors, positives, n_steps=4, **own),
            **own,
        ),
    }
    for variant, loss in expected.items():
        objective, data = build(f"simcse-unsup {variant}", tiny_model_dir)
        batch = batch_of(objective, data)
        batch.extra["noise"] = torch.cat([noise, noise])  # more than 1.5 * 8 are cut
        n_views = 3 if variant == "no-dropout" else 2
        terms, _ = objective.losses((vectors[: n_views * SIZE],), batch)
        assert torch.equal(terms["contrastive"], loss), variant
    dimension = dimension_contrast(anchors, positives, temperature=5.0)
    objective, data = build("simcse-unsup no-dropout", tiny_model_dir)
    terms, _ = objective.losses((vectors,), batch_of(objective, data))
    assert torch.equal(terms["dimension"], 0.1 * dimension)


def test_noise_is_as_many_vectors_as_asked_from_the_seed_of_the_step(tiny_model_dir):
    objective, data = build("simcse-unsup noise", tiny_model_dir)
    first, again = batch_of(objective, data), batch_of(objective, data)
    assert torch.equal(first.extra["noise"], again.extra["noise"])
    assert first.extra["noise"].shape == (16, 32)  # 2 are drawn for each row, 12 of 16 are used
    assert abs(first.extra["noise"].std().item() - 1) < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mix": 0.2, "negatives": "all-views"}, "without --set negatives=dropout"),
        ({"queue_size": 4, "mix": 0.2}, "with --set mix, the loss has one form"),
        ({"noise": 1, "mix": 0.2}, "with --set mix, the loss has one form"),
        ({"queue_size": 4, "negatives": "no-dropout"}, "without --set negatives=dropout"),
        ({"noise": 1, "negatives": "no-dropout"}, "without --set negatives=dropout"),
        ({"momentum": 0.5}, "without --set queue_size"),
        ({"mix_sides": "positives"}, "without --set mix"),
        ({"noise_steps": 3}, "without --set noise"),
        ({"positive_scale": 0.9}, "without --set negatives=no-dropout"),
        ({"dimension_temperature": 10}, "without --set dimension_weight"),
    ],
)
def test_options_without_effect_are_refused(options, message, tiny_model_dir):
    with pytest.raises(UsageError, match=message):
        build("simcse-unsup", tiny_model_dir, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mix": 0.2, "symmetric": True}, "mix=0.2 has no other direction"),
        ({"negatives": "all-views", "symmetric": True}, "all-views has no other direction"),
        ({"negatives": "no-dropout", "dual_encoder": True}, "vectors of one encoder"),
        ({"noise": 1, "similarity": "dot"}, "noise=1 compares by cosine"),
        ({"negatives": "all-views", "similarity": "dot"}, "all-views compares by cosine"),
        (
            {"as_released": True, "teacher": 4, "false_negative_cosine": 0.3, "similarity": "dot"},
            "as_released=true compares by cosine",
        ),
    ],
)
def test_options_that_contradict_the_form_are_refused(options, message, tiny_model_dir):
    with pytest.raises(ConfigError, match=message):
        build("simcse-unsup", tiny_model_dir, **options)


def test_negatives_without_dropout_need_single_sentences(tiny_model_dir):
    objective, _ = build("simcse-unsup no-dropout", tiny_model_dir)
    with pytest.raises(ConfigError, match="these rows are pairs"):
        batch_of(objective, PAIRS)
