"""`simcse eval transfer`: the seven SentEval classification tasks."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcse_cli.choices import TRANSFER_TASKS, OutputFormat, Probe, TransferProtocol
from simcse_cli.commands import options as opt
from simcse_cli.commands._encoders import open_encoder
from simcse_cli.commands._eval_checkpoints import (
    CheckpointsOption,
    CheckpointView,
    check_checkpoints,
    show_checkpoints,
)
from simcse_cli.commands._eval_shared import (
    SHORT_NAMES,
    CacheDirOption,
    CacheOption,
    CiOption,
    SaveScoresOption,
    TasksOption,
    add_intervals,
    cache_folder,
    open_cache,
    parse_tasks,
)
from simcse_cli.commands._postprocess import plan_postprocess, with_postprocess
from simcse_cli.console import get_console
from simcse_cli.evaluation.options import EncoderOptions
from simcse_cli.files import check_output
from simcse_cli.report import Column, Report

if TYPE_CHECKING:
    from simcse_cli.commands._encoders import OpenEncoder
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


@opt.takes("encoder", EncoderOptions)
def transfer_command(
    encoder: EncoderOptions,
    data_dir: opt.DataDirOption = None,
    protocol: ProtocolOption = TransferProtocol.DEFAULT,
    probe: ProbeOption = Probe.SENTEVAL,
    tasks: TasksOption = None,
    ci: CiOption = False,
    save_scores: SaveScoresOption = None,
    checkpoints: CheckpointsOption = False,
    cache_dir: CacheDirOption = None,
    cache: CacheOption = True,
    fmt: opt.FormatOption = OutputFormat.TABLE,
    output: opt.OutputOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Transfer tasks: MR, CR, SUBJ, MPQA, SST-2, TREC, MRPC with a linear classifier, as in Table E.1."""
    from simcse_cli.evaluation.transfer import (
        evaluate_transfer,
        require_transfer_files,
        transfer_intervals,
        transfer_predictions,
    )
    from simcse_cli.predictions import write_predictions

    if data_dir is None:
        raise typer.BadParameter("need a SentEval folder (or SIMCSE_DATA)", param_hint="--data-dir")
    console = get_console()
    chosen = parse_tasks(tasks, TRANSFER_TASKS)
    for path in (output, save_scores):
        if path is not None:
            check_output(path, force=force)
    require_transfer_files(data_dir, chosen)
    folder = cache_folder(cache_dir, cache, console)

    def run(opened: "OpenEncoder") -> "TransferResult":
        return evaluate_transfer(
            opened.encode,
            data_dir,
            tasks=chosen,
            protocol=protocol,
            probe=probe,
            cache=open_cache(folder, opened, keep_vectors=not checkpoints),
            progress=console,
        )

    if checkpoints:
        check_checkpoints(encoder, {"--ci": ci, "--save-scores": save_scores})

        def score(opened: "OpenEncoder") -> dict[str, Any]:
            return run(opened).to_json(**opened.facts())

        show_checkpoints(encoder, score, transfer_view, console, fmt, output=output, force=force)
        return
    plan = plan_postprocess(encoder, force=force)
    opened = with_postprocess(open_encoder(encoder, console), plan, encoder, data_dir, console, force=force)
    result = run(opened)
    report = transfer_report(result, opened.name, opened.pooler)
    payload = result.to_json(**opened.facts())
    if ci:
        add_intervals(report, payload, transfer_intervals(result))
    if save_scores is not None:
        write_predictions(save_scores, transfer_predictions(result), force=force)
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


def transfer_view(result: dict[str, Any], run: str) -> CheckpointView:
    """Return how checkpoints are shown: test accuracies, and the mean dev accuracy that marks the best."""
    columns = [Column(task, SHORT_NAMES.get(task, task), "score") for task in result["tasks"]]

    def row(result: dict[str, Any]) -> dict[str, Any]:
        accuracies = {task: score["accuracy"] for task, score in result["tasks"].items()}
        return accuracies | {key: result[key] for key in ("average", "average_dev")}

    return CheckpointView(
        "average_dev",
        f"Transfer along {run}: accuracy x100, {result['protocol']} protocol, {result['probe']} probe",
        [*columns, Column("average", "Avg.", "score"), Column("average_dev", "Avg. dev", "score")],
        row,
        ["best: highest mean dev accuracy"],
    )
