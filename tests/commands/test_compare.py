"""`simcse compare` end to end: tables, references, checks, tests, formats and errors."""

import csv
import io
import json
from pathlib import Path

import pytest
from scipy import stats

from comparison.cases import write_pairs, write_run, write_sts_result, write_transfer_result
from simcse_cli.comparison.published import load_table
from simcse_cli.settings.choices import STS_TASKS

UNSUPERVISED = ("--against", "simcse.5", "--row", "SimCSE-BERT-base", "--group", "unsupervised")


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """Return a result 0.3 points above the unsupervised row of Table 5 in every task."""
    row = load_table("simcse.5").system("SimCSE-BERT-base", group="unsupervised")
    scores = {task: row.scores[task] + 0.003 for task in STS_TASKS}
    return write_sts_result(tmp_path / "ours.json", scores, pooler="cls_before_pooler")


def payload(outcome) -> dict:
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(outcome.stdout)


def entries(outcome) -> dict:
    return {entry["label"]: entry for entry in payload(outcome)["entries"]}


def test_list_names_every_table(invoke) -> None:
    tables = payload(invoke("compare", "--list", "--format", "json"))["tables"]
    assert len(tables) == 54
    assert tables[0]["table"] == "simcse.1"


def test_show_gives_fractions_with_corrections_applied_and_recorded(invoke) -> None:
    table = payload(invoke("compare", "--show", "simcse.5", "--format", "json"))
    row = next(row for row in table["rows"] if row["name"] == "CT-BERT-base")
    assert row["values"]["STS-B"] == 0.7431
    assert {item["extracted"] for item in table["corrections"]} == {77.21, 73.19, 65.32}
    assert "EMNLP" in table["source"]


def test_show_prints_the_source_and_the_corrections(invoke) -> None:
    outcome = invoke("compare", "--show", "simcse.E.1")
    assert "83.37 (misread as 83.27)" in outcome.stdout
    assert "arXiv:2104.08821" in outcome.stdout


@pytest.mark.parametrize("table", ["simcse.8", "simcse.A.1", "nc.4", "nc.6", "repro.7"])
def test_show_takes_every_kind_of_table(invoke, table: str) -> None:
    for fmt in ("table", "json", "csv", "markdown", "latex"):
        assert invoke("compare", "--show", table, "--format", fmt).exit_code == 0


def test_result_against_a_published_row(invoke, result: Path) -> None:
    outcome = invoke("compare", result, *UNSUPERVISED, "--format", "json")
    found = payload(outcome)
    assert found["reference"] == "simcse.5: SimCSE-BERT-base (unsupervised)"
    assert found["measures"] == [*STS_TASKS, "average"]
    assert found["warnings"] == []
    assert entries(outcome)["ours"]["differences"]["STS12"] == pytest.approx(0.003)


def test_table_goes_to_stdout_and_warnings_to_stderr(invoke, tmp_path: Path) -> None:
    path = write_sts_result(tmp_path / "b.json", dict.fromkeys(STS_TASKS, 0.7), aggregation="wmean")
    outcome = invoke("compare", path, *UNSUPERVISED, "--details")
    assert "Difference to simcse.5: SimCSE-BERT-base (unsupervised)" in outcome.stdout
    assert "-12.41" in outcome.stdout  # STS13: 70.00 - 82.41
    assert "aggregation is all in simcse.5" in outcome.stderr
    assert "warning" not in outcome.stdout


def test_aggregation_flag_reads_the_result_as_the_row_was_measured(invoke, tmp_path: Path) -> None:
    path = write_sts_result(tmp_path / "b.json", dict.fromkeys(STS_TASKS, 0.7), aggregation="all")
    against = ("--against", "simcse.B.3", "--row", "Unsup. SimCSE-BERT-base")
    assert "aggregation" in invoke("compare", path, *against).stderr
    outcome = invoke("compare", path, *against, "--aggregation", "wmean", "--format", "json")
    assert "aggregation" not in outcome.stderr
    assert entries(outcome)["b"]["scores"]["STS12"] == pytest.approx(0.68)


