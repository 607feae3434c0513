"""Devices: their choice, precision, autocast, and the state of their random numbers."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.files import system
from simcse_cli.machine.processes import process_count
from simcse_cli.settings.choices import Device, Precision
from simcse_cli.settings.config import DEVICE_FORM

DTYPES = {
    Precision.FP32: torch.float32,
    Precision.TF32: torch.float32,
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
    Precision.INT8: torch.int8,
}


def resolve_device(device: str = Device.AUTO) -> torch.device:
    """Return the device to compute on; ``auto`` takes CUDA, then MPS, then the CPU.

    ``cuda:N`` is the GPU of this number. Otherwise each process takes that of its ``LOCAL_RANK``,
    which launchers set.
    """
    asked = str(device)
    name, _, number = asked.partition(":")
    if re.fullmatch(DEVICE_FORM[0], asked) is None:
        raise UsageError(f"{asked!r}; need {DEVICE_FORM[1]}", option="--device")
    device = Device(name)
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    available = {Device.CUDA: has_cuda, Device.MPS: has_mps, Device.CPU: True}
    if device is Device.AUTO:
        device = next(candidate for candidate, there in available.items() if there)
    elif not available[device]:
        what = f"--device {asked}: not available on this machine"
        raise ConfigError(what, hint="use --device cpu, or auto")
    if number and int(number) >= torch.cuda.device_count():
        n_gpus = torch.cuda.device_count()
        counted = "1 GPU" if n_gpus == 1 else f"{n_gpus} GPUs"
        what = f"--device cuda:{number}: this machine has {counted}, counted from 0"
        raise ConfigError(what, hint=f"use --device cuda:{n_gpus - 1}, or cuda")
    if number and process_count() > 1:
        what = f"--device cuda:{number}: each of several processes takes a GPU of its own"
        raise ConfigError(what, hint="use --device cuda")
    if number:
        return torch.device("cuda", int(number))
    if device is Device.CUDA:
        return torch.device(
            "cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        )
    return torch.device(device.value)


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


Product = Literal["prepacked", "linear", "numpy"]
"""What multiplies: oneDNN on weights in its own layout, ``F.linear``, or NumPy's BLAS (OpenBLAS in its packages)."""


class CpuConstants(NamedTuple):
    """What is fastest on processors of one kind, as ``benchmarks/bench_constants.py`` finds it.

    Attributes:
        bf16: whether bfloat16 products take less time than float32 ones.
        inference_product: what multiplies by the weights of a model in float32, which it may
            arrange beforehand.
        product: what multiplies other float32 matrices, in compiled training and in searches.
        fused_from: the length of text from which PyTorch's fused attention takes the place of two
            batched products; 1,024 where it is never faster, since its memory does not grow with
            the square of the length.
        batch_tokens: the tokens of a batch in inference, for each arithmetic of products.
    """

    bf16: bool
    inference_product: Product
    product: Product
    fused_from: int
    batch_tokens: Mapping[torch.dtype, int]


_TOKENS = {torch.float32: 2048, torch.bfloat16: 2048, torch.int8: 1024}
CPU_CONSTANTS = {
    "amx": CpuConstants(True, "prepacked", "linear", 192, _TOKENS),
    "avx512_bf16": CpuConstants(True, "prepacked", "numpy", 192, _TOKENS),
    "avx512": CpuConstants(False, "prepacked", "linear", 1024, _TOKENS),
    "avx2": CpuConstants(False, "numpy", "numpy", 1024, _TOKENS),
    "avx2_intel": CpuConstants(False, "linear", "linear", 1024, _TOKENS | {torch.float32: 1024}),
    "other": CpuConstants(False, "linear", "linear", 192, _TOKENS),
}


