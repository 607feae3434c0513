"""MixCSE: hard negatives that are mixtures of the vectors of two rows."""

import torch
from torch import Tensor

from simcse_cli.losses.info_nce import check_pairs
from simcse_cli.losses.similarity import own_pairs, own_row_loss, similarity_matrix
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

    Source: Zhang et al. 2022 (MixCSE) and the authors' code. Each row is mixed with the next one,
    the last with the first; a_i is anchor i and p_i positive i:

        u_i = mix p_i + (1 - mix) p_(i+1)
        v_i = mix a_i + (1 - mix) a_(i+1)

    No gradient flows through u and v. The logits are similarities divided by the temperature: of
    anchors with positives, of anchors with u, and, if ``sides`` is both, of v with positives. They
    are ``(N, 3N)``, or ``(N, 2N)`` without v.

    u_(i-1) contains the positive of anchor i, and v_i contains the anchor of positive i + 1, both
    with the weight 1 - mix. ``masked`` says what happens to the logits of these pairs: ``exclude``
    leaves them out, ``zero`` sets their similarity to 0, as the released code does.

    ``anchors`` and ``positives`` are ``(N, D)``, any norm, already gathered over processes, so that
    rows are mixed within the global batch. ``excluded`` ``(N, N)`` is true where positive j is not
    to be a negative of anchor i. The logit of anchor i with u_j is then left out, and the logit
    with u_(j-1), which contains positive j too, is masked. The same holds for v.

    With both sides and the cosine, N equal anchors and positives give ``ln(3N - 2)``, or
    ``ln(3N - 2 + 2 exp(-1 / temperature))`` with ``zero``.
    """
    check_pairs(anchors, positives, temperature)
    is_own = own_pairs(anchors)
    is_excluded = torch.zeros_like(is_own) if excluded is None else excluded
    plain = similarity_matrix(anchors, positives, similarity)
    blocks = [plain.masked_fill(is_excluded, -torch.inf)]

    # Add the blocks of anchors with mixed positives, and of mixed anchors with positives.
    is_pair = is_excluded | is_own
    with_u = similarity_matrix(anchors, _mixed(positives, mix), similarity)
    contains_pair = is_pair.roll(-1, dims=1)  # u_j also contains positive j + 1
    blocks.append(_masked(with_u, contains_pair, is_excluded, masked))
    if sides is MixSides.BOTH:
        with_v = similarity_matrix(_mixed(anchors, mix), positives, similarity)
        contains_pair = is_pair.roll(-1, dims=0)  # v_i also contains anchor i + 1
        blocks.append(_masked(with_v, contains_pair, is_excluded, masked))
    logits = torch.cat(blocks, dim=1) / temperature
    return own_row_loss(logits)


def _mixed(vectors: Tensor, mix: float) -> Tensor:
    """Return each vector mixed with the next one, without a gradient."""
    return (mix * vectors + (1 - mix) * vectors.roll(-1, dims=0)).detach()


def _masked(
    similarities: Tensor, contains_pair: Tensor, is_excluded: Tensor, masked: MixMasked
) -> Tensor:
    """Return the similarities with two kinds of entries changed.

    Where ``contains_pair`` is true, an entry becomes 0 or is left out, as ``masked`` says. Where
    ``is_excluded`` is true, it is left out.
    """
    if masked is MixMasked.ZERO:
        return similarities.masked_fill(contains_pair, 0.0).masked_fill(is_excluded, -torch.inf)
    return similarities.masked_fill(contains_pair | is_excluded, -torch.inf)
