"""`simcse eval mteb`: select mteb tasks, run them, and average their scores by category.

Each task is loaded, run and scored by mteb's classes, and its result is kept in mteb's format under
``RESULTS/results/MODEL/REVISION/TASK.json``. The revision of an unchanged Hub model is its commit,
as the leaderboard wants it. The revision of anything else is a digest of what determines its
vectors, so that other weights never get its scores.
"""

import copy
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcse_cli.data import mteb_files
from simcse_cli.errors import ConfigError, DataError, kept_on_interrupt, require_extra
from simcse_cli.evaluation.embedding_cache import Embeddings, digest_of
from simcse_cli.evaluation.eval_encoder import EvalEncoder, keep_in_run
from simcse_cli.evaluation.fit_postprocess import open_with_postprocess
from simcse_cli.evaluation.options import EncoderOptions, MtebOptions
from simcse_cli.evaluation.several import evaluate_checkpoints
from simcse_cli.files.atomic import output_error
from simcse_cli.files.digests import OLDER_DIGEST, digest, is_older_digest
from simcse_cli.files.schema import foreign_format
from simcse_cli.files.system import default_cache_dir
from simcse_cli.models.encode import DOCUMENT_PROMPTS
from simcse_cli.models.resolve import hub_name_of
from simcse_cli.progress import SILENT, Progress
from simcse_cli.results.columns import AVERAGE, columns, listed
from simcse_cli.results.report import Column, Outcome, Report, mean_and_deviation
from simcse_cli.results.result import SuiteResult, TaskResult

DEFAULT_BENCHMARK = "MTEB(eng, v1)"
CATEGORIES = {
    "Classification": "Class.",
    "Clustering": "Clust.",
    "PairClassification": "PairClass.",
    "Reranking": "Rerank.",
    "Retrieval": "Retr.",
    "STS": "STS",
    "Summarization": "Summ.",
}
"""The seven categories of the English benchmark, with their headings.

The order and the headings are those of the papers' tables.
"""
LOCAL_REVISION = "local-"
"""The revision of a local dataset is this prefix and a digest of the contents."""
_MTEB_NAMES = {"SICKRelatedness": "SICK-R"}  # maps a name of SentEval to that of mteb
_LOADER_BATCH = 1024
_LONGEST_NAME = 200  # bytes: folders have the names of models, and file systems limit names


def select_tasks(
    *, benchmark: str = DEFAULT_BENCHMARK, tasks: Sequence[str] = (), categories: Sequence[str] = ()
) -> list[Any]:
    """Return the tasks to run as objects of mteb, by default all tasks of the benchmark.

    - ``benchmark``, a name or an alias, determines the splits and subsets of its tasks. The default
      benchmark has only en-en of STS17, and only en of STS22 and AmazonCounterfactual.
    - ``tasks`` are the names of the wanted tasks. A task that is not in the benchmark is taken from
      the rest of mteb, with its English subsets only.
    - ``categories`` are the types of tasks to keep, in any case of letters; by default all.
    """
    mteb = _import_mteb()
    names = dict.fromkeys(_MTEB_NAMES.get(name, name) for name in tasks)
    try:
        with _quiet():
            members = {task.metadata.name: task for task in mteb.get_benchmark(benchmark).tasks}
            named = [members.get(name) or mteb.get_task(name, languages=["eng"]) for name in names]
    except (KeyError, ValueError) as error:
        reason = str(error.args[0]).removeprefix("KeyError: ")
        raise ConfigError(
            f"mteb: {reason}", hint="list them with: python -m mteb available-tasks"
        ) from error
    chosen = named if names else list(members.values())
    if not categories:
        return chosen

    # Categories are compared in lower case.
    types = {task.metadata.type for task in chosen}
    existing = {name.lower() for name in types}
    unknown = [name for name in categories if name.lower() not in existing]
    if unknown:
        raise ConfigError(
            f"the chosen mteb tasks have no category {', '.join(unknown)}, only "
            f"{', '.join(sorted(types))}"
        )
    wanted = {name.lower() for name in categories}
    return [task for task in chosen if task.metadata.type.lower() in wanted]


