"""Find the files of a model, check them before anything is loaded, and read its record."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcse_cli.errors import CheckpointError
from simcse_cli.files.inputs import read_json
from simcse_cli.files.schema import inside
from simcse_cli.models.module_list import read_record
from simcse_cli.models.pretrained import as_checkpoint_error
from simcse_cli.models.record import ModelRecord, read_fields, record_by_name
from simcse_cli.models.resolve import ADAPTER_FILE, commit_of, resolve_model
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.config import pinned

# Adapters for which PEFT loads further models that their settings name.
_NAMING_MODELS = ("SHADOW", "XLORA")
# What a configuration may claim at most, see _require_plausible_sizes.
_MOST_LAYERS = 1_000
_LAYER_KEYS = re.compile(r"(^|_)(layers?|groups?|blocks?|depth|experts)$")
_ROW_KEYS = re.compile(r"(^|_)(vocab_size|positions?|position_embeddings|intermediate_size)$")
_WIDTH_KEYS = ("hidden_size", "d_model", "dim", "n_embd")
# The smallest weights in use have two bits, so a byte holds at most four. The surplus allows for
# tables whose weights are not in the folder; any memory has room for that many numbers.
_MOST_NUMBERS_IN_A_BYTE = 4
_LARGEST_SURPLUS = 100_000_000


@dataclass(frozen=True)
class ModelFiles:
    """The folders of a model, and its record.

    Attributes:
        name: the name that the user gave.
        named: the folder to which this name leads.
        base_name: an adapter's name for its base model, with the revision; None for a whole model.
        base: the folder with the transformer. It is not ``named`` if the model is an adapter, or if
            sentence-transformers has given the transformer a folder of its own.
        folder: the folder of the record, in which head and convolutions are found.
        record: how the model makes its vectors, as its files or its name say.
    """

    name: str
    named: Path
    base_name: str | None
    base: Path
    folder: Path
    record: ModelRecord

    @property
    def is_adapter(self) -> bool:
        return self.base_name is not None


def find_model(name: str | Path, progress: Progress = SILENT) -> ModelFiles:
    """Find the folders of a model, check them, and read its record.

    An adapter folder without a record has the record of its base model. The base model is fetched
    only if ``name`` is the name of an adapter on the Hub, not a folder.
    """
    named = resolve_model(name, progress)
    with as_checkpoint_error(named, "a model"):
        # The folders: an adapter has its base model elsewhere.
        base = named
        base_name = _base_name(named)
        if base_name is not None:
            # A folder may be of a stranger, so it does not decide what is fetched.
            may_fetch = not Path(name).exists()
            base = _find_base(named, base_name, progress, may_fetch)
        for model_folder in {named, base}:
            _require_safe_paths(model_folder)

        # The record, and the folder that has it.
        base_record = read_record(base, progress)
        named_record = base_record if base == named else read_record(named, progress)
        record = named_record or base_record or record_by_name(_own_name(base))
        folder = base if named_record is None else named

        # The transformer, which may have a folder of its own in that of the model.
        if base_record is not None:
            base /= base_record.transformer_folder
        for weights_folder in {named, base}:
            _require_plausible_config(weights_folder, is_needed=weights_folder == base)
    return ModelFiles(str(name), named, base_name, base, folder, record)


def _own_name(folder: Path) -> str:
    """Return the name of a model's folder, however the user has spelled its path.

    For a model in the Hub's cache, it is the name of the folder above ``snapshots``, such as
    ``models--ORG--NAME``; for the models of SimCSE's authors, it is NAME alone.
    """
    folder = folder.resolve()
    if commit_of(folder) is not None:
        return folder.parents[1].name.removeprefix("models--princeton-nlp--")
    return folder.name


@dataclass(frozen=True)
class _AdapterFile:
    """The base model of an adapter, and settings for which an adapter is refused."""

    base_model_name_or_path: str
    revision: str | None = None
    peft_type: Any = None
    layer_replication: Any = None
    megatron_config: Any = None


@dataclass(frozen=True)
class _ShardIndex:
    """The file of each weight."""

    weight_map: dict[str, str]


def _base_name(folder: Path) -> str | None:
    """Return the name of an adapter's base model, with its revision; None for a whole model.

    Raise CheckpointError for an adapter that is not supported.
    """
    path = folder / ADAPTER_FILE
    if (folder / "config.json").is_file() or not path.is_file():
        return None
    adapter = read_fields(path, _AdapterFile)
    if adapter.layer_replication:
        raise CheckpointError(
            f"{folder} is an adapter that repeats layers", hint="merge it into its base model first"
        )
    if adapter.megatron_config:  # PEFT would import the module that ``megatron_core`` names
        raise CheckpointError(
            f"{path}: megatron_config is for layers of Megatron, need an adapter without it",
            hint="do not use this adapter, or remove the entry",
        )
    if adapter.peft_type in _NAMING_MODELS:
        raise CheckpointError(
            f"{path}: an adapter of type {adapter.peft_type} names more models, which PEFT would "
            "fetch; need one that only changes weights",
            hint="take a LoRA adapter",
        )
    name = adapter.base_model_name_or_path
    if Path(name).exists():
        return name
    return pinned(name, adapter.revision)


def _find_base(folder: Path, called: str, progress: Progress, may_fetch: bool) -> Path:
    """Return the folder of an adapter's base model.

    ``folder`` is that of the adapter, and ``called`` is its name for the base model. Raise
    CheckpointError if the base model is not found, or is an adapter too.
    """
    try:
        base = resolve_model(called, progress, may_fetch=may_fetch)
    except CheckpointError as error:
        how = error.hint or "put the model back there"
        raise CheckpointError(
            f"{folder} is an adapter of {called}: {error.message}",
            hint=f"{how}, or name its place in {folder / ADAPTER_FILE} (base_model_name_or_path)",
        ) from error
    if _base_name(base) is not None:
        raise CheckpointError(
            f"{folder} is an adapter of {base}, which is an adapter too",
            hint="train from it without --lora-save adapter, which merges both",
        )
    return base


def _require_safe_paths(folder: Path) -> None:
    """Refuse a folder that holds a pipe or a device, or whose index names a file outside it."""
    # A module may have a folder at any depth. ``rglob`` follows no link to a folder; ``*/*`` does.
    for path in (*folder.rglob("*"), *folder.glob("*/*")):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise CheckpointError(
                f"{path} is a pipe or a device, need a file",
                hint="copy or download the model again",
            )
    for path in (*folder.rglob("*.index.json"), *folder.glob("*/*.index.json")):
        for name in read_fields(path, _ShardIndex).weight_map.values():
            inside(str(path), name)


def _require_plausible_config(folder: Path, *, is_needed: bool) -> None:
    """Refuse a folder if its weights cannot have the sizes that its ``config.json`` claims.

    With ``is_needed``, a missing ``config.json`` is an error, too.
    """
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    n_bytes = sum(path.stat().st_size for path in weights if path.is_file())
    path = folder / "config.json"
    if path.is_file() or is_needed:
        _require_plausible_sizes(read_json(path, dict[str, Any]), path, n_bytes)


def _require_plausible_sizes(config: dict[str, Any], path: Path, n_bytes: int) -> None:
    """Raise CheckpointError for too many layers, or sizes too large for ``n_bytes`` of weights."""
    widths = {key: config[key] for key in _WIDTH_KEYS if type(config.get(key)) is int}
    width_key, width = next(iter(widths.items()), ("", 1))
    most_numbers = _MOST_NUMBERS_IN_A_BYTE * n_bytes + _LARGEST_SURPLUS
    # The width comes first, because a wrong width makes the other sizes too large as well.
    for key, value in (widths | config).items():
        if isinstance(value, dict):
            _require_plausible_sizes(value, path, n_bytes)
        if type(value) is not int:  # isinstance would take True and False for sizes
            continue
        is_deep = _LAYER_KEYS.search(key) and value > _MOST_LAYERS
        is_long = _ROW_KEYS.search(key) and value * width > most_numbers
        # A layer has square matrices of this width.
        is_wide = key in _WIDTH_KEYS and value * value > most_numbers
        if is_deep or is_long or is_wide:
            claimed = f"{key} {value:,}"
            if is_long and width_key:
                claimed += f" with {width_key} {width:,}"
            raise CheckpointError(
                f"{path}: {claimed} does not go with {n_bytes:,} bytes of weights",
                hint="do not use this model, or copy it again: loading it would fill the memory",
            )
