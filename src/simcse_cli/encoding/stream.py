"""Encode a stream of sentences of any length in constant memory, to be continued after a kill.

Lines are taken in windows of fixed size; a window's vectors are appended to a partial file beside the output and,
once they are on the disk, recorded as done with their digest and that of their sentences. A continued run keeps the
windows that agree with both and encodes the others. Windows start at the same lines in every run, so it gives the
same bytes. With several processes, process r takes windows r, r + W, r + 2W, ... and the first one puts them together.
Jobs that share nothing take parts of whole windows (``cut``).
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simcse_cli.encoding.formats import (
    HEADER_BYTES,
    STORED,
    WITH_TEXT,
    VectorType,
    finish_file,
    quantize,
    stored_width,
    vector_file,
)
from simcse_cli.encoding.partial_file import PartialFile, digest_texts
from simcse_cli.errors import DataError, kept_on_interrupt
from simcse_cli.files.atomic import check_output, output_error, publish, staging_folder, sync
from simcse_cli.files.output import left_unfinished
from simcse_cli.progress import SILENT, Progress, ProgressTask, SilentProgress

_Item = TypeVar("_Item")
WINDOW = 8192
"""Sentences encoded together: enough to sort by length, little enough to hold."""

EncodeWithProgress = Callable[..., NDArray[np.float32]]
"""Maps sentences to vectors and takes a ``progress`` keyword, as ``ReadyEncoder.encode`` does."""


@dataclass(frozen=True)
class ProcessGroup:
    """Those that write one output together; this is number ``rank``, ``wait`` returns when all have called it."""

    rank: int = 0
    n_processes: int = 1
    wait: Callable[[], None] = lambda: None


ALONE = ProcessGroup()


@dataclass(frozen=True)
class Part:
    """A share of the input: the windows that hold its rows ``start`` to ``stop``, counted from 0, of ``total`` rows.

    Parts are numbered from 1, and can be empty.
    """

    number: int
    of: int
    start: int
    stop: int
    total: int


def cut(n_rows: int, n_parts: int) -> list[Part]:
    """Return an input in parts of whole windows, so that a row stands in the same window as without parts.

    Example:
        >>> [(part.start, part.stop) for part in cut(20_000, 2)]
        [(0, 8192), (8192, 20000)]
    """
    n_windows = count_windows(n_rows)
    ends = [min(WINDOW * (n_windows * number // n_parts), n_rows) for number in range(n_parts + 1)]
    spans = enumerate(itertools.pairwise(ends), start=1)
    return [Part(number, n_parts, start, stop, n_rows) for number, (start, stop) in spans]


def count_windows(n_rows: int) -> int:
    return -(-n_rows // WINDOW)


def windows(items: Iterable[_Item], size: int | None = None) -> Iterator[list[_Item]]:
    """Yield consecutive lists of up to ``size`` items, by default ``WINDOW``."""
    iterator = iter(items)
    while window := list(itertools.islice(iterator, size or WINDOW)):
        yield window


Companions = Callable[[Path, NDArray[Any], Iterable[str]], None]
"""Gets a folder, all rows and, where they are kept, all sentences before the output appears. Files that it writes in
the folder come to lie beside the output."""


def encode_stream(
    encode: EncodeWithProgress,
    sentences: Iterable[str],
    output: Path,
    *,
    dim: int,
    kind: VectorType = VectorType.FLOAT32,
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
    """Write one vector a sentence; row i of the file is sentence i.

    Sentences are read once, in order; nothing is created before the first of them have their vectors.
    ``resume`` continues an unfinished file if there is one, which needs the same ``settings`` (model digest,
    pooler, ...): what disagrees with the sentences or was damaged is encoded again. ``force`` overwrites a
    finished or unfinished one. ``total`` is the number of sentences where it is known, for the time left;
    with 0 of them the file has no rows. ``keep_texts`` gives them to ``companions`` in formats too that do not
    hold them; ``ids`` are read at the end, for the formats that hold texts. ``window`` is ``WINDOW`` unless
    given. Returned is the number of rows in the file; 0 on all processes but the first.

    Raises:
        OutputError: the output exists, an unfinished one exists, or the disk is full.
        DataError: the input is empty, or a resumed run has other settings than the interrupted one.
    """
    window = window or WINDOW
    keep_texts = keep_texts or vector_file(output) in WITH_TEXT
    facts = {"dim": dim, "dtype": kind.value, "window": window, "processes": group.n_processes}
    partial = PartialFile(output, group.rank, group.n_processes)
    partial.settings = {**(settings or {}), **facts, "texts": keep_texts}
    try:
        finished = _tidy_up(output, group)
        if finished is not None and resume:
            progress.info(f"{output} is finished already")
            return finished if group.rank == 0 else 0
        check_output(output, force=force)
        if partial.exists() and not (resume or force):
            raise left_unfinished(partial.rows)
        if resume and partial.exists():
            partial.resume(progress)
        else:
            partial.drop(force=force)

        def say_kept() -> str:
            n_kept = sum(each.rows for each in partial.windows)
            return f"{n_kept:,} sentences are kept; the same command with --resume goes on"

        with progress.task("encoding", total) as task, kept_on_interrupt(say_kept):
            every = windows(sentences, window)
            for texts in _open_windows(every, partial, group, task, may_be_empty=total == 0):
                inner = InsideTask(task)
                vectors = quantize(encode(texts, progress=inner), kind)
                task.advance(len(texts) - inner.n_done)
                partial.append(vectors, texts)
        group.wait()
        n_rows = 0
        if group.rank == 0:
            n_rows = _assemble(output, kind, dim, group.n_processes, companions, ids, force=force)
        group.wait()
    except OSError as error:
        raise output_error(output, error) from error
    return n_rows


def _tidy_up(output: Path, group: ProcessGroup) -> int | None:
    """Remove what lies beside an output that was killed when it was there already, and return its rows, else None."""
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
    """Passes what is finished inside a window or a part on to the task of the whole input."""

    def __init__(self, outer: ProgressTask) -> None:
        super().__init__()
        self._outer = outer
        self.n_done = 0.0

    def advance(self, amount: float = 1) -> None:
        self.n_done += amount
        self._outer.advance(amount)

    def update(self, *, total: float | None = None, **fields: str) -> None:
        pass  # the outer task has the total of all

    @contextmanager
    def task(self, description: str, total: float | None = None) -> Iterator[ProgressTask]:
        yield self


def _open_windows(
    every: Iterable[list[str]],
    partial: PartialFile,
    group: ProcessGroup,
    task: ProgressTask,
    *,
    may_be_empty: bool,
) -> Iterator[list[str]]:
    """Yield the windows of this process that are not encoded yet, or were with other sentences."""
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
                continue
        task.advance(len(texts))
    if number < 0 and not may_be_empty:
        raise DataError("the input holds no line", hint="give a file with one sentence a line")
    n_own = len(range(group.rank, number + 1, group.n_processes))
    if n_own < len(partial.windows):
        partial.keep(n_own)
    partial.open()


def _assemble(
    output: Path,
    kind: VectorType,
    dim: int,
    n_processes: int,
    companions: Companions | None,
    ids: Iterable[Any] | None,
    *,
    force: bool,
) -> int:
    """Turn the partial files into the output and return its number of rows."""
    partials = PartialFile.of_all(output, n_processes)
    for partial in partials:
        partial.read_journal()
    dtype, width = STORED[kind], stored_width(kind, dim)
    shape = (sum(window.rows for partial in partials for window in partial.windows), width)
    with staging_folder(output) as folder:
        raw, texts = partials[0].rows, partials[0].texts
        if n_processes > 1:
            raw, texts = _interleave(folder, partials)
        if companions is not None:
            rows = np.memmap(raw, dtype, "r", HEADER_BYTES, shape)
            companions(folder, rows, _read_texts(texts))
            del rows
        complete = finish_file(raw, folder / output.name, dtype, shape, _read_texts(texts), ids)
        for path in {raw, texts} - {partials[0].rows, partials[0].texts, complete}:
            path.unlink()
        sync(complete)
        check_output(output, force=force)
        partials[0].finish(complete, shape[0])
        publish(complete, output, folder)
    for partial in reversed(partials):  # the first one knows that the output is complete
        partial.remove()
    return shape[0]


def _read_texts(path: Path) -> Iterator[str]:
    with path.open("rb") as lines:
        yield from map(json.loads, lines)


def _interleave(folder: Path, partials: list[PartialFile]) -> tuple[Path, Path]:
    """Join the windows of all processes in the order of the input; return the files of rows and of texts."""
    raw, texts = folder / "rows", folder / "texts"
    with ExitStack() as stack:
        streams = [stack.enter_context(partial.rows.open("rb")) for partial in partials]
        text_streams = [stack.enter_context(partial.texts.open("rb")) for partial in partials]
        all_rows, all_texts = (stack.enter_context(path.open("xb")) for path in (raw, texts))
        all_rows.write(b"\0" * HEADER_BYTES)
        for stream in streams:
            stream.seek(HEADER_BYTES)
        for number in range(sum(len(partial.windows) for partial in partials)):
            own_number, rank = divmod(number, len(partials))
            window = partials[rank].windows[own_number]
            all_rows.write(streams[rank].read(window.row_bytes))
            all_texts.write(text_streams[rank].read(window.text_bytes))
    return raw, texts
