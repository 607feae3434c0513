"""`simcse train --dev-suite`: what is chosen, recorded, resumed, compared, and refused before training."""

import json

import pytest

from helpers import SENTENCES, with_options, write_transfer_folder
from simcse_cli.comparison.entries import load_entries


@pytest.fixture
def senteval(sts_folder):
    return write_transfer_folder(sts_folder, n_good=40, n_bad=36)


@pytest.fixture
def train(invoke, tiny_model_dir, tmp_path):
    """Return a function that trains the tiny model for three steps, evaluated after each."""
    source = tmp_path / "sentences.txt"
    source.write_text("\n".join(SENTENCES) + "\n")

    def run(*arguments, steps=3):
        command = ("train", "--model", tiny_model_dir, "--train-file", source, "--batch-size", 4)
        length = ("--lr", "1e-3", "--max-steps", steps, "--eval-every", 1, "--device", "cpu")
        return invoke(*with_options((*command, *length), *arguments))

    return run


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_transfer_suite_chooses_records_and_explains(train, invoke, senteval, tmp_path):
    run = tmp_path / "run"
    outcome = train(
        "--dev-suite", "transfer", "--dev-tasks", "CR,TREC", "--data-dir", senteval, "-o", run
    )
    assert outcome.exit_code == 0, outcome.stderr
    record, lines = json.loads((run / "run.json").read_text()), metrics(run)
    for line in lines:
        assert line["dev_score"] == pytest.approx(sum(line["dev_tasks"].values()) / 2)
    assert record["start_score"] == lines[0]["dev_score"]
    assert record["best_score"] == max(line["dev_score"] for line in lines[1:])
    assert record["data"]["dev_tasks"] == ["CR-dev", "TREC-dev"]
    assert "mean dev accuracy of CR, TREC" in (run / "README.md").read_text()
    (entry,) = load_entries(str(run))
    best = {"transfer-average-dev": record["best_score"], **lines[record["best_step"]]["dev_tasks"]}
    assert entry.scores == best
    assert entry.settings["transfer protocol"] == "fast, probe senteval"
    assert "Avg. transfer dev" in invoke("compare", run).stdout


def test_model_of_a_transfer_run_has_the_recorded_dev_accuracy(train, invoke, senteval, tmp_path):
    run = tmp_path / "run"
    train("--dev-suite", "transfer", "--dev-tasks", "CR", "--data-dir", senteval, "-o", run)
    outcome = invoke(
        *(
            "eval",
            "transfer",
            "--model",
            run,
            "--data-dir",
            senteval,
            "--tasks",
            "CR",
            "--protocol",
            "fast",
        ),
        *("--format", "json", "--no-cache"),
    )
    assert (
        json.loads(outcome.stdout)["average_dev"]
        == json.loads((run / "run.json").read_text())["best_score"]
    )


def test_sts_suite_feeds_trace_and_compare(train, invoke, senteval, tmp_path, monkeypatch):
    monkeypatch.setenv("SIMCSE_DATA", str(senteval))
    run = tmp_path / "run"
    assert train("--dev-suite", "sts", "-o", run).exit_code == 0
    traced = json.loads(invoke("analyze", "trace", run, "--format", "json").stdout)
    assert [point["dev_score"] for point in traced["points"]] == [
        line["dev_score"] for line in metrics(run)
    ]
    (entry,) = load_entries(str(run))
    record = json.loads((run / "run.json").read_text())
    assert entry.scores["average-dev"] == record["best_score"]
    assert {
        "STSBenchmark-dev",
        "SICKRelatedness-dev",
        "alignment",
        "uniformity",
    } <= entry.scores.keys()
    outcome = invoke("eval", "sts", "--model", run, "--split", "dev", "--format", "json")
    score = json.loads(outcome.stdout)["tasks"]["STSBenchmark"]["score"]
    assert entry.scores["STSBenchmark-dev"] == pytest.approx(score)


def test_choice_on_test_data_is_said_everywhere(train, invoke, senteval, tmp_path):
    run = tmp_path / "run"
    outcome = train(
        "--dev-suite", "sts", "--dev-tasks", "STS12,STS-B", "--data-dir", senteval, "-o", run
    )
    assert outcome.exit_code == 0
    assert "chosen on test data" in outcome.stderr
    assert "chosen on test data | STS12" in (run / "README.md").read_text()
    outcome = invoke("compare", run)
    assert "was chosen on test data: STS12" in outcome.stdout + outcome.stderr


def test_compare_warns_about_runs_chosen_by_unlike_scores(train, invoke, senteval, tmp_path):
    dev_file = senteval / "downstream" / "STS" / "STSBenchmark" / "sts-dev.csv"
    train("--dev-file", dev_file, "-o", tmp_path / "a")
    train("--dev-suite", "sts", "--data-dir", senteval, "-o", tmp_path / "b")
    outcome = invoke("compare", tmp_path / "a", tmp_path / "b")
    text = " ".join((outcome.stdout + outcome.stderr).split())
    assert (
        "unlike settings: chosen by is spearman of sts-dev.csv in a; mean correlation of "
        "STS-B, SICK-R in b" in text
    )


