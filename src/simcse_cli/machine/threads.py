"""Run independent pieces of work on the cores of one processor."""

import ctypes
import functools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Barrier, Lock, local
from typing import Any, Generic, TypeVar

import torch
from threadpoolctl import ThreadpoolController

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
# More workers would wait for Python's lock; with more cores than this, each worker uses several.
_MOST_WORKERS = 16
_SOFT_PAUSE = 1  # omp_pause_soft of OpenMP 5.0: it ends threads and keeps settings


def map_on_cores(
    function: Callable[[_Item], _Result], items: Sequence[_Item], *, at_once: int = _MOST_WORKERS
) -> Iterator[_Result]:
    """Yield ``function(item)`` for each item in order; compute up to ``at_once`` items at a time.

    One thread for each item is faster than all threads for one item after the other, since these
    synchronise after every product. A single item gets all threads. If the caller divides the work
    into the same items for any number of threads, the results do not depend on this number, apart
    from rounding.

    The caller computes, too. Worker threads are reused: new ones often start on the caller's core,
    which costs up to 15 ms. After an exception, the remaining items are dropped.

    ``function`` must compute on the CPU, with PyTorch or NumPy. It must set the modes of PyTorch
    that it needs: a worker has the modes of a new thread (gradients, no inference mode), not those
    of the caller.
    """
    n_threads = _SHARES.threads_of_caller()
    n_workers = max(1, min(n_threads, len(items), at_once, _MOST_WORKERS))
    threads_each = n_threads // n_workers

    # With one worker, the caller computes the items one by one on all threads.
    if n_workers == 1:
        with _SHARES.lend(threads_each):
            yield from map(function, items)
        return

    # Otherwise the caller is one of the workers: it computes items in ``results`` while it waits.
    # First end idle threads of OpenMP, which would take cores from the workers.
    _pause_openmp()
    work = _Work(function, items)
    n_helpers = n_workers - 1
    with (
        _SHARES.lend(threads_each),
        _helpers(n_helpers, n_threads=threads_each, n_threads_after=n_threads) as helpers,
    ):
        helping = [helpers.submit(work.take_all) for _ in range(n_helpers)]
        try:
            yield from work.results()
        finally:
            work.cancel()
            wait(helping)


class _Work(Generic[_Item, _Result]):
    """Items that several threads share: each takes the next one when it is free."""

    def __init__(self, function: Callable[[_Item], _Result], items: Sequence[_Item]) -> None:
        self._function = function
        self._results: deque[Future[_Result]] = deque(Future() for _ in items)
        # Each item comes with its result, so that the thread that takes it can set the result.
        self._items_left = deque(zip(self._results, items, strict=True))

    def results(self) -> Iterator[_Result]:
        """Yield the results in order; while the next one is not ready, compute further items."""
        can_take = True
        while self._results:
            while can_take and not self._results[0].done():
                # The caller takes the modes that helpers have, as new threads.
                with torch.inference_mode(False), torch.enable_grad():
                    can_take = self._take_one()
            yield self._results.popleft().result()

    def take_all(self) -> None:
        while self._take_one():
            pass

    def cancel(self) -> None:
        self._items_left.clear()

    def _take_one(self) -> bool:
        """Compute the next item and store its result or error; return False if none is left."""
        try:
            result, item = self._items_left.popleft()  # no other thread gets this item
        except IndexError:
            return False
        try:
            result.set_result(self._function(item))
        except Exception as error:
            result.set_exception(error)
        return True


# Idle pools, by (number of helpers, threads per helper).
_IDLE: dict[tuple[int, int], list[ThreadPoolExecutor]] = {}


def _pause_openmp() -> None:
    """End the threads that OpenMP keeps for PyTorch's products; it starts new ones when needed."""
    _openmp_pause()(_SOFT_PAUSE)


def _forget_threads() -> None:
    """Drop the pools and shares of the parent, whose threads do not exist in this forked child."""
    _IDLE.clear()
    _SHARES.reset()


if hasattr(os, "register_at_fork"):
    # A forked child would wait for ever for OpenMP threads that exist only in its parent.
    os.register_at_fork(before=_pause_openmp, after_in_child=_forget_threads)


