"""Transfer tasks in the SentEval file formats, read and ordered exactly as the protocol does.

Folds and batches are drawn by position, so the order of the rows is part of the protocol: every
split is sorted by number of words (first sentence, then second) and then by label, with ties in
file order. Words are split at white space and re-joined with single spaces. The ``cat -v``
artefacts of MR and SUBJ (``M-C``, ``M-i``) and the lines that are empty after stripping (CR, MPQA)
are part of the published sets and are kept.
"""

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simcse_cli.arrays import Integers
from simcse_cli.data.given import NOTHING_GIVEN, Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.senteval import CHECK_HINT, malformed, resolve_senteval_dir
from simcse_cli.data.table import Table
from simcse_cli.data.text import one_line
from simcse_cli.errors import DataError
from simcse_cli.files.digests import digest
from simcse_cli.files.inputs import require_file
from simcse_cli.files.streams import iter_lines
from simcse_cli.settings.choices import TRANSFER_TASKS

SplitName = Literal["all", "train", "dev", "test"]

# Task -> part -> number of rows in the published set.
TRANSFER_ROWS: dict[str, dict[SplitName, int]] = {
    "MR": {"all": 10662},
    "CR": {"all": 3775},
    "SUBJ": {"all": 10000},
    "MPQA": {"all": 10606},
    "SST2": {"train": 67349, "dev": 872, "test": 1821},
    "TREC": {"train": 5452, "test": 500},
    "MRPC": {"train": 4076, "test": 1725},
}

# The files of each task: one for each part, or, where there is no fixed split, one for each label
# (``pos`` is 1, ``neg`` is 0).
_FILES = {
    "MR": {"pos": "rt-polarity.pos", "neg": "rt-polarity.neg"},
    "CR": {"pos": "custrev.pos", "neg": "custrev.neg"},
    "SUBJ": {"pos": "subj.objective", "neg": "subj.subjective"},
    "MPQA": {"pos": "mpqa.pos", "neg": "mpqa.neg"},
    "SST2": {"train": "sentiment-train", "dev": "sentiment-dev", "test": "sentiment-test"},
    "TREC": {"train": "train_5500.label", "test": "TREC_10.label"},
    "MRPC": {"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"},
}
_FOLDERS = {"SST2": "SST/binary"}
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
# The part of a split, by its name in the column ``split`` of a file.
_SPLIT_NAMES = {"train": "train", "test": "test", "dev": "dev", "validation": "dev", "valid": "dev"}

# One example: first sentence, second sentence (empty in the single-sentence tasks), label.
_Row = tuple[str, str, int]


@dataclass(frozen=True)
class TransferTask:
    """A classification task; row i of ``left``, ``right`` and ``labels`` is one example.

    ``right`` is empty for the single-sentence tasks. ``parts`` gives the rows of each split in the
    order of the protocol; MR, CR, SUBJ and MPQA have the single part ``all``. For a task from a
    file of the user, ``classes`` holds the label of each class in this file.
    """

    name: str
    left: list[str]
    right: list[str]
    labels: Integers
    parts: dict[SplitName, range]
    n_classes: int
    classes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        sizes = {part: len(rows) for part, rows in self.parts.items()}
        return digest(json.dumps([self.left, self.right, self.labels.tolist(), sizes]))

    @property
    def sentences(self) -> list[str]:
        return self.left + self.right

    def rows(self, part: SplitName) -> Integers:
        return np.asarray(self.parts[part], dtype=np.int64)

    def size_remarks(self) -> list[str]:
        """Return a sentence for every part whose size differs from the published set."""
        remarks = []
        for part, expected in TRANSFER_ROWS.get(self.name, {}).items():
            n_rows = len(self.parts.get(part, ()))
            if part in self.parts and n_rows != expected:
                remarks.append(
                    f"{self.name} {part} has {n_rows:,} rows, the published set {expected:,}: "
                    "scores do not compare with published ones"
                )
        return remarks


