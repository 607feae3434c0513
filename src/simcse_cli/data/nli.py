"""Natural language inference corpora, and the training rows made of them.

Source: Gao et al. 2021, section 4 and Table 4; file layout and counts in ``docs/data.md``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from simcse_cli.data.prepare_options import HardNegativeLabel, PositiveLabel
from simcse_cli.data.readers import (
    FileFormat,
    Record,
    Source,
    find_column,
    guess_format,
    iter_records,
    source_name,
)
from simcse_cli.data.rows import Row, choose
from simcse_cli.errors import DataError
from simcse_cli.files import STDIO, iter_lines


class Label(StrEnum):
    """What a hypothesis is to its premise."""

    ENTAILMENT = "entailment"
    NEUTRAL = "neutral"
    CONTRADICTION = "contradiction"


# Words, the letters of ANLI, and the numbers of the Hub versions of SNLI, MNLI and ANLI.
_LABELS: dict[str, Label] = {
    spelling: label
    for number, label in enumerate(Label)
    for spelling in (label.value, label.value[0], str(number))
}
NO_LABEL = "no_label"
_NO_LABEL_SPELLINGS = frozenset({"-", "", "-1", "hidden"})


@dataclass(frozen=True)
class NliPair:
    """A premise and a hypothesis; ``label`` is None where the annotators did not agree."""

    premise: str
    hypothesis: str
    label: Label | None


def iter_nli(source: Source) -> Iterator[Iterator[NliPair]]:
    """Yield the pairs of each file of a source, in any layout that NLI corpora are published in.

    Read are SNLI, MNLI and ANLI as JSON Lines, TSV (also named ``.txt``), parquet or Hub datasets, and
    SentEval's ``s1.SPLIT``, ``s2.SPLIT``, ``labels.SPLIT``: name one of the three, or the folder for all.

    Raises:
        DataError: columns or labels are not those of an NLI corpus; names file and line.
    """
    if str(source) != STDIO and Path(source).is_dir():
        label_files = _label_files(Path(source))
    else:
        label_files = _senteval_labels(source)
    for labels in label_files:
        yield _iter_senteval(labels)
    if not label_files:
        yield _iter_table(source)


def _iter_table(source: Source) -> Iterator[NliPair]:
    fmt = guess_format(source)
    names: tuple[str, str, str] | None = None
    for number, record in iter_records(source, fmt=FileFormat.TSV if fmt is FileFormat.TEXT else fmt):
        place = f"{source_name(source)}, line {number}"
        names = names or _columns(record, place)
        premise, hypothesis, label = (record[name] for name in names)
        yield NliPair(premise.strip(), hypothesis.strip(), _parse_label(label, place))


def _columns(record: Record, place: str) -> tuple[str, str, str]:
    found = [find_column(record, name) for name in ("anchor", "positive", "label")]
    if None in found:
        raise DataError(
            f"{place}: the columns are {', '.join(record)}; need sentence1, sentence2 and gold_label "
            "(or premise, hypothesis and label)",
            hint="give an SNLI, MNLI or ANLI file; for pairs without labels use `simcse prepare pairs`",
        )
    premise, hypothesis, label = map(str, found)
    return premise, hypothesis, label


def _parse_label(text: str, place: str) -> Label | None:
    text = text.strip().lower()
    if text in _NO_LABEL_SPELLINGS:
        return None
    if text not in _LABELS:
        raise DataError(
            f"{place}: label {text!r}, need entailment, neutral or contradiction (or e, n, c; 0, 1, 2)"
        )
    return _LABELS[text]


def _label_files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("labels.*"))
    if not found:
        raise DataError(
            f"{folder} is a folder without labels.* files (the SentEval layout)",
            hint="name the corpus files instead, for example snli_1.0_train.jsonl",
        )
    return found


def _senteval_labels(source: Source) -> list[Path]:
    stem, _, split = Path(source).name.partition(".")
    labels = Path(source).parent / f"labels.{split}"
    return [labels] if stem in ("s1", "s2", "labels") and labels.is_file() else []


def _iter_senteval(labels: Path) -> Iterator[NliPair]:
    sides = [labels.with_name(labels.name.replace("labels", side, 1)) for side in ("s1", "s2")]
    files = (*sides, labels)
    lines = [list(iter_lines(path)) for path in files]
    if len({len(column) for column in lines}) > 1:
        counts = ", ".join(f"{path.name} {len(column):,}" for path, column in zip(files, lines, strict=True))
        raise DataError(f"{labels.parent}: line counts differ ({counts}), need the same number in each")
    for number, (premise, hypothesis, label) in enumerate(zip(*lines, strict=True), start=1):
        yield NliPair(premise.strip(), hypothesis.strip(), _parse_label(label, f"{labels}, line {number}"))


@dataclass
class NliCounts:
    """How many pairs were read, by label, and from how many premises; some of those give no row."""

    labels: Counter[str] = field(default_factory=Counter)
    n_premises: int = 0
    n_without_partner: int = 0

    def summary(self) -> str:
        """Return the counts as one line."""
        labels = ", ".join(f"{self.labels[label]:,} {label}" for label in Label)
        text = f"read {labels}, {self.labels[NO_LABEL]:,} without a label"
        if self.n_premises:
            text += (
                f"; {self.n_premises:,} premises, {self.n_without_partner:,} of them without both hypotheses"
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

    With hard negatives every premise that has both gives one row: one of its positives and one of its hard
    negatives, drawn uniformly by seed and premise. A premise that occurs in two corpora counts in each.
    ``both`` gives a row with a contradiction and one with a neutral hypothesis (toolkit default: the paper
    does not say how they were combined). Without hard negatives every pair with the label is a row. Grouping
    by premise holds one corpus at a time in memory.

    Args:
        corpora: labelled pairs, file by file.
        positive: label of the positives.
        hard_negative: label of the hard negatives.
        seed: of the draws.
        counts: filled while reading.
    """
    wanted = set(Label) if positive is PositiveLabel.ALL else {Label(positive)}
    for pairs in corpora:
        if hard_negative is HardNegativeLabel.NONE:
            yield from _pairs(pairs, wanted, counts)
        elif hard_negative is HardNegativeLabel.BOTH:
            yield from _triplets(pairs, wanted, (Label.CONTRADICTION, Label.NEUTRAL), seed, counts)
        else:
            yield from _triplets(pairs, wanted, (Label(hard_negative),), seed, counts)


