"""The optimizer of BERT's authors, which PyTorch does not have."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

BETA_1 = 0.9
BETA_2 = 0.999


class UncorrectedAdamW(torch.optim.Optimizer):
    """AdamW without bias correction, the optimizer with which BERT was trained.

    The update is that of ``AdamW(correct_bias=False)`` in transformers 2 to 4. For a weight w with
    the gradient g and the moments m and v:

        m = 0.9 m + 0.1 g
        v = 0.999 v + 0.001 g^2
        w -= lr m / (sqrt(v) + eps)
        w -= lr weight_decay w

    The moments start at 0, so the first step is ``0.1 / sqrt(0.001) = 3.16`` times that of AdamW
    with bias correction.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        eps: float,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            for p in parameters:
                if not self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
                    self.state[p]["exp_avg_sq"] = torch.zeros_like(p)

            # Update all parameters together: fewer, larger operations are faster.
            gradients = [p.grad for p in parameters]
            first_moments = [self.state[p]["exp_avg"] for p in parameters]
            second_moments = [self.state[p]["exp_avg_sq"] for p in parameters]
            torch._foreach_lerp_(first_moments, gradients, 1 - BETA_1)
            torch._foreach_mul_(second_moments, BETA_2)
            torch._foreach_addcmul_(second_moments, gradients, gradients, 1 - BETA_2)
            denominators = torch._foreach_sqrt(second_moments)
            torch._foreach_add_(denominators, group["eps"])
            torch._foreach_addcdiv_(parameters, first_moments, denominators, -group["lr"])
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
