"""Nearest sentences to queries, and how many of the relevant ones are among them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simcse_cli.analysis.geometry import Vectors
from simcse_cli.analysis.search_index import SearchIndex

RowSet = frozenset[int]


@dataclass(frozen=True)
class Neighbour:
    """One sentence found: its row in the index (from 0), its text and its cosine to the query."""

    row: int
    sentence: str
    cosine: float


@dataclass(frozen=True)
class RetrievalScores:
    """Means over the queries that have at least one relevant sentence; all in [0, 1], higher is better."""

    n_queries: int
    recall: dict[int, float]
    hit_rate: dict[int, float]
    mrr: float
    depth: int


def nearest(
    index: SearchIndex, queries: Vectors, k: int, excluded: Sequence[RowSet] | None = None
) -> list[list[Neighbour]]:
    """Return the ``k`` nearest sentences of each query, best first, without the rows excluded for it.

    Args:
        index: what is searched.
        queries: ``(M, D)``, any norm.
        k: how many for each query; fewer where the index holds fewer.
        excluded: for each query, rows that are no result (the query itself, when it is part of the index).
    """
    excluded = excluded or [frozenset()] * len(queries)
    surplus = max((len(rows) for rows in excluded), default=0)
    scores, rows = index.search(queries, k + surplus)
    found = []
    for query_scores, query_rows, unwanted in zip(scores.tolist(), rows.tolist(), excluded, strict=True):
        kept = [
            Neighbour(row, index.sentences[row], min(1.0, score))
            for score, row in zip(query_scores, query_rows, strict=True)
            if row >= 0 and row not in unwanted
        ]
        found.append(kept[:k])
    return found


def rows_of_text(sentences: Sequence[str]) -> dict[str, RowSet]:
    """Return, for each distinct sentence, the rows it stands in."""
    rows: dict[str, list[int]] = {}
    for row, sentence in enumerate(sentences):
        rows.setdefault(sentence, []).append(row)
    return {sentence: frozenset(numbers) for sentence, numbers in rows.items()}


def score_retrieval(
    ranked: Sequence[Sequence[int]], relevant: Sequence[RowSet], ks: Sequence[int], *, depth: int
) -> RetrievalScores:
    """Return recall@k, hit rate@k and mean reciprocal rank over the queries that have a relevant row.

    recall@k is the share of a query's relevant rows among its first k, so at most ``k / n_relevant``; hit
    rate@k is 1 when at least one is among them (image-caption papers call this one recall@k). The reciprocal
    rank is that of the first relevant row, 0 when none is among the first ``depth``.

    Args:
        ranked: for each query its rows, best first, at least ``depth`` of them where there are as many.
        relevant: for each query the rows that count; a query with none is left out.
        ks: ranks to report, each at most ``depth``.
        depth: where the ranking is cut.

    Raises:
        ValueError: no query has a relevant row, or a k exceeds ``depth``.
    """
    if max(ks) > depth:
        raise ValueError(f"rank {max(ks)} is beyond the depth {depth}")
    judged = [(rows[:depth], wanted) for rows, wanted in zip(ranked, relevant, strict=True) if wanted]
    if not judged:
        raise ValueError("no query has a relevant row")
    hits: list[NDArray[np.bool_]] = [np.isin(rows, list(wanted)) for rows, wanted in judged]
    sizes = np.array([len(wanted) for _, wanted in judged])
    found = {k: np.array([found[:k].sum() for found in hits]) for k in ks}
    return RetrievalScores(
        n_queries=len(judged),
        recall={k: float((found[k] / sizes).mean()) for k in ks},
        hit_rate={k: float((found[k] > 0).mean()) for k in ks},
        mrr=float(
            np.mean([1.0 / (1 + int(row_hits.argmax())) if row_hits.any() else 0.0 for row_hits in hits])
        ),
        depth=depth,
    )
