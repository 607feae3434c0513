"""Recipes run side by side: in passes, each over the commands whose inputs are there."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.upkeep

RUNNER = Path(__file__).resolve().parent.parent / "recipes" / "side_by_side.py"
# Stands in for `simcse`: logs its call and writes its output; a training of nothing fails.
PROGRAM = f"""#!{sys.executable} -S
import sys
from pathlib import Path
words = sys.argv[1:]
with open("calls", "a") as calls:
    calls.write(" ".join(words) + "\\n")
if "runs/nothing" in words:
    sys.exit("nothing to train on")
out = Path(words[words.index("-o") + 1])
if words[0] == "train":
    out = out / "run.json"
    out.parent.mkdir()
out.write_text("complete")
print(words[0], "was here")
"""
RECIPE = """set -euo pipefail
train() {
  local resume=()
  [ ! -d "$OUT/$1" ] || resume=(--resume)
  simcse train --train-file "$OUT/rows.csv" -o "$OUT/$1" "${resume[@]}"
}
simcse prepare wiki.txt -o "$OUT/rows.csv" | grep -q here
for name in a b c; do train "$name"; done
for name in a b c; do simcse eval sts --model "$OUT/$name" -o "$OUT/$name.json"; done
simcse compare "a=$OUT/a.json" "$OUT" -o "$OUT/comparison"
"""
TRAINED = [f"train --train-file runs/rows.csv -o runs/{name}" for name in "abc"]
SCORED = [f"eval sts --model runs/{name} -o runs/{name}.json" for name in "abc"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs the recipe side by side, and gives the process and the calls it made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OUT", "runs")
    Path("simcse").write_text(PROGRAM)
    Path("simcse").chmod(0o700)

    def run(recipe, *options):
        Path("recipe.sh").write_text(recipe)
        Path("calls").write_text("")
        words = [sys.executable, RUNNER, "2", "recipe.sh", *options]
        done = subprocess.run(words, capture_output=True, text=True)
        return done, Path("calls").read_text().splitlines()

    return run


@pytest.mark.parametrize("ends_early", [True, False])
def test_a_command_runs_once_its_inputs_are_there(run, ends_early):
    """With the pipe, which needs what the first command prints, the first pass ends there."""
    done, calls = run(RECIPE if ends_early else RECIPE.replace(" | grep -q here", ""))
    assert done.returncode == 0, done.stderr
    assert calls[0] == "prepare wiki.txt -o runs/rows.csv"
    assert set(calls[1:4]) == set(TRAINED)
    assert set(calls[4:7]) == set(SCORED)
    assert calls[7:] == ["compare a=runs/a.json runs -o runs/comparison"]
    # Another call keeps the trainings; all else may depend on what the words do not name.
    done, calls = run(RECIPE)  # a pipe changes no command
    assert done.returncode == 0
    assert calls[0] == "prepare wiki.txt -o runs/rows.csv"
    assert set(calls[1:4]) == set(SCORED)
    assert calls[4:] == ["compare a=runs/a.json runs -o runs/comparison"]


def test_what_is_left_out_holds_back_what_needs_it(run):
    done, calls = run(RECIPE, "--only", r"/[ab](\.json)?$")
    assert done.returncode == 0, done.stderr
    assert set(calls[1:]) == {*TRAINED[:2], *SCORED[:2]}  # the comparison reads the whole folder
    done, calls = run(RECIPE)
    assert {call for call in calls if call.startswith("train")} == {TRAINED[2]}
    assert calls[-1] == "compare a=runs/a.json runs -o runs/comparison"


def test_a_command_that_fails_ends_the_recipe_and_is_tried_again(run):
    recipe = "simcse train -o runs/nothing || exit 3\nsimcse train -o runs/after\n"
    done, calls = run(recipe)
    assert done.returncode == 1
    assert "recipe.sh ended with exit code 3:\nnothing to train on" in done.stderr
    assert sorted(calls) == ["train -o runs/after", "train -o runs/nothing"]
    _, calls = run(recipe)
    assert calls == ["train -o runs/nothing"]


def test_outputs_and_inputs_are_told_apart():
    depends = runpy.run_path(str(RUNNER))["depends"]
    assert depends("label=runs/x", "runs/x/run")
    assert depends("runs/x/run/seed-1", "runs/x/run")
    assert not depends("runs/x", "runs/xy")
