"""Load encoders; nothing about them is silently random."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from simcse_cli.errors import CheckpointError
from simcse_cli.files.schema import foreign_format
from simcse_cli.machine.devices import (
    DTYPES,
    has_fast_bf16,
    resolve_device,
    resolve_precision,
    set_float32_products,
)
from simcse_cli.models.adapters import base_folder, merge_adapter
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.fast_load import plain_backbone, plain_tokenizer, read_tensors
from simcse_cli.models.heads import MlpHead, TokenCnn
from simcse_cli.models.poolers import POOLERS
from simcse_cli.models.pretrained import check_folder, load_backbone, load_tokenizer
from simcse_cli.models.record import ModelRecord, has_record, read_record
from simcse_cli.models.resolve import resolve_model
from simcse_cli.progress import Progress, SilentProgress
from simcse_cli.settings.choices import Device, HeadUse, Pooler, Precision
from simcse_cli.settings.config import LoadOptions, pinned


def detach_pooler(backbone: nn.Module) -> nn.Module | None:
    """Take the architecture's own pooler off the transformer, so that no forward pass computes it."""
    pooler = getattr(backbone, "pooler", None)
    if isinstance(pooler, nn.Module) and isinstance(getattr(pooler, "dense", None), nn.Linear):
        backbone.pooler = None  # type: ignore[assignment]
        return pooler
    return None


def _load_head(
    folder: Path, record: ModelRecord, own_pooler: nn.Module | None, missing: set[str], width: int
) -> MlpHead | None:
    """Return the head that the files hold: a Dense module, an unconverted SimCSE ``mlp``, or the own pooler."""
    if record.head_folder is not None:
        tensors, tanh = read_tensors(folder / record.head_folder, "linear."), record.head_tanh
    else:
        tensors, tanh = read_tensors(folder, "mlp.dense."), True
        own_is_random = any(name.startswith("pooler.") for name in missing)
        if not tensors and own_pooler is not None and not own_is_random:
            tensors = {k.removeprefix("dense."): v for k, v in own_pooler.state_dict().items()}
    if "weight" not in tensors:
        return None
    with foreign_format(folder, f"a head over vectors of width {width}", error=CheckpointError):
        out_dim, in_dim = tensors["weight"].shape
        if in_dim != width:
            raise ValueError(f"its head takes vectors of width {in_dim}")
        head = MlpHead(in_dim, out_dim=out_dim, bias="bias" in tensors, tanh=tanh)
        head.dense.load_state_dict({k: v.float() for k, v in tensors.items()})
    return head


