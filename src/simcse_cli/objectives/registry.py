"""The list of objectives, and the construction of an objective from settings."""

import inspect
import shlex
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import PurePath
from typing import Any, get_type_hints

from simcse_cli.errors import ConfigError, UsageError, did_you_mean
from simcse_cli.files.code import (
    entry_point,
    entry_point_names,
    load_code,
    names_code,
    require_arguments,
)
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.barlow_twins import BarlowTwins
from simcse_cli.objectives.base import Objective, ObjectiveOptions
from simcse_cli.objectives.cosent import Cosent
from simcse_cli.objectives.ct import ContrastiveTension
from simcse_cli.objectives.declutr import Declutr
from simcse_cli.objectives.diffcse import Diffcse
from simcse_cli.objectives.distill import Distill
from simcse_cli.objectives.isbert import IsBert
from simcse_cli.objectives.mlm import MaskedLm
from simcse_cli.objectives.next_sentence import NextSentence
from simcse_cli.objectives.promptbert import Promptbert
from simcse_cli.objectives.quick_thoughts import QuickThoughts
from simcse_cli.objectives.rankcse import Rankcse
from simcse_cli.objectives.sbert import Sbert
from simcse_cli.objectives.simcse import SimcseSup
from simcse_cli.objectives.simcse_unsup import SimcseUnsup
from simcse_cli.objectives.sncse import Sncse
from simcse_cli.objectives.tsdae import Tsdae
from simcse_cli.objectives.vicreg import Vicreg
from simcse_cli.settings.choices import ObjectiveName
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.convert import convert, value_name
from simcse_cli.settings.declare import (
    OTHER_NAMES,
    Setting,
    check_rules,
    check_values,
    flag,
    flag_of,
    settings_of,
)

_PLACE = "--objective"
_PACKAGE = "simcse_cli."
# Add a new objective to this list.
OBJECTIVES: dict[str, type[Objective]] = {
    cls.name: cls
    for cls in (
        SimcseUnsup,
        SimcseSup,
        NextSentence,
        QuickThoughts,
        Sbert,
        Cosent,
        ContrastiveTension,
        IsBert,
        Declutr,
        BarlowTwins,
        Vicreg,
        MaskedLm,
        Rankcse,
        Distill,
        Tsdae,
        Diffcse,
        Promptbert,
        Sncse,
    )
}


_ENTRY_POINTS = "simcse_cli.objectives"
"""The entry-point group in which installed packages offer objectives."""
_registered: dict[str, type[Objective]] = {}
"""Classes that a program has registered with ``register_objective``, by their names."""


def find_objective(name: str) -> type[Objective]:
    """Return the class of an objective of this toolkit, an installed package or a user's file."""
    if name in _registered:
        return _registered[name]
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    if names_code(name):
        loaded = load_code(name, _PLACE)
    else:
        loaded = entry_point(_ENTRY_POINTS, name, _PLACE)
    if loaded is None:
        known = [*ObjectiveName, *entry_point_names(_ENTRY_POINTS)]
        raise UsageError(
            f"{name!r} is no objective; need one of {', '.join(known)}, or FILE.py:CLASS",
            option=_PLACE,
            hint=did_you_mean(name, known),
        )
    check_objective(loaded, f"{_PLACE} {name}")
    return _named(loaded, name)


def check_objective(candidate: Any, place: str) -> None:
    """Raise ConfigError unless ``candidate`` can serve as an objective.

    - It is a subclass of ``Objective`` without abstract methods.
    - Its methods take the arguments of the methods that they override.
    - Its ``Options`` are a dataclass that repeats no setting of training, except those that
      objectives of this toolkit read.

    ``place`` begins the message.
    """
    if not (isinstance(candidate, type) and issubclass(candidate, Objective)):
        raise ConfigError(
            f"{place}: is no subclass of Objective",
            hint="derive it from simcse_cli.Objective, or from the class of an objective",
        )
    if missing := sorted(candidate.__abstractmethods__):
        raise ConfigError(f"{place}: lacks {', '.join(missing)}", hint="define what is missing")
    # A subclass of a dataclass has fields of its own only if it is a dataclass as well.
    if not (
        issubclass(candidate.Options, ObjectiveOptions)
        and "__dataclass_fields__" in vars(candidate.Options)
    ):
        raise ConfigError(
            f"{place}: Options is no dataclass derived from that of its base",
            hint="write @dataclass(frozen=True) class Options(Base.Options)",
        )
    _check_methods(candidate, place)
    # A user's class may repeat what objectives of this toolkit read, if it declares the option by
    # ``setting``.
    repeatable = _settings_that_objectives_read() & settings_of(candidate.Options).keys()
    for name, default in _repeated_settings(candidate).items():
        if name not in repeatable:
            defaults = {**candidate.defaults, name: default}
            raise ConfigError(
                f"{place}: Options declares {name}, which is a setting of every training "
                f"({flag(TrainConfig, name)}), need another name",
                hint=f"to change the default of the setting, write defaults = {defaults} in the "
                "class",
            )


def _check_methods(cls: type[Objective], place: str) -> None:
    """Raise ConfigError for a method that cannot take the arguments of the one it overrides."""
    for base in cls.__mro__:
        if not base.__module__.startswith(_PACKAGE):
            continue
        for name, overridden in vars(base).items():
            own = inspect.getattr_static(cls, name)
            are_methods = inspect.isfunction(own) and inspect.isfunction(overridden)
            if own is overridden or not are_methods:
                continue
            parameters = inspect.signature(overridden).parameters.values()
            by_place = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
            by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
            hint = f"write def {name}({', '.join([*by_place, *by_name])})"
            require_arguments(own, by_place, place=place, hint=hint, by_name=by_name)


