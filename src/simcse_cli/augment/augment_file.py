"""Stream sentences through an augmentation into ``anchor,positive`` rows, in order.

Several cores share the work.
"""

import os
import re
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from simcse_cli.augment.augmentations import (
    UNIT_OPERATORS,
    WITH_SYNONYMS,
    WITHOUT_CHANCE,
    TextAugmenter,
    parse_steps,
    sentence_key,
)
from simcse_cli.augment.options import AugmentOptions
from simcse_cli.augment.wordnet import find_wordnet
from simcse_cli.augment.words import diff_row, is_unspaced
from simcse_cli.data.formats import source_name
from simcse_cli.data.given import Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.table import Table
from simcse_cli.data.text import clean_text
from simcse_cli.data.writers import Row, build_manifest, open_rows, row_output
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.files.code import code_digest, names_code
from simcse_cli.files.inputs import STDIO
from simcse_cli.files.system import usable_cores
from simcse_cli.progress import Progress
from simcse_cli.results.report import DiffRow
from simcse_cli.settings.choices import Augmentation, Sides, TextUnit
from simcse_cli.settings.declare import refuse_unused, settings_of
from simcse_cli.settings.tables import TableOptions

_CHUNK_LINES = 2000
# Workers start only from this many chunks on: one process does fewer before they have started.
_CHUNKS_FOR_WORKERS = 4
_CHUNKS_PER_WORKER = 3
# Above this share of the lines, text that a method is not made for is worth a warning.
_UNFIT_SHARE = 0.01
_ENGLISH_LETTER = re.compile("[A-Za-z]")

NumberedLine = tuple[int, str]


def augment_file(
    source: str,
    options: AugmentOptions,
    make_augmenter: Callable[[AugmentOptions], TextAugmenter],
    *,
    show: Callable[[list[DiffRow]], None],
    progress: Progress,
) -> None:
    """Write the pairs of all sentences in ``source``, with a manifest beside them.

    ``show`` displays the preview; without ``options.output``, only the preview is made.
    ``make_augmenter`` may load a model, which takes seconds, so it is called after the output has
    been checked.
    """
    # Mistakes in the options are found before anything is written.
    steps = parse_steps(options)
    name = source_name(source)
    given = Given.of(options, progress=progress).of_texts(options.column)
    output = options.output or Path(STDIO)  # if there is only a preview, nothing is written there
    has_two_sides = options.sides is Sides.BOTH
    negates = any(step.method == Augmentation.NEGATE for step in steps)
    if negates and has_two_sides:
        raise ConfigError("--sides both: negate makes the negative of a sentence, which stays")
    if all(step.method in WITHOUT_CHANCE for step in steps):
        what = f"has no use with --method {options.method}, which changes a text in one way only"
        refuse_unused(options, ["copies"], what)
    columns = POSITIONAL if negates else POSITIONAL[:2]

    # The preview comes first, and its sentences are written with the others.
    with row_output(output, columns, inputs=[source], force=options.force) as writing:
        augmenter = make_augmenter(options)
        job = AugmentJob(augmenter, options.seed, options.copies, has_two_sides, negates)
        sentences = Table(source, Job.TEXTS, given).texts()
        # Take the sentences of the preview, but at least one. So an input without any is refused
        # before ``open_rows`` writes a header to stdout.
        head = _take_sentences(sentences, max(1, options.preview))
        if not any(map(clean_text, head)):
            found = f", only {len(head):,} blank lines" if head else ""
            raise DataError(f"{name} has no sentences{found}")
        sentences = chain(head, sentences)
        if options.preview:
            show(list(_preview_rows(head, job, options.unit)))
        if options.output is None:
            return

        # A language model computes on all cores already.
        has_mlm = any(step.method == Augmentation.MLM for step in steps)
        workers = 1 if has_mlm else (options.workers or usable_cores())

        # The manifest is made at the end of the block, when the counts are complete.
        counts = Counter[str]()
        with open_rows(
            writing, columns, lambda complete: _manifest(source, options, steps, complete, counts)
        ) as write:
            counts.update(write_pairs(sentences, write, job, workers=workers, progress=progress))
        kind, changed = ("triplets", "hard negatives") if negates else ("pairs", "positives")
        target = "standard output" if str(writing.path) == STDIO else writing.path
        blank = f", {counts['blank']:,} blank lines skipped" if counts["blank"] else ""
        progress.info(
            f"{target}: {counts['rows']:,} {kind} of {counts['lines']:,} sentences, "
            f"{counts['unchanged']:,} of them unchanged{blank}"
        )
        _warn_of_counts(counts, name, changed, steps, progress)
        if str(writing.path) != STDIO:
            progress.detail(f"wrote {writing.record}")


