"""The terminal: results go to stdout, progress and remarks to stderr; only this module prints.

A terminal gets live bars and drawn tables, anything else plain lines without colour (Rich honours
``NO_COLOR``).
"""

import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcse_cli.commands.help import BRACKETS, HELP_WIDTH, HelpPage
from simcse_cli.errors import ConfigError, SimcseError
from simcse_cli.files.atomic import standard_output
from simcse_cli.files.digests import digest
from simcse_cli.files.inputs import STDIO
from simcse_cli.files.output import output_text
from simcse_cli.files.system import default_cache_dir
from simcse_cli.progress import ProgressTask, SilentProgress
from simcse_cli.results.report import DiffRow, Outcome, Report, file_format, printable
from simcse_cli.settings.choices import OutputFormat

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress as RichProgress

PLAIN_INTERVAL_S = 15.0
RATE = "rate"
"""The field in which a task may show the rate of its work in its own unit."""
DAY_S = 24 * 3600
# Libraries read these on import, here and in child processes, and show no progress bars.
QUIET_LIBRARIES = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
}


def _terminal(**values: Any) -> "RichConsole":
    """Return a console of Rich; with NO_COLOR it prints neither colours nor bold text."""
    from rich.console import Console as RichConsole

    if os.environ.get("NO_COLOR"):
        values["color_system"] = None
    return RichConsole(highlight=False, **values)


def _shell_word(text: str) -> str:
    """Quote a text for the shell; ``$'...'`` spells the bytes of one that cannot be shown."""
    if printable(text) == text:
        return shlex.quote(text)
    spelled = ""
    for byte in text.encode("utf-8", "surrogateescape"):
        is_plain = chr(byte).isascii() and chr(byte).isprintable() and chr(byte) not in "'\\"
        spelled += chr(byte) if is_plain else f"\\x{byte:02x}"
    return f"$'{spelled}'"


def _literal(text: str) -> str:
    """Escape a text so that Rich does not read it as markup."""
    from rich.markup import escape

    return escape(printable(text))


class _PlainTask:
    """A task without a terminal: it prints lines, less and less often, and a final line.

    The rate in a line leaves out the work of the first call of ``advance``, which may include the
    start of libraries; the rate in the final line is of all work. A task may show its own rate
    instead. Its final line then has no rate, since its own is only of the latest work.
    """

    def __init__(self, console: "Console", description: str, total: float | None) -> None:
        self._console = console
        self._description = description
        self._total = total
        self._done = 0.0
        self._fields: dict[str, str] = {}
        self._started = time.monotonic()
        self._interval = PLAIN_INTERVAL_S
        # The work of the first call of ``advance``, and when it ended.
        self._first: tuple[float, float] | None = None

    def advance(self, amount: float = 1) -> None:
        """Count finished work; print a line after 15 s, and when the elapsed time has doubled."""
        self._done += amount
        now = time.monotonic()
        if self._first is None:
            self._first = (self._done, now)
        if now - self._started < self._interval:
            return
        self._interval = 2 * (now - self._started)
        text = f"{self._description}: {self._done:,.0f}"
        if self._total:
            text += f" of {self._total:,.0f} ({self._done / self._total:.0%})"
        done_in_first, end_of_first = self._first
        done_since = self._done - done_in_first
        elapsed_since = now - end_of_first
        if done_since and not self._has_rate():
            text += f", {_rate(done_since, elapsed_since)}"
        if done_since and self._total and self._total > self._done:
            left_s = (self._total - self._done) * elapsed_since / done_since
            text += f", {_duration(left_s)} left"
        self._console.info(text + self._fields_as_text())

    def update(self, *, total: float | None = None, **fields: str) -> None:
        if total is not None:
            self._total = total
        self._fields |= fields

    def end(self) -> None:
        elapsed = time.monotonic() - self._started
        summary = _summary(self._description, self._done, elapsed, has_rate=self._has_rate())
        self._fields.pop(RATE, None)
        self._console.info(summary + self._fields_as_text())

    def _has_rate(self) -> bool:
        """Tell whether the task shows a rate in its own unit."""
        return RATE in self._fields

    def _fields_as_text(self) -> str:
        return "".join(f", {name} {value}" for name, value in self._fields.items())


