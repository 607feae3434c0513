import csv
import html
import io
import json
import os
import re
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from simcse_cli.commands.console import Console
from simcse_cli.commands.options import OutputOptions
from simcse_cli.errors import DataError, OutputError, UsageError
from simcse_cli.results.report import Column, Outcome, Report, to_csv, to_latex, to_markdown
from simcse_cli.settings.choices import OutputFormat

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


def test_bars_in_headings_and_cells_do_not_split_a_markdown_table():
    report = Report("", [Column("a", "left|right")], [{"a": "x|y"}])
    assert to_markdown(report).splitlines() == ["| left\\|right |", "|---|", "| x\\|y |"]


def test_markdown_obeys_no_text():
    """Rendered by a Markdown library, each cell shows the text itself."""
    render = pytest.importorskip("markdown_it").MarkdownIt().enable("table").render
    texts = [
        "<script>alert(1)</script>",
        "![a](http://x) [b](javascript:1)",
        "`c` *d* **e** &lt; &#60; a < b & c",
        r"\<b> \\<i> \[f](g) C:\temp \|",
    ]
    report = Report("", [Column("text")], [{"text": text} for text in texts], ["<u>note</u>"])
    page = render(to_markdown(report))
    shown = [html.unescape(cell) for cell in re.findall("<td>(.*)</td>", page)]
    assert shown == texts
    assert "&lt;u&gt;note&lt;/u&gt;" in page


def test_latex_rows_are_no_options_of_the_line_before():
    report = Report("", [Column("text")], [{"text": "[9cm]"}, {"text": "*"}, {"text": "a[1]"}])
    rows = to_latex(report).split("\\midrule\n")[1].splitlines()[:3]
    assert rows == [r"{}[9cm] \\", r"{}* \\", r"a[1] \\"]


def test_a_line_end_in_a_cell_does_not_end_a_markdown_table():
    report = Report("", [Column("a"), Column("b")], [{"a": "x\n\n# y", "b": "z"}])
    assert to_markdown(report).splitlines()[2] == "| x  # y | z |"


def test_control_characters_are_escaped_where_people_read_and_kept_where_programs_do(capsys):
    """A terminal shows them and does not obey them; a program that reads the JSON gets the text itself."""
    text = "so\x1b[31mak\x07\u202e\x85"
    report = Report("R", [Column("a", text)], [{"a": text}])
    assert "so\\x1b[31mak\\x07\\u202e\\x85" in to_markdown(report)
    assert r"so\textbackslash{}x1b[31mak\textbackslash{}x07" in to_latex(report)
    assert "so\\x1b[31mak\\x07\\u202e\\x85" in to_csv(report)
    Console().emit(Outcome([report], {"a": text}), OutputFormat.JSON)
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert json.loads(shown) == {"a": text}


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


