"""`simcse analyze report`: one page with what is known of a run, the same numbers as the single commands."""

import json
import re
import shutil

import pytest

from helpers import SENTENCES
from simcse_cli.settings.choices import STS_TASKS


def train(invoke, model, sts_folder, run, *arguments):
    (run.parent / "train.txt").write_text("\n".join(SENTENCES) + "\n")
    outcome = invoke(
        *(
            "train",
            "-m",
            model,
            "--train-file",
            run.parent / "train.txt",
            "-o",
            run,
            "--pooler",
            "avg",
        ),
        *("--dev-file", sts_folder / "downstream/STS/STSBenchmark/sts-dev.csv", "--device", "cpu"),
        *(
            "--batch-size",
            8,
            "--max-steps",
            3,
            "--eval-every",
            1,
            "--log-every",
            1,
            "--lr",
            "1e-3",
            *arguments,
        ),
    )
    assert outcome.exit_code == 0, outcome.stderr
    return run


@pytest.fixture
def run(invoke, tiny_model_dir, sts_folder, tmp_path):
    return train(invoke, tiny_model_dir, sts_folder, tmp_path / "first")


def keep_sts_result(run, score):
    task = {"n_pairs": 10, "score": score, "spearman": {"all": score}, "pearson": {"all": score}}
    asked = {
        "suite": "sts",
        "metric": "spearman",
        "aggregation": "all",
        "split": "test",
        "pooler": "avg",
    }
    (run / "sts.json").write_text(
        json.dumps(asked | {"model": "tiny", "tasks": dict.fromkeys(STS_TASKS, task)})
    )


def titles(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_page_holds_everything_and_fetches_nothing(invoke, run, sts_folder, tmp_path):
    keep_sts_result(run, 0.4321)
    outcome = invoke(
        "analyze", "report", run, "-o", tmp_path / "page.html", "--data-dir", sts_folder
    )
    assert outcome.exit_code == 0, outcome.stderr
    page = (tmp_path / "page.html").read_text()
    assert titles(page) == [
        "Scores",
        "Training",
        "Paths of training runs",
        "Alignment and uniformity",
        "Singular values",
        "Cosine similarity by gold rating",
        "What changed",
        "Nearest sentences",
        "Settings and data",
    ]
    assert page.count("<svg") == 5
    assert not re.search(r"<script|<link|<img|@import|src=", page)
    assert all(target.startswith(("#", "data:")) for target in re.findall(r'href="([^"]*)"', page))
    assert "<dd>43.21</dd>" in page
    assert ">76.25<" in page  # SimCSE-BERT-base, unsupervised, of Table 5
    assert ">81.57<" not in page  # the supervised one


def test_scores_on_the_generated_corpus_are_shown_without_published_rows(invoke, run, tmp_path):
    assert invoke("eval", "sts", "-m", run).exit_code == 0
    outcome = invoke("analyze", "report", run, "-o", tmp_path / "page.html")
    assert outcome.exit_code == 0, outcome.stderr
    page = (tmp_path / "page.html").read_text()
    assert "NOT COMPARABLE" not in page
    assert "SimCSE-BERT-base" not in page


def test_page_shows_the_group_of_the_table_that_is_asked_for(invoke, run, tmp_path):
    keep_sts_result(run, 0.4321)
    page = tmp_path / "page.html"
    outcome = invoke("analyze", "report", run, "-o", page, "--group", "supervised", "--queries", 0)
    assert outcome.exit_code == 0, outcome.stderr
    assert ">81.57<" in page.read_text()  # SimCSE-BERT-base, supervised, of Table 5
    assert ">76.25<" not in page.read_text()


def test_page_shows_the_numbers_of_analyze_geometry(
    invoke, run, tiny_model_dir, sts_folder, tmp_path
):
    assert (
        invoke(
            "analyze", "report", run, "-o", tmp_path / "page.html", "--data-dir", sts_folder
        ).exit_code
        == 0
    )
    models = ("--model", tiny_model_dir, "--model", run)
    measured = json.loads(
        invoke("analyze", "geometry", *models, "--data-dir", sts_folder, "-f", "json").stdout
    )
    page = (tmp_path / "page.html").read_text()
    for model in measured["models"]:
        for key in ("alignment", "uniformity", "effective_rank", "isotropy"):
            assert f">{model[key]:.4g}<" in page


def test_baseline_run_is_set_beside_it(invoke, run, tiny_model_dir, sts_folder, tmp_path):
    other = train(invoke, tiny_model_dir, sts_folder, tmp_path / "second", "--seed", 7)
    data = ("--data-dir", sts_folder, "--queries", 0)
    outcome = invoke(
        "analyze", "report", other, "-o", tmp_path / "page.html", "--baseline", run, *data
    )
    assert outcome.exit_code == 0, outcome.stderr
    page = (tmp_path / "page.html").read_text()
    assert "Difference to first" in page
    assert re.search(r"<td>seed</td><td>42</td><td>7</td>", page)
    assert '<tr class="own"><td>second</td>' in page
    assert "Nearest sentences" not in titles(page)


def test_markup_in_the_data_is_shown_literally(invoke, run, tmp_path):
    pairs = tmp_path / "pairs.csv"
    rows = [
        ("<script>alert(1)</script>", "a & b", 5),
        ("The cat sleeps.", "He reads a book.", 1),
        ("a", "b", 2),
    ]
    pairs.write_text("sentence1,sentence2,score\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    outcome = invoke("analyze", "report", run, "-o", tmp_path / "page.html", "--pair-file", pairs)
    assert outcome.exit_code == 0, outcome.stderr
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_without_data_and_start_the_page_has_what_the_run_holds(
    invoke, run, tiny_model_dir, sts_folder, tmp_path
):
    outcome = invoke("analyze", "report", run, "-o", tmp_path / "page.html")
    assert outcome.exit_code == 0
    assert "no --data-dir" in outcome.stderr
    expected = ["Scores", "Training", "Paths of training runs", "Settings and data"]
    assert titles((tmp_path / "page.html").read_text()) == expected
    shutil.rmtree(tiny_model_dir)
    again = invoke(
        "analyze", "report", run, "-o", tmp_path / "page.html", "--data-dir", sts_folder, "--force"
    )
    assert again.exit_code == 0, again.stderr
    assert "shows the run alone" in again.stderr
    assert "What changed" not in titles((tmp_path / "page.html").read_text())


def test_page_is_refused_before_anything_is_read(invoke, tmp_path):
    (tmp_path / "page.html").touch()
    outcome = invoke("analyze", "report", tmp_path / "nothing", "-o", tmp_path / "page.html")
    assert (outcome.exit_code, "exists already" in outcome.stderr) == (1, True)
    missing = invoke("analyze", "report", tmp_path / "nothing", "-o", tmp_path / "new.html")
    assert missing.exit_code == 1
    assert "run.json" in missing.stderr
