"""Embedding spaces of chosen vectors."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
from numpy.typing import ArrayLike

from simcse_cli.analysis.spaces import EmbeddingSpace, NamedEncoder, PairSet
from simcse_cli.data.senteval import StsSubset


def encoder(label: str, **fields: Any) -> NamedEncoder:
    return NamedEncoder(
        label, f"models/{label}", **{"encode": Mock(), "digest": "abc", "pooler": "avg"} | fields
    )


def space(
    left: ArrayLike,
    right: ArrayLike,
    gold: Sequence[float],
    *,
    label: str = "one",
    data: str = "some",
    **fields: Any,
) -> EmbeddingSpace:
    """Return a space of rated pairs, "left 0" and "right 0" and so on; ``fields`` are those of the space."""
    pairs = StsSubset(
        *([f"{side} {i}" for i in range(len(gold))] for side in ("left", "right")), np.array(gold)
    )
    sides = (np.asarray(side, np.float32) for side in (left, right))
    return EmbeddingSpace(encoder(label), PairSet(data, pairs, len(gold), data), *sides, **fields)
