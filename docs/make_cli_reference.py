"""Write ``docs/cli.md`` from the commands themselves; the tests fail when it is stale."""

from pathlib import Path
from typing import Any

from simcse_cli.commands.app import COMMANDS, build
from simcse_cli.commands.help import default_of, examples_of
from simcse_cli.settings.declare import Declared, rules_of

TARGET = Path(__file__).parent / "cli.md"
INTRO = """# Command reference

Written by `make docs` from the commands themselves. Every command also takes `-q/--quiet` (errors only),
`-v/--verbose`, `--config FILE.yaml` (its keys are the long option names; flags and environment win over it) and
`-h/--help`. `simcse --install-completion` lets the shell complete options, recipes, models, tasks, published tables
and run folders. Data and results go to stdout, everything else to stderr; `-` is stdin or stdout wherever a file is
expected.

Exit codes: 0 done, 1 failed (the message names place, found, needed and the fix), 2 wrong usage (also an
option that would have no effect beside the others), 3 `compare --check` outside tolerance, 130 interrupted. With
`--format json` an error is a JSON object on stderr: `error` (the message), `place`, `found`, `needed`, `fix` (null where the
message does not name them) and `exit_code`.

Environment: `SIMCSE_MODEL`, `SIMCSE_DATA`, `SIMCSE_DEVICE`, `SIMCSE_PRECISION`, `SIMCSE_SEED`; for `train` every
setting as `SIMCSE_<NAME>`, such as `SIMCSE_BATCH_SIZE`.
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
    tree = build(COMMANDS)
    lines = [INTRO]
    for name in COMMANDS:
        lines += command_section(tree.commands[name], f"simcse {name}", 2)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
