from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from simcse_cli.commands.console import get_console
from simcse_cli.commands.options import OutputOptions, input_argument, takes_settings
from simcse_cli.data.demo_grammar import DemoSizes
from simcse_cli.errors import DataError
from simcse_cli.prepare import options as prepare_options
from simcse_cli.settings.config import pinned

app = typer.Typer(
    name="prepare",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Make training files from corpora, and check data.

    simcse prepare sentences wiki.txt -o sentences.txt --sample 1000000
    simcse prepare nli snli_train.jsonl multinli_train.jsonl -o nli.csv
    """,
)

InputsArgument = Annotated[
    list[str],
    input_argument(metavar="INPUT...", help="Files, - for stdin, or hf://OWNER/NAME@CONFIG:SPLIT."),
]


@app.command("sentences")
@takes_settings
def sentences_command(inputs: InputsArgument, options: prepare_options.SentenceOptions) -> None:
    """Write one sentence per line, for unsupervised training.

    Reads text, JSON Lines, CSV, TSV, parquet (also .gz) and Hub datasets in one pass with bounded
    memory.

    simcse prepare sentences wiki.txt -o sentences.txt --min-words 4 --sample 1000000
    """
    from simcse_cli.prepare.sentences import prepare_sentences

    _write(prepare_sentences, inputs, options)


@app.command("nli")
@takes_settings
def nli_command(inputs: InputsArgument, options: prepare_options.NliOptions) -> None:
    """Write triplets from natural language inference corpora, for supervised training.

    Reads SNLI, MNLI and ANLI as JSON Lines, TSV, parquet or Hub datasets, and SentEval's s1, s2 and
    labels files (name one of the three, or the folder). Each premise with positives and hard
    negatives gives one row with one of each, sampled; with `--hard-negative none` every positive
    pair is a row.

    simcse prepare nli snli_1.0_train.jsonl multinli_1.0_train.jsonl -o nli.csv
    """
    from simcse_cli.prepare.nli import prepare_nli

    _write(prepare_nli, inputs, options)


@app.command("pairs")
@takes_settings
def pairs_command(inputs: InputsArgument, options: prepare_options.PairOptions) -> None:
    """Write pairs from paraphrase and caption corpora.

    Recognises the layouts of QQP, MRPC, WikiAuto and ParaNMT (rows that are no paraphrases are left
    out), and reads any table with the columns anchor and positive, or with two columns and no
    header.

    With `--paraphrases` it finds the pairs itself: texts of one corpus whose vectors are close.

    simcse prepare pairs results_20130124.token --flickr30k -o pairs.csv --sample 200000

    simcse prepare pairs sentences.txt --paraphrases --model minilm -o paraphrases.csv
    """
    if options.paraphrases:
        from simcse_cli.prepare.mining import prepare_paraphrases as prepare
    else:
        from simcse_cli.prepare.pairs import prepare_pairs as prepare

    _write(prepare, inputs, options)


@app.command("hard-negatives")
@takes_settings
def hard_negatives_command(
    inputs: InputsArgument, options: prepare_options.HardNegativeOptions
) -> None:
    """Find a hard negative for each pair: a text near the anchor that is not one of its positives.

    The search covers the positives of all pairs, `--corpus` files, or a saved index. Memory hardly
    grows with the input, and `--resume` continues after a kill.

    simcse prepare hard-negatives pairs.csv -o triplets.csv --model minilm --margin 0.1
    """
    from simcse_cli.prepare.mining import prepare_hard_negatives

    _write(prepare_hard_negatives, inputs, options)


@app.command("duplicates")
@takes_settings
def duplicates_command(
    source: Annotated[str, input_argument(metavar="FILE", help="Texts, or a table with texts.")],
    options: prepare_options.DuplicateOptions,
) -> None:
    """Find the texts that repeat another one: exactly, nearly, or in meaning.

    Each duplicate is written with the row that it repeats, and their similarity. With `--keep` the
    file is written without its duplicates and with all its columns; `--against` compares with an
    older file as well.

    simcse prepare duplicates tickets.csv --id-column id -o duplicates.csv
    simcse prepare duplicates week.csv --against tickets.csv --keep first -o new.csv
    """
    from simcse_cli.prepare.duplicates import prepare_duplicates

    prepare_duplicates(source, options, get_console())


@app.command("neighbours")
@takes_settings
def neighbours_command(inputs: InputsArgument, options: prepare_options.NeighbourOptions) -> None:
    """Write pairs of neighbouring sentences from documents.

    Text must be in document order with a blank line between documents; in a table each row is a
    document. No pair crosses a document border. The Wikipedia file of SimCSE has its lines in
    random order: it does not work.

    simcse prepare neighbours books.txt -o next3.csv --next 3
    """
    from simcse_cli.prepare.neighbours import prepare_neighbours

    _write(prepare_neighbours, inputs, options)


def _write(
    prepare: Callable[..., None], inputs: Sequence[str], options: prepare_options.RowOptions
) -> None:
    """Call a function that makes rows from the inputs, with a writer for these rows."""
    from simcse_cli.prepare.rows import RowWriter

    count_tokens = _token_counter(options.tokenizer)
    prepare(inputs, options, RowWriter(options, get_console(), count_tokens))


def _token_counter(model: str | None) -> Callable[[Sequence[str]], list[int]] | None:
    """Return a function that counts the sub-words of each text, special tokens included.

    ``model`` names the model whose tokenizer is used; without a model there is no function.
    """
    if model is None:
        return None
    from simcse_cli.models.pretrained import load_tokenizer
    from simcse_cli.models.resolve import resolve_model

    tokenizer = load_tokenizer(resolve_model(model, get_console()))

    def count(texts: Sequence[str]) -> list[int]:
        encoding = tokenizer(list(texts), truncation=False, verbose=False)
        return list(map(len, encoding["input_ids"]))

    return count


@app.command("senteval")
@takes_settings
def senteval_command(options: prepare_options.SentevalOptions, outputs: OutputOptions) -> None:
    """Check a SentEval folder file by file: what is missing, cut or changed, and where to get it.

    Exit code 1 when anything differs from the published folder.

    simcse prepare senteval --data-dir senteval
    """
    from simcse_cli.prepare import senteval

    outputs.check()
    names = None if options.tasks is None else senteval.check_task_names(options.tasks)
    console = get_console()
    checks = senteval.check_senteval(
        options.data_dir, tasks=names, content=options.content, progress=console
    )
    outputs.show(senteval.senteval_outcome(options.data_dir, checks))
    senteval.require_published(options.data_dir, checks)


@app.command("lint")
@takes_settings
def lint_command(
    inputs: Annotated[
        list[str], input_argument(metavar="INPUT...", help="Training files, or - for stdin.")
    ],
    options: prepare_options.LintFileOptions,
    outputs: OutputOptions,
) -> None:
    """Check training files for common faults without changing them.

    Checks for empty and cut texts, control characters, wrong encoding, mixed languages, repeated
    pairs, swapped columns, and positives equal to their anchor or hard negative. With `--strict`
    every finding is an error, except a text that occurs in several rows.

    simcse prepare lint nli.csv --tokenizer minilm --max-length 32
    """
    from simcse_cli.prepare.lint import faults, lint_files, lint_outcome, list_findings

    outputs.check()
    count_tokens = _token_counter(options.tokenizer)
    linter = lint_files(inputs, options, count_tokens, get_console())
    outputs.show(lint_outcome(inputs, linter))
    if options.strict and (findings := faults(linter.findings())):
        hint = "correct the input, or leave out --strict"
        raise DataError(f"lint found {list_findings(findings)}", hint=hint)


@app.command("model")
@takes_settings
def model_command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Run folder, model folder, Hub name or alias.")
    ],
    options: prepare_options.ModelFolderOptions,
) -> None:
    """Write a model folder for sentence-transformers, transformers, ONNX Runtime and OpenVINO.

    The folder records the pooler, the head and the maximum length, and keeps the model card. Every
    installed library opens it once, and all must give the same vectors. Publish it with `hf upload
    NAME FOLDER`.

    simcse prepare model runs/first -o published --backend onnx --backend openvino
    simcse prepare model runs/first -o fast --backend onnx --quantize int8
    simcse prepare model princeton-nlp/sup-simcse-bert-base-uncased -o sup-simcse
    """
    from simcse_cli.models.export import export_model

    export_model(
        pinned(model, options.revision),
        options.output,
        pooler=options.pooler,
        template=options.template,
        force_pooler=options.force_pooler,
        backends=options.backend or (),
        quantize=options.quantize is not None,
        force=options.force,
        progress=get_console(),
    )


@app.command("demo")
@takes_settings
def demo_command(sizes: DemoSizes, options: prepare_options.DemoOptions) -> None:
    """Generate a small corpus with known meaning, so that every command runs without a network.

    Writes `sentences.txt`, `documents.txt`, `triplets.csv`, `nli.tsv` and, in the SentEval layout,
    `downstream/STS/STSBenchmark/sts-{train,dev,test}.csv`. Scores on it show that a pipeline works,
    not how good a model is.

    simcse prepare demo -o demo
    """
    from simcse_cli.data.demo import prepare_demo

    prepare_demo(
        options.output, sizes, seed=options.seed, force=options.force, progress=get_console()
    )
