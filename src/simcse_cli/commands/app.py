"""The console command ``simcse``: global options, the seven commands, and exit codes of errors."""

import errno
import os
import re
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, wraps
from importlib import import_module
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from simcse_cli.commands.console import configure_console, get_console
from simcse_cli.commands.help import COMMON_NAMES, OBJECTIVE, help_page, main_options
from simcse_cli.errors import (
    INTERRUPTED,
    READER_ENDED,
    CodeError,
    SimcseError,
    UsageError,
    did_you_mean,
    is_out_of_memory,
    reason_of,
)
from simcse_cli.files.code import error_of_code, users_traceback
from simcse_cli.files.streams import open_standard_streams
from simcse_cli.version import __version__

COMMANDS = {
    "prepare": "Make training files from corpora, and check data.",
    "augment": "Write `anchor,positive` rows, the positives being changed sentences.",
    "train": "Train a sentence encoder; the run folder holds its record, metrics and best model.",
    "eval": "Evaluate an encoder by the protocols of the papers.",
    "encode": "Encode sentences: row i of the output is line i of the input.",
    "analyze": "Explain scores: embedding spaces, neighbours, training paths.",
    "compare": "Compare runs, result files and published numbers: scores, differences, tests, "
    "what changed.",
}
"""The first sentence of the help of each command, so that help pages need not import them all."""
HELP_SETTINGS = {"help_option_names": ["-h", "--help"]}


def _show_version(value: bool) -> None:
    if value:
        get_console().print_data(f"simcse {__version__}\n")
        raise typer.Exit


def _show_info(ctx: typer.Context, value: bool) -> None:
    if value:
        from simcse_cli.models import info

        show = info.as_json if ctx.params["info_format"] == "json" else info.as_text
        get_console().print_data(show(info.program_and_machine()))
        raise typer.Exit


def _set_loudness(param: typer.CallbackParam, value: bool) -> bool:
    """Configure the console if the option ``param``, --quiet or --verbose, was given."""
    if value:
        configure_console(**{str(param.name): True})
    return value


_LOUDNESS: dict[str, Any] = {"callback": _set_loudness, "is_eager": True}
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show errors only.", **_LOUDNESS)]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Explain more.", **_LOUDNESS)]


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
    info: Annotated[
        bool,
        typer.Option(
            "--info", callback=_show_info, help="Describe program and machine, for bug reports."
        ),
    ] = False,
    info_format: Annotated[
        Literal["table", "json"] | None,
        typer.Option("--format", "-f", is_eager=True, help="Format of --info."),
    ] = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Train, evaluate and use contrastive sentence embeddings.

    Data and results go to stdout, everything else to stderr, so commands chain in shell scripts. A
    flag overrides an environment variable, and a variable overrides a recipe (--config).

    simcse prepare demo -o demo
    simcse train --mode sup --train-file demo/triplets.csv -o runs/first
    simcse eval sts --model runs/first --data-dir demo
    simcse encode demo/sentences.txt -o vectors.npy --model runs/first
    """
    # With --info the program has exited already.
    if info_format:
        raise UsageError("has no use without --info", option="--format")


def _apply_config(ctx: typer.Context, value: Path | None) -> Path | None:
    """Take the command's defaults from a YAML file; flags and the environment override them."""
    # ``resilient_parsing`` is set while the shell completes a command; then no file is read.
    if value is not None and not ctx.resilient_parsing:
        from simcse_cli.files.code import require_typed
        from simcse_cli.settings.declare import check_given, check_keys
        from simcse_cli.settings.recipes import read_recipe

        values = read_recipe(str(value))
        # A file of settings must not name code to run; only the command line may.
        require_typed(values, typed={}, place=str(value))
        names = [param.name for param in ctx.command.params if param.name is not None]
        valid = [name for name in names if name not in COMMON_NAMES]
        checked = check_keys(values, valid, place=str(value))
        declared = getattr(ctx.command.callback, "declared", {})
        check_given(declared, checked, place=str(value))
        ctx.default_map = checked
    return value


def _show_all(ctx: typer.Context, value: bool) -> None:
    if value:
        get_console().show_help(help_page(ctx, everything=True))
        raise typer.Exit


def _common(
    config: Annotated[
        Path | None,
        typer.Option(
            callback=_apply_config, is_eager=True, metavar="FILE", help="YAML file with settings."
        ),
    ] = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    help_all: Annotated[
        bool,
        typer.Option("--help-all", callback=_show_all, is_eager=True, help="Show all options."),
    ] = False,
) -> None:
    """Declare the options that `_add_options` adds to every command."""


