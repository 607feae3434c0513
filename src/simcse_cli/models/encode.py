"""Encode sentences as vectors: prompts, windows of long texts, batches and devices."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, tee
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch

from simcse_cli.arrays import AnyFloats, Floats32
from simcse_cli.errors import CheckpointError, ConfigError
from simcse_cli.files.digests import encoder_digest
from simcse_cli.machine.precision import no_autocast
from simcse_cli.machine.processes import add_up, process_count, process_rank
from simcse_cli.machine.processor import CPU_CONSTANTS, cpu_kind
from simcse_cli.machine.threads import map_on_cores
from simcse_cli.machine.transfer import HostCopy
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.forward_config import read_entries
from simcse_cli.models.padding import TokenRows, token_batches
from simcse_cli.models.pretrained import weights_as_bytes
from simcse_cli.models.tokens import in_windows
from simcse_cli.packed.quantized import MOST_LEVELS, weight_levels
from simcse_cli.postprocess.unit_rows import unit_rows
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.choices import LongTexts, Pooler

GPU_BATCH_TOKENS = 32_768
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Usual names for the prompt of texts to be searched; an earlier name takes precedence."""
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Use:
    """How an encoder is used.

    Attributes:
        prompt: text before every text; None for the model's default.
        truncate_dim: how many components to keep; None for as many as the model records, or all.
        long: how to treat texts beyond the model's length.
    """

    prompt: str | None = None
    truncate_dim: int | None = None
    long: LongTexts = LongTexts.CUT


PLAIN = Use()


@dataclass(frozen=True)
class ReadyEncoder:
    """An encoder and how it is used; commands and the Python interface work with this pair."""

    model: SentenceEncoder
    use: Use = PLAIN

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def pooler(self) -> Pooler:
        return self.model.pooler

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def folder(self) -> Path | None:
        return self.model.folder

    @property
    def prompts(self) -> dict[str, str]:
        """The model's prompts by name."""
        return self.model.record.prompts

    @property
    def dim(self) -> int:
        """How many components are kept: as the user says, else as recorded, else all."""
        whole = self.model.dim
        return min(self.use.truncate_dim or self.model.record.truncate_dim or whole, whole)

    @property
    def prompt(self) -> str:
        """The prompt in use: that of the user, else the model's default, else an empty text."""
        return self._prompt_for()

    @property
    def query_prompt(self) -> str:
        """The prompt of search queries: the user's, else the model's for these, else ``prompt``."""
        return self._prompt_for("query")

    def _prompt_for(self, *names: str) -> str:
        """Return the user's prompt, else a prompt of the model, else an empty text.

        The prompt of the model is the first that it has of ``names``, else its default prompt.
        """
        if self.use.prompt is not None:
            return self.use.prompt
        record = self.model.record
        for name in (*names, record.default_prompt):
            if name in record.prompts:
                return record.prompts[name]
        return ""

    def document_prompt(self, chosen: str | None) -> str:
        """Return the prompt of the texts to be searched.

        ``chosen`` is a text or the name of a prompt of the model; None stands for the model's
        prompt for documents, else its default prompt.
        """
        if chosen is None:
            # Without ``self.use``, because its prompt is for queries.
            return ReadyEncoder(self.model)._prompt_for(*DOCUMENT_PROMPTS)
        return self.find_prompt(chosen)

    def find_prompt(self, prompt: str) -> str:
        """Return the model's prompt of this name, else ``prompt`` itself as a text.

        A single word that names no prompt raises a ConfigError.
        """
        return self.model.record.find_prompt(prompt, self.name)

    @property
    def variations(self) -> dict[str, Any]:
        """The settings that make vectors differ from those of the plain model.

        They are the prompt, the template, fewer components, windows of long texts, and fewer levels
        of int8 weights on older processors.
        """
        record = self.model.record
        variations: dict[str, Any] = {}
        if self.prompt:
            variations["prompt"] = self.prompt
            if not record.include_prompt:
                variations["include_prompt"] = False
        if record.template is not None:
            variations["template"] = record.template
        if record.subtracts_template:
            variations["subtracts_template"] = True
        if self.dim < self.model.dim:
            variations["truncate_dim"] = self.dim
        if self.use.long is not LongTexts.CUT:
            variations["long"] = self.use.long.value
        if self.model.matmul_dtype is torch.int8 and weight_levels() < MOST_LEVELS:
            variations["weight_levels"] = weight_levels()
        return variations

    @property
    def digest(self) -> str:
        """SHA-256 over all that the vectors depend on: equal digests give equal vectors.

        It covers the weights, the entries of the configuration that the forward pass reads, the
        tokenizer, the length, the pooler, the head and its use, normalisation and the variations.
        """
        model = self.model
        record = model.record
        variations = self.variations
        head_use = str(record.head_use)
        if model.head is not None and not model.head.tanh:
            head_use += " linear"
        settings = (model.pooler, head_use, record.normalize, model.tokens.max_length)
        parts: list[str | memoryview] = [
            "/".join(map(str, settings)),
            model.tokens.description,
            json.dumps(read_entries(model.config), sort_keys=True, default=str),
            json.dumps(variations, sort_keys=True) if variations else "",
        ]
        return encoder_digest(*parts, *weights_as_bytes(model))

    def digest_with(self, prompt: str) -> str:
        """Return ``digest`` with this prompt in place of the prompt in use."""
        return self._with_prompt(prompt).digest

    def facts(self, prompt: str) -> dict[str, str]:
        """Return what an index records about the encoder of its vectors.

        ``prompt`` is the one that the texts of the index were encoded with.
        """
        prompted = self._with_prompt(prompt)
        facts = {"model": self.name, "digest": prompted.digest, "pooler": self.pooler.value}
        return facts | {name: str(value) for name, value in prompted.variations.items()}

    def _with_prompt(self, prompt: str) -> Self:
        """Return the encoder with this prompt in use."""
        return replace(self, use=replace(self.use, prompt=prompt))

    def warn_unread(self, progress: Progress) -> None:
        self.model.tokens.warn_unread(progress)

    def warn_beyond(self, max_length: int, place: str, progress: Progress) -> None:
        """Warn if the model cannot read texts of this length; ``place`` begins the message."""
        most = self.model.tokens.max_length
        if max_length > most:
            progress.warn(
                f"{place}: {self.name} reads at most {most} sub-words, where longer texts are cut"
            )

    def unknown_texts(self, texts: Sequence[str]) -> list[int]:
        """Return the positions of the texts in which the model knows no sub-word."""
        return _Texts.read(self, texts, max_length=None).unknown

    def encode(
        self, sentences: Sequence[str], *, prompt: str | None = None, **how: Any
    ) -> Floats32:
        """Return one vector per sentence.

        ``prompt`` replaces the prompt in use. The other arguments are those of the function
        ``encode``.
        """
        encoder = self if prompt is None else self._with_prompt(prompt)
        return encode(self.model, sentences, encoder.use, **how)


