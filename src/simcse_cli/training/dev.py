"""Score a model during training on a dev set.

A dev set is scored pairs, STS tasks, transfer tasks, a retrieval task, or masked held-out texts.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simcse_cli.arrays import Floats, Floats32
from simcse_cli.data import senteval, transfer_files
from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.ids import QUERY_NAMES
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.pair_files import SCORED_PAIR, read_scored_pairs
from simcse_cli.data.qrels import (
    Relevance,
    queries_with_text,
    read_relevance,
    read_texts,
    tell_blank,
)
from simcse_cli.data.senteval import (
    Split,
    StsSubset,
    StsTask,
    digest_of_pairs,
    has_split,
    read_sts_task,
    sts_files,
)
from simcse_cli.data.writers import Row
from simcse_cli.errors import ConfigError, DataError, TrainingError
from simcse_cli.evaluation.alignment import alignment, is_positive, scale_note, uniformity
from simcse_cli.evaluation.bootstrap import (
    PairedSample,
    PairedTest,
    paired_bootstrap,
    paired_mean_bootstrap,
)
from simcse_cli.evaluation.correlation import aggregate, correlate, cosine_rows
from simcse_cli.evaluation.embedding_cache import Encode, EvaluationCache, encode_distinct, memoize
from simcse_cli.evaluation.probe import PROBE_SETTINGS
from simcse_cli.evaluation.retrieval import rank_exactly, score_retrieval
from simcse_cli.evaluation.sts import cosine_and_gold, score_sts_task, why_undefined
from simcse_cli.evaluation.transfer import TransferSuite, outer_splits
from simcse_cli.files.digests import sha256_file
from simcse_cli.files.inputs import require_file
from simcse_cli.machine.processes import exchange, process_count, process_rank
from simcse_cli.objectives.base import Batch, DataKind
from simcse_cli.objectives.mlm import MaskedLm, count_masked
from simcse_cli.objectives.registry import find_objective
from simcse_cli.progress import SILENT, Progress, SilentProgress
from simcse_cli.results.columns import DEV_SUFFIX, MLM_MEASURE, RETRIEVAL_MEASURES, find_tasks
from simcse_cli.results.report import mean_and_deviation
from simcse_cli.results.runs import DEV_DATA, DEV_PAIRS, Gain
from simcse_cli.settings import choices
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS, DevSuite, Metric
from simcse_cli.settings.config import DATA_VARIABLE, TrainConfig
from simcse_cli.settings.declare import flag

DevFacts = dict[str, Any]  # names and digests of the dev data, for the record of a run

DevExamples = Mapping[str, Floats]
"""By dev task: what one model gives for each example, such as the cosines of pairs, ``(n,)``."""
_PAIRS = "pairs"
_QUERIES = "queries"
_ROWS_PER_PASS = 64
TRANSFER_PROTOCOL = choices.TransferProtocol.FAST  # the paper's dev mode


@dataclass(frozen=True)
class DevScore:
    """The scores of one dev evaluation; a value is None where it is undefined.

    ``tasks`` holds, by name, the scores of several tasks (``STSBenchmark-dev``), or the measures of
    a retrieval task or a masked LM. ``examples`` holds, by task, the values that the score is
    computed from: the cosines of pairs, or the nDCG of queries. ``why`` says why there is no score.
    """

    score: float | None = None
    alignment: float | None = None
    uniformity: float | None = None
    tasks: Mapping[str, float | None] = field(default_factory=dict)
    examples: DevExamples = field(default_factory=dict)
    why: str | None = None


NO_SCORE = DevScore(why="the model gives values that are not finite")


@dataclass(frozen=True)
class DevPairs:
    pairs: StsSubset
    metric: Metric = Metric.SPEARMAN

    def score(self, encode: Encode) -> DevScore:
        """Return alignment, uniformity and the correlation of the cosines with the gold scores.

        Alignment is measured on the positive pairs, and uniformity on the sentences of both sides
        (Wang and Isola 2020; Gao et al. 2021, section 3).
        """
        vectors = encode(self.pairs.sentences)  # the left sides, then the right ones
        if not np.isfinite(vectors).all():
            return NO_SCORE
        left, right = np.split(vectors, 2)
        positive = is_positive(self.pairs.gold)
        cosines = cosine_rows(left, right)
        score = correlate(self.metric, cosines, self.pairs.gold)
        why = None
        if score is None:
            why = why_undefined([self.pairs.gold], choices.Aggregation.ALL)
        aligned = None
        if positive.any():
            aligned = alignment(left[positive], right[positive])
        return DevScore(score, aligned, uniformity(vectors), examples={_PAIRS: cosines}, why=why)

    def golds(self) -> dict[str, Floats]:
        """Return the gold scores by the names that ``DevScore.examples`` has for the cosines."""
        return {_PAIRS: self.pairs.gold}


@dataclass(frozen=True)
class DevSts:
    """STS tasks; alignment and uniformity are measured on ``pairs``."""

    tasks: Sequence[StsTask]
    metric: Metric
    pairs: StsSubset

    def score(self, encode: Encode) -> DevScore:
        """Return the mean over tasks; the score of a task is the correlation over all its pairs."""
        texts = [text for task in self.tasks for text in task.sentences]
        vector_of_text = encode_distinct(encode, self.pairs.sentences + texts)
        if not all(np.isfinite(vector).all() for vector in vector_of_text.values()):
            return NO_SCORE
        tasks: dict[str, float | None] = {}
        cosines: dict[str, Floats] = {}
        why = None
        for task in self.tasks:
            name = measure_of(task)
            cosines_and_golds = cosine_and_gold(score_sts_task(task, vector_of_text))  # by subset
            tasks[name] = aggregate(self.metric, choices.Aggregation.ALL, cosines_and_golds)
            cosines[name] = np.concatenate([cosine for cosine, _ in cosines_and_golds])
            if tasks[name] is None:
                golds = [gold for _, gold in cosines_and_golds]
                why = f"{name}: {why_undefined(golds, choices.Aggregation.ALL)}"
        mean, _ = mean_and_deviation(list(tasks.values()))

        def encoded(texts: Sequence[str]) -> Floats32:
            return np.stack([vector_of_text[text] for text in texts])

        return with_geometry(encoded, self.pairs, mean, tasks, cosines, why)

    def golds(self) -> dict[str, Floats]:
        """Return the gold scores of each task by its name in ``DevScore.examples``."""
        by_task = {}
        for task in self.tasks:
            golds = [subset.gold for subset in task.subsets.values()]
            by_task[measure_of(task)] = np.concatenate(golds)
        return by_task


@dataclass(frozen=True)
class DevTransfer:
    """Transfer tasks; alignment and uniformity are measured on ``pairs``, if there are any."""

    tasks: Sequence[transfer_files.TransferTask]
    pairs: StsSubset | None
    progress: Progress

    def score(self, encode: Encode) -> DevScore:
        """Return the mean dev accuracy (fast protocol): "Avg. transfer" in SimCSE's Table D.2."""
        tasks: dict[str, float | None] = {}
        n_processes = process_count()
        with self.progress.task("dev accuracy of transfer tasks", len(self.tasks)) as shown:
            for start in range(0, len(self.tasks), n_processes):
                # Each process scores one task; in the last round some processes may have none.
                round_tasks = self.tasks[start : start + n_processes]
                scores = exchange(self._score_one(round_tasks, encode))[: len(round_tasks)]
                for task, score in zip(round_tasks, scores, strict=True):
                    if isinstance(score, str):  # an error message
                        return replace(NO_SCORE, why=score)
                    tasks[task.name + DEV_SUFFIX] = score
                    shown.advance()
        mean, _ = mean_and_deviation(list(tasks.values()))
        return with_geometry(encode, self.pairs, mean, tasks)

    def _score_one(
        self, tasks: Sequence[transfer_files.TransferTask], encode: Encode
    ) -> float | str | None:
        """Return the dev accuracy of this process's task, or an error message.

        All processes together encode all ``tasks``. Then process i evaluates task i; a process
        without a task returns None.
        """
        assigned = None
        for rank, task in enumerate(tasks):
            encode_once = memoize(encode)
            encode_once(task.sentences)  # it keeps the vectors for the evaluation
            if rank == process_rank():
                assigned = task, encode_once
        if assigned is None:
            return None
        suite = TransferSuite(data_dir=None, protocol=TRANSFER_PROTOCOL)  # tasks are read already
        no_cache = EvaluationCache(folder=None, encoder_key="")
        # The evaluation fails if the vectors are not finite, or if a probe diverges.
        try:
            result, _ = suite.score_task(*assigned, no_cache, SilentProgress())
        except (DataError, TrainingError) as error:
            return error.message
        return float(result.extra["dev_accuracy"])


