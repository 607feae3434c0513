"""The lines of a comparison.

Every run folder, result file and published row becomes an ``Entry``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

from simcse_cli.comparison.options import CompareOptions
from simcse_cli.comparison.published import PublishedSystem
from simcse_cli.data.senteval import expected_files
from simcse_cli.errors import DataError
from simcse_cli.files.digests import digest as digest_of
from simcse_cli.files.digests import sha256_file
from simcse_cli.files.inputs import STDIO, read_json
from simcse_cli.files.schema import checked, parse_json
from simcse_cli.files.streams import iter_lines
from simcse_cli.results import runs
from simcse_cli.results.columns import (
    AVERAGE,
    AVERAGES,
    DEV_SUFFIX,
    MLM_MEASURE,
    MTEB_PREFIX,
    RETRIEVAL_MEASURES,
    STSB_DEV,
    STSB_DEV_DATA,
    TIMES,
    TRANSFER_AVERAGE,
    is_average,
    is_score,
)
from simcse_cli.results.columns import label as measure_label
from simcse_cli.results.report import mean_and_deviation
from simcse_cli.results.result import (
    DEMO,
    HOW_TO_WRITE,
    NO_TEST,
    PUBLISHED,
    SuiteResult,
    describe_set,
)
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS, Aggregation, DevSuite

_STSB_DEV_FILE = "STS/STSBenchmark/sts-dev.csv"
_COSTS = (
    "device",
    "precision",
    "hardware",
    "n_processes",
    "peak_memory_bytes",
    "started",
    "finished",
)
_TIMINGS = ("train_s", "hours", "sentences_per_second")
_AS_MEASURED = CompareOptions()  # reads STS results under the metric and aggregation they name
_COMPARED_SETTINGS = (
    "metric",
    "aggregation",
    "split",
    "pooler",
    "precision",
    "regressor",
    "postprocess",
    "geometry data",
)
_MAY_BE_OFF = ("regressor", "postprocess")


class EntryKind(StrEnum):
    RUN = "run"
    RESULT = "result"
    PUBLISHED = "published"
    MEAN = "mean"


@dataclass(frozen=True)
class ScoredData:
    """Which data a score is of, in words; perhaps with a digest, if the words may mean several."""

    words: str
    sha256: str | None = None

    @property
    def are_known(self) -> bool:
        """Whether ``words`` name data that the toolkit knows, so that no digest is needed."""
        return self.words in (PUBLISHED, DEMO)

    @property
    def are_published(self) -> bool:
        return self.words == PUBLISHED

    def __str__(self) -> str:
        return self.words if self.sha256 is None else f"{self.words}, SHA-256 {self.sha256[:8]}"


@dataclass(frozen=True)
class SavedExamples:
    """A file of scored pairs or predicted classes.

    The measure of a task is the name of the task in the file, followed by ``suffix``, which stands
    for the split. ``chosen`` are the measures whose examples were used to choose the model.
    """

    path: Path
    suffix: str = ""
    chosen: tuple[str, ...] = ()


def read_saved(
    files: Sequence[SavedExamples], read: Callable[[Path], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the examples in files, by measure; if two files have a measure, the first decides."""
    examples: dict[str, Any] = {}
    for file in files:
        for task, found in read(file.path).items():
            examples.setdefault(task + file.suffix, found)
    return examples


@dataclass(frozen=True)
class Entry:
    """One line of a comparison.

    Attributes:
        scores: numbers by measure; all are fractions except times and geometry.
        settings: how the scores were measured.
        config: settings of a run, by dotted key.
        intervals: both ends of the 95% interval, by measure.
        deviations: if the entry is a mean, the deviation over its members, by measure.
        members: if the entry is a mean, the labels of the entries that it summarises.
        pair_scores: files of scored pairs.
        predictions: files of predicted classes.
        data: which data were scored, by measure; measures whose data are not known are left out.
        cost: hardware, memory and time of a run.
        remarks: warnings about the entry.
        chosen_on: measures whose examples were used to choose the model.
        folder: folder of the run that the entry belongs to.
        unscored: measures that a result lists without a score: undefined, or without data.
        variant: for a result of a run under other evaluation settings than the run's own entry:
            the name of the result file.
    """

    label: str
    kind: EntryKind
    source: str
    scores: Mapping[str, float]
    settings: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    deviations: Mapping[str, float] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    pair_scores: tuple[SavedExamples, ...] = ()
    predictions: tuple[SavedExamples, ...] = ()
    data: Mapping[str, ScoredData] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    chosen_on: tuple[str, ...] = ()
    folder: str = ""
    unscored: tuple[str, ...] = ()
    variant: str = ""


