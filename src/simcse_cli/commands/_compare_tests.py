"""Paired tests of `simcse compare`: entries with saved scores of single examples against one of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcse_cli.choices import Aggregation, Correction, Metric
from simcse_cli.metrics import AVERAGE, TRANSFER_AVERAGE, label
from simcse_cli.progress import Progress
from simcse_cli.report import Column, Report

if TYPE_CHECKING:
    from simcse_cli.comparison.entries import Entry
    from simcse_cli.comparison.tables import Comparison
    from simcse_cli.evaluation.bootstrap import Discordance, PairedTest
    from simcse_cli.predictions import PairScores, TaskPredictions


@dataclass(frozen=True)
class BootstrapPlan:
    """How the tests are run: resamples, seed, and the correction over all of them."""

    n_resamples: int
    seed: int
    correction: Correction


@dataclass(frozen=True)
class Classified:
    """What two classifiers share and do not share on one task, with McNemar's exact p-value."""

    discordance: "Discordance"
    p_mcnemar: float
    p_mcnemar_corrected: float

    def to_json(self) -> dict[str, Any]:
        """Return the counts and p-values as result files hold them."""
        found = self.discordance
        return {
            "n_only_candidate": found.n_only_candidate,
            "n_only_baseline": found.n_only_baseline,
            "p_mcnemar": self.p_mcnemar,
            "p_mcnemar_corrected": self.p_mcnemar_corrected,
        }


@dataclass(frozen=True)
class TestedEntry:
    """One comparison of two entries on one task, with its p-value corrected for all of them."""

    candidate: str
    baseline: str
    measure: str
    test: "PairedTest"
    p_corrected: float
    classified: Classified | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the test as result files hold it."""
        return {
            "candidate": self.candidate,
            "baseline": self.baseline,
            "measure": self.measure,
            **vars(self.test),
            "p_corrected": self.p_corrected,
            **({} if self.classified is None else self.classified.to_json()),
        }


@dataclass(frozen=True)
class PairedTests:
    """The tests of a comparison by suite; p-values are corrected over both suites."""

    sts: Sequence[TestedEntry] = ()
    transfer: Sequence[TestedEntry] = ()

    def to_json(self) -> list[dict[str, Any]]:
        """Return all tests as result files hold them."""
        return [tested.to_json() for tested in (*self.sts, *self.transfer)]


@dataclass(frozen=True)
class _Found:
    """A test before its correction; McNemar's is not defined for a mean over tasks."""

    candidate: str
    baseline: str
    measure: str
    test: "PairedTest"
    discordance: "Discordance | None" = None


# candidate's and baseline's saved scores, the baseline, the plan -> measure, test and counts
_Tester = Callable[[Any, Any, "Entry", BootstrapPlan], "list[tuple[str, PairedTest, Discordance | None]]"]


def with_saved(comparison: "Comparison", kind: str) -> "list[tuple[Entry, Path]]":
    """Return the entries that saved ``pair_scores`` or ``predictions``, the baseline of the tests first.

    The baseline is the reference of the comparison if its scores were saved, else the first entry with some.
    """
    found = [
        (entry, getattr(entry, kind)) for entry in comparison.entries if getattr(entry, kind) is not None
    ]
    return sorted(found, key=lambda item: item[0] is not comparison.reference)


def run_tests(comparison: "Comparison", plan: BootstrapPlan, progress: Progress) -> PairedTests:
    """Return the tests of every entry with saved scores against the first, over the tasks they share."""
    from simcse_cli.predictions import read_pair_scores, read_predictions

    sts = _run_suite(with_saved(comparison, "pair_scores"), read_pair_scores, _test_sts, plan, progress)
    transfer = _run_suite(
        with_saved(comparison, "predictions"), read_predictions, _test_transfer, plan, progress
    )
    tested = _corrected([*sts, *transfer], plan.correction)
    return PairedTests(tested[: len(sts)], tested[len(sts) :])


def tests_reports(tests: PairedTests, plan: BootstrapPlan) -> list[Report]:
    """Return a table for each suite that was tested."""
    n_tests = len(tests.sts) + len(tests.transfer)
    note = (
        f"paired bootstrap over examples, {plan.n_resamples:,} resamples, two-sided; "
        f"{plan.correction} correction, tests: {n_tests}"
    )
    reports = []
    if tests.sts:
        title = f"Paired tests against {tests.sts[0].baseline}"
        reports.append(Report(title, _columns(plan, "pairs"), [_row(each) for each in tests.sts], [note]))
    if tests.transfer:
        n_exact = sum(tested.classified is not None for tested in tests.transfer)
        columns = [
            *_columns(plan, "examples"),
            Column("n_only_candidate", "only system right", "count"),
            Column("n_only_baseline", "only baseline", "count"),
            Column("p_mcnemar", "McNemar p", "number"),
            Column("p_mcnemar_corrected", f"({plan.correction})", "number"),
        ]
        title = f"Paired tests of accuracy against {tests.transfer[0].baseline}"
        exact = f"McNemar: exact, two-sided; {plan.correction} correction, tests: {n_exact}"
        reports.append(Report(title, columns, [_row(each) for each in tests.transfer], [note, exact]))
    return reports