@dataclass(frozen=True)
class DevRetrieval:
    """Queries, a corpus, and the relevant rows of the corpus for each query.

    Alignment and uniformity are measured on ``pairs``, if there are any.
    """

    queries: Sequence[str]
    corpus: Sequence[str]
    relevant: Sequence[Relevance]
    pairs: StsSubset | None = None

    def score(self, encode: Encode) -> DevScore:
        """Return nDCG@10 of ranking by cosine; ``tasks`` of the result also has MRR and recall."""
        vectors = encode([*self.queries, *self.corpus])
        if not np.isfinite(vectors).all():
            return NO_SCORE
        n_queries = len(self.queries)
        ranked = rank_exactly(vectors[:n_queries], vectors[n_queries:], depth=100)
        measures = score_retrieval(ranked, self.relevant)
        # Index k - 1 holds a measure at k.
        values = (measures.ndcg[9], measures.reciprocal_rank[9], *measures.recall[[0, 9, 99]])
        names = (name + DEV_SUFFIX for name in RETRIEVAL_MEASURES)
        tasks = dict(zip(names, map(float, values), strict=True))
        examples = {_QUERIES: measures.ndcgs[:, 9]}
        return with_geometry(encode, self.pairs, float(measures.ndcg[9]), tasks, examples)

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[str, ...]]) -> "DevRetrieval":
        """Return the task of finding each anchor's positives among all positives and negatives."""
        texts = dict.fromkeys(text for _, *others in pairs for text in others)
        row_of_text = {text: row for row, text in enumerate(texts)}
        relevant_of_anchor: dict[str, Relevance] = {}
        for anchor, positive, *_ in pairs:
            relevant_of_anchor.setdefault(anchor, {})[row_of_text[positive]] = 1.0
        return cls(list(relevant_of_anchor), list(texts), list(relevant_of_anchor.values()))


