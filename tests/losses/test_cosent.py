import math

import pytest
import torch
from draws import normal
from sentence_transformers.sentence_transformer.losses import CoSENTLoss
from torch.nn import functional

from simcse_cli.losses.cosent import cosent


def test_equal_cosines_of_pairs_with_different_scores_give_ln_2():
    left, right = torch.ones(2, 3), torch.ones(2, 3)
    assert cosent(left, right, torch.tensor([0.0, 5.0]), temperature=0.05).item() == pytest.approx(
        math.log(2)
    )


def test_pairs_of_equal_scores_are_not_compared():
    assert cosent(normal(4, 3), normal(4, 3, seed=1), torch.ones(4), temperature=0.05).item() == 0


def test_loss_equals_a_double_loop():
    left, right, scores = (
        normal(5, 3),
        normal(5, 3, seed=1),
        torch.tensor([1.0, 3.0, 2.0, 3.0, 0.0]),
    )
    cosines = functional.cosine_similarity(left, right).tolist()
    total = sum(
        math.exp((cosines[i] - cosines[j]) / 0.1)
        for i in range(5)
        for j in range(5)
        if scores[i] < scores[j]
    )
    assert cosent(left, right, scores, temperature=0.1).item() == pytest.approx(
        math.log1p(total), rel=1e-6
    )


def test_value_and_gradient_are_those_of_sentence_transformers():
    scores = torch.tensor([0.1, 0.7, 0.7, 0.3, 1.0, 0.0])
    sides = [normal(6, 4).float().requires_grad_(), normal(6, 4, seed=1).float().requires_grad_()]
    theirs = CoSENTLoss(model=None, scale=20.0).compute_loss_from_embeddings(sides, scores)
    expected = torch.autograd.grad(theirs, sides)
    ours = cosent(*sides, scores, temperature=1 / 20)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    for found, gradient in zip(torch.autograd.grad(ours, sides), expected, strict=True):
        assert torch.allclose(found, gradient, atol=1e-6)


def test_shapes_and_temperature_are_checked():
    with pytest.raises(ValueError, match="need"):
        cosent(normal(3, 2), normal(3, 2), torch.ones(2), temperature=0.05)
    with pytest.raises(ValueError, match="above 0"):
        cosent(normal(3, 2), normal(3, 2), torch.ones(3), temperature=0.0)