def _settings_that_objectives_read() -> set[str]:
    """Return the settings of training that are options of this toolkit's objectives, too."""
    names = {name for cls in OBJECTIVES.values() for name in settings_of(cls.Options)}
    return names & settings_of(TrainConfig).keys()


def _repeated_settings(cls: type[Objective]) -> dict[str, Any]:
    """Return the settings of training that the options of a user's class declare again.

    The value of each is the default that the class gives, or None if it gives none. Options that
    the class inherits from this toolkit are left out, since they change no default.
    """
    options: type[Any] = cls.Options
    packaged: Any = next(base for base in options.__mro__ if base.__module__.startswith(_PACKAGE))
    inherited = packaged.__dataclass_fields__
    names = settings_of(TrainConfig)
    repeated = {}
    for name, field in options.__dataclass_fields__.items():
        if name in names and inherited.get(name) is not field:
            repeated[name] = None if field.default is MISSING else field.default
    return repeated


def register_objective(cls: type[Objective]) -> str:
    """Return a name under which ``find_objective`` finds a class that a program has defined."""
    check_objective(cls, cls.__qualname__)
    # An interactive session, whose module is ``__main__``, has no file.
    file = inspect.getsourcefile(cls) if cls.__module__ != "__main__" else None
    name = f"{file or cls.__module__}:{cls.__qualname__}"
    _registered[name] = _named(cls, name)
    return name


def _named(cls: type[Objective], name: str) -> type[Objective]:
    """Return a class; if it defines no ``name`` of its own, give it one for messages."""
    # A name that it inherits would be that of another objective.
    if "name" not in vars(cls):
        cls.name = objective_label(name)
    return cls


def objective_label(name: str) -> str:
    """Return an objective's name for records and model cards, without the folders of its file."""
    file, colon, cls = name.rpartition(":")
    return f"{PurePath(file).name}{colon}{cls}"


def objective_defaults(name: str) -> Mapping[str, Any]:
    """Return the defaults of training that an objective changes.

    A user's class changes defaults in two ways: its options declare a setting again, or its
    ``defaults`` name the setting. The second way counts if there are both.
    """
    cls = find_objective(name)
    packaged: Any = next(base for base in cls.__mro__ if base.__module__.startswith(_PACKAGE))
    again = {key: value for key, value in _repeated_settings(cls).items() if value is not None}
    own = {key: value for key, value in cls.defaults.items() if packaged.defaults.get(key) != value}
    return {**packaged.defaults, **again, **own}


def build_objective(
    name: str,
    encoder: SentenceEncoder,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Objective:
    """Return an objective of this name for an encoder, with its ``objective_options``."""
    return find_objective(name)(encoder, objective_options(name, settings, options))


def objective_options(
    name: str, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> ObjectiveOptions:
    """Return the options of an objective; raise an error for a name or a value that is not allowed.

    The objective gets those of the common ``settings`` that its options declare, and all
    ``options``, which come from ``--set``.
    """
    # Refuse options that the objective does not have, and common settings given as options.
    cls = find_objective(name)
    declared = settings_of(cls.Options)
    undeclared = cls.Options.__dataclass_fields__.keys() - declared.keys()
    known = sorted(declared.keys() - settings.keys())
    for option in options:
        if option in settings:
            raise ConfigError(
                f"--set {option} is no option of the objective", hint="use its own flag or setting"
            )
        if option in undeclared:
            raise ConfigError(
                f"--set {option}: {option} of the Options of {name} is not declared by setting()",
                hint=f'write {option}: TYPE = setting(DEFAULT, "What it is.")',
            )
        if option not in known:
            others = {other: f"the setting {own}" for other, own in OTHER_NAMES.items()}
            raise ConfigError(
                f"--set {option}: --objective {name} has no such option",
                hint=did_you_mean(
                    option,
                    known,
                    f"it has: {', '.join(known) or 'none'}",
                    cutoff=0.4,
                    others=others,
                ),
            )

    # Common settings have their types already; values from --set may be text and are converted.
    kinds = get_type_hints(cls.Options)
    chosen = {key: value for key, value in settings.items() if key in declared}
    for key, value in options.items():
        _, details = declared[key]
        chosen[key] = convert(value, kinds[key], place_of_option(key, details))

    # Check the bounds of each value, then the rules between values.
    check_values(declared, chosen, place_of_option)
    result = cls.Options(**chosen)
    try:
        check_rules(declared, vars(result), place_of_option)
    except UsageError as error:
        hint = f"see simcse train --objective {shlex.quote(name)} --help"
        raise UsageError(error.message, hint=hint) from None
    return result


def option_rows(name: str) -> list[tuple[str, str]]:
    """Return a pair for each option of an objective: how to type it, and its help and default."""
    options = find_objective(name).Options
    defaults = objective_defaults(name)
    kinds = get_type_hints(options)
    rows = []
    for option, (field, details) in settings_of(options).items():
        usage = place_of_option(option, details)
        is_switch = kinds[option] is bool
        if usage.startswith("--set "):
            usage += "=true" if is_switch else f"={value_name(kinds[option])}"
        elif not is_switch:
            usage += f" {value_name(kinds[option])}"
        help_text = details.help
        default = defaults.get(option, field.default)
        if isinstance(default, list | tuple):
            default = " and ".join(map(str, default))
        is_off = default is None or default is False or default == ""
        if not is_off:
            help_text += f" [default: {default}]"
        rows.append((usage, help_text))
    return rows


def place_of_option(name: str, details: Setting) -> str:
    """Return how to type an option: as its flag if it has one, else as ``--set NAME``.

    An option that repeats a setting of training has the flag of that setting, even if its own
    declaration names no flag.
    """
    if name in settings_of(TrainConfig):
        return flag(TrainConfig, name)
    return flag_of(name, details) if details.flags else f"--set {name}"