def _with_stop_message(callback: Callable[..., None]) -> Callable[..., None]:
    """Return the callback of a command, extended: when it is stopped, it says what is kept."""

    @wraps(callback)
    def run(*args: Any, **values: Any) -> None:
        try:
            callback(*args, **values)
        except KeyboardInterrupt as stop:
            get_console().interrupted(getattr(stop, "__notes__", ()))
            raise typer.Exit(INTERRUPTED) from None
        except SystemExit as stop:  # of SIGTERM
            if notes := getattr(stop, "__notes__", ()):
                get_console().interrupted(notes)
            raise

    return run


_WRITTEN = ("output", "save_scores", "plot", "html", "save_postprocess")
"""The names of options that name a file to write."""


def _with_local_paths(callback: Callable[..., None]) -> Callable[..., None]:
    """Return the callback of a command, extended: it gets paths in place of addresses ``file://``.

    An input that may be remote keeps its address.
    """

    @wraps(callback)
    def run(*args: Any, **values: Any) -> None:
        callback(*args, **{name: _local(name, value) for name, value in values.items()})

    return run


def _local(name: str, value: Any) -> Any:
    """Return the value of an option, or for an address ``file://`` the path in it.

    A text counts as an address only if its option names a file to write.
    """
    from simcse_cli.files.inputs import local_path  # not for the help

    if isinstance(value, list):
        return [_local(name, each) for each in value]
    may_be_address = isinstance(value, Path) or (isinstance(value, str) and name in _WRITTEN)
    return local_path(value) if may_be_address else value


def _with_outputs_apart(callback: Callable[..., None]) -> Callable[..., None]:
    """Return a command's callback, extended: it does not run if an output would replace an input.

    Files that the command finds in folders, or by a pattern, are for the command to check.
    """

    @wraps(callback)
    def run(*args: Any, **values: Any) -> None:
        from simcse_cli.files.inputs import Inputs, is_remote  # not for the help

        # The name of an option does not tell whether it is an input, so all others may be inputs.
        possible_inputs: list[Any] = []
        for name, value in values.items():
            if name not in _WRITTEN:
                possible_inputs += value if isinstance(value, list) else [value]
        local_inputs = []
        for value in possible_inputs:
            if isinstance(value, str | Path) and not is_remote(value):
                local_inputs.append(value)
        inputs = Inputs(local_inputs)
        for name in _WRITTEN:
            if values.get(name) is not None:
                inputs.require_apart(values[name])
        callback(*args, **values)

    return run


def _with_variables_checked(callback: Callable[..., None]) -> Callable[..., None]:
    """Return the callback of a command, extended: it warns of variables that look mistyped."""

    @wraps(callback)
    def run(*args: Any, **values: Any) -> None:
        if any(variable.startswith("SIMCSE_") for variable in os.environ):
            from simcse_cli.settings.recipes import mistyped_variables  # not for the help

            mistyped = list(mistyped_variables())
            if mistyped and _speaks_to_user():
                for variable, meant in mistyped:
                    get_console().warn(f"{variable} gives no setting; did you mean {meant}?")
        callback(*args, **values)

    return run


def _speaks_to_user() -> bool:
    """Tell whether this process warns: it is alone, or the launcher or first process of a group."""
    from simcse_cli.machine.processes import is_launched, process_rank  # takes seconds

    return not is_launched() and process_rank() == 0


def _check_arguments_first(command: Any) -> None:
    """Make a command look at its arguments before it parses them.

    It refuses an option that is given twice, if only one value would count. It also notes which
    objective is named, since its help page shows the options of the objective.
    """
    parse_args = command.parse_args

    def check_and_parse(ctx: Any, arguments: list[str]) -> Any:
        if not ctx.resilient_parsing:  # which is true while the shell completes a command
            values, _, given = command.make_parser(ctx).parse_args(args=list(arguments))
            ctx.meta[OBJECTIVE] = values.get("objective")
            _require_given_once(given)
        return parse_args(ctx, arguments)

    command.parse_args = check_and_parse


def _require_given_once(given: Sequence[Any]) -> None:
    """Raise UsageError for an option that is given several times, but takes one value."""
    for option, count in Counter(given).items():
        if count > 1 and not _may_repeat(option):
            raise UsageError(
                f"is given {count} times and takes one value",
                option=max(option.opts, key=len),
                hint="keep one of them",
            )


