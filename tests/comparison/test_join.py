"""Entries side by side: differences, levelled averages, settings that differ, the front, the check."""

from pathlib import Path

import numpy as np
import pytest

from comparison.cases import entry, published, write_run
from simcse_cli.comparison.compare import comparison_tables
from simcse_cli.comparison.entries import EntryKind, SavedExamples, ScoredData, load_entries
from simcse_cli.comparison.join import (
    ToleranceCheck,
    add_means,
    data_mismatches,
    front_labels,
    is_pareto_optimal,
    join,
    setting_mismatches,
)
from simcse_cli.errors import ConfigError, ToleranceError
from simcse_cli.results.result import DEMO, PUBLISHED
from simcse_cli.settings.choices import STS_TASKS


def test_differences_are_score_minus_reference() -> None:
    row = published("simcse.5", "SimCSE-BERT-base", "unsupervised")
    scores = {name: row.scores[name] + 0.01 for name in STS_TASKS}
    ours = entry("ours", scores={**scores, "average": row.scores["average"] + 0.01})
    comparison = join([row, ours], reference=row)
    assert comparison.measures == (*STS_TASKS, "average")
    assert comparison.differences(ours) == pytest.approx(dict.fromkeys(comparison.measures, 0.01))
    assert comparison.warnings == ()


def test_averages_are_levelled_to_the_shared_tasks() -> None:
    row = published("simcse.5", "SimCSE-BERT-base", "unsupervised")
    scores = {"STS12": 0.7, "STS13": 0.8, "average": 0.75}
    ours = entry("ours", scores=scores, intervals={"average": (0.7, 0.8)})
    comparison = join([row, ours], reference=row)
    assert comparison.entries[0].scores["average"] == pytest.approx((0.6840 + 0.8241) / 2)
    assert comparison.entries[1].scores["average"] == pytest.approx(0.75)
    assert comparison.entries[1].intervals == {"average": (0.7, 0.8)}
    assert comparison.warnings == ("the entries hold different tasks: Avg. is over STS12, STS13",)


def test_complete_averages_stay_as_stated() -> None:
    row = published("simcse.5", "SBERT-base")
    headline = published("v1.headline", "SBERT")
    comparison = join([row, headline], reference=row)
    assert (
        comparison.entries[0].scores["average"] == 0.7489
    )  # as printed, although the row's mean is 74.86
    assert comparison.warnings == ()


def test_average_of_one_shared_task_is_left_out() -> None:
    row = published("simcse.5", "SBERT-base")
    comparison = join([row, entry("ours", scores={"STS12": 0.7, "average": 0.7})], reference=row)
    assert comparison.measures == ("STS12",)
    assert "left out" in comparison.warnings[0]
    assert comparison.entries[1].scores == {"STS12": 0.7}


@pytest.mark.parametrize("shared", [["STS12", "STS13"], list(STS_TASKS)])
def test_averages_over_the_same_tasks_stay_as_stated(shared: list[str]) -> None:
    a, b = (entry(name, scores=dict.fromkeys(shared, 0.5) | {"average": 0.9}) for name in "ab")
    alone = entry("alone", scores=dict.fromkeys(shared, 0.5))
    comparison = join([a, b, alone])
    assert ([each.scores for each in comparison.entries], comparison.warnings) == (
        [a.scores, b.scores, alone.scores],
        (),
    )


def test_levelled_averages_lose_what_belonged_to_the_stated_ones() -> None:
    facts = {
        "intervals": {"average": (0.6, 0.8), "STS12": (0.5, 0.7)},
        "deviations": {"average": 0.1},
    }
    a = entry("a", scores={"STS12": 0.6, "STS13": 0.8, "STS14": 0.9, "average": 0.75}, **facts)
    b = entry("b", scores={"STS12": 0.6, "STS13": 0.8, "average": 0.7})
    headline, plain = (
        entry("c", scores={"average": 0.8}),
        entry("d", scores={"STS12": 0.7, "STS13": 0.7}),
    )
    comparison = join([a, b, headline, plain])
    averages = [each.scores.get("average") for each in comparison.entries]
    assert averages == [pytest.approx(0.7), pytest.approx(0.7), None, None]
    first = comparison.entries[0]
    assert (first.intervals, first.deviations) == ({"STS12": (0.5, 0.7)}, {})
    assert join([b, headline]).entries[1].scores == {}  # the average of other tasks


