"""Contrastive sentence embeddings from the command line.

The commands are prepare, augment, train, eval, encode, analyze and compare.

In Python, ``load`` opens a model and ``train`` makes one, ``evaluate`` scores it, and
``mine_hard_negatives`` makes training data. A method of your own is a class derived from
``Objective``. ``docs/python.md`` lists what is public.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simcse_cli.version import __version__ as __version__

if TYPE_CHECKING:
    from simcse_cli.api import BatchEncoder, Embedder, evaluate, mine_hard_negatives
    from simcse_cli.api import train_model as train
    from simcse_cli.objectives.base import Batch, Losses, Objective, ObjectiveOptions
    from simcse_cli.objectives.simcse import Simcse
    from simcse_cli.settings.declare import setting

    load = Embedder.load

__all__ = [
    "Batch",
    "BatchEncoder",
    "Embedder",
    "Losses",
    "Objective",
    "ObjectiveOptions",
    "Simcse",
    "evaluate",
    "load",
    "mine_hard_negatives",
    "setting",
    "train",
]
# The modules of the public names; a name that is not listed here is in ``api``.
_HOMES = dict.fromkeys(("Batch", "Losses", "Objective", "ObjectiveOptions"), "objectives.base")
_HOMES |= {"Simcse": "objectives.simcse", "setting": "settings.declare"}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the package itself stays light."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"simcse_cli.{_HOMES.get(name, 'api')}")
    if name == "load":
        return home.Embedder.load
    return getattr(home, "train_model" if name == "train" else name)
