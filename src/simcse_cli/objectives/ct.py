"""Contrastive Tension: two encoders that agree on identical sentences and on nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from simcse_cli.arrays import Booleans, Integers
from simcse_cli.errors import DataError
from simcse_cli.losses.contrastive_tension import contrastive_tension
from simcse_cli.objectives.base import (
    Batch,
    Examples,
    Losses,
    Representations,
    TwoEncoderOptions,
    TwoEncoders,
)
from simcse_cli.settings.choices import ObjectiveName
from simcse_cli.settings.declare import setting

TensionExample = tuple[str, str, bool]


class TensionPairs(Sequence[TensionExample]):
    """The pairs of an epoch; the texts of a pair are looked up when the pair is asked for.

    A pair has a left sentence, a right sentence, and a flag: true if both are the same sentence.
    """

    def __init__(
        self, sentences: Sequence[str], n_negatives: int, generator: np.random.Generator
    ) -> None:
        self._sentences = sentences
        self._columns = sample_tension_pairs(
            len(sentences), n_negatives=n_negatives, generator=generator
        )

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: Any) -> Any:
        left, right, is_positive = (column[index] for column in self._columns)
        return self._sentences[left], self._sentences[right], bool(is_positive)


@dataclass(frozen=True)
class TensionOptions(TwoEncoderOptions):
    max_length: int = setting(75, "Sub-words per text, including special ones.", "--max-length")
    n_negatives: int = setting(7, "Pairs of random sentences for each identical pair.", min=1)


class ContrastiveTension(TwoEncoders):
    """Two encoders tell pairs of identical sentences from random pairs, by dot products.

    There are ``n_negatives`` random pairs for each identical one. Source: Carlsson et al. 2021,
    with the settings of their code: mean pooling, no dropout, RMSProp without clipping, and a
    learning rate that falls in steps.
    """

    name = ObjectiveName.CT
    ordered = True  # groups of one positive and some negative pairs stay together
    learns_from_one_row = True
    always_two = True
    defaults = {
        "batch_size": 16,
        "dropout_mode": "none",
        "eval_every": 500,
        "head": "none",
        "lr": 1e-5,
        "max_grad_norm": 0.0,
        "max_length": 75,
        "optimizer": "rmsprop",
        "pooler": "avg",
        "schedule": "tension",
    }

    Options = TensionOptions
    options: TensionOptions

    def examples(self, data: Any, generator: np.random.Generator) -> Examples:
        """Return the pairs of an epoch, with as many positives as there are distinct sentences."""
        sentences = list(dict.fromkeys(row[0] for row in data.rows))
        if len(sentences) < 2:
            raise DataError(
                f"{data.name}: all texts are equal, need two distinct ones for a negative pair"
            )
        return Examples(TensionPairs(sentences, self.options.n_negatives, generator))

    def collate(self, examples: Sequence[TensionExample], generator: np.random.Generator) -> Batch:
        left, right, is_positive = zip(*examples, strict=True)
        return self.batch_of(left, right, is_positive=torch.tensor(is_positive))

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        left, right = representations[0].chunk(2)
        return {"tension": contrastive_tension(left, right, batch.extra["is_positive"])}, {}


def sample_tension_pairs(
    n_sentences: int, *, n_negatives: int = 7, generator: np.random.Generator
) -> tuple[Integers, Integers, Booleans]:
    """Return the pairs of an epoch: left indices, right indices, and which pairs are positive.

    Source: Carlsson et al. 2021, as in their code. There are ``n_sentences`` groups of
    ``1 + n_negatives`` consecutive pairs. The first pair of a group is positive: one sentence,
    drawn with replacement, on both sides. The two sides of a negative pair are drawn independently,
    so they may be equal by chance.
    """
    left, right = generator.integers(0, n_sentences, size=(2, n_sentences, 1 + n_negatives))
    right[:, 0] = left[:, 0]
    is_positive = np.zeros(left.shape, dtype=bool)
    is_positive[:, 0] = True
    return left.ravel(), right.ravel(), is_positive.ravel()