def _manifest(
    source: str,
    options: AugmentOptions,
    steps: Sequence[AugmentOptions],
    complete: Path,
    counts: Counter[str],
) -> dict[str, Any]:
    return build_manifest(
        "augment",
        inputs=[source],
        folder=complete.parent,
        outputs=[(complete, counts["rows"])],
        settings=_settings(options, steps),
        seed=options.seed,
        counts={
            "sentences": counts["lines"],
            "blank": counts["blank"],
            "unchanged": counts["unchanged"],
        },
    )


def _settings(options: AugmentOptions, steps: Sequence[AugmentOptions]) -> dict[str, Any]:
    """Return the settings for a manifest.

    With several steps, ``rate`` is None, and ``method`` is the text of the user, who gives rates
    and models in it. ``wordnet`` has a digest for each step that needs the database.
    """
    first = steps[0]
    databases = [find_wordnet(step.wordnet_dir) for step in steps if step.method in WITH_SYNONYMS]
    settings: dict[str, Any] = {
        "method": first.method,
        "rate": first.rate,
        "sides": options.sides,
        "copies": options.copies,
        "unit": options.unit,
        "model": first.model,
        "wordnet": [database.digest for database in databases],
        "column": options.column,
    }
    if len(steps) > 1:
        settings |= {"method": options.method, "rate": None, "model": options.pinned_model}
    for name in settings_of(TableOptions):  # how the input was read
        settings[name] = getattr(options, name)
    if names_code(options.method):
        settings["code"] = code_digest(options.method)
    return settings


@dataclass(frozen=True)
class AugmentJob:
    """Makes ``copies`` rows of each line; the random choices of each row are its own.

    The positive of a row is the changed text; with ``both_sides`` the anchor is changed as well.
    With ``negates`` the changed text is the hard negative instead.
    """

    augmenter: TextAugmenter
    seed: int
    copies: int = 1
    both_sides: bool = False
    negates: bool = False

    def rows(self, lines: Sequence[NumberedLine]) -> list[Row]:
        """Return the rows of numbered lines, all copies of a line together.

        A row is an anchor and its positive, or with ``negates`` the anchor, the anchor again, and
        its negation.
        """
        anchors: list[str] = []
        places: list[tuple[int, int]] = []  # number of the line and of its copy, for each anchor
        for number, text in lines:
            for copy in range(self.copies):
                anchors.append(text)
                places.append((number, copy))

        def augment(side: int) -> list[str]:
            keys = [sentence_key(self.seed, number, copy, side) for number, copy in places]
            return self.augmenter.many(anchors, keys)

        # Side 0 is the positive, side 1 the anchor. A negated text is the hard negative, and the
        # anchor is its own positive.
        augmented = augment(side=0)
        if self.negates:
            return list(zip(anchors, anchors, augmented, strict=True))
        if self.both_sides:
            anchors = augment(side=1)
        return list(zip(anchors, augmented, strict=True))


def number_lines(sentences: Iterable[str], start: int = 0) -> list[NumberedLine]:
    """Return the cleaned sentences that are not blank, each with its number.

    Numbers begin with ``start``. Blank sentences have a number, too, but are not returned.
    """
    numbered = []
    for number, text in enumerate(map(clean_text, sentences), start):
        if text:
            numbered.append((number, text))
    return numbered


def write_pairs(
    sentences: Iterable[str],
    write: Callable[[Row], object],
    job: AugmentJob,
    *,
    workers: int,
    progress: Progress,
) -> Counter[str]:
    """Write the rows of all sentences, and return counts; ``workers`` does not change the rows.

    The counts are:

    - ``lines``, the lines that are not blank, and ``blank``, the others
    - ``rows``, and ``unchanged``, the rows whose changed text equals the anchor
    - ``unspaced``, the lines with a stretch in a script written without spaces
    - ``not_english``, the lines without a letter from a to z
    - ``only_not``, the rows for which no rule of ``negate`` fitted
    """
    counts = Counter[str]()
    # Chunks come back in the order of the input, whichever process has worked on them.
    with progress.task("augment") as task:
        for rows, chunk_counts in _results(_chunks(sentences), job, workers):
            for row in rows:
                write(row)
            counts.update(chunk_counts)
            task.advance(chunk_counts["lines"] + chunk_counts["blank"])
    return counts


_Chunk = tuple[int, list[str]]  # number of the first line, lines
_Result = tuple[list[Row], Counter[str]]


def _chunks(sentences: Iterable[str]) -> Iterator[_Chunk]:
    remaining = iter(sentences)
    start = 0
    while lines := list(islice(remaining, _CHUNK_LINES)):
        yield start, lines
        start += _CHUNK_LINES


