import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from comparison import cases
from simcse_cli.analysis.options import TraceOptions
from simcse_cli.analysis.presentation import NamedSource
from simcse_cli.analysis.trace import (
    Trace,
    read_trace,
    trace_analysis,
    trace_figure,
    trace_models,
    trace_runs,
    traced_systems,
)
from simcse_cli.errors import DataError, UsageError
from simcse_cli.progress import SILENT, SilentProgress
from simcse_cli.results.plots import SOFT


def write_run(folder, rows):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_read_trace_keeps_measured_steps_in_order(tmp_path):
    rows = [
        {"step": 0, "alignment": 0.2, "uniformity": -1.0, "dev_score": 0.5},
        {"step": 5, "loss": 1.0},
        {"step": 6, "alignment": 0.9},
        {"step": 20, "alignment": 0.4, "uniformity": -3.0, "dev_score": None},
        {"step": 10, "alignment": 0.3, "uniformity": -2.0, "dev_score": 0.7},
    ]
    trace = read_trace(write_run(tmp_path / "run", rows), "mine")
    assert trace.steps.tolist() == [0, 10, 20]
    assert trace.points.tolist() == [[-1.0, 0.2], [-2.0, 0.3], [-3.0, 0.4]]
    assert trace.best == 1
    assert np.isnan(trace.dev_score[2])


def test_read_trace_of_a_repeated_step_keeps_the_last(tmp_path):
    rows = [
        {"step": step, "alignment": value, "uniformity": -1}
        for step, value in [(0, 1), (10, 2), (10, 3)]
    ]
    trace = read_trace(write_run(tmp_path / "run", rows) / "metrics.jsonl", "mine")
    assert trace.alignment.tolist() == [1, 3]
    assert trace.best is None


def test_trace_until_includes_the_step():
    steps = np.arange(0, 50, 10)
    trace = Trace("t", steps, steps / 1.0, steps / 2.0, steps / 3.0)
    assert trace.until(20).steps.tolist() == [0, 10, 20]


def test_read_trace_without_measurements_says_how_to_get_them(tmp_path):
    run = write_run(tmp_path / "run", [{"step": 1, "loss": 2.0}])
    with pytest.raises(DataError, match="at 0 steps, need 2") as raised:
        read_trace(run, "mine")
    assert "--eval-every" in raised.value.hint


def test_read_trace_of_a_missing_run_names_it(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        read_trace(tmp_path / "nowhere", "mine")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{broken\n", "line 1: not valid"),
        ("[1]\n", "line 1: a list, need an object"),
        ('{"step": 1, "alignment": "low"}\n', "line 1: alignment"),
    ],
)
def test_read_trace_names_a_bad_line(tmp_path, text, message):
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_trace(path, "mine")


def trace(name: str, n_steps: int, *, dev: bool = True) -> Trace:
    steps = np.arange(n_steps) * 10
    line = np.linspace(0.0, 1.0, n_steps)
    return Trace(name, steps, 0.2 + line, -1 - line, line if dev else np.full(n_steps, np.nan))


def panel_titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


@pytest.mark.parametrize(
    ("n_steps", "dev", "titles"),
    [
        (15, True, ["first 100 steps", "whole run (140 steps)", "dev score"]),
        (15, False, ["first 100 steps", "whole run (140 steps)"]),
        (11, True, ["whole run (100 steps)", "dev score"]),
    ],
)
def test_trace_figure_has_the_panels_that_the_runs_allow(n_steps, dev, titles):
    traces = [trace("one", n_steps, dev=dev), trace("two", 3, dev=False)]
    assert (
        panel_titles(trace_figure(traces))
        == panel_titles(trace_analysis(traces).figure())
        == titles
    )
    assert panel_titles(trace_figure(traces, dev=False)) == [
        title for title in titles if title != "dev score"
    ]


