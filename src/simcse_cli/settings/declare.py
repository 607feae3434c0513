"""Settings as fields of a dataclass.

One declaration gives the flag, the YAML key, the variable and the help.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from math import inf, isfinite
from typing import Any, get_type_hints

from simcse_cli.errors import ConfigError, UsageError, did_you_mean
from simcse_cli.settings.convert import convert

ALL = ("*",)
LARGEST = 2**63 - 1
SEED_RANGE = {"min": 0, "max": LARGEST}
"""Seeds that both PyTorch and NumPy take."""


@dataclass(frozen=True)
class Setting:
    """Describe a field beyond its type and default: its flags, help, range and rules.

    Rules between settings are declared here and checked by ``check_rules``. A condition is ``name``
    (it has a value), ``name=value``, ``name~part`` (its text contains the part), their opposites
    with ``!`` before the sign, or several of these with ``|`` between them; ``needs`` may give a
    reason for each.
    """

    help: str
    flags: tuple[str, ...] = ()  # as typed; empty: the field's name with dashes
    group: str | None = None  # heading in --help
    env: str | None = None  # environment variable, read by every command that has the setting
    metavar: str | None = None  # placeholder for the value in --help
    form: tuple[str, str] | None = (
        None  # regular expression that a text matches, and what that is in words
    )
    min: float | None = None
    above: float | None = None  # exclusive lower bound
    max: float | None = None
    below: float | None = None  # exclusive upper bound
    hidden: bool = False  # a key in YAML only, not a flag
    main: bool = False  # --help shows only these if a command has any; --help-all shows the rest
    completes: str | None = None  # function of `commands.completion` that completes the value
    needs: str | Mapping[str, str] = field(
        default_factory=dict
    )  # conditions without which it has no effect
    enables: tuple[str, ...] = ()  # settings that have no effect without it
    excludes: tuple[str, ...] = ()  # settings that have no effect beside it; ALL but `force`
    because: str = ""  # why, after "has no use with --this, "
    recorded: bool = False  # in the record of an output that depends on it
    unsaid: tuple[Any, ...] = ()  # values that the record leaves out, as older records do


def setting(
    default: Any,
    help: str,  # noqa: A002 - as Typer calls it
    *flags: str,
    **details: Any,
) -> Any:
    """Return a dataclass field with its ``Setting``.

    The default ``...`` makes it required; a function makes a new value for each object.
    """
    metadata = {"setting": Setting(help, flags, **details)}
    if default is ...:
        return field(metadata=metadata)
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def columns_setting(
    help: str,  # noqa: A002 - as Typer calls it
    metavar: str,
    **details: Any,
) -> Any:
    return setting(None, help, "--columns", "--column", metavar=metavar, **details)


def settings_of(group: Any) -> dict[str, tuple[Field[Any], Setting]]:
    """Return the settings of a dataclass by name, its own before inherited ones."""
    return _settings_of(group)


@cache  # every call of the program asks for each group several times
def _settings_of(group: Any) -> dict[str, tuple[Field[Any], Setting]]:
    own = {f.name: (f, f.metadata["setting"]) for f in fields(group) if "setting" in f.metadata}
    inherited = {}
    if is_dataclass(group.__base__):
        inherited = settings_of(group.__base__)
    return {n: own[n] for n in own if n not in inherited} | {n: own[n] for n in inherited}


def recorded(values: Any) -> dict[str, Any]:
    """Return the values of the settings marked ``recorded``, apart from those left ``unsaid``."""
    group: type = type(values)
    found = {}
    for name, (_, own) in settings_of(group).items():
        value = getattr(values, name)
        if own.recorded and value not in own.unsaid:
            found[name] = value
    return found


def flag(group: type, name: str) -> str:
    return flag_of(name, settings_of(group)[name][1])


def flag_of(name: str, own: Setting) -> str:
    """Return the long command-line flag of a setting whose details are known."""
    given = next((f for f in own.flags if f.startswith("--")), "--" + name.replace("_", "-"))
    return given.partition("/")[0]


Declared = Mapping[str, tuple[Field[Any], Setting]]
_CONDITION = re.compile(r"(\w+)(?:(!?[=~])(.*))?")


def is_chosen(name: str, declared: Declared, values: Mapping[str, Any]) -> bool:
    """Tell whether a setting differs from its default.

    A difference that comes from an environment variable does not count.
    """
    own, details = declared[name]
    default = own.default_factory() if own.default_factory is not MISSING else own.default
    from_variable = details.env is not None and details.env in os.environ
    return values.get(name) is not None and values[name] != default and not from_variable


def refuse_unused(values: Any, names: Iterable[str], reason: str) -> None:
    """Raise UsageError for the first of these settings that was chosen.

    This is for rules that depend on data.
    """
    group: type = type(values)
    declared, given = settings_of(group), vars(values)
    for name in names:
        if is_chosen(name, declared, given):
            raise UsageError(reason, option=flag_of(name, declared[name][1]))


def check_values(
    declared: Declared,
    values: Mapping[str, Any],
    place_of: Callable[[str, Setting], str] = flag_of,
) -> None:
    """Raise ConfigError for a wrong number, and for a folder called ``-``.

    A number is wrong if it is out of range, not finite or beyond 64 bits.

    A text of another form than the setting's is a UsageError. ``place_of`` names a setting in
    messages.
    """
    for name, (_, own) in declared.items():
        value = values.get(name)
        if own.metavar == "FOLDER" and str(value) == "-":
            raise ConfigError(
                f"{flag_of(name, own)} -: need a folder, which standard output is not"
            )
        if (
            own.form is not None
            and value is not None
            and re.fullmatch(own.form[0], str(value)) is None
        ):
            raise UsageError(f"{value!r}; need {own.form[1]}", option=flag_of(name, own))
        if not isinstance(value, int | float):
            continue
        place = f"{place_of(name, own)} {value}"
        if isinstance(value, float) and not isfinite(value):
            raise ConfigError(f"{place}: need a finite number")
        if own.min is not None and value < own.min:
            raise ConfigError(f"{place}: need at least {own.min:g}")
        if own.above is not None and not value > own.above:
            raise ConfigError(f"{place}: need a number above {own.above:g}")
        if own.below is not None and not value < own.below:
            raise ConfigError(f"{place}: need a number below {own.below:g}")
        most = own.max if own.max is not None else LARGEST if isinstance(value, int) else inf
        if value > most:
            raise ConfigError(f"{place}: need at most {f'{most:,}'.removesuffix('.0')}")


def check_rules(
    declared: Declared,
    values: Mapping[str, Any],
    place_of: Callable[[str, Setting], str] = flag_of,
) -> None:
    """Raise UsageError for the first chosen setting without effect beside the others."""
    for name, (_, own) in declared.items():
        for condition, reason in _needs(own):
            if is_chosen(name, declared, values) and not _holds(condition, values):
                phrase = _phrase(condition, declared, place_of) + (f", {reason}" if reason else "")
                raise UsageError(f"has no use {phrase}", option=place_of(name, own))
        preposition, others = (
            ("with", own.excludes) if values.get(name) else ("without", own.enables)
        )
        for other in declared if others == ALL else others:
            if (
                other in declared
                and other not in (name, "force")
                and is_chosen(other, declared, values)
            ):
                reason = f", {own.because}" if own.because else ""
                place = place_of(other, declared[other][1])
                raise UsageError(
                    f"has no use {preposition} {place_of(name, own)}{reason}", option=place
                )


def rules_of(name: str, declared: Declared) -> list[str]:
    own = declared[name][1]
    found = [f"Has no use {_phrase(condition, declared)}." for condition, _ in _needs(own)]
    found += [
        f"Has no use without {flag_of(other, details)}."
        for other, (_, details) in declared.items()
        if name in details.enables
    ]
    if own.excludes == ALL:
        found.append("Excludes all other options but --force.")
    elif own.excludes:
        flags = ", ".join(
            flag_of(other, declared[other][1]) for other in own.excludes if other in declared
        )
        found.append(f"Excludes {flags}.")
    return found


def _needs(own: Setting) -> Iterable[tuple[str, str]]:
    return ((own.needs, ""),) if isinstance(own.needs, str) else dict(own.needs).items()


def _parts(condition: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, sign and text of each alternative of a condition."""
    for part in condition.split("|"):
        found = _CONDITION.fullmatch(part)
        if found is None:
            raise ValueError(f"{condition!r} is no condition")
        yield found[1], found[2] or "", found[3] or ""


