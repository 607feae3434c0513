"""Save encoders, and check that transformers and sentence-transformers give the same vectors."""

import contextlib
import importlib.metadata
import importlib.util
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import try_to_load_from_cache
from safetensors.torch import save_file
from torch import Tensor, nn

from simcse_cli.arrays import Floats32
from simcse_cli.errors import CheckpointError, OutputError, reason_of
from simcse_cli.files.atomic import (
    fsync_tree,
    staging_folder,
    temporary_beside,
    write_json,
    writing,
)
from simcse_cli.files.digests import sha256_file
from simcse_cli.files.inputs import read_json
from simcse_cli.files.locks import sole_writer
from simcse_cli.files.system import swap_names, sync
from simcse_cli.models.adapters import plain_weights, put_adapter, save_adapter
from simcse_cli.models.card import CARD_FILE
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import Use, encode
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.graphs import GraphPass, open_graphs, require_backend, write_graphs
from simcse_cli.models.heads import MlpHead, TokenCnn
from simcse_cli.models.model_files import ModelFiles, find_model
from simcse_cli.models.module_list import LAYER_WEIGHTS, MODULES_FILE, layer_weights
from simcse_cli.models.padding import pad
from simcse_cli.models.poolers import POOLERS, Reduction, without_head
from simcse_cli.models.pretrained import (
    MlmHead,
    auto_model,
    blank_pooler,
    mark_as_text,
    quiet_transformers,
    wants_processor,
)
from simcse_cli.models.record import PROMPTS_FILE, RECORD_FILE, ModelRecord, sound_entries_of
from simcse_cli.models.tokens import NO_LIMIT, lower_case, turn_off_dropout
from simcse_cli.postprocess.unit_rows import unit_rows
from simcse_cli.progress import Progress
from simcse_cli.settings.choices import Backend, HeadUse, Pooler

_Entries = dict[str, Any]
_States = tuple[Tensor, ...]
_Pass = Callable[[Tensor, Tensor], tuple[_States, Tensor | None]]
"""Maps ids and mask to states, and to the output of the head if the loader computes that."""

PROBE_SENTENCES = (
    "A man is playing a guitar.",
    "The committee postponed its decision until the report is published.",
    "Why?",
    "Grüße aus Köln, 42 times over: naïve café, résumé & co.",
)
PROBE_TOLERANCE = 1e-5
FOLLOWED_VERSION = 6
"""The major version of sentence-transformers whose vectors an export must reproduce."""
_ONLY_HERE = "simcse_cli.PoolerMaskWithTemplate"
"""A module that sentence-transformers does not have; it stands for the pooler ``mask``."""

PROBE_COSINE = 0.9  # the least accepted cosine of vectors by an 8-bit graph and by this toolkit
_QUANTIZED = ("onnx_int8", "openvino_int8")
CNN_FOLDER = "1_CNN"


