"""Contrastive sentence embeddings from the command line: prepare, augment, train, eval, encode, analyze, compare.

In Python, ``load`` opens a model; what is public stands in ``docs/python.md``.
"""

from typing import TYPE_CHECKING, Any

from simcse_cli.version import __version__ as __version__

if TYPE_CHECKING:
    from simcse_cli.api import Embedder

    load = Embedder.load

__all__ = ["Embedder", "load"]


def __getattr__(name: str) -> Any:
    """Import what is public when it is first asked for: the package itself stays light."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from simcse_cli.api import Embedder

    return Embedder if name == "Embedder" else Embedder.load
