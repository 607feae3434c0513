"""SimCSE: contrastive learning of identical pairs under dropout, or of annotated pairs with hard negatives."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from simcse_cli.errors import ConfigError, DataError
from simcse_cli.losses.contrastive import info_nce
from simcse_cli.losses.gather import gather_with_grad
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.names import DropoutMode, Similarity
from simcse_cli.names import Objective as ObjectiveName
from simcse_cli.objectives.base import Batch, Losses, Objective

Augment = Callable[[str, int], str]
"""Maps a text and a random key to an augmented text."""


class SimcseUnsup(Objective):
    """Unsupervised SimCSE: each sentence is its own positive, told apart by dropout alone.

    Source: Gao et al. 2021, Eq. 4. A training file with two columns gives the pairs instead.

    Args:
        encoder: its dropout is the augmentation.
        max_length: sub-words per text.
        temperature: divides the similarities.
        similarity: cosine or dot product.
        dropout_mode: ``fixed`` encodes once and uses the vector for both views.
        augment: makes the positive's text; None leaves it as it is.
        original_scaling: gradient of gathered negatives as in the original code.
    """

    name = ObjectiveName.SIMCSE_UNSUP
    n_columns: ClassVar[tuple[int, int]] = (1, 2)

    def __init__(
        self,
        encoder: SentenceEncoder,
        *,
        max_length: int = 32,
        temperature: float = 0.05,
        similarity: Similarity = Similarity.COSINE,
        dropout_mode: DropoutMode = DropoutMode.INDEPENDENT,
        augment: Augment | None = None,
        original_scaling: bool = False,
    ) -> None:
        super().__init__(encoder)
        self.max_length = max_length
        self.temperature = temperature
        self.similarity = similarity
        self.dropout_mode = dropout_mode
        self.augment = augment
        self.original_scaling = original_scaling

    def examples(self, data: Any, generator: np.random.Generator) -> Sequence[tuple[str, ...]]:
        """Return the rows of the training file: sentences, pairs or triplets."""
        n_columns = len(data.columns)
        least, most = self.n_columns
        if not least <= n_columns <= most:
            needed = "anchor, positive and perhaps hard_negative" if least == 2 else "one sentence, or a pair,"
            other = "--mode unsup" if n_columns == 1 else "--mode sup"
            raise DataError(
                f"{data.name}: {n_columns} columns ({', '.join(data.columns)}), "
                f"--objective {self.name} needs {needed} a row",
                hint=f"use {other}, or build the file with `simcse prepare`",
            )
        if self.dropout_mode is DropoutMode.FIXED and (n_columns > 1 or self.augment is not None):
            raise ConfigError(
                "--dropout-mode fixed makes one vector serve as both views; the views here have different texts",
                hint="use it with single sentences and without --augment",
            )
        rows: Sequence[tuple[str, ...]] = data.rows
        return rows

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        """Tokenise the views of each example; a single sentence becomes a pair with itself."""
        views = list(zip(*examples, strict=True))
        if self.augment is not None:
            keys = generator.integers(0, 2**62, size=len(examples))
            source = views[1] if len(views) > 1 else views[0]
            augmented = tuple(self.augment(text, int(key)) for text, key in zip(source, keys, strict=True))
            views = [views[0], augmented, *views[2:]]
        elif len(views) == 1 and self.dropout_mode is not DropoutMode.FIXED:
            views = [views[0], views[0]]
        texts = list(itertools.chain.from_iterable(views))
        rows = self.encoder.tokenize(texts, max_length=self.max_length)
        return Batch(rows, len(examples), texts=list(zip(*views, strict=True)))

    def views(self, embeddings: Tensor, batch: Batch) -> list[Tensor]:
        """Return the views of a batch, each ``(N, D)`` over all processes."""
        local = embeddings.view(-1, batch.n_examples, embeddings.shape[-1])
        gathered = [gather_with_grad(view, original_scaling=self.original_scaling) for view in local]
        return gathered * 2 if self.dropout_mode is DropoutMode.FIXED else gathered

    def losses(self, representations: tuple[Tensor, ...], batch: Batch) -> Losses:
        """Return the contrastive loss over the global batch."""
        anchors, positives, *_ = self.views(representations[0], batch)
        loss = info_nce(anchors, positives, temperature=self.temperature, similarity=self.similarity)
        return {"contrastive": loss}, {}


class SimcseSup(SimcseUnsup):
    """Supervised SimCSE: annotated pairs, with each anchor's contradiction as a hard negative.

    Source: Gao et al. 2021, Eq. 5 and 8.

    Args:
        encoder: as for the unsupervised form.
        hard_negative_alpha: weight of an anchor's own hard negative.
        **settings: as for the unsupervised form.
    """

    name = ObjectiveName.SIMCSE_SUP
    n_columns = (2, 3)
    defaults = {"epochs": 3.0, "head": "kept", "lr": 5e-5}  # noqa: RUF012 - a ClassVar of the base class

    def __init__(self, encoder: SentenceEncoder, *, hard_negative_alpha: float = 1.0, **settings: Any) -> None:
        super().__init__(encoder, **settings)
        self.hard_negative_alpha = hard_negative_alpha

    def losses(self, representations: tuple[Tensor, ...], batch: Batch) -> Losses:
        """Return the contrastive loss with hard negatives where the data has them."""
        anchors, positives, *hard_negatives = self.views(representations[0], batch)
        loss = info_nce(
            anchors,
            positives,
            temperature=self.temperature,
            similarity=self.similarity,
            hard_negatives=torch.cat(hard_negatives) if hard_negatives else None,
            hard_negative_alpha=self.hard_negative_alpha,
        )
        return {"contrastive": loss}, {}
