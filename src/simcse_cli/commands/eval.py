"""`simcse eval`: judge an encoder by the protocols of the papers."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from simcse_cli.choices import (
    STS_TASKS,
    Aggregation,
    Metric,
    OutputFormat,
    StsProtocol,
)
from simcse_cli.commands import options as opt
from simcse_cli.commands._encoders import OpenEncoder, open_encoder
from simcse_cli.commands._eval_checkpoints import (
    CheckpointsOption,
    CheckpointView,
    check_checkpoints,
    show_checkpoints,
)
from simcse_cli.commands._eval_mteb import mteb_command
from simcse_cli.commands._eval_shared import (
    SHORT_NAMES,
    CiOption,
    SaveScoresOption,
    TasksOption,
    add_intervals,
    cache_folder,
    open_cache,
    parse_tasks,
)
from simcse_cli.commands._eval_transfer import transfer_command
from simcse_cli.commands._postprocess import (
    per_task_name,
    per_task_postprocess,
    plan_postprocess,
    with_postprocess,
)
from simcse_cli.console import Console, get_console
from simcse_cli.evaluation.options import EncoderOptions
from simcse_cli.files import atomic_text, check_output
from simcse_cli.prepare.demo import data_dir_or_demo
from simcse_cli.report import Column, Report

if TYPE_CHECKING:
    from simcse_cli.data.senteval import Split
    from simcse_cli.evaluation.embedding_cache import Encode
    from simcse_cli.evaluation.sts import StsResult, StsSetting

app = typer.Typer(no_args_is_help=True, help="Judge an encoder by the protocols of the papers.")


def register(root: typer.Typer) -> None:
    """Add `eval` to the application."""
    app.command("transfer")(transfer_command)
    app.command("mteb")(mteb_command)
    root.add_typer(app, name="eval")


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


def sts_view(result: dict[str, Any], run: str) -> CheckpointView:
    """Return how checkpoints are shown: the tasks and their average, which marks the best."""
    columns = [Column(task, SHORT_NAMES.get(task, task), "score") for task in result["tasks"]]
    notes = [f"{task} missing: {reason}" for task, reason in result["missing"].items()]
    notes.append("best: highest average")
    if result["split"] == "test":
        notes.append("these are test sets: look, but choose a checkpoint by --split dev")

    def row(result: dict[str, Any]) -> dict[str, Any]:
        scores = {name: None if task is None else task["score"] for name, task in result["tasks"].items()}
        return scores | {"average": result["average"]}

    return CheckpointView(
        "average",
        f"STS along {run}, {result['split']} sets: {result['metric']} x100, aggregation {result['aggregation']}",
        [*columns, Column("average", "Avg.", "score")],
        row,
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
@opt.takes("encoder", EncoderOptions)
def sts_command(
    encoder: EncoderOptions,
    data_dir: opt.DataDirOption = None,
    protocol: Annotated[
        StsProtocol,
        typer.Option("--protocol", help="Setting of a paper (Table B.1); single flags below override it."),
    ] = StsProtocol.SIMCSE,
    aggregation: Annotated[
        Aggregation | None,
        typer.Option(help="How the subsets of a year become one score; default: the protocol's (all)."),
    ] = None,
    metric: Annotated[
        Metric | None,
        typer.Option(help="Correlation with the gold scores; default: the protocol's (spearman)."),
    ] = None,
    regressor: Annotated[
        bool | None,
        typer.Option(
            "--regressor/--no-regressor", help="Train a regressor on STS-B and SICK-R, as SentEval does."
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="test, dev, train or all (the last three: STS-B and SICK-R only).")
    ] = "test",
    tasks: TasksOption = None,
    ci: CiOption = False,
    save_scores: SaveScoresOption = None,
    checkpoints: CheckpointsOption = False,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="SIMCSE_CACHE",
            help="With --checkpoints: where finished ones are kept; default: simcse in the user's cache folder.",
        ),
    ] = None,
    cache: Annotated[
        bool,
        typer.Option("--cache/--no-cache", help="With --checkpoints: keep and reuse finished ones."),
    ] = True,
    write_sentences: Annotated[
        Path | None,
        typer.Option(help="Only write the sentences of the tasks, one per line, to encode them elsewhere."),
    ] = None,
    fmt: opt.FormatOption = OutputFormat.TABLE,
    output: opt.OutputOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Semantic textual similarity: STS12-16, STS-B and SICK-R, as in Table 5 of the paper."""
    from simcse_cli.evaluation.sts import evaluate_cached, evaluate_per_task, resolve_setting, sts_key

    if split not in ("train", "dev", "test", "all"):
        raise typer.BadParameter("need train, dev, test or all", param_hint="--split")
    setting = resolve_setting(protocol, metric=metric, aggregation=aggregation, regressor=regressor)
    if setting.regressor and split != "test":
        raise typer.BadParameter(f"the regressor predicts the test split, not {split}", param_hint="--split")
    console = get_console()
    data_dir = data_dir_or_demo(data_dir, console)
    for path in (output, save_scores, write_sentences):
        if path is not None:
            check_output(path, force=force)
    chosen = parse_tasks(tasks, STS_TASKS)
    if tasks is None and split != "test":
        chosen = ("STSBenchmark",) if split == "dev" else ("STSBenchmark", "SICKRelatedness")
    run = functools.partial(run_sts, data_dir=data_dir, console=console, setting=setting, split=split)
    if checkpoints:
        excluded = {"--ci": ci, "--save-scores": save_scores, "--write-sentences": write_sentences}
        check_checkpoints(encoder, excluded)
        key = sts_key(data_dir, chosen, cast("Split", split), setting)
        folder = cache_folder(cache_dir, cache, console)

        def score(opened: OpenEncoder) -> dict[str, Any]:
            kept = evaluate_cached(lambda: run(opened.encode, tasks=chosen), open_cache(folder, opened), key)
            return {**opened.facts(), "protocol": protocol.value, "regressor": setting.regressor, **kept}

        show_checkpoints(encoder, score, sts_view, console, fmt, output=output, force=force)
        return
    if write_sentences is not None:
        list_sentences(write_sentences, data_dir, chosen, cast("Split", split), console, force=force)
        return
    plan = plan_postprocess(encoder, force=force)
    opened = open_encoder(encoder, console)
    if plan is not None and plan.is_per_task:
        for_task = per_task_postprocess(opened, plan, encoder, data_dir, console)
        result = evaluate_per_task(lambda task: run(for_task(task), tasks=(task,)), chosen, progress=console)
        opened = per_task_name(opened, plan)
    else:
        opened = with_postprocess(opened, plan, encoder, data_dir, console, force=force)
        result = run(opened.encode, tasks=chosen)
    reports = [
        sts_report(replace(result, metric=each), opened.name, opened.pooler) for each in setting.metrics
    ]
    payload = result.to_json(**opened.facts(), protocol=protocol.value, regressor=setting.regressor)
    if ci:
        from simcse_cli.evaluation.sts import sts_intervals

        add_intervals(reports[0], payload, sts_intervals(result))
    if console.verbose:
        reports.append(subset_report(result))
    if save_scores is not None:
        save_pairs(save_scores, result, data_dir, force=force)
        payload["pair_scores"] = str(save_scores)
    console.emit(reports, payload, fmt, output=output, force=force)


