import math

import pytest
import torch
from draws import normal

from simcse_cli.losses.classification import classification, sbert_features


def test_sbert_features_are_both_vectors_and_their_distance():
    left, right = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, -5.0]])
    assert sbert_features(left, right).tolist() == [[1.0, -2.0, 3.0, -5.0, 2.0, 3.0]]


def test_sbert_features_gradient_of_equal_sides_is_finite():
    left = torch.zeros(2, 3, requires_grad=True)
    sbert_features(left, left).sum().backward()
    assert left.grad.tolist() == [[2.0] * 3] * 2


def test_classification_of_equal_logits_is_ln_k():
    loss = classification(torch.zeros(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0]))
    assert loss.item() == pytest.approx(math.log(3), rel=1e-12)


def test_classification_equals_double_loop_over_labelled_rows():
    logits, labels = normal(5, 3), torch.tensor([0, 2, -100, 1, 1])
    total = 0.0
    for i in (0, 1, 3, 4):
        log_z = math.log(sum(math.exp(logits[i, k].item()) for k in range(3)))
        total += log_z - logits[i, labels[i]].item()
    assert classification(logits, labels).item() == pytest.approx(total / 4, rel=1e-12)


def test_classification_equals_the_original_formula():
    # The original SBERT loss: one bias-carrying linear layer over [u, v, |u - v|], PyTorch's
    # cross-entropy.
    left, right, labels = normal(6, 4), normal(6, 4, seed=1), torch.tensor([0, 1, 2, 0, 1, 2])
    weight, bias = normal(3, 12, seed=2), normal(3, seed=3)
    expected = torch.nn.CrossEntropyLoss()(
        torch.cat([left, right, torch.abs(left - right)], 1) @ weight.T + bias, labels
    )
    ours = classification(sbert_features(left, right) @ weight.T + bias, labels)
    assert ours.item() == pytest.approx(expected.item(), rel=1e-12)


def test_classification_ignores_order_and_a_common_shift():
    logits, labels = normal(5, 3), torch.tensor([0, 2, 2, 1, 1])
    order = torch.tensor([4, 2, 0, 1, 3])
    moved = classification(logits[order] + 9, labels[order])
    assert moved.item() == pytest.approx(classification(logits, labels).item(), rel=1e-12)


def test_classification_gradient_is_right():
    logits, labels = normal(4, 3).requires_grad_(), torch.tensor([0, 2, -100, 1])
    assert torch.autograd.gradcheck(lambda x: classification(x, labels), (logits,))


def test_classification_without_a_labelled_row_is_zero_with_zero_gradient():
    logits = torch.ones(2, 3, requires_grad=True)
    loss = classification(logits, torch.tensor([-100, -100]))
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad.abs().max() == 0.0
