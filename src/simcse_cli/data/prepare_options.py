"""The settings of ``simcse prepare`` as plain values; imports nothing heavy, so ``--help`` is instant."""

from dataclasses import dataclass
from enum import StrEnum

NEAR_THRESHOLD = 0.7


class Dedup(StrEnum):
    """Which repeated rows are dropped."""

    EXACT = "exact"
    NEAR = "near"


class PositiveLabel(StrEnum):
    """Which NLI hypotheses become positives (the rows of Table 4)."""

    ENTAILMENT = "entailment"
    NEUTRAL = "neutral"
    CONTRADICTION = "contradiction"
    ALL = "all"


class HardNegativeLabel(StrEnum):
    """Which NLI hypotheses become hard negatives."""

    CONTRADICTION = "contradiction"
    NEUTRAL = "neutral"
    BOTH = "both"
    NONE = "none"


@dataclass(frozen=True)
class RefineOptions:
    """What becomes of rows between corpus and file.

    Attributes:
        min_words: fewest words of a text, separated by white space.
        max_words: most words of a text.
        dedup: drop repeated rows, or near ones too.
        near_threshold: Jaccard similarity from which rows are near duplicates, and texts near leaks.
        sample: how many rows to draw at random after filtering; None for all.
        keep_order: keep a sample in the order of the input.
        seed: of the sample.
        strict: fail when lint finds anything.
    """

    min_words: int | None = None
    max_words: int | None = None
    dedup: Dedup | None = None
    near_threshold: float = NEAR_THRESHOLD
    sample: int | None = None
    keep_order: bool = False
    seed: int = 42
    strict: bool = False
