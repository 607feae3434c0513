"""The model card of a run, from the record of the run and its results; ``card.md.j2`` holds the text.

Source: https://huggingface.co/docs/hub/model-cards; ``model-index`` as ``huggingface_hub.EvalResult`` reads it. Facts
that the run does not have are left out.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, select_autoescape

from simcse_cli.errors import ConfigError, DataError
from simcse_cli.files.atomic import atomic_text
from simcse_cli.files.schema import foreign_format
from simcse_cli.files.streams import read_json, read_text
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.resolve import commit_of, hub_name_of
from simcse_cli.results.columns import label
from simcse_cli.results.result import SuiteResult, TaskResult
from simcse_cli.results.runs import RESULTS, RunRecord, read_run_record
from simcse_cli.settings.choices import Aggregation, DevSuite, Precision, Probe, Similarity, TransferProtocol
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.recipes import dump_yaml, parse_yaml

CARD_FILE = "README.md"
_FRONT_MATTER = re.compile(r"\A---\n(.*?\n)---\n", re.DOTALL)
_MODEL_INDEX = re.compile(r"^model-index:\n(?:(?: |- ).*\n)*", re.MULTILINE)
_SCORES_START, _SCORES_END = "<!-- scores: kept current by simcse eval -->\n", "<!-- end of scores -->\n"
_PATHS = ("train_file", "dev_file")
_NOT_SHOWN = ("data_dir", "device", "revision")  # they belong to this machine, or are shown elsewhere
_KINDS = {"sts": "Semantic Similarity", "transfer": "Classification"}
_HUB_TASKS = {"sts": "semantic-similarity", "transfer": "text-classification"}


@dataclass(frozen=True)
class CardScore:
    """One number of the card, a fraction; ``source`` identifies the data, ``how`` describes the setting."""

    suite: str
    kind: str
    source: str
    data: str
    split: str | None
    metric: str
    how: str
    value: float
    revision: str | None = None

    def to_index(self) -> dict[str, Any]:
        """Return the score as an entry of ``model-index``."""
        data = {"name": self.data, "type": self.source, "split": self.split, "revision": self.revision}
        return {
            "task": {"type": _HUB_TASKS.get(self.suite, self.kind), "name": self.kind},
            "dataset": {key: value for key, value in data.items() if value is not None},
            "metrics": [{"type": self.metric, "value": self.value, "name": self.how}],
        }


def base_facts(name: str, folder: Path | None) -> dict[str, Any]:
    """Return the known facts about the model that training started from: Hub name, commit, license, language.

    License and language come from its own card; the language only if there is just one.
    """
    metadata = {} if folder is None else _metadata_of(folder / CARD_FILE)
    language = metadata.get("language")
    found = {
        "name": hub_name_of(name),
        "commit": None if folder is None else commit_of(folder),
        "license": metadata.get("license"),
        "language": language[0] if isinstance(language, list) and len(language) == 1 else language,
    }
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _metadata_of(path: Path) -> dict[str, Any]:
    """Return the metadata of a card; nothing if it is missing or unreadable."""
    if not path.is_file():
        return {}
    try:
        front = _FRONT_MATTER.match(read_text(path).replace("\r\n", "\n"))
        values = parse_yaml(front[1], str(path)) if front else {}
    except (ConfigError, DataError):
        return {}
    return values if isinstance(values, dict) else {}


def write_cards(run_dir: Path, record: RunRecord, model: SentenceEncoder) -> None:
    """Write the card of a finished run into its model folder, ready for the Hub, and into the run folder."""
    scores = _scores(run_dir, record)
    for folder, place in ((run_dir / "model", "."), (run_dir, "model")):
        with atomic_text(folder / CARD_FILE, force=True) as stream:
            stream.write(_card(run_dir, record, model, scores, place))


def update_cards(run_dir: Path) -> None:
    """Update the scores in the cards of a run with what ``eval`` has kept there; the rest, edited or not, is untouched.

    Raises:
        DataError: a result in the run is damaged.
        OutputError: a card cannot be written.
    """
    record = read_run_record(run_dir)
    if record.model_digest is None:  # still training
        return
    scores = _scores(run_dir, record)
    for path in (run_dir / "model" / CARD_FILE, run_dir / CARD_FILE):
        text = read_text(path) if path.is_file() else ""
        front, before, rest = _parts(text)
        if front is None or not rest:
            continue
        index = _MODEL_INDEX.sub("", front) + _model_index(run_dir, scores)
        new = f"---\n{index}---\n{before}{_score_block(scores)}{rest}"
        if new != text:
            with atomic_text(path, force=True) as stream:
                stream.write(new)


def _parts(text: str) -> tuple[str | None, str, str]:
    """Return the metadata of a card, and its text before and after the scores."""
    front = _FRONT_MATTER.match(text)
    if front is None:
        return None, "", ""
    before, _, after = text[front.end() :].partition(_SCORES_START)
    return front[1], before, after.partition(_SCORES_END)[2]


def _scores(run_dir: Path, record: RunRecord) -> list[CardScore]:
    """Return the dev score, then the scores that ``eval`` has kept for these weights in the papers' settings."""
    found = [] if record.best_score is None else [_dev_score(record, record.best_score)]
    for path in sorted((run_dir / RESULTS).glob("*.json")):
        result = SuiteResult.from_json(read_json(path), str(path))
        own = result.settings
        is_plain = own.get("precision") == Precision.FP32 and not own.get("regressor")
        if is_plain and own.get("model_digest") == record.model_digest:
            with foreign_format(path, "a result of `simcse eval`"):
                found += [
                    score
                    for name, task in result.tasks.items()
                    if task is not None
                    for score in _task_scores(result, name, task)
                ]
    return found


