from collections.abc import Callable
from functools import partial
from typing import Any

import typer

from simcse_cli.commands.console import get_console
from simcse_cli.commands.options import OutputOptions, takes_settings
from simcse_cli.evaluation.options import EncoderOptions, MtebOptions, StsOptions, TransferOptions
from simcse_cli.files.inputs import STDIO
from simcse_cli.results.report import file_format
from simcse_cli.results.runs import is_run, seed_runs
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS, OutputFormat

_PUBLISHED = {"sts": (STS_TASKS, "simcse.5"), "transfer": (TRANSFER_TASKS, "simcse.E.1")}
"""The published tasks of each suite, and the table of their scores."""
app = typer.Typer(
    name="eval",
    no_args_is_help=True,
    help="""Evaluate an encoder by the protocols of the papers.

    simcse eval sts --model minilm --data-dir senteval
    simcse eval transfer --model runs/first --data-dir senteval --protocol fast
    """,
)


@app.command("sts")
@takes_settings
def sts_command(encoder: EncoderOptions, options: StsOptions, out: OutputOptions) -> None:
    """Semantic textual similarity: STS12-16, STS-B and SICK-R, as in Table 5 of the paper.

    The result of a run is saved in its folder, where `simcse compare` finds it.

    simcse eval sts --model minilm --data-dir senteval
    simcse eval sts --model runs/first --tasks STSBenchmark --split dev --ci
    simcse eval sts --model bert-base --postprocess whitening:256 --fit nli
    simcse eval sts --vectors glove.txt --data-dir senteval
    """
    from simcse_cli.evaluation.eval_sts import eval_sts

    _show(out, eval_sts, encoder, options, per_subset=get_console().verbose)


@app.command("transfer")
@takes_settings
def transfer_command(encoder: EncoderOptions, options: TransferOptions, out: OutputOptions) -> None:
    """Transfer tasks, MR to MRPC, with a linear classifier, as in Table E.1 of the paper.

    simcse eval transfer --model minilm --data-dir senteval
    simcse eval transfer --model runs/first --protocol fast --tasks MR,CR
    """
    from simcse_cli.evaluation.transfer import eval_transfer

    _show(out, eval_transfer, encoder, options)


@app.command("mteb")
@takes_settings
def mteb_command(encoder: EncoderOptions, options: MtebOptions, out: OutputOptions) -> None:
    """MTEB: tasks by name, benchmark or category, with the papers' averages (extra mteb).

    simcse eval mteb --model minilm --tasks STS12,SICK-R
    simcse eval mteb --model runs/first --category STS
    """
    from simcse_cli.evaluation.mteb import eval_mteb

    _show(out, eval_mteb, encoder, options)


def _show(
    out: OutputOptions,
    evaluate: Callable[..., Any],
    encoder: EncoderOptions,
    options: Any,
    **details: bool,
) -> None:
    """Run an evaluation, show its result and suggest the next command."""
    from simcse_cli.evaluation.several import evaluate_each_seed

    console = get_console()
    out.check()

    evaluate = partial(evaluate, progress=console, force=out.force, **details)
    outcome = evaluate_each_seed(evaluate, encoder, options, console)
    # Some options only write the sentences; then there is no result.
    if outcome is None:
        return
    out.show(outcome)
    # ``compare`` reads the results that runs keep, but not those of checkpoints.
    if options.checkpoints:
        return
    if is_run(encoder.model) or seed_runs(encoder.model):
        console.next_step("simcse", "compare", encoder.model)
    elif out.output is not None and str(out.output) != STDIO:
        published_tasks, table = _PUBLISHED.get(outcome.payload["suite"], ((), ""))
        is_json = file_format(out.output, out.fmt) is OutputFormat.JSON
        if is_json and set(published_tasks) & set(outcome.payload["tasks"]):
            console.next_step("simcse", "compare", out.output, "--against", table)
    elif out.fmt is OutputFormat.TABLE:
        console.info("save the result with -o FILE.json for `simcse compare FILE.json`")
