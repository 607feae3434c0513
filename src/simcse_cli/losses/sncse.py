"""SNCSE's margin: a negated sentence is a little less similar than the positive."""

from torch import Tensor

from simcse_cli.losses.similarity import l2_normalize


def soft_negative_margin(
    anchors: Tensor, positives: Tensor, negations: Tensor, *, low: float, high: float
) -> Tensor:
    """Return the mean of ``relu(D + low) + relu(-D - high)``, without unit.

    Source: Wang et al. 2022 (SNCSE) and the authors' code. D is the anchor's cosine with its
    negation less that with its positive, all three ``(N, D)`` of any norm. The term is 0 where D
    lies between ``-high`` and ``-low``.

    Negations equal to the positives: ``low``. Positives equal to the anchors and negations opposite
    to them: D is -2, and the term ``2 - high``, 1.7 for 0.3.
    """
    anchors = l2_normalize(anchors)
    to_negation = (anchors * l2_normalize(negations)).sum(1)
    difference = to_negation - (anchors * l2_normalize(positives)).sum(1)
    return ((difference + low).relu() + (-difference - high).relu()).mean()
