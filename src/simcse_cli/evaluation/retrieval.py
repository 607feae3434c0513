"""Scores of ranked search results, and the exact ranking of texts by cosine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcse_cli.arrays import Floats, Floats32, Integers
from simcse_cli.postprocess.unit_rows import unit_rows

Ranking = Integers
ByRank = Floats
_BLOCK = 256  # queries at a time


@dataclass(frozen=True)
class RetrievalScores:
    """Scores of the queries that have at least one relevant text; in [0, 1], higher is better.

    The fields hold the values of single queries, ``(queries, depth)``; the cached properties are
    their means over queries, ``(depth,)``. Entry k - 1 is the value at rank k.
    """

    recalls: ByRank
    hits: ByRank
    reciprocal_ranks: ByRank
    ndcgs: ByRank

    @property
    def n_queries(self) -> int:
        return len(self.ndcgs)

    @property
    def depth(self) -> int:
        return int(self.ndcgs.shape[1])

    @cached_property
    def recall(self) -> ByRank:
        return np.asarray(self.recalls.mean(axis=0))

    @cached_property
    def hit_rate(self) -> ByRank:
        return np.asarray(self.hits.mean(axis=0))

    @cached_property
    def reciprocal_rank(self) -> ByRank:
        return np.asarray(self.reciprocal_ranks.mean(axis=0))

    @cached_property
    def ndcg(self) -> ByRank:
        return np.asarray(self.ndcgs.mean(axis=0))


def score_retrieval(ranked: Ranking, relevant: Sequence[Mapping[int, float]]) -> RetrievalScores:
    """Return recall@k, hit rate@k, MRR@k and nDCG@k at every rank k.

    - recall@k: the share of the relevant rows of a query that are among its first k results; it is
      at most ``k / n_relevant``.
    - hit rate@k: 1 if at least one relevant row is among the first k, else 0. Image-caption papers
      call this recall@k.
    - MRR@k: the mean of 1 / rank of the first relevant row, 0 if none is among the first k.
    - nDCG@k: the sum of ``relevance_i / log2(i + 1)`` over ranks i up to k, divided by its largest
      possible value: 1 for a perfect ranking, 0.63 for the only relevant row at rank 2.

    Recall and nDCG are those of trec_eval (``recall_k``, ``ndcg_cut_k``).

    Args:
        ranked: ``(M, depth)``; for each of M queries, the rows of the texts that were found, best
            first, with -1 in unused places.
        relevant: for each query, its relevant rows with their relevance, which is above 0. A
            relevant text that was not searched counts too, with a row that is in no ranking. A
            query without a relevant row is left out of the scores.
    """
    # For each query, the relevance at each rank, and that of a perfect ranking.
    depth = ranked.shape[1]
    gained: list[list[float]] = []
    ideal: list[list[float]] = []
    n_relevant: list[int] = []
    for rows, relevance_of in zip(ranked, relevant, strict=True):
        if relevance_of:
            gained.append([relevance_of.get(row, 0.0) for row in rows.tolist()])
            largest = sorted(relevance_of.values(), reverse=True)[:depth]
            ideal.append(largest + [0.0] * (depth - len(largest)))
            n_relevant.append(len(relevance_of))
    if not gained:
        raise ValueError("no query has a relevant row")

    # All measures at every rank.
    gains = np.array(gained)
    n_found = np.cumsum(gains > 0, axis=1)
    is_hit = n_found > 0
    reciprocal = 1.0 / (1 + (gains > 0).argmax(axis=1, keepdims=True))  # wrong without a hit
    discount = 1 / np.log2(np.arange(2, depth + 2))
    return RetrievalScores(
        recalls=n_found / np.array(n_relevant)[:, None],
        hits=is_hit.astype(np.float64),
        reciprocal_ranks=reciprocal * is_hit,  # 0 without a hit
        ndcgs=np.cumsum(gains * discount, axis=1) / np.cumsum(np.array(ideal) * discount, axis=1),
    )


def rank_exactly(queries: Floats32, corpus: Floats32, depth: int) -> Ranking:
    """Return the rows ``(M, depth)`` of the texts nearest to each of M queries, best first.

    ``queries`` and ``corpus`` are vectors, compared by cosine. Of equal cosines the lower row comes
    first. If the corpus has fewer than ``depth`` texts, the last columns are -1.
    """
    query_units = unit_rows(queries, np.float32)
    corpus_units = unit_rows(corpus, np.float32).T
    ranked = np.full((len(queries), depth), -1, np.int64)
    n_taken = min(depth, len(corpus))
    for start in range(0, len(query_units), _BLOCK):
        cosines = query_units[start : start + _BLOCK] @ corpus_units
        for row, scores in enumerate(cosines, start=start):
            # Sort only the texts that are at least as near as the last one that is taken. Of texts
            # with equal cosines, the stable sort prefers the lower rows.
            least = np.partition(scores, -n_taken)[-n_taken]
            near = np.flatnonzero(scores >= least)
            ranked[row, :n_taken] = near[np.argsort(-scores[near], kind="stable")][:n_taken]
    return ranked
