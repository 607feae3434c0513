"""Encode a stream of sentences of any length in constant memory, to be continued after a kill.

Lines are taken in windows of fixed size; a window's vectors are appended to a partial file beside the output and
then recorded as done. Windows start at the same lines in every run, so a continued run gives the same bytes.
With several processes, process r takes windows r, r + W, r + 2W, ... and the first one puts them together.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
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
from simcse_cli.errors import DataError, OutputError
from simcse_cli.files import check_output, iter_lines, output_error, read_json, write_json
from simcse_cli.progress import Progress, ProgressTask, SilentProgress

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


def windows(items: Iterable[_Item], size: int = WINDOW) -> Iterator[list[_Item]]:
    """Yield consecutive lists of up to ``size`` items."""
    iterator = iter(items)
    while window := list(itertools.islice(iterator, size)):
        yield window


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
    window: int = WINDOW,
    total: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Write one vector a sentence; row i of the file is sentence i.

    Sentences are read once, in order. ``resume`` continues an unfinished file if there is one, which needs the
    same sentences and the same ``settings`` (model digest, input digest, ...); ``force`` overwrites a finished or
    unfinished one. ``total`` is the number of sentences where it is known, for the time left.

    Returns:
        Number of rows in the file; 0 on all processes but the first.

    Raises:
        OutputError: the output exists, an unfinished one exists, or the disk is full.
        DataError: the input is empty, or a resumed run differs from the interrupted one.
    """
    shard, progress = shard or Shard(), progress or SilentProgress()
    keeps_texts = vector_file(output) in WITH_TEXT
    check_output(output, force=force)
    facts = {"dim": dim, "dtype": kind.value, "window": window, "processes": shard.n_processes}
    partial = _Partial(output, shard)
    is_resumed = resume and partial.exists()
    if partial.exists() and not (resume or force):
        raise OutputError(
            f"{partial.rows} is left from an interrupted run",
            hint="continue it with --resume, or drop it with --force",
        )
    try:
        (partial.resume if is_resumed else partial.start)({**(settings or {}), **facts})
        if partial.state.windows:
            progress.info(f"continuing {output} after {partial.state.rows:,} sentences")
        with progress.task("encoding", total) as task:
            for texts in _open_windows(windows(sentences, window), partial, shard, task):
                inner = _WindowProgress(task)
                vectors = quantize(encode(texts, progress=inner), kind)
                task.advance(len(texts) - inner.n_done)
                partial.append(vectors, texts if keeps_texts else [])
        shard.wait()
        n_rows = _assemble(output, kind, dim, shard.n_processes) if shard.rank == 0 else 0
        shard.wait()
    except OSError as error:
        raise output_error(output, error) from error
    return n_rows


@dataclass
class _State:
    """How far a process got: what it has written of which run, and the digest of the sentences it has read."""

    settings: dict[str, Any]
    windows: int = 0
    rows: int = 0
    bytes: int = HEADER_BYTES
    text_bytes: int = 0
    read: str = ""


class _Partial:
    """The unfinished output of one process: rows, texts where the format keeps them, and its state."""

    state: _State

    def __init__(self, output: Path, shard: Shard) -> None:
        suffix = "" if shard.n_processes == 1 else f"-{shard.rank}"
        self.rows = output.with_name(f"{output.name}.part{suffix}")
        self.texts = output.with_name(f"{output.name}.part{suffix}.txt")
        self._record = output.with_name(f"{output.name}.part{suffix}.json")

    def exists(self) -> bool:
        return self._record.exists()

    def remove(self) -> None:
        for path in (self.rows, self.texts, self._record):
            path.unlink(missing_ok=True)

    def start(self, settings: dict[str, Any]) -> None:
        self.rows.write_bytes(b"\0" * HEADER_BYTES)
        self.texts.write_bytes(b"")
        self.state = _State(settings)
        self._save()

    def read_state(self) -> None:
        self.state = _State(**read_json(self._record))

    def resume(self, settings: dict[str, Any]) -> None:
        """Read the state and cut the files back to it.

        Raises:
            DataError: it was made with other settings or from another input.
        """
        self.read_state()
        for key, value in settings.items():
            if (found := self.state.settings.get(key)) != value:
                raise DataError(
                    f"{self._record}: the unfinished file has {key} {found!r}, now it is {value!r}",
                    hint="repeat the command that was interrupted, or start again with --force",
                )
        os.truncate(self.rows, self.state.bytes)
        os.truncate(self.texts, self.state.text_bytes)

    def append(self, rows: NDArray[Any], texts: Sequence[str]) -> None:
        with self.rows.open("ab") as stream:
            stream.write(np.ascontiguousarray(rows).tobytes())
        with self.texts.open("a", encoding="utf-8", newline="\n") as lines:
            lines.writelines(json.dumps(text, ensure_ascii=False) + "\n" for text in texts)
        self.state.windows += 1
        self.state.rows += len(rows)
        self.state.bytes = self.rows.stat().st_size
        self.state.text_bytes = self.texts.stat().st_size
        self._save()

    def _save(self) -> None:
        write_json(self._record, asdict(self.state))


