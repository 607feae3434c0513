"""The settings of ``simcse prepare`` as plain values; imports nothing heavy, so ``--help`` is instant."""

from dataclasses import dataclass

from simcse_cli.choices import Dedup

NEAR_THRESHOLD = 0.7


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