@contextlib.contextmanager
def atomic_folder(target: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary folder next to ``target`` that takes the place of ``target`` on success.

    An existing target is refused without ``force``.
    """
    if target.exists() and not force:
        raise OutputError(
            f"{target} exists already", hint="choose another folder, or overwrite it with --force"
        )
    # The lock lies beside the target; inside, it would be moved away with it.
    lock = sole_writer(target.with_name(f"{target.name}.folder"), target)
    with lock, writing(target), staging_folder(target) as temporary:
        yield temporary
        fsync_tree(temporary)
        if not target.exists():
            temporary.rename(target)
        elif not swap_names(temporary, target):
            # A kill between the renames leaves no target: the next writer puts the old one back.
            retired = temporary_beside(target, "old")
            target.rename(retired)
            temporary.rename(target)
            shutil.rmtree(retired)
        sync(target.parent)


def restore_moved(target: Path) -> None:
    """Put back a folder that a killed ``atomic_folder`` has moved aside and not replaced."""
    with sole_writer(target.with_name(f"{target.name}.folder"), target):
        pass  # taking the lock has put the folder back


_MODEL_FILES = re.compile(
    r"(adapter_)?(config|model|modules|simcse|generation_config|sentence_bert_config"
    r"|config_sentence_transformers)[\w.-]*\.(json|safetensors)"
    r"|(pytorch_model|tf_model|flax_model|adapter_model|rust_model)[\w.-]*"
    r"|(tokenizer|vocab|merges|special_tokens_map|added_tokens|bpe\.codes|sentencepiece|spiece|spm"
    r"|dict|chat_template)[\w.-]*"
    r"|model[\w-]*\.onnx|README\.md|LICENSE[\w.]*|\.gitattributes|openvino_[\w.-]+|\.lock"
)
_MODEL_FOLDERS = re.compile(r"\d_[A-Za-z]+|onnx|openvino")


def _require_model_files_only(target: Path) -> None:
    """Raise OutputError for a link, a file, or a folder with files that belong to no model.

    Those files would be deleted with the folder. A target that does not exist passes.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise OutputError(
            f"{target} is not a folder itself", hint="give a folder, not a link or file, with -o"
        )
    if not target.exists():
        return
    for path in target.rglob("*"):
        relative = path.relative_to(target)
        *folders, name = relative.parts
        # A file lies in the model folder itself or in one of its folders, but not deeper.
        is_in_model_folder = all(map(_MODEL_FOLDERS.fullmatch, folders)) and len(folders) < 2
        known_names = _MODEL_FILES
        if path.is_dir() and not path.is_symlink():
            known_names = _MODEL_FOLDERS
        if not (is_in_model_folder and known_names.fullmatch(name)):
            raise OutputError(
                f"{target} holds {relative.as_posix()}, which is not part of a model: it would be "
                "deleted",
                hint="move it away, or choose another folder with -o",
            )


def _make_own_pooler(encoder: SentenceEncoder) -> nn.Module | None:
    """Return the head as the architecture's own pooler.

    The result is None if the encoder has no head, or if its head does not fit there.
    """
    head = encoder.head
    if head is None or not _fits_own_pooler(head):
        return None
    pooler = blank_pooler(encoder.config)
    if pooler is not None:
        pooler.get_submodule("dense").load_state_dict(head.dense.state_dict())
    return pooler


def _fits_own_pooler(head: MlpHead) -> bool:
    """Tell whether a head is like the poolers of architectures: square, with a bias, then tanh."""
    is_square = head.dense.out_features == head.dense.in_features
    return is_square and head.dense.bias is not None and head.tanh


def _write_module(
    path: Path, config: _Entries, weights: Mapping[str, Tensor], prefix: str = ""
) -> None:
    """Write a module of sentence-transformers.

    Its configuration goes to ``path``. Its weights go beside it, with ``prefix`` before each name.
    """
    path.parent.mkdir()
    write_json(path, config)
    tensors: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        tensors[prefix + name] = tensor.detach().cpu().contiguous()
    save_file(tensors, path.with_name("model.safetensors"))


def _write_layer_weights(encoder: SentenceEncoder, folder: Path) -> None:
    """Write the module WeightedLayerPooling, which averages the layers that the pooler reads."""
    n_layers = int(encoder.config.num_hidden_layers)
    config = {
        "word_embedding_dimension": encoder.hidden_size,
        "layer_start": 0,
        "num_hidden_layers": n_layers,
    }
    weights = {LAYER_WEIGHTS: layer_weights(encoder.pooler, n_layers)}
    _write_module(folder / "config.json", config, weights)


def _write_cnn(cnn: TokenCnn, folder: Path) -> None:
    first: Any = cnn.convolutions[0]
    config = {
        "in_word_embedding_dimension": first.in_channels,
        "out_channels": first.out_channels,
        "kernel_sizes": cnn.kernel_sizes,
    }
    _write_module(folder / "cnn_config.json", config, cnn.convolutions.state_dict(), "convs.")


def _write_pooling(encoder: SentenceEncoder, folder: Path) -> None:
    """Write the configuration of the pooling, which has a flag for each mode."""
    width = encoder.hidden_size
    if encoder.token_cnn is not None:
        width = encoder.token_cnn.dim
    config: _Entries = {"word_embedding_dimension": width}
    for mode in (Reduction.CLS, Reduction.MEAN, "max_tokens", "mean_sqrt_len_tokens"):
        config[f"pooling_mode_{mode}"] = mode == POOLERS[encoder.pooler].reduction
    if not encoder.record.include_prompt:
        config["include_prompt"] = False
    folder.mkdir()
    write_json(folder / "config.json", config)


def _write_head(head: MlpHead, folder: Path) -> None:
    activation = "activation.Tanh" if head.tanh else "linear.Identity"
    config = {
        "in_features": head.dense.in_features,
        "out_features": head.dense.out_features,
        "bias": head.dense.bias is not None,
        "activation_function": f"torch.nn.modules.{activation}",
    }
    _write_module(folder / "config.json", config, head.dense.state_dict(), "linear.")


def _write_modules(encoder: SentenceEncoder, folder: Path, record: ModelRecord) -> None:
    """Write what sentence-transformers reads besides the transformer."""
    # The folder and kind of each module, in the order in which they compute.
    modules: list[tuple[str, str]] = [("", "Transformer")]
    config = {"max_seq_length": record.max_length, "do_lower_case": record.lower_case}
    write_json(folder / "sentence_bert_config.json", config)
    if POOLERS[encoder.pooler].needs_all_layers:
        modules.append(("1_WeightedLayerPooling", "WeightedLayerPooling"))
        _write_layer_weights(encoder, folder / "1_WeightedLayerPooling")
    if encoder.token_cnn is not None:
        modules.append((CNN_FOLDER, "CNN"))
        _write_cnn(encoder.token_cnn, folder / CNN_FOLDER)
    has_pooling = encoder.pooler is not Pooler.MASK
    if has_pooling:
        place = f"{len(modules)}_Pooling"
        modules.append((place, "Pooling"))
        _write_pooling(encoder, folder / place)

    # The head is listed only if it stays in use.
    if encoder.head is not None and record.head_folder is not None:
        _write_head(encoder.head, folder / record.head_folder)
        if encoder.record.head_use is HeadUse.KEPT:
            modules.append((record.head_folder, "Dense"))
    if record.normalize:
        place = f"{len(modules)}_Normalize"
        modules.append((place, "Normalize"))
        (folder / place).mkdir()

    # The list, and the settings of the model as a whole.
    listing = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for i, (place, kind) in enumerate(modules)
    ]
    if not has_pooling:
        # A module that sentence-transformers does not know makes it refuse the folder. Without
        # ``modules.json``, it would silently pool by the mean.
        listing.append({"idx": len(listing), "name": "mask", "path": "", "type": _ONLY_HERE})
    write_json(folder / "modules.json", listing)
    settings: _Entries = {"prompts": record.prompts, "similarity_fn_name": record.similarity}
    if record.truncate_dim is not None:
        settings["truncate_dim"] = record.truncate_dim
    if record.default_prompt is not None:
        settings["default_prompt_name"] = record.default_prompt
    write_json(folder / PROMPTS_FILE, settings)


