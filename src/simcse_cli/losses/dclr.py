"""DCLR: random vectors as negatives, pushed to where they are hardest."""

import torch
from torch import Tensor

from simcse_cli.losses.info_nce import info_nce
from simcse_cli.losses.similarity import l2_normalize

STEP = 1e-3  # of the released code


def ascended(
    noise: Tensor,
    anchors: Tensor,
    positives: Tensor,
    *,
    temperature: float,
    n_steps: int,
    excluded: Tensor | None = None,
) -> Tensor:
    """Return noise vectors after steps of length 0.001 up the in-batch loss, as constants.

    Source: Zhou et al. 2022 (DCLR) and the authors' code: ``g <- g + 0.001 grad / |grad|``, with
    the gradient of InfoNCE over positives and noise; a vector without a gradient stays.

    ``noise`` is ``(K, D)``, ``anchors`` and ``positives`` are ``(N, D)``, already gathered over
    processes. 0 steps: the noise itself.
    """
    anchors, positives, noise = anchors.detach(), positives.detach(), noise.to(anchors.dtype)
    for _ in range(n_steps):
        moved = noise.detach().requires_grad_()
        loss = info_nce(
            anchors, positives, temperature=temperature, extra_negatives=moved, excluded=excluded
        )
        (gradient,) = torch.autograd.grad(loss, moved)
        noise = noise + STEP * l2_normalize(gradient)
    return noise.detach()
