"""NT-Xent, the loss of DeCLUTR: every vector of both views is an anchor."""

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.info_nce import check_pairs
from simcse_cli.losses.similarity import own_pairs, similarity_matrix


def nt_xent(
    anchors: Tensor, positives: Tensor, *, temperature: float, excluded: Tensor | None = None
) -> Tensor:
    """Return the normalised-temperature cross-entropy of two views, mean over 2N vectors, in nats.

    Source: Chen et al. 2020, Eq. 1, as Giorgi et al. 2021 (DeCLUTR) use it. Each of the 2N vectors
    is classified among the other 2N - 1, by cosines divided by the temperature. The right class is
    its partner, the vector of the same row in the other view; the remaining 2(N - 1) are negatives.

    ``anchors`` and ``positives`` are ``(N, D)``, any norm, already gathered over processes.
    ``temperature`` has no unit; DeCLUTR uses 0.05. ``excluded`` ``(N, N)`` is true where rows i
    and j are not to be negatives of each other. Other shapes, or a temperature that is not above 0,
    raise a ValueError.

    Equal embeddings give ``ln(2N - 1)``; a single row gives 0.
    """
    check_pairs(anchors, positives, temperature)
    n_rows = len(anchors)
    views = torch.cat([anchors, positives])
    logits = similarity_matrix(views, views) / temperature  # (2N, 2N)
    # No vector is compared with itself; the partner of row i is row i + N, and vice versa.
    left_out = own_pairs(logits)
    if excluded is not None:
        left_out = left_out | excluded.repeat(2, 2)
    logits = logits.masked_fill(left_out, -torch.inf)
    partners = torch.arange(2 * n_rows, device=logits.device).roll(n_rows)
    return functional.cross_entropy(logits, partners)
