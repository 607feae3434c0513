"""Scores on held-out pairs during training: correlation, alignment and uniformity."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simcse_cli.analysis.geometry import alignment, uniformity
from simcse_cli.config import DevMetric
from simcse_cli.data.senteval import StsSubset, read_stsb_file
from simcse_cli.evaluation.correlation import correlate, cosine_rows
from simcse_cli.evaluation.types import Encode
from simcse_cli.names import Metric

POSITIVE_ABOVE = 4.0  # gold score of the pairs that count as positives for alignment


@dataclass(frozen=True)
class DevScore:
    """One dev evaluation; None where the data or the vectors do not define a value."""

    score: float | None
    alignment: float | None
    uniformity: float | None


def read_dev_set(path: Path | str) -> StsSubset:
    """Return the pairs of an STS-B file."""
    return read_stsb_file(path)


def evaluate_dev(encode: Encode, pairs: StsSubset, metric: DevMetric = DevMetric.SPEARMAN) -> DevScore:
    """Score vectors on dev pairs.

    Args:
        encode: maps sentences to vectors, dropout off.
        pairs: sentences with gold scores in [0, 5].
        metric: correlation of cosine and gold.

    Returns:
        The correlation as a fraction; alignment over pairs with a gold score above 4, uniformity over all
        sentences of both sides (Wang and Isola 2020; Gao et al. 2021, section 3).
    """
    n_pairs = pairs.n_pairs
    vectors = encode([*pairs.left, *pairs.right])
    if not np.isfinite(vectors).all():
        return DevScore(None, None, None)
    left, right = vectors[:n_pairs], vectors[n_pairs:]
    positive = pairs.gold > POSITIVE_ABOVE
    return DevScore(
        correlate(Metric(metric.value), cosine_rows(left, right), pairs.gold),
        alignment(left[positive], right[positive]) if positive.any() else None,
        uniformity(vectors) if len(vectors) > 1 else None,
    )
