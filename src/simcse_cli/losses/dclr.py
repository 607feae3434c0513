"""DCLR: random vectors as negatives, pushed to where they are hardest, and its released loss."""

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.info_nce import info_nce
from simcse_cli.losses.similarity import l2_normalize, similarity_matrix

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
    anchors = anchors.detach()
    positives = positives.detach()
    noise = noise.to(anchors.dtype)
    for _ in range(n_steps):
        moved = noise.detach().requires_grad_()
        loss = info_nce(
            anchors, positives, temperature=temperature, extra_negatives=moved, excluded=excluded
        )
        (gradient,) = torch.autograd.grad(loss, moved)
        noise = noise + STEP * l2_normalize(gradient)
    return noise.detach()


def released_dclr(
    anchors: Tensor, positives: Tensor, noise: Tensor, false: Tensor, *, temperature: float
) -> Tensor:
    """Return the loss that the released code of DCLR computes, a mean over entries, in nats.

    The logits are the cosines over temperature of anchors with positives and ``noise``, ``(N, N +
    K)``, and 0 at pairs that are ``false`` ``(N, N)`` negatives; R is their softmax, and the loss
    the mean binary cross-entropy of all entries of R against the identity.

    Equal logits in M columns: ``(ln M - (M - 1) ln(1 - 1 / M)) / M``, 0.45056 for 6.
    """
    logits = similarity_matrix(anchors, torch.cat([positives, noise])) / temperature
    is_false = functional.pad(false, (0, len(noise)))  # noise is no false negative
    shares = logits.masked_fill(is_false, 0.0).softmax(dim=1)
    target = torch.eye(*logits.shape, dtype=logits.dtype, device=logits.device)
    return functional.binary_cross_entropy(shares, target)