@pytest.mark.parametrize(("tolerance", "code"), [("0.5", 0), ("0.3", 0), ("0.2", 3), ("0", 3)])
def test_check_exits_with_3_outside_the_tolerance(
    invoke, result: Path, tolerance: str, code: int
) -> None:
    outcome = invoke("compare", result, *UNSUPERVISED, "--check", "--tolerance", tolerance)
    assert outcome.exit_code == code
    assert "Scores" in outcome.stdout  # the table is there either way
    if code:
        assert f"8 of 8 scores are more than {tolerance} points off" in outcome.stderr
        assert "ours STS12 68.70, not 68.40" in outcome.stderr
    else:
        assert "check passed: 8 scores" in outcome.stderr


def test_check_is_recorded_in_the_json(invoke, result: Path) -> None:
    outcome = invoke(
        "compare", result, *UNSUPERVISED, "--check", "--tolerance", "0.2", "--format", "json"
    )
    assert outcome.exit_code == 3
    check = json.loads(outcome.stdout)["check"]
    assert check["tolerance"] == pytest.approx(0.002)
    assert len(check["outside"]) == check["n_checked"] == 8


def test_check_of_chosen_measures(invoke, result: Path) -> None:
    outcome = invoke(
        "compare", result, *UNSUPERVISED, "--check", "--measures", "sts-b,avg", "--format", "json"
    )
    assert payload(outcome)["measures"] == ["STSBenchmark", "average"]


def test_check_fails_without_a_score_of_a_named_measure(invoke, tmp_path: Path) -> None:
    base = write_sts_result(tmp_path / "base.json", {"STS12": 0.6, "STS13": 0.7})
    ours = write_sts_result(tmp_path / "ours.json", {"STS12": 0.6})
    assert invoke("compare", base, ours, "--check").exit_code == 0
    outcome = invoke("compare", base, ours, "--check", "--measures", "STS12,STS13")
    assert outcome.exit_code == 3
    assert "ours STS13 missing, not 70.00" in outcome.stderr


def test_check_without_reference_is_refused(invoke, result: Path) -> None:
    outcome = invoke("compare", result, "--check")
    assert outcome.exit_code == 1
    assert "--against TABLE --row NAME" in outcome.stderr


def test_whole_table_beside_a_result(invoke, result: Path) -> None:
    found = payload(invoke("compare", result, "--against", "simcse.5", "--format", "json"))
    assert len(found["entries"]) == 24
    assert found["reference"] is None