def run_sts(
    encode: "Encode", data_dir: Path, console: Console, setting: "StsSetting", **options: Any
) -> "StsResult":
    """Score the STS suite under a setting; options are those of ``evaluate_sts``."""
    from simcse_cli.evaluation.regressor import with_regressor
    from simcse_cli.evaluation.sts import evaluate_sts

    result = evaluate_sts(
        encode,
        data_dir,
        metric=setting.metric,
        aggregation=setting.aggregation,
        progress=console,
        **options,
    )
    return with_regressor(result, encode, data_dir, progress=console) if setting.regressor else result


def list_sentences(
    target: Path, data_dir: Path, tasks: Sequence[str], split: "Split", console: Console, *, force: bool
) -> None:
    """Write every distinct sentence of the tasks, for models that are run elsewhere."""
    from simcse_cli.evaluation.sts import read_available_tasks

    found, _ = read_available_tasks(data_dir, tasks, split, console)
    subsets = [subset for task in found.values() for subset in task.subsets.values()]
    distinct = dict.fromkeys(sentence for subset in subsets for sentence in (*subset.left, *subset.right))
    with atomic_text(target, force=force) as stream:
        stream.writelines(f"{sentence}\n" for sentence in distinct)
    console.info(f"wrote {target}: {len(distinct):,} sentences")


def save_pairs(target: Path, result: "StsResult", data_dir: Path, *, force: bool) -> None:
    """Write every scored pair with its sentences, for paired tests in `simcse compare`."""
    from simcse_cli.evaluation.sts import sts_pair_scores
    from simcse_cli.predictions import write_pair_scores

    write_pair_scores(target, sts_pair_scores(result, data_dir), force=force)
