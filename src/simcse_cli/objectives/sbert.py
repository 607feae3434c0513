"""SBERT: classify sentence pairs by u, v and |u - v|."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from simcse_cli.losses.classification import classification, sbert_features
from simcse_cli.machine.devices import to_device
from simcse_cli.machine.gather import share_of_mean
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.base import Batch, DataKind, Losses, Objective
from simcse_cli.settings.choices import ObjectiveName

NLI_CLASSES = ("contradiction", "entailment", "neutral")
"""In the order of the original class numbers."""


class Sbert(Objective):
    """One encoder, a linear classifier over pair features, three NLI classes; the classifier is discarded.

    Source: Reimers and Gurevych 2019, section 3.
    """

    name = ObjectiveName.SBERT
    reads = DataKind.LABELLED
    defaults: ClassVar[Mapping[str, Any]] = {
        "batch_size": 16,
        "head": "none",
        "lr": 2e-5,
        "max_length": 128,
        "pooler": "avg",
        "warmup": 0.1,
    }

    def __init__(self, encoder: SentenceEncoder, *, max_length: int = 128) -> None:
        super().__init__(encoder, max_length=max_length)
        self.classifier = nn.Linear(3 * encoder.hidden_size, len(NLI_CLASSES))

    def examples(self, data: Any, generator: np.random.Generator) -> Sequence[tuple[str, ...]]:
        return data.rows  # type: ignore[no-any-return]

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        left, right, labels = zip(*examples, strict=True)
        rows = self.encoder.tokenize([*left, *right], max_length=self.max_length)
        numbers = torch.tensor([NLI_CLASSES.index(label) for label in labels])
        return Batch(rows, len(examples), texts=list(examples), extra={"labels": numbers})

    def losses(self, representations: tuple[Tensor, ...], batch: Batch) -> Losses:
        left, right = representations[0].chunk(2)
        labels = to_device(batch.extra["labels"], left.device)
        logits = self.classifier(sbert_features(left, right))
        n_right = (logits.detach().argmax(dim=1) == labels).float().sum()
        accuracy = share_of_mean(n_right, len(labels))
        return {"classification": classification(logits, labels)}, {"accuracy": accuracy}
