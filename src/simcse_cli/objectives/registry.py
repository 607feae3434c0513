"""The list of objectives, and the passing of settings to their constructors."""

from collections.abc import Mapping
from typing import Any, get_type_hints

from simcse_cli.errors import ConfigError, did_you_mean
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.barlow_twins import BarlowTwins
from simcse_cli.objectives.base import Objective
from simcse_cli.objectives.cosent import Cosent
from simcse_cli.objectives.ct import ContrastiveTension
from simcse_cli.objectives.declutr import Declutr
from simcse_cli.objectives.distill import Distill
from simcse_cli.objectives.isbert import IsBert
from simcse_cli.objectives.mlm import MaskedLm
from simcse_cli.objectives.next_sentence import NextSentence
from simcse_cli.objectives.quick_thoughts import QuickThoughts
from simcse_cli.objectives.rankcse import Rankcse
from simcse_cli.objectives.sbert import Sbert
from simcse_cli.objectives.simcse import SimcseSup
from simcse_cli.objectives.simcse_unsup import SimcseUnsup
from simcse_cli.objectives.vicreg import Vicreg
from simcse_cli.settings.choices import ObjectiveName
from simcse_cli.settings.convert import convert
from simcse_cli.settings.declare import Setting, check_rules, check_values, flag_of, settings_of

# Adding an objective is one line here.
OBJECTIVES: dict[ObjectiveName, type[Objective]] = {
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
    )
}


def objective_defaults() -> dict[ObjectiveName, Mapping[str, Any]]:
    return {name: cls.defaults for name, cls in OBJECTIVES.items()}


def build_objective(
    name: ObjectiveName,
    encoder: SentenceEncoder,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Objective:
    """Return the objective around an encoder.

    Of the common ``settings`` it takes those that it knows; ``options`` are meant for it alone
    (``--set``).
    """
    cls = OBJECTIVES[name]
    declared = settings_of(cls.Options)
    own = sorted(declared.keys() - settings.keys())
    for option in options:
        if option in settings:
            raise ConfigError(
                f"--set {option} is no option of the objective", hint="use its own flag or setting"
            )
        if option not in own:
            raise ConfigError(
                f"--set {option}: --objective {name} has no such option",
                hint=did_you_mean(option, own, f"it has: {', '.join(own) or 'none'}", cutoff=0.4),
            )
    kinds = get_type_hints(cls.Options)
    chosen = {key: value for key, value in settings.items() if key in declared}
    for key, value in options.items():
        chosen[key] = convert(value, kinds[key], place_of_option(key, declared[key][1]))
    check_values(declared, chosen, place_of_option)
    made = cls.Options(**chosen)
    check_rules(declared, vars(made), place_of_option)
    return cls(encoder, made)


def place_of_option(name: str, own: Setting) -> str:
    """Return how an option is given: by its flag if it has one, else by ``--set``."""
    return flag_of(name, own) if own.flags else f"--set {name}"
