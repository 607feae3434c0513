"""Paired tests of systems with saved examples.

Each system is tested against the first one, on the tasks that both have.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simcse_cli.comparison.entries import Entry, read_saved
from simcse_cli.comparison.join import (
    Comparison,
    System,
    averaged_tasks,
    setting_mismatches,
)
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.evaluation import bootstrap
from simcse_cli.evaluation.bootstrap import Discordance, PairedSample, PairedTest, Tests
from simcse_cli.evaluation.correlation import aggregate
from simcse_cli.progress import Progress
from simcse_cli.results import examples
from simcse_cli.results.columns import columns, in_order, is_average, label
from simcse_cli.results.report import Report
from simcse_cli.results.result import NO_TEST
from simcse_cli.settings.choices import Aggregation, Correction, Metric

Seeds = Sequence[Mapping[str, Any]]
"""The saved examples of each seed of one system, by task."""
TestedSuite = Literal["sts", "transfer"]
EXAMPLES: dict[TestedSuite, str] = {"sts": "pairs", "transfer": "examples"}


@dataclass(frozen=True)
class TaskTest:
    """The test of a candidate against the baseline on one task, or on the mean over tasks.

    ``p_corrected`` is corrected for the number of tests in both suites, ``p_mcnemar_corrected`` for
    the number of McNemar's tests. McNemar's test needs a ``discordance``, which only a transfer
    task has, and only with one seed on each side.
    """

    suite: TestedSuite
    candidate: str
    baseline: str
    measure: str
    test: PairedTest
    discordance: Discordance | None = None
    p_corrected: float | None = None
    p_mcnemar_corrected: float | None = None

    @property
    def p_mcnemar(self) -> float | None:
        if self.discordance is None:
            return None
        return bootstrap.mcnemar_exact(self.discordance)

    def to_json(self) -> dict[str, Any]:
        values = {
            "candidate": self.candidate,
            "baseline": self.baseline,
            "measure": self.measure,
            **vars(self.test),
            "p_corrected": self.p_corrected,
        }
        if self.discordance is not None:
            values |= {
                "n_only_candidate": self.discordance.n_only_candidate,
                "n_only_baseline": self.discordance.n_only_baseline,
                "p_mcnemar": self.p_mcnemar,
                "p_mcnemar_corrected": self.p_mcnemar_corrected,
            }
        return values


def run_tests(
    comparison: Comparison, options: CompareOptions, progress: Progress
) -> list[TaskTest]:
    """Return the tests of each system against the baseline, with corrected p-values."""
    resampling = {"n_resamples": options.resamples, "seed": options.seed}

    def bootstrap_pairs(samples: Mapping[str, Any], baseline: Entry, by_seed: bool) -> Tests:
        metric, aggregation = _scoring(baseline)
        return bootstrap.paired_bootstrap(
            samples,
            aggregation=aggregation,
            metric=metric,
            by_seed=by_seed,
            progress=progress,
            **resampling,
        )

    def bootstrap_classes(samples: Mapping[str, Any], _: Entry, by_seed: bool) -> Tests:
        # With one seed on each side, the samples are counts; otherwise, the hits of each seed.
        if all(isinstance(sample, Discordance) for sample in samples.values()):
            return bootstrap.paired_accuracy_bootstrap(samples, **resampling)
        return bootstrap.paired_mean_bootstrap(samples, by_seed=by_seed, **resampling)

    sts_systems = comparison.systems("pair_scores")
    transfer_systems = comparison.systems("predictions")
    for remark in dict.fromkeys(system.remark for system in (*sts_systems, *transfer_systems)):
        if remark is not None:
            progress.warn(remark)
    sts = _Suite(
        "sts",
        read=examples.read_pair_scores,
        share=shared_pairs,
        test=bootstrap_pairs,
    )
    transfer = _Suite(
        "transfer",
        read=examples.read_predictions,
        share=_shared_classes,
        test=bootstrap_classes,
    )
    tests = _run_suite(sts, sts_systems, comparison, progress)
    tests += _run_suite(transfer, transfer_systems, comparison, progress)
    return _corrected(tests, options.correction)


@dataclass(frozen=True)
class _Suite:
    """How two systems are tested on a suite.

    Attributes:
        read: reads the examples of a result.
        share: takes the examples of a candidate and those of the baseline, and returns what to
            test on each task that both systems have.
        test: tests what ``share`` returned. Its other arguments are the baseline's entry, and
            whether the seeds of the two systems are paired.
    """

    name: TestedSuite
    read: Callable[[Path], Any]
    share: Callable[[Seeds, Seeds], dict[str, Any]]
    test: Callable[[Mapping[str, Any], Entry, bool], Tests]

    def examples_of_seeds(self, system: System) -> Seeds:
        return [read_saved(files, self.read) for _, files in system.members]


def _run_suite(
    suite: _Suite, systems: Sequence[System], comparison: Comparison, progress: Progress
) -> list[TaskTest]:
    """Return the tests of all systems against the first one, the baseline, on one suite."""
    if len(systems) < 2:
        return []
    baseline, *candidates = systems
    baseline_examples = suite.examples_of_seeds(baseline)  # read once for all candidates
    results: list[TaskTest] = []
    with progress.task("paired bootstrap", total=len(candidates)) as task:
        for candidate in candidates:
            results += _tests_of(
                candidate, baseline, baseline_examples, suite, comparison, progress
            )
            task.advance()
    return results


def _tests_of(
    candidate: System,
    baseline: System,
    baseline_examples: Seeds,
    suite: _Suite,
    comparison: Comparison,
    progress: Progress,
) -> list[TaskTest]:
    """Return the tests of a candidate on the columns of the comparison: tasks and their averages.

    An average is tested over all tasks of its column, or not at all. Warn of each score that both
    systems have, but that cannot be tested. If the scores are of unlike settings, nothing is
    tested.
    """
    if suite.name == "sts" and (
        unlike := _unlike_scoring(candidate, baseline, comparison.measures)
    ):
        progress.warn(
            f"{candidate.label} and {baseline.label} have unlike settings ({', '.join(unlike)}): "
            "not tested"
        )
        return []
    ordered, has_same_seeds = candidate.in_order_of(baseline)
    candidate_examples = suite.examples_of_seeds(ordered)

    # Tests are wanted on the columns, and on the tasks of averages that are columns.
    saved = set(chain(*candidate_examples, *baseline_examples))
    averages = _averages_to_test(candidate, baseline, comparison, saved)
    wanted = {*comparison.measures, *chain.from_iterable(averages.values())}
    if saved.isdisjoint(wanted):
        return []
    examples_of_both = suite.share(candidate_examples, baseline_examples)
    shared = {name: examples_of_both[name] for name in in_order(wanted & examples_of_both.keys())}
    if not shared:
        progress.warn(
            f"{candidate.label} and {baseline.label} have no saved scores of the same examples: "
            "not tested"
        )
        return []

    # Leave out what cannot be tested, and warn of it.
    scored = _common_scores(candidate, baseline) & saved.union(*averages.values())
    for name in in_order((scored & wanted) - shared.keys()):
        by_system = {candidate.label: candidate_examples, baseline.label: baseline_examples}
        progress.warn(f"{label(name)} {_why_not_shared(name, by_system)}: not tested")
    baseline_entry, _ = baseline.members[0]
    if suite.name == "sts":
        # A task that was used to choose a model cannot test it; `chosen_notes` names such tasks.
        for name in (*candidate.chosen_pairs, *baseline.chosen_pairs):
            shared.pop(name, None)
        for name in _tasks_without_score(shared, baseline_entry):
            del shared[name]
            progress.warn(
                f"{label(name)} has no score in {candidate.label} or {baseline.label}: not tested"
            )
    for average, tasks in averages.items():
        untested = [label(name) for name in tasks if name not in shared]
        if untested:
            progress.warn(
                f"{label(average)} of {candidate.label} is over {', '.join(untested)} as well: "
                "not tested"
            )

    # Test single tasks and averages. A task is shown only if it is a column.
    tests: dict[str, PairedTest] = {}
    for group, examples_by_task in _by_average(shared, averages).items():
        found, test_of_mean = suite.test(examples_by_task, baseline_entry, has_same_seeds)
        tests |= {name: test for name, test in found.items() if name in comparison.measures}
        if len(examples_by_task) > 1 and test_of_mean is not None:
            tests[group] = test_of_mean
    task_tests = []
    for name, test in tests.items():
        sample = shared.get(name)
        discordance = sample if isinstance(sample, Discordance) else None
        task_tests.append(
            TaskTest(suite.name, candidate.label, baseline.label, name, test, discordance)
        )
    return task_tests


def _why_not_shared(name: str, by_system: Mapping[str, Seeds]) -> str:
    """Say why two systems share no examples of a task that both have scored.

    ``by_system`` holds the examples of each system by its label.
    """
    lacking = []
    for system, seeds in by_system.items():
        if any(name not in seed for seed in seeds):
            lacking.append(system)
    if lacking:
        return f"has no saved scores in {' and '.join(lacking)}"
    return f"has other examples in {' than in '.join(by_system)}"


def _averages_to_test(
    candidate: System, baseline: System, comparison: Comparison, saved: set[str]
) -> dict[str, list[str]]:
    """Return the tasks of each average to test.

    Such an average has a column, a score in both systems, two tasks or more, and a task among
    ``saved``, the tasks with saved examples.
    """
    available = _common_scores(candidate, baseline).intersection(comparison.measures)
    averages = {}
    for name, tasks in averaged_tasks(comparison.entries).items():
        if name in available and len(tasks) > 1 and not saved.isdisjoint(tasks):
            averages[name] = tasks
    return averages


def _common_scores(candidate: System, baseline: System) -> set[str]:
    """Return the measures in which all seeds of both systems have a score."""
    return set.intersection(
        *(set(entry.scores) for entry, _ in (*candidate.members, *baseline.members))
    )


def _by_average(
    shared: Mapping[str, Any], averages: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Return the shared tasks in groups: the tasks of each average, under its name.

    If a task of an average is not shared, the average is left out. Each task of no average, such as
    a file of the user, is a group by itself, under its own name. Averages come last, the average
    over the test sets after those of other splits.
    """
    whole = {name: tasks for name, tasks in averages.items() if shared.keys() >= set(tasks)}
    averaged = set(chain.from_iterable(whole.values()))
    groups = {name: {name: task} for name, task in shared.items() if name not in averaged}
    for average, tasks in reversed(whole.items()):
        groups[average] = {name: shared[name] for name in tasks}
    return groups