def test_trace_figure_draws_six_arrows_along_a_path_with_its_start_and_its_best():
    own = trace("one", 15)
    (axes, _) = trace_figure([own], first_steps=1000).axes
    path, start, *_ = axes.lines
    np.testing.assert_array_equal(path.get_xydata(), own.points)
    assert (start.get_xydata().tolist(), start.get_markerfacecolor()) == (
        [own.points[0].tolist()],
        "white",
    )
    arrows = [(list(text.xyann), list(text.xy)) for text in axes.texts]
    moves = [0, 2, 5, 7, 10, 13]
    assert arrows == [(own.points[move].tolist(), own.points[move + 1].tolist()) for move in moves]
    assert all(
        text.arrow_patch.get_arrowstyle().__class__.__name__ == "CurveFilledB"
        for text in axes.texts
    )
    assert {to_hex(text.arrow_patch.get_facecolor()) for text in axes.texts} == {
        to_hex(path.get_color())
    }
    (star,) = axes.collections
    assert star.get_offsets().tolist() == [own.points[14].tolist()]
    assert len(star.get_paths()[0].vertices) == 11  # five points, five notches, and back
    short = trace_figure([trace("one", 3)]).axes[0]
    assert len(short.texts) == 2


def test_a_star_stands_only_on_the_best_step_of_the_whole_run_and_before_every_start():
    late = trace("late", 15)  # its best is the last step
    early = replace(trace("early", 15), dev_score=np.linspace(0.9, 0.1, 15))
    first, whole, _ = trace_figure([early, late], int(late.steps[5])).axes
    at_start = early.points[0].tolist()
    for axes, expected in ((first, [at_start]), (whole, [at_start, late.points[14].tolist()])):
        assert [star.get_offsets()[0].tolist() for star in axes.collections] == expected
        starts = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
        assert min(star.get_zorder() for star in axes.collections) > max(
            start.get_zorder() for start in starts
        )


def test_trace_figure_joins_the_front_of_several_runs_and_names_all_signs():
    steps, nothing = np.array([0, 10]), np.full(2, np.nan)
    left = Trace("left", steps, np.array([0.9, 0.1]), np.array([-1.0, -2.0]), nothing)
    right = Trace(
        "right", steps, np.array([0.8, 0.3]), np.array([-1.0, -3.0]), np.array([0.4, 0.6]), 26
    )
    figure = trace_figure([left, right])
    front = next(line for line in figure.axes[0].lines if line.get_label() == "Pareto front")
    assert front.get_xydata().tolist() == [[-3.0, 0.3], [-2.0, 0.1]]
    assert (front.get_marker(), front.get_markerfacecolor()) == ("o", "none")
    (legend,) = figure.legends
    names = ["left", "right", "Pareto front", "start", "best dev score"]
    assert [text.get_text() for text in legend.get_texts()] == names
    start, best = legend.get_lines()[-2:]
    assert [
        (mark.get_marker(), mark.get_linestyle(), mark.get_color()) for mark in (start, best)
    ] == [
        ("o", "None", SOFT),
        ("*", "None", SOFT),
    ]
    assert start.get_markerfacecolor() == "white"
    alone = trace_figure([right]).axes[0]
    assert "Pareto front" not in [line.get_label() for line in alone.lines]
    no_dev = trace_figure([left]).legends[0]
    assert [text.get_text() for text in no_dev.get_texts()] == ["left", "start"]


def test_trace_figure_shows_the_noise_of_dev_scores():
    steps = np.array([0, 10, 20])
    missing = Trace("none", steps, steps / 1.0, steps / 1.0, np.full(3, np.nan), 26)
    scored = Trace("some", steps, steps / 1.0, steps / 1.0, np.array([0.5, np.nan, 0.6]), 26)
    axes = trace_figure([missing, scored]).axes[-1]
    assert [line.get_xydata().tolist() for line in axes.lines] == [[], [[0, 50.0], [20, 60.0]]]
    assert axes.collections[0].get_offsets().tolist() == [[20, 60.0]]
    noise = 200 * (1 - 0.55**2) / 5  # two standard errors of 0.55 over 26 pairs
    assert axes.get_ylim() == pytest.approx((55 - noise, 55 + noise))
    plain = trace_figure([Trace("some", steps, steps / 1.0, steps / 1.0, scored.dev_score)]).axes[
        -1
    ]
    low, high = plain.get_ylim()
    assert 49 < low < 50 < 60 < high < 61


