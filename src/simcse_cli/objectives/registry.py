"""The list of objectives, and the passing of settings to their constructors."""

from collections.abc import Mapping, Sequence
from typing import Any

from simcse_cli.errors import ConfigError, did_you_mean
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.barlow_twins import BarlowTwins
from simcse_cli.objectives.base import Objective
from simcse_cli.objectives.cosent import Cosent
from simcse_cli.objectives.ct import ContrastiveTension
from simcse_cli.objectives.declutr import Declutr
from simcse_cli.objectives.isbert import IsBert
from simcse_cli.objectives.mlm import MaskedLm
from simcse_cli.objectives.next_sentence import NextSentence
from simcse_cli.objectives.quick_thoughts import QuickThoughts
from simcse_cli.objectives.sbert import Sbert
from simcse_cli.objectives.simcse import SimcseSup, SimcseUnsup
from simcse_cli.objectives.vicreg import Vicreg
from simcse_cli.settings.choices import ObjectiveName

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
    accepted = cls.option_types()
    own = sorted(accepted.keys() - settings.keys())
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
    common = {key: value for key, value in settings.items() if key in accepted}
    chosen = {key: coerce_option(key, value, accepted[key]) for key, value in options.items()}
    return cls(encoder, **(common | chosen))


_NEEDED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Sequence[int]: "whole numbers, such as 384,192",
}


def coerce_option(name: str, value: Any, kind: Any) -> Any:
    """Convert an option to the type of its argument: YAML reads 1e-5 as a text, and a single width as a number."""
    try:
        return _convert(value, kind)
    except (OverflowError, TypeError, ValueError):
        raise ConfigError(f"--set {name}={value}: need {_NEEDED.get(kind, 'text')}") from None


def _convert(value: Any, kind: Any) -> Any:
    if kind == Sequence[int]:
        parts = value.split(",") if isinstance(value, str) else value
        return [_convert(part, int) for part in (parts if isinstance(parts, list) else [parts])]
    if kind not in _NEEDED:
        return str(value)
    if isinstance(value, bool) is not (kind is bool):
        raise TypeError(value)
    if kind is int and float(value) != int(float(value)):
        raise ValueError(value)
    return kind(float(value)) if kind is not bool else value