def _may_repeat(option: Any) -> bool:
    """Tell whether an argument or option may be given several times."""
    # ``--columns`` may, since errors suggest adding a column to the command.
    if option.param_type_name != "option" or option.multiple or "--columns" in option.opts:
        return True
    # A flag without an opposite, such as --force, means the same if it is repeated.
    return bool(option.is_flag and not option.secondary_opts)


@cache
def _common_options() -> tuple[Any, ...]:
    """Return the options that Typer makes from the signature of `_common`."""
    app = typer.Typer(add_completion=False)
    app.command()(_common)
    options = [param for param in typer.main.get_command(app).params if param.name != "help"]
    for option in options:
        option.expose_value = False  # its callback acts, so the command does not get the value
    return tuple(options)


def _add_options(command: Any) -> None:
    """Add the common options and this program's help pages to a command and those below it."""
    command.format_help = lambda ctx, _: get_console().show_help(help_page(ctx))
    if hasattr(command, "commands"):
        _convert_given_only(command)
        for child in command.commands.values():
            _add_options(child)
        return
    checked = _with_variables_checked(_with_outputs_apart(command.callback))
    command.callback = _with_stop_message(_with_local_paths(checked))
    _check_arguments_first(command)
    taken_names = {param.name for param in command.params}
    if not main_options(command):
        taken_names.add("help_all")  # all options are on the one help page
    command.params += [option for option in _common_options() if option.name not in taken_names]


def _convert_given_only(group: Any) -> None:
    """Make a group convert only the options that were given: the first conversion takes 0.1 s."""
    parse_args = group.parse_args

    def unless_missing(convert: Callable[..., Any]) -> Callable[..., Any]:
        """Return a conversion that keeps None, and treats other values as ``convert`` does."""
        return lambda ctx, value: None if value is None else convert(ctx, value)

    def prepare_and_parse(ctx: Any, arguments: list[str]) -> Any:
        for option in group.get_params(ctx):
            # An earlier call may have replaced the method already.
            if "process_value" not in vars(option):
                option.process_value = unless_missing(option.process_value)
        return parse_args(ctx, arguments)

    group.parse_args = prepare_and_parse


class _Simcse(TyperGroup):
    """The command ``simcse``, which imports one of its seven commands when it is looked up."""

    summaries = COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(cmd_name)
        return self.commands.get(cmd_name)


def _load(name: str) -> Any:
    """Import the module of a command, and return the command with the common options."""
    app = typer.Typer(add_completion=False)
    app.add_typer(import_module(f"simcse_cli.commands.{name}").app)
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    _add_options(command)
    return command


def _simcse() -> Any:
    """Return the command ``simcse``; its seven commands are imported later."""
    app = typer.Typer(
        name="simcse",
        cls=_Simcse,
        no_args_is_help=True,
        context_settings=HELP_SETTINGS,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    command: Any = typer.main.get_command(app)
    _add_options(command)
    return command


def build() -> Any:
    """Return the command ``simcse`` with all commands below it imported."""
    tree = _simcse()
    for name in COMMANDS:
        tree.get_command(None, name)
    return tree


# What a user can do about an error of the system, by its number.
_HINTS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change its permissions, or those of its folder"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space, or choose another place"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit on open files: ulimit -n 4096"),
    errno.EROFS: "choose a place that can be written",
    errno.EIO: "the disk or the network may be damaged: copy the file elsewhere",
    errno.ENOTDIR: "one of the folders in this path is a file: check the path",
    errno.ELOOP: "one of the links in this path leads to itself: check the path",
}


def _limit_of_the_system(error: Exception) -> SimcseError | None:
    """Return the error to show if the system refuses something; None for other errors."""
    if isinstance(error, OSError) and error.errno in _HINTS:
        place = "the system refuses" if error.filename is None else error.filename
        return SimcseError(f"{place}: {error.strerror}", hint=_HINTS[error.errno])
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        name = str(error.filename)
        message = f"{name[:40]}... ({len(name):,} characters) is longer than a name or path can be"
        return SimcseError(message, hint="give a shorter one")
    if is_out_of_memory(error):
        hint = "end other programs, raise the limit (ulimit -v), or take a smaller model or batch"
        return SimcseError(f"there is not enough memory ({reason_of(error)})", hint=hint)
    return None