@dataclass(frozen=True)
class DevMasked:
    """Held-out texts with fixed masks, scored by the loss of ``--objective mlm`` itself."""

    objective: MaskedLm
    batches: Sequence[Batch]
    n_masked: int

    def score(self, encode: Encode) -> DevScore:
        """Return ``exp(-loss)``: the geometric mean of the masked tokens' probabilities.

        It equals 1 / perplexity. ``encode`` is not used.
        """
        # The ``encode`` of the objective returns the summed loss of each row.
        self.objective.eval()
        local_batches = self.batches[process_rank() :: process_count()]
        with torch.inference_mode():
            losses = [self.objective.encode(batch)[0].sum().item() for batch in local_batches]
        total = sum(exchange(sum(losses)))
        if math.isnan(total):
            return NO_SCORE
        score = math.exp(-total / self.n_masked)
        return DevScore(score, tasks={MLM_MEASURE + DEV_SUFFIX: score})

    @classmethod
    def of_texts(cls, objective: MaskedLm, texts: Sequence[str]) -> "DevMasked":
        """Return the dev set of the texts; its masks do not depend on the seed of the run."""
        batch = objective.collate(texts, np.random.default_rng(0))
        n_masked = count_masked(batch.extra["mlm_labels"])
        if not n_masked:
            raise DataError(
                f"--dev-split: no token of {len(texts)} held-out texts is masked",
                hint="hold out more",
            )
        return cls(objective, batch.chunks(_ROWS_PER_PASS), n_masked)


DevSet = DevPairs | DevSts | DevTransfer | DevRetrieval | DevMasked


def measure_of(task: StsTask) -> str:
    """Return the name of a task's score in tables.

    Examples are ``STSBenchmark-dev`` and, for a test set, ``STS12``.
    """
    if task.split == "test":
        return task.name
    return f"{task.name}-{task.split}"


def with_geometry(
    encode: Encode,
    pairs: StsSubset | None,
    score: float | None,
    tasks: Mapping[str, float | None],
    examples: DevExamples | None = None,
    why: str | None = None,
) -> DevScore:
    """Return a score with the alignment and uniformity of ``pairs``, if there are any."""
    geometry = DevScore() if pairs is None else DevPairs(pairs).score(encode)
    return replace(geometry, score=score, tasks=tasks, examples=examples or {}, why=why)


