from functools import partial
from typing import Annotated, Any

import typer

from simcse_cli.augment.options import AugmentOptions
from simcse_cli.commands.console import get_console
from simcse_cli.commands.options import input_argument, takes_settings
from simcse_cli.files.inputs import STDIO

app = typer.Typer()


@app.command("augment", no_args_is_help=True)
@takes_settings
def augment_command(
    source: Annotated[
        str,
        input_argument(
            metavar="INPUT", help="Sentences: text, CSV, TSV, JSONL or parquet; - is stdin."
        ),
    ],
    options: AugmentOptions,
) -> None:
    """Write `anchor,positive` rows, the positives being changed sentences.

    Each change depends only on the seed, the line number and the copy, so any number of workers
    writes the same file. `--preview` without `-o` writes nothing.

    simcse augment wiki.txt --method delete --rate 0.1 --preview 5
    simcse augment wiki.txt --method synonym -o pairs.csv --copies 2
    """
    if options.output is None and not options.preview:
        raise typer.BadParameter(
            "give a file with -o, or --preview N to only look", param_hint="--output"
        )
    from simcse_cli.augment.augment_file import augment_file
    from simcse_cli.augment.augmentations import needs_model, word_augmenter

    console = get_console()
    make_augmenter: Any = word_augmenter
    if needs_model(options):
        from simcse_cli.augment.language_model import model_augmenter

        make_augmenter = partial(model_augmenter, progress=console)
    show = partial(console.show_diffs, to_stderr=str(options.output) == STDIO)
    augment_file(source, options, make_augmenter, show=show, progress=console)