def test_a_levelled_average_of_a_mean_has_the_deviation_over_its_members() -> None:
    seeds = [
        entry("a", seed=seed, scores={"STS12": score, "STS13": 0.8, "STS14": 0.1, "average": 0.5})
        for seed, score in ((1, 0.6), (2, 0.7))
    ]
    other = entry("b", scores={"STS12": 0.6, "STS13": 0.8, "average": 0.7})
    *_, mean, _ = join([*add_means(seeds), other]).entries
    assert mean.scores["average"] == pytest.approx(0.725)
    assert mean.deviations["average"] == pytest.approx(np.std([0.7, 0.75], ddof=1))


def test_own_entries_are_joined_over_all_but_minor_measures() -> None:
    minor = {"MR-dev": 0.8, "average-dev": 0.8, "seconds": 2.0, "sentences_per_second": 3.0}
    a = entry("a", scores={"transfer-average-dev": 0.8, "MR": 0.7} | minor)
    assert join([a, entry("b", scores={"STS12": 0.5})]).measures == (
        "STS12",
        "MR",
        "transfer-average-dev",
    )
    assert join([a, a], measures=["MR-dev"]).measures == ("MR-dev",)
    row = published("simcse.5", "SBERT-base")
    assert join([row, entry("b", scores={"STS12": 0.5, "MR": 0.7})], reference=row).measures == (
        "STS12",
    )


@pytest.mark.parametrize(
    ("scores", "measures", "message", "hint"),
    [
        (
            [{}],
            [],
            "no entry has a score: x has no scores",
            "score the run first: simcse eval sts --model RUN",
        ),
        (
            [{"STS12": 0.5, "MR": 0.5}, {}],
            ["MR-dev", "CR"],
            "no entry has MR-dev, CR: x has STS12, MR; x has no scores",
            "choose among the measures named with --measures",
        ),
        ([], ["STS12"], "nothing to compare: base has STS-B; there is one entry only", None),
    ],
)
def test_entries_without_a_column_say_what_they_have(scores, measures, message, hint) -> None:
    base = entry("base", scores={"STSBenchmark": 0.5})
    own = [entry("x", scores=each) for each in scores]
    with pytest.raises(ConfigError) as caught:
        join(own or [base], measures=measures, reference=None if own else base)
    assert caught.value.message == message
    assert hint in (None, caught.value.hint)


@pytest.mark.parametrize("has_reference", [False, True])
def test_scores_that_are_all_missing_are_said_to_be(has_reference: bool) -> None:
    a, b = (entry(name, scores={"seconds": 2.0}, unscored=("STS12", "STS13")) for name in "ab")
    with pytest.raises(
        ConfigError, match=r"b has seconds \(without a score: STS12, STS13\)"
    ) as caught:
        join([a, b], reference=a if has_reference else None)
    assert "names each task without a score" in str(caught.value.hint)


def test_a_measure_of_the_reference_alone_is_said_to_be_so() -> None:
    base = entry("base", scores={"STS12": 0.5, "STS13": 0.5, "STSBenchmark-dev": 0.5, "seconds": 1})
    ours = entry("ours", scores={"STS12": 0.5, "STSBenchmark-dev": 0.5, "MR": 0.5, "seconds": 1})
    with pytest.raises(ConfigError) as caught:
        join([base, ours], reference=base, measures=["STS13"])
    assert caught.value.message.startswith("only base has STS13: base has STS12, STS13,")
    assert str(caught.value.hint).endswith("--measures 'STS12,STS-B dev'")