def gain_of(
    dev_set: DevSet | None,
    after: DevExamples,
    before: DevExamples,
    progress: Progress = SILENT,
) -> Gain | None:
    """Return the gain of one model over another on a dev set, with a 95% interval.

    ``after`` and ``before`` are the values of the examples by the two models. The interval comes
    from a paired bootstrap over the pairs of each task, or over the queries. The result is None

    - if the values are not known for both models;
    - if most resamples of the pairs have no correlation, and the user is warned;
    - for transfer tasks and masked texts.
    """
    if not after or after.keys() != before.keys():
        return None
    test: PairedTest | None = None
    unit = _PAIRS
    if isinstance(dev_set, DevPairs | DevSts):
        samples = {}
        for name, gold in dev_set.golds().items():
            samples[name] = [PairedSample(gold, after[name], before[name])]
        _, test = paired_bootstrap(samples, metric=dev_set.metric, progress=progress)
    elif isinstance(dev_set, DevRetrieval):
        unit = _QUERIES
        sides = after[_QUERIES][None], before[_QUERIES][None]  # (1, n) each: a single seed
        _, test = paired_mean_bootstrap({_QUERIES: sides})
    if test is None:
        return None
    return Gain(test.difference, test.low, test.high, test.p_value, test.n_pairs, unit)


def given_tables(config: TrainConfig, progress: Progress) -> tuple[Given, Given]:
    """Return the user's options for tables of training rows, and for tables of scored pairs."""
    row_roles = (*POSITIONAL, "text", "label")
    # Columns that are given without roles get the roles in order, so the roles that the objective
    # reads come first.
    roles = (*row_roles, *SCORED_PAIR)
    if find_objective(config.objective).reads is DataKind.SCORED:
        roles = (*SCORED_PAIR, *row_roles)
    columns_by_role = parse_columns(config.columns, roles)
    pair_columns = {}
    for role in SCORED_PAIR:
        if role in columns_by_role:
            pair_columns[role] = columns_by_role.pop(role)
    for_rows = Given.of(config, columns_by_role, roles=row_roles, progress=progress)
    if config.text is not None:
        # The template of --text makes one text of each row, so no single column is named.
        for_rows = for_rows.of_texts(None, config.text)
    return for_rows, Given.of(config, pair_columns, roles=SCORED_PAIR, progress=progress)


def build_dev_set(
    config: TrainConfig, progress: Progress, held_out: Sequence[Row] = ()
) -> tuple[DevSet | None, DevFacts]:
    """Return the dev set that chooses the best model, if there is one, and the facts about it."""
    if config.dev_split is not None:
        return _build_held_out(config, held_out, progress)

    # Read the pairs of --dev-file; with a suite they serve for alignment and uniformity alone.
    pairs = None
    facts = DevFacts()
    if config.dev_file:
        _, options_for_pairs = given_tables(config, progress)
        # ``--keep-label`` is for training rows alone: dev pairs have no labels.
        pairs = read_scored_pairs(config.dev_file, replace(options_for_pairs, keep_labels=()))
        if note := scale_note(pairs.gold):
            progress.info(f"alignment on {config.dev_file}: {note}")
        # A stream or a data set of the Hub is no file, so its pairs are digested.
        if Path(config.dev_file).is_file():
            digest = sha256_file(config.dev_file)
        else:
            digest = pairs.digest
        facts = {"dev_file": config.dev_file, "dev_sha256": digest, "n_dev_pairs": pairs.n_pairs}

    # Build what chooses the best model.
    if config.dev_suite is DevSuite.FILE:
        if pairs is None:
            return None, facts
        facts[DEV_PAIRS] = {str(config.dev_file): digest_of_pairs(pairs.pairs)}
        # Results record the digests of tasks, so make a task of the pairs. The digest depends on
        # pairs and scores alone: the task can have any name and split.
        facts[DEV_DATA] = {
            str(config.dev_file): StsTask("STSBenchmark", "dev", {"dev": pairs}).digest
        }
        return DevPairs(pairs, config.dev_metric), facts
    if config.dev_suite is DevSuite.RETRIEVAL:
        dev_set, suite_facts = _build_retrieval(config, pairs, progress)
        return dev_set, facts | suite_facts
    if config.data_dir is None:
        raise ConfigError(
            f"--dev-suite {config.dev_suite}: no data",
            hint=f"give the SentEval folder with --data-dir DIR, or {DATA_VARIABLE}",
        )
    build = _build_sts if config.dev_suite is DevSuite.STS else _build_transfer
    dev_set, suite_facts = build(config, config.data_dir, pairs, progress)
    return dev_set, facts | {"dev_suite": config.dev_suite.value} | suite_facts


