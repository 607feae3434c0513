"""Write the model card of a run from the record of the run and its results.

The template ``card.md.j2`` holds the text. Facts that the run does not have are left out.

Source: https://huggingface.co/docs/hub/model-cards. The entries of ``model-index`` are those of
``huggingface_hub.EvalResult``.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub.repocard_data import EvalResult, eval_results_to_model_index
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, select_autoescape

from simcse_cli.errors import ConfigError, DataError, SimcseError
from simcse_cli.files.atomic import atomic_path, atomic_text
from simcse_cli.files.inputs import read_json, read_text
from simcse_cli.files.schema import checked, foreign_format, parse_yaml
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.resolve import commit_of, hub_name_of
from simcse_cli.progress import SILENT, Progress
from simcse_cli.results.columns import label
from simcse_cli.results.report import markdown
from simcse_cli.results.result import CHOSE_MODEL, SuiteResult, TaskResult
from simcse_cli.results.runs import (
    RESULTS,
    RunRecord,
    duration,
    incomparable_digests,
    read_run_record,
)
from simcse_cli.settings.choices import (
    Aggregation,
    Pooler,
    Precision,
    Probe,
    Similarity,
    TransferProtocol,
)
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.recipes import dump_yaml, span_of_key

_Entries = dict[str, Any]
_Values = dict[str, float | None]  # by the name of the metric

CARD_FILE = "README.md"
_FRONT_MATTER = re.compile(r"\A---\n(.*?\n)---\n", re.DOTALL)
_INDEX = "model-index"
_SCORES_START = "<!-- scores: kept current by simcse eval -->\n"
_SCORES_END = "<!-- end of scores -->\n"
_NOTHING = "Nothing was measured yet."
_PATH_SETTINGS = ("objective", "train_file", "dev_file", "corpus", "queries", "qrels")
_MODEL_SETTINGS = ("teacher", "generator")  # each may be a path or a name on the Hub
# Settings that belong to this machine, or are shown elsewhere.
_NOT_SHOWN = ("data_dir", "device", "revision")
_ALWAYS_SHOWN = ("objective", "model", "batch_size", "lr")
_TASKS = {  # type and name on the Hub, by suite
    "sts": ("semantic-similarity", "Semantic Similarity"),
    "transfer": ("text-classification", "Classification"),
}


class CardScore(EvalResult):
    """One score of the card, as a fraction of 1; ``metric_name`` describes how it was measured."""

    @property
    def key(self) -> tuple[str, ...]:
        """Dataset, split, metric and its description; a card has one score for each combination."""
        return (
            self.dataset_name,
            self.dataset_split or "–",
            self.metric_type,
            str(self.metric_name),
        )


def base_facts(name: str, folder: Path | None) -> _Entries:
    """Return the Hub name, commit, license and language of the model that training started from.

    License and language come from the card in ``folder``. Only single words are taken, because
    anything longer could bring text of a stranger into the new card. A language is given only if
    the model has just one. Facts that are not known are left out.
    """
    facts: _Entries = {"name": hub_name_of(name)}
    if folder is not None:
        metadata = _metadata_of(folder / CARD_FILE)
        language = metadata.get("language")
        if isinstance(language, list) and len(language) == 1:
            language = language[0]
        facts["commit"] = commit_of(folder)
        for key, value in (("license", metadata.get("license")), ("language", language)):
            if isinstance(value, str) and re.fullmatch(r"[\w.+-]+", value):
                facts[key] = value
    return {key: value for key, value in facts.items() if isinstance(value, str)}


def _metadata_of(path: Path) -> _Entries:
    """Return the metadata of a card; an empty dict if the card is missing or unreadable."""
    if not path.is_file():
        return {}
    values: Any = None
    try:
        front_matter = _FRONT_MATTER.match(read_text(path).replace("\r\n", "\n"))
        if front_matter:
            values = parse_yaml(front_matter[1], str(path))
    except (ConfigError, DataError):
        return {}
    return values if isinstance(values, dict) else {}


def write_cards(run_dir: Path, record: RunRecord, model: SentenceEncoder) -> None:
    """Write the card of a finished run.

    One copy goes into the model folder, ready for the Hub, and one into the run folder.
    """
    scores = _scores(run_dir, record)
    # The folder of each copy, and the model folder relative to it.
    for folder, place in ((run_dir / "model", "."), (run_dir, "model")):
        with atomic_text(folder / CARD_FILE, force=True) as stream:
            stream.write(_card(run_dir, record, model, scores, place))


def update_cards(run_dir: Path, progress: Progress) -> None:
    """Update the scores in the cards of a run from the results that ``eval`` wrote into its folder.

    The rest of a card stays unchanged, whether a user has edited it or not. A card that cannot be
    updated in this way is left as it is, with a warning.
    """
    record = read_run_record(run_dir)
    if record.model_digest is None:  # still training
        return
    scores = _scores(run_dir, record, progress)
    for path in (run_dir / "model" / CARD_FILE, run_dir / CARD_FILE):
        try:
            _update_card(path, run_dir, scores)
        except SimcseError as error:
            progress.warn(f"the model card was not updated: {error.message}")


def _update_card(path: Path, run_dir: Path, scores: list[CardScore]) -> None:
    """Replace the scores of a card, in the table between two marks and in ``model-index``.

    A card without the first mark does not come from this toolkit, and stays as it is.
    """
    if not path.is_file():
        return

    # The edit uses the line end \n; the line ends of the file are restored before it is written.
    with foreign_format(path, "a model card in UTF-8"):
        raw = path.read_bytes().decode()
    line_end = "\r\n" if "\r\n" in raw else "\n"
    text = raw.replace("\r\n", "\n")
    if _SCORES_START not in text:
        return

    # The text between the marks will be replaced, so it may be nothing but the table of scores.
    # Without the second mark, the text does not end, and the card is refused below.
    front = _FRONT_MATTER.match(text)
    body = text[front.end() :] if front else text
    before, _, from_table = body.partition(_SCORES_START)
    table, end_mark, after = from_table.partition(_SCORES_END)
    rows: list[str] = []
    for line in table.split("\n"):
        if line.startswith("|"):
            rows.append(line)
        elif line and line != _NOTHING and end_mark:
            raise DataError(f"{path}: {line[:40]!r} between the marks of the scores would be lost")
    # If the file mixes line ends, restoring one kind everywhere does not give its text again.
    if front is None or not end_mark or text.replace("\n", line_end) != raw:
        raise DataError(
            f"{path} lacks its metadata or the second mark of the scores, or mixes line ends"
        )

    # Table and metadata change together. The first four cells of a row are its ``CardScore.key``.
    below_heading = rows[2:]
    table_rows = {tuple(line.strip("| ").split(" | ")[:4]): line for line in below_heading}
    metadata = _with_scores(front[1], str(path), run_dir, scores, table_rows)
    new = f"---\n{metadata}---\n{before}{_score_block(scores)}{after}".replace("\n", line_end)
    if new != raw:
        with atomic_path(path, force=True) as temporary:
            temporary.write_bytes(new.encode())


def _with_scores(
    front: str,
    place: str,
    run_dir: Path,
    scores: list[CardScore],
    table_rows: Mapping[tuple[str, ...], str],
) -> str:
    """Return the metadata ``front`` with new ``scores`` in its ``model-index``.

    Raise DataError if a row of the card's table is not in ``model-index``: somebody else has added
    the row, and it would be lost.

    Args:
        front: the metadata of the card, as text.
        place: the name of the card in messages.
        run_dir: gives a new index the name of its model.
        scores: replace those of the same keys.
        table_rows: the rows of the card's table by ``CardScore.key``. The scores of these rows are
            removed from the index, even if ``scores`` has none of the same key.
    """
    # The first model in the index is this one. It must have every row of the card's table.
    values = checked(parse_yaml(front, place), _Entries, place)
    models = checked(values.get(_INDEX, []), list[_Entries], f"{place}: {_INDEX}")
    this_model = models[0] if models else {"name": run_dir.resolve().name}
    results = checked(this_model.get("results", []), list[_Entries], f"{place}: results")
    indexed = {key for result in results for key in _keys_of(result, place)}
    for key, line in table_rows.items():
        if key not in indexed:
            raise DataError(f"{place}: {line[:40]!r} in the table of scores would be lost")

    # Metrics that are neither in ``scores`` nor in the table come from somebody else and stay.
    replaced = {score.key for score in scores} | set(table_rows)
    kept = _results_without(replaced, results, place)
    # The first argument is the name of the model, which does not appear in its results.
    measured = eval_results_to_model_index("", [*scores])[0]["results"]
    index = [this_model | {"results": [*measured, *kept]}, *models[1:]]

    # The index is left out if this model is its only one and has no results.
    new_values = {key: value for key, value in values.items() if key != _INDEX}
    if index != [this_model | {"results": []}]:
        new_values[_INDEX] = index
    return _replace_index(new_values, front, place)


def _results_without(
    left_out: set[tuple[str, ...]], results: list[_Entries], place: str
) -> list[_Entries]:
    """Return results of ``model-index`` without the metrics whose keys are ``left_out``.

    A result that loses all of its metrics is dropped; one that never had any stays.
    """
    kept: list[_Entries] = []
    for result in results:
        keys = _keys_of(result, place)
        with_keys = zip(result.get("metrics", []), keys, strict=True)
        metrics = [metric for metric, key in with_keys if key not in left_out]
        if not keys:
            kept.append(result)
        elif metrics:
            kept.append(result | {"metrics": metrics})
    return kept


def _replace_index(new_values: _Entries, front: str, place: str) -> str:
    """Return the metadata ``front`` with the ``model-index`` of ``new_values``.

    If ``new_values`` has no such entry, that of ``front`` is removed. Only the text of this entry
    is edited, so all other text keeps its form. Raise DataError if the edit would lose a YAML
    comment or change another entry.
    """
    start, stop = span_of_key(front, _INDEX)
    text = ""
    if _INDEX in new_values:
        text = dump_yaml({_INDEX: new_values[_INDEX]})
    new = front[:start] + text + front[stop:]
    try:
        is_safe = "#" not in front[start:stop] and parse_yaml(new, place) == new_values
    except ConfigError:
        is_safe = False
    if not is_safe:
        raise DataError(f"{place}: {_INDEX} cannot be edited without a change of something else")
    return new


def _keys_of(result: _Entries, place: str) -> list[tuple[str, ...]]:
    """Return ``CardScore.key`` of each metric of a result in ``model-index``."""
    dataset = checked(result.get("dataset", {}), _Entries, f"{place}: dataset")
    metrics = checked(result.get("metrics", []), list[_Entries], f"{place}: metrics")
    start = (str(dataset.get("name")), str(dataset.get("split") or "–"))
    return [(*start, str(metric.get("type")), str(metric.get("name"))) for metric in metrics]


def _scores(run_dir: Path, record: RunRecord, progress: Progress = SILENT) -> list[CardScore]:
    """Return the scores of a run's model, computed in float32, from the results of ``eval``.

    Where a task was measured alone and in a suite, the score of the suite counts. Results of other
    weights are left out. So are three kinds of results of which the user is told: those whose model
    digest cannot be compared, those of another precision, and those of a regressor.
    """
    by_key: dict[tuple[str, ...], CardScore] = {}
    paths = sorted((run_dir / RESULTS).glob("*.json"))
    results = [(SuiteResult.from_json(read_json(path), str(path)), path) for path in paths]
    # The first score of a key is kept, so results with more tasks come first.
    results.sort(key=lambda pair: -len(pair[0].tasks))
    for result, path in results:
        # Leave out results of other weights, with a warning where old digests cannot be compared.
        digest = result.settings.get("model_digest")
        remark = incomparable_digests(run_dir, record.model_digest, path, digest)
        if remark is not None:
            progress.warn(f"the model card leaves out a result: {remark}")
            continue
        if digest != record.model_digest:
            continue
        # Leave out results that are not in float32, and those of a regressor.
        computed_by = result.settings.get("precision")
        if result.settings.get("regressor"):
            computed_by = "a regressor"
        if computed_by != Precision.FP32:
            progress.info(
                f"the model card has scores in fp32, and leaves out {path.name} ({computed_by})"
            )
            continue

        with foreign_format(path, "a result of `simcse eval`"):
            for name, task in result.tasks.items():
                if task is None:
                    continue
                for score in _task_scores(result, name, task):
                    by_key.setdefault(score.key, score)
    return list(by_key.values())


def _task_scores(result: SuiteResult, name: str, task: TaskResult) -> list[CardScore]:
    """Return the scores of one task of a result of ``eval``, one for each metric."""
    suite = result.suite
    if suite == "mteb":
        values, about = _mteb_score(name, task)
    else:
        # A score by which the model was chosen is marked, so that nobody takes it for a test score.
        split = CHOSE_MODEL if name in result.chosen_on else result.split
        # The other suites differ in their metrics only.
        measure = _sts_score if suite == "sts" else _transfer_scores
        values, measured_by = measure(task, result.settings)
        task_type, task_name = _TASKS[suite]
        about = {
            "task_type": task_type,
            "task_name": task_name,
            "dataset_type": name,
            "dataset_name": label(name),
            "dataset_split": split,
            "metric_name": measured_by,
        }
    scores: list[CardScore] = []
    for metric, value in values.items():
        if value is not None:
            scores.append(CardScore(metric_type=metric, metric_value=float(value), **about))
    return scores


def _mteb_score(name: str, task: TaskResult) -> tuple[_Values, _Entries]:
    """Return the value by the name of its metric, and the other fields of the ``CardScore``."""
    facts = task.extra
    revision = None
    if facts["data"] == "hub":
        revision = facts["dataset_revision"]
    values = {facts["metric"]: task.score}
    kind = facts["category"]
    return values, {
        "task_type": kind,
        "task_name": kind,
        "dataset_type": str(facts.get("dataset", name)),
        "dataset_name": f"MTEB {name}",
        "dataset_revision": revision,
        "metric_name": "MTEB",
    }


def _sts_score(task: TaskResult, settings: Mapping[str, Any]) -> tuple[_Values, str]:
    """Return the value by the name of its metric, and a text on how it was measured."""
    metric = str(settings["metric"])
    subsets = settings["aggregation"]
    measured_by = metric if subsets == Aggregation.ALL else f"{metric}, subsets: {subsets}"
    return {f"{metric}_cosine": task.score}, measured_by


def _transfer_scores(task: TaskResult, settings: Mapping[str, Any]) -> tuple[_Values, str]:
    """Return the values by the names of their metrics, and a text on how they were measured."""
    measured_by = "SentEval"
    if settings["protocol"] != TransferProtocol.DEFAULT:
        measured_by += ", " + settings["protocol"]
    if settings["probe"] != Probe.SENTEVAL:
        measured_by += ", " + settings["probe"]
    return {"accuracy": task.score, "f1": task.extra.get("f1")}, measured_by


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(str(files("simcse_cli") / "models")),
        autoescape=select_autoescape(["html"]),  # escapes nothing in a card, which is Markdown
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["x100"] = lambda share: f"{100 * share:.2f}"
    environment.filters["markdown"] = markdown
    environment.globals |= {
        "scores_start": _SCORES_START.strip(),
        "scores_end": _SCORES_END.strip(),
        "nothing": _NOTHING,
    }
    return environment.get_template("card.md.j2")


def _score_block(scores: list[CardScore]) -> str:
    """Return the table of scores with its two marks."""
    template = _template()
    context = template.new_context({"scores": scores})
    return "".join(template.blocks["scores"](context))


def _card(
    run_dir: Path, record: RunRecord, model: SentenceEncoder, scores: list[CardScore], place: str
) -> str:
    """Return the text of a card; ``place`` is the model folder, relative to that of the card."""
    sources = _as_list(record.config.get("train_file"))
    metadata = dump_yaml(_metadata(record, sources))
    compared = {Similarity.COSINE: "their cosine", Similarity.DOT: "their dot product"}
    return _template().render(
        record=record,
        model=model,
        scores=scores,
        place=place,
        front=_with_scores(metadata, CARD_FILE, run_dir, scores, table_rows={}),
        base=record.base,
        name=markdown(record.base.get("name") or Path(record.model).name),
        sources=[markdown(_file_name(source)) for source in sources],
        compared_by=compared[Similarity(model.record.similarity)],
        hardware=_hardware(record),
        duration=duration(record.timings.get("hours")),
        settings=_settings(record),
    )


def _metadata(record: RunRecord, sources: list[str]) -> _Entries:
    """Return the metadata of a card, without empty entries; ``sources`` are the training files."""
    base = record.base
    # Each dataset of the Hub once, without the configuration or split behind its name.
    matches = [re.match(r"hf://(?:datasets/)?(\w[^@:]*)", source) for source in sources]
    hub_data = dict.fromkeys(match[1] for match in matches if match)
    tags = [
        "sentence-transformers",
        "sentence-similarity",
        "feature-extraction",
        "simcse",
        record.objective,
    ]
    library: str | None = "sentence-transformers"
    if record.pooler == Pooler.MASK:  # sentence-transformers does not have this pooler
        library = None
        tags.remove("sentence-transformers")
    metadata = {
        "library_name": library,
        "pipeline_tag": "sentence-similarity",
        "tags": tags,
        "base_model": base.get("name"),
        "datasets": list(hub_data),
    }
    return {key: value for key, value in metadata.items() if value}


def _hardware(record: RunRecord) -> list[str]:
    facts = record.hardware
    if not facts:
        return []
    cores = f"{facts['cores']} cores" if facts.get("cores") else None
    parts = (facts.get("gpu"), facts.get("processor"), cores)
    return [str(part) for part in parts if part]


def _as_list(value: Any) -> list[str]:
    if isinstance(value, list):
        return value
    if value is None:
        return []
    return [str(value)]


def _file_name(source: str) -> str:
    """Return the name of a file without its folders; a dataset of the Hub keeps its whole name."""
    if re.match(r"hf://\w", source):
        return source
    return Path(source).name


def _settings(record: RunRecord) -> str:
    """Return the settings of a run as YAML, with the last part of each path alone.

    Settings with their default value are left out, except for ``_ALWAYS_SHOWN``; so are all that
    belong to this machine.
    """
    defaults = TrainConfig().to_dict()
    shown: _Entries = {}
    for key, value in record.config.items():
        is_notable = key in _ALWAYS_SHOWN or value != defaults.get(key)
        if is_notable and key not in _NOT_SHOWN:
            shown[key] = value
    # A path is cut to its last part: its folders belong to this machine. Hub names stay whole.
    shown["model"] = record.model if record.base.get("name") else Path(record.model).name
    for key in (*_PATH_SETTINGS, *_MODEL_SETTINGS):
        names: list[str] = []
        for source in _as_list(shown.get(key)):
            is_path = key in _PATH_SETTINGS or Path(source).is_absolute()
            if is_path:
                source = _file_name(source)
            names.append(source)
        if names:
            shown[key] = names if len(names) > 1 else names[0]
    return dump_yaml(shown)
