"""`analyze retrieval`: find the sentences nearest to queries, and score them by judgements."""

import operator
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.analysis.options import RetrievalOptions, ViewOptions
from simcse_cli.analysis.presentation import (
    Analysis,
    NamedSource,
    Page,
    check_outputs,
    label_sources,
    name_sources,
)
from simcse_cli.analysis.search_scores import score_rows, score_table, search_tests
from simcse_cli.analysis.spaces import NamedEncoder, seeds_entry
from simcse_cli.arrays import Array
from simcse_cli.data.file_sets import FileSet
from simcse_cli.data.formats import source_name
from simcse_cli.data.given import Given
from simcse_cli.data.ids import QUERY_NAMES, USUAL_NAMES
from simcse_cli.data.qrels import (
    NumberedTexts,
    Relevance,
    queries_with_text,
    read_relevance,
    read_texts,
    sample_texts,
    tell_blank,
)
from simcse_cli.data.show import SHOWN_LENGTH, shorten
from simcse_cli.data.text import one_line
from simcse_cli.encoding import search_index
from simcse_cli.encoding.parts import side_file
from simcse_cli.errors import DataError, UsageError, require_extra
from simcse_cli.evaluation.bootstrap import PairedTest
from simcse_cli.evaluation.retrieval import RetrievalScores, score_retrieval
from simcse_cli.files.inputs import STDIO, read_json
from simcse_cli.files.schema import checked, parse_number
from simcse_cli.machine.precision import resolve_precision
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.models.precomputed import read_matrix
from simcse_cli.models.resolve import is_local
from simcse_cli.progress import SILENT, Progress
from simcse_cli.results import plots
from simcse_cli.results.report import Column, Report
from simcse_cli.settings.choices import LongTexts, Pooler, SearchBackend
from simcse_cli.settings.config import LoadOptions
from simcse_cli.settings.declare import refuse_unused

EVALUATION_DEPTH = 100  # results of a query that are scored, if no larger rank is asked for
_DEFAULT_MODEL = "minilm"
_INDEX_ID_FIX = (
    "name the table of the index too, which has the ids: --corpus FILE (and --id-column COLUMN "
    "unless the column is called id or _id)"
)


@dataclass(frozen=True)
class CorpusSearch:
    """A corpus, the queries, and for each encoder an index of the corpus.

    ``relevant`` holds, for each query, the relevant rows of the corpus with their relevance. It is
    None without judgements.
    """

    options: RetrievalOptions
    corpus: NumberedTexts
    indexes: Sequence[tuple[NamedEncoder, search_index.SearchIndex]]
    queries: NumberedTexts
    relevant: Sequence[Relevance] | None = None

    def neighbours(self, queries: Sequence[str]) -> dict[str, list[list[search_index.Neighbour]]]:
        """Return the ``top_k`` nearest sentences of each query, by the label of the encoder.

        The list of an encoder has a list of neighbours for each query.
        """
        if not queries:
            return {}
        k = self.options.top_k
        left_out = None if self.options.keep_identical else queries
        by_label = {}
        for encoder, index in self.indexes:
            vectors = encoder.encode(queries)
            by_label[encoder.label] = search_index.nearest(index, vectors, k, left_out)
        return by_label

    def count_left_out(self, queries: Sequence[str]) -> Counter[str]:
        """Return how many sentences are left out for each query, because they are equal to it."""
        if self.options.keep_identical:
            return Counter()
        wanted = frozenset(queries)
        return Counter(text for text in self.corpus.sentences if text in wanted)

    def scores(self, depth: int) -> dict[str, RetrievalScores]:
        """Return the scores of the first ``depth`` results, by the label of the encoder.

        Without judgements, return an empty mapping.
        """
        if self.relevant is None:
            return {}
        queries = self.queries.sentences
        left_out = None if self.options.keep_identical else queries
        scores = {}
        for encoder, index in self.indexes:
            vectors = encoder.encode(queries)
            rows, _ = search_index.rank_rows(index, vectors, depth, left_out)
            scores[encoder.label] = score_retrieval(rows, self.relevant)
        return scores