@cache
def cpu_kind() -> str:
    """Return the key of ``CPU_CONSTANTS`` for this processor, as far as its instructions are not switched off.

    ``avx512_bf16`` are AMD's processors: for Intel's, bfloat16 instructions do half of the work of
    float32 ones in the same time, and they have AMX instead (not in every virtual machine). On
    AMD's, OpenBLAS multiplies float32 faster than MKL, and with AVX2 alone faster than oneDNN.
    """
    if not (is_x86() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return "other"
    found, is_intel = capability().split(", "), "Intel" in _processor_name()
    if "amx" in found:
        return "amx"
    if "avx512_bf16" in found and not is_intel:
        return "avx512_bf16"
    if found[0] == "avx512":
        return "avx512"
    return "avx2_intel" if is_intel else "avx2"


def has_fast_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and CPU_CONSTANTS[cpu_kind()].bf16


def resolve_precision(precision: Precision | str, device: torch.device) -> Precision:
    """Return the arithmetic to use; ``auto`` takes bf16 where it is fast, else fp32."""
    precision = Precision(precision)
    if precision is Precision.AUTO:
        return Precision.BF16 if has_fast_bf16(device) else Precision.FP32
    if precision is Precision.FP16 and device.type == "cpu":
        raise ConfigError(
            "--precision fp16 needs a GPU", hint="use --precision bf16 or fp32 on a CPU"
        )
    if precision is Precision.TF32 and device.type != "cuda":
        what = f"--precision tf32 is arithmetic of NVIDIA GPUs, this is {device.type}"
        raise ConfigError(what, hint="use --precision fp32")
    if precision is Precision.INT8 and not (device.type == "cpu" and is_x86()):
        raise ConfigError(
            "--precision int8 needs an x86 processor", hint="use --precision bf16 or fp32"
        )
    return precision


def set_float32_products(precision: Precision, device: torch.device) -> None:
    """Let float32 products and convolutions on a GPU round to TF32, as PyTorch's convolutions do, only for tf32."""
    if device.type == "cuda":
        is_rounded = precision is Precision.TF32
        torch.set_float32_matmul_precision("high" if is_rounded else "highest")
        torch.backends.cudnn.allow_tf32 = is_rounded


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return system.peak_process_bytes()


def hardware(device: torch.device) -> dict[str, Any]:
    facts = {
        "processor": _processor_name(),
        "capability": capability(),
        "cores": os.cpu_count(),
        "memory_bytes": system.memory_bytes(),
    }
    if device.type == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(device), "gpus": torch.cuda.device_count()}
    return facts


def capability() -> str:
    """Return the instructions that PyTorch uses, such as ``avx512, avx512_bf16, amx``."""
    named = {"avx512_bf16": "_is_avx512_bf16_supported", "amx": "_is_amx_tile_supported"}
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # not where oneDNN is told to leave it
    found = (
        name
        for name, check in named.items()
        if has_bf16 and getattr(torch.cpu, check, lambda: False)()
    )
    return ", ".join((torch.backends.cpu.get_cpu_capability().lower(), *found))


@cache
def _processor_name() -> str:
    """Return the name of the processor if the system gives it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def no_autocast(device: torch.device) -> torch.autocast:
    """Return a context in which operations keep the dtype of their inputs."""
    return torch.autocast(device.type, enabled=False)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU to a device, without waiting for a GPU."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class HostCopy:
    """A tensor being copied to the CPU while a GPU continues with later work."""

    def __init__(self, tensor: Tensor) -> None:
        self._arrival: Any = torch.cuda.Event() if tensor.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self._arrival is None:
            self._copy = tensor.cpu()
        else:
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._copy.copy_(tensor, non_blocking=True)
            # By default, an event waits for the current GPU, which may be another one.
            self._arrival.record(torch.cuda.current_stream(tensor.device))

    def arrived(self) -> Tensor:
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._copy


def has_rng_state(device: torch.device) -> bool:
    """Tell whether ``RngState`` covers the generator of dropout masks on the device."""
    return device.type in ("cpu", "cuda")


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
