"""Help pages: the usage, options and examples of a command, and their layout in lines."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from textwrap import wrap
from typing import Any

HELP_WIDTH = 100
NAMES_WIDTH = 26
COMMON_NAMES = ("config", "quiet", "verbose", "help_all", "help")
"""Parameters of every command."""
OBJECTIVE = "simcse.objective"
"""Key in the ``meta`` of a context: the objective whose options the help page shows."""
_EVERYWHERE_NAMES = (*COMMON_NAMES, "version", "install_completion", "show_completion")
BRACKETS = re.compile(r"\[(default|env): [^]]*\]")
EVERYWHERE = "Everywhere"
FIRST_GROUPS = ("Arguments", "Model", "Data and model", "Options")
LAST_GROUPS = ("Output", EVERYWHERE)
ENVIRONMENT = {
    "SIMCSE_MODEL": "the model of commands that take one",
    "SIMCSE_DATA": "the SentEval folder",
    "SIMCSE_DEVICE, SIMCSE_PRECISION, SIMCSE_SEED": "their flags; for train every setting, "
    "as SIMCSE_BATCH_SIZE",
    "SIMCSE_CACHE": "where vectors and finished tasks are kept",
    "NO_COLOR": "no colours",
}
_fit = partial(wrap, break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True)
class HelpSection:
    """Options or commands under a heading, as rows of names and help.

    ``more`` names further options, which the page shows without their help.
    """

    title: str
    rows: list[tuple[str, str]]
    more: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class HelpPage:
    usage: str
    paragraphs: list[str]
    examples: list[str]
    sections: list[HelpSection]

    def lines(self, width: int) -> Iterator[str]:
        """Yield the lines of the page; only the usage and headings start without a space."""
        yield from _fit(self.usage, width, subsequent_indent="       ")
        for paragraph in self.paragraphs:
            yield from ("", *_fit(paragraph, width, initial_indent="  ", subsequent_indent="  "))
        if self.examples:
            yield from ("", "Examples")
        for example in self.examples:
            yield from _shell_lines(example, width)
        for section in self.sections:
            yield from ("", section.title)
            longest = max((len(names) for names, _ in section.rows), default=0)
            left = min(longest, NAMES_WIDTH) + 4  # two spaces before the names, two after
            for names, text in section.rows:
                yield from _row_lines(names, text, left, width)
            if section.more:
                more = f"and {', '.join(section.more)}: see --help-all"
                yield from _fit(more, width, initial_indent="  ", subsequent_indent="  ")


def _row_lines(names: str, text: str, left: int, width: int) -> Iterator[str]:
    """Yield the lines of names and their text; the text starts at column ``left``.

    Names that are too long for this get a separate line.
    """
    # Two spaces come before the names, and at least two after them.
    start = f"  {names}".ljust(left)
    if len(names) > left - 4:
        yield start.rstrip()
        start = " " * left
    # No-break spaces keep text in brackets on one line.
    unbroken = BRACKETS.sub(lambda found: found[0].replace(" ", "\xa0"), text)
    lines = _fit(unbroken, width, initial_indent=start, subsequent_indent=" " * left)
    # Without a text only the names are shown.
    for line in lines or [start.rstrip()]:
        yield line.replace("\xa0", " ")


def _shell_lines(command: str, width: int) -> Iterator[str]:
    """Yield a command, indented and wrapped so that each flag stays beside its value."""
    # A flag and its value count as one word; each line keeps two columns for the backslash.
    line = " "
    for word in re.findall(r'--?[a-z][\w-]* (?:"[^"]*"|[^\s"-]\S*)|"[^"]*"|\S+', command):
        if len(line) + 1 + len(word) > width - 2:
            yield f"{line} \\"
            line = "   "
        line += f" {word}"
    yield line


def main_options(command: Any) -> frozenset[str]:
    """Return the options in the short help of a command; none if it has no short help."""
    return getattr(command.callback, "main_options", frozenset())


def default_of(param: Any) -> str | None:
    """Return the default of an option as a user types it; None if there is none to show.

    A default that is empty or off is not shown.
    """
    if isinstance(param.show_default, str):
        return param.show_default
    default = param.default
    if default is None or default is False or default in ((), []) or callable(default):
        return None
    if default is True:
        return "on"
    text = str(getattr(default, "value", default))  # a choice is typed as its value
    return text or None


def examples_of(text: str) -> tuple[list[str], list[str]]:
    """Split a docstring into its paragraphs and its example commands."""
    prose = []
    examples = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("simcse "):
            examples += paragraph.splitlines()
        else:
            prose.append(paragraph)
    return prose, examples


def help_page(ctx: Any, *, everything: bool = False) -> HelpPage:
    """Return the help page of a command; with ``everything``, the page of ``--help-all``."""
    command = ctx.command
    prose, examples = examples_of(command.help or "")
    shown = frozenset[str]() if everything else main_options(command)
    sections = [*_option_sections(ctx, shown), *_objective_sections(ctx)]
    summaries = _summaries(command)  # empty if there are no commands below this one
    if summaries:
        sections.insert(0, HelpSection("Commands", list(summaries.items())))
    if ctx.parent is None:  # this is ``simcse`` itself
        sections.insert(1, HelpSection("Environment", list(ENVIRONMENT.items())))
    usage = ["Usage:", ctx.command_path]
    for param in command.params:
        if param.required:
            # Show only the longest name, which comes last.
            usage.append(_option_names(param).rpartition(", ")[2])
    usage.append("COMMAND [OPTIONS]" if summaries else "[OPTIONS]")
    return HelpPage(" ".join(usage), prose, examples, sections)


def _summaries(command: Any) -> dict[str, str]:
    """Return the first paragraph of the help of each command below this one, by its name."""
    if hasattr(command, "summaries"):
        return dict(command.summaries)
    summaries = {}
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            prose, _ = examples_of(child.help or child.short_help)
            summaries[name] = prose[0]
    return summaries


def _objective_sections(ctx: Any) -> list[HelpSection]:
    """Return a section of the options of the objective that the arguments name, if any."""
    name = ctx.meta.get(OBJECTIVE)
    if name is None:
        return []
    # This import loads torch, so only help pages that need it wait for it.
    from simcse_cli.objectives.registry import option_rows

    return [HelpSection(f"Options of --objective {name}", option_rows(name))]


def _option_sections(ctx: Any, shown: frozenset[str]) -> Iterator[HelpSection]:
    """Yield a section for each group of options.

    A section shows the help of its options in ``shown``, or of all if ``shown`` is empty, and names
    the others at its end. The section ``EVERYWHERE`` shows the help of all in any case.
    """
    # The page shows the groups of FIRST_GROUPS, then others as they occur, then LAST_GROUPS.
    groups: dict[str, list[Any]] = {name: [] for name in FIRST_GROUPS}
    for param in ctx.command.get_params(ctx):
        groups.setdefault(_group_of(param), []).append(param)
    names_before = [name for name in groups if name not in LAST_GROUPS]
    for name in (*names_before, *LAST_GROUPS):
        rows = []
        more = []
        for param in groups.get(name, []):
            if shown and name != EVERYWHERE and param.name not in shown:
                more.append(max(param.opts, key=len))
            else:
                rows.append((_option_names(param), _option_help(param)))
        if rows or more:
            yield HelpSection(name, rows, more)


def _group_of(param: Any) -> str:
    """Return the heading under which the help page shows an option or argument."""
    panel: str | None = getattr(param, "rich_help_panel", None)
    if panel:
        return panel
    if param.name in _EVERYWHERE_NAMES:
        return EVERYWHERE
    return "Options" if param.opts[0].startswith("-") else "Arguments"


def _option_names(param: Any) -> str:
    """Return the names of an option, the longest last, and its placeholder for a value."""
    if not param.opts[0].startswith("-"):
        return str(param.metavar or param.name.upper())
    names = ", ".join(sorted(param.opts, key=len))
    if param.secondary_opts:
        return f"{names} / {', '.join(param.secondary_opts)}"
    if param.metavar and not param.is_flag and not _choices(param):
        names += f" {param.metavar}"
    return names


def _choices(param: Any) -> list[str]:
    """Return the choices of an option, which ``commands.options`` wrote into its metavar."""
    name: str = param.metavar or ""
    if param.opts[0].startswith("-") and "|" in name and name.islower():
        return name.split("|")
    return []


def _option_help(param: Any) -> str:
    parts = [param.help or ""]
    if choices := _choices(param):
        parts.append(f"[{', '.join(choices)}]")
    if param.required:
        parts.append("[required]")
    elif (default := default_of(param)) is not None:
        parts.append(f"[default: {default}]")
    if param.envvar:
        parts.append(f"[env: {param.envvar}]")
    return " ".join(parts)
