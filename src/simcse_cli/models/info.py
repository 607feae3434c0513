"""``simcse --info``: what a bug report should say about the program and the machine."""

import json
import os
import platform
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.constants import HF_HUB_CACHE

from simcse_cli.errors import EXTRAS, is_binary
from simcse_cli.files.system import default_cache_dir
from simcse_cli.machine.devices import resolve_device
from simcse_cli.machine.precision import has_fast_bf16, resolve_precision
from simcse_cli.machine.processor import cpu_kind, hardware
from simcse_cli.packed import kernels
from simcse_cli.packed.products import product_in
from simcse_cli.results.runs import versions
from simcse_cli.settings.choices import Precision

_PRODUCTS = {"prepacked": "prepacked (oneDNN)", "linear": "PyTorch's", "numpy": "NumPy's"}


def program_and_machine() -> dict[str, Any]:
    """Return facts about the program and the machine.

    The facts are versions, hardware, the arithmetic used here and why, extras, and caches with
    their sizes in bytes. ``constants_of`` is the kind of processor whose ``CPU_CONSTANTS`` apply.
    """
    device = resolve_device()
    fast = "faster than float32 here"
    if not has_fast_bf16(device):
        fast = f"not {fast}"

    return {
        "versions": versions(),
        "installed_as": "binary" if is_binary() else str(Path(__file__).parents[1]),
        "system": platform.platform(),
        "device": str(device),
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "precision_auto": f"{resolve_precision(Precision.AUTO, device)} (bfloat16 is {fast})",
        "constants_of": cpu_kind(),
        "products": {
            "float32": _PRODUCTS[product_in(device, torch.float32)],
            "bfloat16": _PRODUCTS[product_in(device, torch.bfloat16)],
        },
        "training_kernels": _kernels(),
        "extras": {module: find_spec(module) is not None for module in EXTRAS},
        "caches": {"simcse": _cache(default_cache_dir()), "hub": _cache(Path(HF_HUB_CACHE))},
    }


def _kernels() -> str:
    if not kernels.is_installed():
        return "not installed (numba is missing)"
    if reason := kernels.why_not_loaded():
        return f"not used: {reason}"
    return "compiled" if kernels.is_compiled() else "compiled at the first training"


def _cache(folder: Path) -> dict[str, Any]:
    """Return a folder and the bytes of the files below it; links are not followed."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # removed meanwhile by the program that keeps it
                size += os.lstat(Path(parent, name)).st_size
    return {"folder": str(folder), "bytes": size}


def as_text(facts: dict[str, Any]) -> str:
    """Return facts in aligned lines, one block to paste into a report."""
    return "".join(f"{name.replace('_', ' '):<18}{_line(value)}\n" for name, value in facts.items())


def as_json(facts: dict[str, Any]) -> str:
    return json.dumps(facts, indent=2) + "\n"


def _line(value: Any) -> str:
    """Return the value of one fact as text; for a dict of booleans, the names that are true."""
    if not isinstance(value, dict):
        return str(value)
    if value and all(isinstance(item, bool) for item in value.values()):
        return ", ".join(name for name, is_true in value.items() if is_true) or "none"
    if value and all(isinstance(item, dict) for item in value.values()):  # caches
        shown = [f"{item['folder']} ({item['bytes'] / 1e6:,.0f} MB)" for item in value.values()]
        return "; ".join(shown)
    return ", ".join(f"{name.replace('_', ' ')} {item}" for name, item in value.items())
