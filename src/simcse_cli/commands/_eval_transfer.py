"""`simcse eval transfer`: the seven SentEval classification tasks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcse_cli.commands import _options as opt
from simcse_cli.commands._encoder_options import EncoderOptions, takes_encoder_options
from simcse_cli.commands._encoders import open_encoder
from simcse_cli.commands._eval_shared import (
    SHORT_NAMES,
    CiOption,
    SaveScoresOption,
    TasksOption,
    add_intervals,
    parse_tasks,
)
from simcse_cli.commands._postprocess import plan_postprocess, with_postprocess
from simcse_cli.console import Column, Report, get_console
from simcse_cli.files import check_output
from simcse_cli.names import TRANSFER_TASKS, OutputFormat, Probe, TransferProtocol

if TYPE_CHECKING:
    from simcse_cli.evaluation.transfer import TransferResult

ProtocolOption = Annotated[
    TransferProtocol,
    typer.Option(
        "--protocol", help="default: 10 folds, Adam; fast: 5 folds, RMSprop (the paper's dev mode)."
    ),
]
ProbeOption = Annotated[
    Probe,
    typer.Option("--probe", help="senteval: the original classifier; sklearn: LogisticRegressionCV."),
]
CacheDirOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        envvar="SIMCSE_CACHE",
        help="Where vectors and finished tasks are kept; default: simcse in the user's cache folder.",
    ),
]
CacheOption = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Keep and reuse vectors and finished tasks.")
]


@takes_encoder_options
def transfer_command(
    encoder: EncoderOptions,
    data_dir: opt.DataDirOption = None,
    protocol: ProtocolOption = TransferProtocol.DEFAULT,
    probe: ProbeOption = Probe.SENTEVAL,
    tasks: TasksOption = None,
    ci: CiOption = False,
    save_scores: SaveScoresOption = None,
    cache_dir: CacheDirOption = None,
    cache: CacheOption = True,
    fmt: opt.FormatOption = OutputFormat.TABLE,
    output: opt.OutputOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Transfer tasks: MR, CR, SUBJ, MPQA, SST-2, TREC, MRPC with a linear classifier, as in Table E.1."""
    from simcse_cli.evaluation.bootstrap import transfer_intervals
    from simcse_cli.evaluation.embedding_cache import EvaluationCache, default_cache_dir
    from simcse_cli.evaluation.transfer import evaluate_transfer, require_transfer_files, write_predictions

    if data_dir is None:
        raise typer.BadParameter("need a SentEval folder (or SIMCSE_DATA)", param_hint="--data-dir")
    console = get_console()
    chosen = parse_tasks(tasks, TRANSFER_TASKS)
    for path in (output, save_scores):
        if path is not None:
            check_output(path, force=force)
    require_transfer_files(data_dir, chosen)
    plan = plan_postprocess(encoder, force=force)
    opened = with_postprocess(open_encoder(encoder, console), plan, encoder, data_dir, console, force=force)
    folder = (cache_dir or default_cache_dir()) if cache else None
    if folder is not None:
        console.detail(f"vectors and finished tasks are kept below {folder}")
    kept = EvaluationCache(folder, f"{opened.digest}/{opened.precision}")
    result = evaluate_transfer(
        opened.encode,
        data_dir,
        tasks=chosen,
        protocol=protocol,
        probe=probe,
        cache=kept,
        progress=console,
    )
    report = transfer_report(result, opened.name, opened.pooler)
    payload = result.to_json(**opened.facts())
    if ci:
        add_intervals(report, payload, transfer_intervals(result))
    if save_scores is not None:
        write_predictions(save_scores, result, force=force)
        payload["predictions"] = str(save_scores)
    console.emit(report, payload, fmt, output=output, force=force)


def transfer_report(result: "TransferResult", name: str, pooler: str) -> Report:
    """Return the table of the papers: test accuracies of the tasks, their average, and the dev accuracies."""
    columns = [Column(task, SHORT_NAMES.get(task, task), "score") for task in result.tasks]
    test = {task: score.accuracy for task, score in result.tasks.items()}
    dev = {task: score.dev_accuracy for task, score in result.tasks.items()}
    mrpc = result.tasks.get("MRPC")
    return Report(
        f"Transfer: accuracy x100, {result.protocol} protocol, {result.probe} probe, pooler {pooler}",
        [Column("model"), *columns, Column("average", "Avg.", "score")],
        [
            {"model": f"{name} (dev)", **dev, "average": result.average_dev},
            {"model": name, **test, "average": result.average},
        ],
        [] if mrpc is None or mrpc.f1 is None else [f"MRPC F1 {100 * mrpc.f1:.2f}"],
    )
