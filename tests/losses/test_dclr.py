import math

import pytest
import torch
from draws import cosine, normal

from simcse_cli.losses.dclr import ascended, released_dclr
from simcse_cli.losses.info_nce import info_nce

ANCHORS, POSITIVES, NOISE = normal(5, 4), normal(5, 4, seed=1), normal(7, 4, seed=2)


def loss_with(noise):
    return info_nce(ANCHORS, POSITIVES, temperature=0.05, extra_negatives=noise).item()


def test_each_step_goes_a_thousandth_up_the_loss():
    before = NOISE
    for n_steps in (1, 2, 3, 4):
        after = ascended(NOISE, ANCHORS, POSITIVES, temperature=0.05, n_steps=n_steps)
        lengths = (after - before).norm(dim=1)
        assert lengths.tolist() == pytest.approx([1e-3] * 7, rel=1e-9)
        assert loss_with(after) > loss_with(before)
        before = after


def test_a_step_follows_the_gradient_by_finite_differences():
    after = ascended(NOISE, ANCHORS, POSITIVES, temperature=0.5, n_steps=1)
    gradient = torch.zeros(4, dtype=torch.float64)
    for place in range(4):
        moved = NOISE.clone()
        moved[2, place] += 1e-6
        up = info_nce(ANCHORS, POSITIVES, temperature=0.5, extra_negatives=moved).item()
        moved[2, place] -= 2e-6
        down = info_nce(ANCHORS, POSITIVES, temperature=0.5, extra_negatives=moved).item()
        gradient[place] = (up - down) / 2e-6
    expected = NOISE[2] + 1e-3 * gradient / gradient.norm()
    torch.testing.assert_close(after[2], expected, rtol=1e-7, atol=1e-9)


def test_noise_without_a_gradient_or_a_step_stays():
    zeros = torch.zeros(2, 4, dtype=torch.float64)
    assert torch.equal(
        ascended(zeros, ANCHORS, zeros.new_zeros(5, 4), temperature=0.05, n_steps=4).isfinite(),
        torch.ones(2, 4, dtype=torch.bool),
    )
    assert torch.equal(ascended(NOISE, ANCHORS, POSITIVES, temperature=0.05, n_steps=0), NOISE)
    anchors = ANCHORS.clone().requires_grad_()
    assert not ascended(NOISE, anchors, POSITIVES, temperature=0.05, n_steps=2).requires_grad


def test_released_loss_of_equal_logits_is_closed_form():
    """The reference states 0.45056 for 6 columns."""
    same = torch.ones(4, 3, dtype=torch.float64)
    none = torch.zeros(4, 4, dtype=torch.bool)
    found = released_dclr(same, same, same[:2], none, temperature=0.05).item()
    assert found == pytest.approx((math.log(6) - 5 * math.log(1 - 1 / 6)) / 6, rel=1e-12)
    assert found == pytest.approx(0.45056, abs=1e-5)


def test_released_loss_equals_loops():
    false = torch.zeros(5, 5, dtype=torch.bool)
    false[0, 1] = false[3, 4] = True
    columns = torch.cat([POSITIVES, NOISE])
    total = 0.0
    for i in range(5):
        logits = [cosine(ANCHORS[i], each) / 0.3 for each in columns]
        logits = [0.0 if j < 5 and false[i, j] else logit for j, logit in enumerate(logits)]
        whole = sum(map(math.exp, logits))
        for j, logit in enumerate(logits):
            share = math.exp(logit) / whole
            total -= math.log(share) if i == j else math.log(1 - share)
    found = released_dclr(ANCHORS, POSITIVES, NOISE, false, temperature=0.3).item()
    assert found == pytest.approx(total / (5 * 12), rel=1e-9)


def test_released_loss_is_computed_without_autocast_which_refuses_it_on_a_gpu(monkeypatch):
    seen = []

    def noted(probabilities, target):
        seen.append(torch.is_autocast_enabled("cpu"))
        return probabilities.sum()

    monkeypatch.setattr(torch.nn.functional, "binary_cross_entropy", noted)
    none = torch.zeros(5, 5, dtype=torch.bool)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        released_dclr(ANCHORS, POSITIVES, NOISE, none, temperature=0.3)
    assert seen == [False]
