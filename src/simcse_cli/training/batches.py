"""Draw the examples and batch of each step from seed and step alone.

For this reason, runs resume exactly.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from simcse_cli.data.text import digest_keys
from simcse_cli.errors import DataError
from simcse_cli.objectives.base import Batch, Examples, Objective
from simcse_cli.settings.choices import Batches
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.teachers import Teachers

_T = TypeVar("_T")
Indices = NDArray[np.int64]
# Share of rows with a text of an earlier row, up to which batches are drawn without a look at
# texts.
SHARED_SHARE = 0.01
AHEAD = 3  # batches that are made before they are due


class BatchMaker:
    def __init__(
        self,
        objective: Objective,
        data: Any,
        n_examples: int,
        config: TrainConfig,
        *,
        rank: int,
        n_processes: int,
        shared: "SharedTexts | None" = None,
        kind: Batches = Batches.SHUFFLED,
        most_left_out: float = SHARED_SHARE,
        teachers: Teachers | None = None,
    ) -> None:
        self._objective = objective
        self._data = data
        self._config = config
        self._teachers = teachers
        self._rank = rank
        self._n_processes = n_processes
        self.global_batch_size = config.batch_size * n_processes
        self._epoch: tuple[int, Examples, Indices] | None = None
        self._shared = shared
        self.kind = kind
        # Without duplicates, the first epoch tells how many rows have a place.
        if kind is Batches.NO_DUPLICATES:
            n_examples = self._n_placed(n_examples, most_left_out)
        self.n_examples = n_examples
        self.steps_per_epoch = n_steps_per_epoch(n_examples, self.global_batch_size, n_processes)

    def _n_placed(self, n_examples: int, most_left_out: float) -> int:
        """Return how many rows an epoch without duplicates has.

        Raise DataError if it leaves out too many rows.
        """
        least = 2 * self._n_processes
        size = self.global_batch_size
        n_placed = len(self._shuffled(0)[1])
        n_left_out = n_examples - n_placed
        n_left_by_any = n_examples % size
        if n_left_by_any >= least:
            n_left_by_any = 0  # they are a batch of their own
        if n_placed < least or n_left_out > max(n_left_by_any, most_left_out * n_examples):
            raise DataError(
                f"{self._data.name}: --batches no-duplicates has no place for {n_left_out:,} "
                f"of {n_examples:,} rows, whose texts are too frequent for batches of "
                f"{size:,}; at most 1% may be left out",
                hint="use --batches mask-duplicates, which trains on every row",
            )
        return n_placed

    def make(self, step: int) -> Batch:
        # The rows of the step, and of them those of this process.
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        examples, order = self._shuffled(epoch)
        start = step_in_epoch * self.global_batch_size
        batch = order[start : start + self.global_batch_size]
        parts = np.array_split(batch, self._n_processes)  # contiguous, in rank order
        own = parts[self._rank]
        generator = random_generator(self._config.seed, epoch, step, self._rank)
        made = self._objective.collate([examples.items[int(i)] for i in own], generator)

        # What the loss needs to know; the number of examples made from a row is always the same.
        made.counts = [len(part) * made.n_examples // len(own) for part in parts]
        if self.kind is Batches.MASK_DUPLICATES and self._shared is not None:
            # Of the rows of all processes, in the order in which their vectors are gathered.
            made.extra["texts"] = torch.from_numpy(self._shared.numbers[batch])
        if self._teachers is not None:
            made.extra["teacher"] = self._teachers.of_rows(batch)
            made.extra["first"] = sum(map(len, parts[: self._rank]))
        return made.prepacked(self._objective.encoder)

    def _shuffled(self, epoch: int) -> tuple[Examples, Indices]:
        """Return the examples of an epoch and their order, which is the same on every process."""
        if self._epoch is not None and self._epoch[0] == epoch:
            return self._epoch[1:]
        generator = random_generator(self._config.seed, epoch)
        examples = self._objective.examples(self._data, generator)
        window = self._config.bucket_batches
        order: Indices = np.arange(len(examples))
        if not self._objective.ordered:
            order = shuffled_files(files_of(examples), generator)
            if window > 1:
                size = self.global_batch_size
                order = bucket_by_length(order, examples.items, window, size, generator)
        if self.kind is Batches.NO_DUPLICATES and self._shared is not None:
            order = self._without_duplicates(order, self._shared, epoch)
        self._epoch = (epoch, examples, order)
        return examples, order

    def _without_duplicates(self, order: Indices, shared: "SharedTexts", epoch: int) -> Indices:
        """Return the order of an epoch, with no text twice in a batch.

        The epoch has as many batches as the first epoch.
        """
        size = self.global_batch_size
        n_processes = self._n_processes
        packed = pack_apart(order, shared, size, least=2 * n_processes)
        if epoch == 0:
            self._first = packed
            return packed
        n_steps = n_steps_per_epoch(len(packed), size, n_processes)
        if n_steps >= self.steps_per_epoch and len(packed) >= size:
            return packed

        # Batches are missing: the full ones are repeated, or else those of the first epoch.
        n_full = len(packed) // size
        if n_full == 0:
            return self._first
        return np.resize(packed[: n_full * size], self.steps_per_epoch * size)


class SharedTexts:
    """The texts that several rows of a training file have in common, as numbers.

    ``share`` of the rows have a text of an earlier row; ``numbers`` ``(N, columns)`` are equal
    where texts are, and ``of`` has the numbers of the shared texts of each row that has some.
    """

    def __init__(self, rows: Sequence[tuple[str, ...]]) -> None:
        # The number of each text, and whether an earlier row has the text too.
        width = len(rows[0])
        digests = np.fromiter((digest_keys([text]) for row in rows for text in row), np.uint64)
        _, first, numbers = np.unique(digests, return_index=True, return_inverse=True)
        owners = np.arange(len(digests)) // width
        is_earlier = owners > (first // width)[numbers]
        self.numbers = numbers.reshape(-1, width).astype(np.int64)
        self.share = float(is_earlier.reshape(-1, width).any(axis=1).mean())

        # The shared texts of each row, also of the first row that has them.
        is_repeated = np.zeros(len(first), bool)
        is_repeated[numbers[is_earlier]] = True
        is_shared = is_repeated[self.numbers]
        self.of: dict[int, set[int]] = {}
        for row in np.flatnonzero(is_shared.any(axis=1)).tolist():
            self.of[row] = set(self.numbers[row][is_shared[row]].tolist())


def pack_apart(order: Indices, shared: SharedTexts, size: int, *, least: int) -> Indices:
    """Return an order whose consecutive batches of ``size`` have no text twice.

    Texts may recur within a row.

    Each row goes into the first batch that has room and none of its texts, as in the
    ``NoDuplicatesBatchSampler`` of sentence-transformers. One smaller batch, the largest, comes
    last if it has ``least`` rows; the rows of the others, whose texts are too frequent, are left
    out.
    """
    batches: list[list[int]] = []
    holders: defaultdict[int, set[int]] = defaultdict(set)  # the batches that hold a text
    closed: defaultdict[int, int] = defaultdict(int)  # the batches before this one all hold it
    first_open = 0
    for row in order.tolist():
        # The first batch with room, from the first one that may have it.
        texts = shared.of.get(row, ())
        place = max([first_open, *(closed[text] for text in texts)])
        while place < len(batches) and (
            len(batches[place]) == size or any(place in holders[text] for text in texts)
        ):
            place += 1
        if place == len(batches):
            batches.append([])
        batches[place].append(row)

        # Batches that need no look from now on.
        for text in texts:
            holders[text].add(place)
            while closed[text] in holders[text]:
                closed[text] += 1
        while first_open < len(batches) and len(batches[first_open]) == size:
            first_open += 1

    # All full batches, and the largest of the others.
    placed = [row for batch in batches if len(batch) == size for row in batch]
    largest = max((batch for batch in batches if len(batch) < size), key=len, default=[])
    if len(largest) >= least:
        placed += largest
    return np.array(placed, np.int64)


def random_generator(*key: int) -> np.random.Generator:
    """Return a random generator for a key such as (seed, epoch).

    Different keys give independent generators.
    """
    return np.random.default_rng(np.random.SeedSequence(key))


def files_of(examples: Examples) -> Sequence[tuple[int, float]]:
    """Return the number of examples of each training file and its passes per epoch."""
    return examples.files or ((len(examples), 1.0),)


def n_taken(n_examples: int, weight: float) -> int:
    """Return the number of examples that a file gives an epoch.

    It is ``weight`` times all of them, but at least one.
    """
    return max(1, round(weight * n_examples))


def shuffled_files(files: Sequence[tuple[int, float]], generator: np.random.Generator) -> Indices:
    """Return the order of an epoch: each file shuffled, and the files mixed evenly.

    The weight of a file is its number of passes, each in a new order and the last one possibly
    partial; so two copies of an example are about a pass apart and rarely meet in a batch. Files
    take turns in proportion to their share: files with 4 and 2 examples are mixed as a, b, a, a, b,
    a. ``files`` holds the number of examples and the weight of each file; examples are numbered
    across files.
    """
    orders = []
    places = []
    first = 0
    for n_examples, weight in files:
        n_wanted = n_taken(n_examples, weight)
        passes = [generator.permutation(n_examples) for _ in range(0, n_wanted, n_examples)]
        orders.append(first + np.concatenate(passes)[:n_wanted])
        places.append((np.arange(n_wanted) + 0.5) / n_wanted)
        first += n_examples
    return np.concatenate(orders)[np.argsort(np.concatenate(places), kind="stable")]


def n_steps_per_epoch(n_examples: int, global_batch_size: int, n_processes: int) -> int:
    """Return the optimizer steps of an epoch, at least 1.

    The last, smaller batch counts if it has two examples for every process (a single one has no
    negatives).
    """
    full, rest = divmod(n_examples, global_batch_size)
    return max(1, full + (rest >= 2 * n_processes))


def bucket_by_length(
    order: Indices,
    examples: Sequence[Any],
    window: int,
    batch_size: int,
    generator: np.random.Generator,
) -> Indices:
    """Return an order with sentences of similar length in each batch, and the batches shuffled.

    ``window`` batches are sorted together: a larger window pads less, but sentences of similar
    length are harder negatives of each other. Incomplete batches come last.
    """
    lengths = np.asarray([_n_characters(example) for example in examples])

    # Windows are sorted and cut into batches; only the last one may have an incomplete batch.
    full: list[Indices] = []
    rest: list[Indices] = []
    for start in range(0, len(order), window * batch_size):
        part = order[start : start + window * batch_size]
        part = part[np.argsort(lengths[part], kind="stable")]
        for first in range(0, len(part), batch_size):
            batch = part[first : first + batch_size]
            if len(batch) == batch_size:
                full.append(batch)
            else:
                rest.append(batch)
    shuffled = [full[i] for i in generator.permutation(len(full))] if full else []
    return np.concatenate([*shuffled, *rest])


def _n_characters(example: Any) -> int:
    if isinstance(example, tuple):
        return sum(map(len, example))
    return len(example)


def prefetch(make: Callable[[int], _T], steps: range) -> Generator[_T, None, None]:
    """Yield ``make(step)`` for each step, computed up to ``AHEAD`` steps ahead in one thread.

    An error in the thread is raised in place of its batch; closing the iterator ends the thread.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
    try:
        ahead = deque(pool.submit(make, step) for step in steps[:AHEAD])
        for step in steps:
            made = ahead.popleft()
            if step + AHEAD in steps:
                ahead.append(pool.submit(make, step + AHEAD))
            yield made.result()
    finally:
        pool.shutdown(cancel_futures=True)
