"""`simcse eval sts` and `simcse eval transfer`: open the encoder, score it, and make tables of the result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from simcse_cli.data.demo import data_dir_or_demo
from simcse_cli.data.senteval import Split, StsTask
from simcse_cli.errors import UsageError, kept_on_interrupt, require_extra
from simcse_cli.evaluation.checkpoints import check_checkpoints, evaluate_checkpoints
from simcse_cli.evaluation.embedding_cache import Encode, EvaluationCache, cache_folder
from simcse_cli.evaluation.encoders import OpenEncoder, keep_in_run, open_encoder
from simcse_cli.evaluation.fitting import (
    open_with_postprocess,
    per_task_name,
    per_task_postprocess,
    plan_postprocess,
    with_postprocess,
)
from simcse_cli.evaluation.options import EncoderOptions, StsOptions, TransferOptions
from simcse_cli.evaluation.regressor import with_regressor
from simcse_cli.evaluation.sts import (
    StsResult,
    evaluate_per_task,
    evaluate_sts,
    read_available_tasks,
    read_pair_tasks,
    resolve_setting,
    sts_intervals,
    sts_key,
    sts_pair_scores,
)
from simcse_cli.evaluation.tables import (
    add_intervals,
    sts_report,
    sts_view,
    subset_report,
    transfer_report,
    transfer_view,
)
from simcse_cli.evaluation.transfer import (
    TransferResult,
    evaluate_transfer,
    read_file_tasks,
    require_transfer_files,
    transfer_intervals,
    transfer_predictions,
)
from simcse_cli.files.atomic import atomic_text, check_output
from simcse_cli.progress import Progress
from simcse_cli.results.columns import find_tasks
from simcse_cli.results.examples import write_pair_scores, write_predictions
from simcse_cli.results.report import Outcome
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS, Probe
from simcse_cli.settings.declare import refuse_unused


def eval_sts(
    encoder: EncoderOptions,
    options: StsOptions,
    progress: Progress,
    *,
    per_subset: bool = False,
    force: bool = False,
) -> Outcome | None:
    """Score STS; None where only the sentences were to be written.

    ``per_subset`` adds a table of the subsets, ``force`` overwrites the files that options name.
    """
    if options.split not in ("train", "dev", "test", "all"):
        raise UsageError("need train, dev, test or all", option="--split")
    split = cast(Split, options.split)
    setting = resolve_setting(
        options.protocol, metric=options.metric, aggregation=options.aggregation, regressor=options.regressor
    )
    if setting.regressor and split != "test":
        raise UsageError(f"the regressor predicts the test split, not {split}", option="--split")
    for path in (options.save_scores, options.write_sentences):
        if path is not None:
            check_output(path, force=force)
    if not options.pair_file:
        refuse_unused(options, ["columns"], "has no use without --pair-file")
    if options.write_sentences is not None:
        unused = ("ci", "save_scores", "protocol", "metric", "aggregation", "regressor")
        refuse_unused(options, unused, "has no use with --write-sentences, which scores nothing")
    pair_tasks = read_pair_tasks(options.pair_file or (), options.columns)
    if pair_tasks and (split != "test" or setting.regressor):
        flag = "--split" if split != "test" else "--regressor"
        raise UsageError("has a test set only, without a training set", option=f"--pair-file with {flag}")
    data_dir, tasks = _sts_tasks(options, pair_tasks, progress)
    recorded = {"protocol": options.protocol.value, "regressor": setting.regressor}

    def run(encode: Encode, tasks: Sequence[str]) -> StsResult:
        result = evaluate_sts(
            encode,
            data_dir,
            tasks=tasks,
            metric=setting.metric,
            aggregation=setting.aggregation,
            split=split,
            pair_tasks=pair_tasks,
            progress=progress,
        )
        if setting.regressor and data_dir is not None:
            return with_regressor(result, encode, data_dir, progress=progress)
        return result

    if options.checkpoints:
        others = {
            "--ci": options.ci,
            "--save-scores": options.save_scores,
            "--write-sentences": options.write_sentences,
        }
        check_checkpoints(encoder, others)
        key = sts_key(data_dir, tasks, split, setting, pair_tasks)
        folder = cache_folder(options.cache_dir, options.cache, progress)

        @kept_on_interrupt(
            lambda: "finished checkpoints are kept; the same command goes on" if folder else "nothing is kept"
        )
        def score(opened: OpenEncoder) -> dict[str, Any]:
            cache = EvaluationCache(folder, opened.cache_key, progress=progress)
            kept = cache.load_result("sts", key)
            if kept is None:
                kept = run(opened.encode, tasks).to_json()
                cache.save_result("sts", key, kept)
            return {**opened.facts(), **recorded, **kept}

        return evaluate_checkpoints(encoder, score, sts_view, progress)

    if options.write_sentences is not None:
        found, _ = read_available_tasks(data_dir, tasks, split, progress, pair_tasks)
        write_sts_sentences(options.write_sentences, found.values(), progress, force=force)
        return None
    plan = plan_postprocess(encoder, force=force)
    opened = open_encoder(encoder, progress)
    if plan is not None and plan.is_per_task:
        for_task = per_task_postprocess(opened, plan, data_dir, progress, pair_tasks)
        result = evaluate_per_task(lambda task: run(for_task(task), (task,)), tasks, progress=progress)
        opened = per_task_name(opened, plan)
    else:
        opened = with_postprocess(opened, plan, data_dir, progress, force=force)
        result = run(opened.encode, tasks)

    reports = [
        sts_report(replace(result, metric=each), opened.name, opened.pooler) for each in setting.metrics
    ]
    payload = result.to_json(**opened.facts(), **recorded)
    if options.ci:
        add_intervals(reports[0], payload, sts_intervals(result))
    if per_subset:
        reports.append(subset_report(result))
    if options.save_scores is not None:
        write_pair_scores(options.save_scores, sts_pair_scores(result, data_dir, pair_tasks), force=force)
        payload["pair_scores"] = str(options.save_scores)
    keep_in_run(encoder, payload, progress)
    return Outcome(reports, payload)


def eval_transfer(
    encoder: EncoderOptions, options: TransferOptions, progress: Progress, *, force: bool = False
) -> Outcome:
    """Score transfer tasks; ``force`` overwrites the files that options name."""
    if options.probe is Probe.SKLEARN:
        require_extra("sklearn", "--probe sklearn")
    if options.save_scores is not None:
        check_output(options.save_scores, force=force)
    if not options.task_file:
        refuse_unused(options, ["columns"], "has no use without --task-file")
    file_tasks = read_file_tasks(options.task_file or (), options.columns, options.protocol)
    named = () if options.tasks is None and file_tasks else parse_tasks(options.tasks, TRANSFER_TASKS)
    data_dir, tasks = options.data_dir if named else None, (*named, *file_tasks)
    if data_dir is None and named:
        raise UsageError("need a SentEval folder (or SIMCSE_DATA), or --task-file FILE", option="--data-dir")
    if data_dir is not None:
        require_transfer_files(data_dir, named)
    folder = cache_folder(options.cache_dir, options.cache, progress)

    @kept_on_interrupt(
        lambda: "finished tasks are kept; the same command goes on" if folder else "nothing is kept"
    )
    def run(opened: OpenEncoder) -> TransferResult:
        return evaluate_transfer(
            opened.encode,
            data_dir,
            tasks=tasks,
            protocol=options.protocol,
            probe=options.probe,
            file_tasks=file_tasks,
            cache=EvaluationCache(
                folder, opened.cache_key, keep_vectors=not options.checkpoints, progress=progress
            ),
            progress=progress,
        )

    if options.checkpoints:
        check_checkpoints(encoder, {"--ci": options.ci, "--save-scores": options.save_scores})
        return evaluate_checkpoints(
            encoder, lambda opened: run(opened).to_json(**opened.facts()), transfer_view, progress
        )

    opened = open_with_postprocess(encoder, options.data_dir, progress, force=force)
    result = run(opened)
    report = transfer_report(result, opened.name, opened.pooler)
    payload = result.to_json(**opened.facts())
    if options.ci:
        add_intervals(report, payload, transfer_intervals(result))
    if options.save_scores is not None:
        write_predictions(options.save_scores, transfer_predictions(result), force=force)
        payload["predictions"] = str(options.save_scores)
    keep_in_run(encoder, payload, progress)
    return Outcome([report], payload)


def parse_tasks(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tasks of a comma-separated list, or all; UsageError names the nearest of an unknown one."""
    if text is None:
        return known
    try:
        return find_tasks(text, known)
    except ValueError as error:
        raise UsageError(str(error), option="--tasks") from None


def _sts_tasks(
    options: StsOptions, pair_tasks: Mapping[str, StsTask], progress: Progress
) -> tuple[Path | None, tuple[str, ...]]:
    """Return the folder and the tasks: those named, else the pair files alone, else all that have the split."""
    if options.tasks is None and pair_tasks:
        return options.data_dir, tuple(pair_tasks)
    named = parse_tasks(options.tasks, STS_TASKS)
    if options.tasks is None and options.split != "test":
        named = ("STSBenchmark",) if options.split == "dev" else ("STSBenchmark", "SICKRelatedness")
    return data_dir_or_demo(options.data_dir, progress), (*named, *pair_tasks)


def write_sts_sentences(target: Path, tasks: Iterable[StsTask], progress: Progress, *, force: bool) -> None:
    """Write every distinct sentence of the tasks, for models that are run elsewhere."""
    distinct = dict.fromkeys(sentence for task in tasks for sentence in task.sentences)
    with atomic_text(target, force=force) as stream:
        stream.writelines(f"{sentence}\n" for sentence in distinct)
    progress.info(f"wrote {target}: {len(distinct):,} sentences")