def from_published(system: PublishedSystem) -> Entry:
    settings = dict(system.settings)
    suite = settings.pop("suite", None)  # entries have no such setting
    if suite != "sts":
        settings.pop("metric", None)  # only STS has a choice of metrics
    if STSB_DEV in system.scores:
        settings["dev data"] = STSB_DEV_DATA
    return Entry(
        f"{system.table}: {system.label}",
        EntryKind.PUBLISHED,
        source=system.table,
        scores=system.scores,
        settings=settings,
        data=dict.fromkeys(system.scores, ScoredData(PUBLISHED)),
    )


def join_parts(a: Entry, b: Entry) -> Entry:
    """Return two parts of one system as one entry.

    A setting that both have is taken from ``a``, and a measure that both have from ``b``. An
    average is taken over the tasks of both parts.
    """
    joined = replace(
        a,
        source=f"{a.source}, {b.source}",
        scores={**a.scores, **b.scores},
        settings={**b.settings, **a.settings},
        config=a.config or b.config,
        seed=b.seed if a.seed is None else a.seed,
        intervals={**a.intervals, **b.intervals},
        # Two results may name the same file, which is listed once.
        pair_scores=tuple(dict.fromkeys(a.pair_scores + b.pair_scores)),
        predictions=tuple(dict.fromkeys(a.predictions + b.predictions)),
        data={**a.data, **b.data},
        remarks=a.remarks + b.remarks,
        chosen_on=a.chosen_on + b.chosen_on,
        folder=a.folder or b.folder,
        unscored=a.unscored + b.unscored,
    )
    fields: dict[str, Any] = {}
    for name in ("scores", "intervals", "data"):
        fields[name] = dict(getattr(joined, name))
    for average, tasks in AVERAGES.items():
        scored = [task for task in tasks if task in joined.scores]
        # An average stays if one part has all of the scored tasks, or if there are none.
        is_of_one_part = any(set(scored) <= part.scores.keys() for part in (a, b))
        if average not in joined.scores or is_of_one_part:
            continue
        fields["scores"][average], _ = mean_and_deviation([joined.scores[task] for task in scored])
        fields["intervals"].pop(average, None)
        # If one part is of other data than the published ones, so is the average.
        data = [part.data[average] for part in (b, a) if average in part.data]
        if data:
            fields["data"][average] = next((one for one in data if not one.are_published), data[0])
    return replace(joined, **fields)


def add_missing(run: Entry, result: Entry) -> Entry | None:
    """Return the run with the scores that only the result has; None if the two differ in a score.

    Times may differ, and so may averages, since each is over the tasks that its own side has.
    """
    missing = {}
    for name, score in result.scores.items():
        if name not in run.scores:
            missing[name] = score
            continue
        may_differ = name in TIMES or is_average(name)
        if score != run.scores[name] and not may_differ:
            return None
    return join_parts(run, replace(result, scores=missing))


def label_and_path(item: str) -> tuple[str, str]:
    """Return the label and the path in ``LABEL=PATH``; for ``PATH`` alone, the label is empty.

    The label ends at the first equals sign before an existing path, or else at the first one.
    """
    # If the whole argument is an existing path, an equals sign in it does not end a label.
    if "=" not in item or Path(item).exists():
        return "", item
    parts = item.split("=")
    for i in range(1, len(parts)):
        path = "=".join(parts[i:])
        if path == STDIO or Path(path).exists():
            return "=".join(parts[:i]), path
    return parts[0], "=".join(parts[1:])


