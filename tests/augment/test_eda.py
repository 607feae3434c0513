import random
from collections import Counter
from pathlib import Path

import pytest
from scipy.stats import binom, chisquare

from simcse_cli.augment.eda import (
    delete_words,
    eda_clean,
    eda_synonyms,
    eda_words,
    insert_synonyms,
    n_operations,
    replace_synonyms,
    swap_words,
)
from simcse_cli.augment.wordnet import WordNet, find_wordnet
from tiny_wordnet import write_wordnet

ALMOST_NEVER = 1e-4
WORDS = ["the", "car", "and", "the", "dog", "in", "the", "city"]


@pytest.fixture
def wordnet(tmp_path: Path) -> WordNet:
    return find_wordnet(write_wordnet(tmp_path / "dict"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop-gap 24 cafés!", ["dont", "stop", "gap", "caf", "s"]),
        ("It’s\tTIME", ["its", "time"]),
        ("1999 ...", []),
    ],
)
def test_eda_clean_keeps_only_lower_case_words(text: str, words: list[str]) -> None:
    assert eda_clean(text) == words


@pytest.mark.parametrize(
    ("n_words", "alpha", "count"), [(1, 0.1, 1), (19, 0.1, 1), (20, 0.1, 2), (10, 0.5, 5)]
)
def test_n_operations_rounds_down_to_at_least_one(n_words: int, alpha: float, count: int) -> None:
    assert n_operations(n_words, alpha) == count


def test_eda_synonyms_join_all_senses_without_the_word(wordnet: WordNet) -> None:
    assert eda_synonyms("work", wordnet) == ["labor", "toil"]
    assert eda_synonyms("dogs", wordnet) == ["dog", "domestic dog"]
    assert eda_synonyms("zebra", wordnet) == []


def test_replace_synonyms_changes_every_occurrence_of_a_word_that_is_no_stop_word(wordnet: WordNet) -> None:
    words = ["the", "dog", "and", "the", "dog"]
    for key in range(50):
        replaced = replace_synonyms(words, 0.1, random.Random(key), wordnet)
        assert replaced == ["the", "domestic", "dog", "and", "the", "domestic", "dog"]


def test_replace_synonyms_changes_up_to_n_distinct_words_drawn_uniformly(wordnet: WordNet) -> None:
    single = {"auto": "car", "motorcar": "car", "domestic": "dog", "metropolis": "city"}
    changed: Counter[str] = Counter()
    for key in range(3000):
        replaced = replace_synonyms(WORDS, 0.1, random.Random(key), wordnet)
        changed.update({single[word] for word in replaced if word in single})
    assert set(changed) == {"car", "dog", "city"}
    assert changed.total() == 3000  # one word each, since int(0.1 * 8) is below 1
    assert chisquare(list(changed.values())).pvalue > ALMOST_NEVER
    all_three = replace_synonyms(WORDS, 0.4, random.Random(1), wordnet)
    assert not {"car", "city"} & set(all_three)
    assert "domestic" in all_three


def test_insert_synonyms_puts_first_synonyms_anywhere_but_the_end(wordnet: WordNet) -> None:
    words = ["car", "xx", "yy", "zz"]
    places: Counter[int] = Counter()
    for key in range(4000):
        longer = insert_synonyms(words, 0.1, random.Random(key), wordnet)
        if longer != words:  # nine tries may all miss the one word with a synonym: 0.75 ** 9 of the time
            places[longer.index("auto")] += 1
    assert set(places) == {0, 1, 2, 3}
    assert chisquare(list(places.values())).pvalue > ALMOST_NEVER
    missed = 4000 - places.total()
    assert 0.0005 < binom.cdf(missed, 4000, 0.75**9) < 0.9995


def test_insert_synonyms_leaves_text_without_synonyms(wordnet: WordNet) -> None:
    assert insert_synonyms(["xx", "yy"], 0.5, random.Random(0), wordnet) == ["xx", "yy"]


def test_swap_words_swaps_uniform_pairs_and_gives_up_after_three_tries() -> None:
    words = ["a", "b", "c", "d"]
    outcomes = Counter(tuple(swap_words(words, 0.1, random.Random(key))) for key in range(6000))
    unchanged = outcomes.pop(tuple(words))
    assert len(outcomes) == 6
    assert chisquare(list(outcomes.values())).pvalue > ALMOST_NEVER
    assert 0.0005 < binom.cdf(unchanged, 6000, 0.25**3) < 0.9995


def test_swap_words_does_as_many_swaps_as_asked() -> None:
    words = [str(i) for i in range(20)]
    for key in range(20):
        swapped = swap_words(words, 0.2, random.Random(key))
        assert sorted(swapped) == sorted(words)
        assert sum(a != b for a, b in zip(words, swapped, strict=True)) <= 8


def test_delete_words_keeps_each_with_probability_one_minus_alpha() -> None:
    words = [str(i) for i in range(10)]
    kept: Counter[str] = Counter()
    sizes: Counter[int] = Counter()
    for key in range(4000):
        left = delete_words(words, 0.3, random.Random(key))
        assert left == sorted(left, key=int)
        kept.update(left)
        sizes[len(left)] += 1
    assert chisquare([kept[word] for word in words]).pvalue > ALMOST_NEVER
    expected = binom.pmf(range(11), 10, 0.7) * 4000
    observed = [sizes[size] for size in range(11)]
    # Sizes below 4 are too rare for a cell of their own.
    pooled = ([sum(observed[:4]), *observed[4:]], [expected[:4].sum(), *expected[4:]])
    assert chisquare(*pooled).pvalue > ALMOST_NEVER


def test_delete_words_never_leaves_nothing() -> None:
    assert delete_words(["one"], 1.0, random.Random(0)) == ["one"]
    last = Counter(delete_words(["a", "b", "c"], 1.0, random.Random(key))[0] for key in range(1500))
    assert chisquare(list(last.values())).pvalue > ALMOST_NEVER


def test_eda_words_applies_one_operation_drawn_uniformly(wordnet: WordNet) -> None:
    # A sentence on which the operations differ: only deletion shortens, only insertion lengthens by a repeat
    # of "auto", replacement loses "car" and only a swap moves "zz".
    words = ["car", "xx", "yy", "zz"] * 5
    kinds: Counter[str] = Counter()
    for key in range(2000):
        changed = eda_words(words, 0.3, random.Random(key), wordnet)
        if len(changed) < len(words):
            kinds["delete"] += 1
        elif len(changed) > len(words):
            kinds["insert"] += 1
        elif "car" not in changed:
            kinds["replace"] += 1
        else:
            kinds["swap"] += 1
    assert chisquare(list(kinds.values())).pvalue > ALMOST_NEVER
    assert len(kinds) == 4