def run_mteb(
    opened: EvalEncoder, tasks: Sequence[Any], options: MtebOptions, progress: Progress = SILENT
) -> SuiteResult:
    """Score an encoder on mteb tasks; finished tasks are read from the folder of results.

    A stored score is used only if it was measured on the same data; local data are compared by
    their contents.

    Data are looked for in ``--data-dir`` before the Hub. A dataset lies there as ``TASK``,
    ``OWNER/NAME`` or ``NAME``, laid out as on the Hub; for the seven STS tasks of the papers, files
    of SentEval also serve.

    Scores are fractions. For all-MiniLM-L6-v2, those of STS12 to STS16, STSBenchmark and SICK-R are
    0.7237, 0.8060, 0.7559, 0.8539, 0.7899, 0.8203 and 0.7758.
    """
    mteb = _import_mteb()

    # Results with a digest of the older kind cannot be used again.
    runner = _Runner(opened, results_folder(options), rerun=options.rerun)
    for folder in runner.older_folders():
        progress.hint(f"{folder} {OLDER_DIGEST}: its tasks are scored again; remove it")

    # A task without usable data must not cost the others their scores.
    outcomes: dict[str, TaskResult | None] = {}
    failures: dict[str, DataError] = {}
    with _quiet(), mteb_files.hub_session(), progress.task("mteb tasks", total=len(tasks)) as bar:
        for task in tasks:
            name = task.metadata.name
            bar.update(task=name)
            try:
                runnable = task
                if options.data_dir is not None:
                    runnable = _with_local_data(task, options.data_dir)
                outcomes[name] = runner.run(runnable, task.metadata.dataset["path"])
            except DataError as error:
                outcomes[name] = None
                failures[name] = error
                if len(tasks) > 1:
                    progress.warn(f"{name} is left out of the averages: {error.message}")
            bar.advance()

    # If all tasks have failed, there is no result, and the error of the first task is raised.
    if len(failures) == len(outcomes):
        name, cause = next(iter(failures.items()))
        raise DataError(f"mteb {name}: {cause.message}", hint=cause.hint) from cause
    missing = {name: failure.message for name, failure in failures.items()}
    categories = {task.metadata.name: task.metadata.type for task in tasks}
    result = SuiteResult("mteb", {"mteb_version": mteb.__version__}, outcomes, missing)
    return replace(result, figures=category_means(categories, result.scores))


def results_folder(options: MtebOptions) -> Path:
    return options.results_dir or default_cache_dir() / "mteb"


def category_means(
    categories: Mapping[str, str], scores: Mapping[str, float | None]
) -> dict[str, Any]:
    """Return the mean score and the counts of each category, and the counts over all categories.

    The counts are the number of tasks, and the number of tasks with a score. ``categories`` and
    ``scores`` map the name of a task to its category and its score. The categories of the papers
    come first, in the order of ``CATEGORIES``.
    """
    scores_of_category: dict[str, list[float | None]] = {}
    for task, score in scores.items():
        scores_of_category.setdefault(categories[task], []).append(score)
    by_category: dict[str, Any] = {}
    n_scored = 0
    for category in [*CATEGORIES, *sorted(scores_of_category.keys() - CATEGORIES)]:
        if category not in scores_of_category:
            continue
        known = [score for score in scores_of_category[category] if score is not None]
        mean, _ = mean_and_deviation(known)
        n_tasks = len(scores_of_category[category])
        by_category[category] = {"n_tasks": n_tasks, "n_scored": len(known), "score": mean}
        n_scored += len(known)
    return {"categories": by_category, "n_tasks": len(scores), "n_scored": n_scored}