def with_arguments(options: RetrievalOptions, words: Sequence[str]) -> RetrievalOptions:
    """Return the options together with the arguments ``words``: the corpus, then queries.

    Where an option gives the corpus or an index, all arguments are queries.
    """
    corpus = options.corpus
    queries = list(words)
    if words and corpus is None and not options.index:
        corpus = queries.pop(0)
    elif words and os.path.isfile(words[0]):  # noqa: PTH113 - Path.is_file fails for long texts
        option = "--index" if options.index else "--corpus"
        raise UsageError(
            f"{words[0]} is a file, but {option} already says what to search",
            hint=f"leave one of them out; queries in a file: --queries {words[0]}",
        )
    # An index records its model, so there is no default model for it.
    model = options.model or []
    if not model and not options.index:
        model = [_DEFAULT_MODEL]
    all_queries = [*(options.query or []), *queries]
    return replace(options, corpus=corpus, query=all_queries, model=model)


def open_search(
    options: RetrievalOptions, view: ViewOptions, progress: Progress, *, force: bool
) -> CorpusSearch:
    """Read all files, load or build an index for each model, and save the index if requested."""
    check_outputs(view, force=force)
    sources = _check_options(options, view)
    if options.save_index is not None:
        if len(sources) > 1:
            raise UsageError("saves the index of one model", option="--save-index")
        search_index.check_index_output(options.save_index, force=force)

    # All texts and judgements are read before the first text is encoded, which may take long.
    corpus = None
    if options.corpus is not None:
        corpus = _read_corpus(options, progress)
        tell_blank(corpus, progress)
        queries = read_queries(options, corpus, progress)
        relevant = _read_relevant(options, queries, corpus, progress)

    # Load or build the indexes. Saved indexes and models are paired by their order.
    indexes = []
    for i, source in enumerate(sources):
        if options.index:
            model = options.model[i] if options.model else None
            indexes.append(_load_index(options.index[i], model, source.label, options, progress))
        else:
            if corpus is None:
                raise UsageError("need the sentences to search, or --index", option="--corpus")
            loaded = load_for_encoding(source.path, options, progress)
            index = _build_index(loaded, i, corpus, options, progress)
            indexes.append((_query_encoder(loaded, source, options, progress), index))
    for encoder, index in indexes:
        if index.compresses:
            progress.info(
                f"{encoder.label}: its FAISS index compresses the vectors, so the cosines are "
                "approximations"
            )
    if options.save_index is not None:
        _, index = indexes[0]
        index.save(options.save_index, force=force)
        progress.info(f"wrote {options.save_index}")

    # Without --corpus, the sentences are those of the first index, so all else is read only now.
    if corpus is None:
        _, index = indexes[0]
        corpus = NumberedTexts(
            index.sentences,
            index.ids,
            source=sources[0].path,
            unused=index.unused,
            id_fix=_INDEX_ID_FIX,
        )
        tell_blank(corpus, progress)
        queries = read_queries(options, corpus, progress)
        relevant = _read_relevant(options, queries, corpus, progress)
    if options.qrels is not None:
        _require_same_rows(corpus, options, [index for _, index in indexes])
    return CorpusSearch(options, corpus, indexes, queries, relevant)


def _read_corpus(options: RetrievalOptions, progress: Progress) -> NumberedTexts:
    given = Given.of(options, progress=progress)
    given = given.of_texts(options.column, options.text, *_id_columns(options, USUAL_NAMES))
    # With a file of queries, --id-column may be a column of that file alone.
    corpus = read_texts(
        str(options.corpus),
        given,
        id_column=options.id_column,
        may_lack=options.queries is not None,
    )
    if not corpus.sentences:
        raise DataError(f"{source_name(str(options.corpus))} has no rows")
    return corpus