_RETRIEVAL_FACTS = {
    "dev_suite": DevSuite.RETRIEVAL.value,
    "dev_tasks": [name + DEV_SUFFIX for name in RETRIEVAL_MEASURES],
}


def _build_held_out(
    config: TrainConfig, rows: Sequence[Row], progress: Progress
) -> tuple[DevSet | None, DevFacts]:
    """Return the dev set of held-out rows, and the facts about it.

    For a masked LM, the dev set is None: ``build_parts`` makes it once there is an objective.
    """
    facts = DevFacts(dev_split=config.dev_split, n_dev_rows=len(rows))
    progress.info(
        f"--dev-split {config.dev_split:g}: {len(rows):,} rows are held out to choose the model"
    )
    objective = find_objective(config.objective)
    if objective.reads is DataKind.SCORED:
        left, right, scores = zip(*rows, strict=True)
        pairs = StsSubset(list(left), list(right), np.array(scores, dtype=np.float64))
        name = f"{len(rows)} held-out pairs"
        if note := scale_note(pairs.gold):
            progress.info(f"alignment on {name}: {note}")
        facts |= {"dev_file": name, DEV_PAIRS: {name: digest_of_pairs(pairs.pairs)}}
        return DevPairs(pairs, config.dev_metric), facts
    if issubclass(objective, MaskedLm):
        return None, facts | {"dev_suite": MLM_MEASURE, "dev_tasks": [MLM_MEASURE + DEV_SUFFIX]}
    return DevRetrieval.of_pairs(rows), facts | _RETRIEVAL_FACTS


def _build_retrieval(
    config: TrainConfig, pairs: StsSubset | None, progress: Progress
) -> tuple[DevSet, DevFacts]:
    # All three files are needed.
    files: dict[str, str] = {}
    missing: list[str] = []
    for name in ("corpus", "queries", "qrels"):
        path = getattr(config, name)
        if path is None:
            missing.append(flag(TrainConfig, name))
        else:
            files[name] = str(path)
    if missing:
        raise ConfigError(
            f"--dev-suite retrieval: no {', '.join(missing)}",
            hint="give --corpus FILE --queries FILE --qrels FILE, or hold out own pairs: "
            "--dev-split 0.05",
        )
    for path in files.values():
        require_file(path)
    queries = read_texts(files["queries"], usual=QUERY_NAMES)
    queries = queries_with_text(queries, files["queries"], progress)
    corpus = read_texts(files["corpus"])
    tell_blank(corpus, progress)

    # Order the texts by falling id: this is how trec_eval ranks texts of equal cosine. Blank texts
    # come last: they are not searched, and the rows of the others must stay as they are. A blank
    # text that is relevant counts as not found.
    ids, texts = corpus.ids, corpus.sentences
    corpus = corpus.select(
        sorted(
            range(len(ids)),
            key=lambda row: (bool(texts[row].strip()), ids[row].encode()),
            reverse=True,
        )
    )

    # Queries without a relevant text are left out.
    relevant = read_relevance(files["qrels"], queries, corpus, progress)
    judged = [row for row, wanted in enumerate(relevant) if wanted]
    dev_set = DevRetrieval(
        [queries.sentences[row] for row in judged],
        [text for text in corpus.sentences if text.strip()],
        [relevant[row] for row in judged],
        pairs,
    )
    digests = {path: sha256_file(path) for path in files.values()}
    return dev_set, files | _RETRIEVAL_FACTS | {"dev_files": digests}


