"""DeCLUTR: contrast nearby spans of a document with all other spans of the batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcse_cli.errors import ConfigError, DataError
from simcse_cli.losses.nt_xent import nt_xent
from simcse_cli.machine.gather import gather_views
from simcse_cli.objectives.base import (
    Batch,
    DataKind,
    Examples,
    Losses,
    Objective,
    ObjectiveOptions,
    Representations,
)
from simcse_cli.objectives.mlm import mlm_term
from simcse_cli.settings.choices import ObjectiveName
from simcse_cli.settings.declare import setting

TokenIds = list[int]


@dataclass(frozen=True)
class SpanSampler:
    """Draws the anchor and positive spans of DeCLUTR from a document.

    Source: Giorgi et al. 2021, section 3.1, and their code. The lengths of spans are in tokens, at
    least ``min_length`` and below ``max_length``. For anchors, a document is cut into blocks of
    ``max_length`` tokens.
    """

    n_anchors: int = 2
    n_positives: int = 2
    min_length: int = 32
    max_length: int = 512

    @property
    def min_document(self) -> int:
        """Minimum number of tokens in a document: two blocks of ``max_length`` for each anchor."""
        return 2 * self.n_anchors * self.max_length

    def _length(self, a: float, b: float, generator: np.random.Generator) -> int:
        """Return a length from ``min_length`` to below ``max_length``, drawn from Beta(a, b)."""
        return int(generator.beta(a, b) * (self.max_length - self.min_length) + self.min_length)

    def sample(
        self, n_tokens: int, generator: np.random.Generator
    ) -> list[tuple[slice, list[slice]]]:
        """Return the anchors of a document of ``n_tokens`` tokens, each with its positives.

        The lengths of anchors follow Beta(4, 2), so most anchors are long; the lengths of positives
        follow Beta(2, 4), so most are short. An anchor lies anywhere in a random block, and closes
        this block and its neighbours to later anchors. If few blocks are left, the random block is
        the first or the last of them. A positive overlaps its anchor or touches it: it starts
        anywhere from its own length before the anchor to the anchor's end, as far as the document
        allows.

        Raises:
            ValueError: the document is shorter than ``min_document``.
        """
        if n_tokens < self.min_document:
            raise ValueError(f"a document of {n_tokens} tokens: need at least {self.min_document}")
        block_starts = list(range(0, n_tokens - self.max_length + 1, self.max_length))
        groups = []
        for n_left in range(self.n_anchors, 0, -1):  # anchors that are still to be drawn
            # If few blocks are left, take an outer one: it has one neighbour, so fewer are closed.
            if len(block_starts) < n_left**2:
                block = int(generator.choice([0, len(block_starts) - 1]))
            else:
                block = int(generator.integers(len(block_starts)))
            block_start = block_starts[block]
            length = self._length(4, 2, generator)
            last_start = block_start + self.max_length - length
            anchor = _draw_span(length, block_start, last_start, generator)
            del block_starts[max(0, block - 1) : block + 2]  # the block and its neighbours
            groups.append((anchor, self._positives(anchor, n_tokens, generator)))
        return groups

    def _positives(
        self, anchor: slice, n_tokens: int, generator: np.random.Generator
    ) -> list[slice]:
        """Return the positives of an anchor, each drawn independently."""
        positives = []
        for _ in range(self.n_positives):
            length = self._length(2, 4, generator)
            earliest = max(0, anchor.start - length)
            latest = min(anchor.stop, n_tokens - length)
            positives.append(_draw_span(length, earliest, latest, generator))
        return positives


def _draw_span(
    length: int, first_start: int, last_start: int, generator: np.random.Generator
) -> slice:
    start = int(generator.integers(first_start, last_start, endpoint=True))
    return slice(start, start + length)


@dataclass(frozen=True)
class DeclutrOptions(ObjectiveOptions):
    temperature: float = setting(0.05, "Divisor of similarities.", "--temperature", above=0)
    n_anchors: int = setting(2, "Anchor spans of a document.", min=1)
    n_positives: int = setting(2, "Positive spans of an anchor.", min=1)
    min_span: int = setting(32, "Sub-words of the shortest span.", min=1)
    max_span: int = setting(512, "Sub-words that every span stays below.", min=2)
    mlm_weight: float = setting(
        1.0, "Weight of the auxiliary masked-LM term.", "--mlm-weight", min=0
    )
    mlm_probability: float = setting(
        0.15, "Share of tokens that the masked-LM term predicts.", above=0, below=1
    )
    max_length: int = setting(512, "Sub-words per span, including special ones.", "--max-length")


class Declutr(Objective):
    """The contrast of anchor spans with the mean of their positive spans, in both directions.

    A masked-LM loss on the anchors is added.

    Source: Giorgi et al. 2021, with the settings of their code. Spans are shorter than ``max_span``
    sub-words; a document needs at least ``2 * n_anchors * max_span`` sub-words.
    """

    name = ObjectiveName.DECLUTR
    reads = DataKind.DOCUMENTS
    defaults = {
        "adam_eps": 1e-6,
        "batch_size": 16,
        "head": "none",
        "lr": 5e-5,
        "max_length": 512,
        "optimizer": "adamw-uncorrected",
        "pooler": "avg",
        "schedule": "slanted-triangular",
        "warmup": 0.1,
        "weight_decay": 0.1,
    }

    Options = DeclutrOptions
    options: DeclutrOptions

    def set_up(self) -> None:
        shortest = self.options.min_span
        longest = self.options.max_span
        if shortest >= longest:
            place = f"--set min_span={shortest} max_span={longest}"
            raise ConfigError(f"{place}: need min_span below max_span")
        self.sampler = SpanSampler(
            self.options.n_anchors, self.options.n_positives, shortest, longest
        )
        self.mlm = mlm_term(self, tied=True)
        self._documents: list[TokenIds] | None = None

    def examples(self, data: Any, generator: np.random.Generator) -> Examples:
        """Return the sub-words of each document that is long enough; they are computed once."""
        if self._documents is None:
            self._documents = self._long_documents(data)
        return Examples(self._documents)

    def _long_documents(self, data: Any) -> list[TokenIds]:
        """Return the sub-words of the documents that are long enough; warn of shorter ones."""
        needed = self.sampler.min_document
        # Texts start with a space, so that byte-level BPE treats their first word like any other.
        texts = [" ".join(["", *document]) for document in data.documents]
        encoded = self.encoder.tokenizer(texts, add_special_tokens=False, verbose=False)
        id_lists = encoded["input_ids"]
        documents = [ids for ids in id_lists if len(ids) >= needed]
        if not documents:
            longest = max(map(len, id_lists))
            # The largest ``max_span`` for which the longest document is long enough.
            max_span = longest // (2 * self.sampler.n_anchors)
            shorter = f"--set max_span={max_span}"
            if max_span <= self.sampler.min_length:
                shorter += f" --set min_span={max_span // 2}"
            raise DataError(
                f"{data.name}: the longest of {len(id_lists)} documents has {longest} "
                f"tokens, need {needed}",
                hint=f"use shorter spans: {shorter}" if max_span > 1 else "use longer documents",
            )
        n_short = len(id_lists) - len(documents)
        if n_short:
            self.warnings.append(
                f"{n_short:,} of {len(id_lists):,} documents are shorter than {needed} sub-words"
            )
        return documents

    def collate(self, examples: Sequence[TokenIds], generator: np.random.Generator) -> Batch:
        """Return the batch of spans that are drawn from each document.

        The rows are those of all anchors, then of all first positives, then of all second
        positives, and so on.
        """
        decode = self.encoder.tokenizer.decode
        groups: list[tuple[str, ...]] = []
        for ids in examples:
            for anchor, positives in self.sampler.sample(len(ids), generator):
                spans = (anchor, *positives)
                groups.append(tuple(str(decode(ids[span])) for span in spans))
        batch = self.batch_of(*zip(*groups, strict=True))
        # The MLM term masks the anchors, whose rows come first.
        if self.mlm is not None:
            anchors, others = batch.split(len(groups))
            masked, batch.extra["mlm_labels"] = self.mlm.mask(anchors, generator)
            batch.rows = [*masked, *others]
        return batch

    def encode(self, batch: Batch) -> Representations:
        """Return the embeddings of the spans and, with an MLM term, the MLM loss of each anchor."""
        if self.mlm is None:
            return super().encode(batch)
        embeddings, states, _ = self.encoder.embed_with_states(batch.rows)
        # Only the anchors, which are the first rows of the whole batch, have labels.
        labels = batch.own("mlm_labels")
        return embeddings, self.mlm.row_losses(states[: len(labels)], labels)

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        # View 0 holds the anchors, and the other views hold their positives.
        views = representations[0].view(1 + self.sampler.n_positives, batch.n_examples, -1)
        anchors, positives = gather_views([views[0], views[1:].mean(dim=0)], batch.counts)
        terms = {"contrastive": nt_xent(anchors, positives, temperature=self.options.temperature)}
        if self.mlm is not None:
            terms["mlm"] = self.mlm.loss(representations[1], batch.extra["mlm_labels"])
        return terms, {}
