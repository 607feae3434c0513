"""A job encodes texts in windows and passes their vectors to a sink."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from simcse_cli.arrays import Floats32
from simcse_cli.encoding.parts import windows
from simcse_cli.encoding.sinks import Sink
from simcse_cli.errors import DataError
from simcse_cli.progress import SILENT, Progress, ProgressTask, SilentProgress

EncodeWindow = Callable[..., Floats32]
"""A function, such as ``ReadyEncoder.encode``, from texts and a keyword ``progress`` to vectors."""


@dataclass(frozen=True)
class EncodeJob:
    """Texts, the function that encodes them, and the settings that their vectors depend on.

    ``total`` is the number of texts, or None if it is unknown. A job without texts raises an error
    unless ``total`` is 0.
    """

    texts: Iterable[str]
    encode: EncodeWindow
    settings: Mapping[str, Any] = field(default_factory=dict)
    total: int | None = None

    def run(self, sink: Sink, progress: Progress = SILENT) -> int:
        """Pass the vectors of all texts to the sink, and return what ``sink.finish`` returns.

        Texts are read once, in order. If W processes share the job, process r encodes the windows
        r, r + W, r + 2 W and so on.
        """
        with sink.open(self.settings, progress):
            n_left = None if self.total is None else self.total - sink.n_rows
            with progress.task("encoding", n_left) as task:
                self._encode_windows(sink, task)
            return sink.finish()

    def _encode_windows(self, sink: Sink, task: ProgressTask) -> None:
        """Encode this process's windows, except for those that the sink has kept."""
        number = -1
        for number, texts in enumerate(windows(self.texts, sink.window)):
            if number % sink.group.n_processes != sink.group.rank:
                task.advance(len(texts))  # another process encodes them
            elif sink.needs(texts):
                inner = InsideTask(task)
                sink.append(texts, self.encode(texts, progress=inner))
                # Texts that the encoder has not reported itself count now.
                task.advance(len(texts) - inner.n_done)
        if number >= 0:  # there was at least one window
            return
        if self.total:  # there were texts when they were counted
            raise DataError(
                "the input has changed while it was read", hint="give a copy that nobody writes to"
            )
        if self.total is None:
            raise DataError("the input is empty", hint="give a file with one sentence a line")


class InsideTask(SilentProgress):
    """Pass the progress within a window or part on to ``outer``, the task of the whole input.

    ``n_done`` is how much of the window or part has been reported.
    """

    def __init__(self, outer: ProgressTask) -> None:
        super().__init__()
        self._outer = outer
        self.n_done = 0.0

    def advance(self, amount: float = 1) -> None:
        self.n_done += amount
        self._outer.advance(amount)

    def update(self, *, total: float | None = None, **fields: str) -> None:
        pass  # the outer task has the total

    @contextmanager
    def task(self, description: str, total: float | None = None) -> Iterator[ProgressTask]:
        yield self
