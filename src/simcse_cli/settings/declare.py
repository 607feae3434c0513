"""Settings as fields of a dataclass.

One declaration defines the flag, the YAML key, the environment variable and the help.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from math import isfinite
from typing import Any, get_type_hints

from simcse_cli.errors import ConfigError, UsageError, did_you_mean
from simcse_cli.settings.convert import convert

ALL = ("*",)
OTHER_NAMES = {"learning_rate": "lr"}
"""From the name of a setting in other libraries to our name, where the two are not similar."""
LARGEST = 2**63 - 1
SEED_RANGE = {"min": 0, "max": LARGEST}
"""The range of seeds that both PyTorch and NumPy accept."""


@dataclass(frozen=True)
class Setting:
    """What a setting has beyond its type and default: flags, help, range and rules.

    Rules between settings are declared here and checked by ``check_rules``. The condition of a rule
    is ``name`` (the setting ``name`` has a value), ``name=value``, or ``name~part`` (its text
    contains the part). ``!=`` and ``!~`` are the opposites, and ``|`` joins alternatives. ``needs``
    is a condition, or a mapping from conditions to reasons.
    """

    help: str
    flags: tuple[str, ...] = ()  # as typed; empty: the field's name with dashes
    group: str | None = None  # heading in --help
    env: str | None = None  # environment variable, read by every command that has the setting
    metavar: str | None = None  # placeholder for the value in --help
    # A regular expression that the value must match, and its meaning in words.
    form: tuple[str, str] | None = None
    min: float | None = None
    above: float | None = None  # exclusive lower bound
    max: float | None = None
    below: float | None = None  # exclusive upper bound
    hidden: bool = False  # a key in YAML only, not a flag
    main: bool = False  # --help shows only these if a command has any; --help-all shows the rest
    is_input: bool = False  # names input files; a missing one is reported first
    completes: str | None = None  # function of `commands.completion` that completes the value
    # Conditions without which this setting has no effect.
    needs: str | Mapping[str, str] = field(default_factory=dict)
    enables: tuple[str, ...] = ()  # settings that have no effect without this one
    excludes: tuple[str, ...] = ()  # settings without effect beside this one; ALL: all but force
    because: str = ""  # the reason, which ends the message "has no use with --this, ..."
    recorded: bool = False  # whether the record of an output has the setting
    unsaid: tuple[Any, ...] = ()  # values that the record leaves out, as older records do


def setting(
    default: Any,
    help: str,  # noqa: A002 - as Typer calls it
    *flags: str,
    **details: Any,
) -> Any:
    """Return a dataclass field with its ``Setting``.

    ``details`` are further fields of ``Setting``. The default ``...`` makes the setting required. A
    function as the default is called to make the value for each new object.
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


Declared = dict[str, tuple[Field[Any], Setting]]
"""From the name of a setting to its dataclass field and its ``Setting``."""


def settings_of(group: Any) -> Declared:
    """Return the settings of a dataclass by name; inherited ones come last."""
    # This is apart from the cached function, for which mypy refuses a dataclass as an argument.
    return _settings_of(group)


@cache  # every call of the program asks for the same dataclasses several times
def _settings_of(group: Any) -> Declared:
    by_name = {f.name: (f, f.metadata["setting"]) for f in fields(group) if "setting" in f.metadata}
    inherited: Declared = {}
    if is_dataclass(group.__base__):
        inherited = settings_of(group.__base__)
    new_names = [name for name in by_name if name not in inherited]
    # A field that is declared again without ``setting`` is no setting any more.
    return {name: by_name[name] for name in [*new_names, *inherited] if name in by_name}


def recorded(values: Any) -> dict[str, Any]:
    """Return the settings that the record of an output has, as values by name.

    ``values`` is an object of a dataclass of settings.
    """
    group: type = type(values)
    by_name = {}
    for name, (_, details) in settings_of(group).items():
        value = getattr(values, name)
        if details.recorded and value not in details.unsaid:
            by_name[name] = value
    return by_name


def flag(group: type, name: str) -> str:
    """Return the long flag of a setting of a dataclass."""
    return flag_of(name, settings_of(group)[name][1])


def flag_of(name: str, details: Setting) -> str:
    """Return the long command-line flag of a setting, given its name and its ``Setting``."""
    return _long_flags(name, details)[0]


def _long_flags(name: str, details: Setting) -> list[str]:
    """Return the long flags of a setting; only the first half of --header/--no-header."""
    flags = [text.partition("/")[0] for text in details.flags if text.startswith("--")]
    return flags or ["--" + name.replace("_", "-")]


def names_by_key(declared: Declared) -> dict[str, str]:
    """Map keys to names of settings; the keys of a setting are its name and its long flags."""
    names = {name: name for name in declared}
    for name, (_, details) in declared.items():
        for text in _long_flags(name, details):
            names.setdefault(text.lstrip("-").replace("-", "_"), name)
    return names


_PlaceOf = Callable[[str, Setting], str]
_CONDITION = re.compile(r"(\w+)(?:(!?[=~])(.*))?")


