"""`simcse eval sts`: open the encoder, score it on the STS tasks, and show the result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from simcse_cli.data.demo import data_dir_or_demo
from simcse_cli.data.senteval import Split, StsTask
from simcse_cli.errors import UsageError, kept_on_interrupt
from simcse_cli.evaluation.bootstrap import with_intervals
from simcse_cli.evaluation.checkpoints import check_checkpoints, evaluate_checkpoints
from simcse_cli.evaluation.embedding_cache import Encode, EvaluationCache, cache_folder
from simcse_cli.evaluation.eval_encoder import EvalEncoder, keep_in_run, open_encoder
from simcse_cli.evaluation.fit_postprocess import (
    per_task_name,
    per_task_postprocess,
    plan_postprocess,
    with_postprocess,
)
from simcse_cli.evaluation.options import EncoderOptions, StsOptions
from simcse_cli.evaluation.sts import (
    StsSetting,
    evaluate_per_task,
    evaluate_sts,
    resample_sts_suite,
    resolve_setting,
    sts_key,
)
from simcse_cli.evaluation.sts_tasks import parse_tasks, read_available_tasks, read_pair_tasks
from simcse_cli.files.atomic import atomic_text, check_output
from simcse_cli.progress import Progress
from simcse_cli.results.columns import AVERAGE, columns, label
from simcse_cli.results.examples import write_pair_scores
from simcse_cli.results.report import Outcome, Report
from simcse_cli.results.result import SuiteResult
from simcse_cli.settings.choices import STS_TASKS, Metric
from simcse_cli.settings.declare import refuse_unused


@dataclass(frozen=True)
class StsPlan:
    """What is scored, under which setting; ``recorded`` are settings that only the result file names."""

    tasks: tuple[str, ...]
    data_dir: Path | None
    pair_tasks: Mapping[str, StsTask]
    split: Split
    setting: StsSetting
    recorded: Mapping[str, Any]
    progress: Progress

    def score(self, encode: Encode, tasks: Sequence[str] | None = None) -> SuiteResult:
        """Score an encode function, on all tasks or on some."""
        return evaluate_sts(
            encode,
            self.data_dir,
            tasks=tasks or self.tasks,
            metric=self.setting.metric,
            aggregation=self.setting.aggregation,
            regressor=self.setting.regressor,
            split=self.split,
            pair_tasks=self.pair_tasks,
            progress=self.progress,
        )


def eval_sts(
    encoder: EncoderOptions,
    options: StsOptions,
    progress: Progress,
    *,
    per_subset: bool = False,
    force: bool = False,
) -> Outcome | None:
    """Score STS; None if only the sentences were to be written.

    ``per_subset`` adds a table of the subsets, ``force`` overwrites the files that options name.
    """
    plan = plan_sts(options, progress, force=force)
    if options.checkpoints:
        return _eval_checkpoints(encoder, options, plan)
    if options.write_sentences is not None:
        found, _ = read_available_tasks(plan.data_dir, plan.tasks, plan.split, progress, plan.pair_tasks)
        write_sts_sentences(options.write_sentences, found.values(), progress, force=force)
        return None
    result = _score(encoder, plan, force=force)
    if options.ci:
        result = with_intervals(result, resample_sts_suite(result))
    payload = result.to_json()
    if options.save_scores is not None:
        write_pair_scores(options.save_scores, dict(result.examples), force=force)
        payload["pair_scores"] = str(options.save_scores)
    keep_in_run(encoder, payload, progress)
    others = [sts_report(result.under(metric, None)) for metric in plan.setting.metrics[1:]]
    subsets = [subset_report(result)] if per_subset else []
    return Outcome([sts_report(result), *others, *subsets], payload)


def plan_sts(options: StsOptions, progress: Progress, *, force: bool) -> StsPlan:
    """Return what the options ask for, once all that they exclude and the files to be written are checked."""
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

    # The tasks named; else the pair files alone; else all tasks that have the split.
    data_dir, named = options.data_dir, parse_tasks(options.tasks, STS_TASKS)
    if options.tasks is None and pair_tasks:
        named = ()
    elif options.tasks is None and split != "test":
        named = ("STSBenchmark",) if split == "dev" else ("STSBenchmark", "SICKRelatedness")
    if named:
        data_dir = data_dir_or_demo(data_dir, progress)
    recorded = {"protocol": options.protocol.value, "regressor": setting.regressor}
    return StsPlan((*named, *pair_tasks), data_dir, pair_tasks, split, setting, recorded, progress)


def _score(encoder: EncoderOptions, plan: StsPlan, *, force: bool) -> SuiteResult:
    """Return the scores of the encoder after its post-processing, fitted once or for each task."""
    postprocess = plan_postprocess(encoder, force=force)
    opened = open_encoder(encoder, plan.progress)
    if postprocess is not None and postprocess.is_per_task:
        for_task = per_task_postprocess(opened, postprocess, plan.data_dir, plan.progress, plan.pair_tasks)
        result = evaluate_per_task(
            lambda task: plan.score(for_task(task), (task,)), plan.tasks, progress=plan.progress
        )
        opened = per_task_name(opened, postprocess)
    else:
        opened = with_postprocess(opened, postprocess, plan.data_dir, plan.progress, force=force)
        result = plan.score(opened.encode)
    return result.having(**opened.facts(), **plan.recorded)


def _eval_checkpoints(encoder: EncoderOptions, options: StsOptions, plan: StsPlan) -> Outcome:
    """Score each checkpoint of a run; finished ones are taken from the cache."""
    others = {
        "--ci": options.ci,
        "--save-scores": options.save_scores,
        "--write-sentences": options.write_sentences,
    }
    check_checkpoints(encoder, others)
    key = sts_key(plan.data_dir, plan.tasks, plan.split, plan.setting, plan.pair_tasks)
    folder = cache_folder(options.cache_dir, options.cache, plan.progress)

    @kept_on_interrupt(
        lambda: "finished checkpoints are kept; the same command goes on" if folder else "nothing is kept"
    )
    def score(opened: EvalEncoder) -> SuiteResult:
        cache = EvaluationCache(folder, opened.cache_key, progress=plan.progress)
        kept = cache.load_result("sts", key)
        if kept is None:
            kept = plan.score(opened.encode).to_json()
            cache.save_result("sts", key, kept)
        return SuiteResult.from_json(kept, str(folder)).having(**opened.facts(), **plan.recorded)

    return evaluate_checkpoints(encoder, score, sts_checkpoints, plan.progress)


def write_sts_sentences(target: Path, tasks: Iterable[StsTask], progress: Progress, *, force: bool) -> None:
    """Write every distinct sentence of the tasks, for models that are run elsewhere."""
    distinct = dict.fromkeys(sentence for task in tasks for sentence in task.sentences)
    with atomic_text(target, force=force) as stream:
        stream.writelines(f"{sentence}\n" for sentence in distinct)
    progress.info(f"wrote {target}: {len(distinct):,} sentences")


def sts_report(result: SuiteResult) -> Report:
    """Return the one-row table of the papers: seven tasks and their average, with intervals below it."""
    own = result.settings
    return Report(
        f"STS, {result.split} sets: {own['metric']} x100, aggregation {own['aggregation']}, pooler {own['pooler']}",
        [*columns("model"), *columns(*result.tasks, AVERAGE, kind="score")],
        [{"model": own["model"], **result.scores, AVERAGE: result.average}, *result.interval_rows()],
        result.notes(),
    )


def sts_checkpoints(results: Sequence[SuiteResult], run: str) -> Report:
    """Return one row a checkpoint: the tasks and their average."""
    first, own = results[0], results[0].settings
    notes = [f"{task} missing: {reason}" for task, reason in first.missing.items()]
    notes.append("best: highest average")
    if first.split == "test":
        notes.append("these are test sets: look, but choose a checkpoint by --split dev")
    return Report(
        f"STS along {run}, {first.split} sets: {own['metric']} x100, aggregation {own['aggregation']}",
        columns(*first.tasks, AVERAGE, kind="score"),
        [{**result.scores, AVERAGE: result.average} for result in results],
        notes,
    )


def subset_report(result: SuiteResult) -> Report:
    """Return one row a subset, for ``--verbose``."""
    rows = [
        {"task": label(name), "subset": subset, **numbers}
        for name, task in result.tasks.items()
        if task
        for subset, numbers in task.parts.items()
    ]
    return Report("Subsets", columns("task", "subset", "n_pairs", *Metric), rows)
