"""`simcse analyze retrieval`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcse_cli.choices import Device, OutputFormat, Precision, SearchBackend
from simcse_cli.commands import options as opt
from simcse_cli.commands._analyze_output import (
    HtmlOption,
    LabelsOption,
    Outputs,
    PlotOption,
    TerminalPlotOption,
    show,
)
from simcse_cli.commands._analyze_retrieval import (
    EVALUATION_DEPTH,
    QueryChoice,
    Searcher,
    open_searcher,
    retrieve,
    search_sources,
)
from simcse_cli.commands._analyze_retrieval_views import neighbour_reports, retrieval_findings
from simcse_cli.commands._analyze_systems import ModelsOption
from simcse_cli.config import LoadOptions
from simcse_cli.console import Console, get_console
from simcse_cli.files import STDIO, check_output

if TYPE_CHECKING:
    from simcse_cli.analysis.qrels import Texts


def answer_interactively(
    searchers: Sequence[Searcher], corpus: "Texts", top_k: int, console: Console
) -> None:
    """Show the neighbours of each line typed, until an empty line or the end of input."""
    from simcse_cli.analysis.qrels import Texts

    while line := (console.ask("query (an empty line ends)> ") or "").strip():
        found = retrieve(searchers, Texts.numbered([line]), corpus, top_k=top_k)
        console.emit(neighbour_reports(found), {})


def retrieval_command(
    model: ModelsOption = None,
    corpus: Annotated[
        str | None, typer.Option(help="Sentences to search: text, table, or - for stdin.", show_default=False)
    ] = None,
    column: Annotated[str | None, typer.Option(help="Column of sentences, in corpus and queries.")] = None,
    query: Annotated[list[str] | None, typer.Option("--query", help="A query; repeat for more.")] = None,
    queries: Annotated[Path | None, typer.Option(help="File of queries, one per line or row.")] = None,
    sample: Annotated[int, typer.Option(min=0, help="Draw this many queries from the corpus.")] = 0,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Ask for queries, one by one.")
    ] = False,
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Sentences shown for each query.")] = 3,
    show_n: Annotated[
        int | None, typer.Option("--show", min=0, help="Queries shown; default: all, with --qrels none.")
    ] = None,
    qrels: Annotated[
        Path | None,
        typer.Option(help="Relevance: group<TAB>sentence, BEIR or TREC file; adds recall@k and MRR."),
    ] = None,
    at: Annotated[str, typer.Option(help="Ranks at which --qrels scores are shown.")] = "1,5,10",
    keep_identical: Annotated[
        bool, typer.Option("--keep-identical", help="Sentences equal to the query count as results.")
    ] = False,
    embeddings: Annotated[
        list[Path] | None, typer.Option(help="Vectors of the corpus, row by row, one file a model.")
    ] = None,
    index: Annotated[
        list[Path] | None, typer.Option(help="Search this saved index; its model encodes the queries.")
    ] = None,
    save_index: Annotated[Path | None, typer.Option(help="Save the index, for --index.")] = None,
    backend: Annotated[SearchBackend, typer.Option(help="How to search.")] = SearchBackend.EXACT,
    faiss_factory: Annotated[str, typer.Option(help="Kind of FAISS index.")] = "HNSW32",
    label: LabelsOption = None,
    pooler: opt.PoolerOption = None,
    force_pooler: opt.ForcePoolerOption = False,
    device: opt.DeviceOption = Device.AUTO,
    precision: opt.PrecisionOption = Precision.FP32,
    batch_tokens: opt.BatchTokensOption = None,
    seed: opt.SeedOption = 42,
    fmt: opt.FormatOption = OutputFormat.TABLE,
    output: opt.OutputOption = None,
    plot: PlotOption = None,
    html: HtmlOption = None,
    terminal_plot: TerminalPlotOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Nearest sentences to queries (Table 8), and recall@k and MRR where judgements are given."""
    from simcse_cli.analysis.qrels import Texts, read_texts

    outputs = Outputs(fmt, output, plot, html, terminal_plot, force)
    outputs.check()
    ks = parse_ranks(at)
    if plot is not None and qrels is None:
        raise typer.BadParameter("the figure shows scores: it needs --qrels", param_hint="--plot")
    if corpus == STDIO and (interactive or str(queries) == STDIO):
        raise typer.BadParameter("stdin cannot be both the corpus and the queries", param_hint="--corpus")
    sources = search_sources(model or [], embeddings or [], index or [], label)
    if save_index is not None:
        if len(sources) > 1:
            raise typer.BadParameter("saves the index of one model", param_hint="--save-index")
        check_output(save_index, force=force)
    console = get_console()
    texts = None if corpus is None else read_texts(corpus, column)
    settings = LoadOptions(pooler, force_pooler, device, precision, batch_tokens)
    searchers = [
        open_searcher(source, texts, settings, console, backend=backend, factory=faiss_factory)
        for source in sources
    ]
    if save_index is not None:
        searchers[0].index.save(save_index, force=force)
        console.info(f"wrote {save_index}")
    if texts is None:
        texts = Texts.numbered(searchers[0].index.sentences)
    chosen = QueryChoice(query or (), queries, column, sample, seed).collect(texts)
    if chosen.sentences:
        depth = max(EVALUATION_DEPTH, *ks)
        found = retrieve(
            searchers,
            chosen,
            texts,
            top_k=top_k,
            qrels=qrels,
            depth=depth,
            n_shown=show_n,
            keep_identical=keep_identical,
        )
        facts: dict[str, Any] = {
            "corpus": corpus,
            "n_sentences": len(texts.sentences),
            "n_queries": len(chosen.sentences),
        }
        facts["models"] = [searcher.system.facts() for searcher in searchers]
        show(retrieval_findings(found, ks, facts), outputs, console)
    if interactive:
        answer_interactively(searchers, texts, top_k, console)
    elif not chosen.sentences and save_index is None:
        raise typer.BadParameter("need --query, --queries, --sample or --interactive", param_hint="--query")


def parse_ranks(text: str) -> list[int]:
    """Return the ranks of a comma-separated list.

    Raises:
        typer.BadParameter: one of them is not a whole number above 0.
    """
    try:
        ranks = sorted({int(part) for part in text.split(",")})
    except ValueError:
        ranks = [0]
    if ranks[0] < 1:
        raise typer.BadParameter(f"{text!r}: need whole numbers above 0, as in 1,5,10", param_hint="--at")
    return ranks