def _wrong_usage(error: Any, arguments: Sequence[str]) -> SimcseError | None:
    """Return the error to show for wrong options; None if ``error`` is of another kind.

    Typer or this program may have found them.
    """
    if isinstance(error, UsageError):
        message = error.message
    elif hasattr(error, "format_message"):
        message = error.format_message()
    else:
        return None
    # The suggestions of Typer are cut off, since the hint has a better one.
    message = re.split(r" \(Possible options| Did you mean", message)[0]
    message = message.replace("Value error, ", "")
    hint = error.hint if isinstance(error, UsageError) else None
    return UsageError(message, hint=hint or _usage_hint(message, arguments))


def _usage_hint(message: str, arguments: Sequence[str]) -> str:
    """Return a hint: the option or command that was probably meant, else the help page."""
    command, called = _called_command(_simcse(), arguments)
    help_page_hint = f"see {called} -h"
    unknown = re.search("No such (option|command):? '?([^' ]+)", message)
    if unknown is None:
        return help_page_hint
    if unknown[1] == "option":
        # A file such as -notes.txt is taken for the option -n.
        for word in arguments:
            is_file = os.path.exists(word)  # noqa: PTH110 - fails for long words
            if is_file and word.startswith(unknown[2]):
                return f"for a file whose name begins with a dash: {shlex.quote(f'./{word}')}"
        options = chain.from_iterable(parameter.opts for parameter in command.params)
        return did_you_mean(unknown[2], options, cutoff=0.75) or help_page_hint
    paths_by_name = _paths(build())
    near = get_close_matches(unknown[2], paths_by_name, n=1, cutoff=0.65)
    return f"did you mean simcse {paths_by_name[near[0]]}?" if near else help_page_hint


def _called_command(tree: Any, arguments: Sequence[str]) -> tuple[Any, str]:
    """Return the command that the arguments call, and its name such as ``simcse eval sts``.

    Words that are no command, such as options, are skipped.
    """
    command = tree
    called = "simcse"
    for word in arguments:
        child = command.get_command(None, word) if hasattr(command, "get_command") else None
        if child is not None:
            command = child
            called += f" {word}"
    return command, called


def _paths(tree: Any) -> dict[str, str]:
    """Return the path of each command below ``tree`` by its name: sts has the path ``eval sts``."""
    paths: dict[str, str] = {}
    for name, child in getattr(tree, "commands", {}).items():
        for inner_name, inner_path in _paths(child).items():
            paths[inner_name] = f"{name} {inner_path}"
        paths[name] = name
    return paths


def main(args: Sequence[str] | None = None) -> None:
    """Run one command and exit.

    The exit codes are 0 done, 1 failed, 2 wrong usage, 3 off tolerance, 130 stopped, and 141 if the
    reader of a pipe has ended.
    """
    configure_console()
    open_standard_streams()
    _exit_on_sigterm()
    os.environ["PYTHONSAFEPATH"] = "1"  # child processes must not import from the current folder
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        sys.exit(_simcse().main(args=arguments, prog_name="simcse", standalone_mode=False))
    except typer.Abort:
        sys.exit(1)
    except Exception as error:
        failure = _error_to_show(error, arguments)
        is_traced = isinstance(failure, CodeError) and get_console().verbose
        if failure is None or is_traced:
            error.__traceback__ = users_traceback(error)
            raise
        # The message is empty if a command without arguments has shown its help.
        if failure.message:
            get_console().error(failure, as_json=_asks_for_json(arguments))
        sys.exit(failure.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except SystemExit as stop:
        # Typer and Rich exit with 1, without a message, if the reader of a pipe has ended.
        if isinstance(stop.__context__, BrokenPipeError):
            sys.exit(READER_ENDED)
        raise


def _exit_on_sigterm() -> None:
    """Exit through an exception on SIGTERM, so that temporary files are removed."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with suppress(ValueError):  # only the main thread can set a handler
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def _error_to_show(error: Exception, arguments: Sequence[str]) -> SimcseError | None:
    """Return the error to show for an exception, or None for a mistake of this program."""
    usage_error = _wrong_usage(error, arguments)
    if usage_error is not None:
        return usage_error
    if isinstance(error, SimcseError):
        return error
    return _limit_of_the_system(error) or error_of_code(error)


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Tell whether the arguments ask for JSON.

    This looks at the words themselves, since an error may come before the arguments are parsed.
    """
    # The flag and its value are either one word or two words in a row.
    words_and_pairs = {*arguments, *map(" ".join, pairwise(arguments))}
    spellings = ("--format json", "--format=json", "-f json", "-fjson")
    return not words_and_pairs.isdisjoint(spellings)
