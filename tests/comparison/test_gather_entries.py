"""From files and options to a comparison, its tables and its JSON."""

import json
from pathlib import Path

import numpy as np
import pytest

from comparison.cases import entry, write_pairs, write_run, write_sts_result, write_transfer_result
from simcse_cli.comparison.compare import compare, comparison_tables, cost_table, gather
from simcse_cli.comparison.entries import EntryKind
from simcse_cli.comparison.join import Comparison, join
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.errors import ConfigError, DataError, UsageError
from simcse_cli.progress import SILENT, SilentProgress
from simcse_cli.settings.declare import build_options

ROWS = ["SBERT-base", "SimCSE-RoBERTa-large (supervised)"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, score in (("a", 0.7), ("b", 0.8), ("c", 0.9)):
        write_sts_result(tmp_path / f"{name}.json", {"STS12": score})
    return tmp_path


@pytest.mark.parametrize(
    ("items", "options", "labels", "reference"),
    [
        (["a.json"], {}, ["a"], None),
        (["a.json", "b.json"], {}, ["a", "b"], "a"),
        (["a.json", "b.json"], {"baseline": "b"}, ["a", "b"], "b"),
        (["a.json", "b.json"], {"baseline": "b.json"}, ["a", "b"], "b"),
        (["a.json"], {"baseline": "b.json"}, ["b", "a"], "b"),
        (["a.json", "ours=b.json"], {"baseline": "b.json"}, ["a", "ours"], "ours"),
        (["a.json", "x/y=b.json"], {"baseline": "x/y"}, ["a", "x/y"], "x/y"),
        (["a.json", "y=b.json"], {"baseline": "x/y"}, ["a", "y"], "y"),
        (["x=a.json", "x=b.json"], {}, ["x [1]", "x [2]", "x (mean of 2)"], None),
        (
            ["x=a.json", "x=b.json"],
            {"baseline": "r/x"},
            ["x [1]", "x [2]", "x (mean of 2)"],
            "x (mean of 2)",
        ),
        (
            ["x=a.json", "x=b.json", "c.json"],
            {},
            ["x [1]", "x [2]", "x (mean of 2)", "c"],
            "x (mean of 2)",
        ),
        (
            ["a.json", "b.json"],
            {"against": ["simcse.5"], "row": ROWS[:1]},
            [ROWS[0], "a", "b"],
            ROWS[0],
        ),
        (["a.json", "b.json"], {"against": ["simcse.5"], "row": ROWS}, [*ROWS, "a", "b"], None),
        (
            ["a.json"],
            {"against": ["simcse.5"], "row": ROWS[:1], "baseline": "b.json"},
            [ROWS[0], "b", "a"],
            "b",
        ),
    ],
)
def test_the_reference_is_the_baseline_or_the_only_row_or_the_first(
    folder, items, options, labels, reference
) -> None:
    found = gather(items, CompareOptions(**options))
    plain = [
        each.label.removeprefix("simcse.5: ").removesuffix(" (supervised)")
        for each in found.entries
    ]
    assert plain == [label.removesuffix(" (supervised)") for label in labels]
    name = found.reference and found.reference.label.removeprefix("simcse.5: ").removesuffix(
        " (supervised)"
    )
    assert name == reference


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        (
            [],
            {"against": ["simcse.5"]},
            "RUN_OR_RESULT: name at least one run folder or result file",
        ),
        (["a.json"], {"row": ["SBERT"]}, "--row: name the table of the row with --against"),
        (["a.json", "b.json"], {"baseline": "z"}, "--baseline z: no such entry, need one of a, b"),
        (
            ["a.json"],
            {"against": ["simcse.5", "repro.6"], "row": ["qqqq"]},
            "simcse.5 has no row 'qqqq'",
        ),
    ],
)
def test_what_cannot_be_gathered_is_named(folder, items, options, message) -> None:
    with pytest.raises((ConfigError, UsageError)) as caught:
        gather(items, CompareOptions(**options))
    assert str(caught.value) == message


