"""Cross-entropy over classes, and the pair features that SBERT classifies."""

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.machine.gather import share_of_mean
from simcse_cli.machine.precision import wide

IGNORED_LABEL = -100


def sbert_features(left: Tensor, right: Tensor) -> Tensor:
    """Return ``[u, v, |u - v|]``, ``(B, 3D)``; u and v are row i of ``left`` and of ``right``.

    Source: Reimers and Gurevych 2019, section 3. In their Table 6, these features without ``u * v``
    are the best.
    """
    return torch.cat([left, right, (left - right).abs()], dim=1)


def classification(logits: Tensor, labels: Tensor) -> Tensor:
    """Return this process's share of the mean softmax cross-entropy over all rows, in nats.

    ``logits`` ``(B, K)`` are the rows of this process; ``labels`` ``(B,)`` are integers in
    ``0 .. K-1``. Rows labelled -100 are left out. The mean of the shares over the processes is the
    mean over the rows of all processes.

    Equal logits give ``ln K``; without a labelled row, the loss is 0.
    """
    losses = functional.cross_entropy(
        wide(logits), labels, reduction="none", ignore_index=IGNORED_LABEL
    )
    return share_of_mean(losses.sum(), (labels != IGNORED_LABEL).sum())
