"""The page of findings is what its script writes from the results, and its verdicts follow from paired t-tests."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from scipy import stats

from simcse_cli.results.examples import SubsetPairs, write_pair_scores

DOCS = Path(__file__).resolve().parent.parent / "docs"
RECIPES = DOCS.parent / "recipes"


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def findings():
    return load(DOCS / "make_findings.py")


@pytest.fixture(scope="module")
def groups():
    return yaml.safe_load((DOCS / "findings.yaml").read_text())


@pytest.mark.upkeep
def test_the_page_is_what_the_script_writes(findings, groups):
    results = json.loads((DOCS / "findings.json").read_text())
    second = json.loads(findings.SECOND.read_text()) if findings.SECOND.is_file() else None
    assert (DOCS / "findings.md").read_text() == findings.page(results, groups, second)


def test_each_claim_that_has_figures_is_what_the_paper_measured(findings, groups):
    for comparison in findings.comparisons(groups):
        greater, _, less = findings.published(comparison).partition(" > ")
        assert not less or float(greater) > float(less), comparison


def test_what_the_claims_need_leaves_out_what_no_claim_compares(findings, groups):
    needed = re.compile(findings.needed(groups))
    for name in (
        "table3-dropout-small/p-0.1",
        "table6-pooling-small/unsup-mlp.json",
        "pairs/table3-dropout/p-0.1.json",
    ):
        assert needed.search(f"runs/{name}"), name
    for name in (
        "table3-dropout-small/p-0.1-sick.json",
        "table3-dropout-small/p-0.15",
        "table1-augmentations-small/none",
    ):
        assert not needed.search(f"runs/{name}"), name


def test_a_paired_t_test_decides_over_tasks(findings):
    # differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t = 2 sqrt(3) with two degrees of
    # freedom
    found = findings.judge([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], is_sequential=False)
    t = 2 * 3**0.5
    assert found.difference == pytest.approx(2)
    assert found.deviation == pytest.approx(1)
    # Student's distribution with two degrees of freedom, whose 97.5% quantile is 4.3027
    assert found.p == pytest.approx(1 - t / (2 + t * t) ** 0.5)
    assert found.high - found.low == pytest.approx(2 * 4.302653 / 3**0.5)
    single = findings.judge([1.0], [2.0, 4.0, 6.0], is_sequential=False)
    assert (single.difference, single.p) == pytest.approx(
        (-3, 1 - 3 * 3**0.5 / 2 / (2 + 27 / 4) ** 0.5)
    )
    equal = findings.judge([1.0, 2.0], [1.0, 2.0], is_sequential=False)
    assert (equal.difference, equal.p) == (0, 1)


def test_boundaries_are_those_that_were_published(findings):
    # Reboussin et al. 2000, five equal looks, two-sided 0.05, spending functions of Lan and DeMets
    # 1983
    def obrien_fleming(fraction, alpha):
        return 4 * stats.norm.sf(stats.norm.isf(alpha / 4) / fraction**0.5)

    looks = [0.2, 0.4, 0.6, 0.8, 1.0]
    assert findings.boundaries(looks, 0.05) == pytest.approx(
        [2.4380, 2.4268, 2.4101, 2.3966, 2.3859], abs=2e-4
    )
    assert findings.boundaries(looks, 0.05, obrien_fleming) == pytest.approx(
        [4.8769, 3.3569, 2.6803, 2.2898, 2.0310], abs=2e-4
    )
    # one look is the plain test
    assert findings.boundaries([1.0], 0.05) == pytest.approx([stats.norm.isf(0.025)])


def test_the_sequential_rule_keeps_its_error_without_a_difference(findings):
    draws = np.random.default_rng(0).standard_normal((40_000, 10))
    rejected = np.zeros(len(draws), dtype=bool)
    for look, level in zip(findings.LOOKS, findings.levels(0.05), strict=True):
        rejected |= stats.ttest_1samp(draws[:, :look], 0, axis=1).pvalue < level
    # 0.05 with normal tests; t-tests of a few seeds are less correlated from look to look
    assert rejected.mean() == pytest.approx(0.05, abs=0.006)


@pytest.mark.parametrize("look", [0, 1, 2])
@pytest.mark.parametrize("alpha", [1e-5, 0.01, 0.05, 0.2])
def test_the_sequential_p_is_the_smallest_error_that_rejects(findings, look, alpha):
    assert findings.error_of(findings.levels(alpha)[look], look) == pytest.approx(alpha, rel=0.01)


def test_the_first_look_spends_its_share_of_the_error(findings):
    spent = np.log(1 + (np.e - 1) * 0.3)
    found = findings.judge([2.0, 4.0, 6.0, 0.0], [1.0, 2.0, 3.0, 9.0])  # the fourth seed waits
    assert found.n == 3
    t = 2 * 3**0.5
    assert found.p == pytest.approx((1 - t / (2 + t * t) ** 0.5) / spent, rel=0.01)
    assert findings.judge([1.0, 2.0], [0.0, 0.5]).p == 1  # before the first look


def test_power_is_that_of_the_tables(findings):
    # Cohen 1988: ten pairs, two-sided 0.05: d = 1 has a power of 0.80
    assert findings.power(10, 0.05, 1.0) == pytest.approx(0.803, abs=1e-3)
    assert findings.detectable(10, 0.05) == pytest.approx(0.9964, abs=1e-3)
    assert findings.power(10, 0.05, 0.0) == pytest.approx(0.025, abs=1e-4)  # on one side
    # few seeds and a small level, where the noncentral t-distribution is known too
    assert findings.power(3, 1e-3, 20.0) == pytest.approx(
        stats.nct.sf(stats.t.isf(5e-4, 2), 2, 20 * 3**0.5), abs=1e-3
    )
    assert findings.power(3, 1e-9, findings.detectable(3, 1e-9)) == pytest.approx(0.8)


def test_comparisons_are_corrected_by_holm_for_their_number(findings):
    names = [("a/1", "a/2"), ("a/3", "a/4"), ("a/5", "a/6")]
    claims = [{"comparisons": [{"runs": list(pair), "over": "tasks"}]} for pair in names]
    noise = [1.0, -1.0, 2.0, 0.0]
    values = {f"a/{number}:dev": [0.0] * 4 for number in (2, 4)}
    values["a/1:dev"] = [9.0 + each for each in noise]
    values["a/3:dev"] = [1.0 + each for each in noise]
    found = findings.tests_of([{"claims": claims}], {"values": values})
    ps = sorted(
        stats.ttest_1samp(values[f"a/{number}:dev"], 0).pvalue for number in (1, 3)
    )  # the third comparison was not run, and counts for nothing
    assert found["a/1", "a/2", "dev"].p == pytest.approx(2 * ps[0])
    assert found["a/3", "a/4", "dev"].p == pytest.approx(ps[1])
    assert found["a/5", "a/6", "dev"] is None


def test_a_difference_below_half_of_the_papers_counts_where_runs_are_long_enough(findings):
    comparison = {"paper": ["simcse.3", "p=0.1", "p=0.0"], "runs": ["a/1", "a/2"]}  # 82.5 > 71.1
    noise = [0.01, -0.01, 0.02, -0.02, 0.0, 0.01, -0.01, 0.02, -0.02, 0.0]
    values = {"a/1:dev": noise, "a/2:dev": [0.0] * 10}
    curve = {"20": [0.5, 0.6]}
    curves = {"a": curve, "b": curve}
    results = {"values": values, "curves": curves, "steps": 20}
    groups = [{"claims": [{"comparisons": [comparison]}]}]

    (test,) = findings.tests_of(groups, results).values()
    # the mean of zero is tested against 0.057 on one side
    looks = [stats.ttest_1samp(np.array(noise[:n]) - 0.057, 0).pvalue for n in findings.LOOKS]
    errors = [findings.error_of(p, look) for look, p in enumerate(looks)]
    assert test.p_less == pytest.approx(min(errors) / 2)
    assert test.is_less
    assert findings.verdict([test]) == "**not seen**"

    # neither a difference of that size nor a clear difference of the claim's sign is less
    values["a/2:dev"] = [-0.06] * 10
    (test,) = findings.tests_of(groups, results).values()
    assert test.p_less == 1
    values["a/2:dev"] = [-0.03] * 10
    (test,) = findings.tests_of(groups, results).values()
    assert test.p_less < 0.05
    assert not test.is_less
    assert findings.verdict([test]) == "**seen**"

    values["a/2:dev"] = [0.0] * 10
    for too_short in ({"steps": 10}, {"curves": {}}):
        (test,) = findings.tests_of(groups, results | too_short).values()
        assert test.p_less == 1
        assert findings.verdict([test]) == "not decided"


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(0.1, 0.04)], "**seen**"),
        ([(0.1, 0.06)], "not decided"),
        ([(-0.1, 0.04)], "**not seen**"),
        ([(0.1, 0.01), (-0.1, 0.06)], "not decided"),
        ([(0.1, 0.01), (-0.1, 0.01)], "**not seen**"),
        ([(0.1, 0.01), None], "not run"),
    ],
)
def test_a_claim_is_seen_if_each_of_its_comparisons_is(findings, pairs, expected):
    found = [each and findings.Test(each[0], 0, 0, 0.1, 3, True, each[1]) for each in pairs]
    assert findings.verdict(found) == expected


def test_the_length_is_where_four_fifths_of_each_difference_are_there(findings):
    curves = {
        "a": {"10": [1.0, 1.1], "20": [1.0, 1.1], "30": [3.0, 3.1], "40": [5.0, 5.1]},
        "b": {"10": [2.0, 2.2], "20": [0.1, 0.2], "30": [3.5, 3.7], "40": [4.0, 4.1]},
        "c": {"10": [9.0, 9.0], "20": [9.0, 9.0], "30": [9.0, 9.0], "40": [9.0, 9.1]},
    }
    # a is below b at 10 and 30 and above it at the end; c does not differ from itself
    assert findings.length_of(curves) == 40
    # c goes on moving away from the others until its difference is 0.8 of the last one
    curves["a"] = {"10": [4.9, 5.0], "20": [4.9, 5.0], "30": [4.9, 5.0], "40": [5.0, 5.1]}
    curves["b"] = {"10": [4.5, 4.6], "20": [4.0, 4.1], "30": [4.0, 4.1], "40": [4.0, 4.1]}
    assert findings.length_of(curves) == 20
    curves["b"]["30"] = [4.2, 4.3]  # 0.7 of the last 1.0 is too little
    assert findings.length_of(curves) == 40
    assert findings.length_of({}) is None


def test_the_length_is_on_the_page_before_the_tables_are_run(
    findings, tmp_path, monkeypatch, capsys
):
    results = json.loads(findings.RESULTS.read_text(encoding="utf-8"))
    monkeypatch.setattr(findings, "RESULTS", tmp_path / "findings.json")
    findings.RESULTS.write_text(json.dumps(results))
    curve = {"10": [0.5, 0.6], "20": [0.7, 0.8]}
    curves = {"curves": dict.fromkeys(findings.CURVES, curve)}
    start = {name: results[name] for name in results if name.startswith("raw_")} | curves
    start |= {"scores": results["scores"], "perplexity": [2.0, 1.5]}
    monkeypatch.setattr(findings, "start_of", lambda folder: start)

    findings.choose_length(tmp_path)
    assert capsys.readouterr().out == "10\n"  # no pair is separated
    # the tables of this encoder are on the page
    assert json.loads(findings.RESULTS.read_text()) == results

    start["raw_digest"] = "another"
    findings.choose_length(tmp_path)
    page = findings.page(json.loads(findings.RESULTS.read_text()), [])
    assert "**10 steps**" in page[page.index("## The next campaign") :]
    monkeypatch.setattr(findings, "start_of", lambda folder: start | {"curves": {}})
    with pytest.raises(SystemExit, match="no curves"):
        findings.choose_length(tmp_path)


def test_a_changed_verdict_is_listed(findings, groups):
    results = json.loads((DOCS / "findings.json").read_text())
    now = findings.verdicts(results, groups)
    claim = next(iter(now))
    results["previous"] = now | {claim: "another"}
    assert f"| {claim} | another | {now[claim]} |" in findings.changes(results, groups)
    results["previous"] = now
    assert findings.changes(results, groups) == ""


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


def write_seeds(folder, scores_by_step):
    """Write a folder of runs, with one list of dev scores a step for the seeds 1, 2, ..."""
    n_seeds = len(next(iter(scores_by_step.values())))
    facts = {"status": "finished", "objective": "mlm", "model": "m", "config": {}, "data": {}}
    for index in range(n_seeds):
        run = folder / f"seed-{index + 1}"
        run.mkdir(parents=True)
        last = list(scores_by_step.values())[-1][index]
        record = facts | {"seed": index + 1, "total_steps": 3, "trained_score": last}
        (run / "run.json").write_text(json.dumps(record))
        lines = [
            {"step": step, "dev_score": scores[index]} for step, scores in scores_by_step.items()
        ]
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / "seeds.json").write_text("{}")


def test_curves_are_read_once_all_settings_have_run(findings, tmp_path):
    for name in findings.CURVES:
        assert findings.curves_of(tmp_path) == {}
        folder = tmp_path / "findings-length-small" / name
        write_seeds(folder, {0: [0.1, 0.1], 10: [0.5, 0.6], 20: [0.7, 0.8]})
    curves = findings.curves_of(tmp_path)
    assert set(curves) == set(findings.CURVES)
    assert curves["supervised"] == {"10": [0.5, 0.6], "20": [0.7, 0.8]}


def test_a_seed_without_a_score_holds_back_those_after_it(findings, tmp_path):
    folder = tmp_path / "table-small" / "run"
    write_seeds(folder, {10: [0.5, 0.6, 0.7]})
    record = json.loads((folder / "seed-2" / "run.json").read_text())
    (folder / "seed-2" / "run.json").write_text(json.dumps(record | {"trained_score": None}))
    assert findings.values_of(tmp_path, "table/run", "dev") == [0.5]


def test_claims_are_tested_over_sentence_pairs(findings, tmp_path):
    gold = np.arange(40.0)
    noise = np.random.default_rng(0).permutation(gold)
    for name, cosine in (("good", gold), ("bad", noise)):
        for seed in (1, 2):
            path = tmp_path / "pairs" / "table" / f"{name}.seed-{seed}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_pair_scores(path, {"STSBenchmark": {"STSBenchmark": SubsetPairs(gold, cosine)}})
    groups = [{"claims": [{"comparisons": [{"runs": ["table/good", "table/bad"]}]}]}]
    found = findings.over_pairs(tmp_path, groups)["table/good > table/bad"]
    assert found["difference"] == pytest.approx(1 - stats.spearmanr(gold, noise).statistic)
    assert found["p"] == pytest.approx(2 / 2001)  # all of 2,000 resamples on one side
    assert found["n_pairs"] == 40


def test_the_raw_encoder_starts_from_fresh_layers_and_full_blocks(tmp_path):
    raw = load(RECIPES / "raw_encoder.py")
    names = [f"encoder.layer.{layer}.{part}" for layer in range(3) for part in raw_parts()]
    weights = {name: torch.full((300, 300), 7.0) for name in names if "dense.weight" in name}
    weights |= {name: torch.full((300,), 7.0) for name in names if "dense.weight" not in name}
    weights["embeddings.word_embeddings.weight"] = torch.full((5, 300), 7.0)
    kept = raw.fresh(weights, range(2), n_fresh=1, seed=1)
    assert not any(".layer.2." in name for name in kept)
    assert all((kept[name] == 7).all() for name in kept if ".layer.1." not in name)
    drawn = kept["encoder.layer.1.output.dense.weight"]
    assert float(drawn.std()) == pytest.approx(0.02, rel=0.02)
    assert not kept["encoder.layer.1.output.dense.bias"].any()
    assert (kept["encoder.layer.1.output.LayerNorm.weight"] == 1).all()
    assert not kept["encoder.layer.1.output.LayerNorm.bias"].any()
    again = raw.fresh(weights, range(2), n_fresh=1, seed=1)
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    weights["encoder.layer.2.output.dense.bias"] += 1
    upper = raw.fresh(weights, raw.layer_range("2-3"), n_fresh=0, seed=1)
    assert upper.keys() == kept.keys()
    assert (upper["encoder.layer.0.output.dense.bias"] == 7).all()
    assert (upper["encoder.layer.1.output.dense.bias"] == 8).all()
    assert list(raw.blocks(["a", "b c", "d", "e"], [1, 2, 1, 9], limit=3)) == ["a b c", "d", "e"]

    senteval = tmp_path / "downstream" / "STS" / "STS12-en-test"
    senteval.mkdir(parents=True)
    (senteval / "STS.input.MSRvid.txt").write_text("A man 's dog .\tA cat.\n")
    assert raw.key("a man's dog") in raw.evaluation_keys(tmp_path)


def raw_parts():
    return [
        f"output.{part}"
        for part in ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias")
    ]
