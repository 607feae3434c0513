"""The base of training objectives.

An objective makes examples from data, batches from examples, and losses from batches.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from simcse_cli.errors import ConfigError
from simcse_cli.machine.transfer import to_device
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.padding import PaddedRows, TokenRows
from simcse_cli.models.pretrained import MlmHead
from simcse_cli.settings.choices import HeadUse, ServedEncoder
from simcse_cli.settings.declare import setting

Representations = tuple[Tensor, ...]
"""What ``encode`` returns: tensors with rows in the order of the batch's rows."""

Losses = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Terms that add up to the loss, and metrics that are only logged.

All of them are scalar tensors: reading their values would wait for the device.
"""


class DataKind(StrEnum):
    ROWS = "rows"  # one to three columns: anchor, positive, hard_negative
    LABELLED = "labelled"  # anchor, positive, label
    SCORED = "scored"  # left, right, score
    DOCUMENTS = "documents"  # sentences in order, a blank line between documents


@dataclass(frozen=True)
class ObjectiveOptions:
    """The options of every objective; an option that has a flag is not set by ``--set``."""

    max_length: int = setting(32, "Sub-words per text, including special ones.", "--max-length")


@dataclass(frozen=True)
class Examples:
    """The examples of one epoch.

    ``files`` has, for each training file, its number of examples and its passes per epoch. It is
    empty if there is one file, with one pass. If ``are_rows`` is true, example i is row i of the
    data, so what is known of rows, such as which of them share texts, holds for examples.
    """

    items: Sequence[Any]
    files: Sequence[tuple[int, float]] = ()
    are_rows: bool = False

    def __len__(self) -> int:
        return len(self.items)


@dataclass
class Batch:
    """Token ids of all texts of a step, view by view; or a chunk of them.

    A chunk has its own ``rows`` and ``offset``. Its other fields are those of the whole batch.

    Attributes:
        rows: token ids with special tokens, one row for each text: all texts of view 1, then all of
            view 2, and so on.
        n_examples: the number of examples of this process.
        texts: the texts in words, one tuple of views per example.
        extra: further input of the objective's loss.
        offset: the position of the first of ``rows`` in the whole batch; 0 unless this is a chunk.
        counts: the number of examples of each process, in rank order; empty if not known.
    """

    rows: TokenRows
    n_examples: int
    texts: Sequence[tuple[str, ...]] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    offset: int = 0
    counts: Sequence[int] = ()

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.rows))

    @property
    def n_sentences(self) -> int:
        """The number of distinct texts of each example, summed over the examples.

        A sentence that is its own positive counts as one text, a triplet as three.
        """
        # ``texts`` may have more views than the encoder reads.
        n_views = len(self.rows) // self.n_examples
        return sum(len(set(views[:n_views])) for views in self.texts)

    def prepacked(self, encoder: SentenceEncoder) -> "Batch":
        """Return the batch with its rows in the form in which ``encoder`` reads them.

        For a GPU, the tensors are put into pinned memory, which the GPU can copy without the CPU.
        """
        batch = replace(self, rows=encoder.prepacked(self.rows))
        if encoder.device.type != "cuda":
            return batch
        return batch._with_tensors(lambda tensors: tensors.pin_memory())

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; the program does not wait for the copies."""

        def moved(tensors: Any) -> Any:
            if isinstance(tensors, PaddedRows):
                return tensors.to(device)
            return to_device(tensors, device)

        return self._with_tensors(moved)

    def _with_tensors(self, change: Callable[[Any], Any]) -> "Batch":
        """Return the batch with ``change`` applied to the tensors of ``rows`` and ``extra``."""
        changed = replace(self, extra=dict(self.extra))
        if isinstance(self.rows, PaddedRows):
            changed.rows = change(self.rows)
        for name, value in self.extra.items():
            if isinstance(value, Tensor):
                changed.extra[name] = change(value)
        return changed

    def own(self, name: str) -> Any:
        """Return the entries of ``extra[name]`` for the rows of this batch, or of this chunk.

        ``extra[name]`` has one entry for each row of the whole batch, or for its first rows alone;
        then there may be fewer entries than rows.
        """
        return self.extra[name][self.offset : self.offset + len(self.rows)]

    def split(self, end: int) -> tuple[TokenRows, TokenRows]:
        """Return the rows before row ``end``, and the rows from there on.

        ``end`` is a row number of the whole batch. If this batch is only a chunk of it, one of the
        two results may be empty.
        """
        n_before = max(end - self.offset, 0)
        return self.rows[:n_before], self.rows[n_before:]

    def chunks(self, n_rows: int) -> "list[Batch]":
        """Return the batch in chunks of at most ``n_rows`` rows, for cached gradients."""
        chunks = []
        for start in range(0, len(self.rows), n_rows):
            rows = self.rows[start : start + n_rows]
            chunks.append(replace(self, rows=rows, offset=start))
        return chunks


