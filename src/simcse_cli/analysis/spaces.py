"""Embedding spaces as `analyze` measures them: encoders, the rated pairs they encode, and the vectors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.analysis.options import SpaceOptions
from simcse_cli.analysis.views import label_sources
from simcse_cli.config import LoadOptions
from simcse_cli.data.readers import Record, find_column, iter_records, resolve_columns
from simcse_cli.data.senteval import StsSubset, read_sts_task
from simcse_cli.errors import DataError, UsageError
from simcse_cli.evaluation.correlation import cosine_rows, spearman
from simcse_cli.evaluation.embedding_cache import Encode
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.models.precomputed import PrecomputedVectors
from simcse_cli.progress import Progress
from simcse_cli.schema import parse_number

Vectors = NDArray[np.floating[Any]]
RATING_NAMES = ("score", "rating", "gold", "similarity", "label")


@dataclass(frozen=True)
class Encoder:
    """A model, or a file of vectors, under the name it has in tables; ``pooler`` is None for a file."""

    label: str
    source: str
    encode: Encode
    digest: str
    pooler: str | None

    def facts(self) -> dict[str, str | None]:
        """Return what a result records about the encoder."""
        return {"model": self.source, "label": self.label, "model_digest": self.digest, "pooler": self.pooler}


def load_model(model: str, label: str, options: LoadOptions, progress: Progress) -> Encoder:
    loaded = load_for_encoding(model, options, progress)
    encode = partial(loaded.encode, batch_tokens=options.batch_tokens, progress=progress)
    return Encoder(label, model, encode, loaded.digest, loaded.pooler.value)


def load_encoders(
    options: SpaceOptions, labels: Sequence[str] | None, progress: Progress
) -> Iterator[Encoder]:
    """Yield the models, then the files of vectors, each loaded when its turn comes."""
    models, files = options.model or [], options.embeddings or []
    if not models and not files:
        raise UsageError("need a model, or --embeddings with --sentences", option="--model")
    if files and options.sentences is None:
        raise UsageError("needed with --embeddings: line i is the sentence of row i", option="--sentences")
    names = iter(label_sources([*models, *map(str, files)], labels))
    for model in models:
        yield load_model(model, next(names), options, progress)
    for path in files:
        assert options.sentences is not None
        vectors = PrecomputedVectors(path, options.sentences)
        yield Encoder(next(names), str(path), vectors.encode, vectors.digest, None)


@dataclass(frozen=True)
class PairSet:
    """Rated pairs with a name; correlation is taken on the last ``n_scored`` (the test set of STS-B, all of a file)."""

    name: str
    pairs: StsSubset
    n_scored: int


def read_pair_set(options: SpaceOptions) -> PairSet:
    """Return the pairs of a file, or all of STS-B: 8,628 pairs, 17,256 sentences in the full data."""
    if options.pair_file is not None:
        pairs = read_rated_file(options.pair_file)
        return PairSet(options.pair_file.name, pairs, pairs.n_pairs)
    if options.data_dir is None:
        raise UsageError("need the SentEval folder, or --pair-file", option="--data-dir")
    (whole,) = read_sts_task(options.data_dir, "STSBenchmark", split="all").subsets.values()
    return PairSet("STS-B", whole, read_sts_task(options.data_dir, "STSBenchmark").n_pairs)


def read_rated_file(path: Path) -> StsSubset:
    """Return the pairs of a table with two sentence columns and a rating.

    Columns are found by the usual names: ``anchor`` and ``positive``, ``sentence1`` and ``sentence2``, ...;
    the rating is called ``score``, ``rating``, ``gold``, ``similarity`` or ``label``.

    Raises:
        DataError: no such columns, no rows, or a rating that is no number; names the line.
    """
    left, right, gold = [], [], []
    for number, record in iter_records(path):
        place = f"{path}, line {number}"
        first, second = resolve_columns(record, ("anchor", "positive"), place)
        left.append(record[first])
        right.append(record[second])
        gold.append(_rating(record, place))
    if not gold:
        raise DataError(f"{path} has no rows")
    return StsSubset(left, right, np.array(gold))


def _rating(record: Record, place: str) -> float:
    name = next((found for name in RATING_NAMES if (found := find_column(record, name))), None)
    if name is None:
        raise DataError(
            f"{place}: the columns are {', '.join(record)}, need a rating",
            hint=f"name the column of ratings one of {', '.join(RATING_NAMES)}",
        )
    return parse_number(record[name], place, "rating")


@dataclass(eq=False)
class Space:
    """The vectors of one encoder on rated pairs: row i of ``left`` and ``right``, ``(N, D)``, is pair i."""

    encoder: Encoder
    data: PairSet
    left: NDArray[np.float32]
    right: NDArray[np.float32]
    raw: bool = False
    center: bool = False

    @property
    def label(self) -> str:
        return self.encoder.label

    @cached_property
    def cosines(self) -> NDArray[np.float64]:
        """Cosine of every pair, ``(N,)``."""
        return cosine_rows(self.left, self.right)

    @property
    def score(self) -> float | None:
        """Spearman correlation with the ratings of the scored pairs, a fraction."""
        scored = slice(-self.data.n_scored, None)
        return spearman(self.cosines[scored], self.data.pairs.gold[scored])


def encode_pairs(options: SpaceOptions, labels: Sequence[str] | None, progress: Progress) -> list[Space]:
    """Return the space of each encoder; repeated sentences are kept."""
    data = read_pair_set(options)
    spaces = []
    for encoder in load_encoders(options, labels, progress):
        vectors = encoder.encode(data.pairs.left + data.pairs.right)
        left, right = vectors[: data.pairs.n_pairs], vectors[data.pairs.n_pairs :]
        spaces.append(Space(encoder, data, left, right, options.raw, options.center))
        progress.detail(f"{encoder.label}: {len(vectors):,} sentences encoded")
    return spaces


def spaces_payload(analysis: str, spaces: Sequence[Space], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON object of an analysis with the numbers of each space."""
    data = spaces[0].data
    models = [space.encoder.facts() | row for space, row in zip(spaces, rows, strict=True)]
    return {"analysis": analysis, "data": data.name, "n_pairs": data.pairs.n_pairs, "models": models}