@contextlib.contextmanager
def _changed_for_saving(encoder: SentenceEncoder) -> Iterator[None]:
    """Within the block, put the transformer into the form in which it is saved.

    The head becomes the transformer's own pooler if it fits there. The configuration asks for the
    states of all layers if sentence-transformers needs them.
    """
    backbone: Any = encoder.backbone
    had_pooler_slot = hasattr(backbone, "pooler")
    pooler_before = getattr(backbone, "pooler", None)
    if had_pooler_slot:
        backbone.pooler = _make_own_pooler(encoder)
    hidden_before = getattr(backbone.config, "output_hidden_states", False)
    backbone.config.output_hidden_states = POOLERS[encoder.pooler].needs_all_layers
    try:
        yield
    finally:
        backbone.config.output_hidden_states = hidden_before
        if had_pooler_slot:
            backbone.pooler = pooler_before


def _write_files(
    encoder: SentenceEncoder,
    folder: Path,
    facts: _Entries,
    keep_adapter: bool,
    mlm_head: MlmHead | None,
) -> None:
    """Write transformer (or adapter), tokenizer, modules and record into a folder."""
    backbone: Any = encoder.backbone
    with _changed_for_saving(encoder), quiet_transformers():
        if keep_adapter:
            save_adapter(backbone, folder)
        elif mlm_head is not None:
            mlm_head.save(backbone, folder, plain_weights(backbone))
        else:
            backbone.save_pretrained(folder, state_dict=plain_weights(backbone))
        encoder.tokenizer.save_pretrained(folder)
        if not keep_adapter and wants_processor(folder):
            mark_as_text(folder)

    # The record describes how the folder is used; a train-only head is not used any more.
    pooler = encoder.pooler
    if encoder.record.head_use is HeadUse.TRAIN_ONLY:
        pooler = without_head(pooler)
    max_length: int | None = encoder.tokens.max_length
    if max_length == NO_LIMIT:
        max_length = None
    record = replace(
        encoder.record,
        pooler=pooler,
        head_folder=None if encoder.head is None else "Dense",
        head_tanh=encoder.head is None or encoder.head.tanh,
        max_length=max_length,
        cnn_folder=None if encoder.token_cnn is None else CNN_FOLDER,
    )
    _write_modules(encoder, folder, record)
    write_json(folder / RECORD_FILE, record.to_json(**facts))


