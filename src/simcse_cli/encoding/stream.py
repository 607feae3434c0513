"""Encode a stream of sentences of any length in constant memory, so that a killed run can continue.

Lines are read in windows of fixed size. The vectors of a window are appended to a partial file
beside the output and, once they are on disk, recorded in a journal with their digest and that of
their sentences. A resumed run keeps the windows that match both digests and encodes the others.
Windows start at the same lines in every run, so the bytes are the same. Of W processes, process r
encodes the windows r, r + W, r + 2W, ... and the first one assembles the file. Independent jobs
encode parts of whole windows (``cut``).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simcse_cli.encoding import formats
from simcse_cli.encoding.partial_file import PartialFile, digest_texts
from simcse_cli.errors import DataError, kept_on_interrupt
from simcse_cli.files.atomic import check_output, output_error, publish, staging_folder
from simcse_cli.files.output import left_unfinished
from simcse_cli.files.system import sync
from simcse_cli.progress import SILENT, Progress, ProgressTask, SilentProgress

_Item = TypeVar("_Item")
WINDOW = 8192
"""Sentences encoded together: enough to sort by length, few enough for memory."""

EncodeWithProgress = Callable[..., NDArray[np.float32]]
"""A function from sentences to vectors with a ``progress`` keyword, such as ``ReadyEncoder.encode``."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that write one output together; ``wait`` returns when all of them have called it."""

    rank: int = 0
    n_processes: int = 1
    wait: Callable[[], None] = lambda: None


ALONE = ProcessGroup()


@dataclass(frozen=True)
class Part:
    """A part of the input in whole windows: rows ``start`` (from 0) up to but not ``stop``, of ``total`` rows.

    Parts are numbered from 1 and may be empty.
    """

    number: int
    of: int
    start: int
    stop: int
    total: int

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.stop

    @property
    def n_rows(self) -> int:
        return self.stop - self.start


Outputs = list[tuple[str, Part]]
"""The files or addresses of parts."""


