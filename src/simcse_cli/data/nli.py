import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from simcse_cli.data.formats import FileFormat, InputPath, guess_format
from simcse_cli.data.given import NOTHING_GIVEN, Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.kinds import cell_text, is_missing
from simcse_cli.data.table import Table
from simcse_cli.errors import DataError
from simcse_cli.files.inputs import STDIO
from simcse_cli.files.streams import iter_lines


class Label(StrEnum):
    ENTAILMENT = "entailment"
    NEUTRAL = "neutral"
    CONTRADICTION = "contradiction"


# Words (also of SciTail and XNLI), the letters of ANLI, and the numbers of the Hub; None means that
# there is no label.
_LABELS: dict[str, Label | None] = {
    **dict.fromkeys(("entailment", "entails", "e", "0"), Label.ENTAILMENT),
    **dict.fromkeys(("neutral", "n", "1"), Label.NEUTRAL),
    **dict.fromkeys(
        ("contradiction", "contradicts", "contradictory", "c", "2"), Label.CONTRADICTION
    ),
    **dict.fromkeys(("-", "", "-1", "hidden")),
}
NO_LABEL = "no_label"
NLI_ROLES = ("anchor", "positive", "label")


@dataclass(frozen=True)
class NliPair:
    """A premise and a hypothesis; ``label`` is None if it is missing or not agreed upon."""

    premise: str
    hypothesis: str
    label: Label | None


def iter_nli(source: InputPath, given: Given = NOTHING_GIVEN) -> Iterator[Iterator[NliPair]]:
    """Yield an iterator over the pairs of each file, in any published layout of an NLI corpus.

    These are SNLI, MNLI and ANLI as JSON Lines, TSV (also named ``.txt``), parquet or Hub datasets,
    and SentEval's ``s1.SPLIT``, ``s2.SPLIT``, ``labels.SPLIT`` (name one file, or the folder).
    ``given`` may name the columns of ``anchor``, ``positive`` and ``label``.
    """
    label_files: list[Path] = []
    if str(source) != STDIO and guess_format(source) is not FileFormat.HUB:
        label_files = _label_files(Path(source))
    for labels in label_files:
        yield _iter_senteval(labels, given.encoding)
    if not label_files:
        yield _iter_table(Table(source, Job.NLI, given))


def _iter_table(table: Table) -> Iterator[NliPair]:
    """Yield the pairs of a table; raise DataError at its end if its labels are 0 and 1 only."""
    seen: set[str] = set()
    for number, (premise, hypothesis, label) in table.rows(*NLI_ROLES):
        texts = (table.text_of(premise), table.text_of(hypothesis))
        label_text = cell_text(label)
        pair = _pair(table.place(number), *texts, label_text)
        if pair.label is not None:
            seen.add(label_text.strip())
        yield pair
    # Without a 2, there are two classes, and 0 means entailment in some sets, but not in all.
    if seen and seen <= {"0", "1"}:
        source = shlex.quote(table.name)
        output = shlex.quote(f"{Path(table.name).stem}-pairs.csv")
        raise DataError(
            f"{table.name}: no label is 2, only {' and '.join(sorted(seen))}, "
            "need three classes (0, 1, 2) or words such as entailment",
            hint=f"keep the pairs of one label: "
            f"simcse prepare pairs {source} --keep-label {max(seen)} -o {output}",
        )


def _pair(place: str, premise: str, hypothesis: str, label: str) -> NliPair:
    word = "" if is_missing(label) else label.strip().lower()
    if word not in _LABELS:
        needed = "entailment, neutral or contradiction (or e, n, c; 0, 1, 2)"
        raise DataError(f"{place}: label {label!r}, need {needed}")
    return NliPair(premise.strip(), hypothesis.strip(), _LABELS[word])


def _label_files(source: Path) -> list[Path]:
    """Return all label files of SentEval in a folder, or the one that belongs to a file, if any."""
    if source.is_dir():
        label_files = sorted(source.glob("labels.*"))
        if not label_files:
            raise DataError(
                f"{source} is a folder without labels.* files (the SentEval layout)",
                hint="name the corpus files instead, for example snli_1.0_train.jsonl",
            )
        return label_files
    stem, _, split = source.name.partition(".")
    labels = source.with_name(f"labels.{split}")
    if stem in ("s1", "s2", "labels") and labels.is_file():
        return [labels]
    return []


def _iter_senteval(labels: Path, encoding: str) -> Iterator[NliPair]:
    """Yield the pairs of one split: row i has line i of each of its three files."""
    split = labels.name.removeprefix("labels")
    files = (labels.with_name(f"s1{split}"), labels.with_name(f"s2{split}"), labels)
    columns = [list(iter_lines(path, encoding=encoding)) for path in files]
    if len(set(map(len, columns))) > 1:
        counts = []
        for path, column in zip(files, columns, strict=True):
            counts.append(f"{path.name} {len(column):,}")
        what = f"{labels.parent}: line counts differ ({', '.join(counts)})"
        raise DataError(f"{what}, need the same number in each")
    for number, cells in enumerate(zip(*columns, strict=True), start=1):
        yield _pair(f"{labels}, line {number}", *cells)
