"""Operators on the words (or graphemes) of one sentence: crop, delete, shuffle, and EDA.

An operator on units takes a list of units, a rate if it has one, and a ``random.Random``. It
returns a new list, which is never empty. ``crop_prefix_chars`` and ``mask_span`` take a whole text.
``docs/augmentation.md`` marks what the papers leave open.
"""

import math
import random
import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

from simcse_cli.augment.wordnet import WordNet
from simcse_cli.augment.words import EDA_STOP_WORDS, graphemes_of, split_graphemes

MAX_SYNONYMS = 10  # nlpaug's default
MASKED_SPAN = " [MASK] "
SHORTEST_MASKED = 30  # characters, of Mirror-BERT
MAX_REPEATED = 10  # of ESimCSE; the number of repetitions is below this
_ROUNDING_SLACK = 1e-9  # (1 - 0.9) * 20 is 1.9999999999999996 in floating point and means 2
_EDA_APOSTROPHES = re.compile("['’]")
_EDA_SEPARATORS = re.compile("[^a-z]+")
_INSERTION_TRIES = 9
_SWAP_TRIES = 3

Unit = TypeVar("Unit")


def n_kept(n_units: int, rate: float) -> int:
    """Return how many units cropping and deletion keep: ``max(1, floor((1 - rate) n_units))``.

    The slack in the code makes up for rounding errors of the product. At rate 0.1, 9 of 10 units
    are kept, and 17 of 19. Of two or more units, any rate above 0 drops at least one.
    """
    return max(1, math.floor((1 - rate) * n_units + _ROUNDING_SLACK))


def n_chosen(n_units: int, rate: float) -> int:
    """Return how many units masking changes: ``max(1, round(rate n_units))``, or 0 of 0."""
    return min(n_units, max(1, round(rate * n_units)))


def n_synonyms(n_words: int, rate: float | None) -> int:
    """Return how many words get a synonym: 1 if ``rate`` is None, else ``ceil(rate n_words)``.

    The result is at least 1 and at most 10; the slack in the code makes up for rounding errors.
    Source: nlpaug.
    """
    if rate is None:
        return 1
    return max(1, min(MAX_SYNONYMS, math.ceil(rate * n_words - _ROUNDING_SLACK)))


def crop(units: Sequence[str], rate: float, rng: random.Random) -> list[str]:
    """Keep one span of ``n_kept`` units; every start is equally likely.

    Source: Gao et al. 2021.
    """
    length = n_kept(len(units), rate)
    start = rng.randrange(len(units) - length + 1)
    return list(units[start : start + length])


def crop_prefix_chars(text: str, rate: float) -> str:
    """Keep the first ``n_kept(n, rate)`` of ``n`` graphemes, even if that cuts a word.

    Nothing is random. This is how SimCSE's reproducibility report crops, not the paper itself.
    """
    graphemes = split_graphemes(text)
    return "".join(graphemes[: n_kept(len(graphemes), rate)])


def delete(units: Sequence[str], rate: float, rng: random.Random) -> list[str]:
    """Keep ``n_kept`` of the units, in order; every choice of positions is equally likely.

    Source: Gao et al. 2021.
    """
    n_units = len(units)
    dropped = set(rng.sample(range(n_units), n_units - n_kept(n_units, rate)))
    return [unit for position, unit in enumerate(units) if position not in dropped]


def delete_one(units: Sequence[str], rng: random.Random) -> list[str]:
    """Drop one unit, chosen uniformly; a single unit stays. Source: Gao et al. 2021."""
    if len(units) < 2:
        return list(units)
    position = rng.randrange(len(units))
    return [*units[:position], *units[position + 1 :]]


def shuffle(
    units: Sequence[Unit], rate: float, rng: random.Random, positions: Sequence[int] | None = None
) -> list[Unit]:
    """Choose ``round(rate n)`` of the ``n`` ``positions`` uniformly and permute their units.

    By default, the positions are those of all units. All permutations are equally likely, the
    identity included. If fewer than 2 positions are chosen, nothing changes. Source: Farina and
    Pappadopulo 2024 (arXiv 2310.17690), who permute a fraction of the sub-words of each view.
    """
    shuffled = list(units)
    if positions is None:
        positions = range(len(units))
    count = round(rate * len(positions))
    if count >= 2:
        # A sample of all chosen positions is a random permutation of them.
        chosen = sorted(rng.sample(positions, count))
        for target, source in zip(chosen, rng.sample(chosen, count), strict=True):
            shuffled[target] = units[source]
    return shuffled


def repeat(
    units: Sequence[Unit],
    rate: float,
    rng: random.Random,
    positions: Sequence[int],
    *,
    least: int = 0,
) -> list[Unit]:
    """Write some units twice in their places.

    Source: Wu et al. 2021 (ESimCSE) and the authors' code. The number of repetitions is drawn
    evenly from 0 to b - 1, so it is at most 9. With n the number of units:

        b = min(10, n, max(least, int(rate n)))

    If b is 0, nothing changes. The units to repeat are drawn from those at ``positions``; if there
    are too few of them, each is repeated.
    """
    bound = min(MAX_REPEATED, len(units), max(least, int(rate * len(units))))
    if not bound:
        return list(units)
    n_repeated = min(rng.randrange(bound), len(positions))
    chosen = set(rng.sample(positions, n_repeated))
    repeated: list[Unit] = []
    for position, unit in enumerate(units):
        repeated.append(unit)
        if position in chosen:
            repeated.append(unit)
    return repeated


