"""The augmentations of words: each drops, keeps or moves units, and the rounding rules that say how many.

An operator takes units (words, or graphemes), a rate where it has one, and a ``random.Random``; it returns new
units and never an empty list. What the papers leave open is marked in ``docs/augmentation.md``.
"""

import math
import random
from collections.abc import Sequence

from simcse_cli.augment.text_units import split_graphemes

MAX_SYNONYMS = 10  # nlpaug's default
_ROUNDING_SLACK = 1e-9  # (1 - 0.9) * 20 is 1.9999999999999996 in floating point and means 2


def n_kept(n_units: int, rate: float) -> int:
    """Return how many of ``n_units`` crop and deletion keep: ``max(1, floor((1 - rate) n))``.

    With two or more units and any rate above 0 at least one goes. 10 units at 0.1: 9; 19 at 0.1: 17.
    """
    return max(1, math.floor((1 - rate) * n_units + _ROUNDING_SLACK))


def n_chosen(n_units: int, rate: float) -> int:
    """Return how many of ``n_units`` masking changes: ``max(1, round(rate n))``, halves to even."""
    return min(n_units, max(1, round(rate * n_units)))


def crop(units: Sequence[str], rate: float, rng: random.Random) -> list[str]:
    """Keep one continuous span of ``n_kept`` units, every start equally likely. Source: Gao et al. 2021."""
    kept = n_kept(len(units), rate)
    start = rng.randrange(len(units) - kept + 1)
    return list(units[start : start + kept])


def delete(units: Sequence[str], rate: float, rng: random.Random) -> list[str]:
    """Keep ``n_kept`` units in order, every choice of positions equally likely. Source: Gao et al. 2021."""
    n_units = len(units)
    dropped = set(rng.sample(range(n_units), n_units - n_kept(n_units, rate)))
    return [unit for position, unit in enumerate(units) if position not in dropped]


def delete_one(units: Sequence[str], rng: random.Random) -> list[str]:
    """Drop one unit, chosen uniformly; a single unit stays. Source: Gao et al. 2021."""
    if len(units) < 2:
        return list(units)
    position = rng.randrange(len(units))
    return [*units[:position], *units[position + 1 :]]


def shuffle(units: Sequence[str], rate: float, rng: random.Random) -> list[str]:
    """Choose ``round(rate n)`` positions uniformly and permute what stands there; fewer than 2: unchanged.

    Source: Farina and Pappadopulo 2024, who apply it to sub-words: see :func:`shuffle_token_ids`. All
    permutations are equally likely, the identity included, so the units may come back as they were.
    """
    shuffled = list(units)
    for target, source in _shuffled_positions(range(len(units)), rate, rng):
        shuffled[target] = units[source]
    return shuffled


def shuffle_token_ids(
    token_ids: Sequence[int], special_mask: Sequence[int], rate: float, rng: random.Random
) -> list[int]:
    """Shuffle the sub-words of one sentence before padding; special tokens stay where they are.

    Source: Farina and Pappadopulo 2024 (arXiv 2310.17690): a fraction of the input tokens is permuted, in
    both branches independently. The count is ``round(rate L)`` with L the tokens that are not special;
    below 2 nothing changes.

    Args:
        token_ids: ``(L,)`` ids with special tokens.
        special_mask: ``(L,)``; non-zero marks a special token (the tokenizer's ``special_tokens_mask``).
        rate: fraction of the ordinary tokens, in (0, 1].
        rng: source of randomness.

    Returns:
        ``(L,)`` the same ids, reordered.
    """
    shuffled = list(token_ids)
    ordinary = [position for position, special in enumerate(special_mask) if not special]
    for target, source in _shuffled_positions(ordinary, rate, rng):
        shuffled[target] = token_ids[source]
    return shuffled


def _shuffled_positions(positions: Sequence[int], rate: float, rng: random.Random) -> list[tuple[int, int]]:
    count = round(rate * len(positions))
    if count < 2:
        return []
    chosen = sorted(rng.sample(positions, count))
    return list(zip(chosen, rng.sample(chosen, count), strict=True))


def crop_prefix_chars(text: str, rate: float) -> str:
    """Keep the first ``n_kept`` characters: the crop of the reproducibility report, not the paper's.

    Nothing is random and words are cut; it exists so that the report's row can be repeated. Characters are
    graphemes.
    """
    graphemes = split_graphemes(text)
    return "".join(graphemes[: n_kept(len(graphemes), rate)])


def n_synonyms(n_words: int, rate: float | None) -> int:
    """Return how many words get a synonym: one, or with a rate nlpaug's ``ceil(rate n)``, from 1 to 10."""
    if rate is None:
        return 1
    return max(1, min(MAX_SYNONYMS, math.ceil(rate * n_words - _ROUNDING_SLACK)))
