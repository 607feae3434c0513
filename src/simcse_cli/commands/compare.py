from typing import Annotated

import typer

from simcse_cli.commands.console import get_console
from simcse_cli.commands.options import OutputOptions, takes_settings
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.files.inputs import require_present
from simcse_cli.results.result import HOW_TO_WRITE

app = typer.Typer()


@app.command("compare", no_args_is_help=True)
@takes_settings
def compare_command(
    items: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN_OR_RESULT]...",
            help="Run folders, folders of runs, result files of `eval` and `analyze geometry`, "
            "- for stdin. LABEL=PATH names one; parts under one label are joined, "
            "repetitions get a mean.",
            show_default=False,
        ),
    ] = None,
    *,
    options: CompareOptions,
    out: OutputOptions,
) -> None:
    """Compare runs, result files and published numbers: scores, differences, tests, what changed.

    simcse compare runs/first runs/second --baseline runs/first
    simcse compare runs/first --against simcse.5 --row SimCSE-BERT-base --group unsupervised
    simcse compare ours=sts.json ours=transfer.json --format latex
    simcse compare --show simcse.5
    """
    console = get_console()
    out.check()
    for item in items or ():
        if "=" not in item:  # else a label may stand before the path
            require_present(item, hint=HOW_TO_WRITE)
    from simcse_cli.comparison.compare import compare
    from simcse_cli.comparison.published import published_tables

    if options.list_tables or options.show is not None:
        out.show(published_tables(options.show))
        return
    outcome = compare(items or (), options, console)
    out.show(outcome)
    if outcome.check is not None:
        console.info(outcome.check.verdict())
