"""The record of a model, which says how its vectors are made.

It comes from ``simcse.json`` or from the name of a published checkpoint.
"""

import re
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from simcse_cli.errors import ConfigError, DataError
from simcse_cli.files.inputs import read_json
from simcse_cli.files.schema import checked, inside
from simcse_cli.models.resolve import ALIASES
from simcse_cli.settings.choices import HeadUse, Pooler, Similarity

RECORD_FILE = "simcse.json"
PROMPTS_FILE = "config_sentence_transformers.json"
BY_NAME = "its name"
"""Begins ``ModelRecord.origin`` where the name of the model is all that says its pooler."""
SHORTEST = 3
"""The least limit on the sub-words of a text: two special ones and one of the text must fit."""
_PUBLISHED = [name.rpartition("/")[2] for name in ALIASES.values() if "sup-simcse" in name]
_K = TypeVar("_K")


@dataclass(frozen=True)
class ModelRecord:
    """How a model makes its vectors.

    Attributes:
        pooler: None if the folder does not record one.
        head_use: when the head applies, if the folder has one.
        head_folder: subfolder with a Dense module; None if a head is stored with the transformer.
        head_tanh: whether the head ends in tanh.
        normalize: whether the model scales its vectors to length 1.
        max_length: most sub-words of a sentence; None for the limit of the tokenizer and the
            transformer.
        cnn_folder: subfolder with convolutions over the token states (IS-BERT); None without.
        include_prompt: whether pooling counts the tokens of a prompt.
        prompts: texts that the model expects before the text to encode, by name.
        default_prompt: name of the prompt to use by default, or None.
        similarity: how vectors are compared, in the words of sentence-transformers.
        lower_case: whether texts are lower-cased before the tokenizer's own normalisation.
        truncate_dim: how many components a vector keeps; None for all.
        template: words around a sentence, for the pooler ``mask``; None without.
        subtracts_template: whether the state of the template around nothing is subtracted.
        transformer_folder: subfolder with the transformer; empty for the folder itself.
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
    lower_case: bool = False
    truncate_dim: int | None = None
    template: str | None = None
    subtracts_template: bool = False
    transformer_folder: str = ""
    origin: str = "nothing"

    def to_json(self, **extra: Any) -> dict[str, Any]:
        """Return the content of ``simcse.json``: the record and further facts about the model.

        Prompts, similarity and ``truncate_dim`` are left out, because they are in a file that
        sentence-transformers reads. ``origin`` and ``transformer_folder`` are left out, because
        they describe the folder that was read. ``include_prompt`` is written only if it is false,
        and the entries on a template only if there is one.
        """
        left_out = {
            "origin",
            "prompts",
            "default_prompt",
            "similarity",
            "truncate_dim",
            "transformer_folder",
        }
        if self.include_prompt:
            left_out.add("include_prompt")
        if self.template is None:
            left_out |= {"template", "subtracts_template"}
        entries = {name: value for name, value in asdict(self).items() if name not in left_out}
        return {"format": 1} | entries | extra

    def find_prompt(self, prompt: str, name: str) -> str:
        """Return the model's prompt called ``prompt``, else ``prompt`` itself, taken as the text.

        A single word that names no prompt raises a ConfigError; ``name`` is the name of the model,
        for its message.
        """
        # A single word is taken for a mistyped name.
        if prompt not in self.prompts and re.fullmatch(r"[\w.-]+", prompt):
            available = "it has none"
            if self.prompts:
                available = f"there are {', '.join(self.prompts)}"
            raise ConfigError(
                f"--prompt {prompt}: {name} has no prompt of this name, {available}",
                hint="if it is meant as text, end it as the model wants it, as in --prompt "
                f"'{prompt}: '",
            )
        return self.prompts.get(prompt, prompt)


def record_by_name(name: str) -> ModelRecord:
    """Return the record of a checkpoint that the authors of SimCSE published, by its exact name.

    These checkpoints hold no record. For any other name, the result has no pooler.
    """
    if name not in _PUBLISHED:
        return ModelRecord(None)
    origin = f"{BY_NAME} ({name})"
    if name.startswith("unsup"):
        return ModelRecord(Pooler.CLS_BEFORE_POOLER, HeadUse.TRAIN_ONLY, origin=origin)
    return ModelRecord(Pooler.CLS, HeadUse.KEPT, origin=origin)


def own_record(folder: Path) -> ModelRecord:
    """Return the record that ``simcse.json`` holds; the prompts are in another file."""
    path = folder / RECORD_FILE
    record = replace(read_fields(path, ModelRecord), origin=str(path))
    # Refuse a record that names a folder outside the model's.
    for part in (record.head_folder, record.cnn_folder, record.transformer_folder):
        if part is not None:
            inside(str(path), part)
    return replace(record, max_length=checked_length(record.max_length, path))


def checked_length(length: int | None, path: Path) -> int | None:
    """Return a limit on the sub-words of a sentence; raise DataError below ``SHORTEST``."""
    if length is not None and length < SHORTEST:
        raise DataError(
            f"{path}: sentences of at most {length} sub-words, need at least {SHORTEST}"
        )
    return length


def entries_of(path: Path) -> dict[str, Any]:
    """Return the entries of a JSON object; none if there is no such file."""
    entries: dict[str, Any] = {}
    if path.is_file():
        entries = read_json(path, dict[str, Any])
    return entries


def sound_entries_of(path: Path) -> dict[str, Any]:
    """Return the entries of a JSON object; none if the file is missing or damaged."""
    try:
        return entries_of(path)
    except DataError:
        return {}


def read_fields(path: Path, kind: type[_K]) -> _K:
    """Return a dataclass made from the JSON object in a file.

    Entries that are no fields of the dataclass are ignored. A missing file counts as an empty
    object.
    """
    entries = entries_of(path)
    names = [attribute.name for attribute in fields(cast(Any, kind))]
    known = {name: entries[name] for name in names if name in entries}
    result: _K = checked(known, kind, str(path))
    return result