def _scoring(entry: Entry) -> tuple[Metric, Aggregation]:
    """Return how the STS tasks of an entry are scored."""
    metric = entry.settings.get("metric", Metric.SPEARMAN)
    return Metric(metric), Aggregation(entry.settings.get("aggregation", Aggregation.ALL))


def _unlike_scoring(candidate: System, baseline: System, measures: Sequence[str]) -> list[str]:
    """Return which of metric and aggregation differ, so that STS scores cannot be compared."""
    entries = [entry for entry, _ in (*candidate.members, *baseline.members)]
    mismatches = setting_mismatches(entries, measures)
    return [key for key in ("metric", "aggregation") if key in mismatches]


def _tasks_without_score(
    shared: Mapping[str, Sequence[PairedSample]], baseline: Entry
) -> list[str]:
    """Return the STS tasks whose score is undefined for some seed.

    For example, it is undefined if all cosines are equal. The metric and the aggregation are those
    of the baseline.
    """
    tasks = []
    for task, samples in shared.items():
        # Each subset has gold scores, and cosines with a row for each seed of both systems.
        golds = [sample.gold for sample in samples]
        cosines = [np.vstack([sample.candidate, sample.baseline]) for sample in samples]
        for seed_cosines in zip(*cosines, strict=True):  # one array for each subset
            subsets = list(zip(seed_cosines, golds, strict=True))
            if aggregate(*_scoring(baseline), subsets) is None:
                tasks.append(task)
                break
    return tasks