class Objective(nn.Module, ABC):
    """The base class of training methods: an encoder, further layers and a loss.

    There is one subclass for each method, with a dataclass of its ``Options``.

    The training loop asks for the ``examples`` of an epoch, and makes batches of them by
    ``collate``. Both run in a thread. The generator of ``examples`` depends on the seed and the
    epoch alone, so all processes get the same examples; that of ``collate`` also depends on the
    step and the process. Then the loop calls ``forward`` on a batch, which is ``encode`` followed
    by ``losses``. ``encode`` treats each row by itself, so it can be done in chunks; ``losses``
    needs the whole batch.
    """

    name: ClassVar[str]  # a class in a user's file has the name FILE.py:CLASS
    Options: ClassVar[type[ObjectiveOptions]] = ObjectiveOptions
    reads: ClassVar[DataKind] = DataKind.ROWS
    ordered: ClassVar[bool] = False  # examples keep their order instead of being shuffled
    rows_are_examples: ClassVar[bool] = False  # else examples are made from all rows together
    n_columns: ClassVar[tuple[int, int]] = (1, 3)  # the fewest and the most texts of a row
    in_batch_negatives: ClassVar[bool] = False  # the texts of other rows are negatives
    needs_teacher: ClassVar[bool] = False  # the loss, or a part of it, reads a teacher's vectors
    needs_two_rows: bool = False  # a batch of one row has no loss
    learns_from_one_row: bool = False  # the loss of a row does not need the others of its batch
    defaults: ClassVar[Mapping[str, Any]] = {}  # training defaults that the method changes

    options: ObjectiveOptions

    def __init_subclass__(cls) -> None:
        """Add the ``defaults`` of the bases; a class names only those that it changes."""
        super().__init_subclass__()
        merged: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            merged |= vars(base).get("defaults", {})
        cls.defaults = merged

    def __init__(self, encoder: SentenceEncoder, options: ObjectiveOptions | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.options = self.Options() if options is None else options
        self.warnings: list[str] = []  # what the user should know before training starts
        self.model_digests: dict[str, str] = {}  # of the models beside the encoder, by name
        self.check_options(self.options)
        self.set_up()

    @classmethod
    def check_options(cls, options: Any) -> None:
        """Refuse options that fit no encoder; this is called before anything is read."""

    def set_up(self) -> None:
        """Make further layers and state, and refuse options that do not fit the encoder.

        This is called once, when ``encoder`` and ``options`` are there.
        """

    def examples(self, data: Any, generator: np.random.Generator) -> Examples:
        """Return the examples of one epoch; every epoch must have the same number of them.

        By default they are the rows if ``rows_are_examples``, else the distinct texts.
        """
        if self.rows_are_examples:
            return Examples(data.rows, data.files, are_rows=True)
        return Examples(list(dict.fromkeys(text for row in data.rows for text in row)))

    @abstractmethod
    def collate(self, examples: Sequence[Any], generator: np.random.Generator) -> Batch:
        """Return the batch of some examples; equal arguments must give an equal batch."""

    def batch_of(self, *views: Sequence[str], **extra: Any) -> Batch:
        """Return the batch of some examples; ``views[k][i]`` is text k of example i.

        ``extra`` is further input of the loss.
        """
        texts = [text for view in views for text in view]
        rows = self.encoder.tokenize(texts, max_length=self.options.max_length)
        return Batch(rows, len(views[0]), texts=list(zip(*views, strict=True)), extra=extra)

    def embed(self, batch: Batch) -> Tensor:
        """Return the embeddings of the rows, ``(R, D)``."""
        return self.encoder.embed_rows(batch.rows)

    def encode(self, batch: Batch) -> Representations:
        """Return tensors with rows in the order of the batch's rows; by default the embeddings."""
        return (self.embed(batch),)

    @abstractmethod
    def losses(self, representations: Representations, batch: Batch) -> Losses:
        """Return the loss terms of a whole batch, and metrics.

        ``representations`` are the results of ``encode`` for the rows of this process. A method
        that needs the results of other processes gathers them.
        """

    def checked_losses(self, representations: Representations, batch: Batch) -> Losses:
        """Return the ``losses``.

        Raise ConfigError if one of them is no scalar tensor, or if no term depends on the vectors
        while gradients are enabled.
        """
        terms, metrics = self.losses(representations, batch)
        self.require_scalars(terms | metrics)
        if torch.is_grad_enabled() and not any(term.requires_grad for term in terms.values()):
            raise ConfigError(
                f"--objective {self.name}: none of its losses depends on the vectors",
                hint="compute them from the vectors, without .detach() and torch.no_grad()",
            )
        return terms, metrics

    def require_scalars(self, losses: Mapping[str, Any]) -> None:
        """Raise ConfigError unless all losses are scalar tensors."""
        for name, value in losses.items():
            if not isinstance(value, Tensor):
                found = f"is {type(value).__name__}"
            elif value.ndim:
                found = f"has the shape {tuple(value.shape)}"
            else:
                continue
            raise ConfigError(
                f"--objective {self.name}: {name!r} of its losses {found}, need a scalar tensor",
                hint="return the mean over the rows",
            )

    def after_step(self) -> None:
        """Update tensors that no gradient reaches, such as a queue or a moving average.

        This is called after each step of the optimizer, before the training state is saved.
        Register such tensors as buffers, so that they are part of the state.
        """

    def forward(self, batch: Batch) -> Losses:
        return self.checked_losses(self.encode(batch), batch)

    def eval_encoder(self) -> SentenceEncoder:
        """Return the encoder that is evaluated and saved."""
        return self.encoder

    def mlm_head(self) -> MlmHead | None:
        """Return the masked-LM head that is saved with the encoder; none by default."""
        return None


def training_width(encoder: SentenceEncoder) -> int:
    """Return the width of the vectors that the loss reads: with a head, that of its output."""
    if encoder.record.head_use is HeadUse.NONE or encoder.head is None:
        return encoder.hidden_size
    return encoder.head.dense.out_features


@dataclass(frozen=True)
class TwoEncoderOptions(ObjectiveOptions):
    dual_encoder: bool = setting(
        False,
        "Train a second encoder, at first an exact copy; else one is for all views.",
        "--dual-encoder",
    )
    serve_encoder: ServedEncoder = setting(
        ServedEncoder.FIRST, "Encoder that is evaluated and saved."
    )


class TwoEncoders(Objective):
    """An objective that may have a second encoder, for all views but the first.

    Source: Gao et al. 2021, Table 2, "two encoders"; Contrastive Tension; QuickThoughts.
    """

    always_two: ClassVar[bool] = False
    Options = TwoEncoderOptions
    options: TwoEncoderOptions

    def set_up(self) -> None:
        self.second: SentenceEncoder | None = None
        if self.options.dual_encoder or self.always_two:
            self.second = self.encoder.copied()
        elif self.options.serve_encoder is ServedEncoder.SECOND:
            raise ConfigError(
                "--set serve_encoder=second: there is one encoder", hint="add --dual-encoder"
            )

    def embed(self, batch: Batch) -> Tensor:
        """Return the embeddings; a second encoder, if any, makes those of all views but the first.

        ``batch`` may be a chunk with rows of one encoder alone.
        """
        if self.second is None:
            return self.encoder.embed_rows(batch.rows)
        first, others = batch.split(batch.n_examples)
        vectors = []
        if first:
            vectors.append(self.encoder.embed_rows(first))
        if others:
            vectors.append(self.second.embed_rows(others))
        return torch.cat(vectors)

    def eval_encoder(self) -> SentenceEncoder:
        if self.second is None or self.options.serve_encoder is ServedEncoder.FIRST:
            return self.encoder
        return self.second
