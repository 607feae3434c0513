"""Load encoders from model folders, and the weights of the checkpoints that a run keeps.

A weight that the files lack is an error or, if the user has allowed it, gives a warning.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from simcse_cli.errors import CheckpointError, ConfigError
from simcse_cli.files.inputs import read_json
from simcse_cli.files.schema import checked, foreign_format
from simcse_cli.machine import devices
from simcse_cli.machine.precision import (
    DTYPES,
    has_fast_bf16,
    resolve_precision,
    set_float32_products,
)
from simcse_cli.models.adapters import merge_adapter, merged_tensors
from simcse_cli.models.encode import ReadyEncoder, with_use
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.fast_load import (
    plain_backbone,
    plain_tokenizer,
    read_tensors,
    require_floats,
    tensors_below,
)
from simcse_cli.models.heads import MlpHead, TokenCnn
from simcse_cli.models.mask_template import NOTHING_AROUND
from simcse_cli.models.model_files import ModelFiles, find_model
from simcse_cli.models.module_list import MODULES_FILE
from simcse_cli.models.poolers import POOLERS
from simcse_cli.models.pretrained import (
    TOKENIZER_SETTINGS,
    load_backbone,
    load_tokenizer,
    reads_padding,
)
from simcse_cli.models.record import BY_NAME, RECORD_FILE, SHORTEST, entries_of
from simcse_cli.models.resolve import is_local, resolve_model
from simcse_cli.models.tokens import NO_LIMIT, lower_case, turn_off_dropout
from simcse_cli.packed.backbone import packed_backbone
from simcse_cli.progress import SILENT, Progress
from simcse_cli.results.runs import (
    DONE,
    STATE_FILE,
    WEIGHTS_FILE,
    is_run,
    kept_states,
    read_run_record,
    step_of,
)
from simcse_cli.settings.choices import Device, HeadUse, Pooler, Precision
from simcse_cli.settings.config import LoadOptions, pinned

_CHAT_TEMPLATES = ("chat_template.jinja", "additional_chat_templates/*.jinja")
_POSITION_TABLES = ("position_embeddings", "embed_positions")


class _Modules(NamedTuple):
    """The transformer, its tokenizer, and the architecture's own pooler.

    ``own_pooler`` is None unless the files hold its weights.
    """

    backbone: Any
    tokenizer: Any
    own_pooler: nn.Module | None


def _load_light(source: ModelFiles) -> _Modules | None:
    """Load a plain model without the modelling code of transformers.

    Return None if the folder needs that code.
    """
    if source.is_adapter or source.record.cnn_folder is not None:
        return None
    backbone = plain_backbone(source.base)
    if backbone is None:
        return None
    own_pooler = detach_pooler(backbone)
    tokenizer = plain_tokenizer(source.base) or load_tokenizer(source.base)
    return _Modules(backbone, tokenizer, own_pooler)


def _load_whole(source: ModelFiles, dropout: float | None, progress: Progress) -> _Modules:
    """Load a model with transformers and merge its adapter.

    Only the weights of the architecture's own pooler may be missing.
    """
    backbone, missing = load_backbone(source.base, dropout=dropout, progress=progress)
    random_weights = sorted(key for key in missing if not key.startswith("pooler."))
    if random_weights:
        raise CheckpointError(
            f"{source.base} lacks {len(random_weights)} weights (first: {random_weights[0]}); "
            "they would be random",
            hint="give a checkpoint of the whole encoder",
        )
    # The pooler is detached only after the merge, because an adapter may change it, too.
    if source.base_name is not None:
        backbone = merge_adapter(backbone, source.named, source.base_name)
    own_pooler = detach_pooler(backbone)
    # A pooler with missing weights is random, so it cannot be the head.
    if missing:
        own_pooler = None
    return _Modules(backbone, load_tokenizer(_tokenizer_folder(source)), own_pooler)


def _tokenizer_folder(source: ModelFiles) -> Path:
    adapter_has_one = source.is_adapter and (source.named / TOKENIZER_SETTINGS).is_file()
    return source.named if adapter_has_one else source.base


def _refuse_chat_template(source: ModelFiles) -> None:
    """Refuse a chat template, into which sentence-transformers 6 would put every text.

    A folder with a record or a list of modules passes, because these say what is read.
    """
    if any((source.folder / name).is_file() for name in (RECORD_FILE, MODULES_FILE)):
        return
    folder = _tokenizer_folder(source)
    settings = folder / TOKENIZER_SETTINGS
    files = [path for pattern in _CHAT_TEMPLATES for path in sorted(folder.glob(pattern))]
    if files:
        path, what = files[0], "the file"
    elif entries_of(settings).get("chat_template") is not None:
        path, what = settings, "the entry chat_template"
    else:
        return
    raise CheckpointError(
        f"{path}: a chat template is not supported, need a model that reads plain texts",
        hint=f"remove {what} if the model was trained on plain texts; else encode with "
        "sentence-transformers",
    )


class NoPooler(nn.Module):
    """A module that computes nothing, for architectures that always call their own pooler."""

    def forward(self, *_: Any) -> None:
        return None


def detach_pooler(backbone: nn.Module) -> nn.Module | None:
    """Remove the architecture's own pooler from the transformer and return it.

    Forward passes then no longer compute it. Without a pooler that has a linear layer ``dense``,
    return None and change nothing.
    """
    pooler = getattr(backbone, "pooler", None)
    if isinstance(pooler, nn.Module) and isinstance(getattr(pooler, "dense", None), nn.Linear):
        backbone.pooler = NoPooler()
        return pooler
    return None


def load_encoder(
    name: str | Path | ModelFiles,
    *,
    pooler: Pooler | str | None = None,
    template: str | None = None,
    device: str = Device.AUTO,
    precision: Precision | str = Precision.FP32,
    force_pooler: bool = False,
    dropout: float | None = None,
    encode_only: bool = False,
    progress: Progress = SILENT,
) -> SentenceEncoder:
    """Return an encoder in evaluation mode.

    Args:
        name: run folder, Hugging Face or sentence-transformers folder, SimCSE checkpoint, adapter
            folder (merged into its base model), Hub name (``NAME@REVISION`` for a revision other
            than the newest), alias, or the files that ``find_model`` has found.
        pooler: default is what the model records.
        template: words around each sentence, for the pooler ``mask``; default is as recorded.
        device: where to put the encoder.
        precision: arithmetic of the transformer; pooling and head stay float32.
        force_pooler: accept a pooler that contradicts the record, and a head drawn at random.
        dropout: probability for every dropout of the transformer; default is the checkpoint's.
        encode_only: the encoder is for encoding only. If possible, the folder is opened without the
            modelling code of transformers, which takes seconds to import. The vectors are the same.
        progress: shows remarks, such as the pooler that was chosen.

    Raises:
        CheckpointError: not found, corrupt, incomplete, or the pooler is refused.
        ConfigError: device or precision is not available.
    """
    # Where to compute, and how.
    target_device = devices.resolve_device(device)
    precision = resolve_precision(precision, target_device)
    set_float32_products(precision, target_device)
    # The parts of the model.
    source = name if isinstance(name, ModelFiles) else find_model(name, progress)
    modules: _Modules | None = None
    # A light model has only the packed pass of a CPU, and its dropout cannot be set.
    if encode_only and target_device.type == "cpu" and dropout is None:
        modules = _load_light(source)
    if modules is None:
        modules = _load_whole(source, dropout, progress)
    _refuse_chat_template(source)
    if source.record.lower_case:
        lower_case(modules.tokenizer)
    if dropout_of_merges := turn_off_dropout(modules.tokenizer):
        progress.info(
            f"{source.name}: dropout {dropout_of_merges:g} in its tokenizer.json is turned off, so "
            "that equal texts have equal sub-words"
        )
    chosen_pooler = _choose_pooler(source, pooler, force_pooler, progress)
    template = _choose_template(source, chosen_pooler, template, force_pooler)
    token_cnn = _load_cnn(source, modules)
    head = _load_head(source, modules, chosen_pooler, token_cnn, force_pooler, progress)
    # The encoder of these parts.
    encoder = _build_encoder(source, modules, chosen_pooler, template, token_cnn, head)
    _require_sound_weights(encoder, source.named)
    encoder.to(target_device).eval()
    dtype = DTYPES[precision]
    if dtype is not torch.float32:
        encoder.compute_in(dtype)
    return encoder


def _build_encoder(
    source: ModelFiles,
    modules: _Modules,
    pooler: Pooler,
    template: str | None,
    token_cnn: TokenCnn | None,
    head: MlpHead | None,
) -> SentenceEncoder:
    """Return the encoder that consists of these parts.

    Its record describes the parts that it uses, which may differ from those that were recorded.
    """
    recorded = source.record
    record = replace(
        recorded,
        pooler=pooler,
        head_use=HeadUse.NONE if head is None else HeadUse.KEPT,
        max_length=_max_length(source, modules),
        template=template,
        subtracts_template=recorded.subtracts_template and template == recorded.template,
    )
    encoder = SentenceEncoder(
        modules.backbone,
        modules.tokenizer,
        record,
        head=head,
        token_cnn=token_cnn,
        name=source.name,
        folder=source.folder,
    )
    if n_added := encoder.template.n_added:  # a text must leave room for its template
        room = _most_tokens(modules) - n_added
        encoder.tokens.max_length = min(encoder.tokens.max_length, room)
    if packed_backbone(encoder.backbone) is None:  # a packed form reads no padding
        encoder.reads_padding = reads_padding(encoder.backbone)
    return encoder


def _choose_pooler(
    source: ModelFiles, asked: Pooler | str | None, force: bool, progress: Progress
) -> Pooler:
    """Return the pooler to use: the one asked for, else the recorded one, else the mean."""
    # Unless it is forced, a pooler that was asked for must not contradict a recorded one.
    name = source.name
    record = source.record
    if asked:
        chosen = Pooler(asked)
        if record.pooler not in (None, chosen) and not force:
            raise CheckpointError(
                f"{name} records --pooler {record.pooler} in {record.origin}, not {chosen}",
                hint=f"leave --pooler out, or use {chosen} all the same with --force-pooler",
            )
        return chosen
    if record.pooler is not None:
        if record.origin.startswith(BY_NAME) and is_local(name):
            progress.info(
                f"{name} records no pooler; using {record.pooler}, as {record.origin} says "
                "(another one needs --force-pooler)"
            )
        return record.pooler

    # No pooler is asked for or recorded, so it is the mean. A checkpoint of the original code is
    # refused: whether its head belongs to the vectors depends on its training.
    if has_original_head(source):
        raise CheckpointError(
            f"{name} is a SimCSE checkpoint that does not say how it was trained",
            hint="add --pooler cls for a supervised model, --pooler cls_before_pooler for an "
            "unsupervised one",
        )
    progress.info(f"{name} records no pooler; using avg (choose with --pooler)")
    return Pooler.AVG


def _choose_template(
    source: ModelFiles, pooler: Pooler, asked: str | None, force: bool
) -> str | None:
    """Return the template for the pooler ``mask``: the one asked for, else the recorded one.

    The result is None for other poolers.
    """
    name = source.name
    recorded = source.record.template
    if pooler is not Pooler.MASK:
        if asked is not None:
            raise ConfigError(
                f"--template {asked!r} has no use with --pooler {pooler}", hint="add --pooler mask"
            )
        return None
    if recorded is not None and asked not in (None, recorded) and not force:
        raise CheckpointError(
            f"{name} records --template {recorded!r} in {source.record.origin}, not {asked!r}",
            hint="leave --template out, or use it all the same with --force-pooler",
        )
    chosen = asked or recorded
    if chosen in (None, NOTHING_AROUND):
        raise ConfigError(
            f"--pooler mask: {name} records no template, in which [MASK] would stand",
            hint="""add for example --template 'This sentence : "{}" means {mask}.'""",
        )
    return chosen


def has_original_head(source: ModelFiles) -> bool:
    """Tell whether the files hold ``mlp``, the head of the original SimCSE code.

    Such files do not say whether vectors are taken before this head or behind it.
    """
    return bool(read_tensors(source.folder, "mlp.dense."))


def _load_cnn(source: ModelFiles, modules: _Modules) -> TokenCnn | None:
    """Return the convolutions that the record names, or None; their weights give their sizes."""
    if source.record.cnn_folder is None:
        return None
    folder = source.folder / source.record.cnn_folder
    width = modules.backbone.config.hidden_size
    weights = read_tensors(folder, "convs.")
    if not weights:
        raise CheckpointError(
            f"{folder} holds no convolutions", hint="copy or download the model again"
        )
    require_floats({f"convs.{name}": tensor for name, tensor in weights.items()}, folder)
    with foreign_format(
        folder, f"convolutions over states of width {width}", error=CheckpointError
    ):
        # Each convolution has a weight ``(n_channels, dim, size)`` and a bias.
        shapes = [tuple(weights[f"{i}.weight"].shape) for i in range(len(weights) // 2)]
        n_channels, dim, _ = shapes[0]
        if dim != width:
            raise ValueError(f"its convolutions are over states of width {dim}")
        cnn = TokenCnn(dim, n_channels, tuple(size for _, _, size in shapes))
        cnn.convolutions.load_state_dict(weights)
    return cnn


def _load_head(
    source: ModelFiles,
    modules: _Modules,
    pooler: Pooler,
    token_cnn: TokenCnn | None,
    force: bool,
    progress: Progress,
) -> MlpHead | None:
    """Return the head that the pooler or the record needs, or None if they need none.

    If the files lack that head, return a random one with ``force``, else raise CheckpointError.
    """
    record = source.record
    record_has_head = record.pooler is pooler and record.head_use is HeadUse.KEPT
    if not POOLERS[pooler].has_head and not record_has_head:
        return None
    width = modules.backbone.config.hidden_size
    if token_cnn is not None:
        width = token_cnn.dim
    head = _read_head(source, modules.own_pooler, width)
    if head is not None:
        return head
    if not force:
        remedy = "use --pooler cls_before_pooler or avg"
        if record_has_head:  # the record refuses other poolers
            remedy = "copy or download the model again, with all its files"
        raise CheckpointError(
            f"{source.name} holds no weights for the head that --pooler {pooler} needs; "
            "they would be random",
            hint=f"{remedy}, or accept a random head with --force-pooler",
        )
    progress.warn(f"the head of {source.name} is random: its weights are not in the checkpoint")
    return MlpHead(width)


def _read_head(source: ModelFiles, own_pooler: nn.Module | None, width: int) -> MlpHead | None:
    """Return the head in the files, or None if they hold none.

    The head is the Dense module that the record names. Without a record of one, it is ``mlp`` of
    the original SimCSE code, else the architecture's own pooler. ``width`` is that of its inputs.
    """
    record = source.record
    folder = source.folder
    tanh = True
    if record.head_folder is not None:
        folder /= record.head_folder
        tensors = read_tensors(folder, "linear.")
        tanh = record.head_tanh
        if "weight" not in tensors:
            raise CheckpointError(
                f"{folder} holds no weights, need model.safetensors with linear.weight",
                hint="copy or download the model again, with all its files",
            )
    else:
        tensors = read_tensors(folder, "mlp.dense.")
        if not tensors and own_pooler is not None:
            for name, tensor in own_pooler.state_dict().items():
                tensors[name.removeprefix("dense.")] = tensor
    if "weight" not in tensors:
        return None
    require_floats({f"head.dense.{name}": tensor for name, tensor in tensors.items()}, folder)
    needed = f"a head over vectors of width {width}"
    hint = "head and transformer are of different models: take both from the same one"
    with foreign_format(folder, needed, error=CheckpointError, hint=hint):
        out_dim, in_dim = tensors["weight"].shape
        if in_dim != width:
            raise ValueError(f"its head takes vectors of width {in_dim}")
        head = MlpHead(in_dim, out_dim=out_dim, bias="bias" in tensors, tanh=tanh)
        head.dense.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return head


def _require_sound_weights(encoder: SentenceEncoder, folder: Path) -> None:
    """Raise CheckpointError for weights that are not finite, and for some that are all zero.

    The latter are the scales of norms, the table of words, and the matrices of head and
    convolutions. Other weights may be zero.
    """
    for name, weight in encoder.named_parameters():
        if weight.ndim == 1:
            forbids_zeros = name.endswith("weight")  # of a norm
        else:
            is_of_words = name.endswith("word_embeddings.weight")
            # Outside the backbone are the head and the convolutions.
            forbids_zeros = is_of_words or not name.startswith("backbone.")
        # To check the sum is twice as fast, but it may overflow although every value is finite.
        if not (weight.sum().isfinite() or weight.isfinite().all()):
            problem = "not finite"
        elif forbids_zeros and not weight.any():
            problem = "all zero"
        else:
            continue
        raise CheckpointError(
            f"{folder}: the weights {name} are {problem}",
            hint="its training has diverged or the file is damaged: copy or download it again",
        )


def load_for_encoding(name: str, options: LoadOptions, progress: Progress) -> ReadyEncoder:
    """Return an encoder for encoding only, as the options say.

    The user gets a warning if the run is not complete, and a hint if float32 was chosen where
    bfloat16 would be faster, or bfloat16 where it is slower.
    """
    name = pinned(name, options.revision)
    model = load_encoder(
        name,
        pooler=options.pooler,
        template=options.template,
        device=options.device,
        precision=options.precision,
        force_pooler=options.force_pooler,
        encode_only=True,
        progress=progress,
    )
    encoder = with_use(
        model, prompt=options.prompt, truncate_dim=options.truncate_dim, long=options.long
    )
    # Remarks for the user.
    if is_run(name) and (record := read_run_record(name)).status not in DONE:
        progress.warn(f"{name} is {record.status}, step {record.step} of {record.total_steps}")
    device = encoder.device
    is_fast = has_fast_bf16(device)
    if options.precision is Precision.FP32 and is_fast:
        progress.hint(
            "--precision bf16 would be 1.5 to 2 times faster here (cosine to fp32 0.9998)"
        )
    if options.precision is Precision.BF16 and device.type == "cpu" and not is_fast:
        progress.hint("--precision bf16 is slower than fp32 on this processor, and less exact")
    about = f"pooler {encoder.pooler}, {encoder.dim} dimensions, {device}, {options.precision}"
    progress.detail(f"{name}: {about}")
    return encoder


def _max_length(source: ModelFiles, modules: _Modules) -> int:
    """Return how many sub-words of a text the model reads at most.

    As in sentence-transformers, the limit is the recorded length. If none is recorded, it is the
    smaller one of the limits in the tokenizer and in the configuration. It never exceeds the number
    of positions.
    """
    most = _most_tokens(modules)
    recorded = source.record.max_length
    if recorded is None:
        length = modules.tokenizer.model_max_length
        if not isinstance(length, int | float) or length < SHORTEST:
            raise CheckpointError(
                f"{source.name}: model_max_length {length!r} in its tokenizer_config.json, need a "
                f"number of at least {SHORTEST}",
                hint="correct the file, or remove the entry",
            )
        return int(min(most, length, NO_LIMIT))
    # Without a table of positions, a recorded length may exceed that of the configuration.
    if _n_positions(modules.backbone) is None:
        return recorded
    return min(most, recorded)


def _most_tokens(modules: _Modules) -> int:
    """Return how many tokens a row may have.

    This is the smaller of two limits: that of the configuration and that of the table of positions.
    """
    claimed = getattr(modules.backbone.config, "max_position_embeddings", None) or NO_LIMIT
    if claimed <= 0:  # XLNet, which has no limit, gives -1
        claimed = NO_LIMIT
    return min(claimed, _n_positions(modules.backbone) or NO_LIMIT)


def _n_positions(backbone: nn.Module) -> int | None:
    """Return how many tokens the table of absolute positions has room for; None without a table.

    In the RoBERTa family, tokens use only the rows behind that of the padding token.
    """
    packed = packed_backbone(backbone)
    if packed is not None:
        return packed.max_tokens
    for name, module in backbone.named_modules():
        if name.rpartition(".")[2] not in _POSITION_TABLES:
            continue
        table = getattr(module, "weight", None)
        if isinstance(table, Tensor) and table.ndim == 2:
            padding: int | None = getattr(module, "padding_idx", None)
            if padding is None:
                return len(table)
            return len(table) - padding - 1
    return None


@dataclass(frozen=True)
class KeptCheckpoint:
    """The weights of one training step: the model of a run, or a training state that it kept."""

    step: int
    path: Path
    is_model: bool


def kept_checkpoints(run_dir: Path) -> list[KeptCheckpoint]:
    """Return the checkpoints of a run in step order: its model, and the training states it kept.

    A training state that was saved at the step of the model is left out.
    """
    model = resolve_model(run_dir)
    record = read_run_record(run_dir)
    recorded_step = record.step if record.best_step is None else record.best_step
    facts = read_json(model / RECORD_FILE, dict[str, Any])
    model_step = checked(facts.get("step", recorded_step), int, f"{model / RECORD_FILE}: step")
    by_step: dict[int, KeptCheckpoint] = {}
    for path in kept_states(run_dir / "checkpoint"):
        step = step_of(path)
        by_step[step] = KeptCheckpoint(step, path, is_model=False)
    by_step[model_step] = KeptCheckpoint(model_step, model, is_model=True)
    return [by_step[step] for step in sorted(by_step)]


def load_state_weights(encoder: SentenceEncoder, state: Path) -> None:
    """Load the weights of a training state into the encoder of the run's model."""
    run_dir = state.parent.parent
    hint = f"remove the folder to go without it, or judge the model alone with --model {run_dir}"
    with foreign_format(state, "the weights of one step", error=CheckpointError, hint=hint):
        # The state names the part of the training module that holds the encoder.
        encoder_name = read_json(state / STATE_FILE)["served"]
        weights = tensors_below(f"module.{encoder_name}.", load_file(state / WEIGHTS_FILE))
        config = read_run_record(run_dir).config
        if rank := config.get("lora"):
            weights = merged_tensors(weights, config["lora_alpha"] / rank)
        encoder.load_state_dict({name: weights[name] for name in encoder.state_dict()})
