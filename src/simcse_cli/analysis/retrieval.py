"""Nearest sentences to queries, and how many of the relevant ones are among them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simcse_cli.analysis.geometry import Vectors
from simcse_cli.encoding.search_index import Rows, Scores, SearchIndex

RowSet = frozenset[int]


@dataclass(frozen=True)
class Neighbour:
    """One sentence found: its row in the index (from 0), its text and its cosine to the query."""

    row: int
    sentence: str
    cosine: float


@dataclass(frozen=True)
class RetrievalScores:
    """Means over the queries that have at least one relevant sentence; all in [0, 1], higher is better.

    ``recall`` and ``hit_rate`` are ``(depth,)``: entry k - 1 is the value at rank k.
    """

    n_queries: int
    recall: NDArray[np.float64]
    hit_rate: NDArray[np.float64]
    mrr: float

    @property
    def depth(self) -> int:
        """Rank at which the ranking was cut."""
        return len(self.recall)


def rank_rows(
    index: SearchIndex, queries: Vectors, k: int, excluded: Sequence[RowSet] | None = None
) -> tuple[Rows, Scores]:
    """Return rows and cosines of the ``k`` nearest sentences of each query, best first, each ``(M, k)``.

    Where there are fewer than ``k``, the rest is row -1 with cosine -inf.

    Args:
        index: what is searched.
        queries: ``(M, D)``, any norm.
        k: how many for each query.
        excluded: for each query, rows that are no result (the query itself, when it is part of the index).
    """
    unwanted = excluded or [frozenset()] * len(queries)
    found_scores, found_rows = index.search(queries, k + max((len(rows) for rows in unwanted), default=0))
    rows = np.full((len(queries), k), -1, dtype=np.int64)
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for query, (candidates, out) in enumerate(zip(found_rows, unwanted, strict=True)):
        kept = (candidates >= 0) & ~np.isin(candidates, list(out))
        size = min(k, int(kept.sum()))
        rows[query, :size] = candidates[kept][:k]
        scores[query, :size] = found_scores[query][kept][:k]
    return rows, scores


def nearest(
    index: SearchIndex, queries: Vectors, k: int, excluded: Sequence[RowSet] | None = None
) -> list[list[Neighbour]]:
    """Return what :func:`rank_rows` finds as sentences; fewer than ``k`` where the index holds fewer."""
    rows, scores = rank_rows(index, queries, k, excluded)
    return [
        [
            Neighbour(row, index.sentences[row], min(1.0, score))
            for row, score in zip(query_rows, query_scores, strict=True)
            if row >= 0
        ]
        for query_rows, query_scores in zip(rows.tolist(), scores.tolist(), strict=True)
    ]


def rows_of_text(sentences: Sequence[str]) -> dict[str, RowSet]:
    """Return, for each distinct sentence, the rows it stands in."""
    rows: dict[str, list[int]] = {}
    for row, sentence in enumerate(sentences):
        rows.setdefault(sentence, []).append(row)
    return {sentence: frozenset(numbers) for sentence, numbers in rows.items()}


def score_retrieval(ranked: Rows, relevant: Sequence[RowSet]) -> RetrievalScores:
    """Return recall@k, hit rate@k and mean reciprocal rank over the queries that have a relevant row.

    recall@k is the share of a query's relevant rows among its first k, so at most ``k / n_relevant``; hit
    rate@k is 1 when at least one is among them (image-caption papers call this one recall@k). The reciprocal
    rank is that of the first relevant row, 0 when none is in the ranking.

    Args:
        ranked: ``(M, depth)`` rows, best first; -1 where there are fewer.
        relevant: for each query the rows that count; a query with none is left out.

    Raises:
        ValueError: no query has a relevant row.
    """
    judged = [(rows, wanted) for rows, wanted in zip(ranked, relevant, strict=True) if wanted]
    if not judged:
        raise ValueError("no query has a relevant row")
    hits = np.array([np.isin(rows, list(wanted)) for rows, wanted in judged])
    n_relevant = np.array([len(wanted) for _, wanted in judged])
    found = np.cumsum(hits, axis=1)
    reciprocal = np.where(hits.any(axis=1), 1.0 / (1 + hits.argmax(axis=1)), 0.0)
    return RetrievalScores(
        n_queries=len(judged),
        recall=np.mean(found / n_relevant[:, None], axis=0),
        hit_rate=np.mean(found > 0, axis=0),
        mrr=float(reciprocal.mean()),
    )
