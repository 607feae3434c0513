"""The `prepare` command: one sub-command for each kind of training file, and checks of data folders."""

from pathlib import Path
from typing import Annotated

import typer

from simcse_cli.commands._options import ForceOption, SeedOption
from simcse_cli.console import get_console

prepare_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Make training files from corpora, and check data folders.",
)


def register(app: typer.Typer) -> None:
    """Add `prepare` to the application."""
    app.add_typer(prepare_app, name="prepare")


@prepare_app.command("demo")
def demo_command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to; created when missing.")],
    sentences: Annotated[int, typer.Option(min=1, max=100_000, help="Unlabelled sentences.")] = 4000,
    triplets: Annotated[
        int, typer.Option(min=1, max=100_000, help="Triplets; NLI has three rows each.")
    ] = 2000,
    pairs: Annotated[
        int, typer.Option(min=4, max=100_000, help="Graded pairs, dev and test get a quarter.")
    ] = 2000,
    documents: Annotated[
        int, typer.Option(min=1, max=10_000, help="Short stories, in document order.")
    ] = 200,
    seed: SeedOption = 42,
    force: ForceOption = False,
) -> None:
    """Generate a small corpus with known meaning, so that everything runs without a network.

    Writes `sentences.txt`, `documents.txt`, `triplets.csv`, `nli.tsv` and, in the SentEval layout,
    `downstream/STS/STSBenchmark/sts-{train,dev,test}.csv`. Scores on it say that a pipeline works, not how good a
    model is.
    """
    prepare_demo(
        output,
        sentences=sentences,
        triplets=triplets,
        pairs=pairs,
        documents=documents,
        seed=seed,
        force=force,
    )


def prepare_demo(
    output: Path,
    *,
    sentences: int = 4000,
    triplets: int = 2000,
    pairs: int = 2000,
    documents: int = 200,
    seed: int = 42,
    force: bool = False,
) -> dict[Path, int]:
    """Write the demo corpus with its manifest; return its files with their row counts."""
    from simcse_cli.data.demo_corpus import DemoSizes, build_demo_corpus, write_demo_corpus
    from simcse_cli.data.manifest import build_manifest
    from simcse_cli.files import write_json

    sizes = DemoSizes(sentences=sentences, triplets=triplets, pairs=pairs, documents=documents)
    files = write_demo_corpus(build_demo_corpus(sizes, seed=seed), output, force=force)
    manifest = build_manifest("demo", inputs=[], outputs=files.items(), settings=vars(sizes), seed=seed)
    write_json(output / "manifest.json", manifest)
    console = get_console()
    for path, count in files.items():
        console.info(f"{path}: {count:,} rows")
    console.info(
        f"next: simcse train --mode unsup --train-file {output / 'sentences.txt'} --model minilm "
        f"--dev-file {output / 'downstream/STS/STSBenchmark/sts-dev.csv'} -o RUN"
    )
    return files
