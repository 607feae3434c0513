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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.encoding import formats
from simcse_cli.encoding.formats import HEADER_BYTES, IN_PLACE, WITH_TEXT, VectorFile
from simcse_cli.encoding.quantize import STORED, VectorType, quantize, stored_width
from simcse_cli.errors import DataError, OutputError
from simcse_cli.files import check_output, iter_lines, output_error, read_json, write_json
from simcse_cli.progress import Progress, ProgressTask, SilentProgress

WINDOW = 8192
"""Sentences encoded together: enough to sort by length, little enough to hold."""

Encode = Callable[..., NDArray[np.float32]]
"""Maps sentences to vectors and takes a ``progress`` keyword, as ``SentenceEncoder.encode`` does."""


@dataclass(frozen=True)
class Shard:
    """Which part of the windows this process takes."""

    rank: int = 0
    n_processes: int = 1
    wait: Callable[[], None] = lambda: None


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
        """Ignore: the outer task has the total of all windows."""

    @contextmanager
    def task(self, description: str, total: float | None = None) -> Iterator[ProgressTask]:
        yield self


class _Partial:
    """The partial file of one process: rows, texts where the format keeps them, and how far it got."""

    def __init__(self, output: Path, rank: int, n_processes: int) -> None:
        suffix = "" if n_processes == 1 else f"-{rank}"
        self.rows = output.with_name(f"{output.name}.part{suffix}")
        self.texts = output.with_name(f"{output.name}.part{suffix}.txt")
        self.state = output.with_name(f"{output.name}.part{suffix}.json")

    def exists(self) -> bool:
        return self.state.exists()

    def remove(self) -> None:
        for path in (self.rows, self.texts, self.state):
            path.unlink(missing_ok=True)

    def start(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a new partial file, written to disk."""
        self.rows.write_bytes(b"\0" * HEADER_BYTES)
        self.texts.write_bytes(b"")
        state = {
            "settings": settings,
            "windows": 0,
            "rows": 0,
            "bytes": HEADER_BYTES,
            "text_bytes": 0,
            "read": "",
        }
        self.save(state)
        return state

    def resume(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the recorded state, the files cut back to it.

        Raises:
            DataError: it was made with other settings or from another input.
        """
        state: dict[str, Any] = read_json(self.state)
        for key, value in settings.items():
            if state["settings"].get(key) != value:
                raise DataError(
                    f"{self.state}: the unfinished file has {key} {state['settings'].get(key)!r}, now it is {value!r}",
                    hint="repeat the command that was interrupted, or start again with --force",
                )
        os.truncate(self.rows, state["bytes"])
        os.truncate(self.texts, state["text_bytes"])
        return state

    def save(self, state: dict[str, Any]) -> None:
        write_json(self.state, state)

    def append(self, rows: NDArray[Any], texts: Sequence[str] | None, state: dict[str, Any]) -> None:
        """Add a window and record it."""
        with self.rows.open("ab") as stream:
            formats.append_rows(stream, rows)
        if texts is not None:
            with self.texts.open("a", encoding="utf-8", newline="\n") as lines:
                lines.writelines(json.dumps(text, ensure_ascii=False) + "\n" for text in texts)
        state["windows"] += 1
        state["rows"] += len(rows)
        state["bytes"] = self.rows.stat().st_size
        state["text_bytes"] = self.texts.stat().st_size
        self.save(state)


def windows(sentences: Iterable[str], size: int = WINDOW) -> Iterator[list[str]]:
    """Yield consecutive lists of up to ``size`` sentences."""
    iterator = iter(sentences)
    while window := list(itertools.islice(iterator, size)):
        yield window


def encode_stream(
    encode: Encode,
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

    Args:
        encode: sentences to float32 vectors.
        sentences: read once, in order; a resumed run must get the same ones.
        output: ends in .npy, .npz, .safetensors, .parquet or .jsonl.
        dim: width of the vectors.
        kind: how components are stored.
        settings: facts that must be equal for a run to be continued (model digest, input digest, ...).
        resume: continue an unfinished file if there is one.
        force: overwrite a finished or unfinished file.
        shard: the part of this process, where several work together.
        window: sentences encoded together.
        total: number of sentences, if known, for the time left.
        progress: shown in sentences.

    Returns:
        Number of rows in the file.

    Raises:
        OutputError: the output exists, an unfinished one exists, or the disk is full.
        DataError: the input is empty, or a resumed run differs from the interrupted one.
    """
    shard, progress = shard or Shard(), progress or SilentProgress()
    form = formats.vector_file(output)
    check_output(output, force=force)
    partial = _Partial(output, shard.rank, shard.n_processes)
    facts = {
        **(settings or {}),
        "dim": dim,
        "dtype": kind.value,
        "window": window,
        "processes": shard.n_processes,
    }
    if partial.exists() and not (resume or force):
        raise OutputError(
            f"{partial.rows} is left from an interrupted run",
            hint="continue it with --resume, or drop it with --force",
        )
    try:
        state = partial.resume(facts) if resume and partial.exists() else partial.start(facts)
        if state["windows"]:
            progress.info(f"continuing {output} after {state['rows']:,} sentences")
        _encode_windows(encode, sentences, partial, state, shard, kind, form, window, total, progress)
        shard.wait()
        n_rows = 0
        if shard.rank == 0:
            n_rows = _assemble(output, form, shard.n_processes, kind, dim)
        shard.wait()
        return n_rows
    except OSError as error:
        raise output_error(output, error) from error


def _encode_windows(
    encode: Encode,
    sentences: Iterable[str],
    partial: _Partial,
    state: dict[str, Any],
    shard: Shard,
    kind: VectorType,
    form: VectorFile,
    window: int,
    total: int | None,
    progress: Progress,
) -> None:
    read = hashlib.sha256()
    done = state["windows"]
    n_sentences = 0
    with progress.task("encoding", total) as task:
        for number, texts in enumerate(windows(sentences, window)):
            n_sentences += len(texts)
            mine = number % shard.n_processes == shard.rank
            for text in texts if mine else ():
                read.update(text.encode("utf-8", "surrogatepass") + b"\n")
            if not mine:
                task.advance(len(texts))
                continue
            if number // shard.n_processes < done:
                if number // shard.n_processes == done - 1 and read.hexdigest() != state["read"]:
                    raise DataError(
                        f"the first {n_sentences:,} sentences differ from those of the interrupted run",
                        hint="give the same input, or start again with --force",
                    )
                task.advance(len(texts))
                continue
            inner = _WindowProgress(task)
            vectors = quantize(encode(texts, progress=inner), kind)
            task.advance(len(texts) - inner.n_done)
            state["read"] = read.hexdigest()
            partial.append(vectors, texts if form in WITH_TEXT else None, state)
    if n_sentences == 0:
        partial.remove()
        raise DataError("the input holds no line", hint="give a file with one sentence a line")


def _assemble(output: Path, form: VectorFile, n_processes: int, kind: VectorType, dim: int) -> int:
    """Turn the partial files into the output and return its number of rows."""
    partials = [_Partial(output, rank, n_processes) for rank in range(n_processes)]
    dtype: np.dtype[Any] = STORED[kind]
    width = stored_width(kind, dim)
    n_rows = sum(int(read_json(partial.state)["rows"]) for partial in partials)
    raw, texts = partials[0].rows, partials[0].texts
    if n_processes > 1:
        raw, texts = _interleave(output, partials, width * dtype.itemsize)
    shape = (n_rows, width)
    if form in IN_PLACE:
        formats.write_header(raw, form, dtype, shape)
        os.replace(raw, output)
    else:
        target = output.with_name(f".{output.name}.tmp")
        lines = (json.loads(line) for line in iter_lines(texts)) if form in WITH_TEXT else iter(())
        formats.convert(raw, target, form, dtype, shape, lines)
        os.replace(target, output)
    for partial in partials:
        partial.remove()
    for leftover in (raw, texts):
        leftover.unlink(missing_ok=True)
    return n_rows


def _interleave(output: Path, partials: list[_Partial], row_bytes: int) -> tuple[Path, Path]:
    """Join the windows of all processes in the order of the input."""
    joined = output.with_name(f"{output.name}.part"), output.with_name(f"{output.name}.part.txt")
    states = [read_json(partial.state) for partial in partials]
    window = states[0]["settings"]["window"]
    streams = [partial.rows.open("rb") for partial in partials]
    text_streams = [partial.texts.open("rb") for partial in partials]
    with joined[0].open("wb") as rows, joined[1].open("wb") as texts:
        rows.write(b"\0" * HEADER_BYTES)
        for stream in streams:
            stream.seek(HEADER_BYTES)
        for number in range(sum(state["windows"] for state in states)):
            rank = number % len(partials)
            _copy_bytes(streams[rank], rows, window * row_bytes)
            texts.writelines(itertools.islice(text_streams[rank], window))
    for stream in (*streams, *text_streams):
        stream.close()
    return joined


def _copy_bytes(source: Any, target: Any, n_bytes: int) -> None:
    """Copy up to ``n_bytes`` from one stream to another."""
    while n_bytes > 0 and (block := source.read(min(n_bytes, 1 << 20))):
        target.write(block)
        n_bytes -= len(block)