def _dev_score(record: RunRecord, value: float) -> CardScore:
    suite = record.data.get("dev_suite", DevSuite.FILE.value)
    is_transfer = suite == DevSuite.TRANSFER
    kind = "transfer" if is_transfer else "sts"
    name = Path(str(record.data["dev_file"])).name if suite == DevSuite.FILE else record.chosen_by
    metric = "accuracy" if is_transfer else f"{record.config['dev_metric']}_cosine"
    return CardScore(kind, _KINDS[kind], name, name, "dev", metric, "dev score, chose the model", value)


def _task_scores(result: SuiteResult, name: str, task: TaskResult) -> list[CardScore]:
    """Return the scores of one task of a result of ``eval``."""
    suite, own, facts = result.suite, result.settings, task.extra
    split: str | None = result.split
    if suite == "mteb":
        revision = facts["dataset_revision"] if facts["data"] == "hub" else None
        source = str(facts.get("dataset", name))
        found = {facts["metric"]: task.score}
        kind, data, split, how = facts["category"], f"MTEB {name}", None, "MTEB"
    else:
        revision, kind, source, data = None, _KINDS[suite], name, label(name)
        if suite == "sts":
            metric, pooled = own["metric"], own["aggregation"]
            found = {f"{metric}_cosine": task.score}
            how = f"{metric}, subsets: {pooled}" if pooled != Aggregation.ALL else str(metric)
        else:
            found = {"accuracy": task.score, "f1": facts.get("f1")}
            settings = (own["protocol"], TransferProtocol.DEFAULT), (own["probe"], Probe.SENTEVAL)
            how = ", ".join(["SentEval", *(used for used, usual in settings if used != usual)])
    return [
        CardScore(suite, kind, source, data, split, metric, how, float(value), revision)
        for metric, value in found.items()
        if value is not None
    ]


def _model_index(run_dir: Path, scores: list[CardScore]) -> str:
    if not scores:
        return ""
    results: list[dict[str, Any]] = []
    for entry in (score.to_index() for score in scores):
        same = (
            each for each in results if (each["task"], each["dataset"]) == (entry["task"], entry["dataset"])
        )
        if known := next(same, None):
            known["metrics"] += entry["metrics"]
        else:
            results.append(entry)
    return dump_yaml({"model-index": [{"name": run_dir.resolve().name, "results": results}]})


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(str(files("simcse_cli") / "models")),
        autoescape=select_autoescape(["html"]),  # a card is Markdown
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["x100"] = lambda share: f"{100 * share:.2f}"
    environment.globals |= {"scores_start": _SCORES_START.strip(), "scores_end": _SCORES_END.strip()}
    return environment.get_template("card.md.j2")


def _score_block(scores: list[CardScore]) -> str:
    """Return the scores between their marks."""
    template = _template()
    return "".join(template.blocks["scores"](template.new_context({"scores": scores})))


def _card(
    run_dir: Path, record: RunRecord, model: SentenceEncoder, scores: list[CardScore], place: str
) -> str:
    sources = _listed(record.config.get("train_file"))
    compared = {Similarity.COSINE: "their cosine", Similarity.DOT: "their dot product"}
    return _template().render(
        record=record,
        model=model,
        scores=scores,
        place=place,
        front=dump_yaml(_metadata(record, sources)),
        index=_model_index(run_dir, scores),
        base=record.base,
        name=record.base.get("name") or Path(record.model).name,
        sources=list(map(_file_name, sources)),
        compared_by=compared.get(Similarity(model.record.similarity), model.record.similarity),
        hardware=_hardware(record),
        duration=_duration(record.timings.get("hours")),
        settings=_settings(record),
    )


def _metadata(record: RunRecord, sources: list[str]) -> dict[str, Any]:
    """Return the metadata above the text; unknown entries are left out."""
    base = record.base
    hub_data = dict.fromkeys(
        found[1] for source in sources if (found := re.match(r"hf://(?:datasets/)?(\w[^@:]*)", source))
    )
    tags = ("sentence-transformers", "sentence-similarity", "feature-extraction", "simcse", record.objective)
    metadata = {
        "language": base.get("language"),
        "license": base.get("license"),
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": list(tags),
        "base_model": base.get("name"),
        "datasets": list(hub_data),
    }
    return {key: value for key, value in metadata.items() if value}


def _hardware(record: RunRecord) -> list[str]:
    found = record.hardware
    where = (found.get("gpu"), found.get("processor"), f"{found.get('cores')} cores")
    return [str(each) for each in where if each] if found else []


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [] if value is None else [str(value)]


def _file_name(source: str) -> str:
    """Return a file without the folders of the machine it was on; a Hub dataset keeps its name."""
    return source if re.match(r"hf://\w", source) else Path(source).name


def _duration(hours: float | None) -> str | None:
    if hours is None:
        return None
    minutes = 60 * hours
    if hours >= 2:
        return f"{hours:.1f} hours"
    return f"{minutes:.0f} minutes" if minutes >= 2 else f"{60 * minutes:.0f} s"


def _settings(record: RunRecord) -> str:
    defaults = TrainConfig().to_dict()
    shown: dict[str, Any] = {
        key: value
        for key, value in record.config.items()
        if (key in ("objective", "model", "batch_size", "lr") or value != defaults.get(key))
        and key not in _NOT_SHOWN
    }
    shown["model"] = record.model if record.base.get("name") else Path(record.model).name
    for key in _PATHS:
        if shown.get(key) is not None:
            names = [_file_name(each) for each in _listed(shown[key])]
            shown[key] = names if len(names) > 1 else names[0]
    return dump_yaml(shown)