def test_trace_analysis_of_two_runs():
    steps = np.array([0, 10, 30])
    one = Trace(
        "one", steps, np.array([0.4, 2, 1]), np.array([-1.0, -2, -3]), np.array([0.5, np.nan, 0.25])
    )
    two = Trace("two", steps[:2], np.array([3.0, 0.5]), np.array([-1.0, -2]), np.full(2, np.nan))
    found = trace_analysis([one, two])
    first = {
        "run": "one",
        "n_points": 3,
        "last_step": 30,
        "first_alignment": 0.4,
        "last_alignment": 1,
    }
    first |= {
        "first_uniformity": -1,
        "last_uniformity": -3,
        "best_dev_score": 0.5,
        "best_step": 0,
        "n_on_front": 2,
    }
    second = {
        "run": "two",
        "n_points": 2,
        "last_step": 10,
        "first_alignment": 3,
        "last_alignment": 0.5,
    }
    second |= {
        "first_uniformity": -1,
        "last_uniformity": -2,
        "best_dev_score": None,
        "best_step": None,
    }
    assert found.payload["runs"] == [first, second | {"n_on_front": 1}]
    assert found.payload["points"] == found.series[0].rows
    assert (found.payload["analysis"], len(found.payload["points"])) == ("trace", 5)
    row = {"run": "one", "step": 10, "alignment": 2.0, "uniformity": -2.0, "dev_score": None}
    assert found.payload["points"][1] == row
    headings = [
        "run",
        "points",
        "last step",
        "alignment: first",
        "last",
        "uniformity: first",
        "last",
        "best dev",
        "at step",
    ]
    assert [column.heading for column in found.tables[0].columns] == [*headings, "on Pareto front"]
    assert found.caption.endswith("star: best dev score; grey rings: Pareto front of the runs.")
    alone = trace_analysis([one])
    assert [column.heading for column in alone.tables[0].columns] == headings
    assert alone.caption.endswith("star: best dev score.")
    assert alone.payload["runs"][0]["n_on_front"] == 2
    assert "\n  B  two\n" in found.terminal_plot()


def test_trace_runs_takes_arguments_then_models_and_the_seeds_of_a_folder(tmp_path):
    rows = [
        {"step": step, "alignment": 0.5, "uniformity": -1, "dev_score": 0.5} for step in (0, 110)
    ]
    for seed in (1, 2):
        cases.write_run(tmp_path / f"all/seed-{seed}", seed=seed)
    write_run(tmp_path / "one", rows)
    options = TraceOptions(model=[str(tmp_path / "all")], first=50)
    found = trace_runs([str(tmp_path / "one")], options, None, SILENT)
    names = ["one", "all/seed-1", "all/seed-2"]
    assert [row["run"] for row in found.payload["runs"]] == names
    assert [row[0] for row in found.tables[0].cells()] == [*names, "all (mean of 2)", "  deviation"]
    assert panel_titles(found.figure())[0] == "first 50 steps"
    alone = trace_runs([str(tmp_path / "one")], TraceOptions(), ["mine"], SILENT)
    assert [row["run"] for row in alone.payload["runs"]] == ["mine"]
    with pytest.raises(UsageError, match="need at least one run folder"):
        trace_runs([], TraceOptions(), None, SILENT)


def test_an_unfinished_seed_is_named_and_the_mean_is_at_the_steps_of_all(tmp_path):
    for seed in (1, 2, 3):
        run = cases.write_run(tmp_path / f"all/seed-{seed}", seed=seed)
        step = {"step": 30, "dev_score": 0.9, "alignment": 0.1 * seed, "uniformity": -3.0}
        with (run / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps(step) + "\n")
    progress = SilentProgress()
    (table,) = trace_runs([str(tmp_path / "all")], TraceOptions(), None, progress).tables
    assert progress.warnings == []
    assert table.rows[3]["last_step"] == 30
    assert len(table.notes) == 2  # on the front and on the deviation

    shutil.rmtree(tmp_path / "all/seed-3")
    cases.write_run(tmp_path / "all/seed-3", seed=3, status="interrupted")
    found = trace_runs([str(tmp_path / "all")], TraceOptions(), None, progress)
    assert progress.warnings == ["all/seed-3 is interrupted, step 20 of 20"]
    (table,) = found.tables
    assert table.rows[2]["n_on_front"] == 0
    *_, mean, deviation = table.rows
    assert (mean["run"], mean["last_step"], mean["n_points"]) == ("all (mean of 3)", 20, 2)
    assert (mean["last_alignment"], mean["best_dev_score"]) == pytest.approx((0.2, 0.8))
    assert deviation["last_alignment"] == pytest.approx(0)
    assert (mean.get("n_on_front"), deviation.get("n_on_front")) == (None, None)
    (summary,) = found.payload["seeds"]  # the numbers of the table, in JSON
    assert (summary["label"], summary["n_seeds"]) == ("all", 3)
    for measure in ("first_uniformity", "last_alignment", "best_dev_score"):
        assert summary["mean"][measure] == mean[measure]
        assert summary["deviation"][measure] == deviation[measure]
    assert table.notes[0].startswith("on Pareto front: ")
    assert table.notes[2] == (
        "all (mean of 3): over the steps that all seeds measured, the last is 20"
    )


