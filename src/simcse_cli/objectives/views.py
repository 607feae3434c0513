"""Two views of a sentence, and the projector that Barlow Twins and VICReg put over them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from simcse_cli.augment.augmentations import TextAugmenter, TokenAugmenter
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.machine.gather import gather_views
from simcse_cli.machine.precision import no_autocast
from simcse_cli.models.heads import Projector
from simcse_cli.models.mask_template import MaskTemplate
from simcse_cli.objectives.base import (
    Batch,
    Examples,
    TwoEncoderOptions,
    TwoEncoders,
    training_width,
)
from simcse_cli.settings.choices import DropoutMode
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class TextViewOptions(TwoEncoderOptions):
    dropout_mode: DropoutMode = setting(
        DropoutMode.INDEPENDENT, "Dropout masks of the two views.", "--dropout-mode"
    )
    augment: TextAugmenter | TokenAugmenter | None = setting(
        None, "What makes the text of the positive, or changes its sub-words.", "--augment"
    )
    augment_both: bool = setting(False, "Augment the anchor too, with a draw of its own.")


class TextViews(TwoEncoders):
    """Two views of each example: dropout copies, augmented copies, or the columns of a pair file.

    With ``dropout_mode=fixed``, a sentence is encoded once, and its vector serves as both views.
    """

    rows_are_examples = True
    n_columns = (1, 2)

    Options = TextViewOptions
    options: TextViewOptions

    def set_up(self) -> None:
        super().set_up()
        if self.options.augment_both and self.options.augment is None:
            raise ConfigError(
                "--set augment_both=true: nothing augments", hint="name a method with --augment"
            )
        self._check_growth()
        if self.options.dropout_mode is not DropoutMode.FIXED:
            return
        one_vector = "--dropout-mode fixed makes one vector serve as both views"
        if self.options.augment is not None:
            raise ConfigError(
                f"{one_vector}; with --augment they have different texts", hint="leave one out"
            )
        if self.second is not None:
            raise ConfigError(
                f"{one_vector}; two encoders give two vectors", hint="leave --dual-encoder out"
            )

    def _check_growth(self) -> None:
        """Raise ConfigError if texts may become too long for the encoder by augmentation."""
        augment = self.options.augment
        if not isinstance(augment, TokenAugmenter) or not augment.most_added:
            return
        limit = self.encoder.tokens.max_length
        room = limit - augment.most_added
        if self.options.max_length > room:
            raise ConfigError(
                f"--augment repeat adds up to {augment.most_added} sub-words to "
                f"{self.options.max_length}, and {self.encoder.name} reads {limit}",
                hint=f"use --max-length {room}",
            )

    def examples(self, data: Any, generator: np.random.Generator) -> Examples:
        """Return the rows; raise an error if their columns do not suit the objective."""
        n_columns = len(data.columns)
        least, most = self.n_columns
        if not least <= n_columns <= most:
            # The least number of columns tells which rows the objective takes.
            needed = {
                1: "one sentence, or a pair,",
                2: "anchor, positive and perhaps hard_negative",
                3: "anchor, positive and hard_negative",
            }[least]
            other = "--mode unsup" if n_columns == 1 else "--mode sup"
            raise DataError(
                f"{data.name}: {n_columns} columns ({', '.join(data.columns)}), "
                f"--objective {self.name} needs {needed} a row",
                hint=f"use {other}, build the file with `simcse prepare`, or name a table .csv, "
                ".tsv or .jsonl",
            )
        if self.options.dropout_mode is DropoutMode.FIXED and n_columns > 1:
            raise ConfigError(
                "--dropout-mode fixed makes one vector serve as both views; these have "
                "different texts",
                hint="use it with single sentences",
            )
        return super().examples(data, generator)

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        """Tokenise the views of each example; a single sentence becomes a pair with itself."""
        views = list(zip(*examples, strict=True))
        if len(views) == 1 and self.options.dropout_mode is not DropoutMode.FIXED:
            views *= 2

        # Augment the texts, if the augmenter changes texts.
        n_examples = len(examples)
        augment = self.options.augment
        keys_of_view = self._augment_keys(n_examples, generator)
        if augment is not None and not isinstance(augment, TokenAugmenter):
            for number, keys in keys_of_view.items():
                views[number] = tuple(augment.many(views[number], keys))

        # Make the rows of all texts, view by view.
        templates = self.templates(len(views))
        texts_to_read: list[str] = []
        for template, view in zip(templates, views, strict=True):
            texts_to_read += template.texts(view)
        tokens = self.encoder.tokens
        rows = tokens.ids(texts_to_read, min(self.options.max_length, tokens.max_length))
        view_slices = [slice(i * n_examples, (i + 1) * n_examples) for i in range(len(views))]

        # Augment the rows, if the augmenter changes sub-words.
        if isinstance(augment, TokenAugmenter):
            frame_ids = self._frame_ids()
            for number, keys in keys_of_view.items():
                view_slice = view_slices[number]
                rows_and_keys = zip(rows[view_slice], keys, strict=True)
                rows[view_slice] = [augment(row, frame_ids, key) for row, key in rows_and_keys]

        # Add the templates last, so that augmenters move and repeat only sub-words of the text.
        framed = []
        for template, view_slice in zip(templates, view_slices, strict=True):
            framed += template.around(rows[view_slice])
        return Batch(framed, n_examples, texts=list(zip(*views, strict=True)))

    def _augment_keys(self, n_texts: int, generator: np.random.Generator) -> dict[int, list[int]]:
        """Return the numbers of the views to augment, each with one key for each of its texts.

        A key seeds the changes to its text.
        """
        if self.options.augment is None:
            return {}
        numbers = (0, 1) if self.options.augment_both else (1,)
        return {number: generator.integers(0, 2**62, size=n_texts).tolist() for number in numbers}

    def _frame_ids(self) -> frozenset[int]:
        """Return the ids that the tokenizer puts around texts; augmenters leave them in place."""
        names = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id", "pad_token_id")
        ids = (getattr(self.encoder.tokenizer, name, None) for name in names)
        return frozenset(token for token in ids if token is not None)

    def templates(self, n_views: int) -> Sequence[MaskTemplate]:
        """Return the template of each view: the words around its texts."""
        return [self.encoder.template] * n_views

    def local_views(self, embeddings: Tensor, batch: Batch) -> list[Tensor]:
        """Return the views of this process, each ``(B, D)``; a single view is returned twice."""
        views = list(embeddings.view(-1, batch.n_examples, embeddings.shape[-1]))
        return views * 2 if len(views) == 1 else views


@dataclass(frozen=True)
class ProjectedOptions(TextViewOptions):
    projector_dim: int = setting(8192, "Width of all three layers of the projector.", min=2)


class ProjectedViews(TextViews):
    """Two views of each sentence that pass the encoder and a projector.

    This is the base of Barlow Twins and VICReg. Source of the defaults: Farina and Pappadopulo
    2023, with [CLS] without a head, batches of 256 and two epochs.
    """

    projector_bias: ClassVar[bool]
    needs_two_rows = True
    defaults = {"batch_size": 256, "epochs": 2.0, "head": "none"}

    Options = ProjectedOptions
    options: ProjectedOptions

    def set_up(self) -> None:
        super().set_up()
        if self.options.dropout_mode is DropoutMode.FIXED:
            raise ConfigError(
                f"--dropout-mode fixed: --objective {self.name} asks two views of a sentence "
                "to agree, and one vector always agrees with itself",
                hint="use --dropout-mode independent, or none with --augment",
            )
        self.projector = Projector(
            training_width(self.encoder), self.options.projector_dim, bias=self.projector_bias
        )

    def projections(self, embeddings: Tensor, batch: Batch) -> list[Tensor]:
        """Return both projected views of all processes, ``(N, P)`` each.

        The views pass the projector one after the other, so each is batch-normalised by itself.
        """
        with no_autocast(embeddings.device):
            projected = [self.projector(view) for view in self.local_views(embeddings, batch)]
        return gather_views(projected, batch.counts)
