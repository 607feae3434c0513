"""The device to compute on."""

import os
import re

import torch

from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.machine.processes import process_count
from simcse_cli.settings.choices import Device
from simcse_cli.settings.config import DEVICE_FORM


def resolve_device(device: str = Device.AUTO) -> torch.device:
    """Return the device to compute on; ``auto`` takes CUDA, then MPS, then the CPU.

    ``cuda:N`` is GPU number N. Without a number, ``LOCAL_RANK``, a variable that launchers set,
    says which GPU a process takes.
    """
    # Check the form of the name first, since ``Device`` raises a plain ValueError.
    asked = str(device)
    name, _, number = asked.partition(":")
    pattern, needed = DEVICE_FORM
    if re.fullmatch(pattern, asked) is None:
        raise UsageError(f"{asked!r}; need {needed}", option="--device")
    device = Device(name)

    # The machine must have such a device.
    available = {
        Device.CUDA: torch.cuda.is_available(),
        Device.MPS: torch.backends.mps.is_available(),
        Device.CPU: True,
    }
    if device is Device.AUTO:
        device = next(candidate for candidate, is_there in available.items() if is_there)
    elif not available[device]:
        raise ConfigError(
            f"--device {asked}: not available on this machine", hint="use --device cpu, or auto"
        )

    # The GPU of a given number must exist. Several processes cannot share it.
    if number:
        n_gpus = torch.cuda.device_count()
        if int(number) >= n_gpus:
            counted = "1 GPU" if n_gpus == 1 else f"{n_gpus} GPUs"
            raise ConfigError(
                f"--device {asked}: this machine has {counted}, counted from 0",
                hint=f"use --device cuda:{n_gpus - 1}, or cuda",
            )
        if process_count() > 1:
            raise ConfigError(
                f"--device {asked}: each of several processes takes a GPU of its own",
                hint="use --device cuda",
            )
        return torch.device("cuda", int(number))

    # Without a number, the processes of this machine are spread over its GPUs.
    if device is Device.CUDA:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device(device.value)