def test_a_run_or_result_that_is_named_twice_is_no_second_seed(folder) -> None:
    for seed in (1, 2):
        write_run(folder / f"seeds/seed-{seed}", seed=seed)
    for items in (
        ["seeds/seed-1", "./seeds/seed-1"],
        ["x=seeds/seed-1", "y=seeds/seed-1"],
        ["seeds", "seeds/seed-1"],
        ["a.json", "a.json"],
        ["x=a.json", "b.json", "x=a.json"],
    ):
        message = f"^RUN_OR_RESULT: {items[-1]} is named twice, and would count as two seeds"
        with pytest.raises(UsageError, match=message):
            gather(items, CompareOptions())
    # A result under two labels is two systems.
    found = gather(["x=a.json", "y=a.json"], CompareOptions())
    assert [entry.label for entry in found.entries] == ["x", "y"]
    # A baseline in a folder of seeds is one of them.
    found = gather(["seeds"], CompareOptions(baseline="seeds/seed-2"))
    labels = ["seeds/seed-1", "seeds/seed-2", "seeds (mean of 2)"]
    assert [entry.label for entry in found.entries] == labels
    assert found.reference is found.entries[1]


def test_rows_are_looked_up_in_every_table_and_columns_by_heading(folder) -> None:
    tables = ["simcse.5", "repro.6"]
    found = gather(
        ["a.json"],
        CompareOptions(against=tables, row=["SimCSE-BERT-large", "SBERT-base"], measures="sts-12"),
    )
    assert [each.label for each in found.entries] == [
        "repro.6: SimCSE-BERT-large",
        "simcse.5: SBERT-base (supervised)",
        "a",
    ]
    assert found.measures == ("STS12",)
    assert len(gather(["a.json"], CompareOptions(against=tables)).entries) > 25
    assert gather(["a.json", "b.json"], CompareOptions(pareto="STS12")).front == {"b"}


def test_everything_found_is_in_the_json_and_the_tables(folder) -> None:
    for name in ("a", "b"):
        write_pairs(folder / f"{name}.pairs.jsonl", noise={"a": 0.5, "b": 0.1}[name], n=20)
        write_transfer_result(folder / f"{name}-t.json", {"MR": [0]})
        write_run(folder / f"run-{name}", lr={"a": 1.0, "b": 2.0}[name])
    items = [
        f"{name}={path}"
        for name in "ab"
        for path in (f"run-{name}", f"{name}.json", f"{name}-t.json")
    ]
    options = CompareOptions(
        resamples=20, examples=1, details=True, check=True, tolerance=20.0, cost=True
    )
    progress = SilentProgress()
    found = compare(items, options, progress)
    assert list(found.payload) == [
        *("reference", "measures", "pareto_measures", "warnings", "entries", "tests", "cost"),
        *("changed_settings", "changed_pairs", "changed_predictions", "check"),
    ]
    assert [report.title for report in found.reports] == [
        *(
            "Scores",
            "Difference to a",
            "Paired tests against a",
            "Paired tests of accuracy against a",
        ),
        *("Cost", "Settings that differ", "Pairs that changed most"),
    ]
    payload = found.payload
    assert payload["reference"] == "a"
    assert payload["measures"] == [
        "STS12",
        "STSBenchmark-dev",
        "average",
        "MR",
        "transfer-average",
        "transfer-average-dev",
        "alignment",
        "uniformity",
    ]
    assert payload["pareto_measures"] == ["average", "transfer-average", "alignment", "uniformity"]
    assert payload["warnings"] == progress.warnings
    assert [test["measure"] for test in payload["tests"]] == ["STS12", "MR"]
    assert payload["changed_settings"] == [{"key": "lr", "before": 1.0, "after": 2.0}]
    assert (len(payload["changed_pairs"]), payload["changed_predictions"]) == (1, [])
    assert (
        payload["check"]
        == found.check.to_json()
        == {"tolerance": 0.2, "n_checked": 6, "outside": []}
    )
    assert list(payload["cost"]) == ["a", "b"]
    plain = compare(["a.json"], CompareOptions(), SILENT)
    assert (plain.payload["reference"], plain.check, len(plain.reports)) == (None, None, 1)
    assert not {"cost", "check"} & plain.payload.keys()