def test_nothing_in_common_says_what_each_has() -> None:
    row = published("simcse.5", "SBERT-base")
    with pytest.raises(
        ConfigError,
        match=r"nothing to compare: simcse\.5: SBERT-base .* has STS12.*ours has STS-B dev",
    ):
        join([row, entry("ours", scores={"STSBenchmark-dev": 0.8})], reference=row)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"aggregation": "wmean"}, "aggregation is all in a; wmean in b"),
        ({"metric": "pearson"}, "metric is spearman in a; pearson in b"),
        ({"pooler": "avg"}, "pooler is cls in a; avg in b"),
        ({"split": "dev"}, "split is test in a; dev in b"),
    ],
)
def test_unlike_settings_say_what_differs(settings: dict[str, str], expected: str) -> None:
    same = {"aggregation": "all", "metric": "spearman", "pooler": "cls", "split": "test"}
    a, b = entry("a", settings=same), entry("b", settings=same | settings)
    assert [*setting_mismatches([a, b], ["STS12"]).values()] == [f"unlike settings: {expected}"]
    assert setting_mismatches([a, a], ["STS12"]) == {}


def test_aggregation_does_not_matter_for_single_test_sets() -> None:
    a, b = entry("a", settings={"aggregation": "all"}), entry("b", settings={"aggregation": "mean"})
    assert setting_mismatches([a, b], ["STSBenchmark", "SICKRelatedness"]) == {}


@pytest.mark.parametrize(
    ("key", "moved", "other"),
    [
        ("aggregation", "average", "MR"),
        ("transfer protocol", "MR", "STS12"),
        ("transfer protocol", "MR-dev", "STS12-dev"),
        ("geometry data", "uniformity", "STS12"),
        ("regressor", "STSBenchmark", "STS12"),
        ("split", "STS12", None),
    ],
)
def test_a_setting_counts_only_beside_a_measure_that_it_moves(
    key: str, moved: str, other: str | None
) -> None:
    entries = [entry(value, settings={key: value, "model": value}) for value in "aba"]
    entries[2:] = [entry("without"), entry("mean", kind=EntryKind.MEAN, settings={key: "a"})]
    assert setting_mismatches(entries, [moved]) == {
        key: f"unlike settings: {key} is a in a; b in b"
    }
    assert other is None or setting_mismatches(entries, [other]) == {}


def test_settings_of_published_rows_that_are_not_the_reference_do_not_count() -> None:
    row = entry(
        "row", kind=EntryKind.PUBLISHED, scores={"STS12": 0.5}, settings={"metric": "pearson"}
    )
    ours = [entry(name, scores={"STS12": 0.5}, settings={"metric": "spearman"}) for name in "ab"]
    assert join([row, *ours], reference=ours[0]).warnings == ()
    (warning,) = join([row, *ours], reference=row).warnings
    assert warning == "unlike settings: metric is pearson in row; spearman in a, b"


def test_scores_on_other_data_are_not_comparable() -> None:
    both = ("STS12", "STSBenchmark")
    rows = [
        entry(
            name,
            kind=EntryKind.PUBLISHED,
            scores=dict.fromkeys(both, 0.5),
            data=dict.fromkeys(both, ScoredData(PUBLISHED)),
        )
        for name in ("row 1", "row 2")
    ]
    demo = entry(
        "demo",
        scores=dict.fromkeys((*both, "MR"), 0.5),
        data=dict.fromkeys((*both, "CR"), ScoredData(DEMO)),
    )
    where = "scored on the published set in published rows, on the generated demo corpus in demo"
    assert data_mismatches([*rows, demo], [*both, "MR", "CR"]) == [
        f"NOT COMPARABLE: STS12, STS-B: {where}"
    ]
    assert (
        data_mismatches(rows, both)
        == data_mismatches([entry("ours", scores={"STS12": 0.5}), *rows], both)
        == []
    )
    mine = entry("mine", scores={"STS12": 0.5}, data={"STS12": ScoredData("mine.csv (abcd)")})
    assert data_mismatches([rows[0], mine], both) == [
        "NOT COMPARABLE: STS12: scored on the published set in published rows, on other data "
        "in mine (mine.csv (abcd))"
    ]
    # Two sets that are not published differ as well, and each remark names its own.
    both_of = {"STS12": ScoredData("30 examples, a"), "STSBenchmark": ScoredData("8 examples, a")}
    cut = entry("cut", scores=dict.fromkeys(both, 0.5), data=both_of)
    other = entry("other", scores={"STS12": 0.5}, data={"STS12": ScoredData("30 examples, b")})
    assert data_mismatches([cut, other], both) == [
        "NOT COMPARABLE: STS12: scored on other data in cut (30 examples, a), on other data in "
        "other (30 examples, b)"
    ]
    assert data_mismatches([rows[0], cut], both) == [
        "NOT COMPARABLE: STS12, STS-B: scored on the published set in published rows, on other "
        "data in cut (30 examples, a)"
    ]
    assert data_mismatches([rows[0], cut, mine], both)[1:] == [
        "NOT COMPARABLE: STS-B: scored on the published set in published rows, on other data in "
        "cut (8 examples, a)"
    ]
    # A run of 1.0.0 knows no digest of its pairs, so they may be those of a result that has one.
    run, *results = (
        entry(name, scores={"STS12": 0.5}, data={"STS12": ScoredData("30 pairs", digest)})
        for name, digest in (("run", None), ("a", "a"), ("b", "b"))
    )
    assert data_mismatches([run, *results], both) == []
    assert len(data_mismatches(results, both)) == 1
    comparison = join([rows[0], mine], reference=rows[0])
    assert (
        comparison.warnings
        == comparison.unlike_data
        == tuple(data_mismatches([rows[0], mine], both))
    )