def _results(chunks: Iterator[_Chunk], job: AugmentJob, workers: int) -> Iterator[_Result]:
    """Yield the rows and counts of each chunk in order; workers start only for a long input."""
    first_chunks = list(islice(chunks, _CHUNKS_FOR_WORKERS))
    chunks = chain(first_chunks, chunks)
    is_short = len(first_chunks) < _CHUNKS_FOR_WORKERS
    if workers < 2 or is_short:
        yield from (_augment_chunk(chunk, job) for chunk in chunks)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (job,)) as pool:
        waiting: deque[Future[_Result]] = deque()
        try:
            for chunk in chunks:
                # Never more than a few chunks ahead, so that memory does not grow with the input.
                if len(waiting) >= workers * _CHUNKS_PER_WORKER:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(_work, chunk))
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            hint = "see why with --workers 1; if memory was short, take fewer --workers"
            raise ConfigError("a worker process has ended", hint=hint) from error
        finally:
            pool.shutdown(cancel_futures=True)


_worker_job: AugmentJob  # set when a worker process starts


def _start_worker(job: AugmentJob) -> None:
    global _worker_job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent reports an interruption once
    Thread(target=_end_with_parent, daemon=True).start()
    _worker_job = job


def _end_with_parent() -> None:
    """End this worker when its parent is killed; otherwise it would wait for work forever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(chunk: _Chunk) -> _Result:
    return _augment_chunk(chunk, _worker_job)


def _augment_chunk(chunk: _Chunk, job: AugmentJob) -> _Result:
    start, sentences = chunk
    lines = number_lines(sentences, start)
    rows = job.rows(lines)
    counts = Counter(
        lines=len(lines),
        blank=len(sentences) - len(lines),
        rows=len(rows),
        unchanged=sum(row[0] == row[-1] for row in rows),  # the changed text is in the last column
        unspaced=sum(is_unspaced(text) for _, text in lines),
        not_english=sum(_ENGLISH_LETTER.search(text) is None for _, text in lines),
        only_not=sum(job.negates and row[-1] == f"Not {row[0]}" for row in rows),
    )
    return rows, counts


def _take_sentences(sentences: Iterator[str], count: int) -> list[str]:
    """Take sentences up to the ``count``-th that is not blank; return them, with the blank ones."""
    taken: list[str] = []
    for sentence in sentences:
        taken.append(sentence)
        if clean_text(sentence):
            count -= 1
        if count == 0:
            break
    return taken


def _preview_rows(sentences: Sequence[str], job: AugmentJob, unit: TextUnit) -> Iterator[DiffRow]:
    """Yield the change of each copy of each sentence, from the sentence to the changed text.

    If both sides are augmented, the change of the anchor comes before that of the positive.
    """
    for number, text in number_lines(sentences):
        for copy, row in enumerate(job.rows([(number, text)]), start=1):
            anchor, changed = row[0], row[-1]
            name = f"line {number + 1}"
            if job.copies > 1:
                name += f", copy {copy}"
            if job.both_sides:
                yield diff_row(f"{name}, anchor", text, anchor, unit)
                name += ", positive"
            yield diff_row(name, text, changed, unit)


def _warn_of_counts(
    counts: Counter[str],
    name: str,
    changed: str,
    steps: Sequence[AugmentOptions],
    progress: Progress,
) -> None:
    """Warn if the methods do not fit more than 1% of the sentences, or if most stay as they are.

    ``changed`` is what the changed texts are called: positives, or hard negatives.
    """
    least = _UNFIT_SHARE * counts["lines"]
    methods = {step.method for step in steps}
    take_units = not methods.isdisjoint({*UNIT_OPERATORS, Augmentation.MLM})
    if counts["unspaced"] > least and take_units and steps[0].unit is TextUnit.WORD:
        hint = "; --unit char works on characters" if methods <= UNIT_OPERATORS.keys() else ""
        progress.warn(
            f"{name}: {counts['unspaced']:,} sentences hold text without spaces, "
            f"where a phrase counts as one word{hint}"
        )
    if 2 * counts["only_not"] > counts["rows"]:
        what = "hard negative is" if counts["only_not"] == 1 else "hard negatives are"
        progress.warn(
            f'{name}: {counts["only_not"]:,} {what} the sentence behind "Not", '
            "because no rule of negate fits; the rules are for English"
        )
    need_english = not methods.isdisjoint(WITH_SYNONYMS)
    if need_english and counts["not_english"] > least:
        what = "sentence has" if counts["not_english"] == 1 else "sentences have"
        progress.warn(
            f"{name}: {counts['not_english']:,} {what} no English letters (a to z), "
            "and the words of WordNet are English"
        )
    elif 2 * counts["unchanged"] > counts["rows"]:
        progress.warn(
            f"more than half of the {changed} equal their anchor: "
            "too short for this method and rate"
        )
