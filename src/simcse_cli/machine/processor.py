"""Facts about this machine, and the constants that are fastest on its processor."""

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from simcse_cli.files import system


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


Product = Literal["prepacked", "linear", "numpy"]
"""What multiplies matrices: oneDNN on weights in its layout, ``F.linear``, or NumPy's BLAS."""


class CpuConstants(NamedTuple):
    """The fastest choices on processors of one kind, measured by ``benchmarks/bench_constants.py``.

    Attributes:
        bf16: whether bfloat16 products take less time than float32 ones.
        inference_product: what multiplies by the float32 weights of a model, which can be put into
            another layout beforehand.
        product: what multiplies other float32 matrices, in compiled training and in searches.
        fused_from: the length in tokens from which PyTorch's fused attention replaces two batched
            products. Where it is never faster, this is 1,024: longer texts use it all the same,
            since its memory does not grow with the square of the length.
        batch_tokens: the tokens of a batch in inference, by the dtype of the products.
    """

    bf16: bool
    inference_product: Product
    product: Product
    fused_from: int
    batch_tokens: Mapping[torch.dtype, int]


_TOKENS = {torch.float32: 2048, torch.bfloat16: 2048, torch.int8: 1024}
CPU_CONSTANTS = {  # bf16, inference_product, product, fused_from, batch_tokens
    "amx": CpuConstants(True, "prepacked", "linear", 192, _TOKENS),
    "avx512_bf16": CpuConstants(True, "prepacked", "numpy", 192, _TOKENS),
    "avx512": CpuConstants(False, "prepacked", "linear", 1024, _TOKENS),
    "avx2": CpuConstants(False, "numpy", "numpy", 1024, _TOKENS),
    "avx2_intel": CpuConstants(False, "linear", "linear", 1024, _TOKENS | {torch.float32: 1024}),
    "other": CpuConstants(False, "linear", "linear", 192, _TOKENS),
}


@cache
def cpu_kind() -> str:
    """Return the key of ``CPU_CONSTANTS`` for the enabled instructions of this processor.

    Processors of AMD and Intel with the same instructions may need different constants:

    - Intel never gets the key ``avx512_bf16``. There, AVX-512 does half as much work in bfloat16 as
      in float32 in the same time. Processors with both also have AMX, and so get the key ``amx``,
      except in a virtual machine that hides AMX.
    - AMD never gets the key ``avx2_intel``. There, OpenBLAS (of NumPy) multiplies float32 faster
      than MKL (of ``F.linear``), and with AVX2 alone also faster than oneDNN.
    """
    if not (is_x86() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return "other"
    instructions = capability().split(", ")
    is_intel = "Intel" in _processor_name()
    if "amx" in instructions:
        return "amx"
    if "avx512_bf16" in instructions and not is_intel:
        return "avx512_bf16"
    if instructions[0] == "avx512":
        return "avx512"
    if is_intel:
        return "avx2_intel"
    return "avx2"


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory of this process: on the GPU if the device is one, else in RAM."""
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
    checks = {"avx512_bf16": "_is_avx512_bf16_supported", "amx": "_is_amx_tile_supported"}
    # An environment variable may forbid the bfloat16 instructions that the processor has.
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    instructions = [torch.backends.cpu.get_cpu_capability().lower()]
    for name, check in checks.items():
        # Some versions of PyTorch lack a check.
        if has_bf16 and getattr(torch.cpu, check, lambda: False)():
            instructions.append(name)
    return ", ".join(instructions)


@cache
def _processor_name() -> str:
    """Return the name of the processor if the system gives it, else its architecture."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