def test_an_entry_in_the_json_has_the_measures_of_the_table(folder) -> None:
    path = folder / "a.json"
    content = json.loads(path.read_text())
    content["tasks"]["STS12"]["ci"] = {"low": 0.6, "high": 0.8}
    path.write_text(json.dumps(content | {"average_ci": {"low": 0.5, "high": 0.9}}))
    items = ["x=a.json", "x=b.json", "c.json"]
    found = compare(
        items, CompareOptions(measures="STS12,seconds", pareto="STS12,seconds"), SILENT
    ).payload
    single, _, mean, other = found["entries"]
    settings = {"metric": "spearman", "aggregation": "all", "split": "test", "pooler": "avg"}
    assert single == {
        **{
            "label": "x [1]",
            "kind": "result",
            "source": "a.json",
            "seed": None,
            "settings": settings,
        },
        "scores": {"STS12": 0.7, "seconds": 2.0},
        "differences": {"STS12": pytest.approx(-0.05), "seconds": 0.0},
        **{"intervals": {"STS12": [0.6, 0.8]}, "deviations": {}, "members": [], "on_front": False},
    }
    assert mean["deviations"] == {"STS12": pytest.approx(0.1 / 2**0.5), "seconds": 0.0}
    assert (mean["kind"], mean["members"], mean["on_front"]) == ("mean", ["x [1]", "x [2]"], False)
    assert other["on_front"]
    assert compare(["a.json"], CompareOptions(), SILENT).payload["entries"][0]["on_front"] is None


def test_an_average_says_of_what_where_its_tasks_are_not_shown() -> None:
    scores = {"STS12": 0.5, "STS13": 0.7, "average": 0.6}
    both = [entry("a", scores=scores), entry("b", scores=scores)]
    (alone, *_) = comparison_tables(join(both, reference=None, measures=["average"]))
    assert alone.notes == ["Avg.: mean of STS12, STS13"]
    (whole, *_) = comparison_tables(join(both, reference=None))
    assert whole.notes == []
    more = entry("more", scores={**scores, "STS14": 0.9, "average": 0.7})
    (levelled, *_) = comparison_tables(join([*both, more], reference=both[0]))
    assert levelled.notes == []  # the average of all is that of the tasks with columns


def test_tables_of_scores_and_differences() -> None:
    base = entry("base", scores={"STS12": 0.5, "STSBenchmark-dev": 0.5, "alignment": 0.25})
    ours = entry(
        "ours",
        scores={"STS12": 0.625, "alignment": 0.125, "seconds": 2.0},
        intervals={"STS12": (0.6, 0.7), "MR": (0.1, 0.2)},
        deviations={"alignment": 0.01},
        members=("m",),
        kind=EntryKind.MEAN,
    )
    comparison = join([base, ours], reference=base, pareto_measures=["STS12", "alignment"])
    scores, differences = comparison_tables(comparison)
    assert [column.heading for column in scores.columns] == [
        "system",
        "STS12",
        "STS-B dev",
        "alignment",
        "Pareto",
    ]
    assert scores.cells() == [
        ["base", "50.00", "50.00", "0.250", ""],
        ["ours", "62.50", "–", "0.125 ± 0.01", "*"],
        ["  95% low", "60.00", "–", "–", ""],
        ["  95% high", "70.00", "–", "–", ""],
    ]
    assert scores.notes == [
        "* no other line is at least as good in all of STS12, alignment and better in one",
        "95% low and high: interval over the examples, not over training seeds",
        "±: sample standard deviation over the members (n - 1)",
    ]
    assert differences.title == "Difference to base"
    assert [column.heading for column in differences.columns] == ["system", "STS12", "alignment"]
    assert differences.cells() == [["ours", "+12.50", "-0.125"]]
    more = entry("more", scores={"STS12": 0.5})
    (_, differences) = comparison_tables(join([base, ours, more], reference=base))
    assert differences.cells() == [["ours", "+12.50", "-0.125"], ["more", "0.00", "–"]]
    (alone,) = comparison_tables(Comparison((base, ours), ("MR",)))
    assert alone.cells() == [
        ["base", "–"],
        ["ours", "–"],
        ["  95% low", "10.00"],
        ["  95% high", "20.00"],
    ]


