"""Neighbouring sentences as positives: SimCSE on documents."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from simcse_cli.choices import ObjectiveName
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.base import DataKind
from simcse_cli.objectives.sampling import positions_in_documents, sample_next
from simcse_cli.objectives.simcse import SimcseUnsup


class NextSentence(SimcseUnsup):
    """The positive is the following sentence, or one of the next few; the loss is that of SimCSE.

    Source: Gao et al. 2021, Table 2; no code was released.

    Args:
        encoder: one for both sides, unless ``dual_encoder``.
        window: draw the positive evenly from so many following sentences, anew in each epoch.
        **settings: as for SimCSE.
    """

    name = ObjectiveName.NEXT_SENTENCE
    reads = DataKind.DOCUMENTS

    def __init__(self, encoder: SentenceEncoder, *, window: int = 1, **settings: Any) -> None:
        super().__init__(encoder, **settings)
        if window < 1:
            raise ConfigError(f"--set window={window}: need at least 1")
        self.window = window

    def examples(self, data: Any, generator: np.random.Generator) -> Sequence[tuple[str, ...]]:
        """Return a pair for every sentence that another follows in its document."""
        sentences, following = positions_in_documents(data.documents)
        anchors, positives = sample_next(following, window=self.window, generator=generator)
        if not len(anchors):
            raise DataError(
                f"{data.name}: no document has two sentences, so there are no neighbours",
                hint="put the sentences of a document on consecutive lines, a blank line between documents",
            )
        return [(sentences[i], sentences[j]) for i, j in zip(anchors, positives, strict=True)]
