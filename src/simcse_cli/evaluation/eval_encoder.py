"""The encoder under evaluation: a model, word vectors, or a file of vectors."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simcse_cli.errors import DataError, OutputError
from simcse_cli.evaluation.embedding_cache import Embeddings
from simcse_cli.evaluation.options import EncoderOptions
from simcse_cli.files.atomic import write_json
from simcse_cli.files.digests import encoder_digest
from simcse_cli.machine.precision import resolve_precision
from simcse_cli.models.bilstm_max import BiLstmMax
from simcse_cli.models.card import update_cards
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.models.encode import ReadyEncoder, check_vectors
from simcse_cli.models.precomputed import PrecomputedVectors
from simcse_cli.models.resolve import commit_of
from simcse_cli.models.word_vectors import WordAverage, WordVectors, read_word_frequencies
from simcse_cli.postprocess.registry import FittedPostProcessor, check_encoder
from simcse_cli.progress import Progress
from simcse_cli.results.runs import RESULTS, is_run, read_run_record, result_name
from simcse_cli.settings.choices import LongTexts, Precision


@dataclass(frozen=True)
class EvalEncoder:
    """An encoder that is ready for evaluation.

    Attributes:
        name: what tables show.
        pooler: only models have one.
        digest: covers everything that determines the vectors, except the precision.
        dim: the width of the vectors.
        precision: that of a model; fp32 for vectors from a file.
        encode: maps sentences to vectors. If there are ``prompts``, it also takes a ``prompt``.
        postprocess: describes a post-processor, if there is one.
        variations: how the vectors differ from those of the plain model (prompt, dimensions, long
            texts).
        prompts: the texts of the model's prompts by name; none if the user chose a prompt.
        commit: the commit of a model from the Hub, if it is used unchanged and in fp32.
    """

    name: str
    pooler: str | None
    digest: str
    dim: int
    precision: Precision
    encode: Callable[..., Embeddings]
    postprocess: dict[str, Any] | None = None
    variations: dict[str, Any] = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None

    @property
    def cache_key(self) -> str:
        """A text that differs for any two encoders with different vectors."""
        return f"{self.digest}/{self.precision}"

    def facts(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "model_digest": self.digest,
            "pooler": self.pooler,
            "precision": self.precision.value,
            "postprocess": self.postprocess,
            **self.variations,
        }

    def then(self, fitted: FittedPostProcessor, label: str) -> "EvalEncoder":
        """Return the encoder followed by a fitted post-processor, which ``label`` names."""
        check_encoder(fitted, dim=self.dim, digest=self.digest, place=label)

        def encode(sentences: Sequence[str], **options: Any) -> Embeddings:
            vectors = fitted.apply(self.encode(sentences, **options))
            check_vectors(vectors, sentences, label)
            return vectors

        return replace(
            self,
            name=f"{self.name} + {label}",
            digest=encoder_digest(self.digest, "/", fitted.digest),
            dim=fitted.processor.n_features_out,
            encode=encode,
            postprocess=fitted.describe(),
            commit=None,
        )


def keep_in_run(options: EncoderOptions, result: Mapping[str, Any], progress: Progress) -> None:
    """If a run folder was evaluated, save the result in it, and update its model cards.

    The result replaces an earlier one with the same settings. If the folder is not writable, there
    is a warning.
    """
    run_dir = Path(options.model)
    if not (options.has_model and is_run(run_dir)):
        return
    path = run_dir / RESULTS / f"{result_name(result, read_run_record(run_dir).pooler)}.json"
    try:
        write_json(path, result)
        progress.info(f"kept {path}")
    except OutputError as error:
        progress.warn(f"the result was not saved in the run: {error.message}")
    try:
        update_cards(run_dir, progress)
    except DataError as error:
        progress.warn(f"the model cards were not updated: {error.message}")


def open_encoder(options: EncoderOptions, progress: Progress) -> EvalEncoder:
    """Open what the options name: a file of vectors, word vectors, or a model."""
    opened: PrecomputedVectors | BiLstmMax | WordAverage
    if options.embeddings is not None and options.sentences is not None:
        opened = PrecomputedVectors(options.embeddings, options.sentences)
    elif options.vectors is not None:
        words = WordVectors(options.vectors, progress=progress)
        if options.bilstm is not None:
            opened = BiLstmMax(options.bilstm, words)
        elif options.sif_counts is not None:
            opened = WordAverage(words, read_word_frequencies(options.sif_counts))
        else:
            opened = WordAverage(words)
    else:
        return open_model(load_for_encoding(options.model, options, progress), options, progress)
    progress.detail(f"{opened.name}: {opened.dim} dimensions")
    # Only models have a pooler, and precisions other than fp32.
    encode = functools.partial(opened.encode, progress=progress)
    return EvalEncoder(opened.name, None, opened.digest, opened.dim, Precision.FP32, encode)


def open_model(model: ReadyEncoder, options: EncoderOptions, progress: Progress) -> EvalEncoder:
    """Return a loaded model as an encoder under evaluation."""
    encode = functools.partial(model.encode, batch_tokens=options.batch_tokens, progress=progress)

    # A commit stands for the vectors only if the Hub model is used with its default settings.
    changes = (options.pooler, options.prompt, options.truncate_dim)
    is_unchanged = changes == (None, None, None) and options.long is LongTexts.CUT
    precision = resolve_precision(options.precision, model.device)
    commit = None
    if model.folder is not None and is_unchanged and precision is Precision.FP32:
        commit = commit_of(model.folder)

    # A prompt that the user chose is applied to all texts, in place of the model's prompts.
    prompts: Mapping[str, str] = {}
    if model.use.prompt is None:
        prompts = model.prompts
    return EvalEncoder(
        model.name,
        model.pooler,
        model.digest,
        model.dim,
        precision,
        encode,
        variations=model.variations,
        prompts=prompts,
        commit=commit,
    )
