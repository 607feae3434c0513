"""Retrieval scores by hand, and the same as those of pytrec_eval on random rankings with ties."""

import numpy as np
import pytest

from simcse_cli.evaluation.retrieval import rank_exactly, score_retrieval


def test_score_retrieval_of_a_worked_example():
    ranked = np.array([[5, 1, 2, 7], [9, 8, 7, -1], [0, 1, 2, 3]])
    relevant = [{1: 1.0, 7: 2.0}, {3: 1.0}, {}]
    scores = score_retrieval(ranked, relevant)
    assert (scores.n_queries, scores.depth) == (2, 4)
    assert scores.recall.tolist() == pytest.approx([0.0, 0.25, 0.25, 0.5])
    assert scores.hit_rate.tolist() == pytest.approx([0.0, 0.5, 0.5, 0.5])
    assert scores.reciprocal_rank.tolist() == pytest.approx([0, 1 / 4, 1 / 4, 1 / 4])
    found, best = 1 / np.log2(3) + 2 / np.log2(5), 2 + 1 / np.log2(3)
    assert scores.ndcg.tolist() == pytest.approx(
        [0, 0.5 / np.log2(3) / best, 0.5 / np.log2(3) / best, found / best / 2]
    )


def test_score_retrieval_of_a_perfect_ranking_is_one():
    scores = score_retrieval(np.array([[3], [1]]), [{3: 2.0}, {1: 1.0}])
    assert scores.recall[0] == scores.hit_rate[0] == 1.0
    assert scores.reciprocal_rank[0] == scores.ndcg[0] == 1.0


def test_score_retrieval_without_judged_queries_is_refused():
    with pytest.raises(ValueError, match="no query"):
        score_retrieval(np.array([[1]]), [{}])


def test_scores_are_those_of_pytrec_eval_with_ties_and_graded_relevance():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    draw = np.random.default_rng(0)
    queries = draw.integers(-2, 3, (30, 3)).astype(np.float32) + np.float32(0.5)
    corpus = draw.integers(-2, 3, (200, 3)).astype(np.float32) + np.float32(
        0.5
    )  # few vectors, so many ties
    ids = sorted((f"d{number}" for number in range(200)), reverse=True)  # trec_eval's order of ties
    ranked = rank_exactly(queries, corpus, 100)
    relevant = [
        {int(row): float(draw.integers(1, 4)) for row in draw.choice(200, 1 + n % 7, replace=False)}
        for n in range(30)
    ]
    units = [matrix / np.linalg.norm(matrix, axis=1, keepdims=True) for matrix in (queries, corpus)]
    cosines = units[0] @ units[1].T
    run = {str(q): {ids[row]: float(cosines[q, row]) for row in range(200)} for q in range(30)}
    qrels = {
        str(q): {ids[row]: int(gain) for row, gain in wanted.items()}
        for q, wanted in enumerate(relevant)
    }
    evaluator = pytrec_eval.RelevanceEvaluator(
        qrels, {"ndcg_cut.10", "recall.10", "recall.100", "recip_rank"}
    )
    theirs = evaluator.evaluate(run)
    ours = score_retrieval(ranked, relevant)
    mean = {name: np.mean([each[name] for each in theirs.values()]) for name in theirs["0"]}
    assert ours.ndcg[9] == pytest.approx(mean["ndcg_cut_10"], abs=1e-12)
    assert (ours.recall[9], ours.recall[99]) == pytest.approx(
        (mean["recall_10"], mean["recall_100"]), abs=1e-12
    )
    first = np.array([each["recip_rank"] for each in theirs.values()])
    assert ours.reciprocal_rank[9] == pytest.approx(
        np.where(first >= 0.1, first, 0).mean(), abs=1e-12
    )


def test_relevant_texts_that_were_not_searched_are_those_of_pytrec_eval():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    ranked = np.array([[0, 1, 2, -1], [2, 1, 0, -1]])
    relevant = [{0: 2.0, 3: 2.0, 4: 2.0}, {4: 1.0}]  # rows 3 and 4 are in no ranking
    run = {
        str(query): {str(row): -rank for rank, row in enumerate(rows[:3])}
        for query, rows in enumerate(ranked.tolist())
    }
    qrels = {
        str(query): {str(row): int(gain) for row, gain in wanted.items()}
        for query, wanted in enumerate(relevant)
    }
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.10"}).evaluate(run)
    ours = score_retrieval(ranked, relevant)
    assert ours.ndcgs[:, -1].tolist() == pytest.approx(
        [each["ndcg_cut_10"] for each in theirs.values()]
    )
    assert ours.ndcgs[0, -1] == pytest.approx(0.4693, abs=1e-4)
    assert ours.recalls[:, -1].tolist() == [each["recall_10"] for each in theirs.values()]


def test_a_corpus_smaller_than_the_depth_leaves_gaps():
    ranked = rank_exactly(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32)[[1, 0, 0]], 4)
    assert ranked.tolist() == [[1, 2, 0, -1], [0, 1, 2, -1]]


def test_recall_counts_all_relevant_rows_however_few_are_asked_for():
    scores = score_retrieval(np.array([[3, 1]]), [dict.fromkeys((1, 2, 3, 4), 1.0)])
    assert scores.recall.tolist() == [0.25, 0.5]
    assert scores.hit_rate.tolist() == [1.0, 1.0]