def with_use(
    model: SentenceEncoder, *, prompt: str | None, truncate_dim: int | None, long: LongTexts | str
) -> ReadyEncoder:
    """Return the encoder with its prompt, its number of components and its way with long texts.

    ``prompt`` is a text, or the name of a prompt of the model.
    """
    if truncate_dim is not None and truncate_dim > model.dim:
        raise ConfigError(
            f"--truncate-dim {truncate_dim}: vectors of {model.name} have {model.dim} components"
        )
    prompt_text = None if prompt is None else model.record.find_prompt(prompt, model.name)
    return ReadyEncoder(model, Use(prompt_text, truncate_dim, LongTexts(long)))


def encode(
    model: SentenceEncoder,
    sentences: Sequence[str],
    use: Use = PLAIN,
    *,
    batch_tokens: int | None = None,
    max_length: int | None = None,
    normalize: bool = False,
    check_finite: bool = True,
    shared: bool = False,
    progress: Progress = SILENT,
) -> Floats32:
    """Return one vector per sentence, in evaluation mode and without gradient.

    Each distinct sentence is encoded once; sentences are sorted by length, so that little is
    padded. A sentence beyond ``max_length`` is cut. With ``LongTexts.MEAN``, it is split into
    consecutive windows instead, each with prompt and special tokens. Its vector is then the mean of
    the windows' vectors, weighted by their numbers of sub-words of text, and scaled to norm 1 if
    the model scales its vectors.

    Args:
        model: the encoder.
        sentences: any number of sentences; an empty one is encoded as its special tokens.
        use: prompt, number of components, treatment of long texts.
        batch_tokens: most tokens in one forward pass, padding included; None: the fastest number.
        max_length: most sub-words of a text; it can only lower the model's own limit.
        normalize: scale each vector to L2 norm 1 (zero vectors stay zero).
        check_finite: refuse vectors that are not finite; False if the caller checks them.
        shared: every process of the group must call this with the same sentences. Each encodes a
            share of the batches that a single process would make, and gets all vectors.
        progress: shown per sentence.

    Returns:
        ``(N, D)`` float32; row i belongs to ``sentences[i]``.
    """
    # Each distinct text has a number; ``inverse`` holds the number of each sentence's text.
    numbers: dict[str, int] = {}
    inverse = np.fromiter((numbers.setdefault(s, len(numbers)) for s in sentences), np.int64)
    distinct = list(numbers)
    encoder = ReadyEncoder(model, use)
    texts = _Texts.read(encoder, distinct, max_length)
    if texts.cut:
        n_cut = int(np.isin(inverse, texts.cut).sum())
        model.tokens.n_cut += n_cut
        progress.warn(model.tokens.cut_note(n_cut))
    if texts.unknown:
        n_unknown = int(np.isin(inverse, texts.unknown).sum())
        model.tokens.n_unknown += n_unknown
        progress.warn(model.tokens.unknown_note(n_unknown))

    # The forward passes, in evaluation mode.
    rows = model.template.around([*chain.from_iterable(texts.pieces)])
    vectors = np.zeros((len(rows), model.dim), dtype=np.float32)
    n_skipped = 0
    if encoder.prompt and not model.record.include_prompt:
        n_skipped = texts.frame[0]  # the tokens before the text, the prompt among them
    was_training = model.training
    model.eval()
    try:
        # The precision of the model holds, also where the caller's code is under autocast.
        with (
            no_autocast(model.device),
            torch.inference_mode(),
            progress.task("encoding", len(distinct)) as task,
        ):
            size = batch_tokens or _batch_tokens(model)
            for batch, batch_vectors in _batch_vectors(model, rows, size, n_skipped, shared):
                vectors[batch] = batch_vectors
                # Progress counts texts, and a text may have several rows.
                task.advance(len(batch) * len(distinct) / len(rows))
    finally:
        model.train(was_training)
    if shared:  # each process has filled its own rows, and the others are zero
        add_up(vectors)
    if check_finite:
        text_of_row: list[str] = []
        for text, pieces in zip(distinct, texts.pieces, strict=True):
            text_of_row += [text] * len(pieces)
        check_vectors(vectors, text_of_row, model.name)
    return _finished(vectors, texts, encoder, normalize, check_finite)[inverse]


