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
        self._objective, self._data, self._config = objective, data, config
        self._teachers = teachers
        self._rank, self._n_processes = rank, n_processes
        self.global_batch_size = config.batch_size * n_processes
        self._epoch: tuple[int, Examples, Indices] | None = None
        self._shared, self.kind = shared, kind
        if kind is Batches.NO_DUPLICATES:
            n_examples = self._n_placed(n_examples, most_left_out)
        self.n_examples = n_examples
        self.steps_per_epoch = n_steps_per_epoch(n_examples, self.global_batch_size, n_processes)

    def _n_placed(self, n_examples: int, most_left_out: float) -> int:
        """Return how many rows an epoch without duplicates has.

        Raise DataError if it leaves out too many rows.
        """
        least, size = 2 * self._n_processes, self.global_batch_size
        n_placed = len(self._shuffled(0)[1])
        n_left_out = n_examples - n_placed
        rest = n_examples % size
        n_left_by_any = rest if rest < least else 0
        if n_placed < least or n_left_out > max(n_left_by_any, most_left_out * n_examples):
            raise DataError(
                f"{self._data.name}: --batches no-duplicates has no place for {n_left_out:,} "
                f"of {n_examples:,} rows, whose texts are too frequent for batches of "
                f"{size:,}; at most 1% may be left out",
                hint="use --batches mask-duplicates, which trains on every row",
            )
        return n_placed

    def make(self, step: int) -> Batch:
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        examples, order = self._shuffled(epoch)
        start = step_in_epoch * self.global_batch_size
        batch = order[start : start + self.global_batch_size]
        parts = np.array_split(batch, self._n_processes)  # contiguous, in rank order
        own = parts[self._rank]
        generator = random_generator(self._config.seed, epoch, step, self._rank)
        made = self._objective.collate([examples.items[int(i)] for i in own], generator)
        # The number of examples made from one does not depend on the process.
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
        if self._epoch is None or self._epoch[0] != epoch:
            generator = random_generator(self._config.seed, epoch)
            examples = self._objective.examples(self._data, generator)
            if self._objective.ordered:
                order: Indices = np.arange(len(examples))
            else:
                order = shuffled_files(files_of(examples), generator)
                if self._config.bucket_batches > 1:
                    window = self._config.bucket_batches
                    order = bucket_by_length(
                        order, examples.items, window, self.global_batch_size, generator
                    )
            if self.kind is Batches.NO_DUPLICATES and self._shared is not None:
                order = self._without_duplicates(order, self._shared, epoch)
            self._epoch = (epoch, examples, order)
        return self._epoch[1], self._epoch[2]

    def _without_duplicates(self, order: Indices, shared: "SharedTexts", epoch: int) -> Indices:
        """Return the order of an epoch, with no text twice in a batch.

        The epoch has as many batches as the first epoch.
        """
        size, n_processes = self.global_batch_size, self._n_processes
        packed = pack_apart(order, shared, size, least=2 * n_processes)
        if epoch == 0:
            self._first = packed
        elif (
            n_steps_per_epoch(len(packed), size, n_processes) < self.steps_per_epoch
            or len(packed) < size
        ):
            whole = packed[: len(packed) // size * size]
            packed = np.resize(whole, self.steps_per_epoch * size) if len(whole) else self._first
        return packed


class SharedTexts:
    """The texts that several rows of a training file have in common, as numbers.

    ``share`` of the rows have a text of an earlier row; ``numbers`` ``(N, columns)`` are equal
    where texts are, and ``of`` has the numbers of each row's shared texts.
    """

    def __init__(self, rows: Sequence[tuple[str, ...]]) -> None:
        width = len(rows[0])
        digests = np.fromiter((digest_keys([text]) for row in rows for text in row), np.uint64)
        _, first, numbers = np.unique(digests, return_index=True, return_inverse=True)
        is_repeated = np.zeros(len(first), bool)
        owners, first_owners = np.arange(len(digests)) // width, first // width
        is_repeated[numbers[owners > first_owners[numbers]]] = True
        self.numbers = numbers.reshape(-1, width).astype(np.int64)
        self.share = float((owners > first_owners[numbers]).reshape(-1, width).any(axis=1).mean())
        self.of = {
            row: set(texts[keeps].tolist())
            for row, (texts, keeps) in enumerate(
                zip(
                    numbers.reshape(-1, width), is_repeated[numbers].reshape(-1, width), strict=True
                )
            )
            if keeps.any()
        }


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
        texts = shared.of.get(row, ())
        place = max([first_open, *(closed[text] for text in texts)])
        while place < len(batches) and (
            len(batches[place]) == size or any(place in holders[text] for text in texts)
        ):
            place += 1
        if place == len(batches):
            batches.append([])
        batches[place].append(row)
        for text in texts:
            holders[text].add(place)
            while closed[text] in holders[text]:
                closed[text] += 1
        while first_open < len(batches) and len(batches[first_open]) == size:
            first_open += 1
    full = [batch for batch in batches if len(batch) == size]
    largest = max((batch for batch in batches if len(batch) < size), key=len, default=[])
    return np.array(
        [row for batch in (*full, largest * (len(largest) >= least)) for row in batch], np.int64
    )


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
    orders, places, first = [], [], 0
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
    lengths = np.asarray([sum(map(len, e)) if isinstance(e, tuple) else len(e) for e in examples])
    batches: list[Indices] = []
    for start in range(0, len(order), window * batch_size):
        part = order[start : start + window * batch_size]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    full = [batch for batch in batches if len(batch) == batch_size]
    rest = [batch for batch in batches if len(batch) < batch_size]
    shuffled = [full[i] for i in generator.permutation(len(full))] if full else []
    return np.concatenate([*shuffled, *rest])


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
