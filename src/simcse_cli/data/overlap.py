"""Lexical overlap of sentence pairs: how many words the two sides share.

Source: Gao et al. 2021, section 4: F1 between two bags of words, 39% for NLI entailment pairs, 60% for QQP,
55% for ParaNMT. The paper names neither tokeniser nor case; lower-cased words on multisets give 39.6% on the
entailment pairs of the SNLI development and test sets and are the toolkit's default.
"""

from collections import Counter
from dataclasses import dataclass

from simcse_cli.data.text_forms import words


def overlap_f1(first: str, second: str, *, multiset: bool = True) -> float:
    """Return ``2 |A and B| / (|A| + |B|)`` of the words of two texts, in [0, 1].

    Args:
        first: one text.
        second: the other; the order does not matter.
        multiset: count repeated words; otherwise each distinct word once.

    Returns:
        1 for the same words in any order, 0 for none in common (or no words at all);
        ``"a dog runs"`` and ``"a dog sleeps here"`` give 4/7.
    """
    left, right = words(first), words(second)
    bag_a, bag_b = (Counter(left), Counter(right)) if multiset else (Counter(set(left)), Counter(set(right)))
    n_words = bag_a.total() + bag_b.total()
    return 2 * (bag_a & bag_b).total() / n_words if n_words else 0.0


@dataclass
class OverlapMean:
    """Mean overlap F1 of pairs added one by one; ``value`` is None before the first."""

    multiset: bool = True
    n_pairs: int = 0
    total: float = 0.0

    def add(self, first: str, second: str) -> None:
        """Count one pair."""
        self.n_pairs += 1
        self.total += overlap_f1(first, second, multiset=self.multiset)

    @property
    def value(self) -> float | None:
        """The mean over the pairs added, a fraction."""
        return self.total / self.n_pairs if self.n_pairs else None
