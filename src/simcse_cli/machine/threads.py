"""Run independent pieces of work on the cores of one processor."""

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Barrier, Lock
from typing import Any, Generic, TypeVar, cast

import torch
from threadpoolctl import ThreadpoolController

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
# More threads would wait for Python's lock; with more cores, each thread computes on several.
_MOST_WORKERS = 16
_SOFT_PAUSE = 1  # OpenMP 5.0, omp_pause_soft: threads may go, settings stay


def map_on_cores(
    function: Callable[[_Item], _Result], items: Sequence[_Item], *, at_once: int = _MOST_WORKERS
) -> Iterator[_Result]:
    """Yield ``function(item)`` for each item in their order, several at a time on the threads of PyTorch.

    An item on one thread costs less than on all threads, which would synchronise after every product. The division
    into items must not depend on the number of threads, so that results do not either, apart from rounding.

    The caller computes too, and worker threads are reused: new ones often start on the caller's core, which costs up to
    15 ms. ``function`` computes with PyTorch or NumPy on the CPU under the default gradient and inference modes; after
    an exception, remaining items are dropped. A single item gets all threads.
    """
    n_threads = torch.get_num_threads()
    n_workers = max(1, min(n_threads, len(items), at_once, _MOST_WORKERS))
    if n_workers == 1:
        with _limit_numpy(n_threads):
            yield from map(function, items)
        return
    _openmp_pause()(_SOFT_PAUSE)
    work, n_each = _Work(function, items), n_threads // n_workers
    with _limit_numpy(n_each), _helpers(n_workers - 1, n_each, n_threads) as helpers:
        helping = [helpers.submit(work.take_all) for _ in range(n_workers - 1)]
        try:
            yield from work.results()
        finally:
            work.cancel()
            wait(helping)


class _Work(Generic[_Item, _Result]):
    """Items that several threads take in turn."""

    def __init__(self, function: Callable[[_Item], _Result], items: Sequence[_Item]) -> None:
        self._function = function
        self._left: Iterator[tuple[int, _Item]] = iter(enumerate(items))
        self._lock = Lock()
        self._results: dict[int, Future[_Result]] = {number: Future() for number in range(len(items))}

    def results(self) -> Iterator[_Result]:
        """Yield the results in order, each only once, and compute items while a result is not ready."""
        can_take = True
        for number in range(len(self._results)):
            while can_take and not self._results[number].done():
                with torch.inference_mode(False), torch.enable_grad():  # as in any other thread
                    can_take = self._take_one()
            yield self._results.pop(number).result()

    def take_all(self) -> None:
        while self._take_one():
            pass

    def cancel(self) -> None:
        with self._lock:
            self._left = iter(())

    def _take_one(self) -> bool:
        """Compute the next item and return whether there was one; an error is stored as its result."""
        with self._lock:
            number, item = next(self._left, (None, None))
        if number is None:
            return False
        result = self._results[number]  # looked up first: whoever waits for it removes it
        try:
            result.set_result(self._function(cast(_Item, item)))
        except Exception as error:
            result.set_exception(error)
        return True


# Threads that wait for work, by their number and the threads that each computes with.
_IDLE: dict[tuple[int, int], list[ThreadPoolExecutor]] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_IDLE.clear)  # its copy has no threads


@contextmanager
def _helpers(n_helpers: int, n_threads: int, n_threads_after: int) -> Iterator[ThreadPoolExecutor]:
    """Lend idle threads that compute with ``n_threads`` each, as the caller does too; nested calls get others."""
    idle = _IDLE.setdefault((n_helpers, n_threads), [])
    helpers = idle.pop() if idle else _new_helpers(n_helpers, n_threads)
    torch.set_num_threads(n_threads)
    try:
        yield helpers
    finally:
        torch.set_num_threads(n_threads_after)
        idle.append(helpers)


def _new_helpers(n_helpers: int, n_threads: int) -> ThreadPoolExecutor:
    have_started = Barrier(n_helpers + 1)

    def start() -> None:
        torch.set_num_threads(n_threads)
        have_started.wait()

    helpers = ThreadPoolExecutor(n_helpers, "simcse-core", initializer=start)
    for _ in range(n_helpers):
        helpers.submit(int)  # a thread starts with its first task
    have_started.wait()
    return helpers


_math_libraries = functools.cache(ThreadpoolController)


def _limit_numpy(n_threads: int) -> Any:
    """Return a context in which a product of NumPy takes this many threads; by itself it would take all cores."""
    return _math_libraries().limit(limits=n_threads, user_api="blas")


@functools.cache
def _openmp_pause() -> Callable[[int], int]:
    """Return the function that ends the threads OpenMP keeps for PyTorch's products; it starts new ones when needed.

    After a product they spin for some milliseconds while they wait for the next one, and the workers here need those
    cores. Where the loaded OpenMP library has no such function, they spin.
    """
    loaded = ctypes.CDLL(None) if os.name == "posix" else None
    return getattr(loaded, "omp_pause_resource_all", int)
