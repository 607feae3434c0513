"""Contrastive Tension: do two encoders agree that a pair is one sentence twice?"""

from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.similarity import check_marked_pairs
from simcse_cli.machine.gather import mean_over_processes
from simcse_cli.machine.precision import wide


def contrastive_tension(left: Tensor, right: Tensor, is_positive: Tensor) -> Tensor:
    """Return this process's share of the mean binary cross-entropy of pairs, in nats.

    Source: Carlsson et al. 2021. The loss is a mean over pairs, as in the authors' code;
    sentence-transformers takes the sum. The probability that both sides of pair i are the same
    sentence is ``sigmoid(left_i . right_i)``.

    ``left`` and ``right`` ``(B, D)`` are the two sides of the pairs of this process: the first
    encoder reads the left side, the second encoder the right side. ``is_positive`` ``(B,)`` is 1 or
    true where both sides are the same sentence, else 0. Other shapes raise a ValueError.

    Orthogonal or zero vectors give ``ln 2``.
    """
    check_marked_pairs(left, right, is_positive)
    scores = (wide(left) * wide(right)).sum(dim=1)
    losses = functional.binary_cross_entropy_with_logits(
        scores, is_positive.to(scores.dtype), reduction="none"
    )
    return mean_over_processes(losses)
