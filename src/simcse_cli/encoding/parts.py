"""Windows and parts of an input, and the names of the files that hold parts.

Sentences are encoded in windows that start at the same rows in every run, and no batch holds
sentences of two windows. A part consists of whole windows, so its vectors are the same bytes that
one process would write.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from simcse_cli.errors import UsageError
from simcse_cli.files.inputs import is_remote

_Item = TypeVar("_Item")
PART = re.compile(r"_?part-(?P<number>\d+)-of-(?P<of>\d+)\.parquet.*", re.DOTALL)
"""The name of a part in a folder, or of a file that belongs to it."""
# A part has _MOST_WINDOWS windows. If that makes fewer than _LEAST_PARTS parts, a part has fewer
# windows, but at least one.
_MOST_WINDOWS = 8
_LEAST_PARTS = 32
WINDOW = 8192
"""Sentences encoded together: enough to make batches of similar length, few enough for memory."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that write one output; ``wait`` returns once all of them have called it."""

    rank: int = 0
    n_processes: int = 1
    wait: Callable[[], None] = lambda: None


ALONE = ProcessGroup()


@dataclass(frozen=True)
class Part:
    """One of the ``n_parts`` parts of an input: the rows from ``start`` to ``stop``.

    Parts are counted from 1 and rows from 0. The row ``stop`` does not belong to the part. The
    input has ``total`` rows. A part may be empty.
    """

    number: int
    n_parts: int
    start: int
    stop: int
    total: int

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.stop

    @property
    def n_rows(self) -> int:
        return self.stop - self.start


Outputs = list[tuple[str, Part]]
"""Parts, each with the file or address that it is written to."""


def windows(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield consecutive lists of up to ``size`` items."""
    iterator = iter(items)
    while window := list(islice(iterator, size)):
        yield window


def count_windows(n_rows: int) -> int:
    return -(-n_rows // WINDOW)  # rounded up


def cut(n_rows: int, n_parts: int) -> list[Part]:
    """Cut an input into parts of whole windows; parts differ in size by one window at most.

    Example:
        >>> [(part.start, part.stop) for part in cut(20_000, 2)]
        [(0, 8192), (8192, 20000)]
    """
    n_windows = count_windows(n_rows)
    parts = []
    start = 0
    for number in range(1, n_parts + 1):
        stop = min(WINDOW * (n_windows * number // n_parts), n_rows)
        parts.append(Part(number, n_parts, start, stop, n_rows))
        start = stop
    return parts


def count_parts(n_rows: int) -> int:
    """Return the number of parts into which an input is cut for a folder or for Ray.

    A part has 8 windows of 8192 rows. If an input is too short for 32 such parts, its parts have
    fewer windows, but at least one.

    Example:
        >>> count_parts(1_000_000), count_parts(20_000), count_parts(10**9)
        (41, 3, 15259)
    """
    n_windows = count_windows(n_rows)
    windows_per_part = max(1, min(n_windows // _LEAST_PARTS, _MOST_WINDOWS))
    return max(1, -(-n_windows // windows_per_part))  # rounded up


def parse_shard(text: str) -> tuple[int, int]:
    """Return I and N of the option ``--shard I/N``."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    number, n_shards = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= n_shards:
        raise UsageError(f"{text!r}: need I/N with I from 1 to N, as in 3/16", option="--shard")
    return number, n_shards


def is_folder(output: str) -> bool:
    """Tell whether an output takes parts: an address, a folder, or a new name without ending."""
    path = Path(output)
    return is_remote(output) or path.is_dir() or not (path.suffix or path.exists())


def shard_file(output: Path, part: Part) -> Path:
    """Return the path of a shard, as in ``vectors.shard-3-of-16.npy``."""
    return output.with_name(f"{output.stem}.shard-{part.number}-of-{part.n_parts}{output.suffix}")


def part_file(folder: str, part: Part) -> str:
    """Return the path of a part in a folder; names sort in the order of the rows."""
    return f"{folder.rstrip('/')}/part-{part.number:05}-of-{part.n_parts:05}.parquet"


def side_file(output: Path) -> Path:
    """Return the path of the file that records the origin of an output.

    Beside a part in a folder, the name starts with ``_``, so that readers of data sets skip it.
    """
    mark = "_" if output.name.startswith("part-") else ""
    return output.with_name(f"{mark}{output.name}.json")
