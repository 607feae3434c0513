"""Unsupervised SimCSE, and what came after it: other negatives of the same two views."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from simcse_cli.losses.info_nce import info_nce
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.base import Batch, Examples, ObjectiveOptions
from simcse_cli.objectives.simcse import Simcse, SimcseOptions, training_width
from simcse_cli.objectives.vector_queue import VectorQueue
from simcse_cli.settings.choices import ObjectiveName
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class SimcseUnsupOptions(SimcseOptions):
    queue_size: int = setting(0, "Vectors of past batches that are negatives too (ESimCSE).", min=0)
    momentum: float = setting(
        0.995, "Share that the copy behind the queue keeps of itself in a step.", min=0, max=1
    )


class SimcseUnsup(Simcse):
    """Unsupervised SimCSE: each sentence is its own positive, told apart by dropout alone.

    Source: Gao et al. 2021, Eq. 4. A training file with two columns gives the pairs instead. The
    options are those of its successors (``docs/objectives.md``); without them it is SimCSE, bit for
    bit.
    """

    name = ObjectiveName.SIMCSE_UNSUP
    Options: ClassVar[type[ObjectiveOptions]] = SimcseUnsupOptions
    options: SimcseUnsupOptions

    def __init__(self, encoder: SentenceEncoder, options: ObjectiveOptions | None = None) -> None:
        super().__init__(encoder, options)
        own = self.options
        self.queue: VectorQueue | None = None
        if own.queue_size:
            width = training_width(encoder)
            self.queue = VectorQueue(encoder, own.queue_size, own.momentum, width=width)
        self._epoch = 0

    def examples(self, data: Any, generator: np.random.Generator) -> Examples:
        # The generator is the epoch's own, so that a draw from a copy of it names the epoch.
        self._epoch = int(copy.deepcopy(generator).integers(1, 2**62))
        return super().examples(data, generator)

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        batch = super().collate(examples, generator)
        if self.queue is not None:
            batch.extra["epoch"] = self._epoch
        return batch

    def view_terms(self, views: list[Tensor], batch: Batch) -> dict[str, Tensor]:
        if self.queue is None:
            return super().view_terms(views, batch)
        negatives = self.queue.negatives(batch.extra["epoch"])
        terms = super().view_terms([*views, negatives], batch)
        self.queue.push(self.encoder, batch.rows[: batch.n_examples], batch.counts)
        return terms

    def contrast(self, views: list[Tensor], texts: Tensor | None = None) -> Tensor:
        """Return the contrastive loss of gathered views; those behind the two are of no row."""
        anchors, positives, *others = views
        return info_nce(
            anchors,
            positives,
            temperature=self.options.temperature,
            similarity=self.options.similarity,
            symmetric=self.options.symmetric,
            texts=texts,
            extra_negatives=torch.cat(others) if others else None,
        )
