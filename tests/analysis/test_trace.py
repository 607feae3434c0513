import json

import numpy as np
import pytest

from simcse_cli.analysis.trace import Trace, read_trace, trace_figure
from simcse_cli.errors import DataError


def write_run(folder, rows):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_read_trace_keeps_measured_steps_in_order(tmp_path):
    rows = [
        {"step": 0, "alignment": 0.2, "uniformity": -1.0, "dev_score": 0.5},
        {"step": 5, "loss": 1.0},
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
        {"step": step, "alignment": value, "uniformity": -1} for step, value in [(0, 1), (10, 2), (10, 3)]
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
    with pytest.raises(DataError, match=r"nowhere has no metrics\.jsonl"):
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


@pytest.mark.parametrize(
    ("n_steps", "dev", "titles"),
    [
        (15, True, ["first 100 steps", "whole run (140 steps)", "dev score"]),
        (15, False, ["first 100 steps", "whole run (140 steps)"]),
        (5, True, ["whole run (40 steps)", "dev score"]),
    ],
)
def test_trace_figure_has_the_panels_that_the_runs_allow(n_steps, dev, titles):
    figure = trace_figure([trace("one", n_steps, dev=dev), trace("two", n_steps, dev=dev)])
    assert [axes.get_title(loc="left") for axes in figure.axes] == titles
