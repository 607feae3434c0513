"""The systems an `analyze` command looks at: models, or vectors that were computed elsewhere."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcse_cli.commands._analyze_output import labels_of
from simcse_cli.config import MODEL_HELP, LoadOptions
from simcse_cli.console import Console

if TYPE_CHECKING:
    from simcse_cli.evaluation.embedding_cache import Encode

ModelsOption = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", envvar="SIMCSE_MODEL", help=MODEL_HELP + " Repeat to compare."),
]


@dataclass(frozen=True)
class System:
    """Something that gives vectors, with what identifies it; ``pooler`` is None for vectors from a file."""

    label: str
    source: str
    encode: "Encode"
    digest: str
    pooler: str | None

    def facts(self) -> dict[str, str | None]:
        """Return what a result records about the system."""
        return {"model": self.source, "label": self.label, "model_digest": self.digest, "pooler": self.pooler}


def load_system(model: str, label: str, settings: LoadOptions, console: Console) -> System:
    """Return one model as a system."""
    from simcse_cli.models.checkpoint import load_for_encoding

    encoder = load_for_encoding(model, settings, console)
    encode = partial(encoder.encode, batch_tokens=settings.batch_tokens, progress=console)
    return System(label, model, encode, encoder.digest, encoder.pooler.value)


def load_systems(
    models: Sequence[str],
    embeddings: Sequence[Path],
    sentences: Path | None,
    labels: Sequence[str] | None,
    settings: LoadOptions,
    console: Console,
) -> Iterator[System]:
    """Yield the models, then the files of vectors, each loaded when its turn comes.

    Raises:
        typer.BadParameter: neither a model nor vectors are given, vectors come without the list of their
            sentences, or the labels do not fit.
    """
    if not models and not embeddings:
        raise typer.BadParameter("need a model, or --embeddings with --sentences", param_hint="--model")
    if embeddings and sentences is None:
        raise typer.BadParameter(
            "needed with --embeddings: line i is the sentence of row i", param_hint="--sentences"
        )
    names = labels_of([*models, *map(str, embeddings)], labels)
    for model, label in zip(models, names, strict=False):
        yield load_system(model, label, settings, console)
    for path, label in zip(embeddings, names[len(models) :], strict=True):
        from simcse_cli.models.precomputed import PrecomputedVectors

        assert sentences is not None
        vectors = PrecomputedVectors(path, sentences)
        yield System(label, str(path), vectors.encode, vectors.digest, None)