def save_encoder(
    encoder: SentenceEncoder,
    folder: Path,
    *,
    force: bool = False,
    keep_adapter: bool = False,
    backends: Collection[Backend] = (),
    quantize: bool = False,
    card: bytes | None = None,
    check: Callable[[Path], object] | None = None,
    mlm_head: MlmHead | None = None,
    **facts: Any,
) -> None:
    """Write a model folder that this toolkit, ``AutoModel`` and ``SentenceTransformer`` load.

    The transformer keeps its precision, and LoRA is merged into its weights. A train-only head is
    saved, but the folder records the pooler without a head, ``cls_before_pooler`` in place of
    ``cls``, so that nobody evaluates with the head by accident.

    With ``keep_adapter``, the LoRA adapter is saved in place of the transformer. With ``mlm_head``,
    the transformer and the masked-LM head are saved as one model. The folder appears complete
    or not at all; before that, ``check`` is called with a complete temporary folder. ``facts`` are
    further entries of ``simcse.json``, and ``card`` is the model card. Each of the ``backends``
    gets a graph and, with ``quantize``, a second graph in 8-bit integers.
    """
    with atomic_folder(folder, force=force) as temporary:
        _write_files(encoder, temporary, facts, keep_adapter, mlm_head)
        write_graphs(encoder, temporary, backends, quantize=quantize)
        if card is not None:
            (temporary / CARD_FILE).write_bytes(card)
        if check is not None:
            check(temporary)


def export_model(
    name: str,
    target: Path,
    *,
    pooler: Pooler | None,
    template: str | None = None,
    force_pooler: bool,
    backends: Collection[Backend],
    quantize: bool,
    force: bool,
    progress: Progress,
) -> None:
    """Save a model again with ``save_encoder``, with its card, and verify it.

    A card in the target is kept if it was changed after it was copied there.
    """
    # What can be refused is refused before the model is loaded.
    for backend in backends:
        require_backend(backend, quantize=quantize)
    if not target.exists():
        restore_moved(target)
    _require_model_files_only(target)
    files = find_model(name, progress)
    encoder = load_encoder(
        files,
        pooler=pooler,
        template=template,
        force_pooler=force_pooler,
        device="cpu",
        precision="fp32",
        progress=progress,
    )

    # Facts of the training, and the digest by which the next export notices an edited card.
    recorded = sound_entries_of(files.named / RECORD_FILE)
    facts: _Entries = {key: recorded[key] for key in ("objective", "step") if key in recorded}
    source_card = _own_card(files.named, progress)
    if source_card is not None:
        facts["card_sha256"] = sha256_file(source_card)
    card = _choose_card(source_card, target, name, progress)

    # The target is replaced only after the copy has passed ``check``, which fills ``differences``.
    differences: dict[str, float | None] = {}
    source_vectors = _vectors_of_source(files, encoder, progress)

    def check(folder: Path) -> None:
        differences.update(verify_export(folder, target, source=source_vectors))

    save_encoder(
        encoder,
        target,
        check=check,
        force=force,
        backends=backends,
        quantize=quantize,
        card=card,
        **facts,
    )

    # A loader that was not tried has None. An 8-bit graph, whose vectors are only similar, has a
    # cosine. A name that ends in ``_before`` stands for the vectors of the source before the copy.
    tried: list[str] = []
    cosines = ""
    for loader, value in differences.items():
        if loader in _QUANTIZED:
            cosines += f"; cosine {value:.4f} by {loader}"
        elif value is not None:
            tried.append(loader.replace("_before", " before the copy"))
    progress.info(f"wrote {target}; the same vectors by {', '.join(tried)}{cosines}")
    if encoder.record.template is not None:
        progress.warn(
            "sentence-transformers has no pooler mask and refuses the folder: encode with "
            "`simcse encode` or simcse_cli.load"
        )


