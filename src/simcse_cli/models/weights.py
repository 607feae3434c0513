"""Read tensors from the files of a model folder; safetensors, or a legacy file through the weights-only loader."""

from pathlib import Path

import torch
from torch import Tensor

from simcse_cli.errors import CheckpointError


def read_tensors(folder: Path, prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with ``prefix``, the prefix removed; safetensors, or a weights-only .bin."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as stream:
                names = [name for name in stream.keys() if name.startswith(prefix)]  # noqa: SIM118 - no mapping
                found |= {name[len(prefix) :]: stream.get_tensor(name) for name in names}
        except SafetensorError as error:
            raise CheckpointError(f"{path} is corrupt ({error})", hint="copy or download it again") from error
    if not found:
        for path in sorted(folder.glob("pytorch_model*.bin")):
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            found |= {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
    return found
