"""Easy Data Augmentation: clean the text, then apply one of four operations chosen uniformly.

Source: Wei and Zou 2019 and the authors' code. Departures: one output per sentence, with one operation drawn
uniformly (002 uses one alpha and one text per branch and does not say how it is drawn: toolkit default); the
stop words are this package's closed-class list.
"""

import random
import re
from collections.abc import Callable, Sequence

from simcse_cli.augment.function_words import EDA_STOP_WORDS
from simcse_cli.augment.wordnet import WordNet

_APOSTROPHES = re.compile("['’]")
_NOT_A_TO_Z = re.compile("[^a-z]+")
_INSERTION_TRIES = 9
_SWAP_TRIES = 3


def eda_clean(text: str) -> list[str]:
    """Return the words EDA sees: lower case, apostrophes gone, all else outside a-z a space; may be empty.

    ``"Don't stop-gap 24 cafés!"`` gives dont, stop, gap, caf, s.
    """
    return _NOT_A_TO_Z.sub(" ", _APOSTROPHES.sub("", text.lower())).split()


def n_operations(n_words: int, alpha: float) -> int:
    """Return how many words EDA changes: ``max(1, int(alpha n))`` in floating point, as its code does."""
    return max(1, int(alpha * n_words))


def eda_words(words: Sequence[str], alpha: float, rng: random.Random, wordnet: WordNet) -> list[str]:
    """Apply one EDA operation, chosen uniformly, to cleaned words (one or more); never returns nothing."""
    operations: tuple[Callable[[], list[str]], ...] = (
        lambda: replace_synonyms(words, alpha, rng, wordnet),
        lambda: insert_synonyms(words, alpha, rng, wordnet),
        lambda: swap_words(words, alpha, rng),
        lambda: delete_words(words, alpha, rng),
    )
    return rng.choice(operations)()


def eda_synonyms(word: str, wordnet: WordNet) -> list[str]:
    """Return the distinct lemmas of every synset of ``word`` but the word itself, in database order.

    Lemmas are lower-cased, underscores and hyphens become spaces, other characters outside a-z go.
    """
    lemmas = (lemma for synset in wordnet.all_synsets(word) for lemma in synset)
    cleaned = (re.sub("[^a-z ]", "", lemma.lower().replace("-", " ")) for lemma in lemmas)
    return [lemma for lemma in dict.fromkeys(cleaned) if lemma.strip() and lemma != word]


def replace_synonyms(words: Sequence[str], alpha: float, rng: random.Random, wordnet: WordNet) -> list[str]:
    """SR: replace up to ``n_operations`` distinct words, no stop words, each at all its occurrences."""
    candidates = [word for word in dict.fromkeys(words) if word not in EDA_STOP_WORDS]
    rng.shuffle(candidates)
    replaced = list(words)
    n_left = n_operations(len(words), alpha)
    for candidate in candidates:
        synonyms = eda_synonyms(candidate, wordnet)
        if synonyms and n_left:
            synonym = rng.choice(synonyms)
            replaced = [synonym if word == candidate else word for word in replaced]
            n_left -= 1
    return " ".join(replaced).split()


def insert_synonyms(words: Sequence[str], alpha: float, rng: random.Random, wordnet: WordNet) -> list[str]:
    """RI: ``n_operations`` times, insert the first synonym of a random word before a random position."""
    extended = list(words)
    for _ in range(n_operations(len(words), alpha)):
        synonym = _first_synonym(extended, rng, wordnet)
        if synonym is not None:
            extended.insert(rng.randrange(len(extended)), synonym)
    return " ".join(extended).split()


def _first_synonym(words: Sequence[str], rng: random.Random, wordnet: WordNet) -> str | None:
    for _ in range(_INSERTION_TRIES):
        synonyms = eda_synonyms(rng.choice(words), wordnet)
        if synonyms:
            return synonyms[0]
    return None


def swap_words(words: Sequence[str], alpha: float, rng: random.Random) -> list[str]:
    """RS: ``n_operations`` swaps of two positions; given up when three draws in a row hit the first one."""
    swapped = list(words)
    for _ in range(n_operations(len(words), alpha)):
        first = rng.randrange(len(swapped))
        draws = (rng.randrange(len(swapped)) for _ in range(_SWAP_TRIES))
        second = next((draw for draw in draws if draw != first), first)
        swapped[first], swapped[second] = swapped[second], swapped[first]
    return swapped


def delete_words(words: Sequence[str], alpha: float, rng: random.Random) -> list[str]:
    """RD: keep each word with probability 1 - alpha, one random word if none is left; one word stays."""
    if len(words) == 1:
        return list(words)
    return [word for word in words if rng.random() > alpha] or [rng.choice(words)]
