"""`simcse encode`: sentences to vectors."""

from pathlib import Path
from typing import Annotated

import typer

from simcse_cli.commands.options import takes
from simcse_cli.console import get_console
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.files import STDIO


def register(app: typer.Typer) -> None:
    """Add `encode` to the application."""
    app.command("encode")(encode_command)


@takes("options", EncodeOptions)
def encode_command(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="One sentence a line, a table, or - for stdin.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Vectors: .npy, .npz, .safetensors, .parquet or .jsonl; - prints JSONL.",
        ),
    ] = None,
    *,
    options: EncodeOptions,
) -> None:
    """Encode sentences: row i of the output is line i of the input.

    Memory does not grow with the input. A side file (OUTPUT.json) records model, pooler and digests. With
    `--pairs` the input is a table of pairs, and the output is this table with cosines, on stdout by default.

    simcse encode sentences.txt -o vectors.npy --model runs/first
    simcse encode corpus.txt -o corpus.npy --index corpus.index
    simcse encode queries.csv --column question -o - | head -3
    simcse encode pairs.csv --pairs
    """
    from simcse_cli.encoding.encode_file import encode_file

    console = get_console()
    encode_file(source, output, options, write=console.print_data, progress=console)
    if options.index is not None:
        console.next_step("simcse", "analyze", "search", "--index", options.index, "--interactive")
    elif output is not None and output.suffix in (".npy", ".npz", ".safetensors") and source != STDIO:
        searched = ("--model", options.model, "--embeddings", output, "--interactive")
        console.next_step("simcse", "analyze", "search", source, *searched)
