import csv
import io
import json

import pytest

from simcse_cli.choices import OutputFormat
from simcse_cli.console import Console
from simcse_cli.errors import DataError, OutputError
from simcse_cli.report import Column, Report, to_csv, to_latex, to_markdown

REPORT = Report(
    "Title",
    [
        Column("model"),
        Column("sts", "STS_12", "score"),
        Column("n", "pairs", "count"),
        Column("s", kind="seconds"),
    ],
    [{"model": "a|b", "sts": 0.72368, "n": 3108, "s": 1.26}, {"model": "c", "sts": None, "n": 0}],
    ["a note"],
)


def test_scores_are_shown_times_hundred_and_missing_is_a_dash():
    assert REPORT.cells() == [["a|b", "72.37", "3,108", "1.3"], ["c", "–", "0", "–"]]


def test_csv_keeps_full_precision_and_empty_cells():
    rows = list(csv.DictReader(io.StringIO(to_csv(REPORT))))
    assert rows[0]["STS_12"] == "0.72368"
    assert rows[1]["STS_12"] == ""


def test_markdown_escapes_bars_and_aligns_numbers():
    lines = to_markdown(REPORT).splitlines()
    assert lines[1] == "|---|---:|---:|---:|"
    assert lines[2].startswith("| a\\|b | 72.37 |")


def test_latex_escapes_special_characters():
    text = to_latex(REPORT)
    assert "STS\\_12" in text
    assert "c & -- & 0 & --" in text


def test_json_is_the_payload_on_stdout(capsys):
    Console().emit(REPORT, {"score": 0.5, "missing": None}, OutputFormat.JSON)
    assert json.loads(capsys.readouterr().out) == {"score": 0.5, "missing": None}


def test_nan_never_reaches_json():
    with pytest.raises(ValueError, match="JSON"):
        Console().emit(REPORT, {"score": float("nan")}, OutputFormat.JSON)


def test_table_off_a_terminal_is_plain_text(capsys):
    Console().emit(REPORT, {})
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "Title"
    assert "\x1b" not in out


def test_output_file_gets_json_beside_a_table_and_is_not_overwritten(tmp_path, capsys):
    path = tmp_path / "r.json"
    Console().emit(REPORT, {"score": 1}, output=path)
    assert json.loads(path.read_text()) == {"score": 1}
    assert "72.37" in capsys.readouterr().out
    with pytest.raises(OutputError, match="exists already"):
        Console().emit(REPORT, {"score": 2}, output=path)
    Console().emit(REPORT, {"score": 2}, output=path, force=True)
    assert json.loads(path.read_text()) == {"score": 2}


def test_quiet_shows_errors_only(capsys):
    console = Console(quiet=True)
    console.info("info")
    console.warn("warning")
    console.error(DataError("broken", hint="mend it"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: broken\n   fix: mend it\n"


def test_warning_is_shown_once(capsys):
    console = Console()
    console.warn("twice")
    console.warn("twice")
    assert capsys.readouterr().err == "warning: twice\n"


def test_hint_is_given_once(capsys):
    console = Console()
    console.hint("once")
    console.hint("once")
    assert capsys.readouterr().err == "once\n"


def test_progress_off_a_terminal_ends_with_one_plain_line(capsys):
    console = Console()
    with console.task("encoding", 10) as task:
        task.update(loss="0.5")
        task.advance(10)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["encoding: 10/10, loss 0.5 (0 s)"]


def test_detail_needs_verbose(capsys):
    Console().detail("hidden")
    Console(verbose=True).detail("shown")
    assert capsys.readouterr().err == "shown\n"


def test_quiet_works_before_and_after_the_command(invoke, tmp_path):
    before = invoke("-q", "prepare", "demo", "-o", tmp_path / "a", "--sentences", 5)
    after = invoke("prepare", "demo", "-o", tmp_path / "b", "--sentences", 5, "-q")
    assert (before.exit_code, before.stderr) == (after.exit_code, after.stderr) == (0, "")
