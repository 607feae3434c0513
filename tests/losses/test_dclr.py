import pytest
import torch
from draws import normal

from simcse_cli.losses.dclr import ascended
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