def _shared_tasks(candidate: Seeds, baseline: Seeds, are_same: Callable[..., bool]) -> list[str]:
    """Return the tasks whose examples are the same in all seeds of both systems.

    ``are_same`` tells whether two seeds have the same examples of a task.
    """
    first = baseline[0]
    tasks = []
    for task in first:
        if all(are_same(seed, first, task) for seed in (*candidate, *baseline)):
            tasks.append(task)
    return tasks


def shared_pairs(candidate: Seeds, baseline: Seeds) -> dict[str, list[PairedSample]]:
    """Return a ``PairedSample`` for each subset of each task whose pairs are the same everywhere.

    It holds the gold scores ``(n,)`` and the cosines of each system, ``(seeds, n)``.
    """
    shared: dict[str, list[PairedSample]] = {}
    for task in _shared_tasks(candidate, baseline, examples.same_pairs):
        shared[task] = []
        for subset, pairs in baseline[0][task].items():
            candidate_cosines = np.stack([seed[task][subset].cosine for seed in candidate])
            baseline_cosines = np.stack([seed[task][subset].cosine for seed in baseline])
            shared[task].append(PairedSample(pairs.gold, candidate_cosines, baseline_cosines))
    return shared


def _shared_classes(candidate: Seeds, baseline: Seeds) -> dict[str, Any]:
    """Return what to test on each task that both systems have.

    With one seed on each side, it is the discordance: how often only one system is right.
    Otherwise, it is a pair of arrays ``(seeds, n)``, of the candidate and of the baseline, which
    tell which examples each seed gets right.
    """
    shared: dict[str, Any] = {}
    for task in _shared_tasks(candidate, baseline, examples.same_examples):
        candidate_hits = np.stack([seed[task].correct for seed in candidate])
        baseline_hits = np.stack([seed[task].correct for seed in baseline])
        if len(candidate_hits) == len(baseline_hits) == 1:
            shared[task] = bootstrap.discordance(candidate_hits[0], baseline_hits[0])
        else:
            shared[task] = (candidate_hits, baseline_hits)
    return shared


