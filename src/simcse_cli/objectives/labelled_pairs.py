"""Objectives on pairs of sentences with a label or a score: SBERT and CoSENT."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from simcse_cli.losses.classification import classification, sbert_features
from simcse_cli.losses.cosent import cosent
from simcse_cli.machine.devices import to_device
from simcse_cli.machine.gather import gather_views, gather_with_grad, share_of_mean
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.base import Batch, DataKind, Losses, Objective
from simcse_cli.settings.choices import ObjectiveName

NLI_CLASSES = ("contradiction", "entailment", "neutral")
"""In the order of the original class numbers."""


class LabelledPairs(Objective):
    """One encoder for both sides."""

    max_length = 128

    @abstractmethod
    def target(self, labels: Sequence[str]) -> Tensor:
        """Return the third column of some rows as numbers."""

    def examples(self, data: Any, generator: np.random.Generator) -> Sequence[tuple[str, ...]]:
        return data.rows  # type: ignore[no-any-return]

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        left, right, labels = zip(*examples, strict=True)
        rows = self.encoder.tokenize([*left, *right], max_length=self.max_length)
        return Batch(rows, len(examples), texts=list(examples), extra={"labels": self.target(labels)})


class Sbert(LabelledPairs):
    """A linear classifier of u, v and |u - v| over three NLI classes; it is discarded after training.

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

    def __init__(self, encoder: SentenceEncoder, **options: Any) -> None:
        super().__init__(encoder, **options)
        self.classifier = nn.Linear(3 * encoder.hidden_size, len(NLI_CLASSES))

    def target(self, labels: Sequence[str]) -> Tensor:
        return torch.tensor([NLI_CLASSES.index(label) for label in labels])

    def losses(self, representations: tuple[Tensor, ...], batch: Batch) -> Losses:
        left, right = representations[0].chunk(2)
        labels = to_device(batch.extra["labels"], left.device)
        logits = self.classifier(sbert_features(left, right))
        n_right = (logits.detach().argmax(dim=1) == labels).float().sum()
        accuracy = share_of_mean(n_right, len(labels))
        return {"classification": classification(logits, labels)}, {"accuracy": accuracy}


class Cosent(LabelledPairs):
    """The ranking loss over all pairs of the batch.

    Source: Su 2022; the defaults are those of sentence-transformers for STS-B, the batch size is a toolkit default.
    """

    name = ObjectiveName.COSENT
    reads = DataKind.SCORED
    defaults: ClassVar[Mapping[str, Any]] = {**Sbert.defaults, "batch_size": 32, "epochs": 4.0}

    temperature: float = 0.05

    def target(self, labels: Sequence[str]) -> Tensor:
        return torch.tensor([float(score) for score in labels], dtype=torch.float64)

    def losses(self, representations: tuple[Tensor, ...], batch: Batch) -> Losses:
        left, right = gather_views(representations[0].chunk(2), batch.counts)
        scores = gather_with_grad(to_device(batch.extra["labels"], left.device), batch.counts)
        return {"cosent": cosent(left, right, scores, temperature=self.temperature)}, {}