def test_resume_keeps_the_suite(train, senteval, tmp_path):
    run = tmp_path / "run"
    command = ("--dev-suite", "transfer", "--dev-tasks", "CR", "--data-dir", senteval, "-o", run)
    assert train(*command).exit_code == 0
    outcome = train(*command, "--resume", "--dev-metric", "pearson")
    assert outcome.exit_code == 1
    assert "--dev-metric pearson differs" in outcome.stderr
    assert train("-o", run, "--resume").exit_code == 0
    path = senteval / "downstream" / "CR" / "custrev.pos"
    path.write_text(path.read_text() + "good more\n")
    record = run / "run.json"  # a complete run stays as it is
    record.write_text(record.read_text().replace('"finished"', '"interrupted"', 1))
    outcome = train("-o", run, "--resume")
    assert outcome.exit_code == 1
    assert "CR/custrev.pos has changed" in outcome.stderr


def test_sweep_is_ranked_by_the_suite(train, senteval, tmp_path):
    (tmp_path / "s.yaml").write_text("grid:\n  warmup: [0.0, 0.5]\n")
    outcome = train(
        *(
            "--sweep",
            tmp_path / "s.yaml",
            "--dev-suite",
            "sts",
            "--data-dir",
            senteval,
            "-o",
            tmp_path / "runs",
        ),
        *("--keep-checkpoints", 2, "--format", "json"),
    )
    assert outcome.exit_code == 0, outcome.stderr
    for trial in json.loads(outcome.stdout)["trials"]:
        folder = tmp_path / "runs" / trial["name"]
        assert trial["score"] == json.loads((folder / "run.json").read_text())["best_score"]
        assert len(list((folder / "checkpoint").iterdir())) == 2


def test_demo_corpus_serves_the_sts_suite(invoke, tiny_model_dir, tmp_path):
    outcome = invoke(
        *(
            "train",
            "-m",
            tiny_model_dir,
            "--dev-suite",
            "sts",
            "--dev-tasks",
            "STSBenchmark",
            "--max-steps",
            1,
        ),
        *("--batch-size", 4, "--device", "cpu", "-o", tmp_path / "run"),
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["data"]["dev_tasks"] == [
        "STSBenchmark-dev"
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--dev-suite", "mteb"), 2, "transfer"),
        (("--dev-suite", "sts"), 1, "--data-dir DIR, or SIMCSE_DATA"),
        (("--dev-suite", "transfer", "--data-dir", "/nowhere"), 1, "/nowhere does not exist"),
        (("--dev-tasks", "STS12"), 2, "has no use without --dev-suite sts"),
        (
            ("--dev-suite", "sts", "--data-dir", "DATA", "--dev-tasks", "STS99"),
            1,
            "unknown task 'STS99'",
        ),
        (
            ("--dev-suite", "transfer", "--data-dir", "DATA", "--dev-metric", "pearson"),
            2,
            "accuracy",
        ),
        (("--keep-checkpoints", "-1"), 1, "need at least 0"),
    ],
)
def test_bad_dev_settings_end_before_training(
    train, sts_folder, tmp_path, arguments, code, message
):
    given = [sts_folder if argument == "DATA" else argument for argument in arguments]
    outcome = train(*given, "-o", tmp_path / "run")
    assert outcome.exit_code == code, outcome.stderr
    assert message in " ".join(outcome.stderr.split())
    assert not (tmp_path / "run").exists()


