from collections import Counter

import pytest

from simcse_cli.prepare.filters import (
    RowCounts,
    clean_rows,
    drop_by_length,
    drop_duplicates,
    drop_empty,
    drop_near_duplicates,
    drop_self_negatives,
    filter_rows,
    sample_rows,
)


def kept(rows, *filters):
    counts = RowCounts()
    return list(filter_rows(rows, filters, counts)), counts


def test_a_row_with_an_empty_text_is_empty():
    assert drop_empty([("a", ""), ("a", "b"), ("", "")]) == ["empty", None, "empty"]


def test_filter_rows_counts_read_kept_and_dropped():
    rows = [("a b",), ("",), ("a",), ("a b",)]
    result, counts = kept(rows, drop_empty, drop_by_length(2, None), drop_duplicates())
    assert result == [("a b",)]
    assert (counts.read, counts.kept) == (4, 1)
    assert counts.dropped == {"empty": 1, "too_short": 1, "duplicate": 1}


def test_filter_rows_works_across_batches():
    rows = [(f"row {i % 2000}",) for i in range(5000)]
    result, counts = kept(rows, drop_duplicates())
    assert result == rows[:2000]
    assert counts.dropped["duplicate"] == 3000


def test_clean_rows_puts_texts_on_one_line():
    assert list(clean_rows([("a\n b", "c\x00")])) == [("a b", "c")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [(("a b", "a b c"), None), (("a", "a b"), "too_short"), (("a b", "a b c d"), "too_long")],
)
def test_drop_by_length_looks_at_every_text(row, reason):
    assert drop_by_length(2, 3)([row]) == [reason]


def test_drop_self_negatives_ignores_spelling_and_pairs():
    rows = [("a", "b", "B."), ("a", "b", "c"), ("a", "a")]
    assert drop_self_negatives(rows) == ["positive_is_hard_negative", None, None]


def test_drop_duplicates_compares_column_by_column():
    rows = [("a b", "c"), ("A b.", "C"), ("a", "b c"), ("c", "a b")]
    assert drop_duplicates()(rows) == [None, "duplicate", None, None]


def test_drop_near_duplicates_keeps_the_first():
    first = "Two dogs are running through a field of tall grass near the river."
    rows = [
        (first,),
        (first.replace("tall", "dry"),),
        ("Something else entirely is written here.",),
    ]
    assert drop_near_duplicates(0.7)(rows) == [None, "near_duplicate", None]


def test_sample_rows_is_uniform():
    rows = [(str(i),) for i in range(20)]
    drawn = Counter(row for seed in range(3000) for row in sample_rows(rows, 5, seed=seed))
    # Each row is expected 750 times; binomial deviation 23.7.
    assert max(abs(drawn[row] - 750) for row in rows) < 5 * 23.7


def test_sample_rows_keeps_the_order_or_shuffles():
    rows = [(str(i),) for i in range(200)]
    in_order = sample_rows(rows, 50, seed=1, keep_order=True)
    shuffled = sample_rows(rows, 50, seed=1)
    assert in_order == sorted(in_order, key=lambda row: int(row[0]))
    assert shuffled != in_order
    assert sorted(shuffled) == sorted(in_order)
    assert shuffled == sample_rows(rows, 50, seed=1)
    assert shuffled != sample_rows(rows, 50, seed=2)


def test_sample_rows_returns_all_when_there_are_no_more():
    rows = [("a",), ("b",)]
    assert sample_rows(rows, 5, seed=0, keep_order=True) == rows
