"""A folder of several seeds wherever a model is judged: every seed, mean and deviation, or the one that is named."""

import json
from pathlib import Path
from statistics import fmean, stdev

import pytest

from comparison.cases import write_run
from helpers import SENTENCES, build_tiny_model
from simcse_cli.analysis.analyses import SPACE_ANALYSES


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a folder as `simcse train --seeds 1,2` leaves it, with untrained models."""
    for seed in (1, 2):
        run = write_run(tmp_path / "runs" / f"seed-{seed}", seed=seed, best_score=0.8 + 0.02 * seed)
        build_tiny_model(run / "model", seed=seed)
    (tmp_path / "runs" / "seeds.json").write_text("{}")
    return tmp_path / "runs"


def result_of(outcome):
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(outcome.stdout)


def test_eval_of_seeds_gives_mean_and_deviation_and_compare_reads_them(
    invoke, runs, sts_folder, tmp_path
):
    suite = (
        "--data-dir",
        sts_folder,
        "--pooler",
        "avg",
        "--tasks",
        "STS12,STSBenchmark",
        "--format",
        "json",
    )
    single = [
        result_of(invoke("eval", "sts", "--model", runs / f"seed-{n}", *suite)) for n in (1, 2)
    ]
    saved, output = tmp_path / "pairs.jsonl", runs / "sts.json"
    outcome = invoke(
        "eval", "sts", "--model", runs, *suite, "--ci", "--save-scores", saved, "-o", output
    )
    assert outcome.exit_code == 0, outcome.stderr
    found = json.loads(output.read_text())
    assert (found["model"], found["seeds"], found["suite"]) == (str(runs), [1, 2], "sts")
    assert [run["seed"] for run in found["runs"]] == [1, 2]
    for get in (
        lambda each: each["average"],
        lambda each: each["tasks"]["STS12"]["score"],
        lambda each: each["tasks"]["STSBenchmark"]["pearson"]["wmean"],
    ):
        values = [get(each) for each in single]
        assert get(found) == pytest.approx(fmean(values))
        assert get(found["deviation"]) == pytest.approx(stdev(values))
    assert found["tasks"]["STS12"]["n_pairs"] == single[0]["tasks"]["STS12"]["n_pairs"]
    assert {"ci", "model_digest", "pair_scores"}.isdisjoint(found | found["tasks"]["STS12"])
    for seed in (1, 2):
        assert f"wrote {tmp_path / f'pairs.seed-{seed}.jsonl'}\n" in outcome.stderr
        assert (tmp_path / f"pairs.seed-{seed}.jsonl").is_file()
    assert f"next: simcse compare {runs}\n" in outcome.stderr

    for item in (runs, output):
        entries = result_of(invoke("compare", f"ours={item}", "--format", "json"))["entries"]
        assert [entry["label"] for entry in entries] == [
            "ours [seed 1]",
            "ours [seed 2]",
            "ours (mean of 2)",
        ]
        assert entries[2]["scores"]["STS12"] == pytest.approx(found["tasks"]["STS12"]["score"])
        assert entries[2]["deviations"]["average"] == pytest.approx(found["deviation"]["average"])
    assert [
        entry["scores"]["STSBenchmark-dev"] for entry in entries_of(invoke, runs)[:2]
    ] == pytest.approx([0.82, 0.84])

    table = invoke("eval", "sts", "--model", runs, *suite[:-1], "table").stdout
    assert f"{runs} (mean of 2)" in table
    assert "  deviation" in table


def test_runs_that_are_not_complete_or_keep_the_untrained_model_are_told(
    invoke, runs, sts_folder, tmp_path
):
    third = write_run(runs / "seed-3", seed=3, best_step=0, status="interrupted")
    build_tiny_model(third / "model", seed=3)
    suite = ("--data-dir", sts_folder, "--pooler", "avg", "--tasks", "STSBenchmark")
    of_seeds = invoke("eval", "sts", "--model", runs, *suite).stderr
    assert "warning: 1 of 3 seeds of " in of_seeds
    assert f"{runs} keeps the untrained model (best at step 0)\n" in of_seeds
    unfinished = f"warning: {third} is interrupted, step 20 of 20\n"
    assert of_seeds.count(unfinished) == 1
    of_one = invoke("eval", "sts", "--model", third, *suite).stderr
    assert f"warning: {third} keeps the untrained model (best at step 0)\n" in of_one
    assert unfinished in of_one
    (tmp_path / "lines.txt").write_text("a line\nanother line\n")
    encode = ("encode", tmp_path / "lines.txt", "--pooler", "avg", "-o")
    assert unfinished in invoke(*encode, tmp_path / "3.npy", "--model", third).stderr
    complete = invoke(*encode, tmp_path / "1.npy", "--model", runs / "seed-1").stderr
    assert "warning" not in complete


def entries_of(invoke, item):
    return result_of(invoke("compare", item, "--format", "json"))["entries"]


def test_transfer_of_seeds_has_a_mean_of_test_and_of_dev(invoke, runs, tmp_path):
    from helpers import write_transfer_folder

    data = write_transfer_folder(tmp_path / "data", n_good=20, n_bad=20)
    outcome = invoke(
        *(
            "eval",
            "transfer",
            "--model",
            runs,
            "--data-dir",
            data,
            "--pooler",
            "avg",
            "--tasks",
            "MRPC",
        ),
        *("--protocol", "fast", "--no-cache", "--format", "csv"),
    )
    assert outcome.exit_code == 0, outcome.stderr
    lines = [line.split(",")[0] for line in outcome.stdout.splitlines()]
    names = [f"{runs}/seed-{n}{part}" for n in (1, 2) for part in (" (dev)", "")]
    assert lines[1:] == [
        *names,
        f"{runs} (dev) (mean of 2)",
        "  deviation",
        f"{runs} (mean of 2)",
        "  deviation",
    ]


def test_analyses_show_every_seed_with_mean_and_deviation(invoke, runs, sts_folder, tmp_path):
    spaces = ("--data-dir", sts_folder, "--pooler", "avg", "--model", runs, "--format", "json")
    found = result_of(invoke("analyze", "geometry", *spaces, "--plot", tmp_path / "g.png"))
    assert [row["label"] for row in found["models"]] == ["runs/seed-1", "runs/seed-2"]
    (summary,) = found["seeds"]
    uniformity = [row["uniformity"] for row in found["models"]]
    assert (summary["label"], summary["n_seeds"]) == ("runs", 2)
    assert summary["mean"]["uniformity"] == pytest.approx(fmean(uniformity))
    assert summary["deviation"]["uniformity"] == pytest.approx(stdev(uniformity))
    for name in SPACE_ANALYSES:
        shown = invoke("analyze", name, *spaces[:-1], "table", "--label", "ours")
        assert "ours (mean of 2)" in shown.stdout, shown.stderr
    path = tmp_path / "geometry.json"
    path.write_text(json.dumps(found))
    assert entries_of(invoke, path)[-1]["scores"]["uniformity"] == pytest.approx(fmean(uniformity))

    trace = invoke("analyze", "trace", runs, "--format", "markdown")
    assert "| runs (mean of 2) | 2 | 20 | 0.3 | 0.2 | -2 | -2.5 | 83.00 |" in trace.stdout, (
        trace.stdout
    )
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(SENTENCES))
    near = result_of(
        invoke(
            *("analyze", "retrieval", "--model", runs, "--pooler", "avg", "--corpus", corpus),
            *("--query", "A dog.", "--format", "json"),
        )
    )
    assert {row["model"] for row in near["neighbours"]} == {"runs/seed-1", "runs/seed-2"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("encode", "-", "-o", "v.npy"), "holds the runs of 2 seeds (1, 2), need one model"),
        (("eval", "sts", "--checkpoints"), "is for one run, such as --model"),
    ],
)
def test_what_needs_one_model_names_a_seed(invoke, runs, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    outcome = invoke(*arguments, "--model", runs, input="a\n")
    assert outcome.exit_code != 0
    shown = " ".join(outcome.stderr.split())
    assert message in shown
    assert "seed-1" in shown


def test_finished_run_is_left_as_it_is_by_resume(invoke, tiny_model_dir, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(SENTENCES))
    train = (
        "train",
        "--model",
        tiny_model_dir,
        "--train-file",
        text,
        "--max-steps",
        1,
        "--batch-size",
        8,
    )
    train = (*train, "-o", tmp_path / "run", "--format", "json")
    first = result_of(invoke(*train))
    train = (*train, "--resume")
    files = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()
    }
    assert result_of(invoke(*train)) == first
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*") if p.is_file()} == files
    changed = invoke(*train, "--seed", 7)
    assert "--seed 7 differs from the run" in changed.stderr
    many = invoke(*train, "--seeds", "1,2")
    assert "is a run, need a folder for several" in many.stderr