class _WindowProgress(SilentProgress):
    """Passes what the encoder finishes inside a window on to the task of the whole input."""

    def __init__(self, outer: ProgressTask) -> None:
        super().__init__()
        self._outer = outer
        self.n_done = 0.0

    def advance(self, amount: float = 1) -> None:
        self.n_done += amount
        self._outer.advance(amount)

    def update(self, *, total: float | None = None, **fields: str) -> None:
        pass  # the outer task has the total of all windows

    @contextmanager
    def task(self, description: str, total: float | None = None) -> Iterator[ProgressTask]:
        yield self


def _open_windows(
    every: Iterable[list[str]], partial: _Partial, shard: Shard, task: ProgressTask
) -> Iterator[list[str]]:
    """Yield the windows of this process that are not encoded yet.

    Raises:
        DataError: the input is empty, or those encoded already differ from the input's.
    """
    read = hashlib.sha256()
    n_done, n_sentences = partial.state.windows, 0
    for number, texts in enumerate(every):
        n_sentences += len(texts)
        own_number, rank = divmod(number, shard.n_processes)
        if rank == shard.rank:
            for text in texts:
                read.update(text.encode("utf-8", "surrogatepass") + b"\n")
            if own_number >= n_done:
                partial.state.read = read.hexdigest()
                yield texts
                continue
            if own_number == n_done - 1 and read.hexdigest() != partial.state.read:
                raise DataError(
                    f"the first {n_sentences:,} sentences differ from those of the interrupted run",
                    hint="give the same input, or start again with --force",
                )
        task.advance(len(texts))
    if n_sentences == 0:
        partial.remove()
        raise DataError("the input holds no line", hint="give a file with one sentence a line")


def _assemble(output: Path, kind: VectorType, dim: int, n_processes: int) -> int:
    """Turn the partial files into the output and return its number of rows."""
    partials = [_Partial(output, Shard(rank, n_processes)) for rank in range(n_processes)]
    for partial in partials:
        partial.read_state()
    dtype, width = STORED[kind], stored_width(kind, dim)
    n_rows = sum(partial.state.rows for partial in partials)
    whole = partials[0] if n_processes == 1 else _interleave(output, partials, width * dtype.itemsize)
    texts = (json.loads(line) for line in iter_lines(whole.texts)) if whole.texts.stat().st_size else ()
    finish_file(whole.rows, output, vector_file(output), dtype, (n_rows, width), texts)
    for partial in (*partials, whole):
        partial.remove()
    return n_rows


def _interleave(output: Path, partials: list[_Partial], row_bytes: int) -> _Partial:
    """Join the windows of all processes in the order of the input."""
    joined = _Partial(output, Shard())
    window = partials[0].state.settings["window"]
    with ExitStack() as stack:
        streams = [stack.enter_context(partial.rows.open("rb")) for partial in partials]
        text_streams = [stack.enter_context(partial.texts.open("rb")) for partial in partials]
        rows = stack.enter_context(joined.rows.open("wb"))
        texts = stack.enter_context(joined.texts.open("wb"))
        rows.write(b"\0" * HEADER_BYTES)
        for stream in streams:
            stream.seek(HEADER_BYTES)
        for number in range(sum(partial.state.windows for partial in partials)):
            rank = number % len(partials)
            rows.write(streams[rank].read(window * row_bytes))
            texts.writelines(itertools.islice(text_streams[rank], window))
    return joined
