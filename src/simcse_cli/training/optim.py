"""Optimizer and learning-rate schedule."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from simcse_cli.machine.optimizers import UncorrectedAdamW
from simcse_cli.settings.choices import OptimizerName, Schedule
from simcse_cli.settings.config import TrainConfig

# Contrastive Tension: 0-based steps, each with the share of the initial learning rate that is used
# from then on (code of Carlsson et al. 2021: steps up to and including 500 have the first rate).
TENSION_STEPS = ((0, 1.0), (501, 0.8), (1001, 0.6), (1501, 0.4), (2001, 0.2))
TRIANGLE_RATIO = 32  # the peak of the slanted triangle, divided by its lowest rate


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return the trained parameters in two groups: matrices with weight decay, others without.

    The others are biases and normalisation weights, which have one dimension.
    """
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in module.parameters():
        if parameter.requires_grad:
            group = decayed if parameter.ndim >= 2 else others
            group.append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


def build_optimizer(module: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the optimizer of the settings, in its fused form if PyTorch has one.

    RMSprop has the constants of TensorFlow. For a weight w with the gradient g:

        v = 0.9 v + 0.1 g^2
        w -= lr g / (sqrt(v) + 1e-7)
    """
    groups = parameter_groups(module, config.weight_decay)
    match config.optimizer:
        case OptimizerName.ADAMW:
            return torch.optim.AdamW(groups, lr=config.lr, eps=config.adam_eps, fused=True)
        case OptimizerName.ADAMW_UNCORRECTED:
            return UncorrectedAdamW(groups, lr=config.lr, eps=config.adam_eps)
        case OptimizerName.ADAM:
            return torch.optim.Adam(groups, lr=config.lr, eps=config.adam_eps, fused=True)
        case OptimizerName.RMSPROP:
            return torch.optim.RMSprop(groups, lr=config.lr, alpha=0.9, eps=1e-7)


def lr_factor(schedule: Schedule, step: int, total_steps: int, warmup: float) -> float:
    """Return the share of the peak learning rate that a 0-based step uses.

    Linear: the rate rises from 0 during the first ``warmup * total_steps`` steps (rounded up), then
    falls and would be 0 one step after the last. Without warm-up, the first step has the full rate,
    and the last step has ``1 / total_steps`` of it. This is ``get_linear_schedule_with_warmup`` of
    transformers, with the warm-up length of its ``Trainer``.

    Constant and tension: after the same warm-up, the share is 1, or that of ``TENSION_STEPS``.

    Slanted triangle (Howard and Ruder 2018, as in AllenNLP): ``height`` rises to 1 during the first
    ``warmup * total_steps`` steps (rounded down), then falls to 0 at the last step. The share is
    ``(1 + height * 31) / 32``.
    """
    if schedule is Schedule.SLANTED_TRIANGULAR:
        peak = int(total_steps * warmup)
        step += 1  # AllenNLP counts steps from 1
        if step < peak:
            height = step / peak
        else:
            height = 1 - (step - peak) / (total_steps - peak)
        return (1 + height * (TRIANGLE_RATIO - 1)) / TRIANGLE_RATIO
    warmup_steps = math.ceil(total_steps * warmup)
    if step < warmup_steps:
        return step / warmup_steps
    if schedule is Schedule.CONSTANT:
        return 1.0
    if schedule is Schedule.TENSION:  # the factor of the last listed step that is reached
        return next(factor for start, factor in reversed(TENSION_STEPS) if step >= start)
    return (total_steps - step) / (total_steps - warmup_steps)


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their joint L2 norm is at most ``max_norm``; return the old norm.

    As in ``torch.nn.utils.clip_grad_norm_``, the factor is ``min(1, max_norm / (norm + 1e-6))``; on
    a CPU, gradients are not multiplied by a factor of 1. A ``max_norm`` of 0 clips nothing.
    """
    parameters = list(parameters)
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    # On a GPU, always multiply by the factor: to compare the norm first would wait for the GPU.
    # ``not ... <=`` is true for a norm of NaN, too.
    if max_norm > 0 and (norm.device.type != "cpu" or not norm + 1e-6 <= max_norm):
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
