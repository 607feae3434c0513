"""Paired tests of `simcse compare`: entries with saved per-pair scores against one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcse_cli.console import Column, Report
from simcse_cli.measures import AVERAGE, label
from simcse_cli.names import Aggregation, Correction, Metric
from simcse_cli.progress import Progress

if TYPE_CHECKING:
    from simcse_cli.comparison.entries import Entry
    from simcse_cli.comparison.joined import Comparison
    from simcse_cli.evaluation.paired_tests import PairedSample, PairedTest
    from simcse_cli.pair_scores import PairScores


@dataclass(frozen=True)
class BootstrapPlan:
    """How the tests are run: resamples, seed, and the correction over all of them."""

    n_resamples: int
    seed: int
    correction: Correction


@dataclass(frozen=True)
class TestedEntry:
    """One comparison of two entries on one task, with its p-value corrected for all of them."""

    candidate: str
    baseline: str
    measure: str
    test: "PairedTest"
    p_corrected: float

    def to_json(self) -> dict[str, Any]:
        """Return the test as result files hold it."""
        return {
            "candidate": self.candidate,
            "baseline": self.baseline,
            "measure": self.measure,
            **vars(self.test),
            "p_corrected": self.p_corrected,
        }


def with_pair_scores(comparison: "Comparison") -> "list[tuple[Entry, Path]]":
    """Return the entries whose per-pair scores were saved, the baseline of the tests first.

    The baseline is the reference of the comparison if its pairs were saved, else the first entry with some.
    """
    found = [(entry, entry.pair_scores) for entry in comparison.entries if entry.pair_scores is not None]
    return sorted(found, key=lambda item: item[0] is not comparison.reference)


def run_tests(comparison: "Comparison", plan: BootstrapPlan, progress: Progress) -> list[TestedEntry]:
    """Return the tests of every entry with per-pair scores against the first, over the tasks they share."""
    from simcse_cli.evaluation.paired_tests import adjust
    from simcse_cli.pair_scores import read_pair_scores

    if len(with_pair_scores(comparison)) < 2:
        return []
    (baseline, baseline_path), *candidates = with_pair_scores(comparison)
    expected = read_pair_scores(baseline_path)
    found: list[tuple[str, str, PairedTest]] = []
    with progress.task("paired bootstrap", total=len(candidates)) as task:
        for entry, path in candidates:
            samples = _samples(read_pair_scores(path), expected)
            if not samples:
                progress.warn(
                    f"{entry.label} and {baseline.label} share no task with the same pairs: not tested"
                )
            else:
                found += [(entry.label, *row) for row in _tests(samples, baseline, plan)]
            task.advance()
    corrected = adjust([test.p_value for _, _, test in found], plan.correction)
    return [
        TestedEntry(candidate, baseline.label, measure, test, p)
        for (candidate, measure, test), p in zip(found, corrected, strict=True)
    ]


def tests_report(tests: Sequence[TestedEntry], plan: BootstrapPlan) -> Report:
    """Return one row a test."""
    rows = [
        {
            "system": tested.candidate,
            "task": label(tested.measure),
            "pairs": tested.test.n_pairs,
            "difference": tested.test.difference,
            "low": tested.test.low,
            "high": tested.test.high,
            "p": tested.test.p_value,
            "corrected": tested.p_corrected,
        }
        for tested in tests
    ]
    columns = [
        Column("system"),
        Column("task"),
        Column("pairs", kind="count"),
        Column("difference", kind="difference"),
        Column("low", "95% low", "difference"),
        Column("high", "95% high", "difference"),
        Column("p", kind="number"),
        Column("corrected", f"p ({plan.correction})", "number"),
    ]
    note = (
        f"paired bootstrap over pairs, {plan.n_resamples:,} resamples, two-sided; "
        f"{plan.correction} correction, tests: {len(tests)}"
    )
    return Report(f"Paired tests against {tests[0].baseline}", columns, rows, [note])


def _samples(candidate: "PairScores", baseline: "PairScores") -> "dict[str, list[PairedSample]]":
    """Return what two files share, by task: its subsets with both models' cosines."""
    from simcse_cli.evaluation.paired_tests import PairedSample
    from simcse_cli.pair_scores import same_pairs

    return {
        task: [
            PairedSample(pairs.gold, candidate[task][subset].cosine, pairs.cosine)
            for subset, pairs in subsets.items()
        ]
        for task, subsets in baseline.items()
        if same_pairs(candidate, baseline, task)
    }


def _tests(
    samples: "dict[str, list[PairedSample]]", baseline: "Entry", plan: BootstrapPlan
) -> "list[tuple[str, PairedTest]]":
    """Return the test of each task, and of their mean where there are several."""
    from simcse_cli.evaluation.paired_tests import paired_bootstrap

    tasks, mean = paired_bootstrap(
        samples,
        aggregation=Aggregation(baseline.settings.get("aggregation", Aggregation.ALL)),
        metric=Metric(baseline.settings.get("metric", Metric.SPEARMAN)),
        n_resamples=plan.n_resamples,
        seed=plan.seed,
    )
    return [*tasks.items(), *([(AVERAGE, mean)] if len(tasks) > 1 else [])]
