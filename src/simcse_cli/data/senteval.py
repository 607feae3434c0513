"""STS files in the SentEval layout, read exactly as the protocol of ``docs/evaluation.md`` does."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from simcse_cli.arrays import Floats
from simcse_cli.data.delimited import stsb_rows
from simcse_cli.data.text import one_line
from simcse_cli.errors import DataError
from simcse_cli.files.digests import digest
from simcse_cli.files.resources import resource_rows
from simcse_cli.files.schema import parse_number
from simcse_cli.files.streams import iter_lines
from simcse_cli.settings.choices import STS_TASKS

Split = Literal["train", "dev", "test", "all"]

STS_SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
_SPLIT_FILES = {
    "STSBenchmark": {"train": "sts-train.csv", "dev": "sts-dev.csv", "test": "sts-test.csv"},
    "SICKRelatedness": {
        "train": "SICK_train.txt",
        "dev": "SICK_trial.txt",
        "test": "SICK_test_annotated.txt",
    },
}

CHECK_HINT = "check the folder with `simcse prepare senteval --data-dir DIR`"


@dataclass(frozen=True)
class StsSubset:
    """Sentence pairs with gold similarity: row i of the three columns is one pair."""

    left: list[str]
    right: list[str]
    gold: Floats

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str, float]], source: Path | str) -> "StsSubset":
        rows = list(pairs)
        if not rows:
            raise DataError(f"{source} holds no annotated pair", hint=CHECK_HINT)
        left, right, gold = map(list, zip(*rows, strict=True))
        return cls(left, right, np.array(gold, dtype=np.float64))

    @classmethod
    def join(cls, parts: "Sequence[StsSubset]") -> "StsSubset":
        left: list[str] = []
        right: list[str] = []
        for part in parts:
            left += part.left
            right += part.right
        return cls(left, right, np.concatenate([part.gold for part in parts]))

    @property
    def n_pairs(self) -> int:
        return len(self.left)

    @property
    def sentences(self) -> list[str]:
        """All texts of the left side, then all of the right side."""
        return self.left + self.right

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return list(zip(self.left, self.right, strict=True))

    @property
    def digest(self) -> str:
        """SHA-256 over sentences and scores, independent of the file."""
        rows = []
        for left, right, gold in zip(self.left, self.right, self.gold.tolist(), strict=True):
            rows.append(f"{left}\t{right}\t{gold!r}\n")
        return digest(*rows)


@dataclass(frozen=True)
class StsTask:
    """One STS task; STS-B and SICK-R have a single subset named after the split."""

    name: str
    split: str
    subsets: dict[str, StsSubset]

    @property
    def n_pairs(self) -> int:
        return sum(subset.n_pairs for subset in self.subsets.values())

    @property
    def sentences(self) -> list[str]:
        return list(chain.from_iterable(subset.sentences for subset in self.subsets.values()))

    @property
    def digest(self) -> str:
        """SHA-256 over the pairs of all subsets."""
        return digest(*(subset.digest for subset in self.subsets.values()))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return list(chain.from_iterable(subset.pairs for subset in self.subsets.values()))


def digest_of_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a SHA-256 over distinct pairs; the order of pairs and of their sides does not matter.

    Example:
        >>> digest_of_pairs([("a", "b"), ("c", "d")]) == digest_of_pairs([("d", "c"), ("a", "b")])
        True
    """
    lines = {"\t".join(sorted(pair)) + "\n" for pair in pairs}
    return digest(*sorted(lines))


def resolve_senteval_dir(data_dir: Path | str) -> Path:
    """Return the ``downstream`` folder: ``data_dir`` itself, or one at most two levels below."""
    root = Path(data_dir)
    for subfolder in ("downstream", "senteval/downstream", "data/downstream", "."):
        if any((root / subfolder / name).is_dir() for name in ("STS", "SICK", "MR")):
            return root / subfolder
    what = "does not exist" if not root.exists() else "has no downstream/STS folder"
    raise DataError(
        f"{root} {what}; need a SentEval data folder",
        hint="give it with --data-dir or SIMCSE_DATA, "
        "or make a small one with `simcse prepare demo -o demo`",
    )


def malformed(path: Path, line_no: int, problem: str) -> DataError:
    return DataError(f"{path}, line {line_no}: {problem}", hint=CHECK_HINT)


def _clean_pair(place: str, left: str, right: str, gold: str) -> tuple[str, str, float]:
    score = parse_number(gold, place, "gold score", hint=CHECK_HINT)
    return one_line(left), one_line(right), score


def year_pairs(folder: Path, subset: str) -> Iterator[tuple[str, str, float]]:
    """Yield the annotated pairs of ``STS.input.SUBSET.txt``, scored in ``STS.gs.SUBSET.txt``."""
    for place, left, right, gold in year_rows(folder, subset):
        if gold.strip():
            yield _clean_pair(place, left, right, gold)