def test_latex_is_a_whole_table_with_booktabs_caption_label_and_minus_signs():
    columns = [
        Column("system"),
        Column("d", "STS-B", "difference"),
        Column("u", "uniformity", "signed"),
    ]
    lines = to_latex(
        Report("Difference to A & B", columns, [{"system": "a-b", "d": -0.0123, "u": 0.5}])
    ).splitlines()
    assert lines == [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\caption{Difference to A \& B.}",
        r"\label{tab:difference-to-a-b}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"system & STS-B & uniformity \\",
        r"\midrule",
        r"a-b & $-$1.23 & $+$0.5 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_json_is_the_payload_on_stdout(capsys):
    Console().emit(Outcome([REPORT], {"score": 0.5, "missing": None}), OutputFormat.JSON)
    assert json.loads(capsys.readouterr().out) == {"score": 0.5, "missing": None}


def test_nan_never_reaches_json():
    with pytest.raises(ValueError, match="JSON"):
        Console().emit(Outcome([REPORT], {"score": float("nan")}), OutputFormat.JSON)


def test_table_off_a_terminal_is_plain_text(capsys):
    Console().emit(Outcome([REPORT], {}))
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "Title"
    assert "\x1b" not in out


def test_output_file_gets_json_beside_a_table_and_is_not_overwritten(tmp_path, capsys):
    path = tmp_path / "r.json"
    Console().emit(Outcome([REPORT], {"score": 1}), output=path)
    assert json.loads(path.read_text()) == {"score": 1}
    assert "72.37" in capsys.readouterr().out
    with pytest.raises(OutputError, match="exists already"):
        Console().emit(Outcome([REPORT], {"score": 2}), output=path)
    Console().emit(Outcome([REPORT], {"score": 2}), output=path, force=True)
    assert json.loads(path.read_text()) == {"score": 2}


def test_csv_gets_the_series_where_there_are_some():
    table, series = Report("", [Column("a")], []), Report("", [Column("b")], [])
    both = Outcome([table], {}, series=[series])
    assert both.text(OutputFormat.CSV) == "b\n"
    assert both.text(OutputFormat.TABLE) == Outcome([table], {}).text(OutputFormat.CSV) == "a\n"


@pytest.mark.parametrize(
    ("name", "first_line"),
    [
        ("r.json", "{"),
        ("r.CSV", "model,STS_12,pairs,s"),
        ("r.md", "| model | STS_12 | pairs | s |"),
        ("r.tex", r"% needs \usepackage{booktabs}"),
        ("r", "{"),
        ("run-1.5", "{"),
    ],
)
def test_the_ending_of_an_output_decides_its_format(tmp_path, capsys, name, first_line):
    Console().emit(Outcome([REPORT], {"score": 1}), output=tmp_path / name)
    assert (tmp_path / name).read_text().splitlines()[0] == first_line
    assert capsys.readouterr().out.startswith("Title\n")


@pytest.mark.parametrize(
    ("name", "fmt", "message", "hint"),
    [
        ("a b.xyz", "table", "no format .xyz, need one of .json, .csv, .md, .tex", "-o 'a b.json'"),
        ("r.parquet", "csv", "no format .parquet", "-o r.csv"),
        ("r.json", "csv", "a file of json, but --format says csv", "-o r.csv, or leave out"),
    ],
)
def test_an_ending_that_says_another_format_is_refused_before_anything_is_computed(
    name, fmt, message, hint
):
    with pytest.raises(UsageError, match=message) as error:
        OutputOptions(OutputFormat(fmt), Path(name)).check()
    assert error.value.hint.startswith(hint)


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


def test_hint_is_given_once_a_day(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SIMCSE_CACHE", str(tmp_path))
    Console().hint("once")
    Console().hint("once")
    assert capsys.readouterr().err == "once\n"
    (stamp,) = (tmp_path / "hints").iterdir()
    two_days_ago = stamp.stat().st_mtime - 2 * 24 * 3600
    os.utime(stamp, (two_days_ago, two_days_ago))
    Console().hint("once")
    assert capsys.readouterr().err == "once\n"


def test_hint_does_not_need_a_cache(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SIMCSE_CACHE", str(tmp_path / "file"))
    Console().hint("said all the same")
    assert capsys.readouterr().err == "said all the same\n"
    monkeypatch.delenv("SIMCSE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError))
    Console().hint("said without a home")
    assert capsys.readouterr().err == "said without a home\n"


def clock(monkeypatch, times):
    """Let the console read these seconds, one after the other."""
    ticks = iter(times)
    monkeypatch.setattr("simcse_cli.commands.console.time.monotonic", lambda: next(ticks))


def test_progress_off_a_terminal_ends_with_one_plain_line(capsys, monkeypatch):
    clock(monkeypatch, [0.0, 1.0, 2.0])
    with Console().task("encoding", 10) as task:
        task.update(loss="0.5")
        task.advance(10)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["encoding: 10 in 2.0 s (5.0/s), loss 0.5"]


def test_long_progress_off_a_terminal_says_rate_and_time_left_ever_more_rarely(capsys, monkeypatch):
    clock(monkeypatch, [0.0, 10.0, 20.0, 30.0, 40.0, 100.0])
    with Console().task("encoding", 1000) as task:
        for _ in range(4):
            task.advance(100)
    assert capsys.readouterr().err.splitlines() == [
        "encoding: 200 of 1,000 (20%), 10/s, 1 min 20 s left",
        "encoding: 400 of 1,000 (40%), 10/s, 1 min 00 s left",
        "encoding: 400 in 1 min 40 s (4.0/s)",
    ]


def test_rate_and_time_left_leave_out_the_first_work(capsys, monkeypatch):
    clock(monkeypatch, [0.0, 267.0, 567.0, 600.0])
    with Console().task("training", 40) as task:
        task.advance()
        task.advance(9)
    assert capsys.readouterr().err.splitlines() == [
        "training: 1 of 40 (2%)",
        "training: 10 of 40 (25%), 33.3 s each, 16 min 40 s left",
        "training: 10 in 10 min 00 s (60.0 s each)",
    ]


def test_a_task_that_gives_the_rate_of_its_work_has_no_other_until_its_end(capsys, monkeypatch):
    clock(monkeypatch, [0.0, 10.0, 20.0, 40.0])
    with Console().task("training", 40) as task:
        task.update(loss="0.5", rate="64 sentences/s")
        task.advance()
        task.advance(9)
    assert capsys.readouterr().err.splitlines() == [
        "training: 10 of 40 (25%), 33 s left, loss 0.5, rate 64 sentences/s",
        "training: 10 in 40 s, loss 0.5",
    ]


def test_a_task_that_counts_nothing_ends_with_its_time(capsys, monkeypatch):
    clock(monkeypatch, [0.0, 17.0])
    with Console().task("compiling"):
        pass
    assert capsys.readouterr().err == "compiling: 17 s\n"


def test_a_live_bar_moves_before_the_first_work_is_done(monkeypatch):
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = Console()
    with console.task("training", 40) as task:
        (row,) = console._bar.tasks
        assert row.total is None  # Rich then moves the bar by itself
        task.advance()
        assert (row.completed, row.total) == (1, 40)


def test_live_progress_has_label_count_and_rate(capsys, monkeypatch):
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = Console()
    with console.task("encoding", 2000) as task:
        task.advance(500)
        task.advance(500)
        console._bar.refresh()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert re.search(r"encoding .* 1,000/2,000  [\d,]+/s", shown)

    with console.task("training", 2000) as task:
        task.update(rate="64 sentences/s")
        task.advance(500)
        task.advance(500)
        console._bar.refresh()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert re.search(r"training .* 1,000/2,000 ", shown)
    assert not re.search(r"2,000  [\d,]+/s", shown)


def test_detail_needs_verbose(capsys):
    Console().detail("hidden")
    Console(verbose=True).detail("shown")
    assert capsys.readouterr().err == "shown\n"


def test_quiet_works_before_and_after_the_command(invoke, tmp_path):
    before = invoke("-q", "prepare", "demo", "-o", tmp_path / "a", "--sentences", 5)
    after = invoke("prepare", "demo", "-o", tmp_path / "b", "--sentences", 5, "-q")
    assert (before.exit_code, before.stderr) == (after.exit_code, after.stderr) == (0, "")


WIDE = Report(
    "A title that is longer than the terminal is wide, and stays on one line so that one can "
    "search for it",
    [
        Column("system"),
        *(Column(f"t{i}", f"STS{i}", "score") for i in range(12)),
        Column("average", kind="score"),
    ],
    [
        {
            "system": "runs/a-long-name-of-a-run/seed-42",
            **{f"t{i}": 0.8 + i / 1000 for i in range(12)},
            "average": 0.8,
        }
    ],
)


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_blocks_of_a_wide_table_fit_and_lose_nothing(width):
    blocks = WIDE.blocks(width)
    assert all(sum(size for _, size in block) + 2 * (len(block) - 1) <= width for block in blocks)
    assert [block[0][0] for block in blocks] == [0] * len(blocks)
    assert sorted(i for block in blocks for i, _ in block if i) == list(range(1, 14))
    for block in blocks:
        assert all(size >= 5 for i, size in block if i)


def test_blocks_keep_the_natural_widths_where_there_is_room():
    assert WIDE.blocks(200) == [[(0, 33), *((i, 5) for i in range(1, 13)), (13, 7)]]


def test_table_on_a_narrow_terminal_shows_path_average_and_title_whole(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    Console().emit(Outcome([WIDE], {}))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert lines[0] == WIDE.title
    assert max(len(line) for line in lines[1:]) <= 80
    squeezed = "".join(line[:20].strip() for line in lines[3:5])
    assert squeezed.startswith("runs/a-long-name-of-a-run/seed-42"[:20])
    assert any("average" in line for line in lines)
    assert "…" not in "".join(lines)


@pytest.mark.parametrize(
    ("started", "is_told"),
    [({}, True), ({"SIMCSE_LAUNCHED": "1"}, False), ({"RANK": "1"}, False), ({"RANK": "0"}, True)],
)
def test_every_command_warns_once_of_a_mistyped_variable(
    invoke, monkeypatch, tmp_path, started, is_told
):
    for variable, value in (started | {"SIMCSE_MODLE": "x"}).items():
        monkeypatch.setenv(variable, value)
    done = invoke("prepare", "demo", "-o", tmp_path / "demo")
    assert done.exit_code == 0
    line = "SIMCSE_MODLE gives no setting; did you mean SIMCSE_MODEL?"
    assert done.stderr.count(line) == is_told


def test_an_error_as_json_is_the_last_line_and_quiet_leaves_only_it(invoke, monkeypatch, tmp_path):
    monkeypatch.setenv("SIMCSE_MODLE", "x")
    (tmp_path / "w.txt").write_text("a\nb\n")
    command = ("train", "--train-file", tmp_path / "w.txt", "--batch-size", 0, "-f", "json")
    warning, last = invoke(*command).stderr.splitlines()
    assert warning.startswith("warning: SIMCSE_MODLE")
    (only,) = invoke(*command, "-q").stderr.splitlines()
    assert json.loads(only) == json.loads(last)
    assert json.loads(only)["place"] == "--batch-size"


@pytest.mark.parametrize(
    "name", [b"wei rd \xc3\xbc.txt", b"\xff", b"it's \\x41\xfe", b"two\nlines", b"plain name"]
)
def test_the_next_command_can_be_typed_whatever_a_file_is_called(name, capsys):
    """Under the locale C, other letters than those of ASCII come as lone surrogates."""
    Console().next_step("printf", "%s", name.decode("ascii", "surrogateescape"))
    typed = capsys.readouterr().err.strip().removeprefix("next: ")
    assert typed.isascii()
    assert subprocess.run(["bash", "-c", typed], check=True, capture_output=True).stdout == name
