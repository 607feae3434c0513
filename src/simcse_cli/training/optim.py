"""Optimizer and learning-rate schedule."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from simcse_cli.choices import OptimizerName, Schedule
from simcse_cli.config import TrainConfig

# Contrastive Tension: share of the first learning rate from each step on (methods of Carlsson et al. 2021).
TENSION_STEPS = ((0, 1.0), (500, 0.8), (1000, 0.6), (1500, 0.4), (2000, 0.2))


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return the trained parameters, biases and normalisation weights without weight decay."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trained if parameter.ndim >= 2]
    others = [parameter for parameter in trained if parameter.ndim < 2]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def build_optimizer(module: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the optimizer that the settings name, in its fused form where there is one."""
    groups = parameter_groups(module, config.weight_decay)
    match config.optimizer:
        case OptimizerName.ADAMW:
            return torch.optim.AdamW(groups, lr=config.lr, eps=config.adam_eps, fused=True)
        case OptimizerName.ADAM:
            return torch.optim.Adam(groups, lr=config.lr, eps=config.adam_eps, fused=True)
        case OptimizerName.RMSPROP:
            return torch.optim.RMSprop(groups, lr=config.lr)


def lr_factor(schedule: Schedule, step: int, total_steps: int, warmup: float) -> float:
    """Return the share of the peak learning rate at a 0-based step.

    Linear: rises from 0 over ``warmup`` of the steps, then falls to reach 0 after the last one; without
    warm-up the first step has the full rate and the last has ``1 / total_steps`` of it.
    """
    warmup_steps = round(warmup * total_steps)
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if schedule is Schedule.CONSTANT:
        return 1.0
    if schedule is Schedule.TENSION:
        return next(factor for start, factor in reversed(TENSION_STEPS) if step >= start)
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their joint L2 norm is at most ``max_norm``; return the norm they had.

    What ``torch.nn.utils.clip_grad_norm_`` does, factor min(1, max_norm / (norm + 1e-6)), but a CPU leaves
    gradients alone that the factor would leave as they are.
    """
    parameters = list(parameters)
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if norm.device.type != "cpu" or not norm + 1e-6 <= max_norm:  # asking another device would make it wait
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
