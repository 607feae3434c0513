"""DeCLUTR: spans of a document that lie near each other, against spans from everywhere else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from simcse_cli.choices import ObjectiveName
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.losses.gather import gather_with_grad
from simcse_cli.losses.nt_xent import nt_xent
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.base import Batch, DataKind, Losses, Objective
from simcse_cli.objectives.mlm import mlm_term

TokenIds = list[int]


@dataclass(frozen=True)
class Span:
    """Tokens ``start`` to ``stop`` (exclusive) of a document."""

    start: int
    stop: int


@dataclass(frozen=True)
class SpanSampler:
    """Anchor and positive spans of DeCLUTR (Giorgi et al. 2021, section 3.1, and their code).

    Attributes:
        n_anchors: of a document.
        n_positives: of an anchor.
        min_length: shortest span in tokens.
        max_length: end of span lengths in tokens (exclusive), and length of the blocks that anchors start in.
    """

    n_anchors: int = 2
    n_positives: int = 2
    min_length: int = 32
    max_length: int = 512

    @property
    def min_document(self) -> int:
        """Fewest tokens a document needs: two blocks for each anchor."""
        return 2 * self.n_anchors * self.max_length

    def _length(self, a: float, b: float, generator: np.random.Generator) -> int:
        """Return ``floor(beta * (max - min) + min)`` with beta drawn from Beta(a, b)."""
        return int(generator.beta(a, b) * (self.max_length - self.min_length) + self.min_length)

    def sample(self, n_tokens: int, generator: np.random.Generator) -> list[tuple[Span, list[Span]]]:
        """Return the anchors of one document, each with its positives.

        Anchor lengths follow Beta(4, 2) (long), positive lengths Beta(2, 4) (short). An anchor starts
        anywhere in a randomly chosen block; that block and its neighbours are closed to the next anchor while
        others are left. A positive starts anywhere from its own length before the anchor to the anchor's end,
        moved into the document: it overlaps the anchor, touches it or lies inside.

        Raises:
            ValueError: the document is shorter than ``min_document``.
        """
        if n_tokens < self.min_document:
            raise ValueError(f"a document of {n_tokens} tokens: need at least {self.min_document}")
        blocks = list(range(n_tokens // self.max_length))
        groups = []
        for _ in range(self.n_anchors):
            block = blocks[int(generator.integers(len(blocks)))]
            rest = [other for other in blocks if other != block]
            blocks = [other for other in rest if abs(other - block) > 1] or rest
            anchor = self._anchor(block, n_tokens, generator)
            positives = [self._positive(anchor, n_tokens, generator) for _ in range(self.n_positives)]
            groups.append((anchor, positives))
        return groups

    def _anchor(self, block: int, n_tokens: int, generator: np.random.Generator) -> Span:
        length = self._length(4, 2, generator)
        start = block * self.max_length + int(generator.integers(self.max_length))
        start = min(start, n_tokens - length)
        return Span(start, start + length)

    def _positive(self, anchor: Span, n_tokens: int, generator: np.random.Generator) -> Span:
        length = self._length(2, 4, generator)
        start = int(generator.integers(anchor.start - length, anchor.stop + 1))
        start = max(0, min(start, n_tokens - length))
        return Span(start, start + length)


class Declutr(Objective):
    """Anchor spans against the mean of their positive spans, both ways, plus masked LM on the anchors.

    Source: Giorgi et al. 2021, settings of their code.

    Args:
        n_anchors: of a document.
        n_positives: of an anchor.
        min_span: shortest span in sub-words.
        max_span: end of span lengths in sub-words (exclusive); a document needs ``2 * n_anchors * max_span``.
        mlm_weight: of the masked-LM term; 0 leaves it out.
        mlm_probability: share of the anchors' tokens that are predicted.
    """

    name = ObjectiveName.DECLUTR
    reads = DataKind.DOCUMENTS
    defaults: ClassVar[Mapping[str, Any]] = {
        "adam_eps": 1e-6,
        "batch_size": 16,
        "head": "none",
        "lr": 5e-5,
        "max_length": 512,
        "pooler": "avg",
        "warmup": 0.1,
        "weight_decay": 0.1,
    }

    def __init__(
        self,
        encoder: SentenceEncoder,
        *,
        temperature: float = 0.05,
        n_anchors: int = 2,
        n_positives: int = 2,
        min_span: int = 32,
        max_span: int = 512,
        mlm_weight: float = 1.0,
        mlm_probability: float = 0.15,
    ) -> None:
        super().__init__(encoder)
        if n_anchors < 1 or n_positives < 1 or not 1 <= min_span < max_span:
            raise ConfigError(
                f"--set n_anchors={n_anchors} n_positives={n_positives} min_span={min_span} "
                f"max_span={max_span}: need at least one anchor and positive, and min_span below max_span"
            )
        self.temperature = temperature
        self.sampler = SpanSampler(n_anchors, n_positives, min_span, max_span)
        self.mlm = mlm_term(encoder, mlm_weight, mlm_probability, self.warnings)
        frame = encoder.tokenize([""])[0]
        self._prefix, self._suffix = frame[: len(frame) // 2], frame[len(frame) // 2 :]
        self._documents: list[TokenIds] | None = None

    def examples(self, data: Any, generator: np.random.Generator) -> Sequence[TokenIds]:
        """Return the sub-words of each document that is long enough; they are counted once."""
        if self._documents is None:
            limit, n_special = self.sampler.min_document, len(self._prefix) + len(self._suffix)
            tokens = [self._tokenize(document, n_special) for document in data.documents]
            self._documents = [ids for ids in tokens if len(ids) >= limit]
            if not self._documents:
                longest = max(map(len, tokens), default=0)
                raise DataError(
                    f"{data.name}: the longest of {len(tokens)} documents has {longest} tokens, need {limit}",
                    hint=f"use shorter spans, for example --set max_span={max(longest // 4, 8)}",
                )
            if len(self._documents) < len(tokens):
                n_short = len(tokens) - len(self._documents)
                self.warnings.append(
                    f"{n_short:,} of {len(tokens):,} documents are shorter than {limit} sub-words"
                )
        return self._documents

    def _tokenize(self, document: Sequence[str], n_special: int) -> TokenIds:
        """Return the sub-words of a document without special tokens, whatever its length."""
        rows = self.encoder.tokenize(document)
        first, last = len(self._prefix), n_special - len(self._prefix)
        return [token for row in rows for token in row[first : len(row) - last]]

    def _row(self, document: TokenIds, span: Span) -> list[int]:
        room = self.encoder.max_length - len(self._prefix) - len(self._suffix)
        return [*self._prefix, *document[span.start : span.stop][:room], *self._suffix]

    def collate(self, examples: Sequence[TokenIds], generator: np.random.Generator) -> Batch:
        """Draw the spans of each document; rows are all anchors, all first positives, second ones, ..."""
        groups = [(ids, group) for ids in examples for group in self.sampler.sample(len(ids), generator)]
        anchors = [self._row(ids, anchor) for ids, (anchor, _) in groups]
        positives = [
            self._row(ids, spans[k]) for k in range(self.sampler.n_positives) for ids, (_, spans) in groups
        ]
        rows = [*anchors, *positives]
        texts = [str(self.encoder.tokenizer.decode(row, skip_special_tokens=True)) for row in rows]
        views = [texts[start : start + len(groups)] for start in range(0, len(rows), len(groups))]
        extra: dict[str, Any] = {}
        if self.mlm is not None:
            masked, extra["mlm_labels"] = self.mlm.mask(anchors, generator)
            rows = [*masked, *positives]
        return Batch(rows, len(groups), texts=list(zip(*views, strict=True)), extra=extra)

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the embeddings of the spans and, of the masked anchors, the summed MLM loss of each."""
        if self.mlm is None:
            return super().encode(batch)
        embeddings, states, _ = self.encoder.embed_with_states(batch.rows)
        labels = batch.extra["mlm_labels"][batch.offset : batch.offset + len(batch.rows)]
        return embeddings, self.mlm.row_losses(states[: len(labels)], labels)

    def losses(self, representations: tuple[Tensor, ...], batch: Batch) -> Losses:
        views = representations[0].view(1 + self.sampler.n_positives, batch.n_examples, -1)
        anchors, positives = gather_with_grad(views[0]), gather_with_grad(views[1:].mean(dim=0))
        terms = {"contrastive": nt_xent(anchors, positives, temperature=self.temperature)}
        if self.mlm is not None:
            terms["mlm"] = self.mlm.loss(representations[1], batch.extra["mlm_labels"])
        return terms, {}
