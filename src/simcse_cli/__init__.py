"""Contrastive sentence embeddings from the command line: prepare, augment, train, eval, encode, analyze, compare.

In Python, ``load`` opens a model and ``train`` makes one, ``evaluate`` scores it, and
``mine_hard_negatives`` makes training data; ``docs/python.md`` lists what is public.
"""

from typing import TYPE_CHECKING, Any

from simcse_cli.version import __version__ as __version__

if TYPE_CHECKING:
    from simcse_cli.api import BatchEncoder, Embedder, evaluate, mine_hard_negatives
    from simcse_cli.api import train_model as train

    load = Embedder.load

__all__ = ["BatchEncoder", "Embedder", "evaluate", "load", "mine_hard_negatives", "train"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the package itself stays light."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from simcse_cli import api

    return {"load": api.Embedder.load, "train": api.train_model}.get(name) or getattr(api, name)
