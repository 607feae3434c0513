import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import pytest
from scipy.stats import binom, chisquare

from simcse_cli.augment.augmentations import TokenRepeat, TokenShuffle
from simcse_cli.augment.operators import (
    crop,
    crop_prefix_chars,
    delete,
    delete_one,
    delete_words,
    eda,
    eda_clean,
    eda_synonyms,
    insert_synonyms,
    mask_span,
    n_chosen,
    n_kept,
    n_operations,
    n_synonyms,
    repeat_words,
    replace_synonyms,
    shuffle,
    swap_words,
)
from simcse_cli.augment.wordnet import WordNet

ALMOST_NEVER = 1e-4
RATES = ("0.05", "0.1", "0.2", "0.3", "0.5", "0.7", "0.9", "0.99", "1")
EDA_WORDS = ["the", "car", "and", "the", "dog", "in", "the", "city"]


@pytest.mark.parametrize("rate", RATES)
def test_n_kept_is_the_floor_in_exact_arithmetic(rate: str) -> None:
    for n in range(1, 200):
        exact = max(1, math.floor((1 - Fraction(rate)) * n))
        assert n_kept(n, float(rate)) == exact
        assert n == 1 or exact < n


@pytest.mark.parametrize(
    ("n_words", "rate", "count"),
    [(1, 0.15, 1), (3, 0.15, 1), (10, 0.15, 2), (10, 0.25, 2), (5, 1.0, 5)],
)
def test_n_chosen_rounds_to_at_least_one(n_words: int, rate: float, count: int) -> None:
    assert n_chosen(n_words, rate) == count


@pytest.mark.parametrize(
    ("n_words", "rate", "count"),
    [(9, None, 1), (9, 0.3, 3), (10, 0.3, 3), (90, 0.3, 10), (5, 0.1, 1)],
)
def test_n_synonyms_is_one_or_the_rounding_of_nlpaug(
    n_words: int, rate: float | None, count: int
) -> None:
    assert n_synonyms(n_words, rate) == count


def test_crop_keeps_one_span_with_a_uniform_start() -> None:
    words = list("abcdefghij")
    spans = Counter(tuple(crop(words, 0.3, random.Random(key))) for key in range(4000))
    assert set(spans) == {tuple(words[start : start + 7]) for start in range(4)}
    assert chisquare(list(spans.values())).pvalue > ALMOST_NEVER


def test_delete_keeps_every_choice_of_positions_equally_often() -> None:
    words = list("abcdef")
    kept = Counter(tuple(delete(words, 0.3, random.Random(key))) for key in range(6000))
    assert set(kept) == set(itertools.combinations(words, 4))
    assert chisquare(list(kept.values())).pvalue > ALMOST_NEVER


def test_delete_one_drops_every_position_equally_often() -> None:
    words = list("abcde")
    kept = Counter(tuple(delete_one(words, random.Random(key))) for key in range(4000))
    assert set(kept) == set(itertools.combinations(words, 4))
    assert chisquare(list(kept.values())).pvalue > ALMOST_NEVER
    assert delete_one(["alone"], random.Random(0)) == ["alone"]
    assert {tuple(delete_one(["a", "b"], random.Random(key))) for key in range(20)} == {
        ("a",),
        ("b",),
    }


def test_shuffle_of_all_units_gives_every_permutation_equally_often() -> None:
    orders = Counter(tuple(shuffle("abc", 1.0, random.Random(key))) for key in range(6000))
    assert set(orders) == set(itertools.permutations("abc"))
    assert chisquare(list(orders.values())).pvalue > ALMOST_NEVER