def test_cost_names_the_gpu_or_the_processor() -> None:
    shared = {
        "precision": "bf16",
        "n_processes": 2,
        "sentences_per_second": 10.0,
        "hours": 0.5,
        "started": "now",
    }
    parts = [
        ({"processor": "Xeon", "cores": 8, "gpu": "H200"}, 3 * 2**29),
        ({"processor": "Xeon", "cores": 8}, None),
        ({}, None),
    ]
    runs = [
        entry(str(i), cost=shared | {"hardware": hardware, "peak_memory_bytes": peak})
        for i, (hardware, peak) in enumerate(parts)
    ]
    report = cost_table([*runs, entry("result")])
    headings = [
        "system",
        "hardware",
        "precision",
        "processes",
        "peak GiB",
        "sentences/s",
        "hours",
        "started",
    ]
    assert [column.heading for column in report.columns] == headings
    assert [row[:5] for row in report.cells()] == [
        ["0", "H200", "bf16", "2", "1.5"],
        ["1", "Xeon, 8 cores", "bf16", "2", "–"],
        ["2", "–", "bf16", "2", "–"],
    ]


def test_a_million_resamples_are_the_most() -> None:
    (options,) = build_options({"resamples": 1_000_000}, CompareOptions, place="here")
    assert options.resamples == 1_000_000
    with pytest.raises(ConfigError, match="need at most 1,000,000"):
        build_options({"resamples": 1_000_001}, CompareOptions, place="here")