def _own_card(folder: Path, progress: Progress) -> Path | None:
    """Return the card of a model; None if there is none, or if it is a link out of the folder.

    A copy of the model may be published, and the link may lead to a private file. In the Hub's
    cache, all files of a snapshot are links to the folder ``blobs`` of their model.
    """
    card = folder / CARD_FILE
    if not card.is_file():
        return None
    own_places = [folder.resolve()]
    if folder.parent.name == "snapshots":
        own_places.append(folder.resolve().parents[1] / "blobs")
    if any(card.resolve().is_relative_to(place) for place in own_places):
        return card
    progress.warn(f"{card} is a link to a file outside the model folder, so it is not copied")
    return None


def _choose_card(
    source_card: Path | None, target: Path, name: str, progress: Progress
) -> bytes | None:
    """Return the card to write: the target's if a user has edited it, else the source's, if any."""
    card = None if source_card is None else source_card.read_bytes()
    target_card = target / CARD_FILE
    # An earlier export has recorded the digest of the card that it copied from its source.
    recorded = sound_entries_of(target / RECORD_FILE)
    is_edited = target_card.is_file() and sha256_file(target_card) != recorded.get("card_sha256")
    if not is_edited:
        return card
    edited = target_card.read_bytes()
    if edited != (card or b""):
        progress.info(f"kept {target_card}, which is not the card of {name}")
    return edited


def _probes(encoder: SentenceEncoder) -> tuple[str, ...]:
    """Return the probe sentences.

    For models that read at most 512 sub-words, they include a text that is cut.
    """
    length = encoder.tokens.max_length
    if length > 512:
        return PROBE_SENTENCES
    return (*PROBE_SENTENCES, "Rain " + "in the North, " * length + "and the END")


def _plain_vectors(files: ModelFiles, encoder: SentenceEncoder) -> dict[str, Floats32]:
    """Return the vectors of the probe sentences by ``AutoModel`` and by each graph.

    Each sentence has a pass of its own. A head that is saved as the pooler of ``AutoModel`` is
    applied by ``AutoModel`` itself, and an adapter by PEFT, unmerged.
    """
    model, tokenizer = auto_model(files.base)
    if files.base_name is not None:
        model = put_adapter(model, files.named, files.base_name).eval()
    if encoder.record.lower_case:
        lower_case(tokenizer)
    turn_off_dropout(tokenizer)
    # The template is put around the sub-words after these are cut to length.
    probes = encoder.template.texts(_probes(encoder))
    cut = tokenizer(probes, truncation=True, max_length=encoder.tokens.max_length)["input_ids"]
    rows = encoder.template.around(cut)

    passes: dict[str, _Pass] = {"auto_model": partial(_auto_model_pass, files, encoder, model)}
    for name, run in open_graphs(files.named).items():
        passes[name] = partial(_graph_pass, run)
    vectors: dict[str, Floats32] = {}
    with torch.inference_mode():
        for loader, states_of in passes.items():
            whole = np.concatenate([_vector_of_row(encoder, states_of, row) for row in rows])
            vectors[loader] = whole[:, : encoder.record.truncate_dim]
    return vectors


