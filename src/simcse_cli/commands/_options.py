"""Option types that several commands share, so that a flag reads the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

from simcse_cli.names import Device, OutputFormat, Pooler, Precision

MODEL_HELP = (
    "Run folder, Hugging Face or sentence-transformers folder, Hub name, or alias "
    "(minilm, bert-base, roberta-base, unsup-simcse, sup-simcse, ...)."
)

DEFAULT_MODEL = "minilm"

ModelOption = Annotated[str, typer.Option("--model", "-m", envvar="SIMCSE_MODEL", help=MODEL_HELP)]
ModelsOption = Annotated[
    list[str], typer.Option("--model", "-m", envvar="SIMCSE_MODEL", help=MODEL_HELP + " Repeat to compare.")
]
PoolerOption = Annotated[
    Pooler | None,
    typer.Option("--pooler", help="How token states become a vector; default: what the model records."),
]
ForcePoolerOption = Annotated[
    bool,
    typer.Option(
        "--force-pooler", help="Use --pooler although the model records another or lacks its weights."
    ),
]
DeviceOption = Annotated[Device, typer.Option("--device", envvar="SIMCSE_DEVICE", help="Where to compute.")]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        "--precision", envvar="SIMCSE_PRECISION", help="Arithmetic of the encoder; auto picks the fastest."
    ),
]
BatchTokensOption = Annotated[
    int | None,
    typer.Option("--batch-tokens", min=16, help="Tokens per forward pass; default: tuned to the machine."),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="SIMCSE_DATA",
        help="SentEval folder (the one that holds `downstream/`); default: the generated demo corpus.",
    ),
]
FormatOption = Annotated[
    OutputFormat, typer.Option("--format", "-f", help="How results are written to stdout.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Also write the results to this file.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite existing outputs.")]
SeedOption = Annotated[int, typer.Option("--seed", envvar="SIMCSE_SEED", help="Seed of everything random.")]
