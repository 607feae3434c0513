"""Add LoRA adapters to an encoder, save them alone, and merge them into its weights.

The library PEFT does this (extra ``peft``).

An adapter folder holds ``adapter_config.json``, which names the base model, and the adapter's
weights alone.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from simcse_cli.errors import CheckpointError, require_extra
from simcse_cli.files.atomic import write_json
from simcse_cli.files.schema import foreign_format
from simcse_cli.models.resolve import ADAPTER_FILE

ADAPTER_WEIGHTS = "adapter_model.safetensors"
_OWN_POOLER = r"pooler(\..*)?"  # names of the architecture's own pooler and of modules in it
_PREFIX = "base_model.model."  # starts every name in an adapter file of PEFT and transformers


def _peft() -> ModuleType:
    require_extra("peft", "a LoRA adapter")
    import peft

    return peft


def add_lora(
    backbone: nn.Module, rank: int, alpha: float, *, base: str, revision: str | None = None
) -> None:
    """Freeze a transformer and add LoRA to all its linear layers, except those of its own pooler.

    Source: Hu et al. 2022. Each weight W, ``(D_out, D_in)``, becomes

        W + alpha / rank * B A

    with A ``(rank, D_in)`` and B ``(D_out, rank)``. A is drawn from the global generator. B starts
    at zero, so the outputs of the model are unchanged at first.
    """
    peft = _peft()
    # No sentence vector passes through the architecture's own pooler, so it needs no adapter.
    has_own_pooler = getattr(backbone, "pooler", None) is not None
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules="all-linear",
        exclude_modules=_OWN_POOLER if has_own_pooler else None,
        base_model_name_or_path=base,
        revision=revision,
    )
    peft.inject_adapter_in_model(config, backbone)


def merged_tensors(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return the tensors of a model under their plain names.

    A weight W with LoRA is replaced by ``W + scale * B A``. PEFT keeps W as
    ``NAME.base_layer.weight``, A (down) as ``NAME.lora_A...``, and B (up) as ``NAME.lora_B...``.
    """
    merged: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".base_layer.")
        if stem and part == "weight":
            down = tensors[f"{stem}.lora_A.default.weight"]
            up = tensors[f"{stem}.lora_B.default.weight"]
            merged[f"{stem}.weight"] = torch.addmm(tensor, up, down, alpha=scale)
        elif stem:  # the bias of a layer with LoRA
            merged[f"{stem}.{part}"] = tensor
        elif ".lora_" not in name:
            merged[name] = tensor
    return merged


def plain_weights(backbone: nn.Module) -> dict[str, Tensor] | None:
    """Return the weights of a transformer with its LoRA merged, or None if it has no LoRA."""
    config = _lora_config(backbone)
    if config is None:
        return None
    return merged_tensors(backbone.state_dict(), config.lora_alpha / config.r)


def _lora_config(backbone: Any) -> Any:
    return getattr(backbone, "peft_config", {}).get("default")


