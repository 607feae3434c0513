"""`simcse --info`, and how wrong usage looks."""

import json
import os
from pathlib import Path

import pytest
import torch

from simcse_cli.errors import SimcseError
from simcse_cli.version import __version__


def test_info_tells_what_a_report_of_a_bug_needs(invoke, tmp_path, monkeypatch):
    monkeypatch.setenv("SIMCSE_CACHE", str(tmp_path))
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "kept").write_bytes(bytes(1000))
    (tmp_path / "below" / "removed meanwhile").touch()
    real = os.lstat

    def lstat(path, **how):
        if Path(path).name == "removed meanwhile":
            raise FileNotFoundError(path)
        return real(path, **how)

    monkeypatch.setattr(os, "lstat", lstat)
    facts = json.loads(invoke("--info", "--format", "json").stdout)
    assert facts["versions"]["simcse-cli"] == __version__
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    assert facts["caches"]["simcse"] == {"folder": str(tmp_path), "bytes": 1000}
    assert facts["hardware"]["capability"].startswith(
        torch.backends.cpu.get_cpu_capability().lower()
    )
    shown = invoke("--info").stdout.splitlines()
    assert [line[:18].strip() for line in shown] == [name.replace("_", " ") for name in facts]


@pytest.mark.parametrize(
    ("command", "error", "fix"),
    [
        ("--nosuch", "No such option: --nosuch", "see simcse -h"),
        ("encode --modle x", "No such option: --modle", "did you mean --model?"),
        ("search x", "No such command 'search'.", "did you mean simcse analyze search?"),
        ("evaluate", "No such command 'evaluate'.", "did you mean simcse eval?"),
        (
            "eval sts --metric x",
            "Invalid value for '--metric': 'x' is not one of",
            "see simcse eval sts -h",
        ),
        ("--format json encode x", "--format: has no use without --info", "see simcse encode -h"),
    ],
)
def test_wrong_usage_looks_like_other_errors(invoke, command, error, fix):
    outcome = invoke(*command.split())
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    if "json" in command:
        parts = {"place": "--format", "found": "has no use without --info", "needed": None}
        assert json.loads(outcome.stderr) == {"error": error, **parts, "fix": fix, "exit_code": 2}
        return
    first, second = outcome.stderr.splitlines()
    assert first.startswith(f"error: {error}")
    assert second == f"   fix: {fix}"


def test_errors_are_json_where_results_are(invoke, tmp_path):
    outcome = invoke("compare", tmp_path / "none", "-f", "json")
    said = json.loads(outcome.stderr)
    assert (outcome.exit_code, said["exit_code"]) == (1, 1)
    assert said["error"] == f"{tmp_path / 'none'} does not exist"


@pytest.mark.parametrize(
    "parts",
    [
        ("x.csv, line 3", ": ", "2 columns", ", need ", "3 (a, b)"),
        ("my file.txt, line 1,203, byte 7", ": ", "not UTF-8 text", "", None),
        ("/a/none", " ", "does not exist", "", None),
        ("x.csv", ": ", "the columns are a, b", "; missing: ", "left, right"),
        ("a b", " ", "does not exist", "", None),
        ("c.index", " ", "cannot be read (cut off)", ", need ", "a search index"),
        ("INPUT", ": ", None, "need ", "an input: a file, or - for stdin"),
        ("--index", ": ", None, "needs ", "-o FILE.npy"),
        (None, "", "a.csv, b.csv: no text", "", None),
        (None, "", "a.npy and b.npy hold the same scores", "", None),
    ],
    ids=str,
)
def test_json_names_the_parts_of_a_message(parts):
    said = SimcseError("".join(part or "" for part in parts), hint="h").to_json()
    assert (said["place"], said["found"], said["needed"], said["fix"]) == (*parts[::2], "h")


@pytest.mark.parametrize("name", ["'--metric'", "'--metric' / '-m'"])
def test_json_names_the_parts_of_a_message_of_typer(name):
    said = SimcseError(f"Invalid value for {name}: 'x' is not one of 'a', 'b'").to_json()
    assert (said["place"], said["found"], said["needed"]) == ("--metric", "'x'", "one of 'a', 'b'")