def test_other_dev_data_than_the_published_is_unlike(tmp_path: Path) -> None:
    row = published("simcse.3", "p=0.1")
    (run,) = load_entries(str(write_run(tmp_path / "run")))
    (warning,) = join([row, run], reference=row).warnings
    assert "dev data is STS-B dev in simcse.3: p=0.1; sts-dev.csv (abcdef01) in run" in warning


def test_a_cut_dev_file_is_not_compared_with_the_published_one(tmp_path: Path) -> None:
    (cut,) = load_entries(str(write_run(tmp_path / "cut", n_dev_pairs=150)))
    (whole,) = load_entries(str(write_run(tmp_path / "whole", n_dev_pairs=1500)))
    assert data_mismatches([whole, cut], ["STSBenchmark-dev"]) == [
        "NOT COMPARABLE: STS-B dev: scored on the published set in whole, on other data in cut "
        "(150 examples instead of the published 1,500)"
    ]


def test_dev_data_of_one_size_are_told_apart_by_their_digests(tmp_path: Path) -> None:
    """Also from the published ones; a run of an earlier version has only their number."""
    changed, other, old = (
        load_entries(str(write_run(tmp_path / name, n_dev_pairs=1500, **digest)))[0]
        for name, digest in (
            ("changed", {"dev_data": {"sts-dev.csv": "a" * 64}}),
            ("other", {"dev_data": {"sts-dev.csv": "b" * 64}}),
            ("old", {}),
        )
    )
    words = "1,500 examples that are not those published, SHA-256"
    assert data_mismatches([changed, other], ["STSBenchmark-dev"]) == [
        "NOT COMPARABLE: STS-B dev: scored on other data in changed "
        f"({words} aaaaaaaa), on other data in other ({words} bbbbbbbb)"
    ]
    assert old.data == {"STSBenchmark-dev": ScoredData(PUBLISHED)}


def test_a_check_of_no_score_does_not_pass() -> None:
    run, other = entry("run", scores={"STS12": 0.7}), entry("other", scores={"MR": 0.7})
    with pytest.raises(ConfigError, match="no other entry has a score that run has"):
        join([run, other], reference=run).check(0.005)


def test_a_named_column_that_the_reference_lacks_cannot_be_checked() -> None:
    run = entry("run", scores={"STS12": 0.7})
    other = entry("other", scores={"STS12": 0.7, "STSBenchmark": 0.8})
    comparison = join([run, other], reference=run, measures=["STS12", "STSBenchmark"])
    assert comparison.check(0.005).outside == []
    with pytest.raises(ConfigError, match="--check: run has no score of STS-B, which --measures"):
        comparison.check(0.005, are_required=True)