def repeat_words(words: Sequence[str], rate: float, rng: random.Random) -> list[str]:
    """Repeat words as ``repeat`` does, but never the last; a short text may get one repetition."""
    all_but_last = range(len(words) - 1)
    return repeat(words, rate, rng, all_but_last, least=2)  # least=2: a short text gets 0 or 1


def mask_span(text: str, size: int, rng: random.Random) -> str:
    """Replace ``size`` characters by `` [MASK] ``; a text of fewer than 30 stays as it is.

    Source: Liu et al. 2021 (Mirror-BERT) and the authors' code. The start is drawn evenly, and the
    span ends before the last character. If the same characters also occur earlier, their first
    occurrence is masked instead. Characters are graphemes here.
    """
    graphemes = graphemes_of(text)
    if len(graphemes) < SHORTEST_MASKED:
        return text
    drawn = rng.randrange(max(len(graphemes) - size, 1))
    span = graphemes[drawn : drawn + size]
    starts = range(drawn + 1)
    first = next(start for start in starts if graphemes[start : start + size] == span)
    return "".join([*graphemes[:first], MASKED_SPAN, *graphemes[first + size :]])


def eda(words: Sequence[str], alpha: float, rng: random.Random, wordnet: WordNet) -> list[str]:
    """Apply one of EDA's four operations, drawn uniformly, to words that ``eda_clean`` returned.

    ``alpha`` is the share of the words that change. Source: Wei and Zou 2019 (Easy Data
    Augmentation) and the authors' code, which makes several texts of a sentence. Farina and
    Pappadopulo use one text per view, as this function does, but do not say how they draw the
    operation.
    """
    operations: tuple[Callable[[], list[str]], ...] = (
        lambda: replace_synonyms(words, alpha, rng, wordnet),
        lambda: insert_synonyms(words, alpha, rng, wordnet),
        lambda: swap_words(words, alpha, rng),
        lambda: delete_words(words, alpha, rng),
    )
    return rng.choice(operations)()


def eda_clean(text: str) -> list[str]:
    """Return the words that EDA changes: lower-cased and without apostrophes.

    The text is cut at white space and at all other characters outside a-z.

    ``"Don't stop-gap 24 cafés!"`` gives dont, stop, gap, caf, s.
    """
    joined = _EDA_APOSTROPHES.sub("", text.lower())
    return _EDA_SEPARATORS.sub(" ", joined).split()


def n_operations(n_words: int, alpha: float) -> int:
    """Return how many words EDA changes: ``max(1, int(alpha n))`` in floating point."""
    return max(1, int(alpha * n_words))


def eda_synonyms(word: str, wordnet: WordNet) -> list[str]:
    """Return the lemmas of all synsets of ``word``, except the word itself, in database order.

    Lemmas are lower-cased; hyphens and underscores become spaces, and other characters outside a-z
    are dropped.
    """
    synonyms: dict[str, None] = {}  # a set that keeps the order
    for lemma in chain.from_iterable(wordnet.all_synsets(word)):
        cleaned = re.sub("[^a-z ]", "", lemma.lower().replace("-", " "))
        if cleaned.strip() and cleaned != word:
            synonyms[cleaned] = None
    return list(synonyms)


def replace_synonyms(
    words: Sequence[str], alpha: float, rng: random.Random, wordnet: WordNet
) -> list[str]:
    """Replace up to ``n_operations`` different words by synonyms, each wherever it occurs (SR).

    Stop words are never replaced.
    """
    candidates = [word for word in dict.fromkeys(words) if word not in EDA_STOP_WORDS]
    rng.shuffle(candidates)
    replaced = list(words)
    n_left = n_operations(len(words), alpha)
    for candidate in candidates:
        if n_left == 0:
            break
        synonyms = eda_synonyms(candidate, wordnet)
        if synonyms:
            synonym = rng.choice(synonyms)
            replaced = [synonym if word == candidate else word for word in replaced]
            n_left -= 1
    # A synonym may be several words.
    return " ".join(replaced).split()


def insert_synonyms(
    words: Sequence[str], alpha: float, rng: random.Random, wordnet: WordNet
) -> list[str]:
    """Insert the first synonym of a random word at a random place, ``n_operations`` times (RI).

    Each time, at most nine words are drawn until one has a synonym.
    """
    extended = list(words)
    for _ in range(n_operations(len(words), alpha)):
        for _ in range(_INSERTION_TRIES):
            synonyms = eda_synonyms(rng.choice(extended), wordnet)
            if synonyms:
                extended.insert(rng.randrange(len(extended)), synonyms[0])
                break
    # A synonym may be several words.
    return " ".join(extended).split()


def swap_words(words: Sequence[str], alpha: float, rng: random.Random) -> list[str]:
    """Swap two random words, ``n_operations(n, alpha)`` times for n words (random swap, RS).

    The second position is drawn again if it equals the first, with three draws at most; if all are
    equal, the swap changes nothing.
    """
    swapped = list(words)
    for _ in range(n_operations(len(words), alpha)):
        first = rng.randrange(len(swapped))
        for _ in range(_SWAP_TRIES):
            second = rng.randrange(len(swapped))
            if second != first:
                break
        swapped[first], swapped[second] = swapped[second], swapped[first]
    return swapped


def delete_words(words: Sequence[str], alpha: float, rng: random.Random) -> list[str]:
    """Keep each word with probability 1 - alpha, or one random word if none is left (RD).

    A single word is kept.
    """
    if len(words) == 1:
        return list(words)
    return [word for word in words if rng.random() > alpha] or [rng.choice(words)]
