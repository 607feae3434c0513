"""The surface of the command line as text, one line an option: ``python tests/surface.py > tests/surface.txt``."""

import sys
from collections.abc import Iterator
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from simcse_cli.commands.app import build

OF_TYPER = ("--install-completion", "--show-completion")


def surface() -> Iterator[str]:
    """Yield a line for each option and argument of each command."""
    yield from _lines(build(), "simcse")


def _lines(command: Any, path: str) -> Iterator[str]:
    own = [param for param in command.params if param.opts[0] not in OF_TYPER]
    yield from sorted(f"{path} {_describe(param)}" for param in own)
    for name, child in sorted(getattr(command, "commands", {}).items()):
        if not child.hidden:
            yield from _lines(child, f"{path} {name}")


def _describe(param: Any) -> str:
    options = sorted((*param.opts, *param.secondary_opts), key=lambda name: (-len(name), name))
    is_option = options[0].startswith("-")
    words = [",".join(options) if is_option else param.metavar or param.name.upper(), _type(param)]
    default = param.show_default if isinstance(param.show_default, str) else param.default
    if param.required:
        words.append("required")
    elif default is not None and default is not False:
        words.append(f"= {getattr(default, 'value', default)}")
    if param.envvar:
        words.append(f"env {param.envvar}")
    if param.min is not None:
        words.append(f"min {param.min:g}")
    if param.max is not None:
        words.append(f"max {param.max:g}")
    if param.nargs == -1 or getattr(param, "multiple", False):
        words.append("repeated")
    return "  ".join(words)


def _type(param: Any) -> str:
    if getattr(param, "is_flag", False):
        return "flag"
    hint = param.type_descriptor.annotation
    while get_origin(hint) in (list, UnionType):
        hint = next(part for part in get_args(hint) if part is not NoneType)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "|".join(choice.value for choice in hint)
    return str(getattr(hint, "__name__", hint)).lower()


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in surface())
