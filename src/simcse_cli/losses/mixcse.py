"""MixCSE: hard negatives mixed from an anchor's positive and another row's."""

import torch
from torch import Tensor
from torch.nn import functional

from simcse_cli.losses.info_nce import check_pairs
from simcse_cli.losses.similarity import similarity_matrix
from simcse_cli.settings.choices import MixMasked, MixSides, Similarity


def mixcse(
    anchors: Tensor,
    positives: Tensor,
    *,
    temperature: float,
    mix: float,
    masked: MixMasked = MixMasked.EXCLUDE,
    sides: MixSides = MixSides.BOTH,
    similarity: Similarity = Similarity.COSINE,
    excluded: Tensor | None = None,
) -> Tensor:
    """Return the in-batch loss with mixed negatives, mean over anchors, in nats.

    Source: Zhang et al. 2022 (MixCSE) and the authors' code. Row i is mixed with the next one:
    ``u_i = mix p_i + (1 - mix) p_(i+1)``, v_i likewise of anchors, cyclic, constants. The logits
    are the similarities of anchors and positives, of anchors and u, and of v and positives,
    ``(N, 3N)``, over temperature. Where a mixed vector holds a row's pair by its smaller part, at
    (i, i - 1) and (i, i + 1), it is excluded; ``zero`` puts 0 there, as the released code does.

    ``anchors`` and ``positives`` are ``(N, D)``, any norm, already gathered over processes, so that
    partners are those of the global batch. Pairs that are ``excluded`` ``(N, N)`` are in no block.

    All vectors equal: ``ln(3N - 2)``, or ``ln(3N - 2 + 2 exp(-1 / temperature))`` with ``zero``.
    """
    check_pairs(anchors, positives, temperature)
    is_own = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    known = torch.zeros_like(is_own) if excluded is None else excluded
    blocks = [similarity_matrix(anchors, positives, similarity).masked_fill(known, -torch.inf)]

    # Anchors with mixed positives; mixed anchors with positives.
    own_mixed = (known | is_own).roll(-1, dims=1)  # column j holds positive j + 1 as well
    logits = similarity_matrix(anchors, _mixed(positives, mix), similarity)
    blocks.append(_without(logits, own_mixed, known, masked))
    if sides is MixSides.BOTH:
        own_mixed = (known | is_own).roll(-1, dims=0)  # row i holds anchor i + 1 as well
        logits = similarity_matrix(_mixed(anchors, mix), positives, similarity)
        blocks.append(_without(logits, own_mixed, known, masked))
    logits = torch.cat(blocks, dim=1) / temperature
    return functional.cross_entropy(logits, torch.arange(len(anchors), device=anchors.device))


def _mixed(vectors: Tensor, mix: float) -> Tensor:
    return (mix * vectors + (1 - mix) * vectors.roll(-1, dims=0)).detach()


def _without(logits: Tensor, own: Tensor, known: Tensor, masked: MixMasked) -> Tensor:
    if masked is MixMasked.ZERO:
        return logits.masked_fill(own, 0.0).masked_fill(known, -torch.inf)
    return logits.masked_fill(own | known, -torch.inf)
