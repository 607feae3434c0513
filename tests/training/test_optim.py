"""Clipping, schedules and parameter groups in closed form, and clipping against PyTorch's own."""

import math

import pytest
import torch
from torch import nn

from simcse_cli.choices import Schedule
from simcse_cli.training.optim import clip_gradients, lr_factor, parameter_groups


def parameters(*gradients):
    """Return parameters with these gradients."""
    found = []
    for gradient in gradients:
        found.append(nn.Parameter(torch.zeros(len(gradient))))
        found[-1].grad = torch.tensor(gradient)
    return found


def test_gradients_of_norm_13_are_scaled_to_the_limit():
    first, second = parameters([3.0, 4.0], [12.0])
    assert clip_gradients([first, second], 1.0) == pytest.approx(13.0)
    torch.testing.assert_close(first.grad, torch.tensor([3 / 13, 4 / 13]))
    torch.testing.assert_close(second.grad, torch.tensor([12 / 13]))


def test_smaller_gradients_keep_every_bit():
    gradients = torch.randn(1000, generator=torch.Generator().manual_seed(0)) / 100
    (parameter,) = parameters(gradients.tolist())
    assert clip_gradients([parameter], 1.0) == pytest.approx(float(gradients.norm()))
    assert torch.equal(parameter.grad, gradients)


@pytest.mark.parametrize("limit", [1e-6, 0.5, 4.9999, 5.0, 5.000001, 5.1])
def test_equal_to_pytorchs_near_the_limit(limit):
    (own,), (other,) = parameters([3.0, 4.0]), parameters([3.0, 4.0])
    assert clip_gradients([own], limit) == nn.utils.clip_grad_norm_([other], limit)
    assert torch.equal(own.grad, other.grad)


def test_a_norm_that_is_not_finite_is_returned_as_it_is():
    (parameter,) = parameters([math.nan, 1.0])
    assert math.isnan(clip_gradients([parameter], 1.0))


def test_parameters_without_gradient_do_not_count():
    (parameter,) = parameters([3.0, 4.0])
    assert clip_gradients(iter([nn.Parameter(torch.ones(3)), parameter]), 10.0) == pytest.approx(5.0)


def test_the_linear_schedule_falls_to_zero_after_the_last_step():
    factors = [lr_factor(Schedule.LINEAR, step, 4, 0.0) for step in range(4)]
    assert factors == [1.0, 0.75, 0.5, 0.25]


def test_warm_up_rises_from_zero_and_joins_the_schedule():
    factors = [lr_factor(Schedule.LINEAR, step, 10, 0.4) for step in range(10)]
    expected = [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    assert factors == pytest.approx(expected)
    assert [lr_factor(Schedule.CONSTANT, step, 10, 0.2) for step in (0, 1, 2, 9)] == pytest.approx(
        [1 / 3, 2 / 3, 1, 1]
    )


def test_contrastive_tension_falls_by_a_fifth_every_500_steps():
    steps = (0, 499, 500, 999, 1000, 1500, 1999, 2000, 50_000)
    factors = [lr_factor(Schedule.TENSION, step, 100_000, 0.0) for step in steps]
    assert factors == [1.0, 1.0, 0.8, 0.8, 0.6, 0.4, 0.4, 0.2, 0.2]


def test_biases_and_norms_are_not_decayed():
    module = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    decayed, others = parameter_groups(module, 0.01)
    assert [tuple(p.shape) for p in decayed["params"]] == [(3, 2)]
    assert [tuple(p.shape) for p in others["params"]] == [(3,), (3,), (3,)]
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