def test_trace_models_passes_over_what_is_no_measured_run(tmp_path):
    rows = [
        {"step": step, "alignment": 0.5, "uniformity": -1, "dev_score": 0.5} for step in (0, 110)
    ]
    runs = [
        NamedSource(str(write_run(tmp_path / name, own)), name)
        for name, own in (("a", rows), ("b", rows[:1]))
    ]
    (tmp_path / "c").mkdir()
    runs.append(NamedSource(str(tmp_path / "c"), "c"))
    (found,) = trace_models(runs)
    assert [row["run"] for row in found.payload["runs"]] == ["a"]
    assert panel_titles(found.figure()) == ["first 100 steps", "whole run (110 steps)", "dev score"]
    (without,) = trace_models(runs, dev=False)
    assert panel_titles(without.figure()) == ["first 100 steps", "whole run (110 steps)"]
    assert trace_models(runs[1:]) == []


def test_a_record_gives_the_number_of_dev_pairs(tmp_path):
    run = cases.write_run(tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"data": {"n_dev_pairs": 1500}}))
    assert read_trace(run, "mine").n_dev_pairs == 1500


def test_seeds_without_a_step_in_common_have_no_mean_and_a_note_says_so():
    first = replace(trace("new/1", 3), group="new")
    second = replace(trace("new/2", 3), group="new", steps=first.steps + 5)
    note = "new (mean of 2) is not drawn: its seeds were measured at no step in common"
    found = trace_analysis([first, second])
    assert found.tables[0].notes[1:] == [note]
    assert "seeds" not in found.payload
    legend = found.figure().legends[0]
    assert note.partition(" is")[0] not in [each.get_text() for each in legend.get_texts()]
    same = trace_analysis([first, replace(first, name="new/3")]).tables[0]
    assert same.notes[1:] == ["deviation: over the seeds (n - 1)"]


def test_the_seeds_of_a_system_have_one_colour_their_mean_and_a_band():
    steps = np.array([0, 10, 20])
    seeds = [
        Trace("new/1", steps, np.array([0.2, 0.3, 0.4]), -steps / 10.0, np.array([0.5, 0.6, 0.7])),
        Trace("new/2", steps, np.array([0.2, 0.5, 0.6]), -steps / 10.0, np.array([0.5, 0.8, 0.9])),
    ]
    # One that stopped early has no last step, which the mean then lacks.
    short = Trace("new/3", steps[:2], np.array([0.2, 0.4]), -steps[:2] / 10.0, np.array([0.5, 0.7]))
    traces = [replace(each, group="new") for each in (*seeds, short)]
    system, alone = traced_systems([*traces, trace("old", 3)])
    assert (system.mean.name, alone.mean.name) == ("new (mean of 3)", "old")
    assert system.mean.steps.tolist() == [0, 10]
    assert system.mean.points.tolist() == [[0.0, pytest.approx(0.2)], [-1.0, pytest.approx(0.4)]]
    assert system.deviation.tolist() == pytest.approx([0.0, 0.1])

    paths, dev = trace_figure([*traces, trace("old", 3)]).axes
    colours = [to_hex(line.get_color()) for line in paths.lines]
    assert len(set(colours[:5])) == 1  # three thin seeds, the mean and its start
    assert [line.get_label() for line in paths.lines if not line.get_label().startswith("_")] == [
        *("new (mean of 3)", "old", "Pareto front", "start", "best dev score"),
    ]
    (band, *_) = dev.collections
    low, high = band.get_datalim(dev.transData).intervaly
    assert (low, high) == pytest.approx((50.0, 80.0))
    found = trace_analysis(traces)
    assert found.caption.endswith("band: one deviation over them.")
    assert len(found.payload["runs"]) == 3