def save_adapter(backbone: nn.Module, folder: Path) -> None:
    """Write the adapter of a transformer in PEFT's format, without a model card."""
    config = _lora_config(backbone)
    # PEFT shortens a long list of layers to patterns. Whoever loads the file and follows these
    # patterns would also adapt the architecture's own pooler, so the file excludes it.
    entries = config.to_dict() | {"inference_mode": True, "exclude_modules": _OWN_POOLER}
    for name, entry in entries.items():
        if isinstance(entry, set):  # JSON has no sets
            entries[name] = sorted(entry)
    write_json(folder / ADAPTER_FILE, entries)
    state = _peft().get_peft_model_state_dict(backbone, save_embedding_layers=False)
    tensors = {_PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def merge_adapter(backbone: nn.Module, folder: Path, base: str) -> nn.Module:
    """Return a transformer with the adapter of a folder merged into its weights.

    ``base`` is the name that the adapter gives to its base model, for messages.
    """
    merged: nn.Module = put_adapter(backbone, folder, base).merge_and_unload()
    if isinstance(merged, _LargerModel):
        merged = merged.backbone
    return merged.requires_grad_()  # PEFT has frozen the weights


class _LargerModel(nn.Module):
    """A model that holds the transformer under the name that models with a head give it: ``bert``.

    If an adapter was made for a model with a head, all names in it begin with this name.
    """

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.config = backbone.config
        self.name = backbone.base_model_prefix
        self.add_module(self.name, backbone)

    @property
    def backbone(self) -> nn.Module:
        return self.get_submodule(self.name)

    def forward(self, **inputs: Any) -> Any:
        return self.backbone(**inputs)


def put_adapter(backbone: Any, folder: Path, base: str) -> Any:
    """Return a transformer as a model of PEFT that applies the adapter of a folder, unmerged.

    ``base`` is the name that the adapter gives to its base model, for messages. If the adapter was
    made for a larger model, such as a masked language model, its weights for the head are left out.
    """
    peft = _peft()
    if not any((folder / name).is_file() for name in (ADAPTER_WEIGHTS, "adapter_model.bin")):
        raise CheckpointError(
            f"{folder} holds no {ADAPTER_WEIGHTS}", hint="copy or download the adapter again"
        )
    with foreign_format(folder, "a LoRA adapter", error=CheckpointError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # missing weights are an error here, not a warning
        weights = peft.load_peft_weights(str(folder), device="cpu", local_files_only=True)
        model = backbone
        prefix = f"{_PREFIX}{backbone.base_model_prefix}."
        if any(name.startswith(prefix) for name in weights):
            model = _LargerModel(backbone)
            weights = {name: w for name, w in weights.items() if name.startswith(prefix)}
        if misfit := _first_misfit(weights, model):
            raise _other_base(folder, base, misfit)
        # The settings may name layers by patterns, which also fit the architecture's own pooler.
        # PEFT sees the pooler only if the adapter has weights for it.
        own_pooler = getattr(backbone, "pooler", None)
        if own_pooler is not None and not any(".pooler." in name for name in weights):
            backbone.pooler = None
        adapted = peft.PeftModel.from_pretrained(
            model, str(folder), torch_device="cpu", low_cpu_mem_usage=True, local_files_only=True
        )
        if not hasattr(adapted, "merge_and_unload"):
            raise ValueError(f"{adapted.peft_type} changes no weights, so it cannot be merged")
        # PEFT itself ignores weights that fit no layer, and leaves missing ones on the meta device.
        incompatible = peft.set_peft_model_state_dict(adapted, weights)
        missing = [name for name, weight in adapted.named_parameters() if weight.is_meta]
        unfit = [*incompatible.unexpected_keys, *missing]
        if unfit:
            raise _other_base(folder, base, unfit[0])
        if own_pooler is not None and backbone.pooler is None:
            backbone.pooler = own_pooler
    return adapted


def _first_misfit(weights: Mapping[str, Tensor], model: nn.Module) -> str | None:
    """Describe the first LoRA weight that fits no layer by name or size; None if all weights fit.

    PEFT, too, would refuse most of these weights, but would not name them.
    """
    layers = dict(model.named_modules())
    for name, weight in weights.items():
        layer_name, is_lora, part = name.removeprefix(_PREFIX).partition(".lora_")
        if not is_lora:
            continue
        if layer_name not in layers:
            return f"{name}, of no layer there"
        layer = layers[layer_name]
        if not isinstance(layer, nn.Linear):
            continue
        # A maps the inputs of the layer to the rank, and B the rank to its outputs.
        if part == "A.weight" and weight.shape[-1] != layer.in_features:
            return f"{name} with {weight.shape[-1]} inputs, need {layer.in_features}"
        if part == "B.weight" and weight.shape[0] != layer.out_features:
            return f"{name} with {weight.shape[0]} outputs, need {layer.out_features}"
    return None


def _other_base(folder: Path, base: str, misfit: str) -> CheckpointError:
    return CheckpointError(
        f"{folder}: the weights of the adapter do not fit its base model {base} (first: {misfit})",
        hint=f"correct base_model_name_or_path in {folder / ADAPTER_FILE}, or copy or download the "
        "adapter again",
    )
