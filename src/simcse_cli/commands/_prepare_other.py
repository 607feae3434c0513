"""The kinds of `prepare` that take no corpus: checks of folders and files, and the demo corpus."""

from pathlib import Path
from typing import Annotated

import typer

from simcse_cli.choices import OutputFormat
from simcse_cli.commands._row_options import EncodingOption, MaxLengthOption, StrictOption, TokenizerOption
from simcse_cli.commands.options import ForceOption, FormatOption, OutputOption, SeedOption
from simcse_cli.console import get_console


def senteval_command(
    data_dir: Annotated[
        Path,
        typer.Option("--data-dir", envvar="SIMCSE_DATA", help="SentEval folder (it holds `downstream/`)."),
    ],
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Check only the files of these tasks, for example STS12,MR.")
    ] = None,
    content: Annotated[
        bool,
        typer.Option(help="Compare contents too, not only line counts."),
    ] = True,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Check a SentEval folder file by file: what is missing, cut or changed, and where to get it.

    Exit code 1 when anything differs from the published folder.
    """
    from simcse_cli.commands._prepare_checks import check_senteval_folder

    check_senteval_folder(data_dir, tasks=tasks, content=content, fmt=fmt, output=output, force=force)


def lint_command(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Training files, or - for stdin.")],
    tokenizer: TokenizerOption = None,
    max_length: MaxLengthOption = 32,
    strict: StrictOption = False,
    encoding: EncodingOption = "utf-8",
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Look for what is wrong with training files; changes nothing.

    Checks for empty and cut texts, control characters, wrong encoding, mixed languages, repeated pairs,
    swapped columns, and positives equal to their anchor or hard negative. With `--strict` any of it is an
    error.

    simcse prepare lint nli.csv --tokenizer minilm --max-length 32
    """
    from simcse_cli.commands._prepare_checks import lint_files

    lint_files(
        inputs,
        tokenizer=tokenizer,
        max_length=max_length,
        strict=strict,
        encoding=encoding,
        fmt=fmt,
        output=output,
        force=force,
    )


def demo_command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to; created when missing.")],
    sentences: Annotated[int, typer.Option(min=1, max=100_000, help="Unlabelled sentences.")] = 4000,
    triplets: Annotated[
        int, typer.Option(min=1, max=100_000, help="Triplets, and three NLI rows of each.")
    ] = 2000,
    pairs: Annotated[int, typer.Option(min=4, max=100_000, help="Graded pairs of all splits.")] = 2000,
    documents: Annotated[
        int, typer.Option(min=1, max=10_000, help="Short stories, in document order.")
    ] = 200,
    seed: SeedOption = 42,
    force: ForceOption = False,
) -> None:
    """Generate a small corpus with known meaning, so that everything runs without a network.

    Writes `sentences.txt`, `documents.txt`, `triplets.csv`, `nli.tsv` and, in the SentEval layout,
    `downstream/STS/STSBenchmark/sts-{train,dev,test}.csv`. Scores on it say that a pipeline works, not how
    good a model is.
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
    from simcse_cli.data.manifest import build_manifest
    from simcse_cli.files import write_json
    from simcse_cli.prepare.demo_corpus import DemoSizes, build_demo_corpus, write_demo_corpus

    sizes = DemoSizes(sentences=sentences, triplets=triplets, pairs=pairs, documents=documents)
    files = write_demo_corpus(build_demo_corpus(sizes, seed=seed), output, force=force)
    manifest = build_manifest(
        "demo", inputs=[], folder=output, outputs=files.items(), settings=vars(sizes), seed=seed
    )
    write_json(output / "manifest.json", manifest)
    console = get_console()
    for path, count in files.items():
        console.info(f"{path}: {count:,} rows")
    console.info(
        f"next: simcse train --mode unsup --train-file {output / 'sentences.txt'} --model minilm "
        f"--dev-file {output / 'downstream/STS/STSBenchmark/sts-dev.csv'} -o RUN"
    )
    return files
