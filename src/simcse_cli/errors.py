"""One tree of errors a user can act on; the command line prints message and hint and exits with 1.

::

    SimcseError
    ├── ConfigError         settings: unknown key, contradiction, bad value
    ├── UsageError          an option that another one excludes or needs (exit code 2)
    ├── DataError           input files: place, found, needed
    ├── OutputError         output files: exists, not writable, disk full
    ├── CheckpointError     models: not found, corrupt, pooler refused
    ├── TrainingError       a run that cannot go on: NaN loss, nothing to resume
    ├── ContactError        processes that work together: another one has ended
    ├── ToleranceError      `compare --check`: scores too far from the reference (exit code 3)
    └── MissingExtraError   an optional dependency is not installed
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

INTERRUPTED = 130
"""Exit code of a command that was stopped and kept what it could."""


@contextmanager
def kept_on_interrupt(say: Callable[[], str]) -> Iterator[None]:
    """Let Ctrl-C inside tell the user what is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(say())
        raise


class SimcseError(Exception):
    """An error with a message (place, found, needed) and a hint (the command or flag that helps)."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(SimcseError):
    """Settings are unknown, contradict each other or have an impossible value."""


class UsageError(SimcseError):
    """An option has a value that it cannot have beside the others; ``option`` is the flag."""

    exit_code = 2

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class DataError(SimcseError):
    """An input file is missing, empty, in the wrong encoding or of the wrong shape."""


class OutputError(SimcseError):
    """An output file exists already or cannot be written."""


class CheckpointError(SimcseError):
    """A model cannot be found, read or used with the pooler asked for."""


class TrainingError(SimcseError):
    """A training run cannot start or go on."""


class ContactError(SimcseError):
    """Another of the processes that work together has ended."""


class ToleranceError(SimcseError):
    """A comparison asked for with ``--check`` found scores outside the tolerance."""

    exit_code = 3


class MissingExtraError(SimcseError):
    """An optional dependency is needed; the message names the extra that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package}: {how_to_install(extra)}")


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra; the binary cannot have one, which it says."""
    command = f"pip install 'simcse-cli[{extra}]'"
    is_binary = Path(
        sys.prefix, "unpack.py"
    ).is_file()  # in the folder that it unpacks; see tools/binary/build.py
    return f"the binary has no such extra; install with pip instead: {command}" if is_binary else command


# Import name -> the package, and the extra that installs it.
_EXTRAS = {
    "faiss": ("faiss-cpu", "faiss"),
    "matplotlib": ("matplotlib", "plot"),
    "mlflow": ("mlflow", "mlflow"),
    "mteb": ("mteb", "mteb"),
    "onnx": ("onnx", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "openvino"),
    "optuna": ("optuna", "search"),
    "peft": ("peft", "peft"),
    "ray": ("ray", "ray"),
    "sklearn": ("scikit-learn", "probe"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "trackio": ("trackio", "trackio"),
    "wandb": ("wandb", "wandb"),
}


def require_extra(module: str, purpose: str) -> None:
    """Raise MissingExtraError unless an optional package is installed; imports nothing.

    To be asked before hours of work as well as right before the import.
    """
    if find_spec(module) is None:
        raise MissingExtraError(*_EXTRAS[module], purpose)


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str | None = None, *, cutoff: float = 0.6
) -> str | None:
    """Return the hint for a name that is none of those known: the nearest of them, or what to say without one."""
    near = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else otherwise


def reason_of(error: BaseException) -> str:
    """Return the first line of a foreign error's message, or its type where it has none."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
