"""Dropout masks at a small share of the price of ``torch.nn.functional.dropout`` on a CPU."""

import numpy as np
import torch
from torch import Tensor

_RESOLUTION = 1 << 16  # a mask element costs 16 random bits


class DropoutMasks:
    """The masks of one forward pass, all from one number drawn from PyTorch's generator.

    One ``torch.randint`` seeds an SFC64 generator whose 16-bit words are compared with a threshold, about
    eight times faster than ``F.dropout``. Whoever restores ``torch.get_rng_state()`` (a resumed run, cached
    gradients, activation checkpointing) therefore gets the same masks again, with nothing else to save.

    A probability p counts as the nearest multiple q of 2^-16 (0.1 as 0.100006). Kept values are scaled by
    1 / (1 - q) in the arithmetic of the addition or product that follows, so the expectation is exact: in
    bfloat16, ``F.dropout`` rounds the factor 1.1111 to 1.1094.
    """

    def __init__(self) -> None:
        seed = int(torch.randint(0, 2**63 - 1, (), dtype=torch.int64))
        self._words = np.random.SFC64(seed)

    def keep(self, like: Tensor, p: float) -> tuple[Tensor, float]:
        """Return a mask of ones and zeros of the shape and type of ``like``, and the scale of what is kept.

        The scale is 1 / P(one); each element is an independent draw.
        """
        threshold = min(round(p * _RESOLUTION), _RESOLUTION - 1)
        n_words = -(-like.numel() * 2 // 8)
        draws = torch.from_numpy(self._words.random_raw(n_words).view(np.int16))[: like.numel()]
        mask = torch.ge(draws, threshold - _RESOLUTION // 2, out=like.new_empty(like.numel()).detach())
        return mask.view(like.shape), _RESOLUTION / (_RESOLUTION - threshold)


def add_dropped(residual: Tensor, update: Tensor, p: float, masks: DropoutMasks | None) -> Tensor:
    """Return ``residual + dropout(update)``; without masks (evaluation) or with p = 0, their plain sum."""
    if masks is None or p == 0:
        return residual + update
    mask, scale = masks.keep(update, p)
    return torch.addcmul(residual, update, mask, value=scale)
