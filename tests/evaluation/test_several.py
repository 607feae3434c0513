"""Several encoders evaluated together: a task that only some of them have a score of."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from comparison.cases import write_run
from helpers import Told
from simcse_cli.evaluation import several
from simcse_cli.evaluation.eval_encoder import EvalEncoder
from simcse_cli.evaluation.eval_sts import sts_checkpoints, sts_report
from simcse_cli.evaluation.mteb import category_means, mteb_category_report, mteb_task_report
from simcse_cli.evaluation.options import EncoderOptions, MtebOptions, StsOptions
from simcse_cli.models.checkpoint import KeptCheckpoint
from simcse_cli.results.report import Column, Outcome, Report
from simcse_cli.results.result import SuiteResult, TaskResult
from simcse_cli.settings.choices import Precision

CATEGORIES = {"STS12": "STS", "SICK-R": "STS", "SciFact": "Retrieval"}


def sts_result(scores: dict[str, float | None]) -> SuiteResult:
    settings = {"model": "", "metric": "spearman", "aggregation": "all", "pooler": "avg"}
    tasks = {
        name: None if score is None else TaskResult(score, 10) for name, score in scores.items()
    }
    return SuiteResult("sts", settings, tasks)


def folder_of(tmp_path: Path, n_seeds: int) -> Path:
    for seed in range(1, n_seeds + 1):
        write_run(tmp_path / "runs" / f"seed-{seed}", seed=seed)
    return tmp_path / "runs"


def test_a_task_that_a_seed_lacks_and_the_averages_have_no_mean(tmp_path):
    scores = {
        1: {"STS12": 0.5, "STS13": 0.7},
        2: {"STS12": 0.6, "STS13": None},
        3: {"STS12": 0.7, "STS13": 0.8},
    }

    def evaluate(encoder: EncoderOptions, options: StsOptions) -> Outcome:
        result = sts_result(scores[int(encoder.model[-1])])
        result = replace(result, settings={**result.settings, "model": encoder.model})
        subsets = [
            {"task": name, "subset": "all", "spearman": score}
            for name, score in result.scores.items()
            if score is not None
        ]
        shown = [Column("task"), Column("subset"), Column("spearman", kind="score")]
        return Outcome([sts_report(result), Report("Subsets", shown, subsets)], result.to_json())

    folder = folder_of(tmp_path, 3)
    progress = Told()
    encoder = EncoderOptions(model=str(folder))
    outcome = several.evaluate_each_seed(evaluate, encoder, StsOptions(), progress)
    payload = outcome.payload
    assert payload["tasks"]["STS12"]["score"] == pytest.approx(0.6)
    assert payload["tasks"]["STS13"] is payload["average"] is None
    assert payload["deviation"] == {"tasks": {"STS12": {"score": pytest.approx(0.1)}}}
    assert payload["missing"] == {"STS13": "in seed 2"}
    assert [run["average"] for run in payload["runs"]] == pytest.approx([0.6, 0.6, 0.75])
    note = "no score of STS13 in seed 2: neither it nor any average has a mean"
    assert progress.warnings == [note]

    table, subsets = outcome.reports
    assert [row["average"] for row in table.rows[:3]] == pytest.approx([0.6, 0.6, 0.75])
    mean, deviation = table.rows[3:]
    for row in (mean, deviation):
        assert row["STS12"] is not None
        assert row["STS13"] is row["average"] is None
    assert note in table.notes
    assert [row["spearman"] for row in subsets.rows] == pytest.approx([0.6])


def mteb_outcome(scores: dict[str, float | None], model: str) -> Outcome:
    tasks = {
        name: None if score is None else TaskResult(score, extra={"metric": "m", "data": "hub"})
        for name, score in scores.items()
    }
    figures = category_means(CATEGORIES, scores)
    result = SuiteResult("mteb", {"model": model, "mteb_version": "2"}, tasks, figures=figures)
    reports = [mteb_task_report(result, CATEGORIES), mteb_category_report(result)]
    return Outcome(reports, result.to_json())


def test_mteb_categories_have_no_mean_where_a_seed_lacks_a_task(tmp_path):
    scores = [
        {"STS12": 0.5, "SICK-R": 0.7, "SciFact": 0.3},
        {"STS12": 0.9, "SICK-R": None, "SciFact": 0.5},
    ]
    folder = folder_of(tmp_path, 2)
    outcome = several.evaluate_each_seed(
        lambda encoder, _: mteb_outcome(scores[int(encoder.model[-1]) - 1], encoder.model),
        EncoderOptions(model=str(folder)),
        MtebOptions(),
        Told(),
    )
    assert outcome.payload["categories"] is outcome.payload["average"] is None
    by_task, by_category = outcome.reports
    assert [row["score"] for row in by_task.rows] == [pytest.approx(0.7), None, pytest.approx(0.4)]
    assert by_category.rows[2]["STS"] is by_category.rows[2]["average"] is None


def test_folder_of_one_seed_shows_its_scores_by_task(tmp_path):
    folder = folder_of(tmp_path, 1)
    scores = {"STS12": 0.5, "SICK-R": 0.7, "SciFact": 0.3}
    outcome = several.evaluate_each_seed(
        lambda encoder, _: mteb_outcome(scores, encoder.model),
        EncoderOptions(model=str(folder)),
        MtebOptions(),
        Told(),
    )
    table = outcome.reports[0]
    assert [row["score"] for row in table.rows] == list(scores.values())
    assert "mean" not in table.title


def test_checkpoint_without_a_task_is_not_the_best(tmp_path, monkeypatch):
    run = folder_of(tmp_path, 1) / "seed-1"
    kept = [KeptCheckpoint(step, run, is_model=True) for step in (10, 20)]
    monkeypatch.setattr(several, "kept_checkpoints", lambda _: kept)
    monkeypatch.setattr(several, "load_for_encoding", lambda *_: None)
    opened = EvalEncoder("run", "avg", "digest", 2, Precision.FP32, np.zeros)
    monkeypatch.setattr(several, "open_model", lambda *_: opened)
    results = iter(
        [sts_result({"STS12": 0.9, "STS13": None}), sts_result({"STS12": 0.8, "STS13": 0.6})]
    )
    outcome = several.evaluate_checkpoints(
        EncoderOptions(model=str(run)), lambda _: next(results), sts_checkpoints, Told()
    )
    assert outcome.payload["best_step"] == 20
    assert "no score of STS13 in step 10: it cannot be the best" in outcome.reports[0].notes


@pytest.mark.parametrize(
    ("tasks", "sets", "has_test_note", "has_own_note"),
    [
        (("STS12",), "test sets", True, False),
        (("mine",), "own pairs", False, True),
        (("STS12", "mine"), "test sets", True, True),
    ],
)
def test_checkpoints_on_pairs_of_the_user_are_not_called_test_sets(
    tasks, sets, has_test_note, has_own_note
):
    result = sts_result(dict.fromkeys(tasks, 0.5))
    result = replace(result, settings={**result.settings, "split": "test"})
    table = sts_checkpoints([result], "r/u")
    assert f"STS along r/u, {sets}: " in table.title
    assert any("--split dev" in note for note in table.notes) == has_test_note
    own = "mine: pairs that choose a checkpoint are no test of it"
    assert any(own in note for note in table.notes) == has_own_note
