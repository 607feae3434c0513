"""Fused operators of a transformer layer for training on a CPU, compiled by numba.

This module describes the kernels without importing numba, which takes most of a second.
``operators`` holds the operators as autograd functions, ``compiled`` the code that numba compiles.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from simcse_cli.errors import reason_of

LANES = 16
"""Floats in one vector; widths of heads and layers are multiples of it."""
DRAWS_A_WORD = 4
"""The number of dropout draws, of 16 bits each, in one word of the random stream."""
NO_DROPOUT = -1
"""The threshold with which kernels drop nothing and draw no random number."""
GELU, GELU_TANH, RELU = range(3)
"""Numbers of the activations: GELU, its approximation by tanh, and max(x, 0)."""
NO_FOLDER = (
    "neither the folder of the package nor the user's cache folder can be written to keep them; "
    "export NUMBA_CACHE_DIR=FOLDER names another"
)
QueueWeightGradient = Callable[[Tensor, Tensor, Tensor], None]
"""A function that takes a weight ``(D_out, D_in)`` and the factors ``d_out`` and ``x``.

The gradient of the weight is ``d_out^T x``. The factors are multiplied later, perhaps by another
thread.
"""


def is_installed() -> bool:
    """Tell whether numba is installed."""
    return find_spec("numba") is not None


def load_operators() -> Any:
    """Import the compiled operators, and with them numba, on the first call; return the module."""
    return import_module("simcse_cli.packed.kernels.operators")


@cache
def why_not_loaded() -> str | None:
    """Return why the compiled operators cannot be used although numba is installed, or None."""
    try:
        load_operators()
    except RuntimeError:  # numba found no folder in which it could keep kernels
        return NO_FOLDER
    except ImportError as error:  # such as that of a NumPy newer than numba knows
        return f"numba cannot be imported: {reason_of(error)}"
    return None


def is_compiled() -> bool:
    """Tell whether the compiled kernels are on disk already."""
    return bool(load_operators().compiled.was_compiled())
