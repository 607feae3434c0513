"""The console command ``simcse``: global options, the seven commands, and errors turned into exit codes."""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from simcse_cli import __version__
from simcse_cli.console import configure_console, get_console, printable
from simcse_cli.errors import SimcseError, UsageError

COMMANDS = ("prepare", "augment", "train", "eval", "encode", "analyze", "compare")
HELP_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def _show_version(value: bool) -> None:
    if value:
        get_console().print_data(f"simcse {__version__}\n")
        raise typer.Exit


def _set_quiet(value: bool) -> bool:
    if value:
        configure_console(quiet=True)
    return value


def _set_verbose(value: bool) -> bool:
    if value:
        configure_console(verbose=True)
    return value


QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", callback=_set_quiet, is_eager=True, help="Show errors only.")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", callback=_set_verbose, is_eager=True, help="Explain more.")
]


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Train, evaluate and use contrastive sentence embeddings.

    Data and results go to stdout, everything else to stderr, so commands chain in shell scripts.
    """


def _apply_config(ctx: typer.Context, value: Path | None) -> Path | None:
    """Make the keys of a YAML file the command's defaults; flags and environment still win over them."""
    if value is not None and not ctx.resilient_parsing:
        from simcse_cli.recipes import read_recipe
        from simcse_cli.settings import check_keys

        values = read_recipe(str(value))
        valid = [param.name for param in ctx.command.params if param.name not in _COMMON_NAMES]
        ctx.default_map = check_keys(values, [name for name in valid if name is not None], place=str(value))
    return value


def _common(
    config: Annotated[
        Path | None,
        typer.Option("--config", callback=_apply_config, is_eager=True, help="YAML file with settings."),
    ] = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Options that every command takes; `build` adds them to each."""


_COMMON_NAMES = ("config", "quiet", "verbose", "help")


def _with_usage_errors(callback: Callable[..., None]) -> Callable[..., None]:
    """Let Typer show a ``UsageError`` as it shows wrong options, with the usage above it."""

    @wraps(callback)
    def run(*args: Any, **values: Any) -> None:
        try:
            callback(*args, **values)
        except UsageError as error:
            raise typer.BadParameter(printable(error.message), param_hint=error.option) from None

    return run


def _add_common_options(command: Any) -> None:
    """Give every leaf command the common options, whatever its module declares."""
    if hasattr(command, "commands"):
        for child in command.commands.values():
            _add_common_options(child)
        return
    single = typer.Typer(add_completion=False)
    single.command()(_common)
    command.callback = _with_usage_errors(command.callback)
    taken = {param.name for param in command.params}
    for option in typer.main.get_command(single).params:
        if option.name not in taken and option.name != "help":
            option.expose_value = False
            command.params.append(option)


def build(names: Sequence[str] = COMMANDS) -> Any:
    """Return the tree of the commands ``names``; a call that names its command needs no other."""
    app = typer.Typer(
        name="simcse",
        no_args_is_help=True,
        context_settings=HELP_SETTINGS,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name in names:
        import_module(f"simcse_cli.commands.{name}").register(app)
    command = typer.main.get_command(app)
    _add_common_options(command)
    return command


def main(args: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 failed, 2 wrong usage, 3 outside tolerance, 130 interrupted."""
    configure_console()
    arguments = list(sys.argv[1:] if args is None else args)
    first = next((word for word in arguments if not word.startswith("-")), None)
    names = (first,) if first in COMMANDS else COMMANDS
    try:
        build(names).main(args=arguments, prog_name="simcse")
    except SimcseError as error:
        get_console().error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