def transfer_files(data_dir: Path | str, task: str) -> dict[str, Path]:
    """Return the files of a task, existing or not, by label (``pos``, ``neg``) or split."""
    folder = resolve_senteval_dir(data_dir) / _FOLDERS.get(task, task)
    return {role: folder / name for role, name in _FILES[task].items()}


def missing_transfer_files(
    data_dir: Path | str, tasks: tuple[str, ...] = TRANSFER_TASKS
) -> dict[str, list[Path]]:
    """Return the missing files of each task; tasks with all files are left out."""
    missing: dict[str, list[Path]] = {}
    for task in tasks:
        for path in transfer_files(data_dir, task).values():
            if not path.is_file():
                missing.setdefault(task, []).append(path)
    return missing


def read_transfer_task(data_dir: Path | str, task: str) -> TransferTask:
    """Return one transfer task of a SentEval folder, in the order of the protocol."""
    if task not in TRANSFER_ROWS:
        raise ValueError(f"unknown transfer task {task!r}, need one of {', '.join(TRANSFER_TASKS)}")
    files = transfer_files(data_dir, task)
    if "pos" in files:
        rows = [*_polarity_rows(files["pos"], 1), *_polarity_rows(files["neg"], 0)]
        return _assemble(task, {"all": rows}, n_classes=2)
    parts = {part: list(_READERS[task](path)) for part, path in files.items()}
    for part, rows in parts.items():
        if not rows:
            raise DataError(f"{files[part]} holds no example", hint=CHECK_HINT)
    return _assemble(task, parts, n_classes=len(TREC_CLASSES) if task == "TREC" else 2)


def read_task_file(path: Path, given: Given = NOTHING_GIVEN) -> TransferTask:
    """Read a table of labelled texts, or pairs of texts, as a task named after the file.

    Without a column ``split`` (train, test, perhaps dev) all rows are one part, evaluated by
    cross-validation.
    """
    rows_of_part = _labelled_rows(path, given)
    if set(rows_of_part) not in ({"all"}, {"train", "test"}, {"train", "dev", "test"}):
        shown = ", ".join(rows_of_part) or "none"
        raise DataError(
            f"{path}: the parts are {shown}; need train and test, perhaps dev, in the column split"
        )

    # A class is the rank of its label: numbers first, then words.
    labels = Counter(label for rows in rows_of_part.values() for *_, label in rows)
    if labels["-"] and not labels["+"]:  # SNLI's sign for no label
        what = f"{path}: {labels['-']:,} rows have the label -, need a class"
        raise DataError(what, hint="fill it in, or take these rows out")
    if labels["-1"] and labels["0"]:
        given.told.info(
            f"{path}: {labels['-1']:,} rows have the class -1; if it means no label, take them out"
        )
    classes = tuple(sorted(labels, key=_rank_of_label))
    if len(classes) < 2:
        raise DataError(f"{path}: every label is {classes[0]}, need two or more")

    # The order of the parts is fixed; the file may have another.
    parts: dict[str, list[_Row]] = {}
    for part in ("all", "train", "dev", "test"):
        if part in rows_of_part:
            parts[part] = []
            for left, right, label in rows_of_part[part]:
                parts[part].append((left, right, classes.index(label)))
    return replace(_assemble(path.stem, parts, len(classes)), classes=classes)


