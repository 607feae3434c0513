"""Run independent pieces of work on the cores of one processor."""

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Barrier, Lock, local
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
    """Yield ``function(item)`` for each item in order, several at a time on PyTorch's threads.

    An item on one thread costs less than on all threads, which would synchronise after every
    product. The division into items must not depend on the number of threads, so that results do
    not either, apart from rounding.

    The caller computes too, and worker threads are reused: new ones often start on the caller's
    core, which costs up to 15 ms. ``function`` computes with PyTorch or NumPy on the CPU under the
    default gradient and inference modes; after an exception, remaining items are dropped. A single
    item gets all threads.
    """
    n_threads = _SHARES.threads_of_caller()
    n_workers = max(1, min(n_threads, len(items), at_once, _MOST_WORKERS))
    n_each = n_threads // n_workers

    # One item at a time, on all threads.
    if n_workers == 1:
        with _SHARES.lend(n_each):
            yield from map(function, items)
        return

    # Several at a time; the caller is one of the workers.
    _pause_openmp()
    work = _Work(function, items)
    with _SHARES.lend(n_each), _helpers(n_workers - 1, n_each, n_threads) as helpers:
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
        self._results: dict[int, Future[_Result]] = {i: Future() for i in range(len(items))}

    def results(self) -> Iterator[_Result]:
        """Yield the results in order, each once, and compute items while a result is not ready."""
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
        """Compute the next item, if there is one, and tell so; an error is stored as its result."""
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


# Idle pools, by (number of workers, threads per worker).
_IDLE: dict[tuple[int, int], list[ThreadPoolExecutor]] = {}


def _pause_openmp() -> None:
    """End the threads that OpenMP keeps for PyTorch's products; it starts new ones when needed."""
    _openmp_pause()(_SOFT_PAUSE)


def _forget_threads() -> None:
    """Drop what a forked child has copied: it has no threads, and nobody computes in it."""
    _IDLE.clear()
    _SHARES.reset()


if hasattr(os, "register_at_fork"):
    # A child would wait for ever for threads of OpenMP that only its parent has.
    os.register_at_fork(before=_pause_openmp, after_in_child=_forget_threads)


@contextmanager
def _helpers(n_helpers: int, n_threads: int, n_threads_after: int) -> Iterator[ThreadPoolExecutor]:
    """Lend idle threads that use ``n_threads`` each, as the caller; nested calls get others."""
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
        _SHARES.enter_for_good()
        have_started.wait()

    helpers = ThreadPoolExecutor(n_helpers, "simcse-core", initializer=start)
    for _ in range(n_helpers):
        helpers.submit(int)  # a thread starts with its first task
    have_started.wait()
    return helpers


_math_libraries = functools.cache(ThreadpoolController)


class _Shares:
    """The threads of calls of ``map_on_cores`` that overlap in several threads of the program.

    PyTorch and NumPy's BLAS have one number for the process. The first call notes those numbers,
    and the last one restores them.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = Lock()
        self._own = local()
        self._n_outside = 0
        self._lent: list[int] = []
        self._first: Any = None

    def threads_of_caller(self) -> int:
        """Return how many threads PyTorch has outside all calls; inside one, those of its share."""
        with self._lock:
            is_inside = getattr(self._own, "depth", 0) > 0
            if self._lent and not is_inside:
                return self._n_outside
            return torch.get_num_threads()

    def enter_for_good(self) -> None:
        """Note that this thread computes for a call, so that a call in it takes its share alone."""
        self._own.depth = 1

    @contextmanager
    def lend(self, n_each: int) -> Iterator[None]:
        """Let a product of NumPy take this many threads; by itself it would take all cores."""
        with self._lock:
            if not self._lent:
                self._n_outside = torch.get_num_threads()
            limited = _math_libraries().limit(limits=n_each, user_api="blas")
            self._first = self._first or limited
            self._lent.append(n_each)
        self._own.depth = getattr(self._own, "depth", 0) + 1
        try:
            yield
        finally:
            self._own.depth -= 1
            with self._lock:
                self._take_back(n_each)

    def _take_back(self, n_each: int) -> None:
        if n_each not in self._lent:  # forked in the middle of a call
            return
        self._lent.remove(n_each)
        if self._lent:
            _math_libraries().limit(limits=self._lent[-1], user_api="blas")
        else:
            self._first.restore_original_limits()
            self._first = None


_SHARES = _Shares()


@functools.cache
def _openmp_pause() -> Callable[[int], int]:
    """Return the function of OpenMP that ends its idle threads.

    After a product they spin for some milliseconds while they wait for the next one, and the
    workers here need those cores. Where the loaded OpenMP library has no such function, they spin.
    """
    loaded = ctypes.CDLL(None) if os.name == "posix" else None
    return getattr(loaded, "omp_pause_resource_all", int)