def test_folders_of_one_name_are_told_apart_and_runs_of_one_seed_are_not_merged(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for folder in ("base", "repeat"):
        for seed in (1, 2):
            write_run(tmp_path / folder / f"seed-{seed}", seed=seed)
    found = gather(["base/seed-1", "repeat/seed-1"], CompareOptions())
    assert [entry.label for entry in found.entries] == ["base/seed-1", "repeat/seed-1"]
    found = gather(["base", "repeat"], CompareOptions())
    assert [entry.label for entry in found.entries if entry.members] == [
        "base (mean of 2)",
        "repeat (mean of 2)",
    ]


def test_seeds_of_folders_and_of_result_files_have_the_same_deviation_of_the_average(
    folder,
) -> None:
    scores = {1: (0.70, 0.80), 2: (0.72, 0.86), 3: (0.77, 0.81)}
    files = []
    for seed, values in scores.items():
        tasks = dict(zip(("STS12", "STS13"), values, strict=True))
        run = write_run(folder / f"runs/seed-{seed}", seed=seed)
        write_sts_result(run / "sts.json", tasks)
        files.append(f"runs={write_sts_result(folder / f'{seed}.json', tasks)}")
    wanted = CompareOptions(measures="STS12,Avg.")
    from_folder = gather(["runs"], wanted).entries[-1]
    from_files = gather(files, wanted).entries[-1]
    expected = np.std([np.mean(values) for values in scores.values()], ddof=1)
    for found in (from_folder, from_files):
        assert found.label == "runs (mean of 3)"
        assert found.deviations["average"] == pytest.approx(expected, rel=1e-12)
    # Beside a system that lacks a task, the average has the deviation over what is left.
    rows = gather(["runs", "a.json"], CompareOptions(measures="STS12")).entries
    assert rows[3].deviations["STS12"] == pytest.approx(np.std([0.70, 0.72, 0.77], ddof=1))


@pytest.mark.parametrize("baseline", ["b", "b.json"])
def test_a_baseline_is_the_same_system_by_label_and_by_path(folder, baseline) -> None:
    for name, noise in (("a", 0.1), ("b", 0.5)):
        write_pairs(folder / f"{name}.pairs.jsonl", noise=noise, n=20)
    options = CompareOptions(baseline=baseline, resamples=20, details=True)
    found = compare(["a.json", "b.json"], options, SILENT)
    named = compare(["a.json", "b.json"], CompareOptions(baseline="b", resamples=20), SILENT)
    assert found.payload == named.payload
    assert {test["baseline"] for test in found.payload["tests"]} == {"b"}


@pytest.mark.parametrize("spelling", ["runs/one/", "./runs/one", "{folder}/runs/one"])
def test_a_baseline_is_one_entry_however_its_path_is_spelt(folder, spelling) -> None:
    write_run(folder / "runs/one")
    write_run(folder / "runs/two", lr=1e-5)
    options = CompareOptions(baseline=spelling.format(folder=folder))
    found = gather(["runs/one", "runs/two"], options)
    assert [entry.label for entry in found.entries] == ["one", "two"]
    assert found.reference is found.entries[0]


def test_a_baseline_of_seeds_with_the_settings_of_another_run_is_no_system_of_its_own(folder):
    for name, seed in (("many/seed-1", 1), ("many/seed-2", 2), ("single", 3)):
        write_run(folder / name, seed=seed)
    for items in (["single"], ["many", "single"], ["single", "many"]):
        with pytest.raises(ConfigError, match="many: its runs have the settings of single, "):
            gather(items, CompareOptions(baseline="many"))


def test_a_baseline_of_seeds_in_a_result_file_is_their_mean_by_label_and_by_path(folder) -> None:
    for name in "ab":
        runs = [
            json.loads((folder / f"{each}.json").read_text()) | {"seed": seed}
            for seed, each in enumerate("abc")
        ]
        (folder / f"seeds-{name}.json").write_text(json.dumps({"suite": "sts", "runs": runs}))
    for baseline in ("seeds-b", "seeds-b.json"):
        found = gather(["seeds-a.json", "seeds-b.json"], CompareOptions(baseline=baseline))
        assert found.reference is not None
        assert found.reference.label == "seeds-b (mean of 3)"


def test_result_files_of_one_name_in_two_folders_are_two_systems(folder) -> None:
    for name, score in (("base", 0.7), ("new", 0.8)):
        (folder / name).mkdir()
        write_sts_result(folder / name / "sts.json", {"STS12": score})
    found = gather(["base/sts.json", "new/sts.json"], CompareOptions(baseline="base/sts.json"))
    assert [each.label for each in found.entries] == ["base/sts", "new/sts"]
    assert found.reference is found.entries[0]
    # One label asks for one system.
    found = gather(["x=base/sts.json", "x=new/sts.json"], CompareOptions())
    assert found.entries[-1].label == "x (mean of 2)"


def test_folders_with_an_equals_sign_are_told_apart_and_taken_once(folder) -> None:
    for name, score in (("base", 0.7), ("new", 0.8)):
        write_run(folder / name / "lr=1", best_score=score, lr=score)
    found = gather(["base/lr=1", "new/lr=1"], CompareOptions())
    assert [each.label for each in found.entries][:2] == ["base/lr=1", "new/lr=1"]
    for baseline in ("base/lr=1", "base/lr=1/", str(folder / "base/lr=1")):
        found = gather(["base/lr=1", "new=new/lr=1"], CompareOptions(baseline=baseline))
        assert [each.label for each in found.entries][:2] == ["lr=1", "new"]
        assert found.reference is found.entries[0]
    found = gather(["x (t=0.05)=a.json", "b.json"], CompareOptions())
    assert [each.label for each in found.entries] == ["x (t=0.05)", "b"]
    message = r"^0.05\)=no.json does not exist; in 'x \(t=0.05\)=no.json', the label is 'x \(t'"
    with pytest.raises(DataError, match=message):
        gather(["x (t=0.05)=no.json"], CompareOptions())
    found = gather(["y=a.json", "b.json"], CompareOptions(baseline=str(folder / "a.json")))
    assert [each.label for each in found.entries] == ["y", "b"]


def test_a_run_that_is_being_replaced_is_not_compared(folder) -> None:
    for place, lr in (("one", 1e-5), ("two", 2e-5), ("two/.earlier", 3e-5)):
        write_run(folder / "runs" / place, lr=lr)
    found = gather(["runs"], CompareOptions())
    assert [entry.label for entry in found.entries] == ["runs/one", "runs/two"]
