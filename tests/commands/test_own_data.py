"""One's own pair and task files in every command that takes them, and results that a run keeps."""

import json
from itertools import pairwise

import pytest

from comparison.cases import write_run
from helpers import SENTENCES, with_options
from simcse_cli.results.columns import STSB_DEV


@pytest.fixture
def pair_file(tmp_path):
    path = tmp_path / "mine.csv"
    rows = "".join(
        f"{a};{b};{i / 4}\n" for i, (a, b) in enumerate(zip(SENTENCES, SENTENCES[3:], strict=False))
    )
    path.write_text("links;rechts;wert\n" + rows)
    return path


COLUMNS = ("--columns", "left=links,right=rechts,score=wert")


def test_one_pair_file_has_the_same_score_everywhere(invoke, tiny_model_dir, pair_file, tmp_path):
    model = ("-m", tiny_model_dir, "--pooler", "avg")
    out = invoke("eval", "sts", *model, "--pair-file", pair_file, *COLUMNS, "-f", "json")
    assert out.exit_code == 0, out.stderr
    result = json.loads(out.stdout)
    assert list(result["tasks"]) == ["mine"]
    assert result["tasks"]["mine"]["n_pairs"] == len(SENTENCES) - 3
    out = invoke("analyze", "geometry", *model, "--pair-file", pair_file, *COLUMNS, "-f", "json")
    assert json.loads(out.stdout)["models"][0]["score"] == pytest.approx(
        result["average"], abs=1e-6
    )
    (tmp_path / "train.txt").write_text("\n".join(SENTENCES))
    out = invoke(
        *(
            "train",
            "--mode",
            "unsup",
            *model,
            "--train-file",
            tmp_path / "train.txt",
            "--dev-file",
            pair_file,
        ),
        *(*COLUMNS, "--max-steps", 1, "--batch-size", 4, "-o", tmp_path / "run"),
    )
    assert out.exit_code == 0, out.stderr
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["dev_score"] == pytest.approx(result["average"], abs=1e-6)
    out = invoke(
        "analyze", "overlap", pair_file, "--columns", "left=links,right=rechts", "-f", "json"
    )
    assert json.loads(out.stdout)["files"][0]["n_pairs"] == len(SENTENCES) - 3


def test_pair_files_stand_beside_tasks_and_do_not_take_their_names(
    invoke, tiny_model_dir, pair_file, sts_folder
):
    command = (
        "eval",
        "sts",
        "-m",
        tiny_model_dir,
        "--pooler",
        "avg",
        "--data-dir",
        sts_folder,
        "-f",
        "json",
    )
    command += COLUMNS
    out = invoke(*command, "--pair-file", pair_file, "--tasks", "STS12")
    assert list(json.loads(out.stdout)["tasks"]) == ["STS12", "mine"]
    for name, flags, message in (
        ("STS12.csv", (), "there is a task called STS12"),
        ("b.csv", ("--split", "dev"), "has a test set only"),
    ):
        pair_file.with_name(name).write_text(pair_file.read_text())
        more = ("--pair-file", pair_file.with_name(name), *flags, "-m", "no/model/here")
        out = invoke(*with_options(command, *more))
        assert (out.exit_code in (1, 2), message in out.stderr) == (True, True), out.stderr


def test_unknown_columns_end_before_a_model_is_loaded(invoke, tiny_model_dir, pair_file, tmp_path):
    rows = "".join(
        f"{a};{b};{a} too;{i / 4};{i / 8}\n" for i, (a, b) in enumerate(pairwise(SENTENCES), 1)
    )
    pair_file.write_text("links;rechts;mitte;wert;zahl\n" + rows)
    (tiny_model_dir / "model.safetensors").write_bytes(b"")  # loading it would be another error
    for command in (
        ("eval", "sts", "--pair-file", pair_file),
        ("analyze", "geometry", "--pair-file", pair_file),
        ("analyze", "overlap", pair_file),
        (
            "train",
            "--mode",
            "unsup",
            "--dev-file",
            pair_file,
            "--train-file",
            pair_file,
            "-o",
            tmp_path / "run",
        ),
        ("prepare", "pairs", pair_file, "-o", tmp_path / "o.csv"),
        ("encode", pair_file, "--pairs"),
    ):
        model = () if command[0] == "prepare" or "overlap" in command else ("-m", tiny_model_dir)
        out = invoke(*command, *model)
        assert out.exit_code == 1, command
        assert "1 links | 2 rechts | 3 mitte | 4 wert | 5 zahl" in out.stderr, command
        assert "--column" in out.stderr, command


LABELLED = "".join(
    f"{'good' if i % 2 else 'bad'} w{i % 7} w{i % 11},{'yes' if i % 2 else 'no'}\n"
    for i in range(60)
)