def test_shuffle_moves_only_chosen_positions_which_are_uniform() -> None:
    words = list("abcde")
    moved: Counter[tuple[int, ...]] = Counter()
    for key in range(8000):
        changed = shuffle(words, 0.4, random.Random(key))
        assert sorted(changed) == words
        moved[tuple(i for i in range(5) if changed[i] != words[i])] += 1
    identity = moved.pop(())
    assert set(moved) == set(itertools.combinations(range(5), 2))
    assert chisquare(list(moved.values())).pvalue > ALMOST_NEVER
    # Of the two orders of two chosen units one is the original.
    assert chisquare([identity, moved.total()]).pvalue > ALMOST_NEVER


def without_doubles(row: list[int]) -> tuple[list[int], int]:
    """Return a row of rising ids with each of them once, and how many stood twice in a row."""
    return sorted(set(row)), len(row) - len(set(row))


@pytest.mark.parametrize("length", [3, 4, 6, 7, 10, 32, 64])
def test_repeated_subwords_are_a_number_below_the_share_drawn_evenly(length: int) -> None:
    """The code of ESimCSE: of length l, c = min(10, int(0.32 l)), 0 to c - 1 of places 1 to l - 2."""
    ids, special = list(range(length)), {0, length - 1}
    count = min(10, int(0.32 * length))
    added: Counter[int] = Counter()
    places: Counter[int] = Counter()
    for key in range(4000):
        row = TokenRepeat(0.32)(ids, special, key)
        assert without_doubles(row) == (ids, len(row) - length)
        assert row == sorted(row)
        added[len(row) - length] += 1
        places.update(place for place, times in Counter(row).items() if times == 2)
    assert set(added) == set(range(max(count, 1)))
    if count > 1:
        assert chisquare(list(added.values())).pvalue > ALMOST_NEVER
        assert set(places) == set(range(1, length - 1))
        assert chisquare(list(places.values())).pvalue > ALMOST_NEVER
    if length == 32:
        assert added.total() * 4.5 == pytest.approx(sum(places.values()), rel=0.03)


@pytest.mark.parametrize(("n", "most"), [(1, 0), (2, 1), (5, 1), (6, 1), (10, 2), (40, 9)])
def test_repeated_words_are_never_the_last(n: int, most: int) -> None:
    """min(10, n, max(2, int(0.32 n))) exceeds the largest number of repeated words by one."""
    words = [f"{i:02}" for i in range(n)]
    added = set()
    for key in range(400):
        repeated = repeat_words(words, 0.32, random.Random(key))
        assert sorted(set(repeated)) == words
        assert repeated == sorted(repeated)
        assert repeated.count(words[-1]) == 1
        added.add(len(repeated) - n)
    assert added == set(range(most + 1))


def test_masked_span_is_one_of_the_text_and_never_reaches_its_end() -> None:
    text = "The quick brown fox jumps over it"
    starts = Counter[int]()
    for key in range(6000):
        masked = mask_span(text, 5, random.Random(key))
        before, after = masked.split(" [MASK] ")
        start = len(before)
        assert before + text[start : start + 5] + after == text
        starts[start] += 1
    assert set(starts) == set(range(len(text) - 5))
    assert chisquare(list(starts.values())).pvalue > ALMOST_NEVER


def test_masked_span_counts_characters_as_read_and_takes_the_first_of_equal_ones() -> None:
    for text in ("short text of 29 characters ok", "x" * 30):
        shorter = text[:29]
        assert all(mask_span(shorter, 5, random.Random(key)) == shorter for key in range(20))
    assert {mask_span("x" * 30, 5, random.Random(key)) for key in range(20)} == {
        " [MASK] " + "x" * 25
    }
    flags = "🇩🇪" * 40
    assert mask_span(flags, 5, random.Random(0)) == " [MASK] " + "🇩🇪" * 35


@pytest.mark.parametrize(("n", "rate"), [(5, 0.1), (10, 0.1), (14, 0.1), (1, 1.0)])
def test_shuffle_of_fewer_than_two_changes_nothing(n: int, rate: float) -> None:
    words = [str(i) for i in range(n)]
    assert all(shuffle(words, rate, random.Random(key)) == words for key in range(50))