class _Runner:
    """Runs mteb tasks with one encoder, and stores and reads their results."""

    def __init__(self, opened: EvalEncoder, results_dir: Path, *, rerun: bool) -> None:
        self._mteb = _import_mteb()
        self._encoder = _MtebEncoder(opened)
        try:
            self._cache = self._mteb.ResultCache(cache_path=results_dir)
        except OSError as error:
            raise output_error(results_dir, error) from error
        self._rerun = rerun

    def older_folders(self) -> list[Path]:
        """Return the folders in which version 1.0.0 has stored results of a model of this name."""
        # The path of a result is MODEL/REVISION/TASK.json, whatever the task.
        meta = self._encoder.mteb_model_meta
        model_folder = Path(self._cache.get_task_result_path("TASK", meta)).parent.parent
        revisions = sorted(model_folder.glob("*"))
        return [folder for folder in revisions if is_older_digest(folder.name, str(meta.revision))]

    def run(self, task: Any, dataset: str) -> TaskResult:
        """Return the score of a task and facts about it; what is not stored is evaluated first.

        ``dataset`` is the name of the data on the Hub, even if the task reads local files.
        """
        started = time.perf_counter()
        metadata = task.metadata  # read now: unloading local data drops it
        stored = self._stored(task)
        outcome = self._evaluate(task, stored)
        was_complete = stored is not None and not stored.get_missing_evaluations(task)
        facts = {
            "category": metadata.type,
            "metric": metadata.main_score,
            "dataset": dataset,
            "dataset_revision": metadata.revision,
            "data": "local" if metadata.revision.startswith(LOCAL_REVISION) else "hub",
            "cached": was_complete,
            "seconds": time.perf_counter() - started,
        }
        score, _ = mean_and_deviation(list(_main_scores(task, outcome)))
        if score is not None and not math.isfinite(score):
            score = None
        return TaskResult(score, extra=facts)

    def _evaluate(self, task: Any, stored: Any) -> Any:
        """Return the complete result of a task, as mteb stores it, with six decimals.

        ``stored`` is the result of earlier calls, which may be incomplete, or None. What it lacks
        is evaluated first.
        """
        # An aggregate task is scored from the results of its parts.
        if task.is_aggregate and stored is None:
            parts = [self._evaluate(part, self._stored(part)) for part in task.metadata.tasks]
            combined = task.combine_task_results(parts)
            self._cache.save_to_cache(combined, self._encoder.mteb_model_meta)
        elif stored is None or stored.get_missing_evaluations(task):
            self._run_with_mteb(task, overwrite="always" if stored is None else "only-missing")
        return self._cache.load_task_result(task.metadata.name, self._encoder.mteb_model_meta)

    def _run_with_mteb(self, task: Any, *, overwrite: str) -> None:
        """Load the data of a task, let mteb evaluate it and store the result, and unload the data.

        ``overwrite`` is mteb's strategy for a result that is stored already.
        """
        name = task.metadata.name
        repository = task.metadata.dataset["path"]
        revision = str(task.metadata.revision)
        is_local = revision.startswith(LOCAL_REVISION)
        # Local datasets of one name may have different contents, so each has its own cache.
        with mteb_files.cache_of(revision) if is_local else nullcontext():
            try:
                _load(task, repository)
                self._mteb.evaluate(
                    self._encoder,
                    task,
                    cache=self._cache,
                    overwrite_strategy=overwrite,
                    encode_kwargs={"batch_size": _LOADER_BATCH, "show_progress_bar": False},
                    co2_tracker=False,
                    show_progress_bar=False,
                )
            except mteb_files.FORMAT_ERRORS as error:
                if not is_local:
                    raise
                raise DataError(
                    f"{repository} is not laid out as {name} needs it: {error}",
                    hint="take over the files of the dataset as they are on the Hub",
                ) from error
            finally:
                if task.data_loaded:
                    task.unload_data()

    def _stored(self, task: Any) -> Any:
        """Return the stored result of a task, or None if there is none to use.

        A stored result is not used with ``--rerun``, if it is damaged, or if it is of other data.
        """
        if self._rerun:
            return None
        stored = None
        with suppress(DataError), foreign_format(task.metadata.name, "a stored result"):
            stored = self._cache.load_task_result(task.metadata.name, self._encoder.mteb_model_meta)
        if stored is None or stored.dataset_revision != task.metadata.revision:
            return None
        return stored


