"""Fails file operations (full disk, file system read-only), cuts and changes files, closes streams.

A command that reports success has written the right bytes; one that fails names the reason, leaves nothing of its own
and does, once the cause is gone, what it should have done.
"""

from collections.abc import Callable, Iterator
from random import Random

from soak.workbench import Workbench


def cases(bench: Workbench, rng: Random) -> Iterator[tuple[str, Callable[[], None]]]:
    yield from ()
