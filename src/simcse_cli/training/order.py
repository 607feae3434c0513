"""Which examples each step sees: a function of seed and position alone, so that a resumed run continues exactly."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def n_steps_per_epoch(n_examples: int, global_batch_size: int, n_processes: int = 1) -> int:
    """Return the optimizer steps of an epoch.

    The last, smaller batch counts if it holds two examples for every process (one alone has no negatives).
    """
    full, rest = divmod(n_examples, global_batch_size)
    return full + (rest >= 2 * n_processes)


def step_generator(seed: int, epoch: int, step: int | None = None) -> np.random.Generator:
    """Return the random generator of an epoch, or of one step in it; they are independent of each other."""
    key = (seed, epoch) if step is None else (seed, epoch, step)
    return np.random.default_rng(np.random.SeedSequence(key))


def epoch_order(
    n_examples: int,
    generator: np.random.Generator,
    *,
    ordered: bool = False,
    lengths: Sequence[int] | None = None,
    window: int = 1,
    batch_size: int = 1,
) -> Indices:
    """Return the order of the examples in an epoch.

    Args:
        n_examples: how many there are.
        generator: draws the order.
        ordered: keep document order; nothing is drawn.
        lengths: length of each example, for bucketing.
        window: how many batches are sorted by length together; 1 leaves the order fully random. Larger windows
            pad less but put sentences of like length into one batch, which makes them harder negatives.
        batch_size: of all processes together.
    """
    if ordered:
        return np.arange(n_examples)
    order = generator.permutation(n_examples)
    if window <= 1 or lengths is None:
        return order
    sizes = np.asarray(lengths)
    batches: list[Indices] = []
    for start in range(0, n_examples, window * batch_size):
        part = order[start : start + window * batch_size]
        part = part[np.argsort(sizes[part], kind="stable")]
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    full = [batch for batch in batches if len(batch) == batch_size]
    rest = [batch for batch in batches if len(batch) < batch_size]
    shuffled = [full[i] for i in generator.permutation(len(full))] if full else []
    return np.concatenate([*shuffled, *rest])


def local_indices(order: Indices, step: int, global_batch_size: int, rank: int, n_processes: int) -> Indices:
    """Return what one process takes of a step: contiguous parts of the global batch, in rank order."""
    batch = order[step * global_batch_size : (step + 1) * global_batch_size]
    return np.array_split(batch, n_processes)[rank]
