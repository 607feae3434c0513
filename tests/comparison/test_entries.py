"""Parts that are joined and repetitions that get a mean."""

import json
from pathlib import Path

import numpy as np
import pytest

from comparison.cases import entry, write_run, write_sts_result
from simcse_cli.comparison.entries import Entry, EntryKind, ScoredData, load_entries
from simcse_cli.comparison.join import add_means, merge_parts
from simcse_cli.results.result import PUBLISHED


def test_parts_of_one_label_are_joined() -> None:
    sts = entry("ours", scores={"STS12": 0.7, "seconds": 3.0})
    transfer = entry("ours", scores={"MR": 0.8, "seconds": 4.0})
    (joined,) = merge_parts([sts, transfer])
    assert joined.scores == {"STS12": 0.7, "MR": 0.8, "seconds": 4.0}


def test_parts_of_one_suite_have_the_average_over_all_their_tasks() -> None:
    data = {"average": ScoredData("other words")}
    first = entry("ours", scores={"STS12": 0.7, "STS13": 0.5, "average": 0.6}, data=data)
    data = {"average": ScoredData(PUBLISHED)}
    second = entry(
        "ours",
        scores={"STSBenchmark": 0.9, "average": 0.9},
        data=data,
        intervals={"average": (0.8, 1.0)},
    )
    (joined,) = merge_parts([first, second])
    assert joined.scores == {
        "STS12": 0.7,
        "STS13": 0.5,
        "STSBenchmark": 0.9,
        "average": pytest.approx(0.7),
    }
    assert joined.intervals == {}
    assert joined.data == first.data
    # An average whose tasks are not known is a score of its own, as in two sweeps.
    alone = entry("ours", scores={"average": 0.8})
    assert len(merge_parts([first, alone])) == len(merge_parts([alone, alone])) == 2


def test_missing_scores_of_a_result_are_kept_by_name(tmp_path: Path) -> None:
    path = write_sts_result(tmp_path / "a.json", {"STS12": 0.7, "STS13": 0.5, "STS14": None})
    result = json.loads(path.read_text())
    result["tasks"]["STS13"] |= {"score": None, "spearman": {"all": None}}
    path.write_text(json.dumps(result))
    (found,) = load_entries(str(path))
    assert found.unscored == ("STS13", "STS14")  # undefined, and without data


TIMED = {"seconds": 3.0, "sentences_per_second": 4.0}


@pytest.mark.parametrize(
    ("label", "scores", "seeds", "is_joined"),
    [
        ("a", {"MR": 0.8, **TIMED}, (None, None), True),
        ("a", {"MR": 0.8}, (1, None), True),
        ("a", {"MR": 0.8}, (1, 1), True),
        ("a", {"MR": 0.8}, (1, 2), False),
        ("b", {"MR": 0.8}, (None, None), False),
        ("b", {"MR": 0.8}, (1, 1), False),
        ("a", {"STS12": 0.7}, (None, None), False),
        ("a", {"STS12": 0.7, **TIMED}, (None, None), False),
    ],
)
def test_parts_are_of_one_label_and_seed_and_share_no_score(
    label, scores, seeds, is_joined
) -> None:
    parts = (
        entry("a", scores={"STS12": 0.7, **TIMED}, seed=seeds[0]),
        entry(label, scores=scores, seed=seeds[1]),
    )
    assert len(merge_parts(parts)) == (1 if is_joined else 2)


def test_repetitions_get_their_mean_and_sample_deviation() -> None:
    lines = add_means([entry("ours", scores={"STS12": score}) for score in (0.70, 0.72, 0.77)])
    assert [line.label for line in lines] == [
        "ours [1]",
        "ours [2]",
        "ours [3]",
        "ours (mean of 3)",
    ]
    assert lines[-1].scores["STS12"] == pytest.approx(0.73)
    assert lines[-1].deviations["STS12"] == pytest.approx(np.std([0.70, 0.72, 0.77], ddof=1))


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        (("sw/lr=1e-5,seed=1", "sw/lr=1e-5,seed=2"), "sw/lr=1e-5"),
        (("sw/lr=1e-5,a=1", "sw/lr=1e-5,b=2"), "sw/lr=1e-5"),
        (("all/seed-1", "all/seed-2"), "all"),
        (("run_1", "run_2"), "run_1"),
    ],
)
def test_a_mean_has_the_common_start_of_its_names(labels, name: str) -> None:
    config = {"lr": 1e-5}
    runs = [entry(each, kind=EntryKind.RUN, config=config, scores={}) for each in labels]
    assert add_means(runs)[-1].label == f"{name} (mean of 2)"


def test_repetitions_of_one_seed_are_told_apart_by_a_number():
    members = [entry("ours", seed=seed, scores={"STS12": 0.7}) for seed in (42, 42, 1)]
    labels = [line.label for line in add_means(members)]
    assert labels == ["ours [seed 42, 1]", "ours [seed 42, 2]", "ours [seed 1]", "ours (mean of 3)"]


def test_runs_that_differ_in_the_seed_only_are_repetitions(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"base-seed-{seed}", seed=seed) for seed in (1, 2)]
    other = write_run(tmp_path / "warm", seed=1, lr=1e-4)
    lines = add_means([one for run in (*runs, other) for one in load_entries(str(run))])
    assert [line.label for line in lines] == [
        "base-seed-1",
        "base-seed-2",
        "base (mean of 2)",
        "warm",
    ]


def test_mean_is_over_the_scores_that_all_repetitions_have() -> None:
    whole, part = (
        entry("ours", scores={"STS12": 0.7, "MR": 0.9}),
        entry("ours", scores={"STS12": 0.8}),
    )
    assert add_means([whole, part])[-1].scores == {"STS12": pytest.approx(0.75)}


def test_a_mean_has_the_settings_and_scores_that_all_members_share() -> None:
    settings = [
        {"metric": "spearman", "pooler": "avg"},
        {"metric": "spearman", "pooler": "cls"},
        {"metric": "spearman"},
    ]
    data = [{"STS12": "x"}, {"STS12": "x"}, {"STS12": "y"}]
    scores = [{"STS12": 0.5, "MR": 0.5}, {"STS12": 0.6, "MR": 0.5}, {"STS12": 0.7}]
    members = [
        entry("ours", scores=score, settings=own, data=where, seed=seed)
        for score, own, where, seed in zip(scores, settings, data, (7, 8, None), strict=True)
    ]
    *lines, mean = add_means(members)
    assert [line.label for line in lines] == ["ours [seed 7]", "ours [seed 8]", "ours [3]"]
    assert mean == Entry(
        "ours (mean of 3)",
        EntryKind.MEAN,
        "ours.json, ours.json, ours.json",
        {"STS12": pytest.approx(0.6)},
        {"metric": "spearman"},
        deviations={"STS12": pytest.approx(0.1)},
        members=("ours [seed 7]", "ours [seed 8]", "ours [3]"),
    )


def test_repetitions_are_runs_of_one_config_or_entries_of_one_label() -> None:
    config = {"lr": 1e-5, "data.dev_file": "a.csv"}
    runs = [
        entry(label, kind=EntryKind.RUN, config=config | {"train.seed": seed, "output": label})
        for seed, label in enumerate(("x", "y"))
    ]
    assert [line.label for line in add_means(runs)] == ["x", "y", "x (mean of 2)"]
    results = [entry(label, config=config) for label in "xy"]
    assert [line.label for line in add_means(results)] == ["x", "y"]
    bare = [entry(label, kind=EntryKind.RUN) for label in "xy"]
    assert [line.label for line in add_means(bare)] == ["x", "y"]
