"""Every question about devices: which one, in what precision, autocast, the state of its random numbers."""

import os
import platform
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simcse_cli.choices import Device, Precision
from simcse_cli.errors import ConfigError

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


def resolve_device(device: Device | str = Device.AUTO) -> torch.device:
    """Return the device to compute on; ``auto`` takes CUDA, then MPS, then the CPU.

    Of several GPUs each process takes the one of its ``LOCAL_RANK``, which launchers set; a single process
    takes the first.

    Raises:
        ConfigError: the device asked for is not there.
    """
    device = Device(device)
    available = {
        Device.CUDA: torch.cuda.is_available(),
        Device.MPS: torch.backends.mps.is_available(),
        Device.CPU: True,
    }
    if device is Device.AUTO:
        device = next(candidate for candidate, there in available.items() if there)
    elif not available[device]:
        raise ConfigError(
            f"--device {device}: not available on this machine", hint="use --device cpu, or auto"
        )
    if device is Device.CUDA:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device(device.value)


def has_fast_bf16(device: torch.device) -> bool:
    """Tell whether bfloat16 matrix products are faster than float32 ones on the device."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(getattr(torch.cpu, check, lambda: False)() for check in checks)
    return False


def resolve_precision(precision: Precision | str, device: torch.device) -> Precision:
    """Return the arithmetic to use; ``auto`` takes bf16 where it is fast, else fp32.

    Raises:
        ConfigError: fp16 without a GPU.
    """
    precision = Precision(precision)
    if precision is Precision.AUTO:
        return Precision.BF16 if has_fast_bf16(device) else Precision.FP32
    if precision is Precision.FP16 and device.type == "cpu":
        raise ConfigError("--precision fp16 needs a GPU", hint="use --precision bf16 or fp32 on a CPU")
    return precision


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory used so far: of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def hardware(device: torch.device) -> dict[str, Any]:
    """Return what the machine computes with: processor, cores and memory; GPUs where one is used."""
    facts = {
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    if device.type == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(device), "gpus": torch.cuda.device_count()}
    return facts


def _processor_name() -> str:
    """Return the model's name where the system tells it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def no_autocast(device: torch.device) -> torch.autocast:
    """Return a context in which operations keep the dtype of their inputs."""
    return torch.autocast(device.type, enabled=False)


@dataclass(frozen=True)
class RngState:
    """State of PyTorch's random generators on the CPU and one CUDA device; restored, dropout masks repeat."""

    cpu: Tensor
    cuda: Tensor | None

    @classmethod
    def of(cls, device: torch.device) -> "RngState":
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), cuda)

    def restore(self, device: torch.device) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)