def _main_scores(task: Any, outcome: Any) -> Iterator[float]:
    """Yield the main score of each split and subset of a task."""
    for split in task.eval_splits:
        for entry in outcome.scores[split]:
            if entry["hf_subset"] in task.hf_subsets:
                yield float(entry["main_score"])


class _MtebEncoder:
    """An encoder with the methods of ``mteb.EncoderProtocol``.

    mteb knows an unchanged Hub model by its name and commit, and anything else by a digest of what
    determines its vectors.
    """

    def __init__(self, opened: EvalEncoder) -> None:
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction
        from mteb.similarity_functions import cos_sim, pairwise_cos_sim

        self.similarity = cos_sim
        self.similarity_pairwise = pairwise_cos_sim
        self._encode = opened.encode
        self._prompts = dict(opened.prompts)

        # mteb stores results under a name and a revision, which together determine the vectors. A
        # long name is cut; if the cut falls inside a character, the character is dropped.
        name = opened.name
        if opened.commit is not None:
            name = hub_name_of(name) or name  # a folder has no name on the Hub
        name = name.strip("/").encode()[-_LONGEST_NAME:].decode(errors="ignore")
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": name if "/" in name else f"local/{name}",
                "revision": _revision(opened),
                "embed_dim": opened.dim,
                "similarity_fn_name": ScoringFunction.COSINE,
                "modalities": ["text"],
            }
        )

    def encode(
        self, inputs: Any, *, task_metadata: Any = None, prompt_type: Any = None, **_: Any
    ) -> Embeddings:
        """Return the vectors of all texts of a data loader.

        The prompt of the task is used if the model has one.
        """
        from mteb.models.abs_encoder import get_prompt_name

        texts = [text for batch in inputs for text in batch["text"]]
        if not self._prompts:
            return self._encode(texts)
        # mteb looks for a prompt of the task, of its type, or of queries or documents. If it finds
        # none and the texts are documents, other usual names of such a prompt are tried.
        name = get_prompt_name(self._prompts, task_metadata, prompt_type)
        if name is None and prompt_type is not None and prompt_type.value == "document":
            name = next((name for name in DOCUMENT_PROMPTS if name in self._prompts), None)
        if name is None:
            return self._encode(texts)
        return self._encode(texts, prompt=self._prompts[name])


def _revision(opened: EvalEncoder) -> str:
    """Return the commit of an unchanged Hub model, else a digest of what determines the vectors."""
    if opened.commit is not None:
        return opened.commit
    revision = f"{opened.digest}-{opened.precision}"
    prompts = {name: text for name, text in opened.prompts.items() if text}
    if prompts:
        revision += f"-{digest_of(prompts)}"
    return revision


def _with_local_data(task: Any, data_dir: Path) -> Any:
    """Return a copy of the task; the copy reads its data below ``data_dir`` if they are there."""
    local = copy.copy(task)
    dataset = dict(task.metadata.dataset)
    changes: dict[str, Any] = {"dataset": dataset}
    # An aggregate task is local if one of its parts is.
    if task.is_aggregate:
        changes["tasks"] = [_with_local_data(part, data_dir) for part in task.metadata.tasks]
        revisions = [part.metadata.revision for part in changes["tasks"]]
        if any(revision.startswith(LOCAL_REVISION) for revision in revisions):
            dataset["revision"] = LOCAL_REVISION + digest(*revisions)
    elif folder := mteb_files.find_dataset_folder(data_dir, task.metadata.name, dataset["path"]):
        dataset["path"] = str(folder)
        dataset["revision"] = LOCAL_REVISION + mteb_files.folder_digest(folder)
    elif splits := mteb_files.senteval_dataset(data_dir, task.metadata.name):
        dataset["revision"] = LOCAL_REVISION + mteb_files.dataset_digest(splits)
        local.dataset = splits
        local.data_loaded = True
    local.metadata = task.metadata.model_copy(update=changes)
    return local


def _load(task: Any, repository: str) -> None:
    """Load the data of a task, or raise DataError with the command that fetches them."""
    try:
        task.load_data()
    except mteb_files.LOAD_ERRORS as error:
        name = repository.rpartition("/")[2]
        raise DataError(
            f"{repository} is not on this machine and cannot be fetched from the Hub "
            f"({type(error).__name__})",
            hint=f"where there is a network: hf download {repository} --repo-type dataset "
            f"--local-dir DIR/{name}; then give --data-dir DIR",
        ) from error


