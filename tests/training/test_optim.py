"""Update rules, clipping, schedules and parameter groups: closed forms, and the libraries' own."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from transformers import get_constant_schedule_with_warmup, get_linear_schedule_with_warmup

from simcse_cli.machine.optimizers import UncorrectedAdamW
from simcse_cli.settings.choices import OptimizerName, Schedule
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.optim import build_optimizer, clip_gradients, lr_factor, parameter_groups


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
    assert clip_gradients(iter([nn.Parameter(torch.ones(3)), parameter]), 10.0) == pytest.approx(
        5.0
    )


def test_the_linear_schedule_falls_to_zero_after_the_last_step():
    factors = [lr_factor(Schedule.LINEAR, step, 4, 0.0) for step in range(4)]
    assert factors == [1.0, 0.75, 0.5, 0.25]


def factors_of(make_schedule, total_steps):
    """Return the learning rates that a schedule of transformers gives an optimizer of rate 1, step by step."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make_schedule(optimizer)
    rates = []
    for _ in range(total_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(
    ("total_steps", "warmup", "warmup_steps"), [(10, 0.4, 4), (11, 0.1, 2), (7, 0, 0)]
)
def test_warm_up_and_fall_are_those_of_transformers(total_steps, warmup, warmup_steps):
    linear = factors_of(
        lambda o: get_linear_schedule_with_warmup(o, warmup_steps, total_steps), total_steps
    )
    constant = factors_of(lambda o: get_constant_schedule_with_warmup(o, warmup_steps), total_steps)
    for schedule, expected in ((Schedule.LINEAR, linear), (Schedule.CONSTANT, constant)):
        factors = [lr_factor(schedule, step, total_steps, warmup) for step in range(total_steps)]
        assert factors == pytest.approx(expected)


def test_warm_up_of_every_step_never_arrives():
    assert lr_factor(Schedule.LINEAR, 0, 1, 0.1) == 0


def test_contrastive_tension_falls_by_a_fifth_after_every_500_steps():
    steps = (0, 500, 501, 1000, 1001, 1500, 1501, 2000, 2001, 50_000)
    factors = [lr_factor(Schedule.TENSION, step, 100_000, 0.0) for step in steps]
    assert factors == [1.0, 1.0, 0.8, 0.8, 0.6, 0.6, 0.4, 0.4, 0.2, 0.2]


def test_slanted_triangle_rises_over_the_cut_and_falls_to_its_floor():
    """Steps 1 to 20 of AllenNLP's schedule: cut at 4 of 20, floor 1/32."""
    shares = [1 / 4, 2 / 4, 3 / 4, 1, *(1 - n / 16 for n in range(1, 17))]
    expected = [1 / 32 + share * 31 / 32 for share in shares]
    factors = [lr_factor(Schedule.SLANTED_TRIANGULAR, step, 20, 0.2) for step in range(20)]
    assert factors == pytest.approx(expected)
    assert factors[-1] == 1 / 32
    assert (
        lr_factor(Schedule.SLANTED_TRIANGULAR, 0, 19, 0.1) == 1.0
    )  # the cut, 1.9 steps, is rounded down
    assert lr_factor(Schedule.SLANTED_TRIANGULAR, 0, 9, 0.1) == pytest.approx(
        1 / 32 + 31 / 32 * 8 / 9
    )


START = np.array([1.0, -2.0, 0.5])
GRADIENTS = np.array([[0.5, -2.0, 3e-7], [0.25, 1.0, -1e-7], [-1.0, 0.5, 0.0], [0.125, 4.0, 2e-7]])


def weights_after(**settings):
    """Return the weights after a step for each row of ``GRADIENTS``, in float64, at rate 0.01."""
    module = nn.Linear(3, 1, bias=False)
    module.weight = nn.Parameter(torch.tensor(START[None]))
    optimizer = build_optimizer(module, TrainConfig(lr=0.01, **settings))
    for gradient in GRADIENTS:
        module.weight.grad = torch.tensor(gradient[None])
        optimizer.step()
    return module.weight.detach().numpy()[0]


def adam_loop(*, eps, corrected, decay_before=0.0, decay_after=0.0):
    weight, mean, square = START, 0.0, 0.0
    for t, gradient in enumerate(GRADIENTS, start=1):
        weight = weight * (1 - 0.01 * decay_before)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        corrections = (1 - 0.9**t, 1 - 0.999**t) if corrected else (1, 1)
        weight = weight - 0.01 * (mean / corrections[0]) / (np.sqrt(square / corrections[1]) + eps)
        weight = weight * (1 - 0.01 * decay_after)
    return weight


def test_adamw_is_the_closed_form():
    found = weights_after(adam_eps=1e-6, weight_decay=0.1)
    np.testing.assert_allclose(
        found, adam_loop(eps=1e-6, corrected=True, decay_before=0.1), rtol=1e-12
    )
    np.testing.assert_allclose(weights_after(), adam_loop(eps=1e-8, corrected=True), rtol=1e-12)


def test_adamw_uncorrected_is_the_closed_form_and_decays_after_the_step():
    found = weights_after(
        optimizer=OptimizerName.ADAMW_UNCORRECTED, adam_eps=1e-6, weight_decay=0.1
    )
    np.testing.assert_allclose(
        found, adam_loop(eps=1e-6, corrected=False, decay_after=0.1), rtol=1e-12
    )


def test_adamw_uncorrected_starts_with_root_ten_times_the_rate_and_skips_what_has_no_gradient():
    weight, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(1))
    optimizer = UncorrectedAdamW([weight, other], lr=0.01, eps=0.0)
    weight.grad = torch.tensor([3.0, -1e-3])
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([-1.0, 1.0]) * 0.01 * 10**0.5)
    assert other.item() == 1


def test_adam_is_the_closed_form():
    found = weights_after(optimizer=OptimizerName.ADAM, adam_eps=1e-7)
    np.testing.assert_allclose(found, adam_loop(eps=1e-7, corrected=True), rtol=1e-12)


def test_rmsprop_is_tensorflows():
    """``v = 0.9 v + 0.1 g^2``, epsilon 1e-7 outside the root, no momentum, from v = 0."""
    weight, square = START, 0.0
    for gradient in GRADIENTS:
        square = 0.9 * square + 0.1 * gradient**2
        weight = weight - 0.01 * gradient / (np.sqrt(square) + 1e-7)
    np.testing.assert_allclose(weights_after(optimizer=OptimizerName.RMSPROP), weight, rtol=1e-12)


def test_a_limit_of_zero_clips_nothing():
    (parameter,) = parameters([30.0, 40.0])
    assert clip_gradients([parameter], 0.0) == pytest.approx(50.0)
    torch.testing.assert_close(parameter.grad, torch.tensor([30.0, 40.0]))


def test_biases_and_norms_are_not_decayed():
    module = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    decayed, others = parameter_groups(module, 0.01)
    assert [tuple(p.shape) for p in decayed["params"]] == [(3, 2)]
    assert [tuple(p.shape) for p in others["params"]] == [(3,), (3,), (3,)]
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
