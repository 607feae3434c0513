"""`simcse train`: recipe, environment and flags to settings, settings to a run folder."""

import sys
from typing import Any

import typer

from simcse_cli.commands.options import takes
from simcse_cli.config import TrainConfig
from simcse_cli.console import get_console
from simcse_cli.training.options import RunOptions


def register(app: typer.Typer) -> None:
    """Add `train` to the application."""
    app.command("train")(train_command)


@takes("flags", TrainConfig, given_only=True)
@takes("options", RunOptions)
def train_command(flags: dict[str, Any], options: RunOptions) -> None:
    """Train a sentence encoder; the run folder holds its record, metrics and best model.

    `simcse train --mode unsup` and `--mode sup` are SimCSE; recipes of the paper: `--config simcse-unsup-bert-base`.
    An objective or a recipe may have defaults of its own: `--dry-run` shows the settings of a run.
    """
    from simcse_cli.training.launch import Stopped
    from simcse_cli.training.run import train

    console = get_console()
    try:
        shown = train(flags, options, sys.argv[1:], console)
    except Stopped as stop:
        if stop.message is not None:
            console.info(stop.message)
        raise typer.Exit(stop.exit_code) from None
    if isinstance(shown, str):
        console.print_data(shown)
    elif shown is not None:
        console.emit(*shown, options.fmt)
