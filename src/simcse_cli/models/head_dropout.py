"""Dropout of whole attention heads."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from simcse_cli.errors import ConfigError
from simcse_cli.packed.architectures import ARCHITECTURES


@dataclass(frozen=True)
class HeadDropout:
    """Sets whole heads of attention to 0 in training: each row draws its own, in each layer.

    Source: Liu et al. 2021 (Mirror-BERT), the authors' code. A head of a row is dropped with
    probability ``rate``; the others are scaled by heads / kept. With 4 heads of which one is kept,
    that one is multiplied by 4. If a row keeps none, its attention is 0; the authors' code gives
    0/0.

    The object is a forward pre-hook of the layer that mixes the heads, whose input is
    ``(B, L, n_heads * width of a head)``.
    """

    rate: float
    n_heads: int

    def __call__(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor] | None:
        if not module.training:
            return None
        (states,) = inputs
        is_kept = torch.empty(len(states), 1, self.n_heads, 1, device=states.device)
        is_kept.bernoulli_(1 - self.rate)
        n_kept = is_kept.sum(dim=2, keepdim=True).clamp(min=1)
        factors = is_kept * (self.n_heads / n_kept)
        by_head = states.reshape(*states.shape[:2], self.n_heads, -1)
        return ((by_head * factors).view_as(states).to(states.dtype),)


def drop_heads(backbone: Any, rate: float, *, name: str) -> None:
    """Let a transformer drop heads in training, in passes over padded rows.

    Raise ConfigError for an architecture whose layers are not known.
    """
    architecture = ARCHITECTURES.get(backbone.config.model_type)
    if architecture is None:
        raise ConfigError(
            f"--set head_dropout={rate:g}: the attention heads of {name} are not known "
            f"({backbone.config.model_type})",
            hint=f"leave it out, or use a model of these: {', '.join(ARCHITECTURES)}",
        )
    hook = HeadDropout(rate, backbone.config.num_attention_heads)
    for index in range(backbone.config.num_hidden_layers):
        mixer = backbone.get_submodule(architecture.layer_names(index).out_proj)
        mixer.register_forward_pre_hook(hook)