def load_entries(item: str, label: str = "", *, view: CompareOptions = _AS_MEASURED) -> list[Entry]:
    """Return the entries of one argument: ``PATH``, perhaps with its ``label``, or ``LABEL=PATH``.

    A run folder gives its run, joined with the result files in the folder. Any other folder gives
    the runs in it, such as several seeds; a result file beside the seeds is joined with the run of
    its seed. ``view`` may name a metric and an aggregation for STS results.
    """
    path = item
    if not label:
        label, path = label_and_path(item)
        if label and path != STDIO and not Path(path).exists():
            raise DataError(
                f"{path} does not exist; in {item!r}, the label is {label!r}", hint=HOW_TO_WRITE
            )

    # A single result, from a pipe or a file.
    if path == STDIO:
        hint = "pipe a result in: `simcse eval sts --model NAME --format json | simcse compare -`"
        content = parse_json("\n".join(iter_lines(STDIO)), "standard input", hint=hint)
        return read_results(content, label=label or "standard input", source=path, view=view)
    folder = Path(path)
    if not folder.is_dir():
        content = read_json(path, hint=HOW_TO_WRITE)
        return read_results(content, label=label or folder.stem, source=path, view=view)

    # A folder is a run, or holds runs one or two levels down.
    name = folder.resolve().name
    if runs.is_run(folder):
        run, variants = _read_run(folder, label or name, view)
        return [run, *variants]
    records = chain(folder.glob(f"*/{runs.RUN_FILE}"), folder.glob(f"*/*/{runs.RUN_FILE}"))
    parents = (record.parent for record in records)
    folders = sorted(run for run in parents if runs.ASIDE.isdisjoint(run.relative_to(folder).parts))
    if not folders:
        raise DataError(
            f"{folder} holds no {runs.RUN_FILE}, nor does a folder in it",
            hint="give a run folder of `simcse train`, or a result file of `simcse eval`",
        )

    # Only a run in a folder of seeds is joined with results in the folder above.
    entries = []
    for inner in folders:
        run, variants = _read_run(inner, label or f"{name}/{inner.relative_to(folder)}", view)
        if inner.name.startswith(runs.SEED_PREFIX):
            run = _with_results(run, inner.parent, view)
        entries += [run, *variants]
    return entries


def _results_in(
    folder: Path, label: str, view: CompareOptions
) -> Iterator[tuple[Path, Mapping[str, Any], Entry]]:
    """Yield each entry in the result files of a folder, after the path and content of its file."""
    for path in sorted(folder.glob("*.json")):
        content = read_json(path)
        if is_result(content):
            for entry in read_results(content, label=label, source=str(path), view=view):
                yield path, content, entry


def _read_run(folder: Path, label: str, view: CompareOptions) -> tuple[Entry, list[Entry]]:
    """Return a run joined with its results, and its variants.

    A variant is a result under other evaluation settings than the run's own. A result of an earlier
    model of the run gets a remark.
    """
    record = runs.read_run_record(folder)
    run = _with_results(_from_record(record, folder, label), folder, view)
    results: list[tuple[Path, Entry]] = []
    for path, content, entry in _results_in(folder / runs.RESULTS, label, view):
        # A result of an earlier model has another digest. But so has a result with post-processing
        # or another pooler, so only plain results are checked.
        is_plain = content.get("postprocess") is None and content.get("pooler") == record.pooler
        result_digest = content.get("model_digest")
        if is_plain and record.model_digest not in (None, result_digest):
            remark = runs.incomparable_digests(folder, record.model_digest, path, result_digest)
            if remark is None:  # they can be compared, and differ
                remark = f"{path} is of an earlier model of the run; evaluate it again"
            entry = replace(entry, remarks=(remark,))
        results.append((path, entry))

    # A result that does not agree with the scores of the run so far is a variant. Results with the
    # most scores come first, so that the main evaluation joins the run.
    variants = []
    for path, entry in sorted(results, key=lambda item: -len(item[1].scores)):
        extended = add_missing(run, entry)
        if extended is None:
            variant = replace(entry, label=f"{label} [{path.stem}]", variant=path.stem)
            variants.append(replace(variant, seed=record.seed, folder=str(folder)))
        else:
            run = replace(extended, source=str(folder))
    return run, variants


def _with_results(run: Entry, folder: Path, view: CompareOptions) -> Entry:
    """Return a run joined with the results in a folder, except results of other seeds.

    Raise DataError for two results with different scores of the same measure.
    """
    joined = run
    for path, _, result in _results_in(folder, run.label, view):
        if result.seed not in (None, run.seed):
            continue
        extended = add_missing(joined, result)
        if extended is None:
            raise DataError(
                f"{path} and another result in {folder} hold the same scores",
                hint="keep one of them in the run folder, and name the other as an argument of "
                "its own",
            )
        joined = extended
    return replace(joined, source=run.source)


