"""The options of ``simcse train`` besides the settings of a run.

This module imports nothing heavy, to keep ``--help`` fast.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from simcse_cli.settings.choices import OutputFormat
from simcse_cli.settings.declare import setting

_method = partial(setting, group="Method")
_run = partial(setting, group="Run")


@dataclass(frozen=True)
class RunOptions:
    mode: str | None = _method(None, "The two modes of the paper: unsup or sup.", main=True)
    mlm_weight: float | None = _method(None, "Weight of the auxiliary masked-LM term [0].")
    dual_encoder: bool = _method(False, "Use a second encoder for the positives.")
    set_: list[str] | None = _method(
        None, "Option of the objective, KEY=VALUE. Repeatable.", "--set"
    )
    output: Path | None = _run(
        None,
        "Run folder; default: runs/OBJECTIVE-MODEL-SEED.",
        "--output",
        "-o",
        main=True,
        metavar="FOLDER",
        completes="run",
    )
    config: str | None = _run(
        None, "YAML file or name of a shipped recipe.", main=True, completes="recipe"
    )
    seeds: str | None = _run(
        None, "Train once per seed, such as 1,2,3; report mean and deviation.", main=True
    )
    sweep: str | None = _run(
        None, "Grid or search over settings: YAML file or shipped name.", completes="sweep"
    )
    num_processes: int = _run(1, "Processes on this machine.", min=1)
    resume: bool = _run(False, "Continue the run in -o.", main=True)
    dry_run: bool = _run(False, "Show settings, a batch and a forecast.", main=True)
    force: bool = _run(False, "Replace the run in -o.", main=True)
    fmt: OutputFormat = _run(
        OutputFormat.TABLE, "Format of the results on stdout.", "--format", "-f"
    )