def _holds(condition: str, values: Mapping[str, Any]) -> bool:
    def holds(name: str, sign: str, text: str) -> bool:
        value = values.get(name)
        if not sign:
            return bool(value)
        return (
            text in str(value).lower() if "~" in sign else text == str(value)
        ) is not sign.startswith("!")

    return any(holds(*part) for part in _parts(condition))


def _phrase(
    condition: str, declared: Declared, place_of: Callable[[str, Setting], str] = flag_of
) -> str:
    """Put a condition that does not hold into words: ``without --dedup near or --leak-near``."""
    parts = list(_parts(condition))
    flags = []
    for name, _, text in parts:
        place = place_of(name, declared[name][1])
        joint = "=" if place.startswith("--set ") else " "
        flags.append(f"{place}{joint}{text}" if text else place)
    preposition = "with" if parts[0][1].startswith("!") else "without"
    return f"{preposition} {' or '.join(flags)}"


def check_keys(
    values: Mapping[str, Any], valid: Mapping[str, str] | Iterable[str], *, place: str
) -> dict[str, Any]:
    """Return the values by name; keys may also be spelled as flags if ``valid`` maps them."""
    names = list(valid)
    by_flag = valid if isinstance(valid, Mapping) else {}
    by_key = {text.lstrip("-").replace("-", "_"): name for name, text in by_flag.items()}
    checked: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        name = by_key.get(name, name)
        if name not in names:
            known = f"known keys: {', '.join(sorted(names))}"
            hint = did_you_mean(name, names, known, cutoff=0.5)
            raise ConfigError(f"{place}: unknown key {key!r}", hint=hint)
        checked[name] = value
    return checked


def coerce_settings(group: type, values: Mapping[str, Any], *, place: str) -> dict[str, Any]:
    hints = get_type_hints(group)
    valid = {name: flag(group, name) for name in settings_of(group)}
    checked = check_keys(values, valid, place=place)
    return {
        name: convert(value, hints[name], f"{place}: {name}") for name, value in checked.items()
    }


def build_options(values: Mapping[str, Any], *groups: type, place: str) -> list[Any]:
    """Return an object of each dataclass from settings by name.

    The settings are checked as those of a command are.
    """
    declared = {name: own for group in groups for name, own in settings_of(group).items()}
    given = check_keys(
        values, {name: flag_of(name, own) for name, (_, own) in declared.items()}, place=place
    )
    built: list[Any] = []
    chosen: dict[str, Any] = {}
    for group in groups:
        own = {name: value for name, value in given.items() if name in settings_of(group)}
        made = group(**coerce_settings(group, own, place=place))
        chosen |= {name: getattr(made, name) for name in settings_of(group)}
        built.append(made)
    check_values(declared, chosen)
    check_rules(declared, chosen)
    return built