def year_rows(folder: Path, subset: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the place of each score, the two texts, and the score; it is blank if not annotated."""
    pairs = list(year_texts(folder, subset))
    gold_path = folder / f"STS.gs.{subset}.txt"
    golds = list(iter_lines(gold_path))
    if len(pairs) != len(golds):
        pairs_path = folder / f"STS.input.{subset}.txt"
        what = f"{pairs_path} has {len(pairs)} lines but {gold_path.name} has {len(golds)}"
        raise DataError(f"{what}; need one score a pair", hint=CHECK_HINT)
    for line_no, ((_, left, right), gold) in enumerate(zip(pairs, golds, strict=True), start=1):
        yield f"{gold_path}, line {line_no}", left, right, gold


def year_texts(folder: Path, subset: str) -> Iterator[tuple[str, str, str]]:
    """Yield the place and the texts of each pair of ``STS.input.SUBSET.txt``."""
    path = folder / f"STS.input.{subset}.txt"
    for line_no, line in enumerate(iter_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise malformed(path, line_no, "1 column, need 2 (tab-separated)")
        yield f"{path}, line {line_no}", columns[0], columns[1]


def stsb_pairs(path: Path) -> Iterator[tuple[str, str, float]]:
    """Yield the pairs of an STS-B file: tabs, gold in column 5, sentences in columns 6 and 7."""
    rows = stsb_rows(iter_lines(path), str(path), hint="give an STS-B file such as sts-dev.csv")
    for line_no, (*_, gold, left, right) in rows:
        yield _clean_pair(f"{path}, line {line_no}", left, right, gold)


def _sick_pairs(path: Path) -> Iterator[tuple[str, str, float]]:
    for line_no, line in enumerate(iter_lines(path), start=1):
        if line_no == 1:  # the header
            continue
        columns = line.split("\t")
        if len(columns) < 4:
            raise malformed(path, line_no, f"{len(columns)} columns, need at least 4")
        _, left, right, gold = columns[:4]
        yield _clean_pair(f"{path}, line {line_no}", left, right, gold)


def sts_folder(root: Path, task: str) -> Path:
    """Return the folder of an STS task below ``downstream``, existing or not."""
    if task == "SICKRelatedness":
        return root / "SICK"
    if task == "STSBenchmark":
        return root / "STS" / task
    return root / "STS" / f"{task}-en-test"


def sts_files(data_dir: Path | str, task: str, *, split: Split = "test") -> list[Path]:
    """Return the files that ``read_sts_task`` reads for a task, existing or not."""
    if not has_split(task, split):
        raise ValueError(f"{task} has a test set only, not {split!r}")
    folder = sts_folder(resolve_senteval_dir(data_dir), task)
    if task in _SPLIT_FILES:
        file_of_part = _SPLIT_FILES[task]
        return [folder / name for part, name in file_of_part.items() if split in (part, "all")]
    if task not in STS_SUBSETS:
        raise ValueError(f"unknown STS task {task!r}, need one of {', '.join(STS_TASKS)}")
    files = []
    for name in STS_SUBSETS[task]:
        files += [folder / f"STS.input.{name}.txt", folder / f"STS.gs.{name}.txt"]
    return files


def read_sts_task(data_dir: Path | str, task: str, *, split: Split = "test") -> StsTask:
    """Return one STS task of a SentEval folder, with its subsets in the order of the protocol.

    The full STS12 has 3,108 pairs. The split ``all`` is train, dev and test in this order; the STS
    years have a test set only.
    """
    paths = sts_files(data_dir, task, split=split)
    if task in _SPLIT_FILES:
        read_pairs = stsb_pairs if task == "STSBenchmark" else _sick_pairs
        parts = []
        for path in paths:
            parts.append(StsSubset.of(read_pairs(path), path))
        return StsTask(task, split, {split: StsSubset.join(parts)})
    folder = paths[0].parent
    subsets = {name: StsSubset.of(year_pairs(folder, name), folder) for name in STS_SUBSETS[task]}
    return StsTask(task, split, subsets)


def has_split(task: str, split: str) -> bool:
    """Tell whether a task has the split; only STS-B and SICK-R have more than a test split."""
    return split == "test" or task in _SPLIT_FILES


@dataclass(frozen=True)
class ExpectedFile:
    """One file of the published folder; ``task`` is ``-`` if no evaluation reads it.

    ``columns`` is the smallest number of tab-separated columns in a line; ``sha256`` is the digest
    of the lines, each stripped of trailing white space and ended by a line feed.
    """

    path: str
    task: str
    lines: int
    columns: int
    sha256: str


@cache
def expected_files() -> tuple[ExpectedFile, ...]:
    files = []
    for row in resource_rows("senteval_files.tsv"):
        path, task, n_lines, n_columns, sha256 = row.values()
        files.append(ExpectedFile(path, task, int(n_lines), int(n_columns), sha256))
    return tuple(files)
