"""The precision of arithmetic: which one to use, and how to switch it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from simcse_cli.errors import ConfigError
from simcse_cli.machine.processor import CPU_CONSTANTS, cpu_kind, is_x86
from simcse_cli.settings.choices import Precision

DTYPES = {
    Precision.FP32: torch.float32,
    Precision.TF32: torch.float32,
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
    Precision.INT8: torch.int8,
}


def has_fast_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and CPU_CONSTANTS[cpu_kind()].bf16


def resolve_precision(precision: Precision | str, device: torch.device) -> Precision:
    """Return the precision to use; ``auto`` stands for bf16 if the device is fast at it, else fp32.

    Raise ConfigError for a precision that the device does not have.
    """
    precision = Precision(precision)
    if precision is Precision.AUTO:
        return Precision.BF16 if has_fast_bf16(device) else Precision.FP32

    if precision is Precision.FP16 and device.type == "cpu":
        raise ConfigError(
            "--precision fp16 needs a GPU", hint="use --precision bf16 or fp32 on a CPU"
        )
    if precision is Precision.TF32 and device.type != "cuda":
        raise ConfigError(
            f"--precision tf32 is arithmetic of NVIDIA GPUs, this is {device.type}",
            hint="use --precision fp32",
        )
    if precision is Precision.INT8 and not (device.type == "cpu" and is_x86()):
        raise ConfigError(
            "--precision int8 needs an x86 processor", hint="use --precision bf16 or fp32"
        )
    return precision


def set_float32_products(precision: Precision, device: torch.device) -> None:
    """Let a GPU round float32 products and convolutions to TF32 if the precision is tf32, else not.

    On other devices nothing changes.
    """
    if device.type == "cuda":
        is_rounded = precision is Precision.TF32
        torch.set_float32_matmul_precision("high" if is_rounded else "highest")
        torch.backends.cudnn.allow_tf32 = is_rounded


def no_autocast(device: torch.device) -> torch.autocast:
    """Return a context in which operations keep the dtype of their inputs."""
    return torch.autocast(device.type, enabled=False)


@contextmanager
def training_modes(device: torch.device) -> Iterator[None]:
    """Switch gradients on and autocast off, whatever the code around has set."""
    with torch.inference_mode(False), torch.enable_grad(), no_autocast(device):
        yield


def wide(values: Tensor) -> Tensor:
    """Return values in float32; float64 stays as it is."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