def is_chosen(name: str, declared: Declared, values: Mapping[str, Any]) -> bool:
    """Tell whether the user has set a setting to another value than its default.

    The answer is no if its environment variable is set, since the value may come from there.
    """
    declared_field, details = declared[name]
    default = declared_field.default
    if declared_field.default_factory is not MISSING:
        default = declared_field.default_factory()
    from_variable = details.env is not None and details.env in os.environ
    return values.get(name) is not None and values[name] != default and not from_variable


def words_of(group: type, values: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return, as command-line words, the named settings that the user has chosen."""
    declared = settings_of(group)
    words = []
    for name in names:
        if not is_chosen(name, declared, values):
            continue
        value = values[name]
        word = "--no-header" if name == "header" and not value else flag(group, name)
        for each in value if isinstance(value, list) else [value]:
            words += [word] if isinstance(each, bool) else [word, str(each)]
    return words


def refuse_unused(values: Any, names: Iterable[str], reason: str) -> None:
    """Raise UsageError with ``reason`` for the first named setting that is not at its default.

    ``values`` is an object of a dataclass of settings.
    """
    group: type = type(values)
    declared = settings_of(group)
    for name in names:
        if is_chosen(name, declared, vars(values)):
            raise UsageError(reason, option=flag_of(name, declared[name][1]))


def check_values(
    declared: Declared, values: Mapping[str, Any], place_of: _PlaceOf = flag_of
) -> None:
    """Raise an error for a setting whose value is not allowed.

    This is a ConfigError for a number that is out of range, not finite or beyond 64 bits, and for a
    folder called ``-``. It is a UsageError for a text that does not match the ``form`` of the
    setting. ``place_of`` returns the name of a setting in the message.
    """
    for name, (_, details) in declared.items():
        value = values.get(name)
        # ``-`` stands for stdin or stdout, which are no folders.
        if details.metavar == "FOLDER" and str(value) == "-":
            raise ConfigError(
                f"{place_of(name, details)} -: need a folder, which standard output is not"
            )
        if details.form is not None and value is not None:
            pattern, words = details.form
            if re.fullmatch(pattern, str(value)) is None:
                raise UsageError(f"{str(value)!r}; need {words}", option=place_of(name, details))
        if isinstance(value, int | float):
            _check_number(value, details, f"{place_of(name, details)} {value}")


def check_given(declared: Declared, values: Mapping[str, Any], *, place: str) -> None:
    """Raise an error for a value that its setting cannot have; all are from the file ``place``."""
    for name, value in values.items():
        if name in declared and value is not None:
            declared_field, _ = declared[name]
            converted = convert(value, declared_field.type, f"{place}: {name}")
            check_values(
                {name: declared[name]}, {name: converted}, lambda name, _: f"{place}: {name}"
            )


def _check_number(value: int | float, details: Setting, place: str) -> None:
    if isinstance(value, float) and not isfinite(value):
        raise ConfigError(f"{place}: need a finite number")
    if details.min is not None and value < details.min:
        raise ConfigError(f"{place}: need at least {details.min:g}")
    if details.above is not None and not value > details.above:
        raise ConfigError(f"{place}: need a number above {details.above:g}")
    if details.below is not None and not value < details.below:
        raise ConfigError(f"{place}: need a number below {details.below:g}")
    most = details.max
    if most is None and isinstance(value, int):
        most = LARGEST  # the largest 64-bit integer
    if most is not None and value > most:
        raise ConfigError(f"{place}: need at most {f'{most:,}'.removesuffix('.0')}")


def check_rules(
    declared: Declared, values: Mapping[str, Any], place_of: _PlaceOf = flag_of
) -> None:
    """Raise UsageError for the first setting that the user has chosen, but that has no effect.

    The values of other settings decide whether a setting has an effect. ``place_of`` returns the
    name of a setting in messages.
    """
    chosen = [name for name in declared if is_chosen(name, declared, values)]
    for name, (_, details) in declared.items():
        needed = _needs(details) if name in chosen else ()
        for condition, reason in needed:
            if not _holds(condition, values):
                phrase = _phrase(condition, declared, place_of)
                raise _no_use(place_of(name, details), phrase, reason)

        # With a value of this setting, the settings that it excludes have no use. Without one, the
        # settings that it enables have no use.
        if values.get(name):
            excluded = chosen if details.excludes == ALL else details.excludes
            # ``--force`` goes with every setting.
            unused = [other for other in excluded if other not in (name, "force")]
            preposition = "with"
        else:
            unused = list(details.enables)
            preposition = "without"
        for other in unused:
            if other in chosen:
                phrase = f"{preposition} {place_of(name, details)}"
                raise _no_use(place_of(other, declared[other][1]), phrase, details.because)


def _no_use(place: str, phrase: str, reason: str) -> UsageError:
    """Return the error for the setting at ``place``, which has no effect here.

    ``phrase`` names the cause, such as ``without --dedup near``; ``reason`` may be empty.
    """
    message = f"has no use {phrase}"
    if reason:
        message += f", {reason}"
    return UsageError(message, option=place)


def rules_of(name: str, declared: Declared) -> list[str]:
    """Return the rules of a setting as sentences for its help."""
    details = declared[name][1]
    sentences = [f"Has no use {_phrase(condition, declared)}." for condition, _ in _needs(details)]
    for other, (_, details_of_other) in declared.items():
        if name in details_of_other.enables:
            sentences.append(f"Has no use without {flag_of(other, details_of_other)}.")
    if details.excludes == ALL:
        sentences.append("Excludes all other options but --force.")
    elif details.excludes:
        names = [other for other in details.excludes if other in declared]
        excluded = [flag_of(other, declared[other][1]) for other in names]
        sentences.append(f"Excludes {', '.join(excluded)}.")
    return sentences


def _needs(details: Setting) -> Iterable[tuple[str, str]]:
    """Return the conditions that a setting needs, each with a reason that may be empty."""
    if isinstance(details.needs, str):
        return [(details.needs, "")]
    return details.needs.items()


def _alternatives(condition: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the sign (which may be empty) and the text of each alternative."""
    for part in condition.split("|"):
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise ValueError(f"{condition!r} is no condition")
        yield match[1], match[2] or "", match[3] or ""


def _holds(condition: str, values: Mapping[str, Any]) -> bool:
    """Tell whether at least one alternative of a condition is true of the values.

    ``name=text`` is true if the value equals the text, ``name~text`` if the value in lower case
    contains it, and ``name`` alone if the value is neither empty nor false. ``!=`` and ``!~`` are
    the opposites.
    """
    for name, sign, text in _alternatives(condition):
        value = values.get(name)
        if not sign:
            matches = bool(value)
        elif "~" in sign:
            matches = text in str(value).lower()
        else:
            matches = text == str(value)
        is_negated = sign.startswith("!")
        if matches != is_negated:
            return True
    return False


def _phrase(condition: str, declared: Declared, place_of: _PlaceOf = flag_of) -> str:
    """Put an unmet condition into words, such as ``without --dedup near or --leak-near``."""
    # All alternatives of a condition have the same sign, so the first sign decides below.
    alternatives = list(_alternatives(condition))
    flags = []
    for name, _, text in alternatives:
        place = place_of(name, declared[name][1])
        joint = "=" if place.startswith("--set ") else " "  # --set NAME=VALUE, but --flag VALUE
        flags.append(f"{place}{joint}{text}" if text else place)
    _, first_sign, _ = alternatives[0]
    preposition = "with" if first_sign.startswith("!") else "without"
    return f"{preposition} {' or '.join(flags)}"


def check_keys(
    values: Mapping[str, Any], valid: Mapping[str, str] | Iterable[str], *, place: str
) -> dict[str, Any]:
    """Return the values by name of setting; raise ConfigError for an unknown or repeated key.

    ``valid`` holds the names, or maps keys to names, as ``names_by_key`` does. ``place`` begins the
    message.
    """
    name_of = valid if isinstance(valid, Mapping) else {name: name for name in valid}
    names = set(name_of.values())
    checked: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        name = name_of.get(name, name)
        if name not in names:
            known = f"known keys: {', '.join(sorted(names))}"
            others = {other: own for other, own in OTHER_NAMES.items() if own in names}
            hint = did_you_mean(name, names, known, cutoff=0.5, others=others)
            raise ConfigError(f"{place}: unknown key {key!r}", hint=hint)
        if name in checked:
            raise ConfigError(f"{place}: the key {name} occurs twice")
        checked[name] = value
    return checked


def coerce_settings(group: type, values: Mapping[str, Any], *, place: str) -> dict[str, Any]:
    """Return the values by name of setting, converted to the types of the settings in ``group``.

    Raise ConfigError for an unknown key. ``place`` names the source of the values in messages.
    """
    hints = get_type_hints(group)
    checked = check_keys(values, names_by_key(settings_of(group)), place=place)
    for name, value in checked.items():
        checked[name] = convert(value, hints[name], f"{place}: {name}")
    return checked


def build_options(values: Mapping[str, Any], *groups: type, place: str) -> list[Any]:
    """Return an object of each dataclass in ``groups``; ``values`` holds all their values by name.

    The values are checked together, like the options of a command. ``place`` names their source in
    messages.
    """
    declared: Declared = {}
    for group in groups:
        declared |= settings_of(group)
    by_name = check_keys(values, names_by_key(declared), place=place)
    built: list[Any] = []
    all_values: dict[str, Any] = {}
    for group in groups:
        names = settings_of(group).keys()
        group_values = {name: value for name, value in by_name.items() if name in names}
        options = group(**coerce_settings(group, group_values, place=place))
        all_values |= vars(options)
        built.append(options)

    # Rules may relate settings of different groups, so check them all together.
    check_values(declared, all_values)
    check_rules(declared, all_values)
    return built
