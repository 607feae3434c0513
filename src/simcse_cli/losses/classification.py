"""Cross-entropy over classes, and the pair features that SBERT classifies."""

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.machine.gather import share_of_mean

IGNORED_LABEL = -100


def sbert_features(left: Tensor, right: Tensor) -> Tensor:
    """Return ``[u, v, |u - v|]`` for each pair, ``(B, D)`` and ``(B, D)`` to ``(B, 3D)``.

    Source: Reimers and Gurevych 2019, section 3, the best row of their Table 6; no ``u * v`` term.
    """
    return torch.cat([left, right, (left - right).abs()], dim=1)


def classification(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the softmax cross-entropy, mean over the rows of all processes, in nats.

    ``logits`` are ``(B, K)``, rows of this process; ``labels`` ``(B,)`` integers in ``0 .. K-1``;
    rows labelled -100 are left out. The scalar is this process's share of the mean. Equal logits:
    ``ln K``; no labelled row: 0.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = functional.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED_LABEL)
    return share_of_mean(losses.sum(), (labels != IGNORED_LABEL).sum())
