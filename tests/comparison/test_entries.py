"""Parts that are joined and repetitions that get a mean."""

from pathlib import Path

import numpy as np
import pytest

from comparison.cases import entry, write_run
from simcse_cli.comparison.entries import load_entries
from simcse_cli.comparison.join import add_means, merge_parts


def test_parts_of_one_label_are_joined() -> None:
    sts = entry("ours", scores={"STS12": 0.7, "seconds": 3.0})
    transfer = entry("ours", scores={"MR": 0.8, "seconds": 4.0})
    (joined,) = merge_parts([sts, transfer])
    assert joined.scores == {"STS12": 0.7, "MR": 0.8, "seconds": 4.0}


def test_repetitions_get_their_mean_and_sample_deviation() -> None:
    lines = add_means([entry("ours", scores={"STS12": score}) for score in (0.70, 0.72, 0.77)])
    assert [line.label for line in lines] == ["ours [1]", "ours [2]", "ours [3]", "ours (mean of 3)"]
    assert lines[-1].scores["STS12"] == pytest.approx(0.73)
    assert lines[-1].deviations["STS12"] == pytest.approx(np.std([0.70, 0.72, 0.77], ddof=1))


def test_runs_that_differ_in_the_seed_only_are_repetitions(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"base-seed-{seed}", seed=seed) for seed in (1, 2)]
    other = write_run(tmp_path / "warm", seed=1, lr=1e-4)
    lines = add_means([one for run in (*runs, other) for one in load_entries(str(run))])
    assert [line.label for line in lines] == ["base-seed-1", "base-seed-2", "base (mean of 2)", "warm"]


def test_mean_is_over_the_scores_that_all_repetitions_have() -> None:
    whole, part = entry("ours", scores={"STS12": 0.7, "MR": 0.9}), entry("ours", scores={"STS12": 0.8})
    assert add_means([whole, part])[-1].scores == {"STS12": pytest.approx(0.75)}
