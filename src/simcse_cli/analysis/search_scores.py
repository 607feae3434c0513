"""Scores of searches by model: rows of a table, their intervals, and paired tests in words."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from simcse_cli.arrays import Floats
from simcse_cli.evaluation.bootstrap import (
    PairedTest,
    adjust,
    interval,
    paired_mean_bootstrap,
    resample_means,
)
from simcse_cli.evaluation.retrieval import RetrievalScores
from simcse_cli.results.report import Column, Report, with_seed_means
from simcse_cli.settings.choices import Correction

_ModelScores = Mapping[str, RetrievalScores]
"""The scores of each model by its label."""
Groups = Mapping[str, str | None]
"""The group of seeds that a label belongs to; None for a model alone."""


def score_rows(scores: _ModelScores, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each model; ``ci`` holds the 95% interval over the queries of each score."""
    rows = []
    for name, model_scores in scores.items():
        by_query = _by_query(model_scores, ranks)
        resampled = resample_means("retrieval", np.stack(list(by_query.values())))
        row: dict[str, Any] = {"model": name, "n_queries": model_scores.n_queries}
        for measure, values in by_query.items():
            row[measure] = float(np.mean(values))
        row["ci"] = dict(zip(by_query, map(interval, resampled), strict=True))
        rows.append(row)
    return rows


def _by_query(scores: RetrievalScores, ranks: Sequence[int]) -> dict[str, Floats]:
    """Return for each measure its values ``(n,)``, one per query."""
    largest_rank = ranks[-1]
    values = {f"hit_rate@{k}": scores.hits[:, k - 1] for k in ranks}
    values |= {f"recall@{k}": scores.recalls[:, k - 1] for k in ranks}
    values["mrr"] = scores.reciprocal_ranks[:, -1]
    values[f"mrr@{largest_rank}"] = scores.reciprocal_ranks[:, largest_rank - 1]
    values[f"ndcg@{largest_rank}"] = scores.ndcgs[:, largest_rank - 1]
    return values


def interval_note(rows: Sequence[Mapping[str, Any]], measure: str, heading: str) -> str:
    intervals = []
    for row in rows:
        ends = row["ci"][measure]
        intervals.append(f"{row['model']} {100 * ends['low']:.2f} to {100 * ends['high']:.2f}")
    return f"95% intervals of {heading} over the queries: {', '.join(intervals)}"


def search_tests(scores: _ModelScores, groups: Groups, rank: int) -> dict[str, PairedTest]:
    """Return the paired test of nDCG@``rank`` of each system against the first one, by name.

    The seeds of a system are tested together, paired by seed where both systems have the same
    seeds.
    """
    seeds: dict[str, dict[str, Any]] = {}
    for label, model_scores in scores.items():
        system = groups.get(label) or label
        # The last part of a label, such as ``seed-1``, identifies the seed.
        seed = PurePath(label).name
        seeds.setdefault(system, {})[seed] = model_scores.ndcgs[:, rank - 1]
    first, *others = seeds
    baseline_seeds = seeds[first]
    baseline = np.stack([baseline_seeds[seed] for seed in sorted(baseline_seeds)])
    tests: dict[str, PairedTest] = {}
    for system in others:
        candidate_seeds = seeds[system]
        by_seed = candidate_seeds.keys() == baseline_seeds.keys()
        candidate = np.stack([candidate_seeds[seed] for seed in sorted(candidate_seeds)])
        tests |= paired_mean_bootstrap({system: (candidate, baseline)}, by_seed=by_seed)[0]
    return tests


def verdict_notes(tests: Mapping[str, PairedTest], baseline: str, heading: str) -> list[str]:
    """Return a sentence for each test; p-values are corrected for their number (Holm)."""
    p_values = adjust([test.p_decisive for test in tests.values()], Correction.HOLM)
    notes = []
    for (name, test), p_value in zip(tests.items(), p_values, strict=True):
        words = test.verdict(p_value, baseline, "queries")
        notes.append(f"{name}: {words} ({heading}, p = {p_value:.2g})")
    return notes


def score_table(
    rows: Sequence[dict[str, Any]],
    tests: Mapping[str, PairedTest],
    groups: Groups,
    ranks: Sequence[int],
    depth: int,
    notes: Sequence[str],
) -> Report:
    """Return the table of the rows, with means over seeds, interval and verdicts below it."""
    last = ranks[-1]
    columns = [Column("model"), Column("n_queries", "queries", "count")]
    columns += [Column(f"hit_rate@{k}", f"hit@{k}", "score") for k in ranks]
    columns += [Column(f"recall@{k}", kind="score") for k in ranks]
    columns += [
        Column("mrr", f"MRR@{depth}", "score"),
        Column(f"mrr@{last}", f"MRR@{last}", "score"),
        Column(f"ndcg@{last}", f"nDCG@{last}", "score"),
    ]
    first = rows[0]["model"]
    all_notes = [
        "hit@k: queries with a relevant sentence among the first k; "
        "recall@k: share of the relevant found.",
        interval_note(rows, f"ndcg@{last}", f"nDCG@{last}"),
        *verdict_notes(tests, groups.get(first) or first, f"nDCG@{last}"),
        *notes,
    ]
    return with_seed_means(Report("Retrieval", columns, list(rows), all_notes), groups)