def _summary(description: str, done: float, seconds: float, *, has_rate: bool = False) -> str:
    """Return a line on a finished task, with its rate unless the task has shown its own rate."""
    if not done:
        return f"{description}: {_duration(seconds)}"
    rate = "" if has_rate else f" ({_rate(done, seconds)})"
    return f"{description}: {done:,.0f} in {_duration(seconds)}{rate}"


def _rate(done: float, seconds: float) -> str:
    """Return items per second, or seconds per item for slow tasks."""
    rate = done / max(seconds, 1e-9)
    if rate >= 10:
        return f"{rate:,.0f}/s"
    if rate >= 1:
        return f"{rate:.1f}/s"
    return f"{1 / rate:.1f} s each"


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, left_seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left_seconds:02} s"
    hours, left_minutes = divmod(minutes, 60)
    return f"{hours} h {left_minutes:02} min"


class _LiveTask:
    """A task on a terminal: a bar that swings to and fro until some work is done."""

    def __init__(self, bar: "RichProgress", description: str, total: float | None) -> None:
        self._bar = bar
        self._total = total
        self.done = 0.0
        self._fields: dict[str, str] = {}
        # Without a total the bar swings. The first call of ``advance`` sets the total.
        self.id = bar.add_task(_literal(description), total=None, values="", has_rate=False)

    def advance(self, amount: float = 1) -> None:
        self.done += amount
        self._bar.update(self.id, advance=amount, total=self._total)

    def update(self, *, total: float | None = None, **fields: str) -> None:
        self._fields |= fields
        shown = [f"{name} [bold]{_literal(value)}[/]" for name, value in self._fields.items()]
        if total is not None:
            self._total = total
        self._bar.update(self.id, values="  ".join(shown), has_rate=RATE in self._fields)


