from pathlib import Path
from typing import Annotated

import typer

from simcse_cli.commands.console import get_console
from simcse_cli.commands.options import input_argument, takes_settings
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.files.inputs import STDIO
from simcse_cli.settings.config import pinned

app = typer.Typer()


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
    from simcse_cli.encoding.encode_file import encode_file

    console = get_console()
    output = options.output or STDIO
    encode_file(source, options, write=console.print_data, progress=console)
    ending = Path(output).suffix
    # Suggest the command that usually follows. Binary vectors cannot be searched by cosine.
    can_search = ending in (".npy", ".npz", ".safetensors") and options.dtype != "binary"
    if options.index is not None:
        console.next_step("simcse", "analyze", "search", "--index", options.index, "--interactive")
    elif options.shard is not None and ending:
        console.next_step("simcse", "encode", "--merge", output)
    elif can_search and source is not None and Path(source).is_file():
        searched = [source]
        if options.text is not None:
            searched += ["--text", options.text]
        elif options.column is not None:
            searched += ["--column", options.column]
        searched += ["--model", pinned(options.model, options.revision), "--embeddings", output]
        console.next_step("simcse", "analyze", "search", *searched, "--interactive")
