"""Errors that a user can act on; the command line prints message and hint and exits with 1 to 3."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from shutil import which

INTERRUPTED = 130
"""Exit code of a command that was stopped and kept its finished work."""
READER_ENDED = 141
"""Exit code of a command whose reader has ended, as the shell shows it for an end by SIGPIPE."""


@contextmanager
def kept_on_interrupt(say: Callable[[], str]) -> Iterator[None]:
    """If Ctrl-C or SIGTERM comes within the block, add the text of ``say`` to the exception.

    The text tells which files are kept, and how to continue.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:  # here, only SIGTERM raises SystemExit
        stop.add_note(say())
        raise


# The place at the start of a message: a line of a file, an option, a variable or a path.
_PLACE = re.compile(
    r"(?:Invalid value for ')?(?P<place>"  # Typer puts the flags in quotes
    r".+?, (?:line|row|byte) [\d,]*\d"  # a line of a file
    r"|--?[a-z][\w-]*"  # an option
    r"|[A-Z_]+(?=:)|SIMCSE_[A-Z_]+"  # a variable
    r"|.+?(?= does not exist| exists already| cannot be read)"  # a path before such words
    r"|(?=\S*[^\W\d])\S*[./]\S*?(?<!,)(?! and )"  # a word with a letter, and with a dot or slash
    r")(?:'[^:]*)?:? "  # the closing quote, with further flags
)
# The words between what was found and what is needed in a message.
_NEEDED = re.compile(r"(?:^|[,;:] )need |(?:^| )needs |; missing: | is not (?=one of )")


class SimcseError(Exception):
    """An error with a message (``PLACE: FOUND, need NEEDED``) and a hint.

    The hint is the command or flag that helps; a traceback shows it below the message.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint is not None:
            self.add_note(f"fix: {hint}")

    def to_json(self) -> dict[str, str | int | None]:
        """Return the message, its parts (place, found, needed), the fix and the exit code.

        A part that the message does not name is None.
        """
        place = None
        problem = self.message
        if place_match := _PLACE.match(problem):
            place = place_match["place"]
            problem = problem[place_match.end() :]
        found, *needed = _NEEDED.split(problem, maxsplit=1)  # ``needed`` has at most one item
        return {
            "error": self.message,
            "place": place,
            "found": found or None,
            "needed": needed[0] if needed else None,
            "fix": self.hint,
            "exit_code": self.exit_code,
        }


class ConfigError(SimcseError):
    """Settings are unknown, contradict each other or have an impossible value."""


class CodeError(SimcseError):
    """Code in a user's file has raised an exception; ``--verbose`` shows its traceback."""


