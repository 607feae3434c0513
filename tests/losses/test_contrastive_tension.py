import math

import pytest
import torch
from draws import normal

from simcse_cli.losses.contrastive_tension import contrastive_tension


def test_contrastive_tension_of_orthogonal_vectors_is_ln_2():
    left, right = torch.eye(4, dtype=torch.float64)[:2], torch.eye(4, dtype=torch.float64)[2:]
    assert contrastive_tension(left, right, torch.tensor([1, 0])).item() == pytest.approx(
        math.log(2)
    )


def test_contrastive_tension_equals_double_loop():
    left, right = normal(6, 3), normal(6, 3, seed=1)
    labels = torch.tensor([True, False, False, True, False, False])
    total = 0.0
    for i in range(6):
        score = sum(left[i, j].item() * right[i, j].item() for j in range(3))
        probability = 1 / (1 + math.exp(-score))
        total -= math.log(probability if labels[i] else 1 - probability)
    assert contrastive_tension(left, right, labels).item() == pytest.approx(total / 6, rel=1e-12)


def test_contrastive_tension_equals_the_original_formula():
    # The original: batched (B, 1, D) x (B, D, 1) products, sigmoid cross-entropy averaged over the
    # batch.
    left, right = normal(5, 3), normal(5, 3, seed=1)
    labels = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    scores = torch.bmm(left.unsqueeze(1), right.unsqueeze(2)).flatten()
    expected = (torch.relu(scores) - scores * labels + torch.log1p(torch.exp(-scores.abs()))).mean()
    assert contrastive_tension(left, right, labels).item() == pytest.approx(
        expected.item(), rel=1e-12
    )


def test_contrastive_tension_ignores_order_and_side():
    left, right, labels = normal(5, 3), normal(5, 3, seed=1), torch.tensor([1, 0, 1, 0, 0])
    order = torch.tensor([3, 1, 4, 0, 2])
    moved = contrastive_tension(right[order], left[order], labels[order])
    assert moved.item() == pytest.approx(contrastive_tension(left, right, labels).item(), rel=1e-12)


def test_contrastive_tension_gradient_is_right():
    left, right = (normal(4, 3, seed=s).requires_grad_() for s in range(2))
    labels = torch.tensor([1, 0, 0, 1])
    assert torch.autograd.gradcheck(lambda u, v: contrastive_tension(u, v, labels), (left, right))


@pytest.mark.parametrize("scale", [0.0, 1e3])
def test_contrastive_tension_of_one_zero_or_huge_row_is_finite(scale):
    left = torch.full((1, 3), scale, requires_grad=True)
    loss = contrastive_tension(left, left, torch.tensor([0]))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(left.grad).all()


def test_contrastive_tension_refuses_unequal_shapes():
    with pytest.raises(ValueError, match=r"\(3,\): need"):
        contrastive_tension(torch.ones(2, 3), torch.ones(2, 3), torch.ones(3))