@contextmanager
def _helpers(n_helpers: int, n_threads: int, n_threads_after: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of idle helpers; a nested call gets another pool.

    Within the block, the caller and each helper compute on ``n_threads`` threads; after it, the
    caller has ``n_threads_after``.
    """
    idle = _IDLE.setdefault((n_helpers, n_threads), [])
    # No check beforehand: another thread may take the last idle pool in between.
    try:
        helpers = idle.pop()
    except IndexError:
        helpers = _new_helpers(n_helpers, n_threads)
    torch.set_num_threads(n_threads)
    try:
        yield helpers
    finally:
        torch.set_num_threads(n_threads_after)
        idle.append(helpers)


def _new_helpers(n_helpers: int, n_threads: int) -> ThreadPoolExecutor:
    """Start helpers that compute on ``n_threads`` each, and return when all have started."""
    have_started = Barrier(n_helpers + 1)

    def start() -> None:
        torch.set_num_threads(n_threads)
        _SHARES.enter_for_good()  # a nested call then stays within the share of this thread
        have_started.wait()

    helpers = ThreadPoolExecutor(n_helpers, "simcse-core", initializer=start)
    for _ in range(n_helpers):
        helpers.submit(int)  # does nothing, but each task starts one thread
    have_started.wait()
    return helpers


_math_libraries = functools.cache(ThreadpoolController)


class _Shares:
    """Keep track of the thread counts while calls of ``map_on_cores`` overlap.

    The calls may come from several threads of the program, but NumPy's BLAS has one thread count
    for the whole process. The first call notes it, and the last one to end restores it.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = Lock()
        self._this_thread = local()  # ``depth``: how many nested calls this thread is inside of
        self._n_outside = 0  # threads that a caller outside of all calls may use
        self._lent: list[int] = []  # the thread limit of each call in progress
        self._first_limiter: Any = None  # of NumPy's BLAS

    def threads_of_caller(self) -> int:
        """Return how many threads the caller may use: all, or its share within ``map_on_cores``."""
        with self._lock:
            is_inside = getattr(self._this_thread, "depth", 0) > 0
            # In a new thread, PyTorch's count may be the share that a call elsewhere has set.
            if self._lent and not is_inside:
                return self._n_outside
            return torch.get_num_threads()

    def enter_for_good(self) -> None:
        """Mark this thread as a worker, so that a nested call stays within its share of threads."""
        self._this_thread.depth = 1

    @contextmanager
    def lend(self, n_threads: int) -> Iterator[None]:
        """Limit NumPy's products to ``n_threads`` threads; by default each would take all cores."""
        with self._lock:
            if not self._lent:
                self._n_outside = torch.get_num_threads()  # for callers on other threads
            limiter = _math_libraries().limit(limits=n_threads, user_api="blas")
            # Only the first limiter knows the thread counts to restore in the end.
            if self._first_limiter is None:
                self._first_limiter = limiter
            self._lent.append(n_threads)
        # A nested call sees the depth, and stays within the share of this one.
        this_thread = self._this_thread
        this_thread.depth = getattr(this_thread, "depth", 0) + 1
        try:
            yield
        finally:
            this_thread.depth -= 1
            with self._lock:
                self._take_back(n_threads)

    def _take_back(self, n_threads: int) -> None:
        """Restore the limit of another call that is in progress, else the original limit."""
        if n_threads not in self._lent:  # a fork in the middle of the call has reset the shares
            return
        self._lent.remove(n_threads)
        if self._lent:
            _math_libraries().limit(limits=self._lent[-1], user_api="blas")
        else:
            self._first_limiter.restore_original_limits()
            self._first_limiter = None


_SHARES = _Shares()


@functools.cache
def _openmp_pause() -> Callable[[int], int]:
    """Return the function of OpenMP that ends its idle threads.

    After a product, OpenMP's threads spin for some milliseconds while they wait for the next
    product, and would take cores from the workers. If the loaded OpenMP library lacks the function,
    the result is ``int``, which has no effect.
    """
    loaded = ctypes.CDLL(None) if os.name == "posix" else None
    return getattr(loaded, "omp_pause_resource_all", int)
