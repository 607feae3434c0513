"""Where vectors go, window by window: into a file or to standard output.

A vector file takes any number of rows in constant memory, and a killed run can continue. The
vectors of a window are appended to a partial file beside the output. Once they are on disk, a
journal records the window with the digests of its vectors and of its sentences. A resumed run keeps
the windows before the first one that does not match both digests. At the end, the first process
assembles the output.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from simcse_cli.arrays import Array, Floats32
from simcse_cli.encoding import formats, parts
from simcse_cli.encoding.journal import Journal, digest_texts
from simcse_cli.encoding.parts import ALONE, ProcessGroup
from simcse_cli.encoding.update import Update
from simcse_cli.errors import DataError, OutputError, kept_on_interrupt
from simcse_cli.files.atomic import check_output, fsync_tree, publish, staging_folder, writing
from simcse_cli.files.output import left_unfinished
from simcse_cli.files.system import sync
from simcse_cli.progress import Progress
from simcse_cli.settings.choices import VectorType

Companions = Callable[[Path, Array, Iterable[str]], None]
"""A function that writes companion files of the output into a folder.

Its arguments are the folder, all rows and, if they are kept, all sentences. The files appear
together with the output.
"""


class Sink(Protocol):
    """What takes the vectors of a job, one window of texts after another."""

    window: int
    group: ProcessGroup

    @property
    def n_rows(self) -> int:
        """The number of rows that the sink holds, including those of an interrupted job."""

    def open(
        self, settings: Mapping[str, Any], progress: Progress
    ) -> AbstractContextManager[object]:
        """Prepare for vectors, and find the rows of an interrupted job with the same settings."""

    def needs(self, texts: Sequence[str]) -> bool:
        """Tell whether ``texts``, the next window of this process, have to be encoded."""

    def append(self, texts: Sequence[str], vectors: Floats32) -> None:
        """Take the vectors of the last window for which ``needs`` was true."""

    def finish(self) -> int:
        """Complete the output and return its number of rows."""


class StdoutSink:
    """Pass each text and its vector to ``write`` as a line of JSON Lines.

    Nothing is kept of an interrupted job.
    """

    window = 256
    group = ALONE

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self.n_rows = 0

    @contextmanager
    def open(self, settings: Mapping[str, Any], progress: Progress) -> Iterator[None]:
        yield

    def needs(self, texts: Sequence[str]) -> bool:
        return True

    def append(self, texts: Sequence[str], vectors: Floats32) -> None:
        for text, row in zip(texts, vectors, strict=True):
            self._write(formats.json_line(text, row))
        self.n_rows += len(texts)

    def finish(self) -> int:
        return self.n_rows


@dataclass
class VectorSink:
    """Write one vector per text into a file: row i is of text i.

    Nothing is created before the first window is encoded.

    Attributes:
        output: the file; its ending gives the format.
        dim: the width of the vectors.
        kind: the type of the stored components.
        resume: continue an unfinished file with the same settings, if there is one. From the first
            window with damage or changed texts on, all windows are encoded again.
        force: replace an existing or unfinished file.
        group: the processes that write this file together.
        window: how many texts are encoded together, by default ``parts.WINDOW``.
        keep_texts: pass texts to ``companions`` even if the format does not store them.
        ids: the ids of the rows, for formats that store ids; they are read at the end.
        companions: writes files that appear together with the output.
        earlier: the plan of an update, if this is one: ``output`` exists, and keeps some rows.
    """

    output: Path
    dim: int
    kind: VectorType = VectorType.FLOAT32
    resume: bool = False
    force: bool = False
    group: ProcessGroup = ALONE
    window: int = field(default_factory=lambda: parts.WINDOW)
    keep_texts: bool = False
    ids: Iterable[Any] | None = None
    companions: Companions | None = None
    earlier: Update | None = None

    def __post_init__(self) -> None:
        self.keep_texts |= formats.vector_file(self.output) in formats.WITH_TEXT
        self._journal = Journal(self.output, self.group.rank, self.group.n_processes)
        self._n_seen = 0  # windows of this process that the job has read

    @property
    def n_rows(self) -> int:
        return self._journal.n_rows

    @contextmanager
    def open(self, settings: Mapping[str, Any], progress: Progress) -> Iterator[None]:
        """Find what an interrupted job has left; a user who interrupts is told what is kept."""
        self._journal.settings = {
            **settings,
            "dim": self.dim,
            "dtype": self.kind.value,
            "window": self.window,
            "processes": self.group.n_processes,
            "texts": self.keep_texts,
        }
        try:
            with writing(self.output), kept_on_interrupt(self._say_what_is_kept):
                self._find_unfinished(progress)
                yield
        except OutputError as error:
            # If the system refused to write, such as on a full disk, what was written is kept.
            if error.hint and isinstance(error.__cause__, OSError) and self._journal.exists():
                error.hint += "; to continue here, add --resume"
            raise

    def _find_unfinished(self, progress: Progress) -> None:
        """Continue or remove an unfinished file, as the options say, or refuse it."""
        check_output(self.output, force=self.force or self.earlier is not None)
        journal = self._journal
        if not journal.exists():
            # Files without a journal were not written by an earlier run, so only force drops them.
            journal.drop(force=self.force)
        elif self.resume:
            journal.resume(progress)
        elif self.force:
            journal.remove()
        else:
            raise left_unfinished(journal.rows)

    def _say_what_is_kept(self) -> str:
        n_rows = self._journal.n_rows
        if not n_rows:
            return f"nothing is kept: sentences are kept {self.window:,} at a time"
        return f"{n_rows:,} sentences are kept; add --resume to the same command to continue"

    def needs(self, texts: Sequence[str]) -> bool:
        """Tell whether the next window must be encoded.

        If the texts of a kept window have changed, it and all later windows are encoded again.
        """
        number = self._n_seen
        self._n_seen += 1
        if number >= len(self._journal.windows):
            return True
        kept_digest = self._journal.windows[number].read
        if kept_digest == digest_texts(texts):
            return False
        self._journal.keep(number)
        return True

    def append(self, texts: Sequence[str], vectors: Floats32) -> None:
        self._journal.append(formats.quantize(vectors, self.kind), texts)

    def finish(self) -> int:
        """Turn the partial files of all processes into the output.

        Return its number of rows on the first process, and 0 on the others.
        """
        if self._n_seen < len(self._journal.windows):  # the input has become shorter
            self._journal.keep(self._n_seen)
        self._journal.open()  # creates the files if this process has had no window
        # The first process assembles the files of all once they are written; the others wait.
        self.group.wait()
        n_rows = self._assemble() if self.group.rank == 0 else 0
        self.group.wait()
        return n_rows

    def _assemble(self) -> int:
        """Make the output from the files of all processes, and return its number of rows."""
        journals = _journals(self.output, self.group)
        for journal in journals:
            journal.read_journal()
        first = journals[0]
        if self.earlier is not None:
            return self._replace(first, self.earlier)
        n_rows = sum(journal.n_rows for journal in journals)
        with staging_folder(self.output) as folder:
            # The file of one process has all rows; those of several are joined in input order.
            raw = first.rows
            texts = first.texts
            if len(journals) > 1:
                raw, texts = _interleave(folder, journals)

            # Output and companions are complete in the folder before they appear in their places.
            complete = self._complete(folder, raw, n_rows, lambda: _read_texts(texts))
            if len(journals) > 1:
                texts.unlink()
                if complete != raw:  # else the raw file itself has become the output
                    raw.unlink()
            sync(complete)  # ``publish`` syncs only the folder, where the partial file is not
            check_output(self.output, force=self.force)
            first.finish(complete)
            publish(complete, self.output, folder)
        _remove(journals)
        return n_rows

    def _replace(self, journal: Journal, earlier: Update) -> int:
        """Make the output of an update from the earlier output and the partial file.

        Return its number of rows. If the process is killed after ``journal.finish``, the next run
        finds the complete output in the folder, and puts it in its place.
        """
        n_rows = len(earlier.texts)
        with journal.staging() as folder:
            raw = earlier.join(self._map(journal.rows, journal.n_rows), folder)
            complete = self._complete(folder, raw, n_rows, lambda: earlier.texts)
            # ``publish`` moves all files of the folder: the output and those that belong to it.
            if complete == raw:
                complete = raw.rename(folder / self.output.name)
            else:
                raw.unlink()
            fsync_tree(folder)
            journal.finish(complete)
        publish(complete, self.output, folder)
        journal.remove()
        return n_rows

    def _complete(
        self, folder: Path, raw: Path, n_rows: int, texts: Callable[[], Iterable[str]]
    ) -> Path:
        """Write companion files into a folder, complete the output, and return its path.

        The output may be the raw file itself, as ``finish_file`` says, or else a file in the
        folder. ``texts`` is a function because the texts are read twice.
        """
        rows = self._map(raw, n_rows)
        if self.companions is not None:
            self.companions(folder, rows, texts())
        dtype = rows.dtype
        shape = (n_rows, rows.shape[1])
        del rows  # closes the map of the raw file, whose header may be written next
        target = folder / self.output.name
        return formats.finish_file(raw, target, dtype, shape, texts(), self.ids)

    def _map(self, raw: Path, n_rows: int) -> Array:
        """Return the rows of a raw file without reading them into memory."""
        dtype = formats.STORED[self.kind]
        shape = (n_rows, formats.stored_width(self.kind, self.dim))
        if not n_rows:  # a file without rows cannot be mapped
            return np.empty(shape, dtype)
        return np.memmap(raw, dtype, mode="r", offset=formats.HEADER_BYTES, shape=shape)


def finish_killed(output: Path, group: ProcessGroup = ALONE) -> None:
    """Finish what a killed process has left to do, if its output was complete.

    The output of an update is put in its place, and the journals are removed. All processes of the
    group must call this; the first one does the work, and the others wait for it.
    """
    journals = _journals(output, group)
    first = journals[0]
    if group.rank == 0 and first.exists():
        with writing(output), suppress(DataError):  # a damaged journal names no finished output
            first.read_journal()
        complete = first.staged / output.name
        if first.has_finished(complete):
            publish(complete, output, first.staged)
        if first.has_finished(output):
            _remove(journals)
    group.wait()


def _journals(output: Path, group: ProcessGroup) -> list[Journal]:
    return [Journal(output, rank, group.n_processes) for rank in range(group.n_processes)]


def _remove(journals: list[Journal]) -> None:
    """Remove journals; the first is removed last, since it records that the output is complete."""
    for journal in reversed(journals):
        journal.remove()


def _read_texts(path: Path) -> Iterator[str]:
    with path.open("rb") as lines:
        yield from map(json.loads, lines)


def _interleave(folder: Path, journals: list[Journal]) -> tuple[Path, Path]:
    """Write the windows of all processes in input order into two files in a folder.

    Return the file of rows and the file of texts.
    """
    raw = folder / "rows"
    texts = folder / "texts"
    with ExitStack() as stack:
        all_rows = stack.enter_context(raw.open("xb"))
        all_texts = stack.enter_context(texts.open("xb"))
        row_streams = [stack.enter_context(journal.rows.open("rb")) for journal in journals]
        text_streams = [stack.enter_context(journal.texts.open("rb")) for journal in journals]
        all_rows.write(b"\0" * formats.HEADER_BYTES)
        for stream in row_streams:
            stream.seek(formats.HEADER_BYTES)

        # With W processes, window n of the input is window n // W of process n % W.
        for number in range(sum(len(journal.windows) for journal in journals)):
            number_in_process, rank = divmod(number, len(journals))
            window = journals[rank].windows[number_in_process]
            all_rows.write(row_streams[rank].read(window.row_bytes))
            all_texts.write(text_streams[rank].read(window.text_bytes))
    return raw, texts
