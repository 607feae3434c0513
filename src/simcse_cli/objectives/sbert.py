"""SBERT: classification of labelled pairs."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from simcse_cli.losses.classification import classification, sbert_features
from simcse_cli.machine.gather import share_of_mean
from simcse_cli.machine.precision import no_autocast
from simcse_cli.objectives.base import (
    Batch,
    DataKind,
    Losses,
    Representations,
    training_width,
)
from simcse_cli.objectives.labelled_pairs import LabelledPairs
from simcse_cli.settings.choices import ObjectiveName

NLI_CLASSES = ("contradiction", "entailment", "neutral")
"""The classes, in the order of their numbers in the authors' code."""


class Sbert(LabelledPairs):
    """A linear classifier of u, v and |u - v| with three NLI classes.

    u and v are the vectors of a pair. The classifier is dropped after training.

    Source: Reimers and Gurevych 2019, section 3.
    """

    name = ObjectiveName.SBERT
    reads = DataKind.LABELLED
    learns_from_one_row = True
    defaults = {
        "batch_size": 16,
        "head": "none",
        "lr": 2e-5,
        "max_length": 128,
        "pooler": "avg",
        "warmup": 0.1,
    }

    def set_up(self) -> None:
        self.classifier = nn.Linear(3 * training_width(self.encoder), len(NLI_CLASSES))

    def target(self, labels: Sequence[str]) -> Tensor:
        return torch.tensor([NLI_CLASSES.index(label) for label in labels])

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        left, right = representations[0].chunk(2)
        labels = batch.extra["labels"]
        with no_autocast(left.device):
            logits = self.classifier(sbert_features(left, right))
        n_correct = (logits.detach().argmax(dim=1) == labels).float().sum()
        accuracy = share_of_mean(n_correct, len(labels))
        return {"classification": classification(logits, labels)}, {"accuracy": accuracy}