def _auto_model_pass(
    files: ModelFiles, encoder: SentenceEncoder, model: Any, ids: Tensor, mask: Tensor
) -> tuple[_States, Tensor | None]:
    """Return the states of all layers, and the output of the head if ``AutoModel`` has it."""
    output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    states = (*output.hidden_states[:-1], output.last_hidden_state)
    # The pooler of AutoModel reads the first token and ends in tanh. That of an adapter's base
    # model is not the head that was saved with the adapter.
    head = encoder.head
    can_have_head = encoder.pooler is Pooler.CLS and not files.is_adapter
    if can_have_head and head is not None and _fits_own_pooler(head):
        return states, getattr(output, "pooler_output", None)
    return states, None


def _graph_pass(run: GraphPass, ids: Tensor, mask: Tensor) -> tuple[_States, None]:
    """Return the states of the last layer, the only ones that a graph gives."""
    return (run(ids, mask),), None


def _vector_of_row(encoder: SentenceEncoder, states_of: _Pass, row: list[int]) -> Floats32:
    """Return the vector ``(1, D)`` that this toolkit computes from the states of one row."""
    # A pass needs at least one token, so an empty row gets one of padding.
    ids, mask = pad([row or [encoder.tokens.pad_id]], encoder.tokens.pad_id)
    states, headed = states_of(ids, mask)
    if encoder.token_cnn is not None:
        states = (encoder.token_cnn(states[-1], mask),)
    vectors = encoder.pool_states(states, ids, mask)
    if encoder.record.subtracts_template:
        vectors = vectors - encoder.around_nothing(encoder.template, [row])
    vectors = encoder.apply_head(vectors) if headed is None else headed
    if encoder.record.normalize:
        vectors = nn.functional.normalize(vectors.float(), dim=1)
    return vectors.float().numpy()


def _vectors_by_sentence_transformers(
    files: ModelFiles, sentences: Sequence[str]
) -> Floats32 | None:
    """Return vectors by ``SentenceTransformer``; each sentence is encoded alone, without padding.

    The result is None in four cases: the package is not installed, it cannot find the base model of
    an adapter offline, it wants a processor for more than text, or the model has the pooler
    ``mask``, which the package lacks.
    """
    is_installed = importlib.util.find_spec("sentence_transformers") is not None
    if not is_installed or not can_load_offline(files.base_name) or wants_processor(files.base):
        return None
    if files.record.template is not None:
        return None
    with warnings.catch_warnings(), quiet_transformers():
        warnings.simplefilter("ignore")
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(files.named), device="cpu", local_files_only=True).float()
        turn_off_dropout(model.tokenizer)
        vectors = model.encode(list(sentences), prompt="", show_progress_bar=False, batch_size=1)
    return np.asarray(vectors, dtype=np.float32)


def can_load_offline(base: str | None) -> bool:
    """Tell whether other libraries can load a model offline.

    ``base`` is the name of an adapter's base model, or None for a whole model.
    """
    if base is None or Path(base).is_dir():
        return True
    name, _, revision = base.partition("@")
    return isinstance(try_to_load_from_cache(name, "config.json", revision=revision or None), str)


def probe_vectors(encoder: SentenceEncoder) -> Floats32:
    """Return the vectors ``(4, D)`` of four sentences that differ much from each other."""
    return encode(encoder, PROBE_SENTENCES, Use(prompt=""), check_finite=False)


