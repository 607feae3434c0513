"""Progress reports of the core: a protocol that the console implements, and a silent version."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class ProgressTask(Protocol):
    """One running piece of work."""

    def advance(self, amount: float = 1) -> None:
        """Count ``amount`` more units as done."""

    def update(self, *, total: float | None = None, **fields: str) -> None:
        """Change the total, and show short values beside the bar, each after its name."""


class Progress(Protocol):
    """Receives progress and remarks; nothing in the core prints."""

    def task(
        self, description: str, total: float | None = None
    ) -> AbstractContextManager[ProgressTask]:
        """Open a task; ``total`` is its amount of work in any unit, None if it is unknown."""

    def info(self, message: str) -> None:
        """Show one line on stderr."""

    def hint(self, message: str) -> None:
        """Show one line on stderr, but the same line at most once a day."""

    def detail(self, message: str) -> None:
        """Show a message only with ``-v``."""

    def warn(self, message: str) -> None:
        """Show a warning on stderr."""

    def relay(self, text: str) -> None:
        """Show what another process printed, errors included, unchanged."""


class _SilentTask:
    def advance(self, amount: float = 1) -> None: ...

    def update(self, *, total: float | None = None, **fields: str) -> None: ...


class SilentProgress:
    """Shows nothing, but keeps all warnings in ``warnings`` for the caller."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    @contextmanager
    def task(self, description: str, total: float | None = None) -> Iterator[ProgressTask]:
        yield _SilentTask()

    def info(self, message: str) -> None: ...

    def hint(self, message: str) -> None: ...

    def detail(self, message: str) -> None: ...

    def relay(self, text: str) -> None: ...

    def warn(self, message: str) -> None:
        self.warnings.append(message)


class _Nothing(SilentProgress):
    def warn(self, message: str) -> None: ...


SILENT: Progress = _Nothing()
"""The default of functions that report progress: shows nothing and keeps nothing."""
