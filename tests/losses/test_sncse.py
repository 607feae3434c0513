import pytest
import torch
from draws import normal
from torch.nn.functional import cosine_similarity

from simcse_cli.losses.sncse import soft_negative_margin

BAND = {"low": 0.1, "high": 0.3}


def test_negations_equal_to_the_positives_cost_the_lower_margin():
    anchors, positives = normal(4, 6), normal(4, 6, seed=1)
    term = soft_negative_margin(anchors, positives, 3 * positives, **BAND)
    assert term.item() == pytest.approx(0.1, abs=1e-12)


def test_negations_opposite_to_the_anchors_cost_two_less_the_upper_margin():
    anchors = normal(4, 6)
    term = soft_negative_margin(anchors, 2 * anchors, -anchors, **BAND)
    assert term.item() == pytest.approx(1.7, abs=1e-12)


def test_inside_the_band_there_is_neither_loss_nor_gradient():
    anchors = torch.tensor([[1.0, 0.0]], dtype=torch.float64).requires_grad_()
    positives = torch.tensor([[1.0, 0.0]], dtype=torch.float64).requires_grad_()
    cosine = torch.tensor(0.8, dtype=torch.float64)
    negations = torch.stack([cosine, (1 - cosine**2).sqrt()])[None].requires_grad_()
    term = soft_negative_margin(anchors, positives, negations, **BAND)
    term.backward()
    assert term.item() == 0
    assert not any(each.grad.any() for each in (anchors, positives, negations))


def test_four_rows_by_hand():
    anchors, positives, negations = normal(4, 6), normal(4, 6, seed=1), normal(4, 6, seed=2)
    total = 0.0
    for a, p, n in zip(anchors, positives, negations, strict=True):
        difference = float(cosine_similarity(a, n, dim=0) - cosine_similarity(a, p, dim=0))
        total += max(0.0, difference + 0.1) + max(0.0, -difference - 0.3)
    term = soft_negative_margin(anchors, positives, negations, **BAND)
    assert term.item() == pytest.approx(total / 4, rel=1e-12)


def test_gradients_are_right():
    rows = [normal(3, 4, seed=seed).requires_grad_() for seed in range(3)]
    assert torch.autograd.gradcheck(lambda *v: soft_negative_margin(*v, **BAND), rows)
