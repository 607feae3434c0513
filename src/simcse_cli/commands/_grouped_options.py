"""Options that several commands take as one object, declared once as the fields of a dataclass."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints


def takes(parameter: str, group: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command with the parameter ``parameter: group`` take the fields of ``group`` on the command line.

    The options stand where the parameter stood.
    """
    fields = inspect.signature(group).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True) | get_type_hints(group, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(command).parameters.values():
            parameters += fields.values() if own.name == parameter else [own]
        shown = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in parameters]

        @wraps(command)
        def with_options(**values: Any) -> None:
            command(**{parameter: group(**{name: values.pop(name) for name in fields})}, **values)

        del with_options.__wrapped__  # Typer would look through it at the signature without the options
        with_options.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        with_options.__annotations__ = {option.name: hints[option.name] for option in shown} | {
            "return": None
        }
        return with_options

    return decorate