def _from_record(record: runs.RunRecord, folder: Path, label: str) -> Entry:
    """Return a run as an entry, with the dev scores of the step whose model was kept."""
    settings: dict[str, str] = {}
    scores: dict[str, float] = {}
    remarks = []
    if record.pooler is not None:
        settings["pooler"] = record.pooler
    unfinished = record.unfinished(label)
    if unfinished is not None:
        remarks.append(unfinished)
    if record.chosen_on_test and record.best_score is not None:
        remarks.append(f"{label} was chosen on test data: {', '.join(record.chosen_on_test)}")

    # The dev evaluation at the step whose model was kept.
    if record.best_score is not None:
        measured = _measured_at_best(record, folder)
        scores = _dev_scores(record, record.best_score, measured)
        settings |= _dev_settings(record, scores)
        for name in ("alignment", "uniformity"):
            value = getattr(measured, name)
            if value is not None:
                scores[name] = value

    # The cost and all settings of the run, for the tables that show them.
    cost = {name: getattr(record, name) for name in _COSTS}
    cost |= {name: record.timings.get(name) for name in _TIMINGS}
    facts = {"data": record.data, "processes": record.n_processes, "versions": record.versions}
    return Entry(
        label,
        EntryKind.RUN,
        source=str(folder),
        scores=scores,
        settings=settings,
        config=dict(runs.flat({**record.config, **facts}, ".")),
        seed=record.seed,
        cost=cost,
        remarks=tuple(remarks),
        data=_known_dev_data(record.data) if STSB_DEV in scores else {},
        folder=str(folder),
    )


def _measured_at_best(record: runs.RunRecord, folder: Path) -> runs.Measured:
    """Return the dev evaluation of the model that was kept; an empty one if it was not logged."""
    metrics = folder / "metrics.jsonl"
    if metrics.is_file():
        for measured in runs.read_metrics(metrics):
            if measured.step == record.best_step and measured.dev_score is not None:
                return measured
    return runs.Measured(step=0)


def _dev_settings(record: runs.RunRecord, scores: Mapping[str, float]) -> dict[str, str]:
    """Return how the dev scores of a run were measured, under the keys of a result's settings."""
    settings = {"chosen by": record.chosen_by}
    suite = record.data.get("dev_suite")  # for masked language models, the measure instead
    if suite == DevSuite.TRANSFER:
        settings["transfer protocol"] = "fast, probe senteval"
    elif suite not in (DevSuite.RETRIEVAL, MLM_MEASURE):
        settings["metric"] = str(record.config.get("dev_metric", "spearman"))
    if suite == DevSuite.STS:
        settings["aggregation"] = Aggregation.ALL.value
    # Queries and held-out rows have no published set, so a digest names them.
    if suite in (DevSuite.RETRIEVAL, MLM_MEASURE):
        settings["dev data"] = _name_of_queries_or_held_out_rows(record.data)
    # A run without a recorded suite was scored on one dev file, whatever its name.
    if STSB_DEV in scores or "dev_suite" not in record.data:
        settings["dev data"] = _name_of_dev_data(record.data)
    return settings


def _dev_scores(record: runs.RunRecord, best: float, measured: runs.Measured) -> dict[str, float]:
    """Return the dev scores of the model that was kept, by measure.

    ``best`` is the score that chose the model:

    - On a single dev file, it is the only score, and is named after STS-B or the user's file.
    - With the suite ``sts`` or ``transfer``, it is the average of the scores of the tasks. If some
      tasks are scored on dev sets and others on test sets, the average has no name, and is left
      out.
    - Otherwise, it is one of the scores of the tasks.
    """
    if "dev_suite" not in record.data:
        file = Path(str(record.data.get("dev_file")))
        is_stsb = _name_of_dev_data(record.data) == STSB_DEV_DATA
        return {STSB_DEV if is_stsb else _measure_of_file(file): best}
    tasks = {name: score for name, score in measured.dev_tasks.items() if score is not None}
    # For masked language models, the record has the measure in place of a suite.
    if record.data["dev_suite"] in (DevSuite.RETRIEVAL, MLM_MEASURE):
        return tasks  # ``best`` is one of these scores, not an average
    average = TRANSFER_AVERAGE if record.data["dev_suite"] == DevSuite.TRANSFER else AVERAGE
    are_dev_sets = [name.endswith(DEV_SUFFIX) for name in record.data.get("dev_tasks", ())]
    # Without any task there is no average, and ``all`` would be true.
    if not are_dev_sets:
        return tasks
    if all(are_dev_sets):
        return tasks | {average + DEV_SUFFIX: best}
    if not any(are_dev_sets):
        return tasks | {average: best}
    return tasks


