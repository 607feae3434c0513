"""Keep what a job has finished in files beside the output, so that it can be interrupted."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.arrays import Array
from simcse_cli.encoding.formats import HEADER_BYTES
from simcse_cli.errors import DataError
from simcse_cli.files.atomic import atomic_text, check_output
from simcse_cli.files.digests import digest
from simcse_cli.files.output import require_same_settings
from simcse_cli.files.schema import checked
from simcse_cli.files.system import open_itself
from simcse_cli.progress import Progress


@dataclass(frozen=True)
class _Window:
    """A finished window: its number of rows, the sizes of rows and texts in bytes, and digests.

    ``read`` is the digest of the sentences. ``written`` is that of the stored rows and texts, and
    of the other fields.
    """

    rows: int
    row_bytes: int
    text_bytes: int
    read: str
    written: str

    def digest_with(self, rows: bytes, texts: bytes) -> str:
        """Return what ``written`` should be if the window has these stored rows and texts."""
        facts = (self.rows, self.row_bytes, self.text_bytes, self.read)
        return digest(json.dumps(facts), rows, texts)


class Journal:
    """The unfinished output of one process: a file of rows, one of texts, and a journal.

    The journal is JSON Lines: the settings, each finished window and finally the identity of the
    file that becomes the output. It is created before the other files and removed after them. If a
    file of rows has no journal, something else has written it.

    Attributes:
        rows: the file of rows.
        texts: the file of texts; empty if texts are not kept.
        staged: a folder for a complete output before it takes its place.
        settings: what the vectors depend on, and under ``texts`` whether texts are kept.
        windows: the finished windows.
    """

    def __init__(self, output: Path, rank: int, n_processes: int) -> None:
        suffix = "" if n_processes == 1 else f"-{rank}"
        name = f"{output.name}.part{suffix}"
        self.rows = output.with_name(name)
        self.texts = output.with_name(f"{name}.txt")
        self._journal = output.with_name(f"{name}.json")
        self.staged = output.with_name(f".{name}")
        self.settings: dict[str, Any] = {}
        self.windows: list[_Window] = []
        self._finished: dict[str, int] = {}
        self._is_open = False

    @property
    def n_rows(self) -> int:
        return sum(window.rows for window in self.windows)

    def exists(self) -> bool:
        return os.path.lexists(self._journal)

    def remove(self) -> None:
        shutil.rmtree(self.staged, ignore_errors=True)
        for path in (self.rows, self.texts, self._journal):
            path.unlink(missing_ok=True)

    def drop(self, *, force: bool) -> None:
        """Remove files of rows and texts that have no journal.

        Without ``force``, raise an error if there are such files.
        """
        for path in (self.rows, self.texts):
            check_output(path, force=force)
        self.remove()

    def open(self) -> None:
        """Create the files that are missing; the file of rows begins with space for a header."""
        if not self.exists():
            self._write_journal()
        for path, size in ((self.rows, HEADER_BYTES), (self.texts, 0)):
            descriptor = open_itself(path, os.O_WRONLY | os.O_CREAT)
            try:
                if os.fstat(descriptor).st_size < size:
                    os.ftruncate(descriptor, size)
            finally:
                os.close(descriptor)
        self._is_open = True

    def read_journal(self) -> dict[str, Any]:
        """Read the windows of the journal, and return its settings.

        The settings are the first line; raise DataError if this line is damaged. A kill may have
        cut a later line, so reading ends at the first damaged one.
        """
        settings: dict[str, Any] = {}
        lines = self._journal.read_bytes().splitlines()
        try:
            settings = dict(json.loads(lines[0])["settings"])
            for line in lines[1:]:
                facts = json.loads(line)
                if "finished" in facts:
                    self._finished = dict(facts["finished"])
                else:
                    self.windows.append(checked(facts, _Window, "a window"))
        except (DataError, ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            if not settings:
                raise DataError(
                    f"{self._journal} is damaged", hint="start again with --force, which drops it"
                ) from error
        return settings

    def has_finished(self, output: Path) -> bool:
        """Tell whether this output exists, and is the file that ``finish`` recorded."""
        return output.exists() and _identity(output).items() <= self._finished.items()

    def resume(self, progress: Progress) -> None:
        """Read the journal of an interrupted job, and keep the windows before the first damage.

        Raise an error if that job had other settings.
        """
        earlier_settings = self.read_journal()
        require_same_settings(self._journal, "the unfinished file", earlier_settings, self.settings)
        n_recorded = len(self.windows)
        self.open()
        self.keep(self._count_intact())
        if n_again := n_recorded - len(self.windows):
            again = f"{n_again} of {n_recorded} parts are encoded again"
            progress.warn(f"{self.rows} was changed: {again}")
        if self.windows:
            progress.info(f"continuing {self.rows} after {self.n_rows:,} sentences")

    def _count_intact(self) -> int:
        """Return how many windows come before the first one whose rows or texts are damaged."""
        with self.rows.open("rb") as rows, self.texts.open("rb") as texts:
            rows.seek(HEADER_BYTES)
            for number, window in enumerate(self.windows):
                stored_rows = rows.read(window.row_bytes)
                actual = window.digest_with(stored_rows, texts.read(window.text_bytes))
                if actual != window.written:
                    return number
        return len(self.windows)

    def keep(self, n_windows: int) -> None:
        """Cut the files back to the first ``n_windows`` windows."""
        self.windows = self.windows[:n_windows]
        self._finished = {}
        self._write_journal()
        os.truncate(self.rows, HEADER_BYTES + sum(window.row_bytes for window in self.windows))
        os.truncate(self.texts, sum(window.text_bytes for window in self.windows))

    def append(self, rows: Array, texts: Sequence[str]) -> None:
        """Write a finished window to disk, and only then record it in the journal."""
        if not self._is_open:
            self.open()
        stored_rows = np.ascontiguousarray(rows).tobytes()
        stored_texts = b""
        if self.settings["texts"]:
            stored_texts = "".join(json.dumps(text) + "\n" for text in texts).encode()
        _append(self.rows, stored_rows)
        if stored_texts:
            _append(self.texts, stored_texts)
        # ``written`` is a digest of the other fields, too, so it is filled in last.
        window = _Window(
            rows=len(rows),
            row_bytes=len(stored_rows),
            text_bytes=len(stored_texts),
            read=digest_texts(texts),
            written="",
        )
        window = replace(window, written=window.digest_with(stored_rows, stored_texts))
        self._record(asdict(window))
        self.windows.append(window)

    def finish(self, complete: Path) -> None:
        """Record which file is the complete output."""
        self._record({"finished": _identity(complete)})

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Create and yield the folder ``staged``, and remove it if an error is raised."""
        shutil.rmtree(self.staged, ignore_errors=True)
        self.staged.mkdir()
        try:
            yield self.staged
        except BaseException:
            shutil.rmtree(self.staged, ignore_errors=True)
            raise

    def _record(self, facts: dict[str, Any]) -> None:
        _append(self._journal, json.dumps(facts).encode() + b"\n")

    def _write_journal(self) -> None:
        with atomic_text(self._journal, force=True) as stream:
            for facts in ({"settings": self.settings}, *map(asdict, self.windows)):
                stream.write(json.dumps(facts) + "\n")


def _append(path: Path, data: bytes) -> None:
    """Append to a file, which must not be a link, and wait until the data are on disk."""
    descriptor = open_itself(path, os.O_WRONLY | os.O_APPEND)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)


def _identity(path: Path) -> dict[str, int]:
    """Return inode and size of a file, which stay the same when it is renamed."""
    status = path.stat()
    return {"inode": status.st_ino, "bytes": status.st_size}


def digest_texts(texts: Sequence[str]) -> str:
    return digest("".join(f"{text}\n" for text in texts))


def is_unfinished(output: Path) -> bool:
    # The first journal has one name if one process writes the output, and another if several do.
    return any(Journal(output, rank=0, n_processes=n).exists() for n in (1, 2))


def drop_unfinished(output: Path) -> None:
    """Remove the unfinished files of an output for one process, if there are any."""
    Journal(output, rank=0, n_processes=1).remove()
