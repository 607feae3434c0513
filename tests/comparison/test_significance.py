"""Paired tests: which entry is which, and what is measured."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from comparison.cases import entry
from simcse_cli.comparison import significance
from simcse_cli.comparison.entries import EntryKind, SavedExamples, read_saved
from simcse_cli.comparison.join import Comparison, System, add_means, join, measures_of
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.comparison.significance import TaskTest, run_tests
from simcse_cli.progress import SILENT, SilentProgress
from simcse_cli.results.examples import (
    SubsetPairs,
    TaskPredictions,
    write_pair_scores,
    write_predictions,
)
from simcse_cli.settings.choices import STS_TASKS, Correction

GOLD = np.array([0.0, 1, 2, 3, 4, 5])
NEAR, FAR = np.array([0.0, 1, 2, 3, 4, 50]), np.array([1.0, 0, 3, 2, 4, 5])


def systems(*saved):
    return [System(each.label, ((each, [SavedExamples(path)]),)) for each, path in saved]


def paired(kind: str, baseline: Path, candidate: Path, **settings: str) -> list[TaskTest]:
    saved = [
        (entry("base", settings=settings), baseline),
        (entry("new", settings=settings), candidate),
    ]
    comparison = SimpleNamespace(
        systems=lambda asked: systems(*saved) if asked == kind else [],
        measures=("STS12", "MR"),
        entries=(),
    )
    return run_tests(comparison, CompareOptions(resamples=50), SILENT)


@pytest.mark.parametrize(
    ("metric", "correlation"), [("spearman", stats.spearmanr), ("pearson", stats.pearsonr)]
)
def test_the_difference_is_candidate_minus_baseline_in_the_metric_of_the_baseline(
    tmp_path, metric, correlation
):
    for name, cosine in (("base", FAR), ("new", NEAR)):
        write_pair_scores(tmp_path / name, {"STS12": {"one": SubsetPairs(GOLD, cosine)}})
    (found,) = paired("pair_scores", tmp_path / "base", tmp_path / "new", metric=metric)
    assert (found.candidate, found.baseline, found.measure) == ("new", "base", "STS12")
    assert found.test.difference == pytest.approx(
        correlation(NEAR, GOLD)[0] - correlation(FAR, GOLD)[0]
    )


@pytest.mark.parametrize("aggregation", ["all", "mean"])
def test_subsets_are_aggregated_as_in_the_result_of_the_baseline(tmp_path, aggregation):
    def correlation(*parts: np.ndarray) -> float:
        return float(stats.spearmanr(np.concatenate(parts), np.tile(GOLD, len(parts)))[0])

    sides = {"base": (FAR, 9 * NEAR), "new": (NEAR, 9 * NEAR)}
    for name, parts in sides.items():
        subsets = dict(
            zip(("one", "two"), (SubsetPairs(GOLD, part) for part in parts), strict=True)
        )
        write_pair_scores(tmp_path / name, {"STS12": subsets})
    (found,) = paired("pair_scores", tmp_path / "base", tmp_path / "new", aggregation=aggregation)
    before, after = (
        correlation(*parts)
        if aggregation == "all"
        else np.mean([correlation(part) for part in parts])
        for parts in sides.values()
    )
    assert found.test.difference == pytest.approx(after - before)


def test_the_discordant_examples_are_counted_for_the_entry_that_is_right(tmp_path):
    gold = np.array([0, 1, 0, 1])
    for name, predicted in (("base", [1, 1, 1, 1]), ("new", [0, 1, 0, 0])):
        write_predictions(tmp_path / name, {"MR": TaskPredictions(gold, np.array(predicted))})
    (found,) = paired("predictions", tmp_path / "base", tmp_path / "new")
    assert found.test.difference == pytest.approx(0.75 - 0.5)
    counts = found.to_json()
    assert (counts["n_only_candidate"], counts["n_only_baseline"]) == (2, 1)
    assert counts["p_mcnemar"] == 1.0  # of one head or two in three throws, and of none or three


def write_both(folder: Path, name: str, cosine: np.ndarray, predicted: list[int]) -> None:
    pairs = {"one": SubsetPairs(GOLD, cosine)}
    write_pair_scores(folder / f"{name}.pairs", {"STS12": pairs, "STSBenchmark": pairs})
    answers = TaskPredictions(np.array([0, 1, 0, 1]), np.array(predicted))
    write_predictions(folder / f"{name}.answers", {"MR": answers, "CR": answers})


def test_both_suites_get_a_table_each_with_the_mean_of_two_tasks(tmp_path):
    write_both(tmp_path, "base", FAR, [1, 1, 1, 1])
    write_both(tmp_path, "new", NEAR, [0, 1, 0, 0])
    write_both(tmp_path, "alone", NEAR, [0, 1, 0, 0])
    write_pair_scores(
        tmp_path / "alone.pairs", {"STS13": {"one": SubsetPairs(GOLD, NEAR)}}, force=True
    )
    files = {"pair_scores": "pairs", "predictions": "answers"}
    measures = ("STS12", "STS13", "STSBenchmark", "average", "MR", "CR", "transfer-average")
    tasks = {"base": measures, "new": measures, "alone": ("STS13", *measures[4:])}
    own = [entry(name, scores=dict.fromkeys(tasks[name], 0.5)) for name in tasks]
    del own[0].scores["STS13"], own[1].scores["STS13"]
    comparison = SimpleNamespace(
        systems=lambda kind: systems(
            *((each, tmp_path / f"{each.label}.{files[kind]}") for each in own)
        ),
        measures=measures,
        entries=own,
    )
    progress = SilentProgress()
    found = run_tests(comparison, CompareOptions(resamples=50), progress)
    assert progress.warnings == [
        "alone and base have no saved scores of the same examples: not tested"
    ]
    for changed in ({"seed": 1}, {"resamples": 51}):
        others = run_tests(comparison, CompareOptions(**{"resamples": 50} | changed), SILENT)
        assert all(found[i].test != others[i].test for i in (0, 3))
    sts, transfer = ["STS12", "STSBenchmark", "average"], ["MR", "CR", "transfer-average"]
    assert [(test.candidate, test.measure) for test in found] == [
        *(("new", measure) for measure in (*sts, *transfer)),
        *(("alone", measure) for measure in transfer),
    ]
    assert found[2].test.difference == pytest.approx(found[0].test.difference)
    shared = ["candidate", "baseline", "measure", *vars(found[0].test), "p_corrected"]
    assert list(found[0].to_json()) == list(found[5].to_json()) == shared
    exact = ["n_only_candidate", "n_only_baseline", "p_mcnemar", "p_mcnemar_corrected"]
    assert list(found[3].to_json()) == [*shared, *exact]

    first, second = significance.tests_tables(found, 50, Correction.HOLM)
    assert (first.title, second.title) == (
        "Paired tests against base",
        "Paired tests of accuracy against base",
    )
    numbers = ["difference", "95% low", "95% high", "p", "p (holm)"]
    assert [column.heading for column in first.columns] == ["system", "task", "pairs", *numbers]
    mcnemar = ["only system right", "only baseline", "McNemar p", "(holm)"]
    assert [column.heading for column in second.columns] == [
        "system",
        "task",
        "examples",
        *numbers,
        *mcnemar,
    ]
    resampled = "paired bootstrap over examples, 50 resamples, two-sided; holm correction, tests: 9"
    assert first.notes == [resampled]
    assert second.notes == [resampled, "McNemar: exact, two-sided; holm correction, tests: 4"]
    assert [row[1] for row in first.cells()] == ["STS12", "STS-B", "Avg."]
    assert [row[:3] for row in second.cells()[:2]] == [["new", "MR", "4"], ["new", "CR", "4"]]
    assert second.cells()[2][8:] == ["–", "–", "–", "–"]
    assert [table.title for table in significance.tests_tables(found[:1], 50, Correction.HOLM)] == [
        first.title
    ]
    assert [
        table.title for table in significance.tests_tables(found[3:4], 50, Correction.HOLM)
    ] == [second.title]


def test_a_single_entry_with_saved_scores_is_not_tested():
    comparison = SimpleNamespace(systems=lambda kind: systems((entry("base"), Path("nowhere"))))
    assert run_tests(comparison, CompareOptions(), SILENT) == []


def seeds_of(folder: Path, name: str, shift: float, seeds=(1, 2, 3)):
    """Return the entries of a system whose cosines have noise of their own for every seed."""
    entries = []
    for seed in seeds:
        noise = np.random.default_rng([seed, *name.encode()]).normal(size=60)
        gold = np.arange(60.0) % 6
        path = folder / f"{name}-{seed}.pairs"
        write_pair_scores(path, {"STS12": {"one": SubsetPairs(gold, shift * gold + noise)}})
        entries.append(entry(name, seed=seed, pair_scores=(SavedExamples(path),)))
    return entries


def test_systems_with_seeds_are_tested_once_and_never_against_themselves(tmp_path):
    own = add_means([*seeds_of(tmp_path, "base", 0.5), *seeds_of(tmp_path, "new", 0.9, (3, 1, 2))])
    reference = next(each for each in own if each.label == "base (mean of 3)")
    comparison = Comparison(tuple(own), ("STS12",), reference)
    (found,) = run_tests(comparison, CompareOptions(resamples=50), SILENT)
    assert (found.candidate, found.baseline) == ("new (mean of 3)", "base (mean of 3)")
    scores = {}
    for each in own:
        if each.pair_scores:
            saved = read_saved(each.pair_scores, significance.examples.read_pair_scores)
            pairs = saved["STS12"]["one"]
            scores[each.label] = stats.spearmanr(pairs.cosine, pairs.gold)[0]
    new, base = (
        [scores[f"{name} [seed {seed}]"] for seed in (1, 2, 3)] for name in ("new", "base")
    )
    assert found.test.difference == pytest.approx(np.mean(new) - np.mean(base))
    assert found.test.n_seeds == 3
    assert found.test.p_seeds == pytest.approx(stats.ttest_rel(new, base).pvalue)
    assert found.test.p_both >= found.test.p_seeds
    assert found.p_corrected == found.test.p_both
    assert found.test.low < found.test.difference < found.test.high

    partial = [replace(each, pair_scores=()) if each is own[1] else each for each in own]
    progress = SilentProgress()
    (part,) = run_tests(
        Comparison(tuple(partial), ("STS12",), reference), CompareOptions(), progress
    )
    assert part.test.n_seeds == 2
    assert progress.warnings == [
        "base (mean of 3): 2 of 3 seeds have saved scores, and the tests are of these alone; "
        "save the others with `simcse eval --save-scores FILE`"
    ]

    alone = Comparison(tuple(own[:4]), ("STS12",), reference)
    assert run_tests(alone, CompareOptions(resamples=50), SILENT) == []
    asked = Comparison(tuple(own[:4]), ("STS12",), own[0])
    against = run_tests(asked, CompareOptions(resamples=50), SILENT)
    assert [test.candidate for test in against] == ["base [seed 2]", "base [seed 3]"]


def of_run(entries, *, variant: str = ""):
    """Return entries as those of runs, or as results of other settings that are kept in them."""
    ending = f" [{variant}]" if variant else ""
    return [
        replace(
            each,
            label=f"{each.label}/seed-{each.seed}{ending}",
            folder=f"{each.label}/{each.seed}",
            variant=variant,
        )
        for each in entries
    ]


def with_variants(folder: Path):
    """Return two systems of three seeds, each with a result of other settings, whitening."""
    (folder / "white").mkdir()
    found = []
    for name, shift in (("base", 0.5), ("new", 0.9)):
        runs = of_run(seeds_of(folder, name, shift))
        white = of_run(seeds_of(folder / "white", name, shift + 0.1), variant="whitening")
        runs = [replace(each, label=name, kind=EntryKind.RUN) for each in runs]
        found += [each for pair in zip(runs, white, strict=True) for each in pair]
    return add_means(found)


def test_results_of_other_settings_are_grouped_over_seeds_and_not_tested_against_their_own_system(
    tmp_path,
):
    own = with_variants(tmp_path)
    means = {each.label: each for each in own if each.members}
    systems = [f"{name} (mean of 3)" for name in ("base", "base [whitening]")]
    others = [f"{name} (mean of 3)" for name in ("new", "new [whitening]")]
    assert list(means) == [*systems, *others]
    scores = [each.seed for each in own if each.label in means[systems[1]].members]
    assert scores == [1, 2, 3]

    def candidates(reference):
        comparison = Comparison(tuple(own), ("STS12",), reference)
        found = run_tests(comparison, CompareOptions(resamples=50), SILENT)
        return [test.candidate for test in found]

    assert candidates(means[systems[0]]) == others
    # As the baseline, it is named by the user.
    assert candidates(means[systems[1]]) == [systems[0], *others]
    # Seed against seed.
    first = next(each for each in own if each.seed == 1)
    assert "base" in first.label
    assert not any("base/seed" in label for label in candidates(first))


def test_pairs_that_chose_a_model_are_not_tested(tmp_path):
    for name, cosine in (("base", FAR), ("new", NEAR)):
        pairs = {"one": SubsetPairs(GOLD, cosine)}
        write_pair_scores(tmp_path / name, {"STS12": pairs, "STSBenchmark": pairs})
    base = entry("base", pair_scores=(SavedExamples(tmp_path / "base"),))
    saved = SavedExamples(tmp_path / "new", chosen=("STSBenchmark",))
    new = entry("new", pair_scores=(saved,))
    comparison = Comparison((base, new), ("STS12",), base)
    (found,) = run_tests(comparison, CompareOptions(resamples=50), SILENT)
    assert found.measure == "STS12"
    notes = ["STS-B of new: the dev data chose this model, so there is no test on them"]
    assert significance.chosen_notes(comparison) == notes
    (verdict,) = significance.verdicts([found], Correction.HOLM)
    assert verdict.endswith("holm over 1 test)")
    assert significance.interval_notes([found]) == [
        "verdicts: 95% intervals over pairs, not over training seeds"
    ]
    with_seeds = replace(found, test=replace(found.test, n_seeds=2))
    assert significance.interval_notes([found, with_seeds]) == [
        "verdicts: 95% intervals over pairs, and over seeds where both systems have several"
    ]
    assert significance.interval_notes([]) == []

    only = replace(new, pair_scores=(replace(saved, chosen=("STS12", "STSBenchmark")),))
    progress = SilentProgress()
    comparison = Comparison((base, only), ("STS12",), base)
    assert run_tests(comparison, CompareOptions(), progress) == []
    assert progress.warnings == []
    assert significance.chosen_notes(Comparison((base,), ("STS12",), base)) == []


def found_in(folder: Path, *tasks_of_files, measures=None, missing=()) -> list[TaskTest]:
    """Return the tests of two systems on the columns ``measures``, or else on all columns.

    Each file is a suffix for the split and the names of its tasks. The second system has no score
    of the tasks ``missing``.
    """
    pairs = {"f": FAR, "n": NEAR}
    entries = []
    for name in "fn":
        files = []
        scores: dict[str, float] = {}
        for number, (suffix, *tasks) in enumerate(tasks_of_files):
            path = folder / f"{name}{number}"
            saved = {task: {"one": SubsetPairs(GOLD, pairs[name])} for task in tasks}
            write_pair_scores(path, saved, force=True)
            files.append(SavedExamples(path, suffix))
            scores |= dict.fromkeys((task + suffix for task in tasks), 0.5)
            if not set(tasks).isdisjoint(STS_TASKS):
                scores["average" + suffix] = 0.5
        if name == "n":
            scores = {task: score for task, score in scores.items() if task not in missing}
        entries.append(entry(name, scores=scores, pair_scores=tuple(files)))
    columns = measures or [*measures_of(entries)]
    comparison = join(entries, reference=entries[0], measures=columns)
    return run_tests(comparison, CompareOptions(resamples=50), SILENT)


def test_an_average_is_tested_over_the_tasks_of_its_column(tmp_path):
    def tested(*files, **options):
        return [test.measure for test in found_in(tmp_path, *files, **options)]

    both = ["STS12-dev", "STS13-dev", "average-dev", "STS12", "STS13", "average"]
    assert tested(("", "STS12", "STS13"), ("-dev", "STS12", "STS13")) == both
    assert tested(("", "STS12", "mine"), ("", "STS13")) == ["mine", "STS12", "STS13", "average"]
    # Own files are in no average.
    assert tested(("", "mine"), ("", "yours")) == ["mine", "yours"]
    # An average of one task, and one that is left out, since the systems share one task only.
    assert tested(("", "STS12")) == ["STS12"]
    three = ("", "STS12", "STS13", "STS14")
    assert tested(three, missing=("STS12", "STS13")) == ["STS12", "STS13", "STS14"]
    # Over two of three tasks, as a warning says.
    *_, average = found_in(tmp_path, three, missing=("STS12",))
    assert (average.measure, average.test.n_pairs) == ("average", 12)


def test_tests_are_of_the_chosen_columns(tmp_path):
    files = ("", "STS12", "STS13", "mine")
    for measures in (["STS13"], ["average"], ["STS12", "mine"]):
        found = found_in(tmp_path, files, measures=measures)
        assert [test.measure for test in found] == measures


def test_a_score_that_cannot_be_tested_is_named_and_its_average_is_not_tested(tmp_path):
    names = ("STS12", "STS13", "STS14", "STS15")
    pairs = {name: {"one": SubsetPairs(GOLD, NEAR)} for name in names}
    write_pair_scores(tmp_path / "base", pairs)
    pairs["STS13"] = {"one": SubsetPairs(GOLD + 1, NEAR)}
    del pairs["STS14"]
    write_pair_scores(tmp_path / "new", pairs)
    entries = []
    for name in ("base", "new"):
        scores = dict.fromkeys((*names[:3], "average"), 0.5)
        if name == "base":
            scores["STS15"] = 0.5  # a dash in the table of the other
        saved = (SavedExamples(tmp_path / name),)
        entries.append(entry(name, scores=scores, pair_scores=saved))
    progress = SilentProgress()
    comparison = join(
        entries, reference=entries[0], measures=("STS12", "STS13", "STS14", "average")
    )
    found = run_tests(comparison, CompareOptions(resamples=50), progress)
    assert [test.measure for test in found] == ["STS12"]
    assert progress.warnings == [
        "STS13 has other examples in new than in base: not tested",
        "STS14 has no saved scores in new: not tested",
        "Avg. of new is over STS13, STS14 as well: not tested",
    ]


@pytest.mark.parametrize(
    ("task", "setting", "values", "is_tested"),
    [
        ("STS12", "metric", ("spearman", "pearson"), False),
        ("STS12", "aggregation", ("all", "mean"), False),
        ("STSBenchmark", "aggregation", ("all", "mean"), True),  # one set, whatever the aggregation
        ("STS12", "pooler", ("cls", "avg"), True),
    ],
)
def test_scores_of_unlike_settings_are_not_tested(tmp_path, task, setting, values, is_tested):
    entries = []
    for name, value in zip(("base", "new"), values, strict=True):
        write_pair_scores(tmp_path / name, {task: {"one": SubsetPairs(GOLD, NEAR)}})
        saved = (SavedExamples(tmp_path / name),)
        settings = {setting: value}
        entries.append(entry(name, scores={task: 0.5}, settings=settings, pair_scores=saved))
    progress = SilentProgress()
    comparison = join(entries, reference=entries[0])
    found = run_tests(comparison, CompareOptions(resamples=50), progress)
    assert len(found) == is_tested
    reason = f"new and base have unlike settings ({setting}): not tested"
    assert progress.warnings == ([] if is_tested else [reason])


def test_a_verdict_is_on_the_average_or_else_on_each_task(tmp_path):
    files = ("", "STS12", "STS13", "mine")

    def judged(measures):
        found = found_in(tmp_path, files, measures=measures)
        return [text.split("(")[1] for text in significance.verdicts(found, Correction.NONE)]

    (verdict,) = judged(["STS12", "STS13", "average", "mine"])
    assert verdict.startswith("Avg., p =")
    first, second = judged(["STS12", "mine"])
    assert first.startswith("STS12, p =")
    assert second.startswith("mine, p =")


def test_a_task_without_a_score_is_not_tested(tmp_path):
    # Ratings that are all equal, a single pair, and cosines of one system that are all equal.
    def pairs(cosine: np.ndarray, collapsed: np.ndarray) -> dict[str, dict[str, SubsetPairs]]:
        return {
            "STS12": {"one": SubsetPairs(GOLD, cosine)},
            "equal": {"one": SubsetPairs(np.ones(6), cosine)},
            "single": {"one": SubsetPairs(GOLD[:1], cosine[:1])},
            "collapsed": {"one": SubsetPairs(GOLD, collapsed)},
        }

    write_pair_scores(tmp_path / "base", pairs(FAR, FAR))
    write_pair_scores(tmp_path / "new", pairs(NEAR, np.ones(6)))
    progress = SilentProgress()
    saved = [(entry(name), tmp_path / name) for name in ("base", "new")]
    comparison = SimpleNamespace(
        systems=lambda kind: systems(*saved) if kind == "pair_scores" else [],
        measures=("STS12", "equal", "single", "collapsed"),
        entries=(),
    )
    (found,) = run_tests(comparison, CompareOptions(resamples=50), progress)
    assert found.measure == "STS12"
    assert progress.warnings == [
        f"{name} has no score in new or base: not tested"
        for name in ("collapsed", "equal", "single")
    ]


def p_values_of_draws(monkeypatch, n_seeds: int, gain: float, n_draws: int = 1000):
    """Yield the tests of three candidates, each better than the baseline by ``gain``, in ``n_draws`` draws.

    A seed gets each of 200 examples right with a probability that has a deviation of 3 points over
    seeds around 0.7.
    """
    rng, n = np.random.default_rng([n_seeds, 47]), 200
    gold, saved = np.zeros(n, dtype=np.int64), {}
    monkeypatch.setattr(
        significance.examples, "read_predictions", lambda path: {"MR": saved[str(path)]}
    )
    names = ("base", "one", "two", "three")
    entries = [
        entry(name, seed=seed, predictions=(SavedExamples(Path(f"{name}-{seed}")),))
        for name in names
        for seed in range(n_seeds)
    ]
    own = add_means(entries)
    reference = next(each for each in own if each.members)
    comparison = Comparison(tuple(own), ("MR",), reference)
    for _ in range(n_draws):
        for each in entries:
            skill = rng.normal(0.7, 0.03) + (gain if each.label != "base" else 0.0)
            wrong = rng.random(n) > skill
            (file,) = each.predictions
            saved[str(file.path)] = TaskPredictions(gold, wrong.astype(np.int64))
        yield run_tests(comparison, CompareOptions(resamples=50), SILENT)


@pytest.mark.parametrize("n_seeds", [3, 10])
def test_equal_systems_get_a_star_in_five_of_a_hundred_draws_at_most(monkeypatch, n_seeds) -> None:
    """A star is any p-value of the three tests below 5% after Holm's correction."""
    draws = p_values_of_draws(monkeypatch, n_seeds, gain=0.0)
    assert sum(min(test.p_corrected for test in tests) < 0.05 for tests in draws) <= 50


@pytest.mark.parametrize(("n_seeds", "gain"), [(3, 0.12), (10, 0.05)])
def test_a_known_gain_is_found_with_the_power_of_the_t_test(monkeypatch, n_seeds, gain) -> None:
    """The power is a tail of the noncentral t distribution (Lehmann and Romano 2005, section 5.2)."""
    draws = p_values_of_draws(monkeypatch, n_seeds, gain)
    n_found = sum(tests[0].test.p_both < 0.05 for tests in draws)
    # The variance of one accuracy: of the skill, and of 200 throws on average.
    of_base, of_one = (0.03**2 + (mean * (1 - mean) - 0.03**2) / 200 for mean in (0.7, 0.7 + gain))
    freedom, centre = n_seeds - 1, gain * (n_seeds / (of_base + of_one)) ** 0.5
    limit = stats.t.ppf(0.975, freedom)
    power = stats.nct.sf(limit, freedom, centre) + stats.nct.cdf(-limit, freedom, centre)
    assert n_found / 1000 == pytest.approx(power, abs=0.05)