def _import_mteb() -> Any:
    require_extra("mteb", "`simcse eval mteb`")
    import mteb

    return mteb


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence mteb's warnings about tasks; ``run_mteb`` reports the problems that matter."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(superseded|in beta).*")
        yield


def eval_mteb(
    encoder: EncoderOptions, options: MtebOptions, progress: Progress, *, force: bool
) -> Outcome:
    """Score tasks of MTEB; ``force`` overwrites a saved post-processor."""
    benchmark = options.benchmark or DEFAULT_BENCHMARK
    tasks = select_tasks(
        benchmark=benchmark, tasks=listed(options.tasks), categories=listed(options.category)
    )

    # Finished tasks are kept if the evaluation is interrupted. --rerun would score them again.
    folder = results_folder(options)
    again = "the same command without --rerun" if options.rerun else "the same command"

    @kept_on_interrupt(lambda: f"finished tasks are kept in {folder}; {again} continues")
    def run(opened: EvalEncoder) -> SuiteResult:
        result = run_mteb(opened, tasks, options, progress)
        return result.with_settings(**opened.facts(), benchmark=benchmark, results_dir=str(folder))

    if options.checkpoints:
        return evaluate_checkpoints(encoder, run, mteb_checkpoints, progress)
    # Without --data-dir, --fit nli looks for its files in the current folder.
    opened = open_with_postprocess(encoder, options.data_dir or Path(), progress, force=force)
    result = run(opened)
    progress.detail(f"mteb results are in {folder}")
    payload = result.to_json()
    keep_in_run(encoder, payload, progress)
    categories = {task.metadata.name: task.metadata.type for task in tasks}
    return Outcome([mteb_task_report(result, categories), mteb_category_report(result)], payload)


def mteb_task_report(result: SuiteResult, categories: Mapping[str, str]) -> Report:
    rows = []
    for name, task in result.tasks.items():
        row: dict[str, Any] = {"task": name, "category": categories[name]}
        if task is not None:
            row |= {"score": task.score, **task.extra}
        rows.append(row)
    # The scores have the name of the model as their heading.
    shown = columns(
        "task", "category", "metric", "score", "data", score=str(result.settings["model"])
    )
    title = f"MTEB tasks, mteb {result.settings['mteb_version']}, main scores x100"
    return Report(title, shown, rows, result.notes())


def mteb_category_report(result: SuiteResult) -> Report:
    categories = result.figures["categories"]
    counts = ", ".join(
        f"{category} {figures['n_scored']}/{figures['n_tasks']}"
        for category, figures in categories.items()
    )
    n_scored = result.figures["n_scored"]
    return Report(
        "MTEB averages over datasets",
        [*columns("model"), *_category_columns(result)],
        [{"model": result.settings["model"], **_category_row(result)}],
        [f"datasets scored: {counts}; Avg. is the mean over these {n_scored}, not over categories"],
    )


def mteb_checkpoints(results: Sequence[SuiteResult], run: str) -> Report:
    first = results[0]
    n_scored = first.figures["n_scored"]
    n_tasks = first.figures["n_tasks"]
    return Report(
        f"MTEB along {run}, mteb {first.settings['mteb_version']}: averages over datasets x100",
        _category_columns(first),
        [_category_row(result) for result in results],
        [
            f"best: highest mean over the {n_scored} of {n_tasks} datasets that have a score",
            "these are test sets for the most part: look, but choose a checkpoint by dev data",
        ],
    )


def _category_columns(result: SuiteResult) -> list[Column]:
    # CATEGORIES has the headings.
    return columns(*result.figures["categories"], AVERAGE, kind="score", **CATEGORIES)


def _category_row(result: SuiteResult) -> dict[str, float | None]:
    means = {name: figures["score"] for name, figures in result.figures["categories"].items()}
    return means | {AVERAGE: result.average}
