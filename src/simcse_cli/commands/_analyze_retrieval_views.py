"""Neighbours and retrieval scores as tables, numbers, figure and page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simcse_cli.commands._analyze_output import Findings, html_table
from simcse_cli.commands._analyze_retrieval import Retrieved
from simcse_cli.report import Column, Report

if TYPE_CHECKING:
    from simcse_cli.analysis.html import HtmlSection
    from simcse_cli.analysis.retrieval import RetrievalScores

TITLE = "Nearest sentences"


def neighbour_reports(retrieved: Retrieved) -> list[Report]:
    """Return one table a query, the systems side by side."""
    labels = list(retrieved.neighbours)
    columns = [Column("rank", "#", "count")]
    for label in labels:
        columns += [Column(label), Column(f"{label} cosine", "cosine", "number")]
    reports = []
    for number, query in enumerate(retrieved.queries):
        found = {label: retrieved.neighbours[label][number] for label in labels}
        rows = []
        for position in range(max(len(each) for each in found.values())):
            row: dict[str, Any] = {"rank": position + 1}
            for label, each in found.items():
                if position < len(each):
                    row |= {label: each[position].sentence, f"{label} cosine": each[position].cosine}
            rows.append(row)
        reports.append(Report(f"Query: {query}", columns, rows))
    return reports


def neighbour_rows(retrieved: Retrieved) -> list[dict[str, Any]]:
    """Return every neighbour as one row; ``line`` counts from 1 as editors do."""
    return [
        {
            "query": query,
            "model": label,
            "rank": rank,
            "line": neighbour.row + 1,
            "sentence": neighbour.sentence,
            "cosine": neighbour.cosine,
        }
        for number, query in enumerate(retrieved.queries)
        for label, found in retrieved.neighbours.items()
        for rank, neighbour in enumerate(found[number], start=1)
    ]


def score_report(scores: "dict[str, RetrievalScores]", ks: Sequence[int]) -> Report:
    """Return one row a system: hit rate and recall at each k, and MRR."""
    columns = [Column("model"), Column("n_queries", "queries", "count")]
    columns += [Column(f"hit_rate@{k}", f"hit@{k}", "score") for k in ks]
    columns += [Column(f"recall@{k}", kind="score") for k in ks]
    depth = next(iter(scores.values())).depth
    columns.append(Column("mrr", f"MRR@{depth}", "score"))
    rows = [score_row(name, each, ks) for name, each in scores.items()]
    note = "hit@k: queries with a relevant sentence among the first k; recall@k: share of the relevant found."
    return Report("Retrieval", columns, rows, [note])


def score_row(name: str, scores: "RetrievalScores", ks: Sequence[int]) -> dict[str, Any]:
    """Return the numbers of one system."""
    row: dict[str, Any] = {"model": name, "n_queries": scores.n_queries}
    row |= {f"hit_rate@{k}": float(scores.hit_rate[k - 1]) for k in ks}
    row |= {f"recall@{k}": float(scores.recall[k - 1]) for k in ks}
    return row | {"mrr": scores.mrr}


def retrieval_findings(retrieved: Retrieved, ks: Sequence[int], facts: dict[str, Any]) -> Findings:
    """Return neighbours and scores as tables, numbers, figure and page."""
    from simcse_cli.analysis.figures import retrieval_figure
    from simcse_cli.analysis.terminal_plots import bar_lines

    reports = neighbour_reports(retrieved)
    series = []
    if retrieved.queries:
        columns = [Column(key) for key in ("query", "model", "rank", "line", "sentence", "cosine")]
        series.append(Report("Neighbours", columns, neighbour_rows(retrieved)))
    if retrieved.scores:
        reports.append(score_report(retrieved.scores, ks))
        series.append(reports[-1])

    def terminal() -> str:
        if not retrieved.scores:
            return ""
        curves = {name: scores.hit_rate for name, scores in retrieved.scores.items()}
        depth = next(iter(retrieved.scores.values())).depth
        return bar_lines(curves, high=1.0) + f"hit rate at 1 (left) to {depth} (right)\n"

    return Findings(
        reports=reports,
        payload={
            "analysis": "retrieval",
            **facts,
            "neighbours": neighbour_rows(retrieved),
            "scores": [score_row(name, scores, ks) for name, scores in retrieved.scores.items()],
        },
        figure=lambda: retrieval_figure(retrieved.scores),
        terminal=terminal,
        sections=lambda: _sections(retrieved, reports),
        title=TITLE,
        series=series,
    )


def _sections(retrieved: Retrieved, reports: Sequence[Report]) -> "list[HtmlSection]":
    from simcse_cli.analysis.figures import retrieval_figure
    from simcse_cli.analysis.html import HtmlFigure, HtmlSection
    from simcse_cli.analysis.plots import figure_svg

    figures: list[HtmlFigure] = []
    if retrieved.scores:
        svg = figure_svg(retrieval_figure(retrieved.scores))
        figures.append(HtmlFigure(svg, "Hit rate and recall against the number of sentences looked at."))
    text = "Sentences of the corpus by cosine to each query; sentences equal to the query are left out."
    return [HtmlSection(TITLE, text, figures, [html_table(report) for report in reports])]
