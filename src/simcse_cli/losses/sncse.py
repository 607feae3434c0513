"""SNCSE's margin: a negated sentence is a little less similar than the positive."""

from torch import Tensor

from simcse_cli.losses.similarity import l2_normalize


def soft_negative_margin(
    anchors: Tensor, positives: Tensor, negations: Tensor, *, low: float, high: float
) -> Tensor:
    """Return the mean over rows of ``relu(d + low) + relu(-d - high)``.

    Source: Wang et al. 2022 (SNCSE) and the authors' code. d is the cosine of an anchor and its
    negation minus the cosine of the anchor and its positive. The arguments are ``(N, D)``, any
    norm. The term of a row is 0 where d lies between ``-high`` and ``-low``.

    Negations equal to the positives give ``low``. Positives equal to the anchors and negations
    opposite to them have d = -2 and give ``2 - high``: 1.7 for 0.3.
    """
    anchors = l2_normalize(anchors)
    to_negation = (anchors * l2_normalize(negations)).sum(1)
    difference = to_negation - (anchors * l2_normalize(positives)).sum(1)
    return ((difference + low).relu() + (-difference - high).relu()).mean()