def _finished(
    vectors: Floats32, texts: "_Texts", encoder: ReadyEncoder, normalize: bool, check_finite: bool
) -> Floats32:
    """Return a vector for each text: the mean of its windows, truncated and scaled as asked."""
    scaled = partial(unit_rows, dtype=np.float32, check_finite=check_finite)
    model = encoder.model
    if model.record.normalize:
        vectors = scaled(vectors)
    if len(vectors) > len(texts.pieces):  # some texts have several windows
        vectors = texts.means(vectors)
        if model.record.normalize:
            vectors = scaled(vectors)
    dim = encoder.dim
    vectors = vectors[:, :dim]
    # Whole vectors of a model that scales its vectors have length 1 already.
    if normalize and (dim < model.dim or not model.record.normalize):
        vectors = scaled(vectors)
    return vectors


def _batch_tokens(model: SentenceEncoder) -> int:
    """Return the number of tokens that is fastest in one forward pass."""
    if model.device.type == "cuda":
        return GPU_BATCH_TOKENS
    sizes = CPU_CONSTANTS[cpu_kind()].batch_tokens
    # A type without an entry has the number of float32.
    return sizes.get(model.matmul_dtype or torch.float32, sizes[torch.float32])


@dataclass(frozen=True)
class _Texts:
    """Sub-words of texts, each in one piece or in windows.

    Attributes:
        frame: how many tokens of each piece come before its text (with the prompt) and after it;
            zeros if nothing needs these numbers.
        pieces: one list of rows per text.
        cut: positions of the texts that were cut at the model's own length.
        unknown: positions of the texts in which no sub-word is known.
    """

    frame: tuple[int, int]
    pieces: list[list[list[int]]]
    cut: list[int]
    unknown: list[int]

    @classmethod
    def read(
        cls, encoder: ReadyEncoder, sentences: Sequence[str], max_length: int | None
    ) -> "_Texts":
        """Return the sub-words of each sentence with the prompt before it.

        With ``LongTexts.MEAN``, a text beyond the limit is cut into windows; otherwise its end is
        left out. ``max_length`` may lower the model's own limit.
        """
        prompt = encoder.prompt
        tokens = encoder.model.tokens
        limit = min(max_length or tokens.max_length, tokens.max_length)
        has_windows = encoder.use.long is LongTexts.MEAN
        frame = (0, 0)
        if prompt or has_windows:
            frame = tokens.frame(prompt, limit)
        texts = encoder.model.template.texts([prompt + sentence for sentence in sentences])
        rows = tokens.ids(texts, limit)
        # Texts beyond the limit get windows, or the user is warned of them. A caller that asks for
        # a lower limit than the model's own gets no warning.
        uncut_by_position: dict[int, list[int]] = {}
        if has_windows or limit == tokens.max_length:
            uncut_by_position = tokens.longer_than(limit, texts, rows)
        pieces = [[row] for row in rows]
        cut = [] if has_windows else list(uncut_by_position)
        if has_windows:
            for position, ids in uncut_by_position.items():
                rows[position] = ids  # a text is unknown only if all of its windows are
                pieces[position] = in_windows(ids, frame, limit)
        return cls(frame, pieces, cut=cut, unknown=tokens.without_known(rows, frame))

    def means(self, vectors: Floats32) -> Floats32:
        """Return, for each text, the mean of the vectors of its pieces.

        A piece has as its weight the number of its sub-words of the text, without prompt and
        special ones. The vector of a single piece stays as it is.
        """
        n_around = sum(self.frame)
        means = np.empty((len(self.pieces), vectors.shape[1]), dtype=np.float32)
        start = 0
        for position, pieces in enumerate(self.pieces):
            rows = vectors[start : start + len(pieces)]
            start += len(pieces)
            if len(pieces) == 1:
                means[position] = rows[0]
                continue
            weights = [len(piece) - n_around for piece in pieces]
            means[position] = np.average(rows, axis=0, weights=weights)
        return means


