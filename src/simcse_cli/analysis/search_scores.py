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
    """Return a row of scores for each model; ``ranks`` are in ascending order.

    The entry ``ci`` of a row maps each measure to its 95% interval over the queries.
    """
    rows = []
    for name, model_scores in scores.items():
        values_of = _values_of_measures(model_scores, ranks)
        # All models have the same draws of queries, since the text "retrieval" seeds them.
        resampled = resample_means("retrieval", np.stack(list(values_of.values())))
        row: dict[str, Any] = {"model": name, "n_queries": model_scores.n_queries}
        for measure, values in values_of.items():
            row[measure] = float(np.mean(values))
        row["ci"] = dict(zip(values_of, map(interval, resampled), strict=True))
        rows.append(row)
    return rows


def _values_of_measures(scores: RetrievalScores, ranks: Sequence[int]) -> dict[str, Floats]:
    """Return the values ``(n,)`` of each measure for n queries.

    Hit rate and recall are at each of the ``ranks``, nDCG and MRR at the last rank, and ``mrr`` is
    over the whole depth.
    """
    # Column k - 1 of the scores is for rank k, and the last column for the whole depth.
    largest_rank = ranks[-1]
    values = {f"hit_rate@{k}": scores.hits[:, k - 1] for k in ranks}
    values |= {f"recall@{k}": scores.recalls[:, k - 1] for k in ranks}
    values["mrr"] = scores.reciprocal_ranks[:, -1]
    values[f"mrr@{largest_rank}"] = scores.reciprocal_ranks[:, largest_rank - 1]
    values[f"ndcg@{largest_rank}"] = scores.ndcgs[:, largest_rank - 1]
    return values


def interval_note(rows: Sequence[Mapping[str, Any]], measure: str, heading: str) -> str:
    """Return a sentence with the interval of a measure in each row.

    ``measure`` is the key of the measure, and ``heading`` is how the sentence calls it.
    """
    intervals = []
    for row in rows:
        ends = row["ci"][measure]
        intervals.append(f"{row['model']} {100 * ends['low']:.2f} to {100 * ends['high']:.2f}")
    return f"95% intervals of {heading} over the queries: {', '.join(intervals)}"


def search_tests(scores: _ModelScores, groups: Groups, rank: int) -> dict[str, PairedTest]:
    """Return for each system but the first a paired test of nDCG@``rank`` against the first.

    The seeds of a system are tested together. If both systems have the same seeds, the test is also
    paired by seed.
    """
    # The nDCG of each query, by system and seed.
    ndcgs: dict[str, dict[str, Any]] = {}
    for label, model_scores in scores.items():
        system = groups.get(label) or label
        # The last part of a label, such as ``seed-1``, identifies the seed.
        seed = PurePath(label).name
        ndcgs.setdefault(system, {})[seed] = model_scores.ndcgs[:, rank - 1]
    first, *others = ndcgs
    baseline_seeds = ndcgs[first]
    baseline = np.stack([baseline_seeds[seed] for seed in sorted(baseline_seeds)])
    tests: dict[str, PairedTest] = {}
    for system in others:
        candidate_seeds = ndcgs[system]
        by_seed = candidate_seeds.keys() == baseline_seeds.keys()
        candidate = np.stack([candidate_seeds[seed] for seed in sorted(candidate_seeds)])
        tested, _ = paired_mean_bootstrap({system: (candidate, baseline)}, by_seed=by_seed)
        tests |= tested
    return tests


def verdict_notes(tests: Mapping[str, PairedTest], baseline: str, heading: str) -> list[str]:
    """Return a sentence for each test, with p-values corrected for the number of tests (Holm).

    ``tests`` maps a system to its test against ``baseline``; ``heading`` names what was tested.
    """
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
    """Return the table of scores with means over seeds, and notes on intervals and tests.

    MRR is computed over the first ``depth`` results, and also at the last of the ``ranks``.
    """
    last = ranks[-1]
    columns = [Column("model"), Column("n_queries", "queries", "count")]
    columns += [Column(f"hit_rate@{k}", f"hit@{k}", "score") for k in ranks]
    columns += [Column(f"recall@{k}", kind="score") for k in ranks]
    columns.append(Column("mrr", f"MRR@{depth}", "score"))
    if last != depth:
        columns.append(Column(f"mrr@{last}", f"MRR@{last}", "score"))
    columns.append(Column(f"ndcg@{last}", f"nDCG@{last}", "score"))
    first_label = rows[0]["model"]
    first_system = groups.get(first_label) or first_label
    all_notes = [
        "hit@k: queries with a relevant sentence among the first k; "
        "recall@k: share of the relevant found.",
        interval_note(rows, f"ndcg@{last}", f"nDCG@{last}"),
        *verdict_notes(tests, first_system, f"nDCG@{last}"),
        *notes,
    ]
    return with_seed_means(Report("Retrieval", columns, list(rows), all_notes), groups)
