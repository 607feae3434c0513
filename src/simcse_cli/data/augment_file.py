"""Stream sentences through an augmentation into ``anchor,positive`` rows, in order, on several cores."""

import csv
import io
import json
import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol, TextIO

from simcse_cli.data.augmentations import sentence_key
from simcse_cli.data.text_units import is_unspaced
from simcse_cli.errors import ConfigError
from simcse_cli.files import STDIO
from simcse_cli.progress import Progress

_CHUNK_LINES = 2000
# Starting workers takes longer than this many chunks do in one process.
_CHUNKS_WITHOUT_WORKERS = 4
_CHUNKS_PER_WORKER = 3
_COLUMNS = ("anchor", "positive")
_FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl"}

NumberedLine = tuple[int, str]


class Rewriter(Protocol):
    """Rewrites texts, each by the randomness of its own key."""

    def many(self, texts: Sequence[str], keys: Sequence[int]) -> list[str]:
        """Return one rewritten text for each text."""


@dataclass(frozen=True)
class AugmentJob:
    """What to make of each line.

    Args:
        rewriter: the augmentation.
        seed: 0 or more.
        copies: rows per line, each with other randomness.
        both_sides: augment the anchor too, independently of the positive.
    """

    rewriter: Rewriter
    seed: int
    copies: int = 1
    both_sides: bool = False

    def rows(self, lines: Sequence[NumberedLine]) -> list[tuple[str, str]]:
        """Return the ``(anchor, positive)`` rows of numbered lines, the copies of a line together."""
        draws = [(number, text, copy) for number, text in lines for copy in range(self.copies)]
        texts = [text for _, text, _ in draws]
        positives = self._rewrite(draws, side=0)
        anchors = self._rewrite(draws, side=1) if self.both_sides else texts
        return list(zip(anchors, positives, strict=True))

    def _rewrite(self, draws: Sequence[tuple[int, str, int]], side: int) -> list[str]:
        keys = [sentence_key(self.seed, number, copy, side) for number, _, copy in draws]
        return self.rewriter.many([text for _, text, _ in draws], keys)


@dataclass(frozen=True)
class AugmentCounts:
    """What happened to the input.

    Args:
        n_lines: lines with something in them.
        n_blank: lines without, which give no row.
        n_rows: rows written.
        n_unchanged: rows whose two sides are equal.
        n_unspaced: lines with a stretch in a script written without spaces.
    """

    n_lines: int = 0
    n_blank: int = 0
    n_rows: int = 0
    n_unchanged: int = 0
    n_unspaced: int = 0

    def __add__(self, other: "AugmentCounts") -> "AugmentCounts":
        return AugmentCounts(
            self.n_lines + other.n_lines,
            self.n_blank + other.n_blank,
            self.n_rows + other.n_rows,
            self.n_unchanged + other.n_unchanged,
            self.n_unspaced + other.n_unspaced,
        )


@dataclass(frozen=True)
class _Chunk:
    lines: list[NumberedLine] = field(default_factory=list)
    n_blank: int = 0


def row_format(output: Path | str) -> str:
    """Return the format of an output file by its ending: csv (also for ``-``), tsv or jsonl.

    Raises:
        ConfigError: another ending.
    """
    if str(output) == STDIO:
        return "csv"
    try:
        return _FORMATS[Path(output).suffix.lower()]
    except KeyError:
        raise ConfigError(
            f"{output}: ending {Path(output).suffix or '(none)'}, need .csv, .tsv or .jsonl",
            hint=f"write to {Path(output).with_suffix('.csv')}",
        ) from None


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_pairs(
    sentences: Iterable[str], stream: TextIO, job: AugmentJob, *, fmt: str, workers: int, progress: Progress
) -> AugmentCounts:
    """Write the rows of all sentences and return what happened; the bytes do not depend on ``workers``.

    Args:
        sentences: one per line of the input, in order; lines count from 0.
        stream: gets a header (not for jsonl) and the rows.
        job: the augmentation.
        fmt: csv, tsv or jsonl.
        workers: processes to use; short inputs are done in this one.
        progress: receives the number of lines done.
    """
    counts = AugmentCounts()
    if fmt != "jsonl":
        stream.write(_format_rows([_COLUMNS], fmt))
    with progress.task("augment") as task:
        for block, part in _blocks(_chunks(sentences), job, fmt, workers):
            stream.write(block)
            counts += part
            task.advance(part.n_lines + part.n_blank)
    return counts


def _chunks(sentences: Iterable[str]) -> Iterator[_Chunk]:
    numbered = enumerate(sentences)
    while taken := list(islice(numbered, _CHUNK_LINES)):
        lines = [(number, text) for number, sentence in taken if (text := sentence.strip())]
        yield _Chunk(lines, len(taken) - len(lines))


def _blocks(
    chunks: Iterator[_Chunk], job: AugmentJob, fmt: str, workers: int
) -> Iterator[tuple[str, AugmentCounts]]:
    head = list(islice(chunks, _CHUNKS_WITHOUT_WORKERS))
    if workers < 2 or len(head) < _CHUNKS_WITHOUT_WORKERS:
        for chunk in chain(head, chunks):
            yield _block(chunk, job, fmt)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (job, fmt)) as pool:
        waiting: deque[Future[tuple[str, AugmentCounts]]] = deque()
        try:
            for chunk in chain(head, chunks):
                # Never more than a few chunks ahead, so that memory does not grow with the input.
                if len(waiting) >= workers * _CHUNKS_PER_WORKER:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(_work, chunk))
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


_worker_job: tuple[AugmentJob, str] | None = None


def _start_worker(job: AugmentJob, fmt: str) -> None:
    global _worker_job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent reports an interruption once
    _worker_job = job, fmt


def _work(chunk: _Chunk) -> tuple[str, AugmentCounts]:
    if _worker_job is None:
        raise ValueError("the worker was not started with a job")
    return _block(chunk, *_worker_job)


def _block(chunk: _Chunk, job: AugmentJob, fmt: str) -> tuple[str, AugmentCounts]:
    rows = job.rows(chunk.lines)
    counts = AugmentCounts(
        n_lines=len(chunk.lines),
        n_blank=chunk.n_blank,
        n_rows=len(rows),
        n_unchanged=sum(anchor == positive for anchor, positive in rows),
        n_unspaced=sum(is_unspaced(text) for _, text in chunk.lines),
    )
    return _format_rows(rows, fmt), counts


def _format_rows(rows: Iterable[Sequence[str]], fmt: str) -> str:
    if fmt == "jsonl":
        return "".join(
            json.dumps(dict(zip(_COLUMNS, row, strict=True)), ensure_ascii=False) + "\n" for row in rows
        )
    if fmt == "tsv":
        return "".join("\t".join(" ".join(cell.split("\t")) for cell in row) + "\n" for row in rows)
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()