def _read_relevant(
    options: RetrievalOptions, queries: NumberedTexts, corpus: NumberedTexts, progress: Progress
) -> Sequence[Relevance] | None:
    """Return the relevant rows of each query; None without judgements.

    A sentence that is equal to the query is left out of its results, so it does not count as
    relevant either; ``--keep-identical`` keeps it in both.
    """
    if options.qrels is None:
        return None
    relevant = read_relevance(options.qrels, queries, corpus, progress, id_option="--id-column")
    if options.keep_identical:
        return relevant
    # A relevant sentence that the corpus lacks has a row beyond its last.
    sentences = corpus.sentences
    n_texts = len(sentences)
    kept = []
    for gain_of, query in zip(relevant, queries.sentences, strict=True):
        gains: Relevance = {}
        for row, gain in gain_of.items():
            if row >= n_texts or sentences[row] != query:
                gains[row] = gain
        kept.append(gains)
    if not any(kept):
        raise DataError(
            f"{options.qrels}: the only relevant sentence of every query is the query itself, "
            "which is left out",
            hint="count it with --keep-identical, or judge other sentences",
        )
    return kept


def _require_same_rows(
    corpus: NumberedTexts,
    options: RetrievalOptions,
    indexes: Sequence[search_index.SearchIndex],
) -> None:
    """Raise DataError if row i of a saved index is not sentence i of the corpus.

    Without ``--corpus``, the corpus is that of the first index, and all sentences are compared. If
    it is a file, only the number of its sentences is: a sentence may be longer here than when it
    was encoded, since `analyze` puts the title of a document before its text.
    """
    # Without --index, the indexes were built from the corpus, so there is nothing to check.
    paths = options.index or []
    for path, index in zip(paths, indexes, strict=False):
        is_alike = len(index.sentences) == len(corpus.sentences)
        # The first index has the very sentences of the corpus.
        if is_alike and options.corpus is None and index.sentences is not corpus.sentences:
            is_alike = all(map(operator.eq, index.sentences, corpus.sentences))
        if not is_alike:
            corpus_name = options.corpus or paths[0]
            raise DataError(
                f"{path} holds other sentences than {corpus_name}, so one file of judgements does "
                "not score both",
                hint="build it again from the same texts: `simcse encode FILE -o VECTORS.npy "
                "--index INDEX --force`",
            )


def _check_options(options: RetrievalOptions, view: ViewOptions) -> list[NamedSource]:
    """Check that the options agree, and return the models, or the indexes, with their names."""
    read_ranks(options.at)  # raises UsageError if these are no ranks
    if options.backend is SearchBackend.FAISS:
        require_extra("faiss", "--backend faiss")
    if view.plot is not None and options.qrels is None:
        raise UsageError("the figure shows scores: it needs --qrels", option="--plot")

    # The corpus is a file of texts, and stdin can be read only once.
    if options.corpus is not None and search_index.is_index(options.corpus):
        raise UsageError(
            f"{options.corpus} is a search index, not a file of texts",
            option="--corpus",
            hint=f"name it with --index {shlex.quote(options.corpus)}, and leave the rest of the "
            "command as it is",
        )
    if options.corpus == STDIO and (options.interactive or str(options.queries) == STDIO):
        raise UsageError("stdin cannot be both the corpus and the queries", option="--corpus")

    if not all(query.strip() for query in options.query or ()):
        raise UsageError("need a query with text, found an empty one", option="--query")

    if options.index and options.corpus is None and options.queries is None:
        useless = "has no use with --index, which was built already, without --queries"
        refuse_unused(options, ["id_column"], useless)

    # Queries come from one source; without any, their options have no use.
    n_sources = sum((bool(options.query), options.queries is not None, options.sample > 0))
    if n_sources > 1:
        raise UsageError("give one of --query, --queries and --sample", option="--query")
    if not n_sources:
        if not options.interactive and options.save_index is None:
            raise UsageError(
                "need a query after the corpus, --queries, --sample or --interactive",
                option="--query",
            )
        useless = "has no use without --query, --queries or --sample"
        refuse_unused(options, ["qrels", "show_n"], useless)
        refuse_unused(view, ["html"], useless)
    return _name_encoders(options, view.label)