def test_token_shuffle_leaves_special_ids_in_place() -> None:
    ids, special = [101, 7, 8, 9, 102], {101, 102}
    orders = Counter(tuple(TokenShuffle(1.0)(ids, special, key)) for key in range(6000))
    assert set(orders) == {(101, *order, 102) for order in itertools.permutations((7, 8, 9))}
    assert chisquare(list(orders.values())).pvalue > ALMOST_NEVER
    assert TokenShuffle(1.0)([101, 102], special, 0) == [101, 102]


def test_token_shuffle_counts_only_ordinary_ids() -> None:
    # round(0.3 * 4) is 1 and changes nothing; with the two special tokens it would be round(0.3 *
    # 6) = 2.
    ids = [101, 5, 6, 7, 8, 102]
    assert all(TokenShuffle(0.3)(ids, {101, 102}, key) == ids for key in range(50))


@pytest.mark.parametrize(
    ("text", "rate", "prefix"),
    [
        ("abcdefghij", 0.1, "abcdefghi"),
        ("abcdefghij", 0.9, "a"),
        ("x", 0.9, "x"),
        ("👨‍👩‍👧🇩🇪", 0.5, "👨‍👩‍👧"),
    ],
)
def test_crop_prefix_chars_cuts_the_end(text: str, rate: float, prefix: str) -> None:
    assert crop_prefix_chars(text, rate) == prefix


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


def test_replace_synonyms_changes_every_occurrence_of_a_word_that_is_no_stop_word(
    wordnet: WordNet,
) -> None:
    words = ["the", "dog", "and", "the", "dog"]
    for key in range(50):
        replaced = replace_synonyms(words, 0.1, random.Random(key), wordnet)
        assert replaced == ["the", "domestic", "dog", "and", "the", "domestic", "dog"]


def test_replace_synonyms_changes_up_to_n_distinct_words_drawn_uniformly(wordnet: WordNet) -> None:
    single = {"auto": "car", "motorcar": "car", "domestic": "dog", "metropolis": "city"}
    changed: Counter[str] = Counter()
    for key in range(3000):
        replaced = replace_synonyms(EDA_WORDS, 0.1, random.Random(key), wordnet)
        changed.update({single[word] for word in replaced if word in single})
    assert set(changed) == {"car", "dog", "city"}
    assert changed.total() == 3000  # one word each, since int(0.1 * 8) is below 1
    assert chisquare(list(changed.values())).pvalue > ALMOST_NEVER
    all_three = replace_synonyms(EDA_WORDS, 0.4, random.Random(1), wordnet)
    assert not {"car", "city"} & set(all_three)
    assert "domestic" in all_three


def test_insert_synonyms_puts_first_synonyms_anywhere_but_the_end(wordnet: WordNet) -> None:
    words = ["car", "xx", "yy", "zz"]
    places: Counter[int] = Counter()
    for key in range(4000):
        longer = insert_synonyms(words, 0.1, random.Random(key), wordnet)
        if (
            longer != words
        ):  # nine tries may all miss the one word with a synonym: 0.75 ** 9 of the time
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
    assert {tuple(delete_words(["a", "b"], 1.0, random.Random(key))) for key in range(20)} == {
        ("a",),
        ("b",),
    }
    last = Counter(delete_words(["a", "b", "c"], 1.0, random.Random(key))[0] for key in range(1500))
    assert chisquare(list(last.values())).pvalue > ALMOST_NEVER


def test_eda_applies_one_operation_drawn_uniformly(wordnet: WordNet) -> None:
    # A sentence on which the operations differ: only deletion shortens, only insertion lengthens by
    # a repeat of "auto", replacement loses "car" and only a swap moves "zz".
    words = ["car", "xx", "yy", "zz"] * 5
    kinds: Counter[str] = Counter()
    for key in range(2000):
        changed = eda(words, 0.3, random.Random(key), wordnet)
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