def _labelled_rows(path: Path, given: Given) -> dict[str, list[tuple[str, str, str]]]:
    """Return the two texts and the label of each row, by part."""
    rows: dict[str, list[tuple[str, str, str]]] = {}
    # A column ``split`` is used here: it may not be in the remark on columns that are not used.
    given = replace(given, beside=(*given.beside, "split"))
    table = Table(path, Job.LABELLED, given)
    # Each row gives one text, or the two of a pair, and then the label.
    places = table.reading.places("text", "left", "right", "label")
    names = table.reading.grid.names_at(places)
    for number, record in table.records():
        *texts, label = (one_line(table.text_of(record[name])) for name in names)
        if not label or not all(texts):
            what = "the label" if all(texts) else "a text"
            hint = "fill it in, or take the row out"
            if path.suffix in (".csv", ".tsv", ".jsonl"):
                hint += f": sed {number}d {shlex.quote(str(path))} > filled{path.suffix}"
            raise DataError(f"{table.place(number)}: {what} is missing", hint=hint)
        split = record.get("split", "all")
        part = _SPLIT_NAMES.get(split.strip().lower(), split)
        left = texts[0]
        right = texts[1] if len(texts) > 1 else ""
        rows.setdefault(part, []).append((left, right, label))
    return rows


def _rank_of_label(label: str) -> tuple[bool, int, str]:
    """Return a sort key: labels of digits alone by their value, then all others by spelling."""
    if label.isdecimal():
        return False, int(label), label
    return True, 0, label


def _assemble(task: str, parts: Mapping[Any, list[_Row]], n_classes: int) -> TransferTask:
    """Return a task with the rows of all parts, each part sorted as in the protocol."""

    def protocol_order(row: _Row) -> tuple[int, int, int]:
        left, right, label = row
        return len(left.split()), len(right.split()), label

    ordered: list[_Row] = []
    ranges: dict[SplitName, range] = {}
    for part, rows in parts.items():
        start = len(ordered)
        ordered += sorted(rows, key=protocol_order)
        ranges[part] = range(start, len(ordered))
    left, right, labels = map(list, zip(*ordered, strict=True))
    # Tasks of single sentences have only empty texts on the right.
    if not any(right):
        right = []
    return TransferTask(task, left, right, np.array(labels, dtype=np.int64), ranges, n_classes)


def _polarity_rows(path: Path, label: int) -> Iterator[_Row]:
    """Yield the lines of a file, all with the same label.

    As in the protocol, a line ends wherever ``str.splitlines`` cuts, so also at a form feed.
    """
    text = require_file(path, hint=CHECK_HINT).read_text(encoding="latin-1")
    for line in text.splitlines():
        yield one_line(line), "", label


def _trec_rows(path: Path) -> Iterator[_Row]:
    """Yield the question and the coarse class of lines such as ``NUM:dist How far is it ?``."""
    for line_no, line in enumerate(iter_lines(path, encoding="latin-1"), start=1):
        kind, _, class_and_question = line.strip().partition(":")
        if kind not in TREC_CLASSES:
            raise malformed(path, line_no, f"class {kind!r}, need one of {', '.join(TREC_CLASSES)}")
        _, _, question = class_and_question.partition(" ")
        yield one_line(question), "", TREC_CLASSES.index(kind)


def _sst2_rows(path: Path) -> Iterator[_Row]:
    for line_no, line in enumerate(iter_lines(path), start=1):
        sentence, tab, label = line.strip().partition("\t")
        if not tab or label not in ("0", "1"):
            raise malformed(path, line_no, "need a sentence, a tab and the label 0 or 1")
        yield one_line(sentence), "", int(label)


def _mrpc_rows(path: Path) -> Iterator[_Row]:
    """Yield the pairs; columns are label, two ids, two sentences; the first line is a header."""
    for line_no, line in enumerate(iter_lines(path), start=1):
        if line_no == 1:
            continue
        columns = line.strip().split("\t")
        if len(columns) < 5 or columns[0] not in ("0", "1"):
            needed = "need 5 (label 0 or 1, two ids, two sentences)"
            raise malformed(path, line_no, f"{len(columns)} columns, {needed}")
        left, right = map(one_line, columns[3:5])
        if not (left and right):
            raise malformed(path, line_no, "a sentence is blank, need two")
        yield left, right, int(columns[0])


_READERS = {"TREC": _trec_rows, "SST2": _sst2_rows, "MRPC": _mrpc_rows}
