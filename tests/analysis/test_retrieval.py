import numpy as np
import pytest

from simcse_cli.analysis.retrieval import (
    RetrievalScores,
    retrieval_figure,
    score_retrieval,
)


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


def test_recall_counts_all_relevant_rows_however_few_are_asked_for():
    scores = score_retrieval(np.array([[3, 1]]), [frozenset({1, 2, 3, 4})])
    assert scores.recall.tolist() == [0.25, 0.5]
    assert scores.hit_rate.tolist() == [1.0, 1.0]
