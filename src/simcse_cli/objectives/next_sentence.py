"""SimCSE with the next sentence of a document as the positive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcse_cli.arrays import Integers
from simcse_cli.errors import DataError
from simcse_cli.objectives.base import DataKind, Examples
from simcse_cli.objectives.simcse import Simcse, SimcseOptions
from simcse_cli.settings.choices import ObjectiveName
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class NextSentenceOptions(SimcseOptions):
    window: int = setting(1, "The positive is one of this many following sentences.", min=1)


class NextSentence(Simcse):
    """The positive is the following sentence, or one of the next few; the loss is that of SimCSE.

    Source: Gao et al. 2021, Table 2; no code was released. The positive is drawn evenly from the
    next ``window`` sentences, anew in each epoch.
    """

    name = ObjectiveName.NEXT_SENTENCE
    reads = DataKind.DOCUMENTS
    rows_are_examples = False

    Options = NextSentenceOptions
    options: NextSentenceOptions

    def examples(self, data: Any, generator: np.random.Generator) -> Examples:
        """Return a pair for every sentence but the last of each document."""
        sentences, following = sentences_and_following(data.documents)
        anchors, positives = sample_next(following, window=self.options.window, generator=generator)
        if not len(anchors):
            raise DataError(
                f"{data.name}: no document has two sentences, so there are no neighbours",
                hint="put the sentences of a document on consecutive lines, a blank line between "
                "documents",
            )
        pairs = zip(anchors, positives, strict=True)
        return Examples([(sentences[i], sentences[j]) for i, j in pairs])


def sentences_and_following(
    documents: Sequence[Sequence[str]],
) -> tuple[list[str], Integers]:
    """Return all sentences in order, and for each how many follow it in its document."""
    sentences = [sentence for document in documents for sentence in document]
    following = [np.arange(len(document) - 1, -1, -1) for document in documents]
    if not following:
        return sentences, np.zeros(0, np.int64)
    return sentences, np.concatenate(following).astype(np.int64)


def sample_next(
    following: Integers, *, window: int, generator: np.random.Generator
) -> tuple[Integers, Integers]:
    """Return the indices of anchors and of their positives among all sentences.

    Source: Gao et al. 2021, Table 2, "next sentence" (window 1) and "next 3 sentences" (window 3).

    ``following`` has, for each sentence, how many sentences of its document follow; a sentence with
    0 is no anchor. The positive is drawn evenly from the next ``window`` sentences, or from fewer
    near the end of a document.
    """
    anchors = np.flatnonzero(following > 0)
    farthest = np.minimum(following[anchors], window)
    return anchors, anchors + generator.integers(1, farthest + 1)