def test_columns_of_the_reference_alone_stay_in_the_scores_and_out_of_the_differences() -> None:
    run = entry("run", scores={"STS12": 0.7, "STSBenchmark-dev": 0.8, "uniformity": -2.0})
    variant = entry("run [wmean]", scores={"STS12": 0.71})
    scores, differences = comparison_tables(join([run, variant], reference=run))
    assert [column.key for column in scores.columns] == [
        "system",
        "STS12",
        "STSBenchmark-dev",
        "uniformity",
    ]
    assert [column.key for column in differences.columns] == ["system", "STS12"]


def test_no_table_of_differences_where_no_line_shares_a_score_with_the_reference() -> None:
    run, other = entry("run", scores={}), entry("other", scores={"STS12": 0.7, "uniformity": -2.0})
    assert [table.title for table in comparison_tables(join([run, other], reference=run))] == [
        "Scores"
    ]


def test_pareto_front_keeps_what_no_other_beats() -> None:
    points = {"a": (0.8, 0.9), "b": (0.9, 0.8), "c": (0.8, 0.8), "d": (0.9, 0.8), "e": (0.7, 0.95)}
    entries = [
        entry(name, scores={"average": x, "transfer-average": y}) for name, (x, y) in points.items()
    ]
    assert front_labels(entries, ["average", "transfer-average"]) == {"a", "b", "d", "e"}


def test_pareto_front_wants_alignment_and_uniformity_low() -> None:
    entries = [
        entry("good", scores={"alignment": 0.1, "uniformity": -3.0}),
        entry("bad", scores={"alignment": 0.2, "uniformity": -2.0}),
        entry("absent", scores={"alignment": 0.0}),
    ]
    assert front_labels(entries, ["alignment", "uniformity"]) == {"good"}


GEOMETRY = {"alignment": 0.1, "uniformity": -3.0}


@pytest.mark.parametrize(
    ("scores", "asked", "over", "front"),
    [
        ([GEOMETRY, GEOMETRY | {"alignment": 0.2}], (), ("alignment", "uniformity"), {"0"}),
        ([GEOMETRY], (), (), set()),
        ([GEOMETRY, {"alignment": 0.2}], (), (), set()),
        ([{"average": 0.5}, {"average": 0.6}], (), (), set()),
        ([{"average": 0.5}, {"average": 0.6}], ("average",), ("average",), {"1"}),
        ([{"average": 0.5}, {}], ("average",), (), set()),
    ],
)
def test_a_front_needs_two_systems_and_two_measures_unless_one_is_asked_for(
    scores, asked, over, front
) -> None:
    comparison = join(
        [entry(str(i), scores=each) for i, each in enumerate(scores)], pareto_measures=asked
    )
    assert (comparison.pareto_measures, comparison.front) == (over, front)
    assert front_labels([], ["alignment", "uniformity"]) == frozenset()


def outside(n: int) -> list[dict[str, object]]:
    return [
        {"label": f"run {i}", "measure": "STSBenchmark", "score": 0.5, "expected": 0.6}
        for i in range(n)
    ]


@pytest.mark.parametrize(
    ("n", "more"), [(1, ""), (5, ""), (6, "; and 1 more"), (7, "; and 2 more")]
)
def test_a_failed_check_names_five_scores(n: int, more: str) -> None:
    check = ToleranceCheck("row", 0.005, 9, outside(n))
    assert check.to_json() == {"tolerance": 0.005, "n_checked": 9, "outside": outside(n)}
    with pytest.raises(ToleranceError) as raised:
        check.verdict()
    shown = "; ".join(f"run {i} STS-B 50.00, not 60.00" for i in range(min(n, 5)))
    assert (
        raised.value.message == f"{n} of 9 scores are more than 0.5 points off row: {shown}{more}"
    )
    assert (
        ToleranceCheck("row", 0.005, 9, []).verdict()
        == "check passed: 9 scores within 0.5 points of row"
    )


