"""Make the batch of each step from the seed and the step alone, so that runs resume exactly."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from simcse_cli.arrays import Integers
from simcse_cli.data.text import digest_keys
from simcse_cli.errors import DataError
from simcse_cli.objectives.base import Batch, Examples, Objective
from simcse_cli.settings.choices import Batches
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.teachers import Teachers

_T = TypeVar("_T")
Indices = Integers
# By default, batches are drawn without regard to equal texts while at most this share of the rows
# has a text of an earlier row.
SHARED_SHARE = 0.01
AHEAD = 3  # batches that are made before they are due


@dataclass
class BatchMaker:
    """Makes this process's part of the batch of any step.

    The last batch of an epoch may be smaller than the others, but has at least ``least_rows``
    examples on each process: ``least`` examples in all. ``most_left_out`` is the share of rows that
    batches without duplicates may leave out.
    """

    objective: Objective
    data: Any
    n_examples: int
    config: TrainConfig
    rank: int
    n_processes: int
    shared: "SharedTexts | None" = None
    kind: Batches = Batches.SHUFFLED
    least_rows: int = 2
    most_left_out: float = SHARED_SHARE
    teachers: Teachers | None = None

    def __post_init__(self) -> None:
        self.global_batch_size = self.config.batch_size * self.n_processes
        self.least = self.n_processes * self.least_rows
        # The epoch that was made last: its number, its examples and their order.
        self._last_epoch: tuple[int, Examples, Indices] | None = None
        # How many rows fit into batches without duplicates is known only when an epoch is packed.
        # So the first epoch is packed now.
        if self.kind is Batches.NO_DUPLICATES:
            self.n_examples = self._n_placed()
        self.steps_per_epoch = n_steps_per_epoch(
            self.n_examples, self.global_batch_size, self.least
        )

    @property
    def n_left_out(self) -> int:
        """How many examples each epoch leaves out at its end: they are too few for a batch."""
        return max(0, self.n_examples - self.steps_per_epoch * self.global_batch_size)

    def _n_placed(self) -> int:
        """Return how many rows fit into an epoch whose batches have no duplicates.

        Raise DataError if too many rows have no place.
        """
        size = self.global_batch_size
        n_examples = self.n_examples
        _, order = self._examples_and_order(0)
        n_placed = len(order)
        n_without_place = n_examples - n_placed
        # Shuffled batches leave out rows, too: the rest of an epoch if it is too small for a batch.
        n_left_anyway = n_examples % size
        if n_left_anyway >= self.least:
            n_left_anyway = 0  # these rows are the last, smaller batch
        n_allowed = max(n_left_anyway, self.most_left_out * n_examples)
        if n_placed < self.least or n_without_place > n_allowed:
            raise DataError(
                f"{self.data.name}: --batches no-duplicates has no place for {n_without_place:,} "
                f"of {n_examples:,} rows, whose texts are too frequent for batches of "
                f"{size:,}; at most {self.most_left_out:.0%} may be left out",
                hint="use --batches mask-duplicates, which trains on every row",
            )
        return n_placed

    def make(self, step: int) -> Batch:
        # Take the rows of the step, and from them those of this process.
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        examples, order = self._examples_and_order(epoch)
        start = step_in_epoch * self.global_batch_size
        rows = order[start : start + self.global_batch_size]
        parts = np.array_split(rows, self.n_processes)  # contiguous, in rank order
        local_rows = parts[self.rank]
        generator = random_generator(self.config.seed, epoch, step, self.rank)
        batch = self.objective.collate([examples.items[int(i)] for i in local_rows], generator)

        # Add what the loss needs. Each row gives ``n_examples / len(local_rows)`` examples, on this
        # process as on the others.
        batch.counts = [len(part) * batch.n_examples // len(local_rows) for part in parts]
        if self.kind is Batches.MASK_DUPLICATES and self.shared is not None:
            # The numbers cover all processes, in the order in which vectors are gathered.
            batch.extra["texts"] = torch.from_numpy(self.shared.numbers[rows])
        if self.teachers is not None:
            batch.extra["teacher"] = self.teachers.of_rows(rows)
            # The place of this process's first row in ``rows``.
            batch.extra["first"] = sum(map(len, parts[: self.rank]))
        return batch.prepacked(self.objective.encoder)

    def _examples_and_order(self, epoch: int) -> tuple[Examples, Indices]:
        """Return the examples of an epoch and their order, which is the same on every process."""
        if self._last_epoch is not None and self._last_epoch[0] == epoch:
            return self._last_epoch[1:]
        generator = random_generator(self.config.seed, epoch)
        examples = self.objective.examples(self.data, generator)
        window = self.config.bucket_batches
        order: Indices = np.arange(len(examples))
        if not self.objective.ordered:
            order = shuffled_files(files_of(examples), generator)
            if window > 1:
                size = self.global_batch_size
                order = bucket_by_length(order, examples.items, window, size, generator)
        if self.kind is Batches.NO_DUPLICATES and self.shared is not None:
            order = self._without_duplicates(order, self.shared, epoch)
        self._last_epoch = (epoch, examples, order)
        return examples, order

    def _without_duplicates(self, order: Indices, shared: "SharedTexts", epoch: int) -> Indices:
        """Return the order of an epoch in which no batch has a text twice.

        Every epoch has at least as many batches as the first one, whose order is kept.
        """
        size = self.global_batch_size
        packed = pack_apart(order, shared, size, least=self.least)
        if epoch == 0:
            self._first_epoch = packed
            return packed
        # ``n_steps`` is at least 1, even if no row was placed, so ask for a full batch as well.
        n_steps = n_steps_per_epoch(len(packed), size, self.least)
        if n_steps >= self.steps_per_epoch and len(packed) >= size:
            return packed

        # There are too few batches: repeat the full ones, or the first epoch if none is full.
        n_full = len(packed) // size
        if n_full == 0:
            return self._first_epoch
        return np.resize(packed[: n_full * size], self.steps_per_epoch * size)


class SharedTexts:
    """The texts that several rows of a training file have in common, as numbers.

    Attributes:
        numbers: the number of each text, ``(N, columns)``; equal texts have equal numbers.
        share: the share of the rows that have a text of an earlier row.
        by_row: the numbers of a row's shared texts, for each row that has such texts.
    """

    def __init__(self, rows: Sequence[tuple[str, ...]]) -> None:
        # Number the texts, and find out for each text of each row whether an earlier row has it.
        width = len(rows[0])
        digests = np.fromiter((digest_keys([text]) for row in rows for text in row), np.uint64)
        _, first_seen, numbers = np.unique(digests, return_index=True, return_inverse=True)
        # ``first_seen`` has the first place of each distinct text; place // width is its row.
        row_of_text = np.arange(len(digests)) // width
        was_seen = row_of_text > (first_seen // width)[numbers]
        self.numbers = numbers.reshape(-1, width).astype(np.int64)
        self.share = float(was_seen.reshape(-1, width).any(axis=1).mean())

        # Collect the shared texts of each row, including the first row that has them.
        is_repeated = np.zeros(len(first_seen), bool)
        is_repeated[numbers[was_seen]] = True
        is_shared = is_repeated[self.numbers]
        self.by_row: dict[int, set[int]] = {}
        for row in np.flatnonzero(is_shared.any(axis=1)).tolist():
            self.by_row[row] = set(self.numbers[row][is_shared[row]].tolist())


def pack_apart(order: Indices, shared: SharedTexts, size: int, *, least: int) -> Indices:
    """Return an order of rows in which no two rows of a batch of ``size`` share a text.

    Each row goes into the first batch that has room and none of its texts, as in the
    ``NoDuplicatesBatchSampler`` of sentence-transformers. All full batches are kept, and then the
    largest incomplete one, if it has at least ``least`` rows. The rows of other incomplete batches
    are left out: their texts are too frequent.
    """
    batches = _BatchesApart(size)
    for row in order.tolist():
        batches.add(row, shared.by_row.get(row, ()))

    placed = [row for batch in batches.contents if len(batch) == size for row in batch]
    incomplete = [batch for batch in batches.contents if len(batch) < size]
    largest = max(incomplete, key=len, default=[])
    if len(largest) >= least:
        placed += largest
    return np.array(placed, np.int64)


class _BatchesApart:
    """Batches in the making, none with a text twice; ``contents`` holds the rows of each."""

    def __init__(self, size: int) -> None:
        self.contents: list[list[int]] = []
        self._size = size
        # By text: the numbers of the batches with this text, and of the first batch without it.
        self._batches_with: defaultdict[int, set[int]] = defaultdict(set)
        self._first_without: defaultdict[int, int] = defaultdict(int)
        self._first_open = 0  # the batches before this one are full

    def add(self, row: int, texts: Collection[int]) -> None:
        """Put a row into the first batch that has room and none of its texts."""
        number = self._batch_for(texts)
        if number == len(self.contents):
            self.contents.append([])
        self.contents[number].append(row)

        # Later searches for a batch pass over the first batches that have the text or are full.
        for text in texts:
            batches_with = self._batches_with[text]
            batches_with.add(number)
            while self._first_without[text] in batches_with:
                self._first_without[text] += 1
        while self._first_open < len(self.contents) and self._is_full(self._first_open):
            self._first_open += 1

    def _batch_for(self, texts: Collection[int]) -> int:
        """Return the number of the first batch with room and none of the texts; it may be new."""
        # The batches before ``number`` are full or have one of the texts.
        number = max([self._first_open, *(self._first_without[text] for text in texts)])
        while number < len(self.contents) and (
            self._is_full(number) or any(number in self._batches_with[text] for text in texts)
        ):
            number += 1
        return number

    def _is_full(self, number: int) -> bool:
        return len(self.contents[number]) == self._size


def random_generator(*key: int) -> np.random.Generator:
    """Return the generator of a key such as (seed, epoch); other keys give independent ones."""
    return np.random.default_rng(key)


def files_of(examples: Examples) -> Sequence[tuple[int, float]]:
    """Return, for each training file, the number of its examples and its passes per epoch."""
    one_file = (len(examples), 1.0)
    return examples.files or (one_file,)


def n_taken(n_examples: int, weight: float) -> int:
    """Return how many examples of a file are in an epoch: ``weight`` times all, at least one."""
    return max(1, round(weight * n_examples))


def shuffled_files(files: Sequence[tuple[int, float]], generator: np.random.Generator) -> Indices:
    """Return the order of an epoch: each file shuffled, and the files mixed evenly.

    ``files`` holds the number of examples and the weight of each file; examples are numbered across
    files. The weight is the number of passes over the file. Each pass has a new order, and the last
    pass may be partial. Two copies of an example are thus about a pass apart, and rarely meet in a
    batch. Files take turns in proportion to their share of the epoch: if file a has 4 examples and
    file b has 2, they are mixed as a, b, a, a, b, a.
    """
    orders = []
    positions = []
    first_number = 0
    for n_examples, weight in files:
        n_wanted = n_taken(n_examples, weight)
        # Draw as many passes as ``n_wanted`` examples need, and cut the last pass.
        passes = [generator.permutation(n_examples) for _ in range(0, n_wanted, n_examples)]
        orders.append(first_number + np.concatenate(passes)[:n_wanted])
        # Spread the file evenly from 0 to 1: sorting by position then mixes the files.
        positions.append((np.arange(n_wanted) + 0.5) / n_wanted)
        first_number += n_examples
    by_position = np.argsort(np.concatenate(positions), kind="stable")
    return np.concatenate(orders)[by_position]


def n_steps_per_epoch(n_examples: int, global_batch_size: int, least: int) -> int:
    """Return the number of optimizer steps in an epoch, at least 1.

    The last, smaller batch counts if it has at least ``least`` examples.
    """
    n_full, n_left = divmod(n_examples, global_batch_size)
    has_smaller_batch = n_left >= least
    return max(1, n_full + has_smaller_batch)


def bucket_by_length(
    order: Indices,
    examples: Sequence[Any],
    window: int,
    batch_size: int,
    generator: np.random.Generator,
) -> Indices:
    """Return an order with examples of similar length in each batch, and the batches shuffled.

    The examples of ``window`` consecutive batches are sorted together. A larger window needs less
    padding, but texts of similar length are harder negatives of each other. An incomplete batch
    comes last.
    """
    lengths = np.asarray([_n_characters(example) for example in examples])

    # Sort each window and cut it into batches; only the last batch of all may be incomplete.
    batches: list[Indices] = []
    for start in range(0, len(order), window * batch_size):
        part = order[start : start + window * batch_size]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    n_full = len(order) // batch_size
    shuffled = [batches[i] for i in generator.permutation(n_full)]
    return np.concatenate([*shuffled, *batches[n_full:]])


def _n_characters(example: Any) -> int:
    if isinstance(example, tuple):
        return sum(map(len, example))
    return len(example)


def prefetch(make: Callable[[int], _T], steps: range) -> Generator[_T, None, None]:
    """Yield ``make(step)`` for each step; a thread computes up to ``AHEAD`` of them in advance.

    An error in the thread is raised when its batch is due. Closing the iterator ends the thread.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
    try:
        ahead = deque(pool.submit(make, step) for step in steps[:AHEAD])
        for step in steps:
            future = ahead.popleft()
            if step + AHEAD in steps:
                ahead.append(pool.submit(make, step + AHEAD))
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