def _columns(plan: BootstrapPlan, counted: str) -> list[Column]:
    return [
        Column("system"),
        Column("task"),
        Column("pairs", counted, "count"),
        Column("difference", kind="difference"),
        Column("low", "95% low", "difference"),
        Column("high", "95% high", "difference"),
        Column("p", kind="number"),
        Column("corrected", f"p ({plan.correction})", "number"),
    ]


def _row(tested: TestedEntry) -> dict[str, Any]:
    return {
        "system": tested.candidate,
        "task": label(tested.measure),
        "pairs": tested.test.n_pairs,
        "difference": tested.test.difference,
        "low": tested.test.low,
        "high": tested.test.high,
        "p": tested.test.p_value,
        "corrected": tested.p_corrected,
        **({} if tested.classified is None else tested.classified.to_json()),
    }


def _run_suite(
    saved: "Sequence[tuple[Entry, Path]]",
    read: Callable[[Path], Any],
    test: _Tester,
    plan: BootstrapPlan,
    progress: Progress,
) -> list[_Found]:
    """Return the tests of one suite; entries that share nothing with the baseline are named in a warning."""
    if len(saved) < 2:
        return []
    (baseline, baseline_path), *candidates = saved
    expected = read(baseline_path)
    found: list[_Found] = []
    with progress.task("paired bootstrap", total=len(candidates)) as task:
        for entry, path in candidates:
            rows = test(read(path), expected, baseline, plan)
            if not rows:
                progress.warn(
                    f"{entry.label} and {baseline.label} share no task with the same examples: not tested"
                )
            found += [_Found(entry.label, baseline.label, *row) for row in rows]
            task.advance()
    return found


def _corrected(found: Sequence[_Found], correction: Correction) -> list[TestedEntry]:
    """Return the tests with p-values corrected for their number, those of McNemar for theirs."""
    from simcse_cli.evaluation.bootstrap import adjust, mcnemar_exact

    p_values = adjust([each.test.p_value for each in found], correction)
    exact = [mcnemar_exact(each.discordance) for each in found if each.discordance is not None]
    pairs = zip(exact, adjust(exact, correction), strict=True)
    return [
        TestedEntry(
            each.candidate,
            each.baseline,
            each.measure,
            each.test,
            p_corrected,
            None if each.discordance is None else Classified(each.discordance, *next(pairs)),
        )
        for each, p_corrected in zip(found, p_values, strict=True)
    ]


def _test_sts(
    candidate: "PairScores", baseline: "PairScores", entry: "Entry", plan: BootstrapPlan
) -> "list[tuple[str, PairedTest, Discordance | None]]":
    """Return the test of each task that both hold, and of their mean where there are several."""
    from simcse_cli.evaluation.bootstrap import PairedSample, paired_bootstrap
    from simcse_cli.predictions import same_pairs

    samples = {
        task: [
            PairedSample(pairs.gold, candidate[task][subset].cosine, pairs.cosine)
            for subset, pairs in subsets.items()
        ]
        for task, subsets in baseline.items()
        if same_pairs(candidate, baseline, task)
    }
    if not samples:
        return []
    tasks, mean = paired_bootstrap(
        samples,
        aggregation=Aggregation(entry.settings.get("aggregation", Aggregation.ALL)),
        metric=Metric(entry.settings.get("metric", Metric.SPEARMAN)),
        n_resamples=plan.n_resamples,
        seed=plan.seed,
    )
    rows = [(task, test, None) for task, test in tasks.items()]
    return [*rows, (AVERAGE, mean, None)] if len(rows) > 1 else [*rows]


def _test_transfer(
    candidate: "Mapping[str, TaskPredictions]",
    baseline: "Mapping[str, TaskPredictions]",
    entry: "Entry",
    plan: BootstrapPlan,
) -> "list[tuple[str, PairedTest, Discordance | None]]":
    """Return the test of each task that both hold, and of their mean where there are several."""
    from simcse_cli.evaluation.bootstrap import discordance, paired_accuracy_bootstrap
    from simcse_cli.predictions import same_examples

    shared = {
        task: discordance(candidate[task].correct, found.correct)
        for task, found in baseline.items()
        if same_examples(candidate, baseline, task)
    }
    if not shared:
        return []
    tasks, mean = paired_accuracy_bootstrap(shared, n_resamples=plan.n_resamples, seed=plan.seed)
    rows: list[tuple[str, PairedTest, Discordance | None]] = [
        (task, test, shared[task]) for task, test in tasks.items()
    ]
    return [*rows, (TRANSFER_AVERAGE, mean, None)] if len(rows) > 1 else rows