def _build_sts(
    config: TrainConfig, data_dir: str, pairs: StsSubset | None, progress: Progress
) -> tuple[DevSet, DevFacts]:
    # By default, the tasks with dev data are scored. If the user chooses another task, the test
    # data of this task are scored, with a warning.
    default = tuple(name for name in STS_TASKS if has_split(name, "dev"))
    names = _tasks(config, known=STS_TASKS, default=default)
    splits: dict[str, Split] = {}
    for name in names:
        splits[name] = "dev" if has_split(name, "dev") else "test"
    on_test = [name for name, split in splits.items() if split == "test"]
    if on_test:
        progress.warn(
            f"--dev-tasks: no dev data for {', '.join(on_test)}, so the model is chosen on "
            "test data; do not report scores on these tasks, or averages with them"
        )

    # If files are missing, the hint names the tasks that can be used.
    files = {name: sts_files(data_dir, name, split=split) for name, split in splits.items()}
    try:
        tasks = [read_sts_task(data_dir, name, split=split) for name, split in splits.items()]
    except DataError as error:
        complete = [name for name, paths in files.items() if all(path.is_file() for path in paths)]
        raise DataError(
            f"--dev-suite sts: {error.message}", hint=_hint_on_missing(complete, all_tasks=names)
        ) from error

    # Without --dev-file, measure alignment and uniformity on STS-B if chosen, else on all tasks.
    if pairs is None:
        chosen = [task for task in tasks if task.name == "STSBenchmark"] or tasks
        pairs = StsSubset.join([subset for task in chosen for subset in task.subsets.values()])

    # Record which data has chosen the model, so that later results can tell.
    facts = {
        "dev_tasks": [measure_of(task) for task in tasks],
        "dev_files": _digests(data_dir, itertools.chain.from_iterable(files.values())),
        "n_dev_pairs": sum(task.n_pairs for task in tasks),
        DEV_PAIRS: {measure_of(task): digest_of_pairs(task.pairs) for task in tasks},
        DEV_DATA: {measure_of(task): task.digest for task in tasks},
    }
    return DevSts(tasks, config.dev_metric, pairs), facts


def _build_transfer(
    config: TrainConfig, data_dir: str, pairs: StsSubset | None, progress: Progress
) -> tuple[DevSet, DevFacts]:
    names = _tasks(config, known=TRANSFER_TASKS, default=TRANSFER_TASKS)
    if missing_of_task := transfer_files.missing_transfer_files(data_dir, tuple(names)):
        missing = ", ".join(str(path) for paths in missing_of_task.values() for path in paths)
        complete = [name for name in names if name not in missing_of_task]
        raise DataError(
            f"--dev-suite transfer: missing files of {', '.join(missing_of_task)}: {missing}",
            hint=_hint_on_missing(complete, all_tasks=names),
        )

    # Too few examples raise an error in ``outer_splits`` now, not after training; an unusual size
    # of a task gives a warning.
    tasks = [transfer_files.read_transfer_task(data_dir, name) for name in names]
    for task in tasks:
        outer_splits(task, PROBE_SETTINGS[TRANSFER_PROTOCOL])
        for remark in task.size_remarks():
            progress.warn(remark)
    paths: list[Path] = []
    for name in names:
        paths += transfer_files.transfer_files(data_dir, name).values()
    measures = [name + DEV_SUFFIX for name in names]
    facts = {"dev_tasks": measures, "dev_files": _digests(data_dir, paths)}
    return DevTransfer(tasks, pairs, progress), facts


def _tasks(config: TrainConfig, *, known: Sequence[str], default: Sequence[str]) -> Sequence[str]:
    """Return the tasks that the user has chosen among the known ones, or ``default``."""
    if config.dev_tasks is None:
        return default
    try:
        return find_tasks(config.dev_tasks, known)
    except ValueError as error:
        raise ConfigError(f"--dev-tasks: {error}") from None


def _hint_on_missing(complete: Collection[str], *, all_tasks: Collection[str]) -> str:
    """Return a hint on missing files; it lists the complete tasks, if some but not all are."""
    if 0 < len(complete) < len(all_tasks):
        return f"{senteval.CHECK_HINT}, or use --dev-tasks {','.join(complete)}"
    return senteval.CHECK_HINT


def _digests(data_dir: str, paths: Iterable[Path]) -> dict[str, str]:
    root = senteval.resolve_senteval_dir(data_dir)
    return {path.relative_to(root).as_posix(): sha256_file(path) for path in paths}