def _corrected(tests: Sequence[TaskTest], correction: Correction) -> list[TaskTest]:
    """Return the tests with corrected p-values.

    The bootstrap tests and the McNemar tests are corrected separately.
    """
    p_values = bootstrap.adjust([test.test.p_decisive for test in tests], correction)
    mcnemar_p_values = [test.p_mcnemar for test in tests]
    existing = [p_value for p_value in mcnemar_p_values if p_value is not None]
    mcnemar_corrected = iter(bootstrap.adjust(existing, correction))
    corrected_tests = []
    for test, p_corrected in zip(tests, p_values, strict=True):
        corrected = replace(test, p_corrected=p_corrected)
        if test.p_mcnemar is not None:
            corrected = replace(corrected, p_mcnemar_corrected=next(mcnemar_corrected))
        corrected_tests.append(corrected)
    return corrected_tests


def verdicts(tests: Sequence[TaskTest], correction: Correction) -> list[str]:
    """Return a sentence on each candidate and suite, or several if no average was tested.

    The sentence is on the last average: that over the test sets, if it was tested. If no average
    was, there is a sentence on each task.
    """
    by_system: dict[tuple[str, str], list[TaskTest]] = {}
    for test in tests:
        by_system.setdefault((test.suite, test.candidate), []).append(test)
    count = "1 test" if len(tests) == 1 else f"{len(tests)} tests"
    sentences = []
    for tests_of_system in by_system.values():
        on_average = [test for test in tests_of_system if is_average(test.measure)]
        for test in on_average[-1:] or tests_of_system:
            p_value = test.p_corrected
            if p_value is None:
                p_value = test.test.p_decisive
            verdict = test.test.verdict(p_value, test.baseline, EXAMPLES[test.suite])
            basis = f"{label(test.measure)}, p = {p_value:.2g}, {correction} over {count}"
            sentences.append(f"{test.candidate}: {verdict} ({basis})")
    return sentences


def interval_notes(tests: Sequence[TaskTest]) -> list[str]:
    """Return a note that the intervals of the verdicts are over examples, and perhaps over seeds.

    Without tests there is no note.
    """
    if not tests:
        return []
    units = " or ".join(dict.fromkeys(EXAMPLES[test.suite] for test in tests))
    note = f"verdicts: 95% intervals over {units}, "
    if any(test.test.n_seeds is not None for test in tests):
        return [f"{note}and over seeds where both systems have several"]
    return [f"{note}not over training seeds"]


def chosen_notes(comparison: Comparison) -> list[str]:
    """Return a note for each system with tasks that chose its model, and so are not tested."""
    # A single system is not tested at all.
    systems = comparison.systems("pair_scores")
    if len(systems) < 2:
        return []
    notes = []
    for system in systems:
        if system.chosen_pairs:
            tasks = ", ".join(map(label, system.chosen_pairs))
            notes.append(f"{tasks} of {system.label}: {NO_TEST}")
    return notes


def tests_tables(
    tests: Sequence[TaskTest], n_resamples: int, correction: Correction
) -> list[Report]:
    """Return a table of the tests for each suite, with notes on the methods."""
    sts = [test for test in tests if test.suite == "sts"]
    transfer = [test for test in tests if test.suite == "transfer"]

    # There are columns on seeds only if some system has several seeds.
    has_seeds = any(test.test.p_seeds is not None for test in tests)
    keys = ["candidate", "measure", "n_pairs", "difference", "low", "high", "p_value"]
    if has_seeds:
        keys += ["n_seeds", "p_seeds", "p_both"]
    keys.append("p_corrected")
    headings = {"candidate": "system", "measure": "task", "p_corrected": f"p ({correction})"}

    # The note says how the p-values were computed.
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

    # The table of accuracies has McNemar's exact test as well. ``kind=None`` is the default, but
    # without it mypy would take ``headings`` for the kind.
    tables = []
    if sts:
        title = f"Paired tests against {sts[0].baseline}"
        shown = columns(*keys, kind=None, **headings)
        tables.append(Report(title, shown, _test_rows(sts), [resampled]))
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
