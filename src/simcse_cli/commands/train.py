from typing import Annotated, Any

import typer

from simcse_cli.commands.console import get_console
from simcse_cli.commands.options import takes_settings
from simcse_cli.results.report import printable
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.options import RunOptions

app = typer.Typer()


@app.command("train")
@takes_settings
def train_command(options: RunOptions, flags: Annotated[dict[str, Any], TrainConfig]) -> None:
    """Train a sentence encoder; the run folder holds its record, metrics and best model.

    The two modes are those of SimCSE. Objectives and recipes may have their own defaults;
    `--dry-run` shows the settings of a run. Each setting is also a recipe key (batch_size) and a
    variable (SIMCSE_BATCH_SIZE).

    simcse train --mode unsup --train-file wiki.txt --dev-file sts-dev.csv -o runs/unsup
    simcse train --mode sup --train-file nli.csv --dev-file sts-dev.csv -o runs/sup
    simcse train --config simcse-unsup-bert-base --train-file wiki1m.txt --seeds 1,2,3
    simcse train -o runs/unsup --resume
    """
    from simcse_cli.training.launch import Stopped
    from simcse_cli.training.run import train

    console = get_console()
    try:
        result = train(flags, options, console)
    except Stopped as stop:
        if stop.message is not None:
            console.info(stop.message)
        raise typer.Exit(stop.exit_code) from None
    if isinstance(result, str):
        console.print_data(printable(result))
    elif result is not None:
        console.emit(result, options.fmt)
