"""`simcse eval`: judge an encoder by the protocols of the papers."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcse_cli.commands import _options as opt
from simcse_cli.commands._models import load_model
from simcse_cli.console import Column, Console, Report, get_console
from simcse_cli.names import STS_TASKS, Aggregation, Device, Metric, OutputFormat, Pooler, Precision

if TYPE_CHECKING:
    from simcse_cli.evaluation.sts import StsResult

SHORT_NAMES = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R"}

app = typer.Typer(no_args_is_help=True, help="Judge an encoder by the protocols of the papers.")

TasksOption = Annotated[
    str | None, typer.Option("--tasks", help="Comma-separated task names, for example STS12,STSBenchmark.")
]


def register(root: typer.Typer) -> None:
    """Add `eval` to the application."""
    root.add_typer(app, name="eval")


def parse_tasks(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tasks of a comma-separated list, case and the short names STS-B, SICK-R, SST-2 accepted.

    Raises:
        typer.BadParameter: a name is unknown; the nearest one is suggested.
    """
    if text is None:
        return known
    from difflib import get_close_matches

    def squeeze(name: str) -> str:
        return name.lower().replace("-", "").replace("_", "")

    by_name = {squeeze(name): name for name in known} | {
        squeeze(short): name for name, short in SHORT_NAMES.items() if name in known
    }
    chosen = []
    for name in (part.strip() for part in text.split(",") if part.strip()):
        if squeeze(name) not in by_name:
            near = get_close_matches(squeeze(name), by_name, n=1, cutoff=0.4)
            hint = f"; did you mean {by_name[near[0]]}?" if near else f"; known: {', '.join(known)}"
            raise typer.BadParameter(f"unknown task {name!r}{hint}", param_hint="--tasks")
        chosen.append(by_name[squeeze(name)])
    return tuple(dict.fromkeys(chosen))


def sts_report(result: "StsResult", name: str, pooler: str) -> Report:
    """Return the one-row table of the papers: seven tasks and their average."""
    columns = [Column("model"), *(Column(t, SHORT_NAMES.get(t, t), "score") for t in result.tasks)]
    notes = [f"{task} missing: {reason}" for task, reason in result.missing.items()]
    return Report(
        f"STS, {result.split} sets: {result.metric} x100, aggregation {result.aggregation}, pooler {pooler}",
        [*columns, Column("average", "Avg.", "score")],
        [{"model": name, **result.scores(), "average": result.average}],
        notes,
    )


def subset_report(result: "StsResult") -> Report:
    """Return one row a subset, for ``--verbose``."""
    rows: list[dict[str, Any]] = []
    for name, task in result.tasks.items():
        for subset, score in (task.subsets if task else {}).items():
            row = {"task": SHORT_NAMES.get(name, name), "subset": subset, "pairs": len(score.gold)}
            rows.append(row | {m.value: score.correlation(m) for m in Metric})
    columns = [Column("task"), Column("subset"), Column("pairs", kind="count")]
    return Report("Subsets", [*columns, *(Column(m.value, kind="score") for m in Metric)], rows)


@app.command("sts")
def sts_command(
    model: opt.ModelOption,
    data_dir: opt.DataDirOption,
    aggregation: Annotated[Aggregation, typer.Option(help="How the subsets of a year become one score.")] = (
        Aggregation.ALL
    ),
    metric: Annotated[Metric, typer.Option(help="Correlation with the gold scores.")] = Metric.SPEARMAN,
    split: Annotated[str, typer.Option(help="test, dev, train or all (the last three: STS-B and SICK-R only).")] = "test",
    tasks: TasksOption = None,
    pooler: opt.PoolerOption = None,
    force_pooler: opt.ForcePoolerOption = False,
    device: opt.DeviceOption = Device.AUTO,
    precision: opt.PrecisionOption = Precision.FP32,
    batch_tokens: opt.BatchTokensOption = None,
    fmt: opt.FormatOption = OutputFormat.TABLE,
    output: opt.OutputOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Semantic textual similarity: STS12-16, STS-B and SICK-R, as in Table 5 of the paper."""
    if split not in ("train", "dev", "test", "all"):
        raise typer.BadParameter("need train, dev, test or all", param_hint="--split")
    console = get_console()
    chosen = parse_tasks(tasks, STS_TASKS)
    if tasks is None and split != "test":
        chosen = ("STSBenchmark",) if split == "dev" else ("STSBenchmark", "SICKRelatedness")
    encoder = load_model(
        model, console, pooler=pooler, device=device, precision=precision, force_pooler=force_pooler
    )
    encode = functools.partial(encoder.encode, batch_tokens=batch_tokens, progress=console)
    result = run_sts(encode, data_dir, console, tasks=chosen, metric=metric, aggregation=aggregation, split=split)
    reports = [sts_report(result, model, encoder.pooler)]
    if console.verbose:
        reports.append(subset_report(result))
    payload = result.to_json(
        model=model, model_digest=encoder.digest, pooler=encoder.pooler.value, precision=precision.value
    )
    console.emit(reports, payload, fmt, output=output, force=force)


def run_sts(encode: Any, data_dir: Path, console: Console, **settings: Any) -> "StsResult":
    """Score the STS suite with progress on the console; settings are those of ``evaluate_sts``."""
    from simcse_cli.evaluation.sts import evaluate_sts

    return evaluate_sts(encode, data_dir, progress=console, **settings)
