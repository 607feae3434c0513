from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcse_cli.analysis import options as analysis_options
from simcse_cli.commands.console import Console, get_console
from simcse_cli.commands.options import (
    OutputOptions,
    input_argument,
    require_filled,
    takes_settings,
)
from simcse_cli.files.inputs import require_present
from simcse_cli.results.report import Outcome
from simcse_cli.settings.choices import OutputFormat
from simcse_cli.settings.declare import refuse_unused

if TYPE_CHECKING:
    from simcse_cli.analysis.presentation import Analysis

app = typer.Typer(
    name="analyze",
    no_args_is_help=True,
    help="""Explain scores: embedding spaces, neighbours, training paths.

    simcse analyze geometry --model minilm --model runs/first --data-dir senteval --plot plot.png
    simcse analyze trace runs/first --plot trace.png
    """,
)


@dataclass(frozen=True)
class ShowOptions(OutputOptions, analysis_options.ViewOptions):
    """How results are shown and where they go."""


def show_analysis(analyze: "Callable[[Console], Analysis]", shown: ShowOptions) -> None:
    """Check the outputs, run the analysis, show its result and write its pages and pictures."""
    from simcse_cli.analysis.presentation import Page, check_outputs, html_page, write_pictures

    shown.check()
    if shown.terminal_plot and shown.fmt is not OutputFormat.TABLE:
        refuse_unused(shown, ["terminal_plot"], "is drawn under tables: leave it or --format out")
    check_outputs(shown, force=shown.force)
    console = get_console()
    analysis = analyze(console)
    # Build the page before anything is written, since it may run further analyses, which may fail.
    page = None
    if shown.html:
        page = html_page(analysis.page or Page(analysis.title, lambda: [analysis]), console)
    shown.show(Outcome(analysis.tables, analysis.payload, series=analysis.series))
    # By default a plot is drawn if stdout is a terminal.
    wants_plot = shown.terminal_plot
    if wants_plot is None:
        wants_plot = console.stdout_is_terminal
    if wants_plot and shown.fmt is OutputFormat.TABLE:
        console.print_data("\n" + analysis.terminal_plot())
    write_pictures(analysis, page, shown, console, force=shown.force)


def _show_spaces(analysis: str, options: analysis_options.SpaceOptions, shown: ShowOptions) -> None:
    from simcse_cli.analysis.analyses import analyze_spaces

    show_analysis(lambda console: analyze_spaces(analysis, options, shown.label, console), shown)


@app.command("geometry")
@takes_settings
def geometry_command(options: analysis_options.GeometryOptions, shown: ShowOptions) -> None:
    """Alignment, uniformity, effective rank, isotropy and mean cosine on rated pairs (Figure 3).

    simcse analyze geometry --model minilm --model runs/first --data-dir senteval --plot space.png
    simcse analyze geometry --model minilm --pair-file pairs.csv --html spaces.html
    """
    _show_spaces("geometry", options, shown)


@app.command("spectrum")
@takes_settings
def spectrum_command(options: analysis_options.SpectrumOptions, shown: ShowOptions) -> None:
    """Singular values of the matrix of sentence vectors (Figure F.1).

    simcse analyze spectrum --model bert-base --model runs/unsup --data-dir senteval --plot s.pdf
    """
    _show_spaces("spectrum", options, shown)


@app.command("density")
@takes_settings
def density_command(options: analysis_options.SpaceOptions, shown: ShowOptions) -> None:
    """Cosine similarity of rated pairs, by group of gold ratings (Figure G.1).

    simcse analyze density --model minilm --model runs/first --data-dir senteval --plot density.png
    """
    _show_spaces("density", options, shown)


@app.command("retrieval", hidden=True)
@app.command("search")
@takes_settings
def retrieval_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CORPUS] [QUERY]...",
            help="Sentences to search, then queries.",
            show_default=False,
        ),
    ] = None,
    *,
    options: analysis_options.RetrievalOptions,
    shown: ShowOptions,
) -> None:
    """Find the nearest sentences to each query (Table 8), or score rankings with judgements.

    `simcse analyze retrieval` is the same command. Judgements give recall@k and MRR. Without
    `--model` and `--index` the model is minilm.

    simcse analyze search captions.txt "A dog runs on the beach."
    simcse analyze search --model runs/first --corpus corpus.txt --query "a dog in the snow" -k 5
    simcse analyze search --index corpus.index --interactive
    simcse analyze search --corpus captions.tsv --queries queries.tsv --qrels qrels.tsv
    """
    if words and options.corpus is None and not options.index:
        require_filled(words[0], "CORPUS")
        require_present(words[0])  # the corpus, which is checked before slow imports
    from simcse_cli.analysis import retrieval

    shown.check()
    console = get_console()
    options = retrieval.with_arguments(options, words or [])
    search = retrieval.open_search(options, shown, console, force=shown.force)
    if search.queries.sentences:
        show_analysis(lambda _: retrieval.retrieval_analysis(search), shown)
    if options.interactive:
        while line := (console.ask("query (an empty line ends)> ") or "").strip():
            neighbours = search.neighbours([line])
            left_out = search.count_left_out([line])
            console.emit(Outcome(retrieval.neighbour_tables([line], neighbours, left_out), {}))


@app.command("groups")
@takes_settings
def groups_command(
    source: Annotated[str, input_argument(metavar="FILE", help="Texts, or a table with texts.")],
    options: analysis_options.GroupOptions,
    shown: ShowOptions,
) -> None:
    """Group texts that are alike: size, telling words and typical texts of each group.

    simcse analyze groups tickets.csv --k 8 --id-column id --plot groups.png
    simcse analyze groups tickets.csv --threshold 0.6 -f csv -o groups.csv
    """
    from simcse_cli.analysis.groups import group_analysis

    show_analysis(lambda console: group_analysis(source, options, console), shown)


@app.command("overlap")
@takes_settings
def overlap_command(
    files: Annotated[
        list[Path], input_argument(help="Tables of pairs; - is stdin.", show_default=False)
    ],
    options: analysis_options.OverlapOptions,
    shown: ShowOptions,
) -> None:
    """Lexical overlap of the two sides of sentence pairs, as in section 4 of the paper.

    simcse analyze overlap nli.csv pairs.csv
    """
    from simcse_cli.analysis.overlap import overlap_analysis

    show_analysis(lambda console: overlap_analysis(files, options, shown.label, console), shown)


@app.command("trace")
@takes_settings
def trace_command(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Run folders of `simcse train`.", show_default=False)
    ] = None,
    *,
    options: analysis_options.TraceOptions,
    shown: ShowOptions,
) -> None:
    """Alignment, uniformity and dev score along training runs (Figure 2).

    simcse analyze trace runs/unsup runs/sup --plot trace.png
    """
    from simcse_cli.analysis.trace import trace_runs

    show_analysis(lambda console: trace_runs(runs or [], options, shown.label, console), shown)


@app.command("report")
@takes_settings
def report_command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run folder of `simcse train`, or one of seeds.")
    ],
    options: analysis_options.ReportOptions,
) -> None:
    """Put a run, or the seeds of a folder, on one page: scores, geometry, neighbours, changes.

    The page needs no network and no other file. It compares the vectors with those of `--baseline`,
    by default the model that training started from.

    simcse analyze report runs/first -o first.html --data-dir senteval
    simcse analyze report runs/second -o second.html --baseline runs/first --pair-file pairs.csv
    """
    from simcse_cli.analysis.run_report import write_run_report

    write_run_report(run, options, get_console())
