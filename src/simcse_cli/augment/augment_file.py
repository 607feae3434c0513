"""Stream sentences through an augmentation into ``anchor,positive`` rows, in order, on several cores."""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, count, islice
from multiprocessing import get_context
from typing import Protocol

from simcse_cli.augment.augmentations import sentence_key
from simcse_cli.augment.text_units import is_unspaced
from simcse_cli.data.text import clean_text
from simcse_cli.progress import Progress

_CHUNK_LINES = 2000
# Starting workers takes longer than this many chunks do in one process.
_CHUNKS_WITHOUT_WORKERS = 4
_CHUNKS_PER_WORKER = 3

COLUMNS = ("anchor", "positive")
Pair = tuple[str, str]
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

    def rows(self, lines: Sequence[NumberedLine]) -> list[Pair]:
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


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def number_lines(sentences: Iterable[str], start: int = 0) -> list[NumberedLine]:
    """Return the sentences that are not blank, on one line each, with their numbers in the input."""
    cleaned = ((number, clean_text(sentence)) for number, sentence in enumerate(sentences, start))
    return [(number, text) for number, text in cleaned if text]


def write_pairs(
    sentences: Iterable[str],
    write: Callable[[Pair], object],
    job: AugmentJob,
    *,
    workers: int,
    progress: Progress,
) -> AugmentCounts:
    """Write the rows of all sentences and return what happened; the rows do not depend on ``workers``.

    Args:
        sentences: one per line of the input, in order; lines count from 0.
        write: takes one row.
        job: the augmentation.
        workers: processes to use; short inputs are done in this one.
        progress: receives the number of lines done.
    """
    counts = AugmentCounts()
    with progress.task("augment") as task:
        for rows, part in _results(_chunks(sentences), job, workers):
            for row in rows:
                write(row)
            counts += part
            task.advance(part.n_lines + part.n_blank)
    return counts


_Chunk = tuple[int, list[str]]  # number of the first line, lines
_Result = tuple[list[Pair], AugmentCounts]


def _chunks(sentences: Iterable[str]) -> Iterator[_Chunk]:
    remaining = iter(sentences)
    for start in count(step=_CHUNK_LINES):
        lines = list(islice(remaining, _CHUNK_LINES))
        if not lines:
            return
        yield start, lines


def _results(chunks: Iterator[_Chunk], job: AugmentJob, workers: int) -> Iterator[_Result]:
    head = list(islice(chunks, _CHUNKS_WITHOUT_WORKERS))
    if workers < 2 or len(head) < _CHUNKS_WITHOUT_WORKERS:
        for chunk in chain(head, chunks):
            yield _augment_chunk(chunk, job)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (job,)) as pool:
        waiting: deque[Future[_Result]] = deque()
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


_worker_job: AugmentJob | None = None


def _start_worker(job: AugmentJob) -> None:
    global _worker_job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent reports an interruption once
    _worker_job = job


def _work(chunk: _Chunk) -> _Result:
    if _worker_job is None:
        raise ValueError("the worker was not started with a job")
    return _augment_chunk(chunk, _worker_job)


def _augment_chunk(chunk: _Chunk, job: AugmentJob) -> _Result:
    start, sentences = chunk
    lines = number_lines(sentences, start)
    rows = job.rows(lines)
    return rows, AugmentCounts(
        n_lines=len(lines),
        n_blank=len(sentences) - len(lines),
        n_rows=len(rows),
        n_unchanged=sum(anchor == positive for anchor, positive in rows),
        n_unspaced=sum(is_unspaced(text) for _, text in lines),
    )
