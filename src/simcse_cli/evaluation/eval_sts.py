"""`simcse eval sts`: open the encoder, score it on the STS tasks, and show the result."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from simcse_cli.data.senteval import Split, digest_of_pairs
from simcse_cli.errors import UsageError, kept_on_interrupt
from simcse_cli.evaluation import fit_postprocess, sts
from simcse_cli.evaluation.bootstrap import resample_sts, with_intervals
from simcse_cli.evaluation.embedding_cache import EvaluationCache, cache_folder
from simcse_cli.evaluation.eval_encoder import EvalEncoder, keep_in_run, open_encoder
from simcse_cli.evaluation.options import EncoderOptions, StsOptions
from simcse_cli.evaluation.several import evaluate_checkpoints
from simcse_cli.files.output import output_text, require_writable
from simcse_cli.progress import Progress
from simcse_cli.results.columns import AVERAGE, columns, label
from simcse_cli.results.examples import saved_facts, write_pair_scores
from simcse_cli.results.report import DASH, Outcome, Report
from simcse_cli.results.result import SuiteResult
from simcse_cli.results.runs import pairs_that_chose
from simcse_cli.settings.choices import STS_TASKS, Metric


def eval_sts(
    encoder: EncoderOptions,
    options: StsOptions,
    progress: Progress,
    *,
    per_subset: bool = False,
    force: bool,
) -> Outcome | None:
    """Score an encoder on STS; return None if only the sentences are written.

    ``per_subset`` adds a table of the subsets; ``force`` overwrites the files that options name.
    """
    setting = _checked_setting(options, force=force)
    suite = sts.StsSuite.of_options(options, progress)
    recorded = {"protocol": options.protocol.value, "regressor": setting.regressor}
    if options.checkpoints:
        return _score_checkpoints(encoder, options, suite, setting, recorded, progress)
    if options.write_sentences is not None:
        _write_sentences(options.write_sentences, suite, progress, force=force)
        return None
    result = _score_one(encoder, suite, setting, recorded, progress, force=force)
    result = _with_tasks_chosen_on(result, encoder)
    if options.ci:
        result = _with_intervals(result, setting, progress)

    # Save the result, and make its tables.
    payload = result.to_json()
    if options.save_scores is not None:
        write_pair_scores(options.save_scores, dict(result.examples), force=force)
        payload |= saved_facts("pair_scores", options.save_scores, progress)
    keep_in_run(encoder, payload, progress)
    # Each metric of a protocol gets a table of its own, under the same aggregation.
    has_several = len(setting.metrics) > 1
    reports = [sts_report(result, names_metric=has_several)]
    for metric in setting.metrics[1:]:
        reports.append(sts_report(result.under(metric, aggregation=None), names_metric=has_several))
    if per_subset:
        reports.append(_subset_report(result))
    return Outcome(reports, payload)


def _checked_setting(options: StsOptions, *, force: bool) -> sts.StsSetting:
    """Return the STS setting that the options give.

    Raise an error if options disagree, or if an output file cannot be written.
    """
    split = options.split
    if split not in get_args(Split):
        raise UsageError("need train, dev, test or all", option="--split")
    for path in (options.save_scores, options.write_sentences):
        if path is not None:
            require_writable(path, force=force)
    setting = sts.resolve_setting(options)
    if setting.regressor and split != "test":
        raise UsageError(f"the regressor predicts the test split, not {split}", option="--split")
    if options.pair_file and (split != "test" or setting.regressor):
        flag = "--regressor" if setting.regressor else "--split"
        raise UsageError(
            "has a test set only, without a training set", option=f"--pair-file with {flag}"
        )
    return setting


def _score_checkpoints(
    encoder: EncoderOptions,
    options: StsOptions,
    suite: sts.StsSuite,
    setting: sts.StsSetting,
    recorded: Mapping[str, Any],
    progress: Progress,
) -> Outcome:
    """Score every checkpoint of a run; ``recorded`` are settings to keep in the results."""
    # Results of finished checkpoints are kept, so that another call continues after them.
    key = suite.key(setting)
    folder = cache_folder(options.cache_dir, options.cache, progress)
    continues = "finished checkpoints are kept; the same command continues"
    message = continues if folder else "nothing is kept"

    @kept_on_interrupt(lambda: message)
    def score_or_load(opened: EvalEncoder) -> SuiteResult:
        cache = EvaluationCache(folder, opened.cache_key, progress=progress)
        payload = cache.load_result("sts", key)
        if payload is None:
            payload = sts.evaluate_sts(opened.encode, suite, setting, progress=progress).to_json()
            cache.save_result("sts", key, payload)
        result = SuiteResult.from_json(payload, str(folder))
        return result.with_settings(**opened.facts(), **recorded)

    return evaluate_checkpoints(encoder, score_or_load, sts_checkpoints, progress)


def _write_sentences(path: Path, suite: sts.StsSuite, progress: Progress, *, force: bool) -> None:
    tasks, _ = suite.read(progress)
    distinct = dict.fromkeys(sentence for task in tasks.values() for sentence in task.sentences)
    with output_text(path, force=force) as stream:
        stream.writelines(f"{sentence}\n" for sentence in distinct)
    progress.info(f"wrote {path}: {len(distinct):,} sentences")


def _score_one(
    encoder: EncoderOptions,
    suite: sts.StsSuite,
    setting: sts.StsSetting,
    recorded: Mapping[str, Any],
    progress: Progress,
    *,
    force: bool,
) -> SuiteResult:
    """Score one encoder; its post-processing, if any, is fitted once or for each task.

    ``recorded`` are settings to keep in the result. ``force`` overwrites a saved post-processor.
    """
    plan = fit_postprocess.plan_postprocess(encoder, force=force)
    opened = open_encoder(encoder, progress)
    if plan is not None and plan.is_per_task:
        encode_for = fit_postprocess.per_task_postprocess(opened, plan, suite, progress)
        result = sts.evaluate_per_task(encode_for, suite, setting, progress=progress)
        opened = fit_postprocess.described_per_task(opened, plan)
    else:
        opened = fit_postprocess.with_postprocess(
            opened, plan, suite.data_dir, progress, force=force
        )
        result = sts.evaluate_sts(opened.encode, suite, setting, progress=progress)
    return result.with_settings(**opened.facts(), **recorded)


def _with_intervals(
    result: SuiteResult, setting: sts.StsSetting, progress: Progress
) -> SuiteResult:
    """Return the result with intervals of the tasks that have a score, and of their average."""
    resampled = {}
    for name, subsets in result.examples.items():
        if result.scores[name] is None:
            continue
        pairs = sts.cosine_and_gold(subsets)
        resampled[name] = resample_sts(
            name, pairs, metric=setting.metric, aggregation=setting.aggregation
        )
    return with_intervals(result, resampled, progress)


def _subset_report(result: SuiteResult) -> Report:
    rows = []
    for name, task in result.tasks.items():
        if task is None:
            continue
        for subset, facts in task.parts.items():
            rows.append({"task": label(name), "subset": subset, **facts})
    return Report("Subsets", columns("task", "subset", "n_pairs", *Metric), rows)


def _with_tasks_chosen_on(result: SuiteResult, encoder: EncoderOptions) -> SuiteResult:
    """Return the result with the setting ``chosen_on``, a list of tasks, if there are any.

    The pairs of these tasks are the dev pairs of the run. They chose the model, so the score on
    them may be too high.
    """
    if not encoder.has_model:
        return result
    pair_digests = pairs_that_chose(encoder.model)
    if not pair_digests:
        return result
    chosen_on = []
    for name, subsets in result.examples.items():
        pairs: list[tuple[str, str]] = []
        for subset in subsets.values():
            pairs.extend(zip(subset.left, subset.right, strict=True))
        if digest_of_pairs(pairs) in pair_digests:
            chosen_on.append(name)
    return result.with_settings(chosen_on=chosen_on) if chosen_on else result


def sts_report(result: SuiteResult, *, names_metric: bool = False) -> Report:
    """Return the scores as a table; with ``names_metric``, a column names their metric."""
    settings = result.settings
    texts = {"model": settings["model"]}
    if names_metric:
        texts["metric"] = settings["metric"]
    return Report(
        f"STS, {result.split} sets: {settings['metric']} x100, "
        f"aggregation {settings['aggregation']}, pooler {settings['pooler'] or DASH}",
        [*columns(*texts), *columns(*result.tasks, AVERAGE, kind="score")],
        [{**texts, **result.row}, *result.interval_rows()],
        result.notes(),
    )


def sts_checkpoints(results: Sequence[SuiteResult], run: str) -> Report:
    first = results[0]
    settings = first.settings
    notes = [*first.missing_notes(), "best: highest average"]
    own_tasks = [name for name in first.tasks if name not in STS_TASKS]
    sets = "own pairs" if len(own_tasks) == len(first.tasks) else f"{first.split} sets"
    if sets == "test sets":
        notes.append("these are test sets: look, but choose a checkpoint by --split dev")
    if own_tasks:
        notes.append(
            f"{', '.join(own_tasks)}: pairs that choose a checkpoint are no test of it, so keep "
            "others for its final score"
        )
    return Report(
        f"STS along {run}, {sets}: {settings['metric']} x100, aggregation "
        f"{settings['aggregation']}",
        columns(*first.tasks, AVERAGE, kind="score"),
        [result.row for result in results],
        notes,
    )
