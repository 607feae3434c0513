"""Write an output with a lock and a record, watch its inputs, and keep unfinished work."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TextIO

from simcse_cli.errors import DataError, NothingFoundError, OutputError
from simcse_cli.files.atomic import (
    atomic_path,
    atomic_text,
    check_output,
    make_folder_of,
    write_json,
)
from simcse_cli.files.digests import OLDER_DIGEST, is_older_digest
from simcse_cli.files.inputs import STDIO, Inputs, read_json
from simcse_cli.files.locks import remove_empty, sole_writer

WORK_RECORD = "search.json"
"""File in a work folder that identifies the work."""


@contextmanager
def output_path(target: Path | str, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary path that becomes an output on success.

    The output is locked meanwhile, and the remains of killed writers are removed.
    """
    with sole_writer(Path(target)), atomic_path(target, force=force) as temporary:
        yield temporary


@contextmanager
def output_text(target: Path | str, *, force: bool = False) -> Iterator[TextIO]:
    """Yield a text stream that becomes an output on success, locked as by ``output_path``."""
    with sole_writer(Path(target)), atomic_text(target, force=force) as stream:
        yield stream


def require_writable(target: Path, *, force: bool = False) -> None:
    """Raise the errors of ``output_path`` now, before anything is computed."""
    with sole_writer(target):
        check_output(target, force=force)


class Output:
    """A context in which an output is written; it locks the output and watches the inputs.

    On entry it takes the lock and removes the remains of killed writers. An output that exists is
    refused without ``force`` or ``resume``. A record file that this program did not write is
    refused without ``force``. ``-`` is standard output, which needs none of this.

    Args:
        path: the path of the output.
        record: the file beside it that records its origin, if any.
        key: a key that every such record has; a file without it was written by something else.
        inputs: files that must not change until the record is written.
        companions: other files that only writers of this output write.
        lock: the path to lock instead, if several processes write parts of one output.
        force: replace an existing output and any file in the place of its record.
        resume: accept an existing output, which this command may continue.

    Raises:
        UsageError: one of these files is an input.
    """

    def __init__(
        self,
        path: Path,
        *,
        record: Path | None = None,
        key: str = "",
        inputs: Iterable[Path | str] | Inputs = (),
        companions: Iterable[Path] = (),
        lock: Path | None = None,
        force: bool = False,
        resume: bool = False,
    ) -> None:
        self.path = path
        self.record = record
        self.force = force
        self._key = key
        self._may_exist = force or resume
        self._inputs = inputs if isinstance(inputs, Inputs) else Inputs(inputs)
        self._companions = list(companions)
        if record is not None:
            self._companions.insert(0, record)
        if str(path) != STDIO:
            for file in (path, *self._companions):
                self._inputs.require_apart(file)
        self._lock = lock or path
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if str(self.path) == STDIO:
            return self
        # If a check fails, the inner stack frees the lock; otherwise ``__exit__`` does.
        with ExitStack() as stack:
            stack.enter_context(sole_writer(self._lock, *self._companions))
            check_output(self.path, force=self._may_exist)
            if self.record is not None:
                _require_own_record(self.record, self._key, force=self.force)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def write_record(
        self, folder: Path, facts: Mapping[str, Any], *, hint: str | None = None
    ) -> None:
        """Check that the inputs have not changed, and write the record.

        ``folder`` is the temporary folder from which output and record are published together.
        """
        self._inputs.require_unchanged(hint=hint)
        if self.record is not None:
            write_json(folder / self.record.name, facts)


def _require_own_record(path: Path, key: str, *, force: bool) -> None:
    """Raise OutputError if ``path`` is a file that this program did not write.

    A record that it wrote holds ``key``. With ``force``, any file is accepted.
    """
    if force:
        return
    # A broken link does not exist, but would be replaced as well.
    if not (path.is_symlink() or path.exists()):
        return
    try:
        content = read_json(path)
    except DataError:
        content = None
    if not isinstance(content, dict) or key not in content:
        check_output(path)  # raises the error, since the file exists


