"""``prepare nli``: make training rows from natural language inference pairs.

Source: Gao et al. 2021, section 4 and Table 4; counts in ``docs/data.md``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any

from simcse_cli.data.given import Given
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.nli import NLI_ROLES, NO_LABEL, Label, NliPair, iter_nli
from simcse_cli.data.writers import Row
from simcse_cli.errors import DataError
from simcse_cli.prepare.options import NliOptions
from simcse_cli.prepare.rows import RowWriter
from simcse_cli.settings.choices import HardNegativeLabel, PositiveLabel
from simcse_cli.settings.declare import refuse_unused


def prepare_nli(inputs: Sequence[str], options: NliOptions, writer: RowWriter) -> None:
    refuse_unused(options, ["keep_label"], "has no use here: --positive chooses by label")
    sources = [*inputs, *(options.anli or [])]
    counts = NliCounts()
    kinds: dict[str, Any] = {"positive": options.positive, "hard_negative": options.hard_negative}
    given = Given.of(options, progress=writer.progress, roles=NLI_ROLES)
    corpora = chain.from_iterable(iter_nli(source, given) for source in sources)
    rows = nli_rows(corpora, seed=options.seed, counts=counts, **kinds)
    columns = POSITIONAL[:2] if options.hard_negative is HardNegativeLabel.NONE else POSITIONAL
    writer.write("nli", rows, columns, inputs=sources, settings=kinds, corpus=counts)


@dataclass
class NliCounts:
    """The numbers of pairs by label, of premises, and of premises that gave no row."""

    labels: Counter[str] = field(default_factory=Counter)
    n_premises: int = 0
    n_without_partner: int = 0

    def watch(self, pairs: Iterable[NliPair]) -> Iterator[NliPair]:
        for pair in pairs:
            self.labels[pair.label or NO_LABEL] += 1
            yield pair

    def summary(self) -> str:
        labels = ", ".join(f"{self.labels[label]:,} {label}" for label in Label)
        text = f"read {labels}, {self.labels[NO_LABEL]:,} without a label"
        if self.n_premises:
            text += (
                f"; {self.n_premises:,} premises, "
                f"{self.n_without_partner:,} of them without both hypotheses"
            )
        return text


def nli_rows(
    corpora: Iterable[Iterable[NliPair]],
    *,
    positive: PositiveLabel = PositiveLabel.ENTAILMENT,
    hard_negative: HardNegativeLabel = HardNegativeLabel.CONTRADICTION,
    seed: int,
    counts: NliCounts,
) -> Iterator[Row]:
    """Yield training rows in the order in which their premises first occur.

    Without hard negatives, every positive pair is a row. With hard negatives, a premise that has
    both a positive and a hard negative gives one row: the premise and one of each, drawn uniformly
    by seed and premise. If ``hard_negative`` is ``both``, a premise gives one row with a
    contradiction and another with a neutral hypothesis (toolkit default: the paper does not say how
    they were combined). A premise that is in two corpora gives rows in each.

    One corpus at a time is held in memory, to group its pairs by premise. ``counts`` is filled
    while reading.
    """
    positive_labels = list(Label) if positive is PositiveLabel.ALL else [Label(positive)]
    negative_labels = [Label.CONTRADICTION, Label.NEUTRAL]
    if hard_negative is not HardNegativeLabel.BOTH:  # one of these labels, or none
        negative_labels = [label for label in negative_labels if label.value == hard_negative.value]
    for pairs in map(counts.watch, corpora):
        if negative_labels:
            yield from _triplets(pairs, positive_labels, negative_labels, seed, counts)
            continue
        for pair in pairs:
            if pair.label in positive_labels:
                yield pair.premise, pair.hypothesis
    if counts.n_premises and counts.n_without_partner == counts.n_premises:
        has_positives = any(counts.labels[label] for label in positive_labels)
        raise DataError(
            f"no premise has a positive and a hard negative: {counts.summary()}",
            hint="write the positives alone: --hard-negative none" if has_positives else None,
        )


def _triplets(
    pairs: Iterable[NliPair],
    positive_labels: Sequence[Label],
    negative_labels: Sequence[Label],
    seed: int,
    counts: NliCounts,
) -> Iterator[Row]:
    """Group the pairs of one corpus by premise, and yield the rows of each premise."""
    # The hypotheses by premise and label.
    grouped: dict[str, dict[Label | None, list[str]]] = {}
    for pair in pairs:
        if pair.label is not None:
            hypotheses = grouped.setdefault(pair.premise, {label: [] for label in Label})
            hypotheses[pair.label].append(pair.hypothesis)
    counts.n_premises += len(grouped)

    for premise, hypotheses in grouped.items():
        positives = list(chain.from_iterable(hypotheses[label] for label in positive_labels))
        positive = None
        if positives:
            positive = choose(positives, seed=seed, key=f"positive\x1f{premise}")
        has_row = False
        for label in negative_labels:
            negatives = [text for text in hypotheses[label] if text != positive]
            if positive is not None and negatives:
                has_row = True
                yield premise, positive, choose(negatives, seed=seed, key=f"{label}\x1f{premise}")
        counts.n_without_partner += not has_row


def choose(candidates: Sequence[str], *, seed: int, key: str) -> str:
    """Choose a text by a hash of ``seed`` and ``key``, so that no choice affects another."""
    digest = blake2b(f"{seed}\x1f{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return candidates[int.from_bytes(digest, "big") % len(candidates)]