@pytest.fixture
def beir(tmp_path):
    """Return the three options of a small BEIR folder; every second sentence answers the one before it."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    queries, corpus = SENTENCES[0:20:2], SENTENCES[1:20:2]
    for name, texts in (("queries", queries), ("corpus", [*corpus, *SENTENCES[20:24]])):
        lines = (
            json.dumps({"_id": f"{name[0]}{n}", "text": text}) + "\n"
            for n, text in enumerate(texts)
        )
        (folder / f"{name}.jsonl").write_text("".join(lines))
    rows = "".join(f"q{n}\tc{n}\t{1 + n % 2}\n" for n in range(10))
    (folder / "qrels" / "dev.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}q0\tc3\t1\n")
    files = {"corpus": "corpus.jsonl", "queries": "queries.jsonl", "qrels": "qrels/dev.tsv"}
    return [part for name, file in files.items() for part in (f"--{name}", folder / file)]


def test_retrieval_suite_chooses_by_the_figures_of_analyze_retrieval(train, invoke, beir, tmp_path):
    run = tmp_path / "run"
    with beir[-1].open("a") as qrels:
        qrels.write("q1\tlost\t1\n")
    outcome = train("--dev-suite", "retrieval", *beir, "-o", run)
    assert outcome.exit_code == 0, outcome.stderr
    assert "the corpus lacks 1 of the 12 relevant sentences" in " ".join(outcome.stderr.split())
    record, lines = json.loads((run / "run.json").read_text()), metrics(run)
    assert all(line["dev_score"] == line["dev_tasks"]["nDCG@10-dev"] for line in lines)
    best = lines[record["best_step"]]["dev_tasks"]
    again = invoke(
        "analyze", "retrieval", "--model", run, *beir, "--keep-identical", "--format", "json"
    )
    (scores,) = json.loads(again.stdout)["scores"]
    assert best == pytest.approx(
        {
            **{f"{name}-dev": scores[name] for name in ("recall@1", "recall@10")},
            "recall@100-dev": 0.95,  # of 10 queries, one has one of its two texts
            "MRR@10-dev": scores["mrr@10"],
            "nDCG@10-dev": scores["ndcg@10"],
        }
    )
    assert "nDCG@10 of queries.jsonl" in (run / "README.md").read_text()
    (entry,) = load_entries(str(run))
    assert entry.scores == best
    assert set(record["data"]["dev_files"]) == {str(path) for path in beir[1::2]}


def test_retrieval_suite_leaves_out_blank_texts(train, invoke, beir, tmp_path):
    _, corpus, _, queries, _, qrels = beir
    for path, name in ((corpus, "c"), (queries, "q")):
        with path.open("a") as stream:
            stream.write(f'{{"_id": "{name}90", "text": " "}}\n')
    with qrels.open("a") as stream:
        stream.write("q1\tc90\t1\nq90\tc1\t1\n")
    run = tmp_path / "run"
    outcome = train("--dev-suite", "retrieval", *beir, "-o", run)
    assert outcome.exit_code == 0, outcome.stderr
    told = " ".join(outcome.stderr.split())
    assert f"{corpus}: no results, since without text: 1 rows" in told
    assert f"{queries}: left out, since without text: 1 rows" in told
    best = metrics(run)[json.loads((run / "run.json").read_text())["best_step"]]["dev_tasks"]
    again = invoke(
        "analyze", "retrieval", "--model", run, *beir, "--keep-identical", "--format", "json"
    )
    (scores,) = json.loads(again.stdout)["scores"]
    assert best["nDCG@10-dev"] == pytest.approx(scores["ndcg@10"])
    assert best["recall@10-dev"] == pytest.approx(scores["recall@10"])


def test_seeds_and_sweeps_are_chosen_by_retrieval(train, beir, tmp_path):
    plan, folder = tmp_path / "lr.yaml", tmp_path / "runs"
    plan.write_text("grid:\n  temperature: [0.05, 1]\n")
    many = ("--sweep", plan, "--seeds", "1,2", "--max-steps", 2)
    outcome = train("--dev-suite", "retrieval", *beir, *many, "-o", folder)
    assert outcome.exit_code == 0, outcome.stderr
    found = json.loads((folder / "sweep.json").read_text())
    assert found["dev_suite"] == "retrieval"
    for trial in found["trials"]:
        runs = [folder / trial["name"] / f"seed-{seed}" for seed in (1, 2)]
        best = [
            max(line["dev_tasks"]["nDCG@10-dev"] for line in metrics(run) if "dev_tasks" in line)
            for run in runs
        ]
        assert trial["scores"] == best


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--dev-suite", "retrieval", "--corpus", "a"], "no --queries, --qrels"),
        (["--qrels", "a"], "--qrels: has no use without --dev-suite retrieval"),
        (
            ["--dev-split", "0.1", "--dev-file", __file__],
            "--dev-file: has no use with --dev-split, which chooses the model",
        ),
        (["--dev-split", "0.7"], "need at most 0.5"),
        (["--dev-split", "0.1"], "--objective simcse-unsup reads no pairs here"),
    ],
)
def test_settings_of_retrieval_without_effect_are_refused(train, tmp_path, more, message):
    outcome = train(*more, "-o", tmp_path / "run")
    assert outcome.exit_code == (2 if "has no use" in message else 1)
    assert message in " ".join(outcome.stderr.split())


def test_a_split_holds_out_whole_anchors_the_same_for_every_seed(invoke, tiny_model_dir, tmp_path):
    rows = [
        (SENTENCES[n % 12], f"Answer {n}: {SENTENCES[n % 20]}") for n in range(24)
    ]  # two positives for every anchor
    (tmp_path / "a.tsv").write_text(
        "anchor\tpositive\n" + "".join("\t".join(row) + "\n" for row in rows)
    )
    found = []
    for seed in (1, 2):
        outcome = invoke(
            *(
                "train",
                "--mode",
                "sup",
                "--model",
                tiny_model_dir,
                "--pooler",
                "avg",
                "--device",
                "cpu",
            ),
            *(
                "--train-file",
                tmp_path / "a.tsv",
                "--dev-split",
                0.25,
                "--max-steps",
                1,
                "--batch-size",
                6,
            ),
            *("--seed", seed, "-o", tmp_path / str(seed)),
        )
        assert outcome.exit_code == 0, outcome.stderr
        assert "6 rows are held out to choose the model" in outcome.stderr
        found.append(metrics(tmp_path / str(seed))[0]["dev_tasks"])
        assert (
            json.loads((tmp_path / str(seed) / "run.json").read_text())["data"]["n_examples"] == 18
        )
    assert found[0] == found[1]
    (entry,) = load_entries(str(tmp_path / "1"))
    assert entry.settings["chosen by"] == "nDCG@10 of 25% held-out pairs"
