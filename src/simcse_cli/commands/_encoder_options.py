"""The options that say which encoder `simcse eval` judges and what is done to its vectors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from simcse_cli.choices import Device, Precision
from simcse_cli.commands import options as opt
from simcse_cli.commands._grouped_options import takes

_WORDS, _VECTORS, _POSTPROCESS = "Word vectors", "Vectors from elsewhere", "Post-processing"


@dataclass(frozen=True)
class EncoderOptions:
    """The encoder that was asked for: a model, word vectors or a file of vectors, then a post-processor."""

    model: opt.ModelOption = opt.DEFAULT_MODEL
    pooler: opt.PoolerOption = None
    force_pooler: opt.ForcePoolerOption = False
    device: opt.DeviceOption = Device.AUTO
    precision: opt.PrecisionOption = Precision.FP32
    batch_tokens: opt.BatchTokensOption = None
    vectors: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_WORDS,
            help="GloVe, word2vec or fastText text file: average its vectors instead of --model.",
        ),
    ] = None
    sif_counts: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_WORDS,
            help="File of `word count` lines: weigh --vectors by SIF; see --postprocess sif.",
        ),
    ] = None
    bilstm: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_WORDS, help="InferSent checkpoint to run over --vectors."),
    ] = None
    embeddings: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_VECTORS, help=".npy, .npz or .safetensors: row i is line i of --sentences."
        ),
    ] = None
    sentences: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_VECTORS, help="The sentences of --embeddings, one per line."),
    ] = None
    postprocess: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_POSTPROCESS,
            metavar="NAME[:N]|FILE",
            help="whitening[:DIMENSIONS], flow[:EPOCHS], all-but-the-top[:DIRECTIONS] or sif[:DIRECTIONS], "
            "each with --fit; or a saved file.",
        ),
    ] = None
    fit: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_POSTPROCESS,
            metavar="nli|target|FILE",
            help="What it is fitted on, labels unread: NLI pairs below --data-dir, the scored STS task, or "
            "the sentences or pairs of a file.",
        ),
    ] = None
    fit_sample: Annotated[
        int | None,
        typer.Option(
            min=2, rich_help_panel=_POSTPROCESS, help="Fit on this many sentences or pairs, drawn at random."
        ),
    ] = None
    fit_seed: Annotated[
        int, typer.Option(rich_help_panel=_POSTPROCESS, help="Seed of the draw and of the flow.")
    ] = 42
    save_postprocess: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_POSTPROCESS,
            help="Keep the fitted one (.safetensors) for `simcse encode --postprocess FILE`.",
        ),
    ] = None


takes_encoder_options = takes("encoder", EncoderOptions)
