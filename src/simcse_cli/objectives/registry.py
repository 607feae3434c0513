"""The only list of objectives: name to class."""

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from simcse_cli.errors import ConfigError
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.names import Objective as ObjectiveName
from simcse_cli.objectives.barlow_twins import BarlowTwins
from simcse_cli.objectives.base import Objective
from simcse_cli.objectives.ct import ContrastiveTension
from simcse_cli.objectives.declutr import Declutr
from simcse_cli.objectives.isbert import IsBert
from simcse_cli.objectives.next_sentence import NextSentence
from simcse_cli.objectives.quick_thoughts import QuickThoughts
from simcse_cli.objectives.sbert import Sbert
from simcse_cli.objectives.simcse import SimcseSup, SimcseUnsup
from simcse_cli.objectives.vicreg import Vicreg

OBJECTIVES: dict[ObjectiveName, type[Objective]] = {
    ObjectiveName.SIMCSE_UNSUP: SimcseUnsup,
    ObjectiveName.SIMCSE_SUP: SimcseSup,
    ObjectiveName.NEXT_SENTENCE: NextSentence,
    ObjectiveName.QUICK_THOUGHTS: QuickThoughts,
    ObjectiveName.SBERT: Sbert,
    ObjectiveName.CT: ContrastiveTension,
    ObjectiveName.IS_BERT: IsBert,
    ObjectiveName.DECLUTR: Declutr,
    ObjectiveName.BARLOW_TWINS: BarlowTwins,
    ObjectiveName.VICREG: Vicreg,
}


def objective_class(name: ObjectiveName) -> type[Objective]:
    """Return the class of an objective."""
    return OBJECTIVES[name]


def objective_defaults() -> dict[ObjectiveName, Mapping[str, Any]]:
    """Return what each objective changes of the training defaults."""
    return {name: cls.defaults for name, cls in OBJECTIVES.items()}


def accepted_settings(cls: type[Objective]) -> set[str]:
    """Return the keyword arguments of an objective, those of its base classes included."""
    names: set[str] = set()
    for ancestor in cls.__mro__:
        if ancestor is Objective:
            break
        if "__init__" in vars(ancestor):
            parameters = inspect.signature(vars(ancestor)["__init__"]).parameters.values()
            names |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return names


def build_objective(
    name: ObjectiveName, encoder: SentenceEncoder, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Objective:
    """Return the objective around an encoder.

    Args:
        name: which one.
        encoder: trained by it.
        settings: common settings; those that the objective does not know are left out.
        options: settings meant for this objective alone, from ``--set``.

    Raises:
        ConfigError: an option that the objective does not have; names the nearest.
    """
    cls = objective_class(name)
    accepted = accepted_settings(cls)
    for option in options:
        if option not in accepted:
            near = get_close_matches(option, accepted, n=1, cutoff=0.4)
            raise ConfigError(
                f"--set {option}: --objective {name} has no such option",
                hint=f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(accepted))}",
            )
    common = {key: value for key, value in settings.items() if key in accepted}
    return cls(encoder, **(common | dict(options)))
