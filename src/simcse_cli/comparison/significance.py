"""Paired tests of entries with saved examples against one of them, over the tasks they share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from simcse_cli.comparison.entries import Entry
from simcse_cli.comparison.join import Comparison, System
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.evaluation import bootstrap
from simcse_cli.evaluation.bootstrap import Discordance, PairedTest
from simcse_cli.progress import Progress
from simcse_cli.results import examples
from simcse_cli.results.columns import AVERAGE, TRANSFER_AVERAGE, columns, label
from simcse_cli.results.report import Report
from simcse_cli.results.result import CHOSE_MODEL, verdict
from simcse_cli.settings.choices import Aggregation, Correction, Metric

Saved = TypeVar("Saved")
Seeds = Sequence[Saved]
"""What the seeds of one system have saved."""
TestedSuite = Literal["sts", "transfer"]
Tests = tuple[dict[str, PairedTest], PairedTest]
"""Of each task, and of the mean over the tasks."""
EXAMPLES: dict[TestedSuite, str] = {"sts": "pairs", "transfer": "examples"}


@dataclass(frozen=True)
class TaskTest:
    """A candidate against the baseline on one task, or on the mean over tasks.

    p-values are corrected over the tests of both suites, those of McNemar's test for their own
    number. McNemar's is there for single transfer tasks: a mean has no discordant examples.
    """

    suite: TestedSuite
    candidate: str
    baseline: str
    measure: str
    test: PairedTest
    discordance: Discordance | None = None
    p_corrected: float | None = None
    p_mcnemar: float | None = None
    p_mcnemar_corrected: float | None = None

    def to_json(self) -> dict[str, Any]:
        names = {"candidate": self.candidate, "baseline": self.baseline, "measure": self.measure}
        values = names | vars(self.test) | {"p_corrected": self.p_corrected}
        if self.discordance is None:
            return values
        counts = {
            name: getattr(self.discordance, name)
            for name in ("n_only_candidate", "n_only_baseline")
        }
        exact = {"p_mcnemar": self.p_mcnemar, "p_mcnemar_corrected": self.p_mcnemar_corrected}
        return values | counts | exact


def run_tests(
    comparison: Comparison, options: CompareOptions, progress: Progress
) -> list[TaskTest]:
    how = {"n_resamples": options.resamples, "seed": options.seed}

    def of_pairs(samples: Mapping[str, Any], baseline: Entry, by_seed: bool) -> Tests:
        aggregation = Aggregation(baseline.settings.get("aggregation", Aggregation.ALL))
        metric = Metric(baseline.settings.get("metric", Metric.SPEARMAN))
        return bootstrap.paired_bootstrap(
            samples, aggregation=aggregation, metric=metric, by_seed=by_seed, **how
        )

    def of_classes(shared: Mapping[str, Any], _: Entry, by_seed: bool) -> Tests:
        if all(isinstance(found, Discordance) for found in shared.values()):
            return bootstrap.paired_accuracy_bootstrap(shared, **how)
        return bootstrap.paired_mean_bootstrap(shared, by_seed=by_seed, **how)

    pairs, predictions = comparison.systems("pair_scores"), comparison.systems("predictions")
    for remark in dict.fromkeys(system.remark for system in (*pairs, *predictions)):
        if remark is not None:
            progress.warn(remark)
    sts = _run_suite("sts", pairs, examples.read_pair_scores, _shared_pairs, of_pairs, progress)
    saved = predictions, examples.read_predictions, _discordances
    transfer = _run_suite("transfer", *saved, of_classes, progress)
    return _corrected([*sts, *transfer], options.correction)


def _run_suite(
    suite: TestedSuite,
    systems: Sequence[System],
    read: Callable[[Path], Saved],
    share: Callable[[Seeds[Saved], Seeds[Saved]], Mapping[str, Any]],
    test: Callable[[Mapping[str, Any], Entry, bool], Tests],
    progress: Progress,
) -> list[TaskTest]:
    """Return the tests of one suite.

    A warning names the systems that share nothing with the baseline.
    """
    if len(systems) < 2:
        return []

    # The baseline is read once for all candidates.
    baseline, *candidates = systems
    expected = [read(path) for _, path in baseline.members]
    found: list[TaskTest] = []

    # Tested are tasks with the same examples, but none that has chosen a model.
    with progress.task("paired bootstrap", total=len(candidates)) as task:
        for system in candidates:
            candidate, by_seed = system.in_order_of(baseline)
            shared = share([read(path) for _, path in candidate.members], expected)
            chosen = {*system.chosen_pairs, *baseline.chosen_pairs} if suite == "sts" else set()
            if shared and chosen.issuperset(shared):
                task.advance()
                continue  # `chosen_notes` says so
            shared = {name: each for name, each in shared.items() if name not in chosen}
            if shared:
                tests, mean = test(shared, baseline.members[0][0], by_seed)
                if len(tests) > 1:
                    tests[AVERAGE if suite == "sts" else TRANSFER_AVERAGE] = mean
                discordant = {
                    name: each for name, each in shared.items() if isinstance(each, Discordance)
                }
                found += [
                    TaskTest(suite, system.label, baseline.label, name, each, discordant.get(name))
                    for name, each in tests.items()
                ]
            else:
                what = (
                    f"{system.label} and {baseline.label} share no task with the same examples: "
                    "not tested"
                )
                progress.warn(what)
            task.advance()
    return found


def _shared_pairs(
    candidate: Seeds[examples.PairScores], baseline: Seeds[examples.PairScores]
) -> dict[str, list[bootstrap.PairedSample]]:
    first, shared = baseline[0], {}
    for task, subsets in first.items():
        if not all(examples.same_pairs(seed, first, task) for seed in (*candidate, *baseline)):
            continue
        shared[task] = [
            bootstrap.PairedSample(
                pairs.gold,
                np.stack([seed[task][subset].cosine for seed in candidate]),
                np.stack([seed[task][subset].cosine for seed in baseline]),
            )
            for subset, pairs in subsets.items()
        ]
    return shared


def _discordances(
    candidate: Seeds[Mapping[str, examples.TaskPredictions]],
    baseline: Seeds[Mapping[str, examples.TaskPredictions]],
) -> dict[str, Any]:
    """Return the discordance of each task.

    With several seeds, the value is what the seeds of both systems get right.
    """
    first = baseline[0]
    shared: dict[str, Any] = {}
    for task in first:
        if not all(examples.same_examples(seed, first, task) for seed in (*candidate, *baseline)):
            continue
        candidates, baselines = (
            np.stack([seed[task].correct for seed in side]) for side in (candidate, baseline)
        )
        is_single = len(candidates) == len(baselines) == 1
        shared[task] = (
            bootstrap.discordance(candidates[0], baselines[0])
            if is_single
            else (candidates, baselines)
        )
    return shared


def _corrected(found: Sequence[TaskTest], correction: Correction) -> list[TaskTest]:
    """Return the tests with corrected p-values.

    The bootstrap tests and the McNemar tests are corrected separately.
    """
    p_values = bootstrap.adjust([each.test.p_decisive for each in found], correction)
    exact = [
        bootstrap.mcnemar_exact(each.discordance) for each in found if each.discordance is not None
    ]
    exact_pairs = zip(exact, bootstrap.adjust(exact, correction), strict=True)
    corrected = []
    for each, p_corrected in zip(found, p_values, strict=True):
        p, p_adjusted = (None, None) if each.discordance is None else next(exact_pairs)
        corrected.append(
            replace(each, p_corrected=p_corrected, p_mcnemar=p, p_mcnemar_corrected=p_adjusted)
        )
    return corrected


def verdicts(tests: Sequence[TaskTest], correction: Correction) -> list[str]:
    """Return a sentence for each system, which compares it with the baseline.

    The sentence is about the mean over the tasks of the system, or about its only task.
    """
    last = {(test.suite, test.candidate): test for test in tests}  # the mean comes last
    n_tests = "1 test" if len(tests) == 1 else f"{len(tests)} tests"
    found = []
    for test in last.values():
        n_seeds = test.test.n_seeds
        examples = f"{test.test.n_pairs:,} {EXAMPLES[test.suite]}"
        if n_seeds is not None:
            examples += f" and {n_seeds} seeds"
        p_value = test.test.p_decisive if test.p_corrected is None else test.p_corrected
        words = verdict(test.test.low, test.test.high, p_value, test.baseline, examples)
        where = f"{label(test.measure)}, p = {p_value:.2g}, {correction} over {n_tests}"
        found.append(f"{test.candidate}: {words} ({where})")
    return found


def chosen_notes(comparison: Comparison) -> list[str]:
    """Return what the tests leave out because its pairs have chosen a model, system by system."""
    systems = comparison.systems("pair_scores")
    if len(systems) < 2:
        return []
    return [
        f"{', '.join(map(label, system.chosen_pairs))} of {system.label}: {CHOSE_MODEL}, not tested"
        for system in systems
        if system.chosen_pairs
    ]


def tests_tables(
    tests: Sequence[TaskTest], n_resamples: int, correction: Correction
) -> list[Report]:
    sts, transfer = (
        [each for each in tests if each.suite == suite] for suite in ("sts", "transfer")
    )

    # The columns, with those of seeds only where some system has several.
    has_seeds = any(each.test.p_seeds is not None for each in tests)
    of_seeds = ("n_seeds", "p_seeds", "p_both") if has_seeds else ()
    keys = (
        "candidate",
        "measure",
        "n_pairs",
        "difference",
        "low",
        "high",
        "p_value",
        *of_seeds,
        "p_corrected",
    )
    headings = {"candidate": "system", "measure": "task", "p_corrected": f"p ({correction})"}

    # The note says how the p values were found.
    resampled = (
        f"paired bootstrap over examples, {n_resamples:,} resamples, two-sided; "
        f"{correction} correction, tests: {len(tests)}"
    )
    if has_seeds:
        resampled += (
            "; scores are averaged over seeds. p of seeds: two-sided t-test over them, paired "
            "where both systems have the same seeds (else Welch's). p of both: seeds and "
            "examples together (quasi-F, not below p of seeds); the interval is of this test, "
            "and it is corrected"
        )

    # One table a suite; accuracies get McNemar's exact test as well.
    tables = []
    if sts:
        title = f"Paired tests against {sts[0].baseline}"
        tables.append(
            Report(title, columns(*keys, kind=None, **headings), _test_rows(sts), [resampled])
        )
    if transfer:
        headings |= {"n_pairs": "examples", "p_mcnemar_corrected": f"({correction})"}
        mcnemar = ("n_only_candidate", "n_only_baseline", "p_mcnemar", "p_mcnemar_corrected")
        n_exact = sum(test.discordance is not None for test in transfer)
        exact = f"McNemar: exact, two-sided; {correction} correction, tests: {n_exact}"
        title = f"Paired tests of accuracy against {transfer[0].baseline}"
        shown = columns(*keys, *mcnemar, kind=None, **headings)
        tables.append(Report(title, shown, _test_rows(transfer), [resampled, exact]))
    return tables


def _test_rows(tests: Sequence[TaskTest]) -> list[dict[str, Any]]:
    return [test.to_json() | {"measure": label(test.measure)} for test in tests]