def _name_encoders(options: RetrievalOptions, labels: Sequence[str] | None) -> list[NamedSource]:
    """Return the models with their names or, with ``--index``, the indexes with their names.

    Model i belongs to file i of ``--embeddings`` or ``--index``.
    """
    models = options.model or []
    embeddings = options.embeddings or []
    if embeddings and len(models) != len(embeddings):
        raise UsageError(
            f"{len(embeddings)} files for {len(models)} models, need one --model each to encode "
            "the queries",
            option="--embeddings",
        )
    if options.index:
        paths = [str(path) for path in options.index]
        if models and len(models) != len(paths):
            raise UsageError(
                f"{len(paths)} indexes for {len(models)} models, need as many (or no --model)",
                option="--index",
            )
        # An index is named by its model, or by its own path if models are missing or repeated.
        names_from = models
        if len(set(models)) < len(paths):
            names_from = paths
        return list(map(NamedSource, paths, label_sources(names_from, labels)))
    sources = name_sources(models, labels)
    # A folder of seeds stands for several models, but a file has the vectors of one.
    if embeddings and len(sources) != len(embeddings):
        raise UsageError(
            "each file goes with one run, such as FOLDER/seed-1", option="--embeddings"
        )
    return sources


def _query_encoder(
    model: ReadyEncoder, named: NamedSource, options: LoadOptions, progress: Progress
) -> NamedEncoder:
    """Return a model as an encoder of queries, with the name and group of ``named``."""
    encode = partial(
        model.encode,
        prompt=model.query_prompt,
        batch_tokens=options.batch_tokens,
        progress=progress,
    )
    return NamedEncoder(
        named.label, named.path, encode, model.digest, model.pooler.value, named.group
    )


def _build_index(
    model: ReadyEncoder,
    number: int,
    corpus: NumberedTexts,
    options: RetrievalOptions,
    progress: Progress,
) -> search_index.SearchIndex:
    """Return an index of the corpus for a model.

    With ``--embeddings``, the vectors are read from file ``number``, otherwise the model encodes
    the corpus.
    """
    prompt = model.document_prompt(options.corpus_prompt)
    if options.embeddings:
        path = options.embeddings[number]
        vectors: Array = read_matrix(path)
        _check_origin(path, model, options, progress)
        _require_row_for_each(path, vectors, corpus)
    else:
        vectors = model.encode(
            corpus.sentences, prompt=prompt, batch_tokens=options.batch_tokens, progress=progress
        )
    return search_index.SearchIndex.build(
        vectors,
        corpus.sentences,
        backend=options.backend,
        factory=options.faiss_factory,
        info=model.facts(prompt),
        ids=corpus.given_ids,
        unused=corpus.unused,
    )


def _require_row_for_each(path: Path, vectors: Array, corpus: NumberedTexts) -> None:
    """Raise DataError if a file of vectors has another number of rows than the corpus."""
    n_vectors = len(vectors)
    n_texts = len(corpus.sentences)
    if n_vectors == n_texts:
        return
    hint = "repeat its `simcse encode` with --force"
    side = read_json(side_file(path)) if side_file(path).is_file() else {}
    if isinstance(side, dict) and side.get("id_column") is not None:
        hint = "repeat its `simcse encode` with --update, which adds the rows that are new"
        if n_vectors > n_texts:
            hint = (
                f"it keeps rows that are gone from {corpus.source}: repeat its `simcse encode` "
                "with --update --drop-gone, or search an index of it: --index"
            )
    raise DataError(
        f"{path}: {n_vectors:,} vectors for {n_texts:,} sentences of {corpus.source}, need one "
        "vector for each",
        hint=hint,
    )


_FREE_VARIATIONS = {"long", "weight_levels"}
"""Variations of a model that may differ between the corpus and the queries."""


def _check_origin(
    path: Path, model: ReadyEncoder, options: RetrievalOptions, progress: Progress
) -> None:
    """Check a file of vectors by the side file that `simcse encode` has written, if there is one.

    Raise an error if the vectors do not come from the model or are post-processed. Warn if the
    corpus has changed since, and tell the user if only the corpus has a prompt.
    """
    if not side_file(path).is_file():
        return
    side = read_json(side_file(path))
    if not isinstance(side, dict) or "model_digest" not in side:
        return

    # The digest of a model changes with the _FREE_VARIATIONS and, if it converts its weights, with
    # the precision. So digests are compared only where these are the same.
    may_differ = bool(_FREE_VARIATIONS & (side.keys() | model.variations.keys()))
    precision = resolve_precision(options.precision, model.device)
    if side.get("precision") == precision and not may_differ:
        record = side | {"digest": side["model_digest"]}  # the key that `require_made_by` reads
        search_index.require_made_by(record, model, path)
    if "postprocess_sha256" in side:
        raise DataError(
            f"{path} holds post-processed vectors, and queries are not post-processed",
            hint="encode without --postprocess",
        )

    _tell_prompt(path, side.get("prompt"), model, options, progress)

    # The corpus may have changed since; a pipe has no digest.
    source = str(options.corpus)
    corpus_digest = None if source == STDIO else FileSet.find(source).digest
    if corpus_digest is not None and corpus_digest != side.get("input_sha256"):
        progress.warn(
            f"{path} was written from {side.get('input')}; its row i is taken for line i of "
            f"{source}"
        )


