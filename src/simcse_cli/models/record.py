"""How vectors leave a model, as its folder records it: our own file, sentence-transformers modules, or its name."""

import json
import re
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from simcse_cli.errors import CheckpointError, ConfigError, DataError
from simcse_cli.files.schema import checked, inside
from simcse_cli.files.streams import read_json
from simcse_cli.models.poolers import POOLERS, Reduction
from simcse_cli.settings.choices import HeadUse, Pooler, Similarity

RECORD_FILE = "simcse.json"
PROMPTS_FILE = "config_sentence_transformers.json"
_K = TypeVar("_K")


@dataclass(frozen=True)
class ModelRecord:
    """How vectors leave a model.

    Attributes:
        pooler: None if the folder does not record one.
        head_use: when the head applies, if the folder has one.
        head_folder: subfolder with a Dense module; None for the transformer's own pooler weights.
        head_tanh: whether tanh follows the head.
        max_length: most sub-words a sentence; None for the transformer's limit.
        cnn_folder: subfolder with convolutions over the token states (IS-BERT); None without.
        include_prompt: whether pooling counts the tokens of a prompt.
        prompts: texts that the model expects before others, by name.
        default_prompt: name of the prompt to use by default, or None.
        similarity: how vectors are compared, in the words of sentence-transformers.
        origin: where the record was found, for messages.
    """

    pooler: Pooler | None
    head_use: HeadUse = HeadUse.NONE
    head_folder: str | None = None
    head_tanh: bool = True
    normalize: bool = False
    max_length: int | None = None
    cnn_folder: str | None = None
    include_prompt: bool = True
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str = Similarity.COSINE
    origin: str = "nothing"

    def to_json(self, **extra: Any) -> dict[str, Any]:
        """Return the content of ``simcse.json``: the record and further facts about the model.

        Prompts and similarity go into the file that sentence-transformers reads.
        """
        elsewhere = {"origin", "prompts", "default_prompt", "similarity"}
        elsewhere |= {"include_prompt"} if self.include_prompt else set()
        return {"format": 1} | {k: v for k, v in asdict(self).items() if k not in elsewhere} | extra

    def find_prompt(self, prompt: str, name: str) -> str:
        """Return the prompt of this name, else the text itself; ``name`` is that of the model."""
        if prompt not in self.prompts and re.fullmatch(r"[\w.-]+", prompt):
            names = f"there are {', '.join(self.prompts)}" if self.prompts else "it has none"
            raise ConfigError(
                f"--prompt {prompt}: {name} has no prompt of this name, {names}",
                hint=f"if it is meant as text, end it as the model wants it, as in --prompt '{prompt}: '",
            )
        return self.prompts.get(prompt, prompt)


def read_record(folder: Path) -> ModelRecord | None:
    """Return the record in a folder, None if it has none; raise DataError if it is unreadable."""
    if (folder / RECORD_FILE).is_file():
        return replace(_own_record(folder), **_use(folder))
    if (folder / "modules.json").is_file():
        return replace(_sentence_transformers_record(folder), **_use(folder))
    return None


def record_by_name(name: str) -> ModelRecord:
    """Return the record of the authors' published checkpoints, which hold none; empty for other names."""
    if "unsup-simcse" in name.lower():
        return ModelRecord(Pooler.CLS_BEFORE_POOLER, HeadUse.TRAIN_ONLY, origin="its name (unsup-simcse)")
    if "sup-simcse" in name.lower():
        return ModelRecord(Pooler.CLS, HeadUse.KEPT, origin="its name (sup-simcse)")
    return ModelRecord(None)


@dataclass(frozen=True)
class _UseFile:
    """The fields of ``config_sentence_transformers.json`` about the use of a model."""

    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None


@dataclass(frozen=True)
class _TransformerFile:
    """The fields of ``sentence_bert_config.json`` about the transformer."""

    max_seq_length: int | None = None


@dataclass(frozen=True)
class _Module:
    """A row of ``modules.json``."""

    type: str
    path: str


@dataclass(frozen=True)
class _Dense:
    """The config of a Dense module; its activation is a class by its full name."""

    activation_function: str = "Tanh"
    use_residual: bool | None = None


