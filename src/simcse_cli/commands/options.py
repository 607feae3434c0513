"""Turn the fields of a dataclass into options of a command, and the options that several share."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, is_dataclass
from functools import cache, partial, wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo

from simcse_cli.commands import completion
from simcse_cli.commands.console import get_console
from simcse_cli.errors import UsageError
from simcse_cli.files.inputs import STDIO, require_present
from simcse_cli.files.output import require_writable
from simcse_cli.results.report import Outcome, file_format
from simcse_cli.settings.choices import OutputFormat
from simcse_cli.settings.convert import is_null, value_name
from simcse_cli.settings.declare import (
    Setting,
    check_rules,
    check_values,
    setting,
    settings_of,
)

_output = partial(setting, group="Output")


@dataclass(frozen=True)
class OutputOptions:
    fmt: OutputFormat = _output(
        OutputFormat.TABLE, "Format of the results on stdout.", "--format", "-f"
    )
    output: Path | None = _output(
        None,
        "Write the results to this file: .json, .csv, .md or .tex. Stdout then shows only a table.",
        "--output",
        "-o",
    )
    force: bool = _output(False, "Overwrite existing outputs.")

    def check(self) -> None:
        """Raise an error before anything is computed if the output cannot be written."""
        if self.output is not None and str(self.output) != STDIO:
            file_format(self.output, self.fmt)  # raises UsageError for a wrong ending
            require_writable(self.output, force=self.force)

    def show(self, found: Outcome) -> None:
        get_console().emit(found, self.fmt, output=self.output, force=self.force)


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of each parameter whose type is a dataclass of settings.

    The parameter then gets an object of the dataclass. If its type is
    ``Annotated[dict[str, Any], DATACLASS]``, it gets only the settings that the user gave, by name,
    so that other sources can set the rest.
    """
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    declared: dict[str, tuple[Field[Any], Setting]] = {}
    given_only_names: set[str] = set()
    for original in inspect.signature(command).parameters.values():
        group = _dataclass_in(original.annotation)
        if group is None:
            parameters.append(original)
            continue
        groups[original.name] = group
        declared |= settings_of(group)
        if group is not original.annotation:
            given_only_names.add(original.name)
        parameters += _options(group, given_only=original.name in given_only_names).values()
    # Keyword-only parameters may stand in any order, with and without defaults.
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]

    @wraps(command)
    def with_options(**values: Any) -> None:
        check_values(declared, values)
        if not given_only_names:  # else rules are checked later, with the settings of a recipe
            check_rules(declared, values)
        _require_inputs(parameters, values)
        # Take the values of each dataclass; those left belong to the other parameters.
        arguments: dict[str, Any] = {}
        for name, group in groups.items():
            names = _options(group, given_only=name in given_only_names)
            group_values = {option: values.pop(option) for option in names}
            if name in given_only_names:
                arguments[name] = {option: v for option, v in group_values.items() if v is not None}
            else:
                arguments[name] = group(**group_values)
        command(**arguments, **values)

    # The help page reads these attributes.
    main_names = [name for name, (_, details) in declared.items() if details.main]
    with_options.declared = declared  # type: ignore[attr-defined]
    with_options.main_options = frozenset(main_names)  # type: ignore[attr-defined]

    # Typer makes the options of the command from this signature.
    del with_options.__wrapped__  # through it Typer would see the signature without the options
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return with_options


def _dataclass_in(annotation: Any) -> type | None:
    """Return the dataclass of an annotation, or None.

    The annotation is the dataclass itself, or ``Annotated[dict[str, Any], DATACLASS]``.
    """
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and is_dataclass(candidate):
            return candidate
    return None


def input_argument(**details: Any) -> Any:
    """Return a Typer argument for input files; ``_require_inputs`` reports a missing file."""
    argument = typer.Argument(**details)
    argument.is_input = True
    return argument


def require_filled(source: str | None, name: str) -> None:
    """Raise UsageError if the argument ``name`` of a command is empty.

    An empty path would be the current folder; most often, a variable of the shell is not set.
    """
    if source == "":
        raise UsageError(f"{name} is empty, need the name of an input")


def _is_input_argument(detail: Any) -> bool:
    return isinstance(detail, ArgumentInfo) and getattr(detail, "is_input", False)


def _require_inputs(parameters: Iterable[inspect.Parameter], values: Mapping[str, Any]) -> None:
    """Raise an error for an input argument that is empty, and for an input that does not exist.

    Inputs are arguments and options. This is done before slow imports.
    """
    for parameter in parameters:
        for argument in filter(_is_input_argument, get_args(parameter.annotation)):
            value = values[parameter.name]
            for source in value if isinstance(value, list) else [value]:
                require_filled(source, str(argument.metavar).removesuffix("..."))
    # In a group of processes, the others would wait for a process that ends here. So there, the
    # command itself looks for its files, and tells the others.
    if "WORLD_SIZE" in os.environ:
        return
    for parameter in parameters:
        if not any(getattr(detail, "is_input", False) for detail in get_args(parameter.annotation)):
            continue
        value = values[parameter.name]
        for source in value if isinstance(value, list) else [value]:
            if source is not None and not is_null(source):
                require_present(source)


@cache  # several commands share a dataclass
def _options(group: type, *, given_only: bool) -> dict[str, inspect.Parameter]:
    """Return the settings of a dataclass as Typer parameters, by name, without hidden ones."""
    hints = get_type_hints(group)
    options = {}
    for name, (field, details) in settings_of(group).items():
        if not details.hidden:
            options[name] = _option(field, details, hints[name], given_only=given_only)
    return options


def _option(
    field: Field[Any], details: Setting, hint: Any, *, given_only: bool
) -> inspect.Parameter:
    """Return a setting as a Typer parameter; ``hint`` is the type of its value.

    With ``given_only`` the parameter is None unless the user gives it, and ``--help`` still shows
    the default of the setting.
    """
    default = field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    elif default is MISSING:
        default = inspect.Parameter.empty
    keywords: dict[str, Any] = {
        "help": details.help,
        "rich_help_panel": details.group,
        "metavar": details.metavar or _placeholder(field.name, hint),
    }
    if details.completes is not None:
        keywords["autocompletion"] = getattr(completion, details.completes)
    if given_only:
        # Other sources may set the value: the environment is read and the range checked later.
        if default is not None and default is not False:
            is_float = isinstance(default, float)
            keywords["show_default"] = f"{default:g}" if is_float else str(default)
        hint |= None
        default = None
    else:
        keywords |= {"envvar": details.env, "min": details.min, "max": details.max}
    flags = details.flags or ("--" + field.name.replace("_", "-"),)
    option = typer.Option(*flags, **keywords)
    option.is_input = details.is_input
    annotation = Annotated[hint, option]
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, kind, default=default, annotation=annotation)


def _placeholder(name: str, hint: Any) -> str | None:
    """Return the placeholder that ``--help`` shows for the value of a field."""
    # ``X | None`` has the placeholder of X, and a list that of its items.
    value_type = hint
    if get_origin(hint) is not list and (alternatives := get_args(hint)):
        value_type = next(part for part in alternatives if part is not NoneType)
    if get_origin(value_type) is list:
        (value_type,) = get_args(value_type)
    if value_type is bool:
        return None
    if value_type is Path:
        return "FOLDER" if name.endswith("_dir") else "FILE"
    return value_name(value_type)