def _tell_prompt(
    path: Path, prompt: object, model: ReadyEncoder, options: LoadOptions, progress: Progress
) -> None:
    """Tell the user if the texts have a prompt and the queries have none.

    ``prompt`` is the prompt of the texts, as ``path`` records it. It is not used for the queries,
    since many models have another one for queries.
    """
    if prompt and options.prompt is None and not model.query_prompt:
        progress.info(
            f"{path}: its texts have the prompt {str(prompt)!r}, and the queries have none; "
            "add --prompt to give them one"
        )


def _load_index(
    path: Path, model: str | None, label: str, options: LoadOptions, progress: Progress
) -> tuple[NamedEncoder, search_index.SearchIndex]:
    """Load a saved index, and return the encoder for its queries, and the index.

    The model is loaded with the settings that the index records for its vectors.
    """
    index = search_index.SearchIndex.load(path)
    info = index.info
    if not model:
        model = info.get("model")
        if not model:
            raise DataError(f"{path} does not say which model made it", hint="name it with --model")
        if not is_local(model):
            raise DataError(
                f"{path} names the model {model!r}, which is not on this machine; what a file "
                "names is not looked up",
                hint=f"if you trust it: --model {model}",
            )

    # Queries are encoded as the vectors were. The recorded pooler is used even if the model has
    # another one.
    long = checked(info.get("long", "cut"), LongTexts, f"{path}: long")
    recorded: dict[str, Any] = {"long": long}
    if options.pooler is None and info.get("pooler"):
        recorded["pooler"] = checked(info["pooler"], Pooler, f"{path}: pooler")
        recorded["force_pooler"] = True
    if "truncate_dim" in info:
        recorded["truncate_dim"] = int(parse_number(info["truncate_dim"], f"{path}: truncate_dim"))
    loaded = load_for_encoding(model, replace(options, **recorded), progress)
    index.require_made_by(loaded, path)
    _tell_prompt(path, info.get("prompt"), loaded, options, progress)
    return _query_encoder(loaded, NamedSource(model, label), options, progress), index


def read_ranks(text: str) -> list[int]:
    """Return the ranks in a comma-separated list, each once, in ascending order."""
    try:
        ranks = sorted({int(part) for part in text.split(",")})
    except ValueError:
        ranks = [0]  # which is refused below
    if ranks[0] < 1:
        raise UsageError(f"{text!r}: need whole numbers above 0, as in 1,5,10", option="--at")
    return ranks


def read_queries(
    options: RetrievalOptions, corpus: NumberedTexts, progress: Progress = SILENT
) -> NumberedTexts:
    """Return the queries: those of a file, a sample of the corpus, or those of ``--query``.

    Rows without text are left out, and the user is told how many.
    """
    if options.queries is not None:
        given = Given.of(options, progress=progress)
        given = given.of_texts(options.column, options.text, *_id_columns(options, QUERY_NAMES))
        source = source_name(options.queries)
        # --id-column names a column of the corpus, of the queries, or of both. So the queries may
        # lack it only if it is that of the corpus.
        queries = read_texts(
            options.queries,
            given,
            id_column=options.id_column,
            may_lack=options.id_column == corpus.id_column,
            usual=QUERY_NAMES,
        )
    elif options.sample:
        source = "the sample of queries"
        queries = sample_texts(corpus, options.sample, seed=options.seed)
    else:
        return NumberedTexts(options.query or ())

    return queries_with_text(queries, source, progress)


