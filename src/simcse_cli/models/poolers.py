"""The poolers, which turn token states into one sentence vector; a table describes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from simcse_cli.settings.choices import Pooler


class Reduction(StrEnum):
    """How tokens become one vector.

    The values are pooling modes of sentence-transformers, except for ``MASK``, which it lacks.
    """

    CLS = "cls_token"
    MEAN = "mean_tokens"
    MASK = "mask_token"


@dataclass(frozen=True)
class PoolerSpec:
    """One pooler.

    Attributes:
        layers: states to average: 0 is the embedding output, -1 the last layer.
        reduction: the first token, the mean over real tokens, special ones included, or the last
            [MASK], which is that of a template.
        headless: for a pooler with a head behind it, the pooler that stops before the head; else
            None.
    """

    layers: tuple[int, ...]
    reduction: Reduction
    headless: Pooler | None = None

    @property
    def has_head(self) -> bool:
        return self.headless is not None

    @property
    def trains_head(self) -> bool:
        """Whether training puts a new head behind this pooler."""
        return self.has_head or self.reduction is Reduction.MASK

    @property
    def needs_all_layers(self) -> bool:
        return self.layers != (-1,)


# ``avg_first_last`` takes the first transformer layer, as the SimCSE repository, Su et al. and Li
# et al. do; ``avg_emb_last`` takes the embedding output, as the "first-last avg." rows of the
# SimCSE paper did.
POOLERS = {
    Pooler.CLS: PoolerSpec((-1,), Reduction.CLS, headless=Pooler.CLS_BEFORE_POOLER),
    Pooler.CLS_BEFORE_POOLER: PoolerSpec((-1,), Reduction.CLS),
    Pooler.AVG: PoolerSpec((-1,), Reduction.MEAN),
    Pooler.AVG_TOP2: PoolerSpec((-2, -1), Reduction.MEAN),
    Pooler.AVG_FIRST_LAST: PoolerSpec((1, -1), Reduction.MEAN),
    Pooler.AVG_EMB_LAST: PoolerSpec((0, -1), Reduction.MEAN),
    Pooler.MASK: PoolerSpec((-1,), Reduction.MASK),
}


def without_head(pooler: Pooler) -> Pooler:
    """Return the pooler that stops before the head of this pooler, or the same if it has none."""
    return POOLERS[pooler].headless or pooler


def mean_of_layers(tensors: Sequence[Tensor]) -> Tensor:
    """Return the mean of one tensor per layer; a single tensor is returned unchanged."""
    first, *others = tensors
    if not others:
        return first
    return sum(others, first) / len(tensors)


def pool(
    pooler: Pooler,
    hidden_states: Sequence[Tensor],
    attention_mask: Tensor,
    *,
    n_skipped: int = 0,
    is_mask: Tensor | None = None,
) -> Tensor:
    """Return sentence vectors before any head, ``(B, D)``.

    Args:
        pooler: ``cls`` and ``cls_before_pooler`` differ only by the head that follows.
        hidden_states: embedding output first, then one ``(B, L, D)`` tensor per layer; a pooler of
            the last layer needs this layer alone.
        attention_mask: ``(B, L)``, 1 on real tokens.
        n_skipped: leading tokens of each row that do not count (a prompt that pooling ignores).
        is_mask: ``(B, L)``, true on [MASK]; only ``mask`` reads it.
    """
    spec = POOLERS[pooler]
    states = mean_of_layers([hidden_states[layer] for layer in spec.layers])
    if spec.reduction is Reduction.CLS:
        return states[:, n_skipped]
    if spec.reduction is Reduction.MASK:
        if is_mask is None:
            raise ValueError("pool: the pooler mask needs the places of [MASK]")
        return at_last(states, is_mask)
    states = states[:, n_skipped:]
    mask = attention_mask[:, n_skipped:].unsqueeze(-1).to(states.dtype)
    return (states * mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1)


def at_last(states: Tensor, is_mask: Tensor) -> Tensor:
    """Return the state ``(B, D)`` of the last [MASK] of each row.

    ``states`` are ``(B, L, D)``; ``is_mask`` is ``(B, L)``, true on [MASK].
    """
    # The largest number among the true places is that of the last one.
    numbers = torch.arange(1, states.shape[1] + 1, device=states.device)
    places = (is_mask * numbers).argmax(dim=1)
    return states.gather(1, places[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)
