"""SimCSE++: negatives without dropout, and contrast between the dimensions of two views."""

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.barlow_twins import checked_views, standardise
from simcse_cli.losses.info_nce import check_pairs
from simcse_cli.losses.similarity import similarity_matrix
from simcse_cli.machine.precision import no_autocast
from simcse_cli.settings.choices import Similarity


def off_dropout(
    anchors: Tensor,
    positives: Tensor,
    plain: Tensor,
    *,
    temperature: float,
    positive_scale: float = 1.0,
    similarity: Similarity = Similarity.COSINE,
    excluded: Tensor | None = None,
) -> Tensor:
    """Return the in-batch loss with negatives without dropout, mean over rows, in nats.

    Source: Xu et al. 2023 (SimCSE++) and the authors' code. With ``s = similarity / temperature``
    of ``anchors`` and ``positives`` and ``s0`` that of the ``plain`` vectors among themselves, row
    i loses ``-a s_ii + ln(exp(a s_ii) + sum over j != i of exp(s0_ij))``, a = ``positive_scale``.

    All three are ``(N, D)``, any norm, already gathered over processes. Pairs that are ``excluded``
    ``(N, N)`` are no negatives.

    All vectors equal and scale 1: ``ln N``; all three equal: InfoNCE.
    """
    check_pairs(anchors, positives, temperature)
    right = similarity_matrix(anchors, positives, similarity).diagonal() / temperature
    others = similarity_matrix(plain, plain, similarity) / temperature  # (N, N)
    if excluded is not None:
        others = others.masked_fill(excluded, -torch.inf)
    is_own = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    logits = torch.where(is_own, positive_scale * right[:, None], others)
    return functional.cross_entropy(logits, torch.arange(len(anchors), device=anchors.device))


def dimension_contrast(view_a: Tensor, view_b: Tensor, *, temperature: float) -> Tensor:
    """Return the contrast between dimensions, mean over those of the first view, in nats.

    Source: Xu et al. 2023 (SimCSE++) and the authors' code. ``C = Y_a^T Y_b / (N temperature)``
    with columns standardised over the batch (biased variance, + 1e-5); dimension k of one view is
    classified among all of the other: ``-C_kk + ln sum over l of exp(C_kl)``.

    The views are ``(N, D)``, already gathered over processes; N is at least 2, else a ValueError.

    Equal views of independent columns: about ``ln(exp(1 / t) + D - 1) - 1 / t``; constant columns:
    ``ln D``.
    """
    view_a, view_b = checked_views(view_a, view_b)
    with no_autocast(view_a.device):
        correlation = standardise(view_a).T @ standardise(view_b) / len(view_a)  # (D, D)
        own = torch.arange(len(correlation), device=correlation.device)
        return functional.cross_entropy(correlation / temperature, own)