def _id_columns(options: RetrievalOptions, usual: Sequence[str]) -> Sequence[str | None]:
    """Return the columns that may hold ids: that of ``--id-column``, or None without the option.

    With judgements, the ``usual`` columns follow.
    """
    if options.qrels is None:
        return [options.id_column]
    return [options.id_column, *usual]


@plots.house_style()
def retrieval_figure(scores: Mapping[str, RetrievalScores], n_texts: int) -> plots.Figure:
    """Draw hit rate and recall against the number of results looked at, one curve per model.

    No curve goes beyond ``n_texts``, the number of texts in the corpus.
    """
    last = min(n_texts, max(score.depth for score in scores.values()))
    figure, panels = plots.new_figure(8.6, 3.9, 2, sharey=True)
    for axes, measure in zip(panels, ("hit_rate", "recall"), strict=True):
        for position, (name, score) in enumerate(scores.items()):
            shares = 100 * getattr(score, measure)[:last]
            ranks = np.arange(1, len(shares) + 1)
            axes.plot(ranks, shares, label=plots.shown(name), **plots.curve_style(position))
        plots.rank_axis(axes, last)
        axes.set_xlabel("sentences looked at, k")
        axes.set_ylim(0, 102)
    panels[0].set_title("at least one relevant (hit rate@k)")
    panels[1].set_title("share of the relevant (recall@k)")
    panels[0].set_ylabel("% of queries, or of relevant sentences")
    plots.legend_below(figure, *panels[0].get_legend_handles_labels())
    return figure


def retrieval_analysis(search: CorpusSearch) -> Analysis:
    """Return the neighbours of the shown queries and, if there are judgements, the scores."""
    options = search.options
    queries = search.queries
    ks = read_ranks(options.at)

    # With judgements the scores matter, so no neighbours are shown by default.
    n_shown = options.show_n
    if n_shown is None and search.relevant is not None:
        n_shown = 0
    shown_queries = queries.sentences[:n_shown]
    neighbours = search.neighbours(shown_queries)

    # Scores are over all queries, whatever is shown.
    depth = max(EVALUATION_DEPTH, *ks)
    scores = search.scores(depth)
    n_texts = len(search.corpus.sentences)
    left_out = search.count_left_out(queries.sentences)
    n_left_out = sum(left_out[text] for text in queries.sentences)

    tables = neighbour_tables(shown_queries, neighbours, left_out, ids=queries.given_ids)
    rows = list(_neighbour_rows(shown_queries, queries.rows, neighbours))
    series = []
    if rows:
        series.append(Report("Neighbours", [Column(key) for key in rows[0]], rows))

    model_rows, tests, score_tables = _scores_with_tests(search, scores, ks, depth, n_left_out)
    groups = {encoder.label: encoder.group for encoder, _ in search.indexes}
    tables += score_tables
    series += score_tables

    def hit_rates() -> str:
        last = min(depth, n_texts)
        curves = {name: score.hit_rate[:last] for name, score in scores.items()}
        return plots.bar_lines(curves, high=1.0) + f"hit rate at 1 (left) to {last} (right)\n"

    text = "Sentences of the corpus by cosine to each query"
    text += "." if options.keep_identical else "; sentences equal to the query are left out."
    analysis = Analysis(
        title="Nearest sentences",
        text=text,
        caption="Hit rate and recall against the number of sentences looked at.",
        tables=tables,
        payload={
            "analysis": "retrieval",
            "corpus": options.corpus,
            "n_sentences": n_texts,
            "n_queries": len(queries.sentences),
            "n_left_out": n_left_out,
            "models": [encoder.facts() for encoder, _ in search.indexes],
            "neighbours": rows,
            "scores": model_rows,
            "tests": {name: vars(test) for name, test in tests.items()},
        }
        | seeds_entry(model_rows, [groups[row["model"]] for row in model_rows]),
        figure=(lambda: retrieval_figure(scores, n_texts)) if scores else None,
        terminal_plot=hit_rates if scores else str,  # str() is "", which is no plot
        series=series,
    )

    def with_whole_texts() -> list[Analysis]:
        whole_tables = neighbour_tables(
            shown_queries, neighbours, left_out, ids=queries.given_ids, whole=True
        )
        return [replace(analysis, tables=[*whole_tables, *score_tables])]

    return replace(analysis, page=Page(analysis.title, with_whole_texts))


