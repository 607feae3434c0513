"""Write ``docs/cli.md`` and the manual page from the commands themselves; the tests fail when they are stale."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simcse_cli.commands.app import COMMANDS, build
from simcse_cli.commands.help import default_of, examples_of, help_page
from simcse_cli.settings.declare import Declared, rules_of
from simcse_cli.version import __version__

TARGET = Path(__file__).parent / "cli.md"
MANUAL = TARGET.with_name("simcse.1")
INTRO = """# Command reference

Written by `make docs` from the commands themselves. Every command also takes `-q/--quiet` (errors only),
`-v/--verbose`, `--config FILE.yaml` (its keys are the long option names; flags and environment win over it) and
`-h/--help` (`--help-all`, where that shows the main options only). `simcse --install-completion` lets the shell complete options, recipes, models, tasks, published tables
and run folders. Data and results go to stdout, everything else to stderr; `-` is stdin or stdout wherever a file is
expected.

Exit codes: 0 done, 1 failed (the message names place, found, needed and the fix), 2 wrong usage (also an
option that would have no effect beside the others), 3 `compare --check` outside tolerance, 130 interrupted, 141 the
reader of the output has ended (without a message, as in `simcse encode FILE -o - | head -1`). With `--format json` an error is a JSON object, the last line of stderr: `error` (the message), `place`, `found`, `needed`, `fix`
(null where the message does not name them) and `exit_code`. Progress and warnings are lines before it; `-q` leaves them out.

Environment: `SIMCSE_MODEL`, `SIMCSE_DATA`, `SIMCSE_DEVICE`, `SIMCSE_PRECISION`, `SIMCSE_SEED`; for `train` every
setting as `SIMCSE_<NAME>`, named like its flag, such as `SIMCSE_BATCH_SIZE`.
"""
COMMON = {"config", "quiet", "verbose", "help"}


def option_row(param: Any, declared: Declared) -> str:
    """Return one table row of an option or argument, with the rules that it follows."""
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts) if name.startswith("-"))
    rules = rules_of(param.name, declared) if param.name in declared else ()
    choices = " ".join([getattr(param, "help", None) or "", *rules]).replace("<", "&lt;")
    default = default_of(param)
    shown = "" if default is None else f"`{default}`"
    environment = f" (`{param.envvar}`)" if param.envvar else ""
    names = names or f"`{param.name.upper()}`"
    return f"| {names} | {shown} | {choices}{environment} |".replace("\n", " ")


def command_section(command: Any, path: str, level: int) -> list[str]:
    """Return the section of a command and of its sub-commands."""
    prose, examples = examples_of(command.help or "")
    lines = [f"{'#' * level} `{path}`", "", "\n\n".join(prose), ""]
    if examples:
        lines += ["```text", *examples, "```", ""]
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            if child.hidden:  # another name of a command beside it
                continue
            lines += command_section(child, f"{path} {name}", level + 1)
        return lines
    declared = getattr(command.callback, "declared", {})
    rows = [option_row(param, declared) for param in command.params if param.name not in COMMON]
    return [*lines, "| option | default | |", "|---|---|---|", *rows, ""]


def reference() -> str:
    """Return the whole page."""
    tree = build()
    lines = [INTRO]
    for name in COMMANDS:
        lines += command_section(tree.commands[name], f"simcse {name}", 2)
    return "\n".join(lines).rstrip() + "\n"


def roff(text: str) -> str:
    """Return a text as ``man`` reads it: no line starts a request, and hyphens can be searched and copied."""
    plain = text.replace("`", "").replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", plain, flags=re.MULTILINE)


def manual_section(context: Any) -> Iterator[str]:
    """Yield the help page of a command, with all its options, as a section of the manual, and those below it."""
    page = help_page(context, everything=True)
    if context.parent is not None:
        yield f".SH {context.command_path}"
    yield f".B {roff(page.usage.removeprefix('Usage: '))}"
    if context.parent is None:
        yield ".SH DESCRIPTION"
    for paragraph in page.paragraphs:
        yield from (".PP", roff(paragraph))
    if page.examples:
        yield from (".SS Examples", ".nf", *map(roff, page.examples), ".fi")
    for section in page.sections:
        if section.title != "Everywhere" or context.parent is None:
            yield f".SS {section.title}"
            for names, text in section.rows:
                yield from (".TP", f".B {roff(names)}", roff(text))
    for name, child in getattr(context.command, "commands", {}).items():
        if not child.hidden:
            yield from manual_section(child.make_context(name, [], parent=context, resilient_parsing=True))


def manual() -> str:
    """Return the manual page."""
    context = build().make_context("simcse", [], resilient_parsing=True)
    (title, *_), (_, common, exits, _) = examples_of(context.command.help)[0], INTRO.split("\n\n")
    lines = [f'.TH SIMCSE 1 "" "simcse {__version__}"', ".SH NAME", roff(f"simcse - {title.rstrip('.').lower()}")]
    lines += [".SH SYNOPSIS", *manual_section(context)]
    lines += [".SH OPTIONS OF EVERY COMMAND", roff(common.partition(". ")[2]), ".SH EXIT STATUS", roff(exits)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    MANUAL.write_text(manual(), encoding="utf-8")
    TARGET.write_text(reference(), encoding="utf-8")