def test_row_is_looked_up_in_several_tables(invoke, result: Path) -> None:
    tables = ("--against", "simcse.5", "--against", "repro.6")
    outcome = invoke("compare", result, *tables, "--row", "SimCSE-BERT-large", "--format", "json")
    assert list(entries(outcome)) == ["repro.6: SimCSE-BERT-large", "ours"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--against", "simcse.55"), 1, "nearest: simcse.5"),
        (("--against", "simcse.5", "--row", "SimCSE-BERT-base"), 1, "--group unsupervised"),
        (
            ("--against", "simcse.5", "--row", "SimCSE-Bart-base"),
            1,
            "SimCSE-BERT-base (unsupervised)",
        ),
        (("--row", "SimCSE-BERT-base"), 2, "--against"),
        (("--measures", "STS99"), 1, "did you mean"),
        (("--baseline", "nobody"), 1, "need one of ours"),
    ],
)
def test_mistakes_name_the_fix(
    invoke, result: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    outcome = invoke("compare", result, *arguments)
    assert outcome.exit_code == code
    assert message in " ".join(outcome.stderr.split())


def test_missing_file_is_named(invoke, tmp_path: Path) -> None:
    outcome = invoke("compare", tmp_path / "gone.json")
    assert outcome.exit_code == 1
    assert "gone.json does not exist" in outcome.stderr


def test_result_from_standard_input(invoke, result: Path) -> None:
    outcome = invoke(
        "compare", "ours=-", *UNSUPERVISED, "--format", "json", input=result.read_text()
    )
    assert "ours" in entries(outcome)


def test_seeds_of_one_setting_get_mean_and_deviation(invoke, tmp_path: Path) -> None:
    for seed, score in ((1, 0.80), (2, 0.82)):
        write_run(tmp_path / "runs" / f"seed-{seed}", seed=seed, best_score=score)
    items = ("compare", tmp_path / "runs", "--against", "simcse.3", "--row", "p=0.1")
    text = invoke(*items).stdout
    (line,) = (line for line in text.splitlines() if line.startswith("runs (mean of 2)"))
    assert "81.00 ± 1.41" in line
    assert "seed-1" not in text  # one table of systems
    assert "Difference" not in text
    latex = invoke(*items, "--format", "latex").stdout
    assert latex.count(r"\begin{table}") == 1
    assert r"81.00 $\pm$ 1.41" in latex
    header, *_, row = csv.reader(io.StringIO(invoke(*items, "--format", "csv").stdout))
    assert header[1:3] == ["STS-B dev", "STS-B dev deviation"]
    assert [float(each) for each in row[1:3]] == pytest.approx([0.81, 0.0002**0.5])

    details = invoke(*items, "--details").stdout
    assert "runs/seed-1" in details
    (difference,) = (line for line in details.splitlines() if line.endswith("-1.50"))
    assert difference.startswith("runs (mean of 2)")  # 81.00 - 82.50


def test_a_verdict_in_words_is_under_the_table(invoke, tmp_path: Path) -> None:
    for name, noise in (("weak", 0.6), ("strong", 0.1), ("same", 0.6)):
        write_sts_result(tmp_path / f"{name}.json", {"STS12": 0.7})
        write_pairs(tmp_path / f"{name}.pairs.jsonl", noise=noise)
    files = [tmp_path / f"{name}.json" for name in ("weak", "same", "strong")]
    test = payload(invoke("compare", *files, "--format", "json"))["tests"][1]
    low, high = (f"{100 * test[end]:.1f}" for end in ("low", "high"))
    text = " ".join(invoke("compare", *files).stdout.split())
    words = "no difference from weak that 400 pairs could show (STS12, p = 1, holm over 2 tests)"
    assert f"same: {words}" in text
    assert f"strong: better than weak by {low} to {high} points (STS12, p = 0.002" in text


def test_cost_shows_what_runs_were_computed_on_and_took(invoke, tmp_path: Path) -> None:
    for name, hardware in (
        ("cpu", {"processor": "Xeon", "cores": 8}),
        ("cuda", {"processor": "x", "gpu": "H200"}),
    ):
        path = write_run(tmp_path / name) / "run.json"
        facts = {
            "device": name,
            "precision": "bf16",
            "hardware": hardware,
            "peak_memory_bytes": 3 * 2**29,
        }
        timings = {"hours": 0.25, "train_s": 800.0, "sentences_per_second": 120.5}
        path.write_text(json.dumps(json.loads(path.read_text()) | facts | {"timings": timings}))
    write_run(tmp_path / "older")
    runs = [tmp_path / name for name in ("cpu", "cuda", "older")]
    outcome = invoke("compare", *runs, "--cost")
    table = outcome.stdout[outcome.stdout.index("Cost") :]
    for text in ("Xeon, 8 cores", "H200", "bf16", "1.5", "120.5", "0.25"):
        assert text in table
    assert (
        payload(invoke("compare", *runs, "--cost", "--format", "json"))["cost"]["cuda"]["hours"]
        == 0.25
    )
    assert "Cost" not in invoke("compare", *runs).stdout


def test_two_runs_show_the_settings_that_differ(invoke, tmp_path: Path) -> None:
    write_run(tmp_path / "a", lr=3e-5)
    write_run(tmp_path / "b", lr=1e-5, best_score=0.81)
    found = payload(invoke("compare", tmp_path / "a", tmp_path / "b", "--format", "json"))
    assert found["changed_settings"] == [{"key": "lr", "before": 3e-5, "after": 1e-5}]
    assert found["reference"] == "a"


def test_baseline_may_be_one_more_run(invoke, tmp_path: Path) -> None:
    write_run(tmp_path / "a", best_score=0.80)
    write_run(tmp_path / "b", lr=1e-5, best_score=0.81)
    outcome = invoke("compare", tmp_path / "b", "--baseline", tmp_path / "a", "--format", "json")
    assert payload(outcome)["reference"] == "a"
    assert entries(outcome)["b"]["differences"]["STSBenchmark-dev"] == pytest.approx(0.01)


def test_saved_pairs_are_tested_and_the_changed_ones_shown(invoke, tmp_path: Path) -> None:
    for name, noise in (("weak", 0.6), ("strong", 0.1), ("same", 0.6)):
        write_sts_result(tmp_path / f"{name}.json", {"STS12": 0.7})
        write_pairs(tmp_path / f"{name}.pairs.jsonl", noise=noise)
    files = [tmp_path / f"{name}.json" for name in ("weak", "same", "strong")]
    found = payload(
        invoke("compare", *files, "--resamples", "300", "--examples", "2", "--format", "json")
    )
    tests = {test["candidate"]: test for test in found["tests"]}
    assert tests["same"]["p_value"] == tests["same"]["p_corrected"] == 1.0
    assert tests["strong"]["p_value"] == pytest.approx(2 / 301)
    assert tests["strong"]["p_corrected"] == pytest.approx(4 / 301)  # Holm over two tests
    assert len(found["changed_pairs"]) == 2
    assert found["changed_pairs"][0]["left"].startswith("MSR")
    none = ("--resamples", "20", "--details", "--examples", "0")
    text = invoke("compare", *files, *none).stdout
    assert "Paired tests against weak" in text
    assert "Pairs that changed most" not in text


@pytest.fixture
def transfer_results(tmp_path: Path) -> list[Path]:
    """Return a baseline that misses ten examples of MR and CR, and a better model that misses one other of MR."""
    return [
        write_transfer_result(tmp_path / "base.json", {"MR": range(10), "CR": range(10)}),
        write_transfer_result(tmp_path / "better.json", {"MR": [20], "CR": range(10)}),
    ]


def test_saved_predictions_are_tested_with_bootstrap_and_mcnemar(invoke, transfer_results) -> None:
    found = payload(invoke("compare", *transfer_results, "--format", "json"))
    tests = {test["measure"]: test for test in found["tests"]}
    assert list(tests) == ["MR", "CR", "transfer-average"]
    mr = tests["MR"]
    assert (mr["n_only_candidate"], mr["n_only_baseline"], mr["n_pairs"]) == (10, 1, 40)
    assert mr["difference"] == pytest.approx(9 / 40)
    assert mr["p_mcnemar"] == pytest.approx(stats.binomtest(1, 11).pvalue)
    assert mr["p_mcnemar_corrected"] == pytest.approx(2 * mr["p_mcnemar"])  # Holm over two tasks
    assert tests["CR"]["p_mcnemar"] == tests["CR"]["p_corrected"] == 1.0
    assert "p_mcnemar" not in tests["transfer-average"]
    assert tests["transfer-average"]["difference"] == pytest.approx(9 / 80)


def test_changed_predictions_are_shown_with_their_sentences(invoke, transfer_results) -> None:
    text = invoke("compare", *transfer_results, "--examples", "2", "--details").stdout
    assert "Paired tests of accuracy against base" in text
    assert "McNemar: exact, two-sided; holm correction, tests: 2" in text
    rows = [line for line in text.splitlines() if "MR sentence" in line]
    assert ["MR sentence 0" in rows[0], "MR sentence 20" in rows[1], len(rows)] == [True, True, 2]
    found = payload(invoke("compare", *transfer_results, "--examples", "1", "--format", "json"))
    assert found["changed_predictions"] == [
        {
            **{"task": "MR", "index": 0, "gold": 0, "predicted_before": 1, "predicted_after": 0},
            **{"left": "MR sentence 0", "right": "", "is_gain": True},
        }
    ]


def test_sts_and_transfer_tests_are_corrected_together(
    invoke, transfer_results, tmp_path: Path
) -> None:
    items = [f"{path.stem}={path}" for path in transfer_results]
    for name, noise in (("base", 0.6), ("better", 0.1)):
        items.append(f"{name}={write_sts_result(tmp_path / f'{name}-sts.json', {'STS12': 0.7})}")
        write_pairs(tmp_path / f"{name}-sts.pairs.jsonl", noise=noise)
    found = payload(invoke("compare", *items, "--resamples", "999", "--format", "json"))
    tests = {test["measure"]: test for test in found["tests"]}
    assert list(tests) == ["STS12", "MR", "CR", "transfer-average"]
    assert {test["baseline"] for test in tests.values()} == {"base"}
    assert tests["STS12"]["p_corrected"] == pytest.approx(4 * tests["STS12"]["p_value"])


def test_predictions_of_other_data_are_not_tested(invoke, tmp_path: Path) -> None:
    files = [write_transfer_result(tmp_path / f"{n}.json", {"MR": [0]}, n=n) for n in (30, 40)]
    outcome = invoke("compare", *files, "--format", "json")
    assert "40 and 30 have no saved scores of the same examples: not tested" in outcome.stderr
    assert payload(outcome)["tests"] == payload(outcome)["changed_predictions"] == []


def test_front_is_marked(invoke, tmp_path: Path) -> None:
    write_sts_result(tmp_path / "a.json", {"STS12": 0.7, "STS13": 0.8})
    write_sts_result(tmp_path / "b.json", {"STS12": 0.6, "STS13": 0.7})
    outcome = invoke("compare", tmp_path / "a.json", tmp_path / "b.json", "--pareto", "STS12,STS13")
    rows = [line for line in outcome.stdout.splitlines() if line.startswith(("a ", "b "))]
    assert rows[0].endswith("*")
    assert not rows[1].endswith("*")


def test_every_format_holds_the_scores(invoke, result: Path) -> None:
    for fmt, expected in (
        ("csv", "0.687"),
        ("markdown", "| 68.70 |"),
        ("latex", "68.70 &"),
        ("table", " 68.70 "),
    ):
        outcome = invoke("compare", result, *UNSUPERVISED, "--format", fmt)
        assert outcome.exit_code == 0
        assert expected in outcome.stdout
    table = list(csv.reader(io.StringIO(invoke("compare", result, "--format", "csv").stdout)))
    assert table[0][:2] == ["system", "STS12"]


def test_output_file_is_not_overwritten_unasked(invoke, result: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    assert invoke("compare", result, "-o", target).exit_code == 0
    assert json.loads(target.read_text())["entries"][0]["label"] == "ours"
    outcome = invoke("compare", result, "-o", target)
    assert outcome.exit_code == 1
    assert "--force" in outcome.stderr


def test_show_displays_settings_and_queries_where_a_table_has_no_figures(invoke):
    protocols = invoke("compare", "--show", "simcse.B.1", "--format", "csv").stdout.splitlines()
    assert protocols[0] == "row,regressor,metric,aggregation,protocol"
    assert "Giorgi et al. 2021,no,Spearman,mean,declutr" in protocols
    retrieval = invoke("compare", "--show", "simcse.8").stdout
    assert "A dog runs on the green grass near a wooden fence." in " ".join(retrieval.split())


def test_sweep_stands_beside_the_rows_of_the_scan(invoke, tmp_path):
    path = tmp_path / "sweep.json"
    quantiles = {"max": 0.8, "q75": 0.78, "q50": 0.75}
    path.write_text(
        json.dumps({"suite": "sweep", "dev_suite": "file", "quantiles": quantiles, "trials": []})
    )
    rows = [f"VICReg, BERT-base, {name}, shuffle 0.3" for name in quantiles]
    chosen = [part for row in rows for part in ("--row", row)]
    result = invoke("compare", f"cell={path}", "--against", "nc.1", *chosen, "--format", "json")
    assert result.exit_code == 0, result.stderr
    own = [entry for entry in json.loads(result.stdout)["entries"] if entry["kind"] == "result"]
    assert [(entry["label"], entry["scores"]["STSBenchmark-dev"]) for entry in own] == [
        ("cell, max", 0.8),
        ("cell, q75", 0.78),
        ("cell, q50", 0.75),
    ]


def test_sweep_is_named_after_its_own_dev_file(invoke, tmp_path):
    path = tmp_path / "sweep.json"
    facts = {"suite": "sweep", "dev_suite": "file", "quantiles": {"max": 0.8}, "trials": []}
    measures = {"in-house.tsv": "in-house-dev", "x/sts-dev.csv": "STSBenchmark-dev"}
    for file, measure in measures.items():
        path.write_text(json.dumps(facts | {"dev_file": file}))
        result = invoke("compare", path, "--format", "json")
        assert json.loads(result.stdout)["entries"][0]["scores"] == {measure: 0.8}
