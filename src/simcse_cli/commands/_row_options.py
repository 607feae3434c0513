"""The options that every kind of row takes on its way into a file, declared once for all sub-commands."""

import codecs
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from simcse_cli.choices import Dedup
from simcse_cli.commands.options import ForceOption, SeedOption
from simcse_cli.prepare.options import RefineOptions


@dataclass(frozen=True)
class RowOptions:
    """Where rows go and what happens to them, as the user asked.

    Attributes:
        output: file, or ``-`` for stdout.
        refine: filters and sampling.
        leak_dir: SentEval folder whose sentences are looked for.
        leak_near: look for near occurrences too.
        drop_leaks: drop the rows that hold one.
        tokenizer: model whose sub-words lint counts; None leaves that check out.
        max_length: most sub-words that training will keep.
        encoding: of text inputs.
        force: overwrite the output.
    """

    output: Path
    refine: RefineOptions
    leak_dir: Path | None = None
    leak_near: bool = False
    drop_leaks: bool = False
    tokenizer: str | None = None
    max_length: int = 32
    encoding: str = "utf-8"
    force: bool = False


def _known_encoding(name: str) -> str:
    try:
        codecs.lookup(name)
    except LookupError:
        raise typer.BadParameter(
            f"unknown encoding {name!r}; for example utf-8, latin-1, cp1252, gb18030"
        ) from None
    return name


TokenizerOption = Annotated[
    str | None,
    typer.Option(
        "--tokenizer", help="Model whose sub-words are counted, to report texts that training cuts."
    ),
]
MaxLengthOption = Annotated[
    int, typer.Option("--max-length", min=3, help="Sub-words that training will keep.")
]
EncodingOption = Annotated[
    str, typer.Option("--encoding", callback=_known_encoding, help="Encoding of text inputs.")
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Fail when lint finds anything.")]


def row_options(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="File to write (.txt, .csv, .tsv, .jsonl, also .gz); - is stdout."
        ),
    ],
    sample: Annotated[
        int | None, typer.Option(min=1, help="Draw this many rows at random after filtering.")
    ] = None,
    keep_order: Annotated[
        bool, typer.Option("--keep-order", help="Keep a sample in the order of the input.")
    ] = False,
    min_words: Annotated[
        int | None, typer.Option(min=1, help="Drop rows with a text of fewer words.")
    ] = None,
    max_words: Annotated[int | None, typer.Option(min=1, help="Drop rows with a text of more words.")] = None,
    dedup: Annotated[
        Dedup | None,
        typer.Option(
            help="Drop repeated rows: exact (but for case, spacing, punctuation) or near (MinHash) ones."
        ),
    ] = None,
    near_threshold: Annotated[
        float,
        typer.Option(min=0.3, max=1.0, help="Share of words and word pairs that near texts have in common."),
    ] = RefineOptions.near_threshold,
    check_leak: Annotated[
        Path | None,
        typer.Option("--check-leak", help="SentEval folder: report its sentences that occur in the rows."),
    ] = None,
    leak_near: Annotated[
        bool, typer.Option("--leak-near", help="Look for near occurrences (MinHash) too.")
    ] = False,
    drop_leaks: Annotated[
        bool, typer.Option("--drop-leaks", help="Drop the rows that --check-leak finds.")
    ] = False,
    tokenizer: TokenizerOption = None,
    max_length: MaxLengthOption = RowOptions.max_length,
    strict: StrictOption = False,
    encoding: EncodingOption = RowOptions.encoding,
    seed: SeedOption = 42,
    force: ForceOption = False,
) -> RowOptions:
    """Return the options as one object; the signature is what the command line shows."""
    refine = RefineOptions(
        min_words=min_words,
        max_words=max_words,
        dedup=dedup,
        near_threshold=near_threshold,
        sample=sample,
        keep_order=keep_order,
        seed=seed,
        strict=strict,
    )
    return RowOptions(
        output=output,
        refine=refine,
        leak_dir=check_leak,
        leak_near=leak_near,
        drop_leaks=drop_leaks,
        tokenizer=tokenizer,
        max_length=max_length,
        encoding=encoding,
        force=force,
    )


def takes_row_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command with the parameter ``options: RowOptions`` take all of them on the command line."""
    shared = inspect.signature(row_options).parameters
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]
    hints = get_type_hints(command, include_extras=True) | get_type_hints(row_options, include_extras=True)

    @wraps(command)
    def with_options(**values: Any) -> None:
        options = row_options(**{name: values.pop(name) for name in shared})
        command(options=options, **values)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *shared.values())]
    del with_options.__wrapped__  # Typer would look through it at the signature without the shared options.
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: hints[p.name] for p in parameters} | {"return": None}
    return with_options
