"""DCLR: random negatives moved to where they are hardest, and the loss of its released code."""

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.info_nce import info_nce
from simcse_cli.losses.similarity import l2_normalize, similarity_matrix
from simcse_cli.machine.precision import no_autocast

STEP = 1e-3  # step length in the released code


def ascended(
    noise: Tensor,
    anchors: Tensor,
    positives: Tensor,
    *,
    temperature: float,
    n_steps: int,
    excluded: Tensor | None = None,
) -> Tensor:
    """Return the noise after ``n_steps`` steps of length 0.001 that raise the in-batch loss.

    Source: Zhou et al. 2022 (DCLR) and the authors' code. For each noise vector g, ``grad`` is the
    gradient of InfoNCE with the noise as extra negatives:

        g <- g + 0.001 grad / |grad|

    A vector with a zero gradient stays where it is. ``noise`` is ``(K, D)``, ``anchors`` and
    ``positives`` are ``(N, D)``, already gathered over processes; ``excluded`` is as in
    ``info_nce``. No gradient flows through the result. With 0 steps, the noise is returned as it
    came.
    """
    anchors = anchors.detach()
    positives = positives.detach()
    noise = noise.to(anchors.dtype)
    for _ in range(n_steps):
        leaf = noise.detach().requires_grad_()
        loss = info_nce(
            anchors, positives, temperature=temperature, extra_negatives=leaf, excluded=excluded
        )
        (gradient,) = torch.autograd.grad(loss, leaf)
        noise = noise + STEP * l2_normalize(gradient)
    return noise.detach()


def released_dclr(
    anchors: Tensor, positives: Tensor, noise: Tensor, false: Tensor, *, temperature: float
) -> Tensor:
    """Return the loss that the released code of DCLR computes, in nats.

    The logits ``(N, N + K)`` are the cosines of the anchors with the positives and with ``noise``
    ``(K, D)``, divided by the temperature. A logit is set to 0 where ``false`` ``(N, N)`` marks a
    false negative. The loss compares the row-wise softmax of the logits with the identity matrix:
    it is the mean of the binary cross-entropies of all entries.

    If all logits are equal in M = N + K columns, the loss is
    ``(ln M - (M - 1) ln(1 - 1 / M)) / M``: 0.45056 for M = 6.
    """
    logits = similarity_matrix(anchors, torch.cat([positives, noise])) / temperature
    is_false = functional.pad(false, (0, len(noise)))  # noise vectors are never false negatives
    probabilities = logits.masked_fill(is_false, 0.0).softmax(dim=1)
    target = torch.eye(*logits.shape, dtype=logits.dtype, device=logits.device)
    with no_autocast(logits.device):  # autocast of a GPU refuses this function
        return functional.binary_cross_entropy(probabilities, target)
