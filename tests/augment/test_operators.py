import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import pytest
from scipy.stats import chisquare

from simcse_cli.augment.operators import (
    crop,
    crop_prefix_chars,
    delete,
    delete_one,
    n_chosen,
    n_kept,
    n_synonyms,
    shuffle,
    shuffle_token_ids,
)

ALMOST_NEVER = 1e-4
RATES = ("0.05", "0.1", "0.2", "0.3", "0.5", "0.7", "0.9", "0.99", "1")


@pytest.mark.parametrize("rate", RATES)
def test_n_kept_is_the_floor_in_exact_arithmetic(rate: str) -> None:
    for n in range(1, 200):
        exact = max(1, math.floor((1 - Fraction(rate)) * n))
        assert n_kept(n, float(rate)) == exact
        assert n == 1 or exact < n


@pytest.mark.parametrize(
    ("n_words", "rate", "count"), [(1, 0.15, 1), (3, 0.15, 1), (10, 0.15, 2), (10, 0.25, 2), (5, 1.0, 5)]
)
def test_n_chosen_rounds_to_at_least_one(n_words: int, rate: float, count: int) -> None:
    assert n_chosen(n_words, rate) == count


@pytest.mark.parametrize(
    ("n_words", "rate", "count"), [(9, None, 1), (9, 0.3, 3), (10, 0.3, 3), (90, 0.3, 10)]
)
def test_n_synonyms_is_one_or_the_rounding_of_nlpaug(n_words: int, rate: float | None, count: int) -> None:
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


@pytest.mark.parametrize(("n", "rate"), [(5, 0.1), (10, 0.1), (14, 0.1), (1, 1.0)])
def test_shuffle_of_fewer_than_two_changes_nothing(n: int, rate: float) -> None:
    words = [str(i) for i in range(n)]
    assert all(shuffle(words, rate, random.Random(key)) == words for key in range(50))


def test_shuffle_token_ids_leaves_special_tokens_in_place() -> None:
    ids, special = [101, 7, 8, 9, 102], [1, 0, 0, 0, 1]
    orders = Counter(tuple(shuffle_token_ids(ids, special, 1.0, random.Random(key))) for key in range(6000))
    assert set(orders) == {(101, *order, 102) for order in itertools.permutations((7, 8, 9))}
    assert chisquare(list(orders.values())).pvalue > ALMOST_NEVER
    assert shuffle_token_ids([101, 102], [1, 1], 1.0, random.Random(0)) == [101, 102]


def test_shuffle_token_ids_counts_only_ordinary_tokens() -> None:
    # round(0.3 * 4) is 1 and changes nothing; with the two special tokens it would be round(0.3 * 6) = 2.
    ids, special = [101, 5, 6, 7, 8, 102], [1, 0, 0, 0, 0, 1]
    assert all(shuffle_token_ids(ids, special, 0.3, random.Random(key)) == ids for key in range(50))


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
