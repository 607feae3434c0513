"""Read the record of a model: what its folder says about its vectors.

The record is in ``simcse.json`` or in the files of sentence-transformers.

Every entry that sentence-transformers 6 reads is followed, or an error names the entry and the
folder is refused. Files of earlier versions are read as version 6 reads them.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from simcse_cli.errors import CheckpointError
from simcse_cli.files.inputs import read_json
from simcse_cli.files.schema import checked, inside
from simcse_cli.models.fast_load import read_tensors
from simcse_cli.models.poolers import POOLERS
from simcse_cli.models.record import (
    PROMPTS_FILE,
    RECORD_FILE,
    ModelRecord,
    checked_length,
    entries_of,
    own_record,
)
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.choices import HeadUse, Pooler, Similarity

_Entries = dict[str, Any]

MODULES_FILE = "modules.json"
LAYER_WEIGHTS = "layer_weights"
_ENCODE_ELSEWHERE = (
    "this toolkit cannot compute it: encode with sentence-transformers, or choose another model"
)

# The supported modules, in the only supported order; Normalize may be repeated.
_ORDER = ("Transformer", "WeightedLayerPooling", "CNN", "Pooling", "Dense", "Normalize")
# Where each version of sentence-transformers has its classes. Newer versions have a file for each
# class; its name is that of the class in lower case, except for those in ``_FILE_NAMES``.
_PACKAGES = (
    "sentence_transformers.models.",
    "sentence_transformers.base.modules.",
    "sentence_transformers.sentence_transformer.modules.",
)
_FILE_NAMES = {"WeightedLayerPooling": "weighted_layer_pooling"}

# The settings of a Transformer module: the first of these files that is not empty.
_TRANSFORMER_FILES = [
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
_ARGUMENTS = (
    "tokenizer_args",
    "processor_kwargs",
    "model_args",
    "model_kwargs",
    "config_args",
    "config_kwargs",
    "processing_kwargs",
)
_TRANSFORMER_ENTRIES = (
    "max_seq_length",
    "do_lower_case",
    "transformer_task",
    "modality_config",
    "module_output_name",
    "query_expansion",
    "tokenizer_name_or_path",
)
_FOR_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
# Entries of the transformer's file that change no vector of ``encode``.
_WITHOUT_EFFECT = ("query_length", "document_length", "unpad_inputs")

_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_POOLER_OF_MODE = {"cls": Pooler.CLS_BEFORE_POOLER, "mean": Pooler.AVG}  # of the last layer
# All names that sentence-transformers knows.
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan", "maxsim", "meanmaxsim")
_WIDTHS = ("word_embedding_dimension", "embedding_dimension")
_INPUT_AND_OUTPUT = ("module_input_name", "module_output_name")
_HAS_TANH = {
    "torch.nn.modules.activation.Tanh": True,
    "torch.nn.Tanh": True,
    "torch.nn.modules.linear.Identity": False,
    "torch.nn.modules.Identity": False,
    "torch.nn.Identity": False,
}


def read_record(folder: Path, progress: Progress = SILENT) -> ModelRecord | None:
    """Return the record in a folder, or None if it has none.

    Raise an error if the record is unreadable or refused.
    """
    if (folder / RECORD_FILE).is_file():
        return replace(own_record(folder), **_read_use(folder, progress))
    if (folder / MODULES_FILE).is_file():
        return replace(_listed_record(folder, progress), **_read_use(folder, progress))
    return None


def _refusal(path: Path, what: str, hint: str = _ENCODE_ELSEWHERE) -> CheckpointError:
    return CheckpointError(f"{path}: {what}", hint=hint)


def _require_known(config: _Entries, path: Path, *known: str) -> None:
    """Refuse unknown entries, as sentence-transformers does."""
    if unknown := [name for name in config if name not in known]:
        raise _refusal(
            path,
            f"{', '.join(unknown)} is not supported; need {', '.join(known)} alone",
            "sentence-transformers does not know it either: remove it from the file",
        )


def _warn_unknown(config: _Entries, path: Path, progress: Progress, *known: str) -> None:
    """Warn of entries that sentence-transformers ignores."""
    if unknown := [name for name in config if name not in known]:
        progress.warn(f"{path}: {', '.join(unknown)} is not known and has no effect")


def _entry(config: _Entries, path: Path, name: str, kind: Any, default: Any = None) -> Any:
    """Return an entry of ``config``, or ``default`` if there is none.

    Raise DataError if the entry is not of the type ``kind``.
    """
    return checked(config.get(name, default), kind, f"{path}: {name}")


def _read_use(folder: Path, progress: Progress) -> _Entries:
    """Return prompts, similarity and ``truncate_dim`` from ``PROMPTS_FILE``, as record fields."""
    path = folder / PROMPTS_FILE
    config = entries_of(path)
    _warn_unknown(
        config,
        path,
        progress,
        "__version__",
        "model_type",
        "requirements",
        "prompts",
        "default_prompt_name",
        "similarity_fn_name",
        "truncate_dim",
    )
    kind = config.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise _refusal(path, f"model_type {kind!r} is not supported; need SentenceTransformer")
    # The prompts; a default called query or document needs no entry, and is then empty.
    texts = checked(config.get("prompts") or {}, dict[str, str | None], f"{path}: prompts")
    prompts = {name: text or "" for name, text in texts.items()}
    default = _entry(config, path, "default_prompt_name", str | None)
    if default in ("query", "document"):
        prompts.setdefault(default, "")
    if default not in (None, *prompts):
        names = ", ".join(prompts) or "none"
        raise _refusal(
            path,
            f"default_prompt_name {default!r}, need the name of a prompt (there are {names})",
            "correct the name there, or remove the entry",
        )
    # How vectors are compared, and how many components they have.
    similarity = _entry(config, path, "similarity_fn_name", str | None)
    if similarity not in (None, *_SIMILARITIES):
        progress.warn(
            f"{path}: similarity_fn_name {similarity!r} is not known and has no effect; there are "
            f"{', '.join(_SIMILARITIES)}"
        )
    truncate_dim = _entry(config, path, "truncate_dim", int | None)
    if truncate_dim is not None and truncate_dim < 1:
        raise _refusal(
            path, f"truncate_dim {truncate_dim}, need at least 1", "correct or remove the entry"
        )
    return {
        "prompts": prompts,
        "default_prompt": default,
        "similarity": similarity or Similarity.COSINE,
        "truncate_dim": truncate_dim,
    }


def _listed_record(folder: Path, progress: Progress) -> ModelRecord:
    """Return the record that ``modules.json`` and the files of its modules give."""
    # The kind and the folder of each module.
    path = folder / MODULES_FILE
    rows = [checked(row, _Entries, str(path)) for row in read_json(path, list[Any])]
    for row in rows:
        _warn_unknown(row, path, progress, "idx", "name", "path", "type", "kwargs")
    kinds = [_kind(row, path) for row in rows]
    places = [inside(str(path), row.get("path")) for row in rows]
    _require_known_order(kinds, path)
    # What each module says about the record.
    pooler: Pooler | None = None
    layer_pooler: Pooler | None = None
    fields: _Entries = {}
    for kind, place in zip(kinds, places, strict=True):
        match kind:
            case "Transformer":
                fields |= {"transformer_folder": place} | _read_transformer(folder / place)
            case "WeightedLayerPooling":
                layer_pooler = _pooler_of_weights(folder / place)
            case "CNN":
                _require_output_per_token(folder / place)
                fields["cnn_folder"] = place
            case "Pooling":
                pooler, fields["include_prompt"] = _read_pooling(folder / place)
                if "cnn_folder" not in fields:  # convolutions have a width of their own
                    _warn_other_width(
                        folder / place, folder / fields["transformer_folder"], progress
                    )
            case "Dense":
                fields["head_folder"] = place
                fields["head_tanh"] = _dense_has_tanh(folder / place, progress)
            case "Normalize":
                _require_plain_normalize(folder / place)
                fields["normalize"] = True
    # CLS with a head behind it is a pooler of its own.
    has_head = "head_folder" in fields
    if has_head and pooler is Pooler.CLS_BEFORE_POOLER:
        pooler = Pooler.CLS
    # WeightedLayerPooling decides the pooler, but only if the transformer outputs all layers:
    # otherwise sentence-transformers skips this module.
    if layer_pooler is not None:
        config = entries_of(folder / fields["transformer_folder"] / "config.json")
        if config.get("output_hidden_states"):
            if pooler is not Pooler.AVG:
                raise _refusal(
                    path, "WeightedLayerPooling with cls_token is not supported; need the mean"
                )
            pooler = layer_pooler
    head_use = HeadUse.KEPT if has_head else HeadUse.NONE
    return ModelRecord(pooler, head_use, origin=str(path), **fields)


def _kind(row: _Entries, path: Path) -> str:
    """Return the kind of module in a row of ``modules.json``, by the full name of its class."""
    name = row.get("type")
    if not isinstance(name, str):
        raise _refusal(path, f"type {name!r}, need the name of a class", "correct the file")
    prefix = next((package for package in _PACKAGES if name.startswith(package)), "")
    *file_names, kind = name.removeprefix(prefix).split(".")
    # Some versions name the file of the class as well: Pooling.Pooling or pooling.Pooling.
    file_name = _FILE_NAMES.get(kind, kind.lower())
    is_known_place = file_names in ([], [kind], [file_name])
    if prefix and is_known_place and kind in _ORDER:
        return kind
    raise _refusal(
        path, f"module {name} is not supported; need {', '.join(_ORDER)} of sentence_transformers"
    )


def _require_known_order(kinds: Sequence[str], path: Path) -> None:
    """Refuse modules that are not in the order in which they are computed here."""
    places = [_ORDER.index(kind) for kind in kinds]
    last_place = len(_ORDER) - 1
    # Only Normalize, the last of the order, may be repeated.
    in_order = all(
        left < right or left == right == last_place for left, right in itertools.pairwise(places)
    )
    has_start = kinds[:1] == ["Transformer"]
    is_pooled = "Pooling" in kinds or len(kinds) == 1  # a Transformer alone needs no pooling
    has_both = "WeightedLayerPooling" in kinds and "CNN" in kinds
    if has_both or not (has_start and in_order and is_pooled):
        raise _refusal(
            path,
            f"the modules {', '.join(kinds) or '(none)'} in this order are not supported; "
            "need Transformer, then WeightedLayerPooling or CNN if at all, Pooling, and at "
            "most one Dense before Normalize",
        )


def _read_transformer(folder: Path) -> _Entries:
    """Return the length and the casing of a Transformer module, as fields of the record."""
    path, config = _transformer_settings(folder)
    _require_known(config, path, *_TRANSFORMER_ENTRIES, *_ARGUMENTS, *_WITHOUT_EFFECT)
    # This toolkit does not follow arguments for classes of transformers.
    for name in _ARGUMENTS:
        values = checked(config.get(name) or {}, _Entries, f"{path}: {name}")
        keys = [key for key in values if key != "trust_remote_code"]
        if keys:
            raise _refusal(
                path, f"{name} sets {', '.join(keys)}, which is not supported; need it empty"
            )
    for name in ("query_expansion", "tokenizer_name_or_path"):
        if config.get(name):
            raise _refusal(path, f"{name} is not supported; need it empty")
    # Which output is taken.
    task = config.get("transformer_task", "feature-extraction")
    if task != "feature-extraction":
        raise _refusal(path, f"transformer_task {task!r} is not supported; need feature-extraction")
    modality = config.get("modality_config")
    if modality is not None:
        text = checked(modality, _Entries, f"{path}: modality_config").get("text")
        if text != _FOR_TEXT:
            shown = json.dumps(text)
            raise _refusal(
                path,
                f"modality_config takes {shown} for text, which is not supported; need {_FOR_TEXT}",
            )
        if "message" in modality:
            raise _refusal(
                path,
                "modality_config has message, so that texts go through the chat template, which is "
                "not supported; need text alone",
            )
        output = config.get("module_output_name") or "token_embeddings"
        if output != "token_embeddings":
            raise _refusal(
                path, f"module_output_name {output!r} is not supported; need token_embeddings"
            )
    # Length and casing.
    length = _entry(config, path, "max_seq_length", int | None)
    lower = _entry(config, path, "do_lower_case", bool | None, False)
    return {"max_length": checked_length(length, path), "lower_case": bool(lower)}


def _transformer_settings(folder: Path) -> tuple[Path, _Entries]:
    """Return the first settings file of a Transformer module that is not empty, and its entries.

    If all of them are empty or missing, return the last path and no entries.
    """
    for name in _TRANSFORMER_FILES:
        path = folder / name
        config = entries_of(path)
        if config:
            return path, config
    return folder / _TRANSFORMER_FILES[-1], {}


def _read_pooling(folder: Path) -> tuple[Pooler, bool]:
    """Return the pooler of a Pooling module, and whether it counts the tokens of a prompt."""
    path = folder / "config.json"
    config = read_json(path, _Entries)
    _require_known(config, path, "pooling_mode", *_POOLING_FLAGS, "include_prompt", *_WIDTHS)
    # A file names one mode or a list of modes, or sets a flag for each; names take precedence.
    flagged = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)]
    modes: Any = config.get("pooling_mode", flagged or "mean")
    if not isinstance(modes, list):
        modes = [modes]
    # The values may be dicts or lists, which have no hash, so they are looked up in lists.
    if len(modes) != 1 or modes[0] not in list(_POOLER_OF_MODE):
        hint = _ENCODE_ELSEWHERE
        if any(mode not in list(_POOLING_FLAGS.values()) for mode in modes):
            hint = "sentence-transformers does not know it either: correct the file"
        raise _refusal(
            path,
            f"pooling {' and '.join(map(str, modes))} is not supported; need cls or mean",
            hint,
        )
    return _POOLER_OF_MODE[modes[0]], bool(config.get("include_prompt", True))


def _warn_other_width(folder: Path, transformer: Path, progress: Progress) -> None:
    """Warn if a Pooling module has another width than its transformer; the width has no effect."""
    path = folder / "config.json"
    width = entries_of(transformer / "config.json").get("hidden_size")
    for name, claimed in entries_of(path).items():
        if name in _WIDTHS and width is not None and claimed != width:
            progress.warn(f"{path}: {name} {claimed!r} has no effect; the transformer has {width}")


def layer_weights(pooler: Pooler, n_layers: int) -> torch.Tensor:
    """Return how many times each layer counts in the mean of a pooler, ``(n_layers + 1,)``.

    The embedding output is layer 0.
    """
    weights = torch.zeros(n_layers + 1)
    for layer in POOLERS[pooler].layers:  # 1 and -1 may be the same layer, which then counts twice
        weights[layer] += 1.0
    return weights


def _pooler_of_weights(folder: Path) -> Pooler:
    """Return the first pooler that averages the layers as a WeightedLayerPooling module does."""
    path = folder / "config.json"
    config = read_json(path, _Entries)
    _require_known(config, path, "layer_start", "num_hidden_layers", *_WIDTHS)
    start = _entry(config, path, "layer_start", int, 4)
    n_layers = _entry(config, path, "num_hidden_layers", int, 12)
    # The module has weights from layer ``start`` on; the layers before it have weight zero. Layer 0
    # is the embedding output. Without the prefix, the name of the only tensor is empty.
    weights = read_tensors(folder, LAYER_WEIGHTS).get("", torch.zeros(0)).float()
    fits_layers = 0 <= start <= n_layers and weights.shape == (n_layers + 1 - start,)
    if fits_layers and n_layers and weights.sum() > 0:
        shares = torch.cat([torch.zeros(start), weights]) / weights.sum()
        for pooler, spec in POOLERS.items():
            expected = layer_weights(pooler, n_layers)
            if spec.needs_all_layers and torch.equal(expected / expected.sum(), shares):
                return pooler
    raise _refusal(
        path,
        "WeightedLayerPooling with these weights is not supported; need the mean of two layers",
    )


def _require_output_per_token(folder: Path) -> None:
    """Refuse convolutions that do not give one output for each token."""
    path = folder / "cnn_config.json"
    config = read_json(path, _Entries)
    _require_known(
        config,
        path,
        "in_word_embedding_dimension",
        "in_embedding_dimension",
        "out_channels",
        "kernel_sizes",
        "stride_sizes",
    )
    sizes = _entry(config, path, "kernel_sizes", list[int], [1, 3, 5])
    strides = checked(config.get("stride_sizes") or [], list[int], f"{path}: stride_sizes")
    has_even_size = any(size % 2 == 0 for size in sizes)
    if has_even_size or any(stride != 1 for stride in strides):
        raise _refusal(path, "CNN with even kernel_sizes or with stride_sizes is not supported")


def _require_sentence_vector(config: _Entries, path: Path, kind: str) -> None:
    """Refuse a module that reads or writes anything but the vector of the sentence."""
    for name in _INPUT_AND_OUTPUT:
        value = config.get(name)
        if value not in (None, "sentence_embedding"):
            raise _refusal(
                path, f"{kind} with {name} {value!r} is not supported; need sentence_embedding"
            )


def _require_plain_normalize(folder: Path) -> None:
    path = folder / "config.json"
    config = entries_of(path)
    _require_known(config, path, *_INPUT_AND_OUTPUT)
    _require_sentence_vector(config, path, "Normalize")


def _dense_has_tanh(folder: Path, progress: Progress) -> bool:
    """Tell whether a Dense module ends in tanh; otherwise it ends in no activation.

    Other activations are refused, except those of other packages: for these, sentence-transformers
    uses tanh.
    """
    path = folder / "config.json"
    config = read_json(path, _Entries)
    known = ("in_features", "out_features", "bias", "activation_function", "use_residual")
    _warn_unknown(config, path, progress, *known, *_INPUT_AND_OUTPUT)
    _require_sentence_vector(config, path, "Dense")
    if config.get("use_residual"):
        raise _refusal(path, "Dense with use_residual is not supported")
    name = _entry(config, path, "activation_function", str, "torch.nn.Tanh")
    if not name.startswith("torch."):
        progress.warn(
            f"{path}: the activation {name} is of another package; tanh is used, as "
            "sentence-transformers does"
        )
        return True
    if name not in _HAS_TANH:
        raise _refusal(path, f"Dense with {name} is not supported; need {', '.join(_HAS_TANH)}")
    return _HAS_TANH[name]