def _pairs(pairs: Iterable[NliPair], wanted: set[Label], counts: NliCounts) -> Iterator[Row]:
    for pair in pairs:
        counts.labels[pair.label or NO_LABEL] += 1
        if pair.label in wanted:
            yield pair.premise, pair.hypothesis


def _triplets(
    pairs: Iterable[NliPair], wanted: set[Label], negatives: Sequence[Label], seed: int, counts: NliCounts
) -> Iterator[Row]:
    for premise, hypotheses in _by_premise(pairs, counts).items():
        positives = [text for label in Label if label in wanted for text in hypotheses.get(label, ())]
        chosen = choose(positives, seed=seed, key=f"positive\x1f{premise}") if positives else None
        candidates = {
            label: [text for text in hypotheses.get(label, ()) if text != chosen] for label in negatives
        }
        if chosen is None or not any(candidates.values()):
            counts.n_without_partner += 1
            continue
        for label, texts in candidates.items():
            if texts:
                yield premise, chosen, choose(texts, seed=seed, key=f"{label}\x1f{premise}")


def _by_premise(pairs: Iterable[NliPair], counts: NliCounts) -> dict[str, dict[Label, list[str]]]:
    grouped: dict[str, dict[Label, list[str]]] = {}
    for pair in pairs:
        counts.labels[pair.label or NO_LABEL] += 1
        if pair.label is not None:
            grouped.setdefault(pair.premise, {}).setdefault(pair.label, []).append(pair.hypothesis)
    counts.n_premises += len(grouped)
    return grouped