def _vectors_of_source(
    files: ModelFiles, encoder: SentenceEncoder, progress: Progress
) -> Floats32 | None:
    """Return what sentence-transformers gives for the probe sentences, from the source folder.

    The export is later compared with these vectors. The result is None if there are none:

    - the user has chosen another pooler than that of the folder;
    - the folder has no ``modules.json``;
    - sentence-transformers is not installed, is older than ``FOLLOWED_VERSION``, or fails;
    - ``_vectors_by_sentence_transformers`` gives None.
    """
    if encoder.pooler is not files.record.pooler or not (files.named / MODULES_FILE).is_file():
        return None
    if importlib.util.find_spec("sentence_transformers") is None:
        progress.info(
            "sentence-transformers is not installed, so the export is not compared with what it "
            f"gives for {files.name}"
        )
        return None
    installed = importlib.metadata.version("sentence-transformers")
    if int(installed.partition(".")[0]) < FOLLOWED_VERSION:
        progress.info(
            f"sentence-transformers {installed} is older than version {FOLLOWED_VERSION}, so the "
            f"export is not compared with what it gives for {files.name}"
        )
        return None
    try:
        return _vectors_by_sentence_transformers(files, _probes(encoder))
    except Exception as error:  # of sentence-transformers or of the files
        progress.info(
            f"sentence-transformers cannot encode with {files.name} ({reason_of(error)}), so the "
            "export is not compared with it"
        )
        return None


def verify_export(
    folder: Path, called: Path | None = None, *, source: Floats32 | None = None
) -> dict[str, float | None]:
    """Load a saved model in every supported way, and compare the vectors of the probe sentences.

    The result has, for each loader, the largest difference from the vectors of this toolkit; for a
    graph of 8-bit integers, the least cosine with them; for a loader that was not tried, None. It
    is also written to ``simcse.json``, if the folder has this file.

    Raise CheckpointError for a cosine below 0.9, or for a difference above 1e-5, relative to the
    largest component if that exceeds 1.

    Args:
        folder: the saved model.
        called: the name of the folder in messages.
        source: the vectors that sentence-transformers gave before the export.
    """
    # The same probes by every loader; 8-bit graphs are judged by cosine.
    files = find_model(folder)
    encoder = load_encoder(files, device="cpu")
    ours = encode(encoder, _probes(encoder), Use(prompt=""), check_finite=True)
    plain = _plain_vectors(files, encoder)
    cosines: dict[str, float] = {}
    for name in _QUANTIZED:
        if name in plain:
            cosines[name] = _least_cosine(ours, plain.pop(name))
    others: dict[str, Floats32 | None] = {**plain}
    others["sentence_transformers"] = _vectors_by_sentence_transformers(files, _probes(encoder))
    if source is not None:
        others["sentence_transformers_before"] = source

    # ``not <=`` instead of ``>``, so that a difference that is not a number is refused, too.
    tolerance = PROBE_TOLERANCE * max(1.0, float(np.abs(ours).max()))
    differences: dict[str, float | None] = {}
    for loader, vectors in others.items():
        if vectors is None:
            differences[loader] = None
            continue
        difference = _largest_difference(ours, vectors)
        differences[loader] = difference
        if not difference <= tolerance:
            raise CheckpointError(
                f"{called or folder}: {loader} gives other vectors than this toolkit "
                f"(largest difference {difference:.2g}, need {tolerance:.0e})",
                hint="the export is not usable; please report it with the model's config.json",
            )
    for loader, cosine in cosines.items():
        if not cosine >= PROBE_COSINE:
            raise CheckpointError(
                f"{called or folder}: {loader} gives other vectors than this toolkit "
                f"(cosine {cosine:.3f}, need {PROBE_COSINE})",
                hint="leave --quantize out",
            )

    # The result is recorded only in a folder that has a record and can be written.
    path = folder / RECORD_FILE
    if path.is_file() and os.access(path, os.W_OK):
        facts = read_json(path)
        facts["probe_max_abs_difference"] = differences
        if cosines:
            facts["probe_least_cosine"] = cosines
        write_json(path, facts)
    return {**differences, **cosines}


def _largest_difference(left: Floats32, right: Floats32) -> float:
    if left.shape != right.shape:
        return math.inf
    return float(np.abs(left - right).max())


def _least_cosine(left: Floats32, right: Floats32) -> float:
    return float((unit_rows(left, np.float64) * unit_rows(right, np.float64)).sum(axis=1).min())
