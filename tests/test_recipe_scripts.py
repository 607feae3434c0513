"""The shell recipes: each runs through with a recording stand-in for `simcse`, and all its calls are valid."""

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
SCRIPTS = sorted(
    path.name for path in RECIPES.glob("*.sh") if path.name not in ("common.sh", "demo.sh", "figure2.sh")
)
RECORDER = """#!/bin/sh
{ printf '%s\\037' "$@"; echo; } >> "$CALLS"
"""
OPTIONAL_SYSTEMS = ("SIMCSE_WORDNET", "MLM_MODEL", "GLOVE", "ANLI_FILE", "QQP_FILE", "PARANMT_FILE", "TRAIN")


def calls_of(script: str, scale: str, folder: Path) -> list[list[str]]:
    """Return the arguments of every `simcse` call that the script makes."""
    recorder = folder / "bin" / "simcse"
    recorder.parent.mkdir()
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    (folder / "data" / "flickr30k").mkdir(parents=True)
    (folder / "data" / "flickr30k" / "captions.tsv").write_text("image_id\tcaption\n1\tA dog.\n")
    environment = {
        "PATH": f"{recorder.parent}:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "SIMCSE_DATA": str(folder / "data"),
        "OUT": str(folder / "runs"),
        "SCALE": scale,
        **{name: str(folder / name) for name in OPTIONAL_SYSTEMS},
    }
    done = subprocess.run(
        ["bash", RECIPES / script], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line.split("\037")[:-1] for line in (folder / "calls").read_text().split("\n") if line]


@cache
def command_tree(name: str) -> Any:
    from simcse_cli.cli import build

    return build([name])


def parse(arguments: list[str]) -> dict[str, object]:
    """Return the parameters of a call as the command line would see them; a mistake raises."""
    command, rest = command_tree(arguments[0]), list(arguments)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return command.make_context("simcse", rest).params


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_recipe_calls_are_valid_and_end_in_a_published_table(script: str, scale: str, tmp_path: Path) -> None:
    from simcse_cli.comparison.published import load_table

    calls = calls_of(script, scale, tmp_path)
    for call in calls:
        parameters = parse(call)
        if call[0] == "compare":
            tables = [load_table(name) for name in parameters["against"] or ()]
            for row in parameters["row"] or ():
                assert [table.system(row, group=parameters["group"]) for table in tables]
            assert tables or load_table(str(parameters["show"]))
    assert calls[-1][0] == "compare"


def test_scale_other_than_full_or_small_is_refused(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "SIMCSE_DATA": str(tmp_path),
        "SCALE": "huge",
        "OUT": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", RECIPES / SCRIPTS[0]], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "need full or small" in done.stderr


def test_every_published_table_has_a_recipe_or_needs_none() -> None:
    from simcse_cli.comparison.published import table_ids

    # copies of other rows, differences, and what a user of the original script reported
    without = {"simcse.inline", "v1.headline", "v1.2", "v1.4", "v1.9", "v1.10", "v1.datasets", "v1.sts"}
    without |= {"v1.transfer", "repro.6", "repro.7", "repo.models", "repo.issue285"}
    text = "".join(path.read_text() for path in RECIPES.glob("*.sh"))
    assert {table for table in table_ids() if table not in text} == without
