"""STS files in the SentEval layout, read exactly as the evaluation protocol reads them.

Tokens are joined with one space; pairs with a blank gold line are not annotated and are dropped
(``docs/evaluation.md``, data).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simcse_cli.errors import DataError
from simcse_cli.files.schema import parse_number
from simcse_cli.files.streams import iter_lines
from simcse_cli.settings.choices import STS_TASKS

Split = Literal["train", "dev", "test", "all"]

# Subset name -> annotated pairs, per SentEval task.
STS_SUBSETS: dict[str, dict[str, int]] = {
    "STS12": {
        "MSRpar": 750,
        "MSRvid": 750,
        "SMTeuroparl": 459,
        "surprise.OnWN": 750,
        "surprise.SMTnews": 399,
    },
    "STS13": {"FNWN": 189, "headlines": 750, "OnWN": 561},
    "STS14": {
        "deft-forum": 450,
        "deft-news": 300,
        "headlines": 750,
        "images": 750,
        "OnWN": 750,
        "tweet-news": 750,
    },
    "STS15": {
        "answers-forums": 375,
        "answers-students": 750,
        "belief": 375,
        "headlines": 750,
        "images": 750,
    },
    "STS16": {
        "answer-answer": 254,
        "headlines": 249,
        "plagiarism": 230,
        "postediting": 244,
        "question-question": 209,
    },
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
    """Sentence pairs with gold similarity: row i of ``left``, ``right`` and ``gold`` belong together."""

    left: list[str]
    right: list[str]
    gold: NDArray[np.float64]

    @classmethod
    def join(cls, parts: "Sequence[StsSubset]") -> "StsSubset":
        return cls(
            [sentence for part in parts for sentence in part.left],
            [sentence for part in parts for sentence in part.right],
            np.concatenate([part.gold for part in parts]),
        )

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
        state = sha256()
        for left, right, gold in zip(self.left, self.right, self.gold.tolist(), strict=True):
            state.update(f"{left}\t{right}\t{gold!r}\n".encode("utf-8", "surrogatepass"))
        return state.hexdigest()


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
        return [sentence for subset in self.subsets.values() for sentence in subset.sentences]

    @property
    def digest(self) -> str:
        """SHA-256 over the pairs of all subsets."""
        return sha256("".join(subset.digest for subset in self.subsets.values()).encode()).hexdigest()


def resolve_senteval_dir(data_dir: Path | str) -> Path:
    """Return the ``downstream`` folder for a SentEval folder, its parent, or the folder itself.

    Raises:
        DataError: no STS or transfer folder is found below it.
    """
    root = Path(data_dir)
    for below in ("downstream", "senteval/downstream", "data/downstream", "."):
        if any((root / below / name).is_dir() for name in ("STS", "SICK", "MR")):
            return root / below
    what = "does not exist" if not root.exists() else "has no downstream/STS folder"
    raise DataError(
        f"{root} {what}; need a SentEval data folder",
        hint="give it with --data-dir or SIMCSE_DATA, or make a small one with `simcse prepare demo -o demo`",
    )


def single_spaced(text: str) -> str:
    return " ".join(text.split())


def _parse_gold(text: str, path: Path, line_no: int) -> float:
    return parse_number(text, f"{path}, line {line_no}", "gold score", hint=CHECK_HINT)


def _subset(pairs: Iterator[tuple[str, str, float]], path: Path) -> StsSubset:
    rows = list(pairs)
    if not rows:
        raise DataError(f"{path} holds no annotated pair", hint=CHECK_HINT)
    left, right, gold = zip(*rows, strict=True)
    return StsSubset(list(left), list(right), np.array(gold, dtype=np.float64))


def year_pairs(folder: Path, subset: str) -> Iterator[tuple[str, str, float]]:
    """Yield the annotated pairs of ``STS.input.SUBSET.txt`` with the scores of ``STS.gs.SUBSET.txt``."""
    pairs_path, gold_path = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
    pairs, golds = list(iter_lines(pairs_path)), list(iter_lines(gold_path))
    if len(pairs) != len(golds):
        raise DataError(
            f"{pairs_path} has {len(pairs)} lines but {gold_path.name} has {len(golds)}; need one score a pair",
            hint=CHECK_HINT,
        )
    for line_no, (line, gold) in enumerate(zip(pairs, golds, strict=True), start=1):
        if not gold.strip():
            continue
        columns = line.split("\t")
        if len(columns) < 2:
            raise DataError(
                f"{pairs_path}, line {line_no}: 1 column, need 2 (tab-separated)", hint=CHECK_HINT
            )
        yield single_spaced(columns[0]), single_spaced(columns[1]), _parse_gold(gold, gold_path, line_no)


def read_stsb_file(path: Path | str) -> StsSubset:
    """Return the pairs of an STS-B file: tab-separated, gold in column 5, sentences in columns 6 and 7.

    Raises:
        DataError: the file is missing or empty, a line has too few columns or no numeric score; gives the line.
    """
    path = Path(path)

    def pairs() -> Iterator[tuple[str, str, float]]:
        for line_no, line in enumerate(iter_lines(path), start=1):
            columns = line.split("\t")
            if len(columns) < 7:
                raise DataError(
                    f"{path}, line {line_no}: {len(columns)} columns, need 7 "
                    "(genre, file, year, id, score, sentence 1, sentence 2)",
                    hint="give an STS-B file such as sts-dev.csv",
                )
            yield single_spaced(columns[5]), single_spaced(columns[6]), _parse_gold(columns[4], path, line_no)

    return _subset(pairs(), path)


def _sick_pairs(path: Path) -> Iterator[tuple[str, str, float]]:
    for line_no, line in enumerate(iter_lines(path), start=1):
        if line_no == 1:
            continue
        columns = line.split("\t")
        if len(columns) < 4:
            raise DataError(
                f"{path}, line {line_no}: {len(columns)} columns, need at least 4", hint=CHECK_HINT
            )
        yield single_spaced(columns[1]), single_spaced(columns[2]), _parse_gold(columns[3], path, line_no)


def sts_folder(root: Path, task: str) -> Path:
    """Return the folder of an STS task below ``downstream``, existing or not."""
    if task == "SICKRelatedness":
        return root / "SICK"
    return root / "STS" / (task if task == "STSBenchmark" else f"{task}-en-test")


def sts_files(data_dir: Path | str, task: str, *, split: Split = "test") -> list[Path]:
    """Return the files that ``read_sts_task`` reads for a task, existing or not.

    Raises:
        ValueError: unknown task, or a split that the task does not have.
    """
    if not has_split(task, split):
        raise ValueError(f"{task} has a test set only, not {split!r}")
    folder = sts_folder(resolve_senteval_dir(data_dir), task)
    if task in _SPLIT_FILES:
        files = _SPLIT_FILES[task]
        return [folder / name for part, name in files.items() if split in (part, "all")]
    if task not in STS_SUBSETS:
        raise ValueError(f"unknown STS task {task!r}, need one of {', '.join(STS_TASKS)}")
    kinds = ("input", "gs")
    return [folder / f"STS.{kind}.{subset}.txt" for subset in STS_SUBSETS[task] for kind in kinds]


def read_sts_task(data_dir: Path | str, task: str, *, split: Split = "test") -> StsTask:
    """Return one STS task of a SentEval folder.

    Args:
        data_dir: the SentEval folder, its ``downstream`` folder or their parent.
        task: one of ``STS12`` .. ``STS16``, ``STSBenchmark``, ``SICKRelatedness``.
        split: ``train``, ``dev``, ``test``, or ``all`` three in this order; the STS years have a test set only.

    Returns:
        The task with its subsets in the protocol's order; the full STS12 has 3,108 pairs.

    Raises:
        DataError: a file is missing or malformed; gives file and line.
        ValueError: unknown task, or a split that the task does not have.
    """
    if split == "all" and has_split(task, split):
        splits: tuple[Split, ...] = ("train", "dev", "test")
        parts = [read_sts_task(data_dir, task, split=part).subsets[part] for part in splits]
        return StsTask(task, split, {split: StsSubset.join(parts)})
    path, *_ = sts_files(data_dir, task, split=split)
    if task == "STSBenchmark":
        return StsTask(task, split, {split: read_stsb_file(path)})
    if task == "SICKRelatedness":
        return StsTask(task, split, {split: _subset(_sick_pairs(path), path)})
    folder = path.parent
    subsets = {name: _subset(year_pairs(folder, name), folder) for name in STS_SUBSETS[task]}
    return StsTask(task, split, subsets)


def has_split(task: str, split: str) -> bool:
    """Tell whether a task has the split; only STS-B and SICK-R have more than a test split."""
    return split == "test" or task in _SPLIT_FILES