def cut(n_rows: int, n_parts: int) -> list[Part]:
    """Cut an input into parts of whole windows, so that each row is in the same window as without parts.

    Example:
        >>> [(part.start, part.stop) for part in cut(20_000, 2)]
        [(0, 8192), (8192, 20000)]
    """
    n_windows = count_windows(n_rows)
    ends = [min(WINDOW * (n_windows * number // n_parts), n_rows) for number in range(n_parts + 1)]
    spans = enumerate(pairwise(ends), start=1)
    return [Part(number, n_parts, start, stop, n_rows) for number, (start, stop) in spans]


def count_windows(n_rows: int) -> int:
    return -(-n_rows // WINDOW)


def windows(items: Iterable[_Item], size: int | None = None) -> Iterator[list[_Item]]:
    """Yield consecutive lists of up to ``size`` items, by default ``WINDOW``."""
    iterator = iter(items)
    while window := list(islice(iterator, size or WINDOW)):
        yield window


Companions = Callable[[Path, NDArray[Any], Iterable[str]], None]
"""A function that writes companion files of the output into a folder, from all rows and, if kept, all sentences. The
files are moved beside the output together with it."""


def encode_stream(
    encode: EncodeWithProgress,
    sentences: Iterable[str],
    output: Path,
    *,
    dim: int,
    kind: formats.VectorType = formats.VectorType.FLOAT32,
    settings: dict[str, Any] | None = None,
    resume: bool = False,
    force: bool = False,
    group: ProcessGroup = ALONE,
    window: int | None = None,
    total: int | None = None,
    keep_texts: bool = False,
    ids: Iterable[Any] | None = None,
    companions: Companions | None = None,
    progress: Progress = SILENT,
) -> int:
    """Write one vector per sentence (row i is sentence i); return the number of rows, 0 on all but the first process.

    Sentences are read once, in order; nothing is created before the first window is encoded.
    ``resume`` continues an unfinished file, if there is one with the same ``settings`` (model
    digest, pooler, ...), and encodes damaged windows and those of changed sentences again.
    ``total`` is the number of sentences, if known; with a total of 0 the file has no rows.
    ``keep_texts`` passes the sentences to ``companions`` even if the format does not store them;
    ``ids`` are read at the end, for formats that store texts. ``window`` is ``WINDOW`` by default.
    """
    window = window or WINDOW
    keep_texts = keep_texts or formats.vector_file(output) in formats.WITH_TEXT
    facts = {"dim": dim, "dtype": kind.value, "window": window, "processes": group.n_processes}
    partial = PartialFile(output, group.rank, group.n_processes)
    partial.settings = {**(settings or {}), **facts, "texts": keep_texts}
    try:
        finished = _tidy_up(output, group)
        if finished is not None and resume:
            progress.info(f"{output} is already finished")
            return finished if group.rank == 0 else 0
        check_output(output, force=force)
        if partial.exists() and not (resume or force):
            raise left_unfinished(partial.rows)
        if resume and partial.exists():
            partial.resume(progress)
        else:
            partial.drop(force=force)

        def say_kept() -> str:
            if not partial.n_rows:
                return f"nothing is kept: sentences are kept {window:,} at a time"
            return f"{partial.n_rows:,} sentences are kept; add --resume to the same command to continue"

        left = None if total is None else total - partial.n_rows
        with progress.task("encoding", left) as task, kept_on_interrupt(say_kept):
            every = windows(sentences, window)
            for texts in _open_windows(every, partial, group, task, total):
                inner = InsideTask(task)
                vectors = formats.quantize(encode(texts, progress=inner), kind)
                task.advance(len(texts) - inner.n_done)
                partial.append(vectors, texts)
        group.wait()
        n_rows = 0
        if group.rank == 0:
            partials = PartialFile.of_all(output, group.n_processes)
            n_rows = _assemble(output, kind, dim, partials, companions, ids, force=force)
        group.wait()
    except OSError as error:
        raise output_error(output, error) from error
    return n_rows


def _tidy_up(output: Path, group: ProcessGroup) -> int | None:
    """Clean up after a run killed once its output was complete, and return its rows; None if there is none."""
    partials = PartialFile.of_all(output, group.n_processes)
    n_rows = None
    if partials[0].exists():
        with suppress(DataError):
            partials[0].read_journal()
            n_rows = partials[0].finished_rows(output)
    group.wait()
    if n_rows is not None and group.rank == 0:
        for partial in reversed(partials):
            partial.remove()
    return n_rows


class InsideTask(SilentProgress):
    """Pass the progress within a window or part on to the task of the whole input."""

    def __init__(self, outer: ProgressTask) -> None:
        super().__init__()
        self._outer = outer
        self.n_done = 0.0

    def advance(self, amount: float = 1) -> None:
        self.n_done += amount
        self._outer.advance(amount)

    def update(self, *, total: float | None = None, **fields: str) -> None:
        pass  # the outer task has the total

    @contextmanager
    def task(self, description: str, total: float | None = None) -> Iterator[ProgressTask]:
        yield self


def _open_windows(
    every: Iterable[list[str]],
    partial: PartialFile,
    group: ProcessGroup,
    task: ProgressTask,
    total: int | None,
) -> Iterator[list[str]]:
    """Yield the windows of this process that are not encoded yet, or whose sentences have changed."""
    number = -1
    for number, texts in enumerate(every):
        own_number, rank = divmod(number, group.n_processes)
        if rank == group.rank:
            is_recorded = own_number < len(partial.windows)
            if is_recorded and partial.windows[own_number].read != digest_texts(texts):
                partial.keep(own_number)
                is_recorded = False
            if not is_recorded:
                yield texts
        else:
            task.advance(len(texts))
    if number < 0 and total:
        raise DataError(
            "the input has changed while it was read", hint="give a copy that nobody writes to"
        )
    if number < 0 and total is None:
        raise DataError("the input is empty", hint="give a file with one sentence a line")
    n_own = len(range(group.rank, number + 1, group.n_processes))
    if n_own < len(partial.windows):
        partial.keep(n_own)
    partial.open()


def _assemble(
    output: Path,
    kind: formats.VectorType,
    dim: int,
    partials: list[PartialFile],
    companions: Companions | None,
    ids: Iterable[Any] | None,
    *,
    force: bool,
) -> int:
    """Turn the partial files into the output and return its number of rows."""
    for partial in partials:
        partial.read_journal()
    dtype, width = formats.STORED[kind], formats.stored_width(kind, dim)
    shape = (sum(partial.n_rows for partial in partials), width)
    with staging_folder(output) as folder:
        raw, texts = partials[0].rows, partials[0].texts
        if len(partials) > 1:
            raw, texts = _interleave(folder, partials)
        if companions is not None:
            rows = np.memmap(raw, dtype, "r", formats.HEADER_BYTES, shape)
            companions(folder, rows, _read_texts(texts))
            del rows
        complete = formats.finish_file(
            raw, folder / output.name, dtype, shape, _read_texts(texts), ids
        )
        for path in {raw, texts} - {partials[0].rows, partials[0].texts, complete}:
            path.unlink()
        sync(complete)
        check_output(output, force=force)
        partials[0].finish(complete, shape[0])
        publish(complete, output, folder)
    for partial in reversed(
        partials
    ):  # the first one last: its journal records that the output is complete
        partial.remove()
    return shape[0]


def _read_texts(path: Path) -> Iterator[str]:
    with path.open("rb") as lines:
        yield from map(json.loads, lines)


def _interleave(folder: Path, partials: list[PartialFile]) -> tuple[Path, Path]:
    """Join the windows of all processes in the order of the input; return the files of rows and of texts."""
    raw, texts = folder / "rows", folder / "texts"
    with ExitStack() as stack:
        streams = [
            tuple(stack.enter_context(path.open("rb")) for path in (partial.rows, partial.texts))
            for partial in partials
        ]
        all_rows, all_texts = (stack.enter_context(path.open("xb")) for path in (raw, texts))
        all_rows.write(b"\0" * formats.HEADER_BYTES)
        for rows, _ in streams:
            rows.seek(formats.HEADER_BYTES)
        for number in range(sum(len(partial.windows) for partial in partials)):
            own_number, rank = divmod(number, len(partials))
            window = partials[rank].windows[own_number]
            rows, own_texts = streams[rank]
            all_rows.write(rows.read(window.row_bytes))
            all_texts.write(own_texts.read(window.text_bytes))
    return raw, texts
