import numpy as np
import pytest

from simcse_cli.analysis.retrieval import (
    RetrievalScores,
    nearest,
    rank_rows,
    retrieval_figure,
    score_retrieval,
)
from simcse_cli.encoding.search_index import SearchIndex

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


def test_rank_rows_fills_up_with_minus_one():
    rows, scores = rank_rows(SearchIndex.build(CIRCLE, NAMES), CIRCLE[:1], 7, [frozenset({3})])
    assert rows.tolist() == [[0, 1, 2, 4, -1, -1, -1]]
    assert scores[0, 4:].tolist() == [-np.inf] * 3


def test_score_retrieval_of_a_worked_example():
    ranked = np.array([[5, 1, 2, 7], [9, 8, 7, -1], [0, 1, 2, 3]])
    relevant = [frozenset({1, 7}), frozenset({3}), frozenset()]
    scores = score_retrieval(ranked, relevant)
    assert (scores.n_queries, scores.depth) == (2, 4)
    assert scores.recall.tolist() == pytest.approx([0.0, 0.25, 0.25, 0.5])
    assert scores.hit_rate.tolist() == pytest.approx([0.0, 0.5, 0.5, 0.5])
    assert scores.mrr == pytest.approx((1 / 2 + 0) / 2)


def test_score_retrieval_of_a_perfect_ranking_is_one():
    scores = score_retrieval(np.array([[3], [1]]), [frozenset({3}), frozenset({1})])
    assert (scores.recall[0], scores.hit_rate[0], scores.mrr) == (1.0, 1.0, 1.0)


def test_score_retrieval_without_judged_queries_is_refused():
    with pytest.raises(ValueError, match="no query"):
        score_retrieval(np.array([[1]]), [frozenset()])


def test_retrieval_figure_draws_hit_rate_and_recall():
    scores = RetrievalScores(5, np.array([0.1, 0.2]), np.array([0.4, 0.6]), 0.5)
    panels = retrieval_figure({"one": scores}).axes
    assert [panel.lines[0].get_ydata().tolist() for panel in panels] == [[40.0, 60.0], [10.0, 20.0]]
