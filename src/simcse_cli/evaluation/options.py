"""What users choose about an evaluation; a light module, read for `--help`."""

from dataclasses import dataclass
from pathlib import Path

from simcse_cli.config import ModelOptions
from simcse_cli.settings import setting

_WORDS, _VECTORS, _POSTPROCESS = "Word vectors", "Vectors from elsewhere", "Post-processing"


@dataclass(frozen=True)
class EncoderOptions(ModelOptions):
    """Which encoder is judged and what is done to its vectors."""

    vectors: Path | None = setting(
        None, "GloVe, word2vec or fastText text file: average its vectors instead of --model.", group=_WORDS
    )
    sif_counts: Path | None = setting(
        None,
        "File of `word count` lines: weigh --vectors by SIF; see --postprocess sif.",
        group=_WORDS,
    )
    bilstm: Path | None = setting(None, "InferSent checkpoint to run over --vectors.", group=_WORDS)
    embeddings: Path | None = setting(
        None, ".npy, .npz or .safetensors: row i is line i of --sentences.", group=_VECTORS
    )
    sentences: Path | None = setting(None, "The sentences of --embeddings, one per line.", group=_VECTORS)
    postprocess: str | None = setting(
        None,
        "whitening[:DIMENSIONS], flow[:EPOCHS], all-but-the-top[:DIRECTIONS] or sif[:DIRECTIONS], "
        "each with --fit; or a saved file.",
        group=_POSTPROCESS,
        metavar="NAME[:N]|FILE",
    )
    fit: str | None = setting(
        None,
        "What it is fitted on, labels unread: NLI pairs below --data-dir, the scored STS task, or "
        "the sentences or pairs of a file.",
        group=_POSTPROCESS,
        metavar="nli|target|FILE",
    )
    fit_sample: int | None = setting(
        None, "Fit on this many sentences or pairs, drawn at random.", group=_POSTPROCESS, min=2
    )
    fit_seed: int = setting(42, "Seed of the draw and of the flow.", group=_POSTPROCESS)
    save_postprocess: Path | None = setting(
        None,
        "Keep the fitted one (.safetensors) for `simcse encode --postprocess FILE`.",
        group=_POSTPROCESS,
    )
