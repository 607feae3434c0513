import numpy as np
import pytest

from simcse_cli.analysis.retrieval import nearest, rows_of_text, score_retrieval
from simcse_cli.analysis.search_index import SearchIndex

ANGLES = np.deg2rad([0, 10, 25, 40, 90])
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
NAMES = ["east", "ten", "twenty-five", "forty", "north"]


def test_nearest_orders_by_angle():
    (found,) = nearest(SearchIndex.build(CIRCLE, NAMES), np.array([[2.0, 0.0]]), 3)
    assert [neighbour.sentence for neighbour in found] == ["east", "ten", "twenty-five"]
    assert found[1].cosine == pytest.approx(np.cos(np.deg2rad(10)), abs=1e-6)


def test_nearest_leaves_out_excluded_rows_and_still_fills_k():
    index = SearchIndex.build(CIRCLE, NAMES)
    found = nearest(index, CIRCLE[:2], 2, [frozenset({0, 2}), frozenset()])
    assert [[neighbour.row for neighbour in query] for query in found] == [[1, 3], [1, 0]]


def test_nearest_returns_fewer_when_there_are_fewer():
    (found,) = nearest(SearchIndex.build(CIRCLE[:2], NAMES[:2]), CIRCLE[:1], 5, [frozenset({0})])
    assert [neighbour.row for neighbour in found] == [1]


def test_rows_of_text_collects_repeats():
    assert rows_of_text(["a", "b", "a"]) == {"a": frozenset({0, 2}), "b": frozenset({1})}


def test_score_retrieval_of_a_worked_example():
    ranked = [[5, 1, 2, 7], [9, 8, 7, 6], [0, 1, 2, 3]]
    relevant = [frozenset({1, 7}), frozenset({3}), frozenset()]
    scores = score_retrieval(ranked, relevant, (1, 2, 4), depth=4)
    assert scores.n_queries == 2
    assert scores.recall == pytest.approx({1: 0.0, 2: 0.25, 4: 0.5})
    assert scores.hit_rate == pytest.approx({1: 0.0, 2: 0.5, 4: 0.5})
    assert scores.mrr == pytest.approx((1 / 2 + 0) / 2)


def test_score_retrieval_of_a_perfect_ranking_is_one():
    scores = score_retrieval([[3], [1]], [frozenset({3}), frozenset({1})], (1,), depth=1)
    assert (scores.recall[1], scores.hit_rate[1], scores.mrr) == (1.0, 1.0, 1.0)


def test_score_retrieval_without_judged_queries_is_refused():
    with pytest.raises(ValueError, match="no query"):
        score_retrieval([[1]], [frozenset()], (1,), depth=1)


def test_score_retrieval_refuses_a_rank_beyond_the_depth():
    with pytest.raises(ValueError, match="beyond the depth"):
        score_retrieval([[1]], [frozenset({1})], (5,), depth=1)
