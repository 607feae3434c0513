"""The page of findings is what its script writes from the results, and its verdicts follow from paired t-tests."""

import importlib.util
import json
from pathlib import Path

import pytest
import yaml

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(scope="module")
def findings():
    spec = importlib.util.spec_from_file_location("make_findings", DOCS / "make_findings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def groups():
    return yaml.safe_load((DOCS / "findings.yaml").read_text())


def test_the_page_is_what_the_script_writes(findings, groups):
    results = json.loads((DOCS / "findings.json").read_text())
    assert (DOCS / "findings.md").read_text() == findings.page(results, groups)


def test_each_claim_that_has_figures_is_what_the_paper_measured(findings, groups):
    for comparison in findings.comparisons(groups):
        greater, _, less = findings.published(comparison).partition(" > ")
        assert not less or float(greater) > float(less), comparison


def test_a_paired_t_test_decides(findings):
    # differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t = 2 sqrt(3) with two degrees of freedom
    difference, p = findings.judge([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    t = 2 * 3**0.5
    assert difference == pytest.approx(2)
    assert p == pytest.approx(
        1 - t / (2 + t * t) ** 0.5
    )  # Student's distribution with two degrees of freedom
    assert findings.judge([1.0], [2.0, 4.0, 6.0]) == pytest.approx(
        (-3, 1 - 3 * 3**0.5 / 2 / (2 + 27 / 4) ** 0.5)
    )
    assert findings.judge([1.0, 2.0], [1.0, 2.0]) == (0, 1)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([(0.1, 0.04)], "**seen**"),
        ([(0.1, 0.06)], "not decided"),
        ([(-0.1, 0.04)], "**not seen**"),
        ([(0.1, 0.01), (-0.1, 0.06)], "not decided"),
        ([(0.1, 0.01), (-0.1, 0.01)], "**not seen**"),
        ([(0.1, 0.01), None], "not run"),
    ],
)
def test_a_claim_is_seen_if_each_of_its_comparisons_is(findings, found, expected):
    assert findings.verdict(found) == expected


def test_results_are_read_from_runs_seeds_and_evaluations(findings, tmp_path):
    recipe = tmp_path / "table-small"
    for seed, score in ((1, 0.5), (2, 0.7)):
        run = recipe / "several" / f"seed-{seed}"
        run.mkdir(parents=True)
        facts = {
            "status": "finished",
            "objective": "simcse-unsup",
            "model": "m",
            "seed": seed,
            "config": {},
            "data": {},
        }
        (run / "run.json").write_text(
            json.dumps(facts | {"total_steps": 3, "trained_score": score})
        )
        lines = [{"step": 0, "alignment": 9.0}, {"step": 3, "alignment": score / 2}]
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    tasks = {
        name: {"n_pairs": 2, "score": score} for name, score in (("STS12", 0.2), ("STS13", 0.4))
    }
    (recipe / "whole.json").write_text(json.dumps({"suite": "sts", "tasks": tasks, "average": 0.3}))
    (recipe / "seeds.json").write_text(json.dumps({"runs": [{"average": 0.1}, {"average": 0.2}]}))
    models = [{"label": "a/seed-1", "uniformity": -1.0}, {"label": "a/seed-2", "uniformity": -2.0}]
    (tmp_path / "geometry.json").write_text(
        json.dumps({"models": [*models, {"label": "ab", "uniformity": 0}]})
    )
    assert (
        findings.values_of(tmp_path, "table/several", "dev") is None
    )  # another seed may be missing
    (recipe / "several" / "seeds.json").write_text("{}")
    assert findings.values_of(tmp_path, "table/several", "dev") == [0.5, 0.7]
    assert findings.values_of(tmp_path, "table/several/seed-2", "alignment") == [0.35]
    assert findings.values_of(tmp_path, "table/whole", "dev") == [0.2, 0.4]
    assert findings.values_of(tmp_path, "table/seeds", "dev") == [0.1, 0.2]
    assert findings.values_of(tmp_path, "table/missing", "dev") is None
    assert findings.values_of(tmp_path, "geometry/a", "uniformity") == [-1, -2]
