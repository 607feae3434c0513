import math

import pytest
import torch
from draws import cosine, normal
from sentence_transformers.sentence_transformer.losses import CoSENTLoss
from torch.nn import functional

from simcse_cli.losses.cosent import angle, complex_score, cosent


def test_equal_cosines_of_pairs_with_different_scores_give_ln_2():
    left, right = torch.ones(2, 3), torch.ones(2, 3)
    assert cosent(left, right, torch.tensor([0.0, 5.0]), temperature=0.05).item() == pytest.approx(
        math.log(2)
    )


def test_pairs_of_equal_scores_are_not_compared():
    assert cosent(normal(4, 3), normal(4, 3, seed=1), torch.ones(4), temperature=0.05).item() == 0


def test_a_score_that_is_no_number_is_compared_with_none():
    left, right = torch.randn(2, 3, 4).unbind()
    whole = cosent(left, right, torch.tensor([1.0, math.nan, 2.0]), temperature=1)
    kept = cosent(left[::2], right[::2], torch.tensor([1.0, 2.0]), temperature=1)
    torch.testing.assert_close(whole, kept)


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


def test_complex_score_is_cosine_and_an_antisymmetric_part():
    u, v = normal(6, 8), normal(6, 8, seed=1)
    forward, backward = complex_score(u, v), complex_score(v, u)
    cosines = torch.nn.functional.cosine_similarity(u, v)
    a, b, c, e = u[:, :4], u[:, 4:], v[:, :4], v[:, 4:]
    omega = ((b * c).sum(1) - (a * e).sum(1)) / u.norm(dim=1) / v.norm(dim=1)
    torch.testing.assert_close(forward, (cosines + omega).abs(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(backward, (cosines - omega).abs(), rtol=1e-12, atol=1e-14)
    both_positive = (cosines + omega > 0) & (cosines - omega > 0)
    sums = (forward + backward)[both_positive]
    torch.testing.assert_close(sums, 2 * cosines[both_positive], rtol=1e-12, atol=1e-14)


def test_complex_score_of_a_vector_and_its_opposite_is_one_and_of_zero_none():
    u = normal(5, 6)
    for other in (u, -u, 3 * u):
        assert complex_score(u, other).tolist() == pytest.approx([1.0] * 5)
    assert complex_score(u, torch.zeros_like(u)).tolist() == [0.0] * 5
    odd = complex_score(normal(5, 7), normal(5, 7, seed=1))
    filled = torch.nn.functional.pad(normal(5, 7), (0, 1))
    other = torch.nn.functional.pad(normal(5, 7, seed=1), (0, 1))
    assert torch.equal(odd, complex_score(filled, other))


def test_angle_without_imaginary_parts_is_cosent_on_absolute_cosines():
    u, v = normal(6, 4), normal(6, 4, seed=1)
    scores = torch.tensor([0.0, 1.0, 1.0, 2.0, 3.0, 0.0])
    left, right = (torch.cat([each, torch.zeros_like(each)], dim=1) for each in (u, v))
    total = 1.0
    similarities = [abs(cosine(a, b)) for a, b in zip(u, v, strict=True)]
    for i in range(6):
        for j in range(6):
            if scores[i] < scores[j]:
                total += math.exp((similarities[i] - similarities[j]) / 0.05)
    found = angle(left, right, scores, temperature=0.05).item()
    assert found == pytest.approx(math.log(total), rel=1e-12)
    assert angle(left, right, torch.ones(6), temperature=0.05).item() == 0.0
    two = torch.ones(2, 4)
    assert angle(two, two, scores[:2], temperature=0.05).item() == pytest.approx(math.log(2))


def test_angle_gradient_is_right():
    scores = torch.tensor([0.0, 1.0, 2.0])
    sides = normal(3, 4).requires_grad_(), normal(3, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda u, v: angle(u, v, scores, temperature=0.3), sides)
