from pathlib import Path
from typing import Annotated

import typer

from simcse_cli.commands.console import get_console
from simcse_cli.commands.options import input_argument, takes_settings
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.errors import UsageError
from simcse_cli.files.inputs import STDIO
from simcse_cli.settings.choices import TextPer
from simcse_cli.settings.config import pinned
from simcse_cli.settings.declare import words_of

app = typer.Typer()
# The options that ``analyze search`` needs as well: it reads the same texts, and has to encode
# queries in the same way.
_OF_SEARCH = (
    "column",
    "text",
    "header",
    "separator",
    "sheet",
    "encoding",
    "id_column",
    "pooler",
    "template",
    "force_pooler",
    "truncate_dim",
)


@app.command("encode")
@takes_settings
def encode_command(
    source: Annotated[
        str | None,
        input_argument(
            metavar="INPUT",
            help="One sentence a line, a table, a folder or 'glob' of either, or - for stdin.",
        ),
    ] = None,
    *,
    options: EncodeOptions,
) -> None:
    """Encode sentences: row i of the output is line i of the input.

    The files of a folder or glob are read in the order of their names. Memory does not grow with
    the input. A side file (OUTPUT.json) records the model, the pooler and digests. With `--update`
    only new and changed rows of a table with ids are encoded. With `--pairs` the input is a table
    of pairs, and the output has the columns sentence1, sentence2 and cosine, by default on stdout.

    simcse encode sentences.txt -o vectors.npy --model runs/first
    simcse encode corpus.txt -o corpus.npy --index corpus.index
    simcse encode week.csv --text '{subject} {body}' --id-column id -o corpus.parquet --update
    simcse encode queries.csv --column question -o - | head -3
    simcse encode pairs.csv --pairs
    simcse encode corpus/ -o corpus.npy --shard 3/16
    simcse encode --merge corpus.npy
    """
    console = get_console()
    if options.merge is not None:
        from simcse_cli.encoding.merge import merge_shards

        merge_shards(options.merge, source, force=options.force, progress=console)
        return
    if source is None:
        raise UsageError(
            "need an input: a file, a folder, a glob in quotes, or - for stdin", option="INPUT"
        )
    from simcse_cli.encoding.encode_file import encode_file

    output = options.output or STDIO
    index, is_like_input, column = encode_file(
        source, options, write=console.print_data, progress=console
    )
    ending = Path(output).suffix
    # A search reads vectors in these formats, but no texts that are whole files. It cannot compare
    # binary vectors by cosine, and does not post-process a query.
    can_read = ending in (".npy", ".npz", ".safetensors") and options.text_per is not TextPer.FILE
    can_search = can_read and options.dtype != "binary" and options.postprocess is None
    model = ["--model", pinned(options.model, options.revision)]

    # Suggest the command that usually follows.
    if index is not None:
        searched = ["--index", index, *model]
        console.next_step("simcse", "analyze", "search", *searched, "--interactive")
    elif options.shard is not None and ending:  # a folder has no ending, and may keep its parts
        console.next_step("simcse", "encode", "--merge", output)
    elif can_search and is_like_input and Path(source).is_file():
        typed = f"./{source}" if source.startswith("-") else source
        searched = [
            typed,
            *words_of(EncodeOptions, vars(options) | {"column": column}, _OF_SEARCH),
            *model,
            "--embeddings",
            output,
        ]
        console.next_step("simcse", "analyze", "search", *searched, "--interactive")
