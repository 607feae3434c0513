"""The `prepare` command: one sub-command for each kind of training file."""

from typing import Annotated

import typer

from simcse_cli.choices import HardNegativeLabel, PositiveLabel
from simcse_cli.commands._prepare_other import demo_command, lint_command, senteval_command
from simcse_cli.commands._row_options import RowOptions, takes_row_options
from simcse_cli.console import get_console
from simcse_cli.errors import ConfigError

prepare_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Make training files from corpora, and check data.",
)

InputsArgument = Annotated[
    list[str], typer.Argument(metavar="INPUT...", help="Files, - for stdin, or hf://OWNER/NAME@CONFIG:SPLIT.")
]
ColumnOption = Annotated[str | None, typer.Option("--column", help="Column of a table that holds the text.")]
SplitOption = Annotated[
    bool, typer.Option("--split-sentences", help="Split each line into sentences by rule.")
]


def register(app: typer.Typer) -> None:
    """Add `prepare` to the application."""
    app.add_typer(prepare_app, name="prepare")


@prepare_app.command("sentences")
@takes_row_options
def sentences_command(
    inputs: InputsArgument,
    options: RowOptions,
    column: ColumnOption = None,
    split_sentences: SplitOption = False,
) -> None:
    """Write one sentence per line, for unsupervised training.

    Reads text, JSON Lines, CSV, TSV, parquet (also .gz) and Hub datasets, in one pass and bounded memory.

    simcse prepare sentences wiki.txt -o sentences.txt --min-words 4 --sample 1000000
    """
    from simcse_cli.commands._prepare_rows import write_rows
    from simcse_cli.prepare.corpora import sentence_rows

    write_rows(
        "sentences",
        sentence_rows(inputs, column=column, split=split_sentences, encoding=options.encoding),
        n_columns=1,
        inputs=inputs,
        settings={"column": column, "split_sentences": split_sentences},
        options=options,
    )


@prepare_app.command("nli")
@takes_row_options
def nli_command(
    inputs: InputsArgument,
    options: RowOptions,
    positive: Annotated[
        PositiveLabel, typer.Option(help="Hypotheses that become positives.")
    ] = PositiveLabel.ENTAILMENT,
    hard_negative: Annotated[
        HardNegativeLabel, typer.Option(help="Hypotheses that become hard negatives; none makes pairs.")
    ] = HardNegativeLabel.CONTRADICTION,
    anli: Annotated[
        list[str] | None,
        typer.Option(help="ANLI file to add (uid, context, hypothesis, label); repeat for more."),
    ] = None,
    overlap: Annotated[
        bool, typer.Option(help="Report the lexical overlap of anchors and positives.")
    ] = True,
) -> None:
    """Write triplets from natural language inference corpora, for supervised training.

    Reads SNLI, MNLI and ANLI as JSON Lines, TSV, parquet or Hub datasets, and SentEval's s1, s2 and labels
    files (name one of the three, or the folder). Each premise that has both gives one row with a sampled
    positive and a sampled hard negative; with `--hard-negative none` every pair with the label is a row.

    simcse prepare nli snli_1.0_train.jsonl multinli_1.0_train.jsonl -o nli.csv
    """
    from simcse_cli.commands._prepare_rows import write_rows
    from simcse_cli.data.nli import iter_nli
    from simcse_cli.prepare.nli import NliCounts, nli_rows

    sources = [*inputs, *(anli or [])]
    counts = NliCounts()
    rows = nli_rows(
        (pairs for source in sources for pairs in iter_nli(source)),
        positive=positive,
        hard_negative=hard_negative,
        seed=options.refine.seed,
        counts=counts,
    )
    write_rows(
        "nli",
        rows,
        n_columns=2 if hard_negative is HardNegativeLabel.NONE else 3,
        inputs=sources,
        settings={"positive": positive, "hard_negative": hard_negative},
        options=options,
        measure_overlap=overlap,
        corpus=counts,
    )


@prepare_app.command("pairs")
@takes_row_options
def pairs_command(
    inputs: InputsArgument,
    options: RowOptions,
    flickr30k: Annotated[
        bool, typer.Option("--flickr30k", help="Captions: every two captions of an image are a pair.")
    ] = False,
    parallel: Annotated[
        bool, typer.Option("--parallel", help="Two text files: line i of one belongs to line i of the other.")
    ] = False,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="A,B", help="Columns to pair, where they are not found."),
    ] = None,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Report the lexical overlap of the pairs (F1 of words).")
    ] = False,
) -> None:
    """Write pairs from paraphrase and caption corpora.

    Finds the layout of QQP, MRPC, WikiAuto and ParaNMT by itself (rows marked as no paraphrase are left out),
    and reads any table with the columns anchor and positive or two columns without a header.

    simcse prepare pairs results_20130124.token --flickr30k -o pairs.csv --sample 200000
    """
    from simcse_cli.commands._prepare_rows import write_rows
    from simcse_cli.prepare.pair_files import caption_rows, pair_rows, parallel_rows

    if flickr30k:
        rows = caption_rows(inputs, encoding=options.encoding)
    elif parallel:
        rows = parallel_rows(*_two(inputs, "--parallel", "files"), encoding=options.encoding)
    else:
        chosen = None if columns is None else _two(columns.split(","), "--columns", "names")
        rows = pair_rows(inputs, columns=chosen, encoding=options.encoding)
    write_rows(
        "pairs",
        rows,
        n_columns=2,
        inputs=inputs,
        settings={"flickr30k": flickr30k, "parallel": parallel, "columns": columns},
        options=options,
        measure_overlap=overlap,
    )


def _two(values: list[str], flag: str, what: str) -> tuple[str, str]:
    if len(values) != 2:
        raise ConfigError(f"{flag} needs two {what}, found {len(values)}: {', '.join(values)}")
    return values[0], values[1]


@prepare_app.command("neighbours")
@takes_row_options
def neighbours_command(
    inputs: InputsArgument,
    options: RowOptions,
    reach: Annotated[
        int, typer.Option("--next", min=1, help="Draw the positive from this many following sentences.")
    ] = 1,
    every: Annotated[
        bool, typer.Option("--every", help="Write a pair for each of them instead of drawing one.")
    ] = False,
    column: ColumnOption = None,
    split_sentences: SplitOption = False,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Report the lexical overlap of the pairs.")
    ] = False,
) -> None:
    """Write pairs of neighbouring sentences from documents.

    Text must be in document order, a blank line between documents; in a table each row is a document. No
    pair crosses a document border. The Wikipedia file of SimCSE is a random sample and cannot be used.

    simcse prepare neighbours books.txt -o next3.csv --next 3
    """
    from simcse_cli.commands._prepare_rows import write_rows
    from simcse_cli.prepare.corpora import DocumentCounts, iter_documents, neighbour_rows

    counts = DocumentCounts()
    documents = iter_documents(
        inputs, column=column, split=split_sentences, encoding=options.encoding, counts=counts
    )
    result = write_rows(
        "neighbours",
        neighbour_rows(documents, reach=reach, every=every, seed=options.refine.seed),
        n_columns=2,
        inputs=inputs,
        settings={"next": reach, "every": every, "column": column, "split_sentences": split_sentences},
        options=options,
        measure_overlap=overlap,
        corpus=counts,
    )
    if counts.n_documents == len(inputs) and result.counts.read > 1:
        get_console().warn(
            "no blank line separates documents: pairs are neighbours only if the lines are in document order"
        )


prepare_app.command("senteval")(senteval_command)
prepare_app.command("lint")(lint_command)
prepare_app.command("demo")(demo_command)
