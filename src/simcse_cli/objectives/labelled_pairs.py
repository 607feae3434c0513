"""The base of objectives on pairs of sentences with a label or a score."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from simcse_cli.objectives.base import Batch, Objective, ObjectiveOptions
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class LabelledPairOptions(ObjectiveOptions):
    max_length: int = setting(128, "Sub-words per text, including special ones.", "--max-length")


class LabelledPairs(Objective):
    """An objective on pairs with a label or a score; one encoder reads both sides."""

    rows_are_examples = True

    Options = LabelledPairOptions

    @abstractmethod
    def target(self, labels: Sequence[str]) -> Tensor:
        """Convert the labels or scores of some pairs to numbers."""

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        left, right, labels = zip(*examples, strict=True)
        batch = self.batch_of(left, right, labels=self.target(labels))
        batch.texts = list(examples)  # people read the label beside the texts
        return batch
