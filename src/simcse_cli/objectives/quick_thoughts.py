"""QuickThoughts: sentences of a document find their neighbours."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from simcse_cli.losses.quick_thoughts import quick_thoughts
from simcse_cli.machine.gather import gather_views, gather_with_grad
from simcse_cli.objectives.base import (
    Batch,
    DataKind,
    Examples,
    Losses,
    Representations,
    TwoEncoders,
)
from simcse_cli.settings.choices import ObjectiveName

PlacedSentence = tuple[str, int]
"""A sentence and its place: consecutive in a document, with a gap between documents."""


class QuickThoughts(TwoEncoders):
    """Each sentence finds its neighbours by the dot products of two encoders' vectors.

    The sentences of a batch are in document order. Source: Logeswaran and Lee 2018, with two
    transformers in place of two GRUs.
    """

    name = ObjectiveName.QUICK_THOUGHTS
    reads = DataKind.DOCUMENTS
    ordered = True
    always_two = True
    defaults = {
        "batch_size": 400,
        "head": "none",
        "max_grad_norm": 5.0,
        "optimizer": "adam",
        "pooler": "avg",
    }

    def examples(self, data: Any, generator: np.random.Generator) -> Examples:
        placed: list[PlacedSentence] = []
        place = 0
        for document in data.documents:
            placed += [(sentence, place + i) for i, sentence in enumerate(document)]
            place += len(document) + 1  # a gap, so that neighbours stay within their document
        return Examples(placed)

    def collate(self, examples: Sequence[PlacedSentence], generator: np.random.Generator) -> Batch:
        sentences, places = zip(*examples, strict=True)
        batch = self.batch_of(sentences, places=torch.tensor(places))
        # The first encoder reads the first copy of the rows, the second encoder the second copy.
        batch.rows = [*batch.rows, *batch.rows]
        return batch

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        # Vectors of all sentences by the first encoder, and by the second one.
        inputs, outputs = gather_views(representations[0].chunk(2), batch.counts)
        places = gather_with_grad(batch.extra["places"], batch.counts)
        neighbours = (places.unsqueeze(1) - places.unsqueeze(0)).abs() == 1  # (N, N)
        share = neighbours.any(dim=1).float().mean()
        loss = quick_thoughts(inputs, outputs, neighbours)
        return {"quick_thoughts": loss}, {"with_neighbour": share}