def test_only_scores_that_both_have_are_checked() -> None:
    base = entry("base", scores={"STS12": 0.5, "STS13": 0.5, "alignment": 0.1, "uniformity": -2.0})
    ours = entry(
        "ours", scores={"STS12": 0.625, "STS14": 0.5, "alignment": 0.9, "uniformity": -2.0}
    )
    comparison = join([base, ours], reference=base)
    assert comparison.differences(ours) == {"STS12": 0.125, "alignment": 0.8, "uniformity": 0.0}
    found = {"label": "ours", "measure": "STS12", "score": 0.625, "expected": 0.5}
    assert comparison.check(0.1) == ToleranceCheck("base", 0.1, 1, [found])
    assert comparison.check(0.125).outside == []
    alone = join([base, ours])
    assert alone.differences(ours) == {}
    with pytest.raises(ConfigError, match="--check needs one reference"):
        alone.check(0.1)


@pytest.mark.parametrize(
    ("fields", "measures", "missing"),
    [
        ({}, [], []),  # never scored on STS13
        ({}, ["STS12", "STS13"], ["STS13"]),
        ({"unscored": ("STS13", "STS14")}, [], ["STS13"]),  # the reference has no STS14
        ({"unscored": ("STS13",)}, ["STS12"], []),
        ({"variant": "wmean"}, ["STS12", "STS13"], []),
    ],
)
def test_a_missing_score_fails_the_check_if_it_was_named_or_its_result_lists_it(
    fields, measures, missing
) -> None:
    base = entry("base", scores={"STS12": 0.5, "STS13": 0.5})
    ours = entry("ours", scores={"STS12": 0.5}, **fields)
    comparison = join([base, ours], reference=base, measures=measures)
    check = comparison.check(0.6, are_required=bool(measures))
    assert [found["measure"] for found in check.outside] == missing
    assert check.n_checked == 1 + len(missing)
    if missing:
        with pytest.raises(ToleranceError) as raised:
            check.verdict()
        assert raised.value.message == (
            "1 of 2 scores are missing or more than 60 points off base: "
            "ours STS13 missing, not 50.00"
        )


def test_a_score_that_a_result_lists_without_a_value_has_a_column_beside_a_published_row() -> None:
    row = published("simcse.5", "SBERT-base")
    ours = entry("ours", scores={"STS12": 0.7}, unscored=("STS13",))
    comparison = join([row, ours], reference=row)
    assert comparison.measures == ("STS12", "STS13")
    assert [found["measure"] for found in comparison.check(1.0).outside] == ["STS13"]


def test_the_file_of_the_reference_comes_first() -> None:
    files = {name: (SavedExamples(Path(f"{name}.jsonl")),) for name in "abc"}
    entries = [
        entry(name, scores={"STS12": 0.5}, pair_scores=files.get(name, ())) for name in "abdc"
    ]
    comparison = join(entries, reference=entries[3])
    assert [(each.label, found) for each, found in comparison.saved("pair_scores")] == [
        (name, files[name]) for name in "cab"
    ]
    assert comparison.saved("predictions") == []


def test_check_judges_means_and_single_entries_both_ways() -> None:
    row = published("simcse.3", "p=0.1")
    repeated = [entry("ours", scores={"STSBenchmark-dev": score}) for score in (0.80, 0.85)]
    single = entry("low", scores={"STSBenchmark-dev": 0.819})
    comparison = join([row, *add_means([*repeated, single])], reference=row)
    assert comparison.check(0.006).n_checked == 2
    assert [found["label"] for found in comparison.check(0.005).outside] == ["low"]
    assert comparison.check(0.006).outside == []


def test_pareto_optimal_points_of_known_points():
    points = np.array([[0, 3], [1, 1], [3, 0], [2, 2], [1, 1], [0, 4]], dtype=float)
    assert is_pareto_optimal(points).tolist() == [True, True, True, False, True, False]


def test_pareto_optimal_points_equal_the_double_loop():
    points = np.random.default_rng(4).integers(0, 6, size=(40, 2)).astype(float)
    oracle = [
        not any((other <= point).all() and (other < point).any() for other in points)
        for point in points
    ]
    assert is_pareto_optimal(points).tolist() == oracle