def _measure_of_file(file: Path) -> str:
    """Return the name of the measure for scores on a dev file; the name of the file decides."""
    if file.name == Path(_STSB_DEV_FILE).name:
        return STSB_DEV
    return file.stem.removesuffix(DEV_SUFFIX) + DEV_SUFFIX


def _name_of_dev_data(data: Mapping[str, Any]) -> str:
    """Return the name of the dev data: STS-B if the digest is the published one.

    Otherwise it is the recorded name with the start of the digest: ``dev.tsv (1a2b3c4d)``.
    """
    # A run with a dev suite has recorded the digests of several files by path.
    name = _STSB_DEV_FILE
    digest = data.get("dev_files", {}).get(name)
    # Any other run has one dev file, or held-out pairs without a file: these have their own digest.
    if digest is None:
        name = str(data.get("dev_file"))
        digest = str(data.get("dev_sha256") or data.get(runs.DEV_PAIRS, {}).get(name))
    published = next(file.sha256 for file in expected_files() if file.path.endswith("sts-dev.csv"))
    return STSB_DEV_DATA if digest == published else f"{name} ({digest[:8]})"


def _known_dev_data(data: Mapping[str, Any]) -> dict[str, ScoredData]:
    """Return which data the STS-B dev score of a run is of, by measure; nothing if unknown."""
    if _name_of_dev_data(data) == STSB_DEV_DATA:
        return {STSB_DEV: ScoredData(PUBLISHED)}
    # The number of pairs is over all dev tasks, so STS-B must be the only one.
    n_pairs = data.get("n_dev_pairs")
    if n_pairs is None or data.get("dev_tasks", [STSB_DEV]) != [STSB_DEV]:
        return {}
    # Runs of earlier versions have no digest of the pairs.
    sha256 = next(iter(data.get(runs.DEV_DATA, {}).values()), None)
    words = describe_set("STSBenchmark", "dev", n_pairs, sha256)
    return {STSB_DEV: _with_digest(str(words), sha256)}


def _with_digest(words: str, sha256: str | None) -> ScoredData:
    """Return the data of these words, with the digest if the words do not identify the data."""
    data = ScoredData(words)
    if data.are_known:
        return data
    return ScoredData(words, sha256)


def _name_of_queries_or_held_out_rows(data: Mapping[str, Any]) -> str:
    """Return the name of a file and the start of a digest: ``queries.tsv (1a2b3c4d)``.

    For a retrieval set, the file has its queries, and the digest is over all its files. For rows
    that were held out, the file is the training file, and the digest is over this file and the
    share of its rows.
    """
    name = data.get("queries")
    digests = sorted(data.get("dev_files", {}).values())
    if data.get("dev_split"):
        name = data.get("train_file")
        digests = [str(data.get("train_sha256")), str(data["dev_split"])]
    return f"{Path(str(name)).name} ({digest_of(*digests)[:8]})"


def is_result(content: Any) -> bool:
    return isinstance(content, Mapping) and bool({"suite", "analysis"} & content.keys())