class UsageError(SimcseError):
    """An option is unknown, has a wrong value or contradicts another one.

    ``option`` is the flag.
    """

    exit_code = 2

    def __init__(self, message: str, *, option: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{option}: {message}" if option else message, hint=hint)
        self.option = option


class DataError(SimcseError):
    """An input file is missing, empty, in the wrong encoding or of the wrong shape."""


class NothingFoundError(DataError):
    """A search has ended and found nothing, so its work is not kept."""


class OutputError(SimcseError):
    """An output file exists already or cannot be written."""


class CheckpointError(SimcseError):
    """A model cannot be found, read or used with the requested pooler."""


class TrainingError(SimcseError):
    """A training run cannot start or continue."""


class ContactError(SimcseError):
    """One of several processes that work together has ended."""


class ToleranceError(SimcseError):
    """``compare --check`` found scores outside the tolerance."""

    exit_code = 3


class MissingExtraError(SimcseError):
    """An optional dependency is needed; the message names the extra that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package}: {how_to_install(extra)}")


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra for this copy of the toolkit.

    The one-file binary cannot have extras, so there the text says what to install instead.
    """
    package = f"'simcse-cli[{extra}]'"
    python = Path(sys.executable)
    if is_binary():
        from_checkout = f"pip install '.[{extra}]'"
        return f"the binary has no such extra; install from a checkout instead: {from_checkout}"
    if Path(sys.prefix, "pipx_metadata.json").is_file():
        return f"pipx runpip simcse-cli install {package}"
    # An environment without pip was made by uv. Unlike ``find_spec``, PathFinder does not call the
    # import hook of setuptools, which warns.
    if PathFinder.find_spec("pip") is None:
        return f"uv pip install --python {python} {package}"
    # The first pip on the PATH may belong to another Python.
    if Path(which("pip") or "").parent == python.parent:
        return f"pip install {package}"
    return f"{python} -m pip install {package}"


def is_binary() -> bool:
    """Tell whether this is the one-file binary (tools/binary/build.py).

    The sign is a file in the folder that the binary unpacks.
    """
    return Path(sys.prefix, "unpack.py").is_file()


EXTRAS = {
    "faiss": ("faiss-cpu", "faiss"),
    "matplotlib": ("matplotlib", "plot"),
    "mlflow": ("mlflow", "mlflow"),
    "mteb": ("mteb", "mteb"),
    "onnx": ("onnx", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "onnxscript": ("onnxscript", "onnx"),
    "openvino": ("openvino", "openvino"),
    "nncf": ("nncf", "openvino"),
    "optuna": ("optuna", "search"),
    "peft": ("peft", "peft"),
    "python_calamine": ("python-calamine", "excel"),
    "ray": ("ray", "ray"),
    "sklearn": ("scikit-learn", "probe"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "trackio": ("trackio", "trackio"),
    "wandb": ("wandb", "wandb"),
}
"""For each optional module, its package and the extra that installs the package."""


def require_extra(module: str, purpose: str) -> None:
    """Raise MissingExtraError unless an optional module is installed; nothing is imported.

    ``purpose`` begins the message: it names what needs the module. Call this function before hours
    of work, and again right before the import.
    """
    if find_spec(module) is None:
        raise MissingExtraError(*EXTRAS[module], purpose)


def did_you_mean(
    name: str,
    known: Iterable[str],
    otherwise: str | None = None,
    *,
    cutoff: float = 0.6,
    others: Mapping[str, str] | None = None,
) -> str | None:
    """Return a hint with the known name most like ``name``, or ``otherwise`` if none is similar.

    ``others`` maps further names to the text that the hint gives instead. ``cutoff`` is the least
    similarity, from 0 to 1.
    """
    others = others or {}
    near = get_close_matches(name, [*known, *others], n=1, cutoff=cutoff)
    return f"did you mean {others.get(near[0], near[0])}?" if near else otherwise


_OUT_OF_MEMORY = (
    "failed to map segment",
    "allocate memory",
    "not enough memory",
    "out of memory",
    "start new thread",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an operation failed because there was not enough memory."""
    # Libraries raise these errors for other reasons, too, so the message decides.
    if isinstance(error, ImportError | RuntimeError | OSError):
        return any(sign in str(error) for sign in _OUT_OF_MEMORY)
    return isinstance(error, MemoryError)


def reason_of(error: BaseException) -> str:
    """Return the first line of a library's error message, or its type if the message is empty.

    If the line ends with a colon, the next line is added. At most 300 characters are kept.
    """
    # The codes of terminal colours are removed.
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
    if not lines:
        return type(error).__name__
    n_shown = 2 if lines[0].endswith(":") else 1
    return " ".join(map(str.strip, lines[:n_shown]))[:300]


# An option in a hint that is not within a command, such as "start again with --force".
_OPTION_IN_HINT = re.compile(
    r"((?:overwrite it|replace it|continue it|drop it|start again) with )--(force|resume)\b"
)


@contextmanager
def hints_in_python(*more: tuple[str, str]) -> Iterator[None]:
    """Within the block, let the hints of errors say ``force=True`` instead of ``--force``.

    Each pair of ``more`` is a further replacement: what a hint says on the command line, and what
    it says in Python.
    """
    try:
        yield
    except (CheckpointError, ConfigError, DataError, OutputError) as error:
        hint = error.hint or ""
        for typed, said in more:
            hint = hint.replace(typed, said)
        hint = _OPTION_IN_HINT.sub(r"\1\2=True", hint)
        raise type(error)(error.message, hint=hint or None) from error
