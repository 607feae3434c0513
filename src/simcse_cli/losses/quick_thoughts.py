"""QuickThoughts: each sentence of a batch finds its neighbours."""

from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.similarity import own_pairs, similarity_matrix
from simcse_cli.settings.choices import Similarity


def quick_thoughts(inputs: Tensor, outputs: Tensor, neighbours: Tensor) -> Tensor:
    """Return the QuickThoughts loss of sentences in document order, mean over rows, in nats.

    Source: Logeswaran and Lee 2018 and their released code. The logits are dot products of the
    vectors of two encoders. As in the code, the logit of a sentence with itself is set to 0, not to
    minus infinity, so it adds ``exp(0)`` to the denominator. The target of a row gives all
    neighbours of the sentence the same probability.

    ``inputs`` ``(N, D)`` are the sentences' vectors by the first encoder, ``outputs`` ``(N, D)``
    those by the second. ``neighbours`` ``(N, N)`` is true where sentence j stands beside sentence
    i. Other shapes raise a ValueError.

    Rows without a neighbour are left out; if no row has one, the loss is 0. Zero vectors give
    ``ln N``.
    """
    n_rows = len(inputs)
    if inputs.shape != outputs.shape or neighbours.shape != (n_rows, n_rows):
        raise ValueError(
            f"inputs {tuple(inputs.shape)}, outputs {tuple(outputs.shape)} and neighbours "
            f"{tuple(neighbours.shape)}: need (N, D), (N, D) and (N, N)"
        )
    scores = similarity_matrix(inputs, outputs, Similarity.DOT)
    scores = scores.masked_fill(own_pairs(scores), 0.0)
    # A row without a neighbour has no target, and is left out of the mean.
    n_neighbours = neighbours.sum(dim=1)
    targets = neighbours.to(scores.dtype) / n_neighbours.clamp_min(1).unsqueeze(1)
    row_losses = -(targets * functional.log_softmax(scores, dim=1)).sum(dim=1)
    return row_losses.sum() / (n_neighbours > 0).sum().clamp_min(1)
