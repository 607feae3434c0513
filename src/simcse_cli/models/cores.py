"""Independent pieces of work on the cores of one processor."""

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
# Above this many threads, holders of Python's lock would wait for each other; each then computes with several.
_MOST_WORKERS = 16
_SOFT_PAUSE = 1  # OpenMP 5.0, omp_pause_soft: threads may go, settings stay


def map_on_cores(
    function: Callable[[Item], Result], items: Sequence[Item], *, at_once: int = _MOST_WORKERS
) -> Iterator[Result]:
    """Yield ``function(item)`` for each item in their order, several at a time on the threads of PyTorch.

    One item on one thread costs less than each of its products on all threads, which would wait for each
    other after every step. Callers cut the work into items without asking for the number of threads, so that
    results do not depend on it but for rounding.

    Args:
        function: computes with PyTorch on the CPU; called from several threads at once, whose gradient and
            autocast modes are PyTorch's defaults.
        items: taken in their order; one alone is computed here, with all threads.
        at_once: most items at a time; each has its share of the threads.
    """
    n_threads = torch.get_num_threads()
    n_workers = min(n_threads, len(items), at_once, _MOST_WORKERS)
    if n_workers <= 1:
        yield from map(function, items)
        return
    _end_waiting_threads()
    pool = ThreadPoolExecutor(
        n_workers, "simcse-core", initializer=torch.set_num_threads, initargs=(n_threads // n_workers,)
    )
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(n_threads)  # each thread has its own number; the default of new ones is shared


def _end_waiting_threads() -> None:
    """End the threads that OpenMP keeps for PyTorch's products of this thread; it starts new ones when asked to.

    After a product they wait for the next one in a loop that keeps their core busy, for some milliseconds,
    which is time that the workers here want. Where OpenMP cannot be told, they wait.
    """
    pause = _openmp_pause()
    if pause is not None:
        pause(_SOFT_PAUSE)


@functools.cache
def _openmp_pause() -> Callable[[int], int] | None:
    """Return the function of the OpenMP library that this process has loaded, or None."""
    if os.name != "posix":
        return None
    return getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
