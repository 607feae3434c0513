"""Encode a stream of sentences of any length in constant memory, to be continued after a kill.

Lines are taken in windows of fixed size; a window's vectors are appended to a partial file beside the output and,
once they are on the disk, recorded as done with their digest and that of their sentences. A continued run keeps the
windows that agree with both and encodes the others. Windows start at the same lines in every run, so it gives the
same bytes. With several processes, process r takes windows r, r + W, r + 2W, ... and the first one puts them together.
Jobs that share nothing take parts of whole windows (``cut``).
"""

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
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
from simcse_cli.errors import DataError, OutputError, kept_on_interrupt
from simcse_cli.files import atomic_text, check_output, output_error, own_folder, publish, sync
from simcse_cli.progress import Progress, ProgressTask, SilentProgress
from simcse_cli.schema import checked

_Item = TypeVar("_Item")
WINDOW = 8192
"""Sentences encoded together: enough to sort by length, little enough to hold."""

EncodeWithProgress = Callable[..., NDArray[np.float32]]
"""Maps sentences to vectors and takes a ``progress`` keyword, as ``SentenceEncoder.encode`` does."""


@dataclass(frozen=True)
class Shard:
    """Which part of the windows this process takes; ``wait`` returns when all processes have called it."""

    rank: int = 0
    n_processes: int = 1
    wait: Callable[[], None] = lambda: None


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


Beside = Callable[[Path, NDArray[Any], Iterable[str]], None]
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
    shard: Shard | None = None,
    window: int | None = None,
    total: int | None = None,
    keep_texts: bool = False,
    ids: Iterable[Any] | None = None,
    beside: Beside | None = None,
    progress: Progress | None = None,
) -> int:
    """Write one vector a sentence; row i of the file is sentence i.

    Sentences are read once, in order; nothing is created before the first of them have their vectors.
    ``resume`` continues an unfinished file if there is one, which needs the same ``settings`` (model digest,
    pooler, ...): what disagrees with the sentences or was damaged is encoded again. ``force`` overwrites a
    finished or unfinished one. ``total`` is the number of sentences where it is known, for the time left;
    with 0 of them the file has no rows. ``keep_texts`` gives them to ``beside`` in formats too that do not
    hold them; ``ids`` are read at the end, for the formats that hold texts. ``window`` is ``WINDOW`` unless
    given. Returned is the number of rows in the file; 0 on all processes but the first.

    Raises:
        OutputError: the output exists, an unfinished one exists, or the disk is full.
        DataError: the input is empty, or a resumed run has other settings than the interrupted one.
    """
    shard, progress, window = shard or Shard(), progress or SilentProgress(), window or WINDOW
    keep_texts = keep_texts or vector_file(output) in WITH_TEXT
    facts = {"dim": dim, "dtype": kind.value, "window": window, "processes": shard.n_processes}
    partial = _Partial(output, shard, {**(settings or {}), **facts, "texts": keep_texts})
    try:
        finished = _tidy_up(output, shard)
        if finished is not None and resume:
            progress.info(f"{output} is finished already")
            return finished if shard.rank == 0 else 0
        check_output(output, force=force)
        if partial.exists() and not (resume or force):
            raise OutputError(
                f"{partial.rows} is left from an interrupted run",
                hint="continue it with --resume, or drop it with --force",
            )
        if resume and partial.exists():
            partial.resume(progress)
        else:
            partial.drop(force=force)

        def say_kept() -> str:
            n_kept = sum(each.rows for each in partial.windows)
            return f"{n_kept:,} sentences are kept; the same command with --resume goes on"

        with progress.task("encoding", total) as task, kept_on_interrupt(say_kept):
            every = windows(sentences, window)
            for texts in _open_windows(every, partial, shard, task, may_be_empty=total == 0):
                inner = InsideTask(task)
                vectors = quantize(encode(texts, progress=inner), kind)
                task.advance(len(texts) - inner.n_done)
                partial.append(vectors, texts)
        shard.wait()
        n_rows = 0
        if shard.rank == 0:
            n_rows = _assemble(output, kind, dim, shard.n_processes, beside, ids, force=force)
        shard.wait()
    except OSError as error:
        raise output_error(output, error) from error
    return n_rows


