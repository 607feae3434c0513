"""Batches made in a background thread, in the order and with the content that seed and step decide."""

import queue
import threading
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")


def prefetch(make: Callable[[int], T], steps: range, depth: int = 2) -> Generator[T, None, None]:
    """Yield ``make(step)`` for each step, computed up to ``depth`` steps ahead in one thread.

    An error in the thread is raised where the batch was due; closing the iterator ends the thread.
    """
    ready: queue.Queue[T | BaseException] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(item: T | BaseException) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for step in steps:
                if stopped.is_set():
                    return
                put(make(step))
        except BaseException as error:  # handed to the consumer, which raises it
            put(error)

    thread = threading.Thread(target=work, name="batches", daemon=True)
    thread.start()
    try:
        for _ in steps:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