class Console:
    """The terminal as the commands use it; implements the ``Progress`` protocol of the core."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self._bar: RichProgress | None = None
        self._warned: set[str] = set()

    @property
    def stdout_is_terminal(self) -> bool:
        return sys.stdout is not None and sys.stdout.isatty()

    def _stderr(self) -> "RichConsole":
        if self._bar is not None:
            return self._bar.console
        return _terminal(stderr=True)

    def _say(self, message: str, style: str = "", prefix: str = "") -> None:
        """Print a line on stderr. The style is that of the prefix, if there is one."""
        from rich.text import Text

        text = Text(prefix, style=style)
        text.append(printable(message), style="" if prefix else style)
        self._stderr().print(text, soft_wrap=True)

    def info(self, message: str) -> None:
        if not self.quiet:
            self._say(message)

    def hint(self, message: str) -> None:
        if self.quiet:
            return
        # A hint is shown at most once a day. The time of its stamp file tells when it was shown.
        with suppress(OSError, ConfigError):  # if there is no writable cache, it is shown each time
            stamp = default_cache_dir() / "hints" / digest(message)[:16]
            if stamp.exists() and time.time() - stamp.stat().st_mtime < DAY_S:
                return
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.touch()
        self.info(message)

    def detail(self, message: str) -> None:
        if self.verbose and not self.quiet:
            self._say(message, style="dim")

    def warn(self, message: str) -> None:
        if not self.quiet and message not in self._warned:
            self._warned.add(message)
            self._say(message, style="bold yellow", prefix="warning: ")

    def relay(self, text: str) -> None:
        sys.stderr.write(text)

    def error(self, error: SimcseError, *, as_json: bool = False) -> None:
        """Show an error and its fix; with ``as_json``, as one JSON object in one line."""
        if as_json:
            self._stderr().print(json.dumps(error.to_json()), markup=False, soft_wrap=True)
            return
        self._say(error.message, style="bold red", prefix="error: ")
        if error.hint:
            self._say(error.hint, style="bold", prefix="   fix: ")

    def interrupted(self, notes: Sequence[str]) -> None:
        """Say that a command was stopped; the notes say which files are kept."""
        if notes:
            self.info("\n".join(["stopped", *notes]))
        else:
            self.info("stopped; nothing was written")

    def next_step(self, *command: object) -> None:
        """Suggest the command that usually follows, quoted for the shell."""
        if not self.quiet:
            words = " ".join(_shell_word(str(word)) for word in command)
            self._say(words, style="bold", prefix="next: ")

    @contextmanager
    def task(self, description: str, total: float | None = None) -> Iterator[ProgressTask]:
        """Show a live bar on a terminal, sparse lines elsewhere, nothing when quiet."""
        if self.quiet:
            with SilentProgress().task(description, total) as silent:
                yield silent
        elif self._stderr().is_terminal:
            is_outermost = self._bar is None
            started = time.monotonic()
            with self._live_bar() as bar:
                live = _LiveTask(bar, description, total)
                try:
                    yield live
                finally:
                    bar.remove_task(live.id)
            elapsed = time.monotonic() - started
            # A task that is short, or a part of another one, is not worth a line.
            if is_outermost and elapsed >= 1:
                self.info(_summary(description, live.done, elapsed))
        else:
            plain = _PlainTask(self, description, total)
            yield plain
            plain.end()

    @contextmanager
    def _live_bar(self) -> "Iterator[RichProgress]":
        # A task within a task shares the display of the outer one.
        if self._bar is not None:
            yield self._bar
            return

        # Rich is imported only when a bar is shown.
        from rich.progress import (
            BarColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        # Add what Rich lacks: counts with a rate, and values on a separate line.
        class CountAndRate(ProgressColumn):
            def render(self, task: Task) -> Text:
                if not task.completed:
                    return Text("")
                shown = f"{task.completed:,.0f}"
                if task.total is not None:
                    shown += f"/{task.total:,.0f}"
                # A task that shows its own rate among its values needs no other.
                if task.speed and not task.fields["has_rate"]:
                    shown += f"  {_rate(task.speed, 1)}"
                return Text(shown)

        class BarWithValues(Progress):
            """A bar with the values of the task on a line below, which suits narrow terminals."""

            def get_renderables(self) -> Iterator[Any]:
                yield self.make_tasks_table(self.tasks)
                for task in self.tasks:
                    if task.fields["values"]:
                        yield Text.from_markup(f"  {task.fields['values']}")

        # The bar is on stderr, apart from the data, and is erased at its end.
        with BarWithValues(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            CountAndRate(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=self._stderr(),
            transient=True,
        ) as bar:
            self._bar = bar
            try:
                yield bar
            finally:
                self._bar = None

    def ask(self, question: str) -> str | None:
        """Ask for a line of stdin and return it; None at the end of stdin.

        The question is only shown on a terminal.
        """
        if sys.stdin is None:
            return None
        if sys.stdin.isatty():
            sys.stderr.write(question)
            sys.stderr.flush()
        if line := sys.stdin.readline():
            return line.rstrip("\r\n")
        return None

    def show_help(self, page: HelpPage) -> None:
        from rich.text import Text

        terminal = _terminal()
        for line in page.lines(min(terminal.width, HELP_WIDTH)):
            # Headings are bold; all other lines are indented.
            text = Text(line.replace("`", ""), style="" if line.startswith(" ") else "bold")
            text.highlight_regex(r"(?<![\w-])--?[a-zA-Z][\w-]*", "cyan")
            text.highlight_regex(r"^  [a-z][\w-]*(?=  )|^  simcse .*", "cyan")
            text.highlight_regex(BRACKETS, "dim")
            terminal.print(text, soft_wrap=True)

    def print_data(self, text: str) -> None:
        """Write text to stdout exactly as it is."""
        with standard_output() as stream:
            stream.write(text)

    def _draw_tables(self, reports: Sequence[Report]) -> None:
        from rich.text import Text

        terminal = _terminal()
        for number, report in enumerate(reports):
            if number:
                terminal.print()
            if report.title:
                terminal.print(Text(printable(report.title), style="bold"), soft_wrap=True)
            _print_table(terminal, report)
            for note in report.notes:
                terminal.print(Text(printable(note), style="dim"))

    def show_diffs(self, rows: Sequence[DiffRow], *, to_stderr: bool = False) -> None:
        """Show texts beside their changed versions, in colour or as ``[-old-]{+new+}``."""
        from rich.table import Column as TableColumn
        from rich.table import Table
        from rich.text import Text

        # Without a terminal there are no colours, so signs mark the changes.
        terminal = self._stderr() if to_stderr else _terminal()
        if not terminal.is_terminal:
            shown = []
            for row in rows:
                before = row.marked("[-", "-]", after=False)
                shown.append(f"{row.label}\n- {before}\n+ {row.marked('{+', '+}')}")
            text = printable("\n\n".join(shown)) + "\n"
            if to_stderr:
                terminal.print(Text(text), soft_wrap=True, end="")
            else:
                self.print_data(text)
            return

        # On a terminal both versions stand side by side.
        label = TableColumn(max_width=14)
        table = Table(
            label, "original", "augmented", show_lines=True, header_style="bold", expand=True
        )
        for row in rows:
            cells = [Text(printable(row.label))]
            for side, style in ((row.before, "red strike"), (row.after, "bold green")):
                stretches = []
                for stretch, has_changed in side:
                    stretches.append(Text(printable(stretch), style if has_changed else ""))
                cells.append(Text(row.separator).join(stretches))
            table.add_row(*cells)
        terminal.print(table)

    def emit(
        self,
        found: Outcome,
        fmt: OutputFormat = OutputFormat.TABLE,
        *,
        output: Path | None = None,
        force: bool = False,
    ) -> None:
        """Show results on stdout in a format, or write them to the file ``output``.

        The file has the format of its ending. With the format TABLE, the results are shown as well.
        """
        if str(output) == STDIO:
            output = None
        if output is not None:
            text = found.text(file_format(output, fmt))
            with output_text(output, force=force) as stream:
                stream.write(text)
        if fmt is OutputFormat.TABLE and _terminal().is_terminal:
            self._draw_tables(found.reports)
        elif fmt is OutputFormat.TABLE or output is None:
            self.print_data(found.text(fmt))
        if output is not None:
            self.info(f"wrote {output}")


def _print_table(terminal: "RichConsole", report: Report) -> None:
    """Print the table of a report; if it is wider than the terminal, in blocks of columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = report.cells()
    for number, block in enumerate(report.blocks(terminal.width)):
        if number:
            terminal.print()
        table = Table(
            box=box.SIMPLE_HEAD,
            header_style="bold",
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for index, width in block:  # of a column
            column = report.columns[index]
            justify: Any = "left" if column.kind == "text" else "right"
            heading = Text(printable(column.heading))
            table.add_column(heading, justify=justify, width=width, overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(row[index])) for index, _ in block))
        terminal.print(table)


_console = Console()


def get_console() -> Console:
    """Return the console configured by the global options ``-q`` and ``-v``."""
    return _console


def configure_console(*, quiet: bool = False, verbose: bool = False) -> None:
    """Replace the console that ``get_console`` returns, and quieten chatty libraries."""
    global _console
    _console = Console(quiet=quiet, verbose=verbose)
    for name, value in QUIET_LIBRARIES.items():
        os.environ.setdefault(name, value)
    logging.getLogger("mteb").setLevel(logging.ERROR)