def _load_cnn(folder: Path, width: int) -> TokenCnn:
    """Return the convolutions saved in a folder; their weights give their sizes."""
    weights = read_tensors(folder, "convs.")
    if not weights:
        raise CheckpointError(f"{folder} holds no convolutions", hint="copy or download the model again")
    with foreign_format(folder, f"convolutions over states of width {width}", error=CheckpointError):
        shapes = [tuple(weights[f"{i}.weight"].shape) for i in range(len(weights) // 2)]
        n_channels, dim, _ = shapes[0]
        if dim != width:
            raise ValueError(f"its convolutions are over states of width {dim}")
        cnn = TokenCnn(dim, n_channels, tuple(size for _, _, size in shapes))
        cnn.convolutions.load_state_dict(weights)
    return cnn


def _choose_pooler(
    name: str, record: ModelRecord, asked: Pooler | None, force: bool, is_simcse: bool, progress: Progress
) -> Pooler:
    if asked is not None:
        if record.pooler not in (None, asked) and not force:
            raise CheckpointError(
                f"{name} records --pooler {record.pooler} in {record.origin}, not {asked}",
                hint=f"leave --pooler out, or use {asked} all the same with --force-pooler",
            )
        return asked
    if record.pooler is not None:
        return record.pooler
    if is_simcse:
        raise CheckpointError(
            f"{name} is a SimCSE checkpoint that does not say how it was trained",
            hint="add --pooler cls for a supervised model, --pooler cls_before_pooler for an unsupervised one",
        )
    progress.info(f"{name} records no pooler; using avg (choose with --pooler)")
    return Pooler.AVG


def load_encoder(
    name: str | Path,
    *,
    pooler: Pooler | str | None = None,
    device: Device | str = Device.AUTO,
    precision: Precision | str = Precision.FP32,
    force_pooler: bool = False,
    dropout: float | None = None,
    encode_only: bool = False,
    progress: Progress | None = None,
) -> SentenceEncoder:
    """Return an encoder in evaluation mode.

    Args:
        name: run folder, Hugging Face or sentence-transformers folder, SimCSE checkpoint, adapter folder (merged into
            its base model), Hub name (``NAME@REVISION`` for another than the newest) or alias.
        pooler: default is what the model records.
        device: where to put it.
        precision: arithmetic of the transformer; pooling and head stay float32.
        force_pooler: accept a pooler that contradicts the record, and a head drawn at random.
        dropout: probability for every dropout of the transformer; default is the checkpoint's.
        encode_only: the encoder will do nothing but ``encode``; where a folder allows it, it is opened without
            the modelling code of transformers, which takes seconds to import. Vectors are the same.
        progress: gets remarks, such as which pooler was chosen.

    Raises:
        CheckpointError: not found, corrupt, incomplete, or the pooler is refused.
        ConfigError: device or precision is not available.
    """
    progress = progress or SilentProgress()
    target = resolve_device(device)
    precision = resolve_precision(precision, target)
    dtype = DTYPES[precision]
    set_float32_products(precision, target)
    named = resolve_model(name, progress)
    check_folder(named)
    base = base_folder(named, progress)
    is_adapter = base != named
    if is_adapter:
        check_folder(base)
    record = read_record(named, str(name))
    folder = named if has_record(named) else base
    only_packed = (
        encode_only
        and not is_adapter
        and target.type == "cpu"
        and dropout is None
        and record.cnn_folder is None
    )
    backbone: Any = plain_backbone(folder) if only_packed else None
    tokenizer = plain_tokenizer(folder) if backbone is not None else None
    missing: set[str] = set()
    if backbone is None:
        backbone, missing = load_backbone(base, dropout=dropout)
    random_weights = sorted(key for key in missing if not key.startswith("pooler."))
    if random_weights:
        raise CheckpointError(
            f"{base} lacks {len(random_weights)} weights (first: {random_weights[0]}); they would be random",
            hint="give a checkpoint of the whole encoder",
        )
    own_pooler = detach_pooler(backbone)
    if is_adapter:
        backbone = merge_adapter(backbone, named)
    is_simcse = record.pooler is None and bool(read_tensors(folder, "mlp.dense."))
    chosen = _choose_pooler(
        str(name), record, Pooler(pooler) if pooler else None, force_pooler, is_simcse, progress
    )
    head, token_cnn, width = None, None, backbone.config.hidden_size
    if record.cnn_folder is not None:
        token_cnn = _load_cnn(folder / record.cnn_folder, width)
        width = token_cnn.dim
    if POOLERS[chosen].has_head or (record.pooler is chosen and record.head_use is HeadUse.KEPT):
        head = _load_head(folder, record, own_pooler, missing, width)
        if head is None:
            if not force_pooler:
                raise CheckpointError(
                    f"{name} holds no weights for the head that --pooler {chosen} needs; they would be random",
                    hint="use --pooler cls_before_pooler or avg, or accept a random head with --force-pooler",
                )
            progress.warn(f"the head of {name} is random: its weights are not in the checkpoint")
            head = MlpHead(backbone.config.hidden_size)
    encoder = SentenceEncoder(
        backbone,
        tokenizer or load_tokenizer(named if (named / "tokenizer_config.json").is_file() else base),
        pooler=chosen,
        head=head,
        head_use=HeadUse.KEPT if head is not None else HeadUse.NONE,
        normalize=record.normalize,
        max_length=_max_length(backbone.config, record),
        name=str(name),
    )
    encoder.token_cnn = token_cnn
    encoder.prompts, encoder.default_prompt = dict(record.prompts), record.default_prompt
    encoder.include_prompt = record.include_prompt
    encoder.similarity, encoder.folder = record.similarity, folder
    _check_finite(encoder, named)
    encoder.to(target).eval()
    if dtype is not torch.float32:
        encoder.compute_in(dtype)
    return encoder


def _check_finite(encoder: SentenceEncoder, folder: Path) -> None:
    for name, weight in encoder.named_parameters():
        # A sum is twice as fast; it may overflow where every value is finite.
        if not (weight.sum().isfinite() or weight.isfinite().all()):
            raise CheckpointError(
                f"{folder}: the weights {name} are not finite",
                hint="its training has diverged or the file is damaged: copy or download it again",
            )


def load_for_encoding(name: str, options: LoadOptions, progress: Progress) -> SentenceEncoder:
    """Return an encoder that will only encode, as the options say; hints where bfloat16 would be faster."""
    name = pinned(name, options.revision)
    encoder = load_encoder(
        name,
        pooler=options.pooler,
        device=options.device,
        precision=options.precision,
        force_pooler=options.force_pooler,
        encode_only=True,
        progress=progress,
    )
    encoder.vary(prompt=options.prompt, truncate_dim=options.truncate_dim, long=options.long)
    if options.precision is Precision.FP32 and has_fast_bf16(encoder.device):
        progress.hint("--precision bf16 would be 1.5 to 2 times faster here (cosine to fp32 0.9998)")
    if (
        options.precision is Precision.BF16
        and encoder.device.type == "cpu"
        and not has_fast_bf16(encoder.device)
    ):
        progress.hint(
            "this processor has no bfloat16 arithmetic: --precision bf16 gains nothing, fp32 is exact"
        )
    progress.detail(
        f"{name}: pooler {encoder.pooler}, {encoder.dim} dimensions, {encoder.device}, {options.precision}"
    )
    return encoder


def _max_length(config: Any, record: ModelRecord) -> int:
    positions = int(getattr(config, "max_position_embeddings", 512) or 512)
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet"):
        positions -= 2  # the first positions are reserved for padding
    return min(positions, record.max_length or positions)
