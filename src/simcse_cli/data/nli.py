from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from simcse_cli.data.columns import Record, columns_hint, find_column
from simcse_cli.data.formats import FileFormat, InputPath
from simcse_cli.data.table import Table
from simcse_cli.errors import DataError
from simcse_cli.files.streams import STDIO, iter_lines


class Label(StrEnum):
    ENTAILMENT = "entailment"
    NEUTRAL = "neutral"
    CONTRADICTION = "contradiction"


# Words, the letters of ANLI, and the numbers of the Hub versions of SNLI, MNLI and ANLI; None for no label.
_LABELS: dict[str, Label | None] = {
    spelling: label for number, label in enumerate(Label) for spelling in (label.value, label.value[0], str(number))
} | dict.fromkeys(("-", "", "-1", "hidden"))
NO_LABEL = "no_label"


@dataclass(frozen=True)
class NliPair:
    """A premise and a hypothesis; ``label`` is None if the annotators did not agree."""

    premise: str
    hypothesis: str
    label: Label | None


def iter_nli(
    source: InputPath, columns: Mapping[str, str] | None = None, *, encoding: str = "utf-8"
) -> Iterator[Iterator[NliPair]]:
    """Yield the pairs of each file of a source, in any published layout of an NLI corpus.

    These are SNLI, MNLI and ANLI as JSON Lines, TSV (also named ``.txt``), parquet or Hub datasets, and SentEval's
    ``s1.SPLIT``, ``s2.SPLIT``, ``labels.SPLIT`` (one of the three, or the folder). ``columns`` gives the names of
    ``anchor``, ``positive`` and ``label`` in other tables.
    """
    label_files = [] if str(source) == STDIO else _label_files(Path(source))
    for labels in label_files:
        yield _iter_senteval(labels, encoding)
    if not label_files:
        given = columns or {}
        table = Table(source, text_as=FileFormat.TSV, encoding=encoding, columns=given.values())
        rows = table.pick(partial(_columns, given=given))
        yield (_pair(place, *texts) for place, texts in rows)


def _pair(place: str, premise: str, hypothesis: str, label: str) -> NliPair:
    text = label.strip().lower()
    if text not in _LABELS:
        raise DataError(f"{place}: label {text!r}, need entailment, neutral or contradiction (or e, n, c; 0, 1, 2)")
    return NliPair(premise.strip(), hypothesis.strip(), _LABELS[text])


def _columns(record: Record[str], given: Mapping[str, str]) -> tuple[str, str, str]:
    found = [find_column(record, given.get(name, name)) for name in ("anchor", "positive", "label")]
    if None in found:
        raise DataError(
            f"{record.columns_place}: the columns are {', '.join(record)}; need sentence1, sentence2 and gold_label "
            "(or premise, hypothesis and label)",
            hint="give an SNLI, MNLI or ANLI file, or, for other names in training, "
            f"{columns_hint(record, ('anchor', 'positive', 'label'))}; "
            "for pairs without labels use `simcse prepare pairs`",
        )
    premise, hypothesis, label = map(str, found)
    return premise, hypothesis, label


def _label_files(source: Path) -> list[Path]:
    """Return the files of labels in a folder, or the one beside a file; none for other layouts."""
    if source.is_dir():
        found = sorted(source.glob("labels.*"))
        if not found:
            what = f"{source} is a folder without labels.* files (the SentEval layout)"
            raise DataError(what, hint="name the corpus files instead, for example snli_1.0_train.jsonl")
        return found
    stem, _, split = source.name.partition(".")
    labels = source.with_name(f"labels.{split}")
    return [labels] if stem in ("s1", "s2", "labels") and labels.is_file() else []


def _iter_senteval(labels: Path, encoding: str) -> Iterator[NliPair]:
    sides = [labels.with_name(side + labels.name.removeprefix("labels")) for side in ("s1", "s2")]
    files = (*sides, labels)
    lines = [list(iter_lines(path, encoding=encoding)) for path in files]
    if len({len(column) for column in lines}) > 1:
        counts = ", ".join(f"{path.name} {len(column):,}" for path, column in zip(files, lines, strict=True))
        raise DataError(f"{labels.parent}: line counts differ ({counts}), need the same number in each")
    for number, (premise, hypothesis, label) in enumerate(zip(*lines, strict=True), start=1):
        yield _pair(f"{labels}, line {number}", premise, hypothesis, label)
