"""Dropout masks at a small share of the price of ``torch.nn.functional.dropout`` on a CPU."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

NO_DROPOUT = -1
"""In place of a threshold: nothing is dropped and nothing drawn."""
DRAWS_A_WORD = 4
"""Draws that one word of the generator's stream holds."""
_RESOLUTION = 1 << 16  # a mask element costs 16 random bits


def drop_threshold(p: float) -> int:
    """Return how many of the 2^16 values of a draw mean that an element is dropped."""
    return min(round(p * _RESOLUTION), _RESOLUTION - 1)


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

    def stream(self) -> np.ndarray:
        """Return the generator's four numbers, for code that draws by itself; see ``continue_from``."""
        state: Any = self._words.state
        numbers: np.ndarray = state["state"]["state"].copy()
        return numbers

    def continue_from(self, stream: np.ndarray) -> None:
        """Go on with the generator's four numbers as they are after others have drawn."""
        state: Any = self._words.state
        state["state"]["state"] = stream
        self._words.state = state

    def keep(self, like: Tensor, p: float) -> tuple[Tensor, float]:
        """Return a mask of ones and zeros of the shape and type of ``like``, and the scale of what is kept.

        The scale is 1 / P(one); each element is an independent draw.
        """
        threshold = drop_threshold(p)
        n_words = -(-like.numel() * 2 // 8)
        draws = torch.from_numpy(self._words.random_raw(n_words).view(np.int16))[: like.numel()]
        mask = torch.ge(draws, threshold - _RESOLUTION // 2, out=like.new_empty(like.numel()).detach())
        return mask.view(like.shape), _RESOLUTION / (_RESOLUTION - threshold)


class JoinedMasks(DropoutMasks):
    """Masks for all sentences, where the first and the others draw from masks of their own.

    Asked for the rows of a layer in their order, once or several times over.

    Args:
        first: of the first sentences.
        rest: of the others.
        n_first: number of first sentences.
        n_rows: of all.
    """

    def __init__(self, first: DropoutMasks, rest: DropoutMasks, n_first: int, n_rows: int) -> None:
        self._parts, self._n_first, self._n_rows = (first, rest), n_first, n_rows
        self._n_asked = 0

    def keep(self, like: Tensor, p: float) -> tuple[Tensor, float]:
        """Return a mask and its scale for the next ``len(like)`` sentences; see ``DropoutMasks.keep``."""
        start = self._n_asked % self._n_rows
        self._n_asked += len(like)
        cut = min(max(self._n_first - start, 0), len(like))
        drawn = [
            masks.keep(part, p)
            for masks, part in zip(self._parts, (like[:cut], like[cut:]), strict=True)
            if len(part)
        ]
        return torch.cat([mask for mask, _ in drawn]), drawn[0][1]


def add_dropped(residual: Tensor, update: Tensor, p: float, masks: DropoutMasks | None) -> Tensor:
    """Return ``residual + dropout(update)``; without masks (evaluation) or with p = 0, their plain sum."""
    if masks is None or p == 0:
        return residual + update
    mask, scale = masks.keep(update, p)
    return torch.addcmul(residual, update, mask, value=scale)
