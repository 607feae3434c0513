"""``--check-leak``: find evaluation sentences in training rows, exactly or nearly."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from simcse_cli.data.senteval import (
    Split,
    has_split,
    read_sts_task,
    resolve_senteval_dir,
    sts_folder,
)
from simcse_cli.data.text import match_key, words
from simcse_cli.data.transfer_files import TransferTask, missing_transfer_files, read_transfer_task
from simcse_cli.data.writers import Row
from simcse_cli.encoding.parts import windows
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.prepare.minhash import NearIndex
from simcse_cli.prepare.options import RowOptions
from simcse_cli.progress import Progress
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS

MIN_WORDS = 3
"""Shorter evaluation sentences are ignored: "very good" in a corpus is no leak."""
_SKETCH_BATCH = 1024


@dataclass(frozen=True)
class TaskLeak:
    """How many sentences of one task occur in training rows.

    Sentences that differ only in case, spacing and punctuation count as one. ``n_sentences`` counts
    the sentences with at least ``MIN_WORDS`` words. Of these sentences, ``n_exact`` occur exactly,
    and ``n_near`` occur only nearly; ``n_near`` is None if near occurrences were not searched.
    ``n_rows`` is the number of rows in which a sentence occurs, exactly or nearly.
    """

    task: str
    n_sentences: int
    n_exact: int
    n_near: int | None
    n_rows: int


def evaluation_sentences(data_dir: Path | str) -> dict[str, list[str]]:
    """Return the evaluation sentences in a SentEval folder by task; missing tasks are left out.

    An STS task gives all of its sentences, including the train and dev parts of STS-B and SICK-R. A
    transfer task gives the sentences that are scored: the dev and test parts of SST2, TREC and
    MRPC, and everything in MR, CR, SUBJ and MPQA.
    """
    root = resolve_senteval_dir(data_dir)
    sentences: dict[str, list[str]] = {}
    for task in STS_TASKS:
        if sts_folder(root, task).is_dir():
            split: Split = "all" if has_split(task, "train") else "test"
            sentences[task] = read_sts_task(root, task, split=split).sentences
    missing = missing_transfer_files(root)
    for task in TRANSFER_TASKS:
        if task not in missing:
            sentences[task] = _scored_sentences(read_transfer_task(root, task))
    if not sentences:
        hint = f"simcse prepare senteval --data-dir {data_dir}"
        raise DataError(f"{root} holds no complete evaluation task", hint=hint)
    return sentences


def _scored_sentences(data: TransferTask) -> list[str]:
    """Return the sentences of a task outside its train part."""
    scored_rows: list[int] = []
    for part, rows in data.parts.items():
        if part != "train":
            scored_rows += rows
    sides = filter(None, (data.left, data.right))  # only pairs have a right side
    return [side[row] for side in sides for row in scored_rows]


class LeakFilter:
    """Find evaluation sentences in rows; the method ``reasons`` is a ``RowFilter``.

    ``sentences`` holds the sentences of each task. With ``drop``, the rows that contain a sentence
    are dropped; otherwise they are only counted. ``near`` is the least Jaccard similarity of a near
    occurrence; if it is None, only exact occurrences are searched.
    """

    def __init__(
        self, sentences: dict[str, list[str]], *, drop: bool = False, near: float | None = None
    ) -> None:
        self._drop = drop
        self._tasks_of: dict[str, set[str]] = defaultdict(set)  # by match key of a sentence
        self._n_rows = dict.fromkeys(sentences, 0)
        # Match keys of the sentences that have occurred exactly, and of those that have occurred
        # nearly. A sentence may be in both sets.
        self._exact: set[str] = set()
        self._nearly: set[str] = set()
        text_of: dict[str, str] = {}  # the first text with each match key
        for task, texts in sentences.items():
            for text in filter(_is_long_enough, texts):
                key = match_key(text)
                self._tasks_of[key].add(task)
                text_of.setdefault(key, text)
        self._keys = list(text_of)  # by the number of the text in the index
        self._index = None if near is None else _near_index(text_of.values(), near)

    def reasons(self, rows: Sequence[Row]) -> list[str | None]:
        """Count the evaluation sentences in the rows; return for each row why it is dropped.

        The reason is ``in_evaluation_set``, or None for a row that is kept.
        """
        reasons: list[str | None] = []
        for row, nearly in zip(rows, self._near(rows), strict=True):
            exact = self._tasks_of.keys() & set(map(match_key, row))
            self._exact |= exact
            self._nearly |= nearly
            tasks = set[str]()
            for key in exact | nearly:
                tasks |= self._tasks_of[key]
            for task in tasks:
                self._n_rows[task] += 1
            reasons.append("in_evaluation_set" if tasks and self._drop else None)
        return reasons

    def _near(self, rows: Sequence[Row]) -> Iterator[set[str]]:
        """Yield for each row the match keys of the evaluation sentences near one of its texts."""
        if self._index is None:
            yield from ([set()] * len(rows))
            return
        texts = list(chain.from_iterable(rows))
        sketches = iter(self._index.sketch(texts))
        for row in rows:
            keys = set[str]()
            for sketch in islice(sketches, len(row)):
                keys.update(self._keys[number] for number in self._index.find(sketch))
            yield keys

    def result(self) -> list[TaskLeak]:
        """Return the counts of each task over all rows so far."""
        near_only = self._nearly - self._exact
        leaks = []
        for task, n_rows in self._n_rows.items():
            n_sentences = self._count(task, self._keys)
            n_exact = self._count(task, self._exact)
            n_near = None if self._index is None else self._count(task, near_only)
            leaks.append(TaskLeak(task, n_sentences, n_exact, n_near, n_rows))
        return leaks

    def _count(self, task: str, keys: Iterable[str]) -> int:
        """Return how many of the match keys belong to sentences of the task."""
        return sum(task in self._tasks_of[key] for key in keys)


def _is_long_enough(text: str) -> bool:
    return len(words(text)) >= MIN_WORDS


def _near_index(texts: Iterable[str], threshold: float) -> NearIndex:
    index = NearIndex(threshold)
    for batch in windows(texts, _SKETCH_BATCH):
        for sketch in index.sketch(batch):
            index.add(sketch)
    return index


def leak_filter(options: RowOptions, progress: Progress) -> LeakFilter | None:
    """Return the filter that ``--check-leak`` asks for, or None without this option."""
    if options.check_leak is None:
        is_set_by_flag = {"--drop-leaks": options.drop_leaks, "--leak-near": options.leak_near}
        for flag, is_set in is_set_by_flag.items():
            if is_set:
                hint = f"add --check-leak EVALDIR to {flag}"
                raise ConfigError(f"{flag} needs the evaluation folder", hint=hint)
        return None
    sentences = evaluation_sentences(options.check_leak)
    n_sentences = sum(map(len, sentences.values()))
    progress.detail(f"looking for {n_sentences:,} evaluation sentences of {', '.join(sentences)}")
    near = options.near_threshold if options.leak_near else None
    return LeakFilter(sentences, drop=options.drop_leaks, near=near)
