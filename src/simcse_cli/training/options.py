"""The options of ``simcse train`` besides the settings of a run; imports nothing heavy, to keep ``--help`` fast."""

from dataclasses import dataclass
from pathlib import Path

from simcse_cli.settings.choices import OutputFormat
from simcse_cli.settings.declare import setting

_METHOD, _RUN = "Method", "Run"


@dataclass(frozen=True)
class RunOptions:
    """The runs to do, their folder, and short forms of settings."""

    mode: str | None = setting(None, "The two modes of the paper: unsup or sup.", group=_METHOD, main=True)
    mlm_weight: float | None = setting(None, "Weight of the auxiliary masked-LM term [0].", group=_METHOD)
    dual_encoder: bool = setting(False, "Use a second encoder for the positives.", group=_METHOD)
    set_: list[str] | None = setting(
        None, "Option of the objective, KEY=VALUE. Repeatable.", "--set", group=_METHOD
    )
    output: Path | None = setting(
        None,
        "Run folder; default: runs/OBJECTIVE-MODEL-SEED.",
        "--output",
        "-o",
        group=_RUN,
        main=True,
        metavar="FOLDER",
        completes="run",
    )
    config: str | None = setting(
        None, "YAML file or name of a shipped recipe.", group=_RUN, main=True, completes="recipe"
    )
    seeds: str | None = setting(
        None, "Train once per seed, such as 1,2,3; report mean and deviation.", group=_RUN, main=True
    )
    sweep: str | None = setting(
        None, "Grid or search over settings: YAML file or shipped name.", group=_RUN, completes="sweep"
    )
    num_processes: int = setting(1, "Processes on this machine.", group=_RUN, min=1)
    resume: bool = setting(False, "Continue the run in -o.", group=_RUN, main=True)
    dry_run: bool = setting(False, "Show settings, a batch and a forecast.", group=_RUN, main=True)
    force: bool = setting(False, "Replace the run in -o.", group=_RUN, main=True)
    fmt: OutputFormat = setting(
        OutputFormat.TABLE, "Format of the results on stdout.", "--format", "-f", group=_RUN
    )
