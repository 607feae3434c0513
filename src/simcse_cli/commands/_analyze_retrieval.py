"""Searching a corpus with several systems: the work behind `simcse analyze retrieval`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from simcse_cli.choices import Pooler, SearchBackend
from simcse_cli.commands._analyze_output import labels_of
from simcse_cli.commands._analyze_systems import System, load_system
from simcse_cli.config import LoadOptions
from simcse_cli.console import Console

if TYPE_CHECKING:
    from simcse_cli.analysis.qrels import Texts
    from simcse_cli.analysis.retrieval import Neighbour, RetrievalScores, RowSet
    from simcse_cli.encoding.search_index import SearchIndex

EVALUATION_DEPTH = 100


@dataclass(frozen=True)
class SearchSource:
    """Where the searchable vectors of one system come from; at least one of the three is given."""

    label: str
    model: str | None = None
    embeddings: Path | None = None
    index: Path | None = None


@dataclass
class Searcher:
    """One system over one corpus: finds neighbours of queries that need not be in the corpus."""

    label: str
    index: "SearchIndex"
    system: System

    def find(self, queries: Sequence[str], k: int, excluded: "Sequence[RowSet]") -> "list[list[Neighbour]]":
        """Return the ``k`` nearest sentences of each query."""
        from simcse_cli.analysis.retrieval import nearest

        return nearest(self.index, self.system.encode(queries), k, excluded)

    def score(
        self, queries: Sequence[str], relevant: "Sequence[RowSet]", excluded: "Sequence[RowSet]", depth: int
    ) -> "RetrievalScores":
        """Return how well the relevant sentences are found among the first ``depth``."""
        from simcse_cli.analysis.retrieval import rank_rows, score_retrieval

        rows, _ = rank_rows(self.index, self.system.encode(queries), depth, excluded)
        return score_retrieval(rows, relevant)


@dataclass(frozen=True)
class Retrieved:
    """What the systems found: neighbours of the queries shown and, with judgements, their scores."""

    queries: list[str]
    neighbours: "dict[str, list[list[Neighbour]]]"
    scores: "dict[str, RetrievalScores]" = field(default_factory=dict)


def search_sources(
    models: Sequence[str], embeddings: Sequence[Path], indexes: Sequence[Path], labels: Sequence[str] | None
) -> list[SearchSource]:
    """Return one source a system: models, vectors and indexes belong together by their order.

    Raises:
        typer.BadParameter: their numbers do not fit, or vectors come without the model that encodes queries.
    """
    if embeddings and indexes:
        raise typer.BadParameter("give --index or --embeddings, not both", param_hint="--index")
    files = embeddings or indexes
    if embeddings and len(models) != len(embeddings):
        raise typer.BadParameter(
            f"{len(embeddings)} files for {len(models)} models, need one --model each to encode the queries",
            param_hint="--embeddings",
        )
    if indexes and models and len(models) != len(indexes):
        raise typer.BadParameter(
            f"{len(indexes)} indexes for {len(models)} models, need as many (or no --model)",
            param_hint="--index",
        )
    if not models and not indexes:
        raise typer.BadParameter("need a model, or --index", param_hint="--model")
    names = labels_of(list(models) or [str(path) for path in files], labels)
    return [
        SearchSource(
            name,
            models[i] if models else None,
            embeddings[i] if embeddings else None,
            indexes[i] if indexes else None,
        )
        for i, name in enumerate(names)
    ]


def open_searcher(
    source: SearchSource,
    corpus: "Texts | None",
    settings: LoadOptions,
    console: Console,
    *,
    backend: SearchBackend,
    factory: str,
) -> Searcher:
    """Return a searcher: its index loaded, or built from vectors on disk or freshly encoded ones.

    Raises:
        typer.BadParameter: there is nothing to search.
        DataError: an index that does not say its model, or vectors that do not fit the corpus.
    """
    from simcse_cli.encoding.search_index import SearchIndex
    from simcse_cli.models.precomputed import read_matrix

    if source.index is not None:
        return _load_searcher(source, source.index, settings, console)
    if corpus is None or source.model is None:
        raise typer.BadParameter("need the sentences to search, or --index", param_hint="--corpus")
    system = load_system(source.model, source.label, settings, console)
    vectors = read_matrix(source.embeddings) if source.embeddings else system.encode(corpus.sentences)
    info = {"model": system.source, "digest": system.digest, "pooler": system.pooler or ""}
    index = SearchIndex.build(vectors, corpus.sentences, backend=backend, factory=factory, info=info)
    return Searcher(source.label, index, system)


def _load_searcher(source: SearchSource, path: Path, settings: LoadOptions, console: Console) -> Searcher:
    from simcse_cli.encoding.search_index import SearchIndex
    from simcse_cli.errors import DataError

    index = SearchIndex.load(path)
    model = source.model or index.info.get("model")
    if not model:
        raise DataError(f"{path} does not say which model made it", hint="name it with --model")
    if settings.pooler is None and index.info.get("pooler"):
        settings = replace(settings, pooler=Pooler(index.info["pooler"]), force_pooler=True)
    system = load_system(model, source.label, settings, console)
    if index.info.get("digest") not in (None, system.digest):
        console.warn(f"{path} was made by another model or pooler than {model}; cosines mean nothing")
    return Searcher(source.label, index, system)


@dataclass(frozen=True)
class QueryChoice:
    """Which queries are asked: from flags, from a file, or drawn from the corpus."""

    texts: Sequence[str] = ()
    file: Path | None = None
    column: str | None = None
    sample: int = 0
    seed: int = 42

    def collect(self, corpus: "Texts") -> "Texts":
        """Return the queries with their ids: line numbers of the file, of the corpus, or of the flags.

        Raises:
            typer.BadParameter: more than one source of queries.
        """
        from simcse_cli.analysis.qrels import Texts, read_texts, sample_texts

        if sum((bool(self.texts), self.file is not None, self.sample > 0)) > 1:
            raise typer.BadParameter("give one of --query, --queries and --sample", param_hint="--query")
        if self.file is not None:
            return read_texts(self.file, self.column)
        if self.sample:
            return sample_texts(corpus, self.sample, seed=self.seed)
        return Texts.numbered(self.texts)


def retrieve(
    searchers: Sequence[Searcher],
    queries: "Texts",
    corpus: "Texts",
    *,
    top_k: int = 3,
    qrels: Path | None = None,
    depth: int = EVALUATION_DEPTH,
    n_shown: int | None = None,
    keep_identical: bool = False,
) -> Retrieved:
    """Return the neighbours of the queries shown and, with judgements, the scores over all queries.

    Args:
        searchers: one a system, over the same corpus.
        queries: what is looked for.
        corpus: what is searched.
        top_k: neighbours for each query shown.
        qrels: relevance judgements.
        depth: rank at which scores stop.
        n_shown: how many queries are shown; default all, or none with judgements.
        keep_identical: let a sentence equal to the query be a result.
    """
    from simcse_cli.analysis.qrels import read_relevance
    from simcse_cli.analysis.retrieval import rows_of_text

    rows_by_text = {} if keep_identical else rows_of_text(corpus.sentences)
    excluded: list[RowSet] = [rows_by_text.get(sentence, frozenset()) for sentence in queries.sentences]
    if n_shown is None:
        n_shown = 0 if qrels is not None else len(queries.sentences)
    shown = queries.sentences[:n_shown]
    neighbours = (
        {each.label: each.find(shown, top_k, excluded[:n_shown]) for each in searchers} if shown else {}
    )
    if qrels is None:
        return Retrieved(shown, neighbours)
    judged = read_relevance(qrels, queries, corpus)
    relevant = [wanted - unwanted for wanted, unwanted in zip(judged, excluded, strict=True)]
    scores = {each.label: each.score(queries.sentences, relevant, excluded, depth) for each in searchers}
    return Retrieved(shown, neighbours, scores)