@contextmanager
def work_folder(
    path: Path, facts: Mapping[str, Any], *, names: str, resume: bool, force: bool
) -> Iterator[Path]:
    """Yield a folder for the finished parts of a command, and remove it once the command has ended.

    The parts are kept after an error, unless it is a NothingFoundError. What happens to the parts
    in an existing folder depends on the options:

    - ``resume``: they are kept; DataError is raised if their ``facts`` are not those of this
      command;
    - ``force``: they are dropped;
    - neither: OutputError is raised if a part is finished.

    OutputError is also raised if the folder holds anything that this program did not write. The
    regular expression ``names`` matches the names of the parts.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        hint = "rename it, or choose another name with -o"
        raise OutputError(f"{path} is in the way: it is not a folder", hint=hint)

    # Finished parts (NumPy files) of an earlier call are dropped only if the user asks for it.
    record = path / WORK_RECORD
    if record.exists() and any(path.glob("*.npy*")) and not (resume or force):
        raise left_unfinished(path, "search")

    # Lock the folder for this process; in the end, remove it unless work is left in it.
    make_folder_of(record)
    with ExitStack() as stack:
        stack.callback(remove_empty, [path])
        stack.enter_context(sole_writer(path))
        _require_own_files(path, names)
        if resume and record.is_file():
            recorded = read_json(record, dict[str, Any], hint="start again with --force")
            require_same_settings(record, "the interrupted search", recorded, facts)
        else:
            _clear(path)
            write_json(record, facts)
        try:
            yield path
        except NothingFoundError:
            _clear(path)
            raise
        except Exception:
            _clear_if_unbegun(path)
            raise
        _clear(path)


def _require_own_files(folder: Path, names: str) -> None:
    """Raise OutputError unless all entries are locks, the record, or files that match ``names``."""
    known = re.compile(rf"\.lock|\.?{re.escape(WORK_RECORD)}(\.lock)?|{names}")
    for entry in folder.iterdir():
        if entry.is_symlink() or not entry.is_file() or known.fullmatch(entry.name) is None:
            what = f"{folder} holds {entry.name}, which this program did not write"
            raise OutputError(what, hint="move it away, or choose another name with -o")


def _clear_if_unbegun(folder: Path) -> None:
    """Empty a work folder in which no part is finished."""
    if {entry.name for entry in folder.iterdir()} <= {".lock", WORK_RECORD}:
        _clear(folder)


def _clear(folder: Path) -> None:
    """Empty a work folder except for the lock."""
    # The record comes last, so that parts never lie in a folder without one.
    for path in sorted(folder.iterdir(), key=lambda path: path.name == WORK_RECORD):
        if path.name != ".lock":
            path.unlink()


def left_unfinished(place: Path, what: str = "run") -> OutputError:
    """Return the error for a file or folder that an interrupted ``what`` has left."""
    return OutputError(
        f"{place} is left from an interrupted {what}",
        hint="continue it with --resume, or drop it with --force",
    )


def differences(
    before: Mapping[str, Any], current: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each setting in which an earlier command and this one differ, with both values.

    Settings that only the earlier command has come first. The digest of the model comes last, since
    a difference in another setting explains more.
    """
    only_before = [key for key in before if key not in current]
    for key in sorted([*only_before, *current], key=lambda key: key == "model_digest"):
        if before.get(key) != current.get(key):
            yield key, before.get(key), current.get(key)


def other_value(key: str, before: object, current: object) -> str:
    """Say how the setting ``key`` of an earlier command differs from that of this command."""
    if current is None:
        return f"{key} {before!r}, and this command has none"
    return f"{key} {before!r}, not {current!r}"


def require_same_settings(
    place: Path, what: str, before: Mapping[str, Any], current: Mapping[str, Any]
) -> None:
    """Raise DataError if an interrupted command had other settings than this one.

    ``what``, such as "the unfinished file", names the work of that command in the message.
    """
    # Only the first difference is reported.
    for key, recorded, value in differences(before, current):
        if key == "model_digest" and is_older_digest(recorded, str(value)):
            raise DataError(f"{place}: {what} {OLDER_DIGEST}", hint="start again with --force")
        difference = f"has {other_value(key, recorded, value)}"
        if key == "inputs" and value is not None:
            recorded_inputs = recorded or []
            changed = [entry["path"] for entry in value if entry not in recorded_inputs]
            difference = f"read other inputs; changed since: {', '.join(changed) or 'their number'}"
        raise DataError(
            f"{place}: {what} {difference}",
            hint="repeat the command that was interrupted, or start again with --force",
        )