def read_results(
    content: Any, *, label: str, source: str, view: CompareOptions = _AS_MEASURED
) -> list[Entry]:
    """Return a result as one entry, or as several: one for each seed, model or sweep quantile.

    ``content`` is the JSON of the file ``source``. ``view`` may name a metric and an aggregation.
    """
    if not is_result(content):
        raise DataError(f"{source}: no result file (no suite, no analysis)", hint=HOW_TO_WRITE)

    def take(key: str, kind: Any, within: Mapping[str, Any] = content) -> Any:
        """Return the value of a key; raise DataError if it is not of the type ``kind``."""
        return checked(within.get(key), kind, f"{source}: {key}", hint=HOW_TO_WRITE)

    # The seeds of a folder, evaluated together.
    entries: list[Entry] = []
    if "suite" in content and "runs" in content:
        for run in take("runs", list[dict[str, Any]]):
            entry = _read_suite(run, label, source, view)
            entries.append(replace(entry, seed=take("seed", int | None, within=run)))
        return entries

    # A sweep: its scores get the name that the dev score of a run would have.
    if content.get("suite") == "sweep":
        # Sweeps of earlier versions do not name their dev file.
        dev_file = Path(take("dev_file", str | None) or _STSB_DEV_FILE)
        measure_by_suite: dict[str, str] = {DevSuite.FILE: _measure_of_file(dev_file)}
        measure_by_suite[DevSuite.RETRIEVAL] = RETRIEVAL_MEASURES[0] + DEV_SUFFIX
        measure_by_suite[DevSuite.TRANSFER] = TRANSFER_AVERAGE + DEV_SUFFIX
        measure = measure_by_suite.get(str(content.get("dev_suite")), AVERAGE + DEV_SUFFIX)
        for name, score in take("quantiles", dict[str, float]).items():
            entries.append(Entry(f"{label}, {name}", EntryKind.RESULT, source, {measure: score}))
        return entries

    # The geometry of each model; its data count as a setting, so that a difference is reported.
    if content.get("analysis") == "geometry":
        rows = take("models", list[dict[str, Any]])
        for row in rows:
            system = label
            if len(rows) > 1:
                system = f"{label}: {row.get('group') or row.get('model')}"
            scores = {"uniformity": take("uniformity", float, within=row)}
            # Without a positive pair there is no alignment.
            alignment = take("alignment", float | None, within=row)
            if alignment is not None:
                scores = {"alignment": alignment} | scores
            settings = _compared_settings({"geometry data": content.get("data")} | row)
            entries.append(Entry(system, EntryKind.RESULT, source, scores, settings))
        return entries

    # All that is left must be the result of one evaluation.
    if "suite" not in content:
        raise DataError(
            f"{source}: holds {content['analysis']}, need a result of `simcse eval` or "
            "`simcse analyze geometry`",
            hint=HOW_TO_WRITE,
        )
    return [_read_suite(content, label, source, view)]


def _read_suite(content: Mapping[str, Any], label: str, source: str, view: CompareOptions) -> Entry:
    """Return the result of one evaluation as an entry.

    If ``view`` names a metric or an aggregation, STS scores are those under it.
    """
    result = SuiteResult.from_json(content, source)

    # STS results hold the scores under several metrics and aggregations.
    if result.suite == "sts":
        try:
            result = result.under(view.metric, view.aggregation)
        except DataError as error:
            raise DataError(f"{source}: {error.message}", hint=HOW_TO_WRITE) from error

    # Take the settings, the scores that are not missing, and their intervals.
    recorded = result.settings
    settings = _compared_settings(recorded)
    if result.suite == "transfer":
        settings["transfer protocol"] = (
            f"{recorded.get('protocol')}, probe {recorded.get('probe', 'senteval')}"
        )
    suite_scores = _suite_scores(result)
    scores = {name: score for name, score in suite_scores.items() if score is not None}
    unscored = [name for name in suite_scores if name not in scores and is_score(name)]
    suffix = _split_suffix(result)
    intervals = {}
    for name, ends in result.intervals().items():
        if name + suffix in scores and {"low", "high"} <= ends.keys():
            intervals[name + suffix] = (ends["low"], ends["high"])

    # A score that was used to choose the model is no test of the model.
    remarks = []
    if result.chosen_on:
        names = ", ".join(map(measure_label, result.chosen_on))
        remarks.append(f"{names} of {label}: {NO_TEST}")
    # ``_find_saved`` may add a remark.
    pair_scores = _find_saved(
        result, source, remarks, suite="sts", key="pair_scores", ending="pairs"
    )
    predictions = _find_saved(
        result, source, remarks, suite="transfer", key="predictions", ending="predictions"
    )
    return Entry(
        label,
        EntryKind.RESULT,
        source,
        scores,
        settings,
        intervals=intervals,
        remarks=tuple(remarks),
        chosen_on=_measures_chosen_on(result),
        data={name: data for name, data in _data_by_measure(result).items() if name in scores},
        pair_scores=pair_scores,
        predictions=predictions,
        unscored=tuple(unscored),
    )


def _compared_settings(recorded: Mapping[str, Any]) -> dict[str, str]:
    """Return the recorded settings that should be equal in a comparison, as texts.

    A regressor or post-processing that was recorded, but not used, is ``off``.
    """
    settings = {}
    for key in _COMPARED_SETTINGS:
        value = recorded.get(key)
        if value not in (None, False, {}, []):
            settings[key] = str(value)
        elif key in _MAY_BE_OFF and key in recorded:
            settings[key] = "off"
    return settings