def _neighbour_rows(
    queries: Sequence[str],
    query_rows: Sequence[int],
    neighbours: Mapping[str, list[list[search_index.Neighbour]]],
) -> Iterator[dict[str, Any]]:
    """Yield a row for each neighbour of each query, as JSON and CSV hold it.

    ``query_rows`` are the numbers of the queries in their file. Like the lines of the corpus, they
    start at 1, and the header of a table is not counted.
    """
    for number, query in enumerate(queries):
        for label, by_query in neighbours.items():
            for rank, neighbour in enumerate(by_query[number], start=1):
                row: dict[str, Any] = {
                    "query_row": query_rows[number],
                    "query": query,
                    "model": label,
                    "rank": rank,
                    "line": neighbour.row + 1,
                }
                if neighbour.id is not None:
                    row["id"] = neighbour.id
                yield row | {"sentence": neighbour.sentence, "cosine": neighbour.cosine}


def _scores_with_tests(
    search: CorpusSearch,
    scores: Mapping[str, RetrievalScores],
    ks: Sequence[int],
    depth: int,
    n_left_out: int,
) -> tuple[list[dict[str, Any]], dict[str, PairedTest], list[Report]]:
    """Return a row of scores for each model, the paired tests by system, and a list of one table.

    The table shows the scores and the tests. Without scores, all three are empty. Hit rate and
    recall are at each rank of ``ks``, nDCG and MRR at the last rank of ``ks``, and MRR at ``depth``
    as well.
    """
    if not scores:
        return [], {}, []
    rows = score_rows(scores, ks)
    groups = {encoder.label: encoder.group for encoder, _ in search.indexes}
    tests = search_tests(scores, groups, ks[-1])
    notes = _left_out_note(n_left_out, "their")
    return rows, tests, [score_table(rows, tests, groups, ks, depth, notes)]


def _left_out_note(n_sentences: int, whose: str) -> list[str]:
    """Return a list with a note on sentences left out, if any; ``whose`` stands before "query"."""
    if not n_sentences:
        return []
    count = "1 sentence" if n_sentences == 1 else f"{n_sentences:,} sentences"
    return [f"left out: {count} equal to {whose} query (kept with --keep-identical)"]


def neighbour_tables(
    queries: Sequence[str],
    neighbours: Mapping[str, list[list[search_index.Neighbour]]],
    left_out: Counter[str],
    *,
    ids: Sequence[str] | None = None,
    whole: bool = False,
) -> list[Report]:
    """Return a table for each query: its neighbours by rank, with columns for each model.

    A single model is not named. The ``ids`` of the queries, if they have any, stand before their
    texts. Long texts are cut, or shown in full with ``whole``. ``left_out`` maps a query to the
    number of sentences that were left out, because they are equal to it.
    """
    shown = one_line if whole else partial(shorten, length=SHOWN_LENGTH)
    columns = [Column("rank", "#", "count")]
    for label, by_query in neighbours.items():
        if any(neighbour.id is not None for neighbour in chain(*by_query)):
            columns.append(Column(f"{label} id", "id"))
        heading = label if len(neighbours) > 1 else "text"
        columns += [Column(label, heading), Column(f"{label} cosine", "cosine", "number")]

    # Row i of a table has the neighbours at rank i of all models.
    tables = []
    for number, query in enumerate(queries):
        rows: list[dict[str, Any]] = []
        for label, by_query in neighbours.items():
            for position, neighbour in enumerate(by_query[number]):
                if position == len(rows):
                    rows.append({"rank": position + 1})
                rows[position] |= {
                    label: shown(neighbour.sentence),
                    f"{label} cosine": neighbour.cosine,
                    f"{label} id": neighbour.id,
                }
        notes = _left_out_note(left_out[query], "the")
        name = "Query" if ids is None else f"Query {ids[number]}"
        title = f"{name}: {shown(query)}"
        tables.append(Report(title, columns, rows, notes))
    return tables
