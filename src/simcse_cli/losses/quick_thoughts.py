"""QuickThoughts: each sentence of a batch finds its neighbours."""

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.similarity import similarity_matrix
from simcse_cli.settings.choices import Similarity


def quick_thoughts(inputs: Tensor, outputs: Tensor, neighbours: Tensor) -> Tensor:
    """Return the QuickThoughts loss of sentences in document order, mean over rows, in nats.

    Source: Logeswaran and Lee 2018, with the released code's two habits: scores are raw dot
    products of the two encoders, and a sentence's score with itself is set to 0 (not to minus
    infinity), so it keeps its share ``exp(0)`` of the denominator. The target spreads evenly over
    the true neighbours of each row.

    ``inputs`` ``(N, D)`` are rows of the first encoder, ``outputs`` the same sentences through the
    second; ``neighbours`` ``(N, N)`` is true where sentence j stands beside sentence i. A
    ValueError for other shapes.

    The mean is over the rows with a neighbour; 0 if no row has one. All vectors zero: ``ln N``.
    """
    n_rows = len(inputs)
    if inputs.shape != outputs.shape or neighbours.shape != (n_rows, n_rows):
        raise ValueError(
            f"inputs {tuple(inputs.shape)}, outputs {tuple(outputs.shape)} and neighbours "
            f"{tuple(neighbours.shape)}: need (N, D), (N, D) and (N, N)"
        )
    scores = similarity_matrix(inputs, outputs, Similarity.DOT)
    scores = scores.masked_fill(torch.eye(n_rows, dtype=torch.bool, device=scores.device), 0.0)
    # A row without a neighbour has no target, and is left out of the mean.
    n_neighbours = neighbours.sum(dim=1)
    targets = neighbours.to(scores.dtype) / n_neighbours.clamp_min(1).unsqueeze(1)
    row_losses = -(targets * functional.log_softmax(scores, dim=1)).sum(dim=1)
    return row_losses.sum() / (n_neighbours > 0).sum().clamp_min(1)
