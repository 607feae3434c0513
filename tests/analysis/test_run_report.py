"""The parts of the page about a run, computed from a record, its results and spaces of chosen vectors."""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.cases import space
from comparison.cases import write_run, write_sts_result
from simcse_cli.analysis import run_report
from simcse_cli.analysis.analyses import SPACE_ANALYSES
from simcse_cli.analysis.options import ReportOptions
from simcse_cli.analysis.presentation import Page
from simcse_cli.analysis.run_report import (
    running_mean,
    training_figure,
    write_run_report,
)
from simcse_cli.data.senteval import digest_of_pairs
from simcse_cli.errors import CheckpointError, ConfigError, DataError
from simcse_cli.progress import SilentProgress
from simcse_cli.results.runs import Measured, read_run_record
from simcse_cli.settings.choices import STS_TASKS

N_PAIRS = 12
ANGLES = np.arange(N_PAIRS) / N_PAIRS


class Heard(SilentProgress):
    def info(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Encode pairs of any model, whose cosines fall with the rating, or rise if its name is that of a run."""
    found = []

    def encode_pairs(options: Any, labels: Any, progress: Any, data: Any) -> Any:
        (model,), (label,) = options.model, labels
        if model == "gone":
            raise CheckpointError("gone")
        found.append((model, label))
        angles = ANGLES if "run" not in model else ANGLES[::-1]
        right = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        made = space(
            np.tile([1.0, 0.0], (N_PAIRS, 1)),
            right,
            np.linspace(0, 5, N_PAIRS).tolist(),
            label=label,
        )
        rows = dict(zip(made.data.pairs.sentences, made.vectors, strict=True))
        made.encoder = replace(
            made.encoder,
            source=model,
            encode=lambda texts: np.stack([rows[text] for text in texts]),
        )
        return [made]

    monkeypatch.setattr(run_report, "encode_pairs", encode_pairs)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.csv"
    path.write_text("sentence1,sentence2,score\na,b,1\n")
    return path


def change(run: Path, **facts: Any) -> None:
    path = run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def report(run: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Page, list[str]]:
    """Write the page and return it with what was said."""
    pages, heard = [], Heard()
    monkeypatch.setattr(run_report, "html_page", lambda page, _: pages.append(page) or "the page")
    write_run_report(run, ReportOptions(output=run / "page.html", force=True, **options), heard)
    assert (run / "page.html").read_text() == "the page"
    return pages[0], heard.warnings


def parts(page: Page) -> dict[str, Any]:
    return {analysis.title: analysis for analysis in page.analyses()}


def test_the_head_of_the_page_says_what_is_known(run, monkeypatch) -> None:
    write_sts_result(run / "sts.json", dict.fromkeys(STS_TASKS, 0.4321))
    data = {"n_examples": 1000, "dev_file": "d/own-dev.csv"}
    change(
        run,
        data=data,
        step=1020,
        start_score=0.5,
        timings={"train_s": 60, "hours": 0.05},
        model_digest="0123456789abcdef",
    )
    page, said = report(run, monkeypatch)
    assert (page.title, page.own) == ("run", {"run"})
    assert page.subtitle == "simcse-unsup on tiny, seed 1, finished."
    assert page.facts == [
        ("STS average", "43.21"),
        ("own-dev, best", "80.00"),
        ("gain over the start", "+30.00"),
        ("steps", "1,020"),
        ("training examples", "1,000"),
        ("duration", "3 minutes"),
    ]
    titles = ["Scores", "Training", "Paths of training runs", "Settings and data"]
    assert list(parts(page)) == titles
    assert said == [
        *parts(page)["Scores"].tables[0].notes,
        "no --data-dir or --pair-file: the page has no geometry, spectrum, densities or neighbours",
        f"wrote {run / 'page.html'}: scores, training, paths of training runs, settings and data",
    ]
    figure = parts(page)["Paths of training runs"].figure()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["whole run (20 steps)"]
    settings = parts(page)["Settings and data"]
    assert settings.text.startswith(
        "Started None, finished None; weights 0123456789ab. The same run again:"
    )
    assert [table.title for table in settings.tables] == ["Settings", "Data", "Versions"]
    assert settings.tables[1].cells() == [["n_examples", "1000"], ["dev_file", "d/own-dev.csv"]]


def test_the_head_of_the_page_leaves_out_what_is_not_known(run, monkeypatch) -> None:
    change(
        run,
        best_score=None,
        data={"dev_suite": "transfer", "dev_tasks": ["MR-dev"]},
        timings={"hours": 59.4 / 3600},
    )
    (run / "metrics.jsonl").unlink()
    page, _ = report(run, monkeypatch)
    assert page.facts == [("steps", "20"), ("duration", "59 s")]
    assert list(parts(page)) == ["Settings and data"]
    change(run, best_score=0.5, timings={"hours": 1 / 6})
    (run / "metrics.jsonl").write_text("")
    page, _ = report(run, monkeypatch)
    assert page.facts == [
        ("dev score, best", "50.00"),
        ("steps", "20"),
        ("duration", "10 minutes"),
    ]
    (run / "metrics.jsonl").write_text('{"step": 1, "dev_score": 0.5}\n')
    assert "Training" not in parts(report(run, monkeypatch)[0])


def test_scores_stand_beside_rows_of_the_kind_of_the_run(run, monkeypatch) -> None:
    def systems(**options: Any) -> list[str]:
        scores = parts(report(run, monkeypatch, **options)[0])["Scores"]
        assert scores.text.endswith("as printed, and averages are over the tasks of the run.")
        return [row[0] for row in scores.tables[0].cells()]

    assert systems() == ["run"]  # only a dev score
    write_sts_result(run / "sts.json", {"STS12": 0.5})
    unsupervised = systems()
    assert len(unsupervised) == 13
    assert all("(unsupervised)" in name for name in unsupervised[:-1])
    for kind in ("simcse-sup", "sbert"):
        change(run, objective=kind)
        supervised = systems()
        assert len(supervised) == 12
        assert all("(supervised)" in name for name in supervised[:-1])
    assert systems(group="Unsupervised") == unsupervised
    row = "SimCSE-BERT-base"
    assert systems(row=[row]) == [f"simcse.5: {row} (supervised)", "run"]
    assert systems(against=["repro.6"], row=[row]) == [f"repro.6: {row}", "run"]
    with pytest.raises(ConfigError, match=r"simcse\.5, group 'other', has no row 'other'"):
        systems(group="Other")
    write_sts_result(run / "sts.json", {"STS12": 0.5}, split="dev")
    assert systems() == ["run"]


def test_results_of_other_settings_and_the_baseline_stand_beside_the_run(
    run, monkeypatch, tmp_path, opened
) -> None:
    (run / "results").mkdir()
    for name, score in (("a", 0.5), ("b", 0.6)):
        write_sts_result(run / f"results/{name}.json", {"STS12": score})
    before = write_run(tmp_path / "before", lr=1.0)
    page, _ = report(run, monkeypatch, baseline=str(before), against=["simcse.3"], row=["p=0.1"])
    scores, differences, settings = parts(page)["Scores"].tables
    assert [row[0] for row in scores.cells()] == ["simcse.3: p=0.1", "before", "run", "run [b]"]
    assert (differences.title, settings.title) == ("Difference to before", "Settings that differ")
    page, _ = report(run, monkeypatch, baseline="minilm")  # a model, which has no scores
    assert len(parts(page)["Scores"].tables) == 1


def test_spaces_are_those_of_the_start_and_of_the_run(run, monkeypatch, opened, pairs) -> None:
    page, _ = report(run, monkeypatch, pair_file=pairs)
    assert opened == [("tiny", "tiny (start)"), (str(run), "run")]
    found = parts(page)
    titles = list(found)
    first = titles.index("Alignment and uniformity")
    assert titles[first + len(SPACE_ANALYSES) : -1] == ["What changed", "Nearest sentences"]
    (table,) = found["What changed"].tables
    headings = [
        "gold",
        "cosine before",
        "after",
        "rank error before",
        "after",
        "sentence 1",
        "sentence 2",
    ]
    assert [column.heading for column in table.columns] == headings
    assert len(table.rows) == 10
    assert table.notes[0].startswith("before: tiny (start); after: run.")
    texts = [f"{side} {i}" for side in ("left", "right") for i in range(N_PAIRS)][::-1]
    drawn = sorted(random.Random(42).sample(range(len(texts)), 5))
    neighbours = found["Nearest sentences"].payload["neighbours"]
    assert [row["query"] for row in neighbours[::6]] == [texts[row] for row in drawn]
    assert [(row["model"], row["rank"]) for row in neighbours[:6]] == [
        (name, rank) for name in ("tiny (start)", "run") for rank in (1, 2, 3)
    ]

    opened.clear()
    page, _ = report(run, monkeypatch, pair_file=pairs, baseline=str(run.parent), queries=0)
    assert opened[0] == (str(run.parent), run.parent.name)
    assert "Nearest sentences" not in parts(page)


def test_a_start_that_is_gone_is_left_out(run, monkeypatch, opened, pairs) -> None:
    change(run, model="gone")
    page, said = report(run, monkeypatch, pair_file=pairs)
    assert "gone cannot be opened any more: the page shows the run alone" in said
    assert list(parts(page))[-2:] == ["Nearest sentences", "Settings and data"]
    assert "What changed" not in parts(page)
    with pytest.raises(CheckpointError):
        report(run, monkeypatch, pair_file=pairs, baseline="gone")


def test_the_data_folder_alone_gives_spaces_too(run, monkeypatch, opened, sts_folder) -> None:
    page, _ = report(run, monkeypatch, data_dir=sts_folder, queries=0)
    assert "Singular values" in parts(page)


def test_the_running_mean_is_over_the_last_values_and_ends_at_them() -> None:
    values = np.random.default_rng(7).normal(size=25)
    expected = [values[max(0, end - 10) : end].mean() for end in range(1, 26)]
    assert running_mean(values, 10) == pytest.approx(np.array(expected))
    assert running_mean(np.array([1.0, 3.0, 5.0]), 2).tolist() == [1, 2, 4]


def test_training_figure_draws_losses_their_running_mean_and_dev_scores(run, monkeypatch) -> None:
    lines = [{"step": 1, "loss": 1.0}, {"step": 2, "dev_score": 0.5}, {"step": 3, "loss": 3.0}]
    lines += [{"step": 4, "dev_score": 0.6, "loss": None}]
    change(run, best_score=0.6, best_step=4)
    record = read_run_record(run)
    logged = [Measured(**line) for line in lines]
    left, right = training_figure([logged], [record]).axes
    assert [line.get_xydata().tolist() for line in left.lines] == [
        [[1, 1], [3, 3]],
        [[1, 1], [3, 2]],
    ]
    assert (left.get_ylabel(), left.get_xlabel(), right.get_xlabel()) == ("loss", "step", "step")
    assert [line.get_xydata().tolist() for line in right.lines] == [[[2, 50], [4, 60]]]
    assert right.get_ylabel() == "sts-dev x100"
    assert right.collections[0].get_offsets().tolist() == [[4, 60]]
    low, high = right.get_ylim()
    assert 49 < low < 50 < 60 < high < 61

    record.data["n_dev_pairs"] = 26
    noise = 200 * (1 - 0.55**2) / 5  # two standard errors of 0.55 over 26 pairs
    right = training_figure([logged], [record]).axes[1]
    assert right.get_ylim() == pytest.approx((55 - noise, 55 + noise))
    for missing in ("best_step", "best_score"):
        change(run, best_score=0.6, best_step=4)
        change(run, **{missing: None})
        assert not training_figure([logged], [read_run_record(run)]).axes[1].collections
    assert len(training_figure([logged[:1]], [record]).axes) == 1

    # A killed run may have begun another line.
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text(f'{text}{{"step": 5, "lo')
    scored = parts(report(run, monkeypatch)[0])["Training"]
    expected = "Loss of each logged step, with the mean of the last 10"
    assert scored.text == f"{expected}, and the dev score at each evaluation."
    assert scored.caption.startswith("Left: loss against the step. Right: dev score;")
    assert len(scored.figure().axes) == 2

    # Without dev scores there is one panel, and the caption tells of one.
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    plain = parts(report(run, monkeypatch)[0])["Training"]
    assert (plain.text, plain.caption) == (f"{expected}.", "Loss against the step.")
    assert len(plain.figure().axes) == 1
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": "high"}\n')
    with pytest.raises(DataError, match=r"metrics.jsonl, line 1: loss is 'high', need a finite"):
        report(run, monkeypatch)


def test_the_seeds_of_a_folder_are_one_page_with_mean_and_deviation(tmp_path, monkeypatch) -> None:
    for seed, best in ((1, 0.80), (2, 0.82), (3, 0.87)):
        run = write_run(tmp_path / f"new/seed-{seed}", seed=seed, best_score=best)
        change(run, start_score=0.75, timings={"train_s": 60.0})
        write_sts_result(run / "sts.json", dict.fromkeys(STS_TASKS, best))
    pages, heard = [], Heard()
    monkeypatch.setattr(run_report, "html_page", lambda page, _: pages.append(page) or "the page")
    write_run_report(tmp_path / "new", ReportOptions(output=tmp_path / "page.html"), heard)
    (page,) = pages
    assert page.title == "new"
    assert page.subtitle == "simcse-unsup on tiny, seeds 1, 2, 3, finished."
    facts = dict(page.facts)
    assert facts["STS average"] == "83.00"
    assert facts["sts-dev, best"] == "83.00 ± 3.61"
    # Gains of 5, 7 and 12 points: the t-interval over three seeds.
    low, high = stats.t.interval(0.95, 2, loc=8, scale=np.std([5, 7, 12], ddof=1) / 3**0.5)
    assert facts["gain over the start"] == (
        f"+8.00 ({low:+.2f} to {high:+.2f}), 95% interval over 3 seeds"
    )
    scores = parts(page)["Scores"].tables[0]
    assert scores.cells()[-1][0] == "new (mean of 3)"
    assert scores.cells()[-1][0] in page.own
    assert scores.cells()[-1][1] == "83.00 ± 3.61"
    assert len(parts(page)["Training"].figure().axes[1].lines) == 3


def test_the_page_has_no_folders_of_the_machine(run, monkeypatch) -> None:
    where = "/home/me/secret/wiki.txt"
    config = {"train_file": [where], "model": "/opt/models/mine", "url": "https://a.b/c/d"}
    change(run, config=config, model="/opt/models/mine", data={"dev_file": "/data/x/own-dev.csv"})
    page, _ = report(run, monkeypatch)
    assert page.subtitle.startswith("simcse-unsup on mine, seed 1")
    settings, data, _ = parts(page)["Settings and data"].tables
    assert [row[1] for row in settings.cells()] == ["['wiki.txt']", "mine", "https://a.b/c/d"]
    assert data.cells() == [["dev_file", "own-dev.csv"]]
    assert (
        run_report.without_folders(f"{where} is of an earlier model (/a/b.json); 3/4 and a/b/c")
        == "wiki.txt is of an earlier model (b.json); 3/4 and a/b/c"
    )


def test_the_page_says_in_words_whether_the_run_is_better(run, monkeypatch, opened, pairs) -> None:
    page, _ = report(run, monkeypatch, pair_file=pairs)
    # The cosines of the run rise with the ratings, those of the start fall: 1 and -1.
    assert page.verdict == (
        "On some: better than tiny (start) by 200.0 to 200.0 points. "
        "Spearman x100: +200.00 (+200.00 to +200.00), 95% interval over 12 pairs."
    )


def test_undefined_resamples_of_the_verdict_are_counted(run, monkeypatch, opened, pairs) -> None:
    angles = np.array([0.2, 0.2, 0.2, 0.5, 0.2, 0.5, 0.9, 0.2, 0.9, 0.2, 0.2, 0.2])
    monkeypatch.setattr(sys.modules[__name__], "ANGLES", angles)
    _, said = report(run, monkeypatch, pair_file=pairs)
    assert any("resamples have no correlation and are left out" in line for line in said)


def test_pairs_that_chose_the_model_give_no_verdict(run, monkeypatch, opened, pairs) -> None:
    chosen_on = digest_of_pairs((f"left {i}", f"right {i}") for i in range(N_PAIRS))
    change(run, data={"dev_pairs": {"dev.csv": chosen_on}})
    page, _ = report(run, monkeypatch, pair_file=pairs)
    assert page.verdict == ("On some: the dev data chose this model, so there is no test on them.")


def test_a_baseline_of_the_same_name_is_told_apart(
    run, monkeypatch, opened, pairs, tmp_path
) -> None:
    before = write_run(tmp_path / "older/run")
    page, _ = report(run, monkeypatch, pair_file=pairs, baseline=str(before))
    assert [label for _, label in opened] == ["older/run", f"{tmp_path.name}/run"]
    assert "better than older/run" in page.verdict or "no difference from older/run" in page.verdict
    names = [row[0] for row in parts(page)["Scores"].tables[0].cells()]
    assert len(set(names)) == len(names) == 2


def test_the_columns_of_the_pair_file_are_passed_on(run, monkeypatch, opened, tmp_path) -> None:
    path = tmp_path / "odd.csv"
    path.write_text("note,b,a,r\nx,one,two,1\ny,three,four,3\n")
    heard: list[Any] = []
    read = run_report.read_pair_set
    monkeypatch.setattr(
        run_report, "read_pair_set", lambda *given: heard.append(read(*given)) or heard[-1]
    )
    report(run, monkeypatch, pair_file=path, columns="left=b,right=a,score=r")
    assert heard[0].pairs.sentences == ["one", "three", "two", "four"]


def test_the_average_of_a_run_is_not_that_of_its_baseline_or_other_settings(
    run, monkeypatch, tmp_path
) -> None:
    write_sts_result(run / "sts.json", dict.fromkeys(STS_TASKS, 0.9))
    (run / "results").mkdir()
    write_sts_result(run / "results/a.json", dict.fromkeys(STS_TASKS, 0.8), pooler="cls")
    for seed in (1, 2):
        other = write_run(tmp_path / f"base/seed-{seed}", seed=seed, lr=1e-5)
        write_sts_result(other / "sts.json", dict.fromkeys(STS_TASKS, 0.5))
    page, _ = report(run, monkeypatch, baseline=str(tmp_path / "base"))
    assert dict(page.facts)["STS average"] == "90.00"

    baseline = tmp_path / "base/seed-1"
    write_sts_result(baseline / "sts.json", dict.fromkeys(STS_TASKS, 0.7))
    page, _ = report(tmp_path / "base/seed-2", monkeypatch, baseline=str(baseline))
    assert dict(page.facts)["STS average"] == "50.00"
