import math

import pytest
import torch
from draws import normal

from simcse_cli.losses.mutual_information import jensen_shannon_mi

OWNERS = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2])


def test_jensen_shannon_mi_of_orthogonal_features_is_closed_form():
    # T = 1 for the own sentence and 0 for others: E+ = ln 2 - softplus(-1), E- = 0.
    sentences = torch.eye(3, dtype=torch.float64)
    loss = jensen_shannon_mi(sentences[OWNERS], sentences, OWNERS)
    assert loss.item() == pytest.approx(math.log1p(math.exp(-1)) - math.log(2), rel=1e-12)


def test_jensen_shannon_mi_of_one_token_and_two_sentences_is_closed_form():
    sentences = torch.eye(2, dtype=torch.float64)
    loss = jensen_shannon_mi(sentences[:1], sentences, torch.tensor([0]))
    assert loss.item() == pytest.approx(math.log1p(math.exp(-1)) - math.log(2), rel=1e-12)


def test_jensen_shannon_mi_equals_double_loop():
    local, sentences = normal(8, 4), normal(3, 4, seed=1)
    positive = negative = 0.0
    for token in range(8):
        for sentence in range(3):
            score = sum(local[token, d].item() * sentences[sentence, d].item() for d in range(4))
            if OWNERS[token] == sentence:
                positive += math.log(2) - math.log(1 + math.exp(-score))
            else:
                negative += math.log(1 + math.exp(score)) - math.log(2)
    expected = negative / (8 * 2) - positive / 8
    assert jensen_shannon_mi(local, sentences, OWNERS).item() == pytest.approx(expected, rel=1e-12)


def test_jensen_shannon_mi_equals_the_original_formula():
    # The original: masks of ones and zeros over the score matrix, E+ over M tokens, E- over M (N -
    # 1) pairs.
    local, sentences = normal(8, 4), normal(3, 4, seed=1)
    scores = local @ sentences.T
    own = torch.zeros(8, 3, dtype=torch.float64)
    own[torch.arange(8), OWNERS] = 1.0
    softplus = torch.nn.functional.softplus
    e_positive = ((math.log(2.0) - softplus(-scores * own)) * own).sum() / 8
    e_negative = ((softplus(-scores) + scores - math.log(2.0)) * (1 - own)).sum() / (8 * 2)
    expected = (e_negative - e_positive).item()
    assert jensen_shannon_mi(local, sentences, OWNERS).item() == pytest.approx(expected, rel=1e-9)


def test_jensen_shannon_mi_ignores_order():
    local, sentences = normal(8, 4), normal(3, 4, seed=1)
    tokens, places = (
        torch.randperm(8, generator=torch.Generator().manual_seed(0)),
        torch.tensor([2, 0, 1]),
    )
    owners = torch.argsort(places)[OWNERS]
    moved = jensen_shannon_mi(local[tokens], sentences[places], owners[tokens])
    assert moved.item() == pytest.approx(
        jensen_shannon_mi(local, sentences, OWNERS).item(), rel=1e-12
    )


def test_jensen_shannon_mi_gradient_is_right():
    local, sentences = normal(8, 3).requires_grad_(), normal(3, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, y: jensen_shannon_mi(x, y, OWNERS), (local, sentences)
    )


def test_jensen_shannon_mi_of_zero_features_is_zero():
    zeros = torch.zeros(8, 4, requires_grad=True)
    loss = jensen_shannon_mi(zeros, torch.zeros(3, 4), OWNERS)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    assert torch.isfinite(zeros.grad).all()


def test_jensen_shannon_mi_of_confident_features_nears_its_bound():
    sentences = torch.eye(3, dtype=torch.float64) * 200 - 100
    loss = jensen_shannon_mi(sentences[OWNERS], sentences, OWNERS)
    assert loss.item() == pytest.approx(-2 * math.log(2), rel=1e-9)


def test_jensen_shannon_mi_refuses_one_sentence():
    with pytest.raises(ValueError, match="one sentence"):
        jensen_shannon_mi(torch.ones(2, 3), torch.ones(1, 3), torch.zeros(2, dtype=torch.long))


def test_jensen_shannon_mi_refuses_unequal_shapes():
    with pytest.raises(ValueError, match=r"owners \(3,\)"):
        jensen_shannon_mi(torch.ones(2, 3), torch.ones(2, 3), torch.zeros(3, dtype=torch.long))