def _batch_vectors(
    model: SentenceEncoder, rows: TokenRows, batch_tokens: int, n_skipped: int, shared: bool
) -> Iterator[tuple[list[int], Floats32]]:
    """Yield, batch by batch, the positions of its rows and their vectors ``(n_rows, D)``.

    The longest rows come first. Pooling leaves out the first ``n_skipped`` tokens of each row. With
    ``shared``, this process computes only its share of the batches.
    """

    @torch.inference_mode()
    def vectors(batch: list[int]) -> HostCopy:
        return HostCopy(model.embed_rows([rows[i] for i in batch], n_skipped=n_skipped).float())

    is_packed = model.prepare()
    lengths = [len(row) for row in rows]
    # A model that reads padding gets only rows of one length in a batch, which need none.
    batches = list(
        token_batches(lengths, batch_tokens, padded=not is_packed, alike=model.reads_padding)
    )
    if shared:
        batches = batches[process_rank() :: process_count()]
    # The cores of a CPU share packed batches; a GPU computes one while the one before it is read.
    if is_packed and model.device.type == "cpu":
        copies = map_on_cores(vectors, batches)
    else:
        copies = one_behind(map(vectors, batches))
    for batch, copy in zip(batches, copies, strict=True):
        yield batch, copy.arrived().numpy()


def one_behind(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield items one step late, so that the GPU computes one while the caller reads another."""
    late, ahead = tee(items)
    next(ahead, None)
    for item in late:
        next(ahead, None)  # starts the next item before the caller gets this one
        yield item


def check_vectors(vectors: AnyFloats, sentences: Sequence[str], name: str) -> None:
    """Raise CheckpointError if one of the vectors, ``(N, D)``, is not finite.

    The message names the first sentence that has such a vector.
    """
    is_finite = np.isfinite(vectors).all(axis=1)
    if not is_finite.all():
        first = int(is_finite.argmin())  # the first False
        raise CheckpointError(
            f"{name}: the vectors of {int((~is_finite).sum()):,} of {len(vectors):,} sentences "
            f"are not finite, first that of {sentences[first][:80]!r}",
            hint="its weights are damaged or too large for this arithmetic: try --precision fp32",
        )