def _split_suffix(result: SuiteResult) -> str:
    return "" if result.split == "test" else f"-{result.split}"


def _measures_chosen_on(result: SuiteResult) -> tuple[str, ...]:
    """Return the measures of a result whose examples were used to choose the model."""
    return tuple(name + _split_suffix(result) for name in result.chosen_on)


def _suite_scores(result: SuiteResult) -> dict[str, float | None]:
    """Return the scores of a result under the names that published tables use."""
    figures = result.figures
    if result.suite == "sts":
        scores = _with_average(result.scores, STS_TASKS, AVERAGE, _split_suffix(result))
        return scores | {name: figures.get(name) for name in TIMES}
    if result.suite == "transfer":
        dev = {name: task.extra.get("dev_accuracy") for name, task in result.tasks.items() if task}
        scores = _with_average(result.scores, TRANSFER_TASKS, TRANSFER_AVERAGE, suffix="")
        return scores | _with_average(dev, TRANSFER_TASKS, TRANSFER_AVERAGE, DEV_SUFFIX)

    # MTEB: an average over only some of the tasks cannot be compared with published averages.
    scores = {MTEB_PREFIX + name: score for name, score in result.scores.items()}
    for name, category in figures.get("categories", {}).items():
        has_numbers = {"n_scored", "n_tasks", "score"} <= category.keys()
        if has_numbers and category["n_scored"] == category["n_tasks"]:
            scores[MTEB_PREFIX + name] = category["score"]
    if figures.get("n_scored", 0) == figures.get("n_tasks"):
        scores[MTEB_PREFIX + AVERAGE] = result.average
    return scores


def _with_average(
    scores: Mapping[str, float | None], tasks: Sequence[str], average: str, suffix: str
) -> dict[str, float | None]:
    """Return the scores and their mean, named ``average``; all names get the suffix.

    The mean is over the scores of ``tasks``, as far as they exist. Files of the user do not count.
    """
    with_average = {name + suffix: score for name, score in scores.items()}
    present = [score for name, score in scores.items() if score is not None and name in tasks]
    if present:
        with_average[average + suffix] = mean_and_deviation(present)[0]
    return with_average


def _data_by_measure(result: SuiteResult) -> dict[str, ScoredData]:
    """Return which data each measure is of, as far as this is known.

    The average is of published data if all tasks are; otherwise it gets the first data that are not
    published.
    """
    suffix = _split_suffix(result)
    words_by_task = result.sets()  # only tasks with a published set
    published = ScoredData(PUBLISHED)
    data_of = {}
    for name, task in result.tasks.items():
        if task is None or task.n is None:
            continue
        words = words_by_task.get(name)
        if words is None:
            if task.data_sha256 is None:
                continue  # nothing tells these data from others
            words = f"{task.n:,} examples"
        data_of[name + suffix] = _with_digest(words, task.data_sha256)
    # Only the tasks with a published set count in an average.
    if words_by_task:
        average = AVERAGE if result.suite == "sts" else TRANSFER_AVERAGE
        averaged_data = [data_of[name + suffix] for name in words_by_task]
        unpublished = (data for data in averaged_data if not data.are_published)
        data_of[average + suffix] = next(unpublished, published)
    return data_of


def _find_saved(
    result: SuiteResult, source: str, remarks: list[str], *, suite: str, key: str, ending: str
) -> tuple[SavedExamples, ...]:
    """Return the file of examples of a result, if there is one.

    The result names the file under ``key``. If this file is missing, ``NAME.ENDING.jsonl`` beside
    the result ``NAME.json`` is tried. A file whose digest is not the recorded one is passed over;
    if no other file is found, a remark is added to ``remarks``. Only results of the suite ``suite``
    have such a file.
    """
    if result.suite != suite:
        return ()
    folder = Path(source).parent
    candidates = [folder / f"{Path(source).stem}.{ending}.jsonl"]
    named = result.figures.get(key)
    if named:
        candidates = [Path(named), folder / named, *candidates]
    recorded = result.figures.get(f"{key}_sha256")
    has_changed = False
    for path in candidates:
        with suppress(OSError):  # the name is too long, for example
            if not path.is_file():
                continue
            if recorded in (None, sha256_file(path)):
                return (SavedExamples(path, _split_suffix(result), _measures_chosen_on(result)),)
            has_changed = True
    if has_changed:
        remarks.append(f"{source}: {named} holds other examples by now, so it is not read")
    return ()