def _fields(values: Any, kind: type[_K], path: Path) -> _K:
    """Return the fields of a dataclass from an object that may hold more."""
    given = checked(values, dict[str, Any], str(path))
    known = {each.name: given[each.name] for each in fields(cast(Any, kind)) if each.name in given}
    found: _K = checked(known, kind, str(path))
    return found


def read_fields(path: Path, kind: type[_K]) -> _K:
    """Return the fields of a dataclass from a JSON object that may hold more; a missing file is empty."""
    return _fields(read_json(path, dict[str, Any]) if path.is_file() else {}, kind, path)


def _use(folder: Path) -> dict[str, Any]:
    """Return prompts and similarity as sentence-transformers records them."""
    path = folder / PROMPTS_FILE
    found = read_fields(path, _UseFile)
    prompts = {name: text for name, text in (found.prompts or {}).items() if text is not None}
    if found.default_prompt_name not in (None, *prompts):
        name = found.default_prompt_name
        raise DataError(f"{path}: default_prompt_name {name!r}, need the name of a prompt")
    similarity = found.similarity_fn_name or Similarity.COSINE
    return {"prompts": prompts, "default_prompt": found.default_prompt_name, "similarity": similarity}


def _own_record(folder: Path) -> ModelRecord:
    path = folder / RECORD_FILE
    record = replace(read_fields(path, ModelRecord), origin=str(path))
    for part in (record.head_folder, record.cnn_folder):
        inside(str(path), part or "")
    return replace(record, max_length=_length(record.max_length, path))


def _length(length: int | None, path: Path) -> int | None:
    """Return the most sub-words a sentence may have, at least three: two special ones and one more."""
    if length is not None and length < 3:
        raise DataError(f"{path}: sentences of at most {length} sub-words, need at least 3")
    return length


def _sentence_transformers_record(folder: Path) -> ModelRecord:
    reduction: Reduction | None = None
    found: dict[str, Any] = {}
    listed = folder / "modules.json"
    for row in read_json(listed, list[Any]):
        module = _fields(row, _Module, listed)
        kind, part = module.type.rsplit(".", 1)[-1], inside(str(listed), module.path)
        path = folder / part
        match kind:
            case "Transformer":
                path /= "sentence_bert_config.json"
                found["max_length"] = _length(read_fields(path, _TransformerFile).max_seq_length, path)
            case "Pooling":
                config = read_json(path / "config.json", dict[str, Any])
                reduction = _reduction_of(config, path)
                found["include_prompt"] = bool(config.get("include_prompt", True))
            case "CNN":
                found["cnn_folder"] = part
            case "Dense":
                found |= {"head_folder": part, "head_tanh": _dense_has_tanh(path)}
            case "Normalize":
                found["normalize"] = True
            case _:
                need = "need Transformer, CNN, Pooling (cls or mean), Dense, Normalize"
                raise CheckpointError(f"{listed}: module {kind} is not supported; {need}")
    has_head = "head_folder" in found
    return ModelRecord(
        None if reduction is None else _pooler_of(reduction, has_head=has_head),
        HeadUse.KEPT if has_head else HeadUse.NONE,
        origin=str(listed),
        **found,
    )


def _pooler_of(reduction: Reduction, *, has_head: bool) -> Pooler:
    """Return the pooler with this reduction of the last layer, and with a head if there is such a pooler."""
    found = {
        spec.has_head: pooler
        for pooler, spec in POOLERS.items()
        if spec.reduction is reduction and not spec.needs_all_layers
    }
    return found.get(has_head, found[False])


def _reduction_of(config: dict[str, Any], path: Path) -> Reduction:
    """Return the pooling mode; sentence-transformers writes it as a name or as one flag per mode."""
    mode = config.get("pooling_mode")
    flags = [name for name, value in config.items() if value is True and "_mode_" in name]
    active = [mode] if isinstance(mode, str) else flags
    for reduction in Reduction:
        if active in ([f"pooling_mode_{reduction}"], [reduction.partition("_")[0]]):
            return reduction
    raise CheckpointError(f"{path}: pooling {json.dumps(active)} is not supported; need cls or mean tokens")


def _dense_has_tanh(path: Path) -> bool:
    config = read_fields(path / "config.json", _Dense)
    activation = config.activation_function.rsplit(".", 1)[-1]
    if activation not in ("Tanh", "Identity") or config.use_residual:
        raise CheckpointError(f"{path}: Dense with {activation} is not supported; need Tanh or Identity")
    return activation == "Tanh"