@dataclass(frozen=True)
class _Window:
    """A finished window: rows, bytes of rows and texts, SHA-256 of its sentences and of all that was written."""

    rows: int
    row_bytes: int
    text_bytes: int
    read: str
    written: str

    def digest(self, rows: bytes, texts: bytes) -> str:
        """Return what ``written`` is if these were written."""
        facts = (self.rows, self.row_bytes, self.text_bytes, self.read)
        return hashlib.sha256(json.dumps(facts).encode() + rows + texts).hexdigest()


class _Partial:
    """The unfinished output of one process: rows, texts where they are kept, and a journal.

    The journal is JSON Lines: the settings, each finished window and, before the output appears, which file will be it.
    It is the first of the three that is created and the last that is removed: rows without a journal are not ours.
    """

    def __init__(self, output: Path, shard: Shard, settings: dict[str, Any] | None = None) -> None:
        suffix = "" if shard.n_processes == 1 else f"-{shard.rank}"
        self.rows = output.with_name(f"{output.name}.part{suffix}")
        self.texts = output.with_name(f"{output.name}.part{suffix}.txt")
        self._journal = output.with_name(f"{output.name}.part{suffix}.json")
        self.settings = settings or {}
        self.windows: list[_Window] = []
        self._finished: dict[str, int] = {}
        self._is_open = False

    def exists(self) -> bool:
        return os.path.lexists(self._journal)

    def remove(self) -> None:
        for path in (self.rows, self.texts, self._journal):
            path.unlink(missing_ok=True)

    def drop(self, *, force: bool) -> None:
        """Make room for a new file.

        Raises:
            OutputError: there are rows or texts that no journal knows, and ``force`` is off.
        """
        for path in (self.rows, self.texts):
            if not self.exists():
                check_output(path, force=force)
        self.remove()

    def open(self) -> None:
        """Create what is not there yet."""
        if not self.exists():
            self._write_journal()
        for path, size in ((self.rows, HEADER_BYTES), (self.texts, 0)):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                if os.fstat(descriptor).st_size < size:
                    os.ftruncate(descriptor, size)
            finally:
                os.close(descriptor)
        self._is_open = True

    def read_journal(self) -> None:
        """Read settings and windows up to a line that a kill cut short.

        Raises:
            DataError: not even the settings can be read.
        """
        lines = self._journal.read_bytes().splitlines()
        try:
            self.settings = dict(json.loads(lines[0])["settings"])
            for line in lines[1:]:
                facts = json.loads(line)
                if "finished" in facts:
                    self._finished = dict(facts["finished"])
                else:
                    self.windows.append(checked(facts, _Window, "a window"))
        except (DataError, ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            if not self.settings:
                raise DataError(
                    f"{self._journal} is damaged", hint="start again with --force, which drops it"
                ) from error

    def finished_rows(self, output: Path) -> int | None:
        """Return the number of rows of the output if it is the file that was finished last, else None."""
        if not output.exists() or {**self._finished, **_identity(output)} != self._finished:
            return None
        return self._finished.get("rows")

    def resume(self, progress: Progress) -> None:
        """Read the journal and keep the windows before the first that was damaged."""
        wanted, self.settings = self.settings, {}
        self.read_journal()
        for key, value in wanted.items():
            if (found := self.settings.get(key)) != value:
                raise DataError(
                    f"{self._journal}: the unfinished file has {key} {found!r}, now it is {value!r}",
                    hint="repeat the command that was interrupted, or start again with --force",
                )
        self.settings = wanted
        n_recorded = len(self.windows)
        self.open()
        self.keep(self._count_intact())
        if len(self.windows) < n_recorded:
            progress.warn(
                f"{self.rows} was changed: {n_recorded - len(self.windows)} of {n_recorded} parts are encoded again"
            )
        if self.windows:
            progress.info(
                f"continuing {self.rows} after {sum(each.rows for each in self.windows):,} sentences"
            )

    def _count_intact(self) -> int:
        with self.rows.open("rb") as rows, self.texts.open("rb") as texts:
            rows.seek(HEADER_BYTES)
            for number, window in enumerate(self.windows):
                if (
                    window.digest(rows.read(window.row_bytes), texts.read(window.text_bytes))
                    != window.written
                ):
                    return number
        return len(self.windows)

    def keep(self, n_windows: int) -> None:
        """Cut the files back to the first windows."""
        self.windows = self.windows[:n_windows]
        self._finished = {}
        self._write_journal()
        os.truncate(self.rows, HEADER_BYTES + sum(window.row_bytes for window in self.windows))
        os.truncate(self.texts, sum(window.text_bytes for window in self.windows))

    def append(self, rows: NDArray[Any], texts: Sequence[str]) -> None:
        if not self._is_open:
            self.open()
        row_bytes, text_bytes = np.ascontiguousarray(rows).tobytes(), b""
        if self.settings["texts"]:
            text_bytes = "".join(json.dumps(text) + "\n" for text in texts).encode()
        _append(self.rows, row_bytes)
        if text_bytes:
            _append(self.texts, text_bytes)
        window = _Window(len(rows), len(row_bytes), len(text_bytes), _digest(texts), "")
        window = replace(window, written=window.digest(row_bytes, text_bytes))
        self._record(asdict(window))
        self.windows.append(window)

    def finish(self, complete: Path, n_rows: int) -> None:
        """Record which file becomes the output."""
        self._record({"finished": _identity(complete) | {"rows": n_rows}})

    def _record(self, facts: dict[str, Any]) -> None:
        _append(self._journal, json.dumps(facts).encode() + b"\n")

    def _write_journal(self) -> None:
        with atomic_text(self._journal, force=True) as stream:
            for facts in ({"settings": self.settings}, *map(asdict, self.windows)):
                stream.write(json.dumps(facts) + "\n")


def _append(path: Path, data: bytes) -> None:
    """Append to a file that is no link, and return when the data are on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)


def _identity(path: Path) -> dict[str, int]:
    """Return what a file keeps when it is renamed."""
    found = path.stat()
    return {"inode": found.st_ino, "bytes": found.st_size}


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("".join(f"{text}\n" for text in texts).encode("utf-8", "surrogatepass")).hexdigest()


def is_unfinished(output: Path) -> bool:
    """Say whether there is a partial file for ``resume`` to continue."""
    return any(_Partial(output, Shard(0, n_processes)).exists() for n_processes in (1, 2))


def drop_unfinished(output: Path) -> None:
    """Remove the partial file of an output, if there is one."""
    _Partial(output, Shard()).remove()


def _tidy_up(output: Path, shard: Shard) -> int | None:
    """Remove what lies beside an output that was killed when it was there already, and return its rows, else None."""
    partials = [_Partial(output, Shard(rank, shard.n_processes)) for rank in range(shard.n_processes)]
    n_rows = None
    if partials[0].exists():
        with suppress(DataError):
            partials[0].read_journal()
            n_rows = partials[0].finished_rows(output)
    shard.wait()
    if n_rows is not None and shard.rank == 0:
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
    every: Iterable[list[str]], partial: _Partial, shard: Shard, task: ProgressTask, *, may_be_empty: bool
) -> Iterator[list[str]]:
    """Yield the windows of this process that are not encoded yet, or were with other sentences."""
    number = -1
    for number, texts in enumerate(every):
        own_number, rank = divmod(number, shard.n_processes)
        if rank == shard.rank:
            is_recorded = own_number < len(partial.windows)
            if is_recorded and partial.windows[own_number].read != _digest(texts):
                partial.keep(own_number)
                is_recorded = False
            if not is_recorded:
                yield texts
                continue
        task.advance(len(texts))
    if number < 0 and not may_be_empty:
        raise DataError("the input holds no line", hint="give a file with one sentence a line")
    n_own = len(range(shard.rank, number + 1, shard.n_processes))
    if n_own < len(partial.windows):
        partial.keep(n_own)
    partial.open()


def _assemble(
    output: Path,
    kind: VectorType,
    dim: int,
    n_processes: int,
    beside: Beside | None,
    ids: Iterable[Any] | None,
    *,
    force: bool,
) -> int:
    """Turn the partial files into the output and return its number of rows."""
    partials = [_Partial(output, Shard(rank, n_processes)) for rank in range(n_processes)]
    for partial in partials:
        partial.read_journal()
    dtype, width = STORED[kind], stored_width(kind, dim)
    shape = (sum(window.rows for partial in partials for window in partial.windows), width)
    with own_folder(output) as folder:
        raw, texts = partials[0].rows, partials[0].texts
        if n_processes > 1:
            raw, texts = _interleave(folder, partials)
        if beside is not None:
            rows = np.memmap(raw, dtype, "r", HEADER_BYTES, shape)
            beside(folder, rows, _read_texts(texts))
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


def _interleave(folder: Path, partials: list[_Partial]) -> tuple[Path, Path]:
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