def test_task_file_is_scored_by_the_probe_of_the_protocol(invoke, tiny_model_dir, tmp_path):
    (tmp_path / "mood.csv").write_text("text,label\n" + LABELLED)
    (tmp_path / "split.csv").write_text(
        "satz,klasse,split\n"
        + "".join(
            f"{row},{'test' if i % 3 == 0 else 'train'}\n"
            for i, row in enumerate(LABELLED.splitlines())
        )
    )
    command = (
        "eval",
        "transfer",
        "-m",
        tiny_model_dir,
        "--pooler",
        "avg",
        "--protocol",
        "fast",
        "-f",
        "json",
    )
    out = invoke(
        *command, "--task-file", tmp_path / "mood.csv", "--save-scores", tmp_path / "s.jsonl"
    )
    assert out.exit_code == 0, out.stderr
    task = json.loads(out.stdout)["tasks"]["mood"]
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert (task["n_test"], task["classes"]) == (60, ["no", "yes"])
    assert task["accuracy"] == pytest.approx(sum(x["gold"] == x["predicted"] for x in lines) / 60)
    out = invoke(
        *command, "--task-file", tmp_path / "split.csv", "--columns", "text=satz,label=klasse"
    )
    assert json.loads(out.stdout)["tasks"]["split"]["n_test"] == 20


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "text,label\n" + "".join(LABELLED.splitlines(keepends=True)[:12]),
            "a class (no) has",
        ),
        ("a.csv", "text,label\na,1\nb,1\n", "every label is 1"),
        ("a.csv", "text,label\na,1\nb,\n", "line 3: the label is missing"),
        (
            "a.csv",
            "review,stars\nA fine film it was.,1\nNot a good film.,0\n",
            "a class (0) has",
        ),
        ("a.csv", "text,label,split\na,1,train\nb,0,dev\n", "need train and test"),
        ("MR.csv", "text,label\n" + LABELLED, "there is a task called MR"),
    ],
)
def test_task_files_that_cannot_serve_end_before_the_model(invoke, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    out = invoke("eval", "transfer", "-m", "no/model/here", "--task-file", tmp_path / name)
    assert out.exit_code in (1, 2)
    assert message in " ".join(out.stderr.split())


def test_results_are_kept_in_the_run_and_found_by_compare(
    invoke, tiny_model_dir, sts_folder, tmp_path
):
    (tmp_path / "train.txt").write_text("\n".join(SENTENCES))
    dev = sts_folder / "downstream" / "STS" / "STSBenchmark" / "sts-dev.csv"
    run = tmp_path / "run"
    train = (
        "train",
        "--mode",
        "unsup",
        "-m",
        tiny_model_dir,
        "--train-file",
        tmp_path / "train.txt",
    )
    train = (*train, "--dev-file", dev, "--max-steps", 1, "--batch-size", 4, "-o", run)
    assert invoke(*train).exit_code == 0
    evaluate = ("eval", "sts", "-m", run, "--data-dir", sts_folder)
    out = invoke(*evaluate, "-o", run / "sts.json")
    assert f"kept {run / 'results' / 'sts-test-spearman-all.json'}" in " ".join(out.stderr.split())
    for flags in (("--tasks", "STS12"), ("--split", "dev"), ("--aggregation", "wmean")):
        assert invoke(*evaluate, *flags).exit_code == 0
    names = sorted(path.name for path in (run / "results").iterdir())
    assert names == [
        "sts-dev-spearman-all-STSBenchmark.json",
        "sts-test-spearman-all-STS12.json",
        "sts-test-spearman-all.json",
        "sts-test-spearman-wmean.json",
    ]
    payload = json.loads(invoke("compare", run, "-f", "json").stdout)
    whole, wmean = payload["entries"]
    assert wmean["label"] == "run [sts-test-spearman-wmean]"
    kept = json.loads((run / "results" / "sts-test-spearman-all.json").read_text())
    assert whole["scores"]["average"] == pytest.approx(kept["average"])
    by_wmean = json.loads(invoke("compare", run, "--aggregation", "wmean", "-f", "json").stdout)
    (entry,) = by_wmean["entries"]
    assert {"STS12", "SICKRelatedness", STSB_DEV} <= entry["scores"].keys()
    assert invoke(*train, "--force").exit_code == 0
    assert not (run / "results").exists()


def test_a_result_of_an_earlier_model_of_the_run_is_said(invoke, tmp_path):
    run = write_run(tmp_path / "run")
    record = json.loads((run / "run.json").read_text()) | {"model_digest": "new", "pooler": "avg"}
    (run / "run.json").write_text(json.dumps(record))
    (run / "results").mkdir()
    result = {
        "suite": "sts",
        "pooler": "avg",
        "postprocess": None,
        "model_digest": "old",
        "metric": "spearman",
    }
    result |= {
        "aggregation": "all",
        "split": "test",
        "tasks": {"STS12": {"n_pairs": 3108, "score": 0.5}},
    }
    (run / "results" / "a.json").write_text(json.dumps(result))
    assert "is of an earlier model of the run" in " ".join(invoke("compare", run).stderr.split())


def test_eval_without_data_says_which_variable_to_set_and_marks_the_demo_corpus(
    invoke, tiny_model_dir, tmp_path
):
    out = invoke(
        "eval", "sts", "-m", tiny_model_dir, "--pooler", "avg", "-o", tmp_path / "demo.json"
    )
    assert "export SIMCSE_DATA=FOLDER" in " ".join(out.stderr.split())
    assert "compares with no published number: STS-B: the generated demo corpus" in out.stdout
    row = ("--against", "simcse.5", "--row", "SimCSE-BERT-base", "--group", "unsupervised")
    out = invoke("compare", tmp_path / "demo.json", *row)
    said = (
        "NOT COMPARABLE: STS-B: scored on the published set in published rows, on the generated "
        "demo corpus in demo"
    )
    assert said in " ".join(out.stderr.split())
    assert out.stdout.count("NOT COMPARABLE") == 1
